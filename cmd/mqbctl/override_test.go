package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every command that reads a file reads it with its overrides.
func TestOverridesOfTheEnvironmentApplyToEveryCommand(t *testing.T) {
	file, dir := csvRoute(t, 10, "")
	other := filepath.Join(dir, "other.csv")
	if err := os.WriteFile(other, []byte("id\n1\n2\n3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MQB__CSV__INPUT__FILE__PATH", other)
	if s, r := runFile(t, file, dir); r.code != 0 || s.Records != 3 {
		t.Errorf("run: %+v %+v", s, r)
	}
	t.Setenv("MQB__CVS__BATCH_SIZE", "1")
	for _, args := range [][]string{{"validate", file}, {"explain", file}, {"run", file, "--data-dir", dir}, {"apply", "-f", file}} {
		r := mqbctl(t, "", args...)
		if r.code != 3 || !strings.Contains(r.err, "MQB__CVS__BATCH_SIZE: names no route of this file (did you mean MQB__CSV?)") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
