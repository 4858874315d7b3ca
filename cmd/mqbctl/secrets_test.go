package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever is printed about a route whose system refuses, its password is not in it.
func TestNoCommandPrintsAPassword(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, port := csvFile(t, dir, 3), closedPort(t)
	for i, url := range []string{
		"postgres://u:geheim@" + port + "/d", "postgres://u:12345geheim@" + port + "/d", "postgres://u:%67eheim@" + port + "/d?sslpassword=geheim",
		"postgres://" + port + "/d?user=u&password=geheim", "postgres://u:ge heim geheim@" + port + "/d", "postgres://u:a/geheim@" + port + "/d",
		"postgres://u:geheim@" + port + "/d?table=x&sslmode=nonsense&password=geheim",
	} {
		file := filepath.Join(dir, fmt.Sprintf("r%d.yaml", i))
		text := fmt.Sprintf("input: {file: {path: %q, format: csv}}\noutput: {sqlx: {url: %q, table: t}}\ngive_up_after: 1s\n", in, url)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		state := filepath.Join(dir, fmt.Sprint("state", i))
		dst := url + "&table=t"
		if !strings.Contains(url, "?") {
			dst = url + "?table=t"
		}
		for _, args := range [][]string{
			{"validate", file, "--connect"}, {"explain", file}, {"explain", file, "-o", "json"},
			{"run", file, "--data-dir", state, "--log-level", "debug"},
			{"copy", in, dst, "--data-dir", state, "--connect-timeout", "300ms", "-v", "-v"},
			{"copy", in, dst, "--print-config"},
			{"copy", in, dst, "--data-dir", state, dst},
			{"copy", in, strings.Replace(dst, "table=", "tabel=", 1), "--data-dir", state},
		} {
			if r := mqbctl(t, "", args...); strings.Contains(r.out+r.err, "geheim") {
				t.Errorf("%v: %+v", args, r)
			}
		}
	}
	if r := mqbctl(t, "", "schema"); strings.Contains(r.out, "password:") {
		t.Error("the schema has a URL with a password")
	}
}
