package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func TestPartitionsOfAPattern(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, f := range []string{"a.csv", "2026/01/b.csv", "2026/c.csv", "2026/.hidden.csv", "2026/_mqb-manifest.csv", "d.txt"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o755))
		write(t, filepath.Join(dir, f), "x\n1\n")
	}
	must(t, os.Mkdir(filepath.Join(dir, "dir.csv"), 0o755))
	list := func(path string, shared bool) (ids, names []string) {
		s, err := newSource(&Config{Path: path, Format: "csv", CSV: CSVConfig{Header: true}}, &route.Spec{SharedStorage: shared}, connectors.Env{Node: "n1"})
		must(t, err)
		ps, err := s.Partitions(t.Context())
		must(t, err)
		must(t, s.Check(t.Context()))
		for _, p := range ps {
			if (p.Node == "n1") == shared {
				t.Errorf("%s: node %q", p.ID, p.Node)
			}
			ids, names = append(ids, p.ID), append(names, p.PartSource)
		}
		slices.Sort(ids)
		return ids, names
	}
	if got, _ := list(dir+"/**/*.csv", true); !slices.Equal(got, []string{"2026/01/b.csv", "2026/c.csv", "a.csv"}) {
		t.Errorf("shared: %q", got)
	}
	if got, _ := list(dir+"/*.csv", false); !slices.Equal(got, []string{"n1/a.csv"}) {
		t.Errorf("node: %q", got)
	}
	got, names := list(dir+"/a.csv", true)
	if !slices.Equal(got, []string{"a.csv"}) || !strings.HasPrefix(names[0], "file-a.csv-") || len(names[0]) != len("file-a.csv-")+16 {
		t.Errorf("plain: %q %q", got, names)
	}
	if got, _ := list(dir+"/nothing*.csv", true); len(got) != 0 {
		t.Errorf("no match: %q", got)
	}
	s, err := newSource(&Config{Path: dir + "/missing.csv", Format: "csv"}, &route.Spec{}, connectors.Env{})
	must(t, err)
	if _, err := s.Partitions(t.Context()); err == nil || !strings.Contains(err.Error(), "missing.csv") || connectors.Classify(err) != connectors.ClassRetryable {
		t.Errorf("missing file: %v", err)
	}
}

// Followed, a link to a directory above it gives each file again with every turn.
func TestALinkToADirectoryAboveDoesNotReadFilesAgainAndAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
	write(t, filepath.Join(dir, "a.csv"), "x\n")
	must(t, os.Symlink("a.csv", filepath.Join(dir, "link.csv")))
	for _, link := range []string{"loop", "loop2", "loop.csv", "sub/up.csv"} {
		must(t, os.Symlink(dir, filepath.Join(dir, link)))
	}
	for pattern, want := range map[string][]string{"**/*.csv": {"a.csv", "link.csv"}, "*.csv": {"a.csv", "link.csv"}, "*/*.csv": {"loop/a.csv", "loop/link.csv", "loop.csv/a.csv", "loop.csv/link.csv", "loop2/a.csv", "loop2/link.csv"}} {
		s, err := newSource(&Config{Path: filepath.Join(dir, pattern), Format: "csv"}, &route.Spec{SharedStorage: true}, connectors.Env{})
		must(t, err)
		ps, err := s.Partitions(t.Context())
		must(t, err)
		var got []string
		for _, p := range ps {
			got = append(got, p.ID)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", pattern, got)
		}
	}
}

// A name that is not UTF-8 does not survive being stored as JSON: such a file was
// listed, and nobody could ever own it.
func TestAFileWhoseNameIsNotUTF8IsRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"b\xff%FF.txt", "b\ufffd%FF.txt", "b\xfe%FF.txt"} {
		write(t, filepath.Join(dir, name), name+"\n")
	}
	for _, pattern := range []string{"*.txt", "b\xff%FF.txt"} {
		s, err := newSource(&Config{Path: filepath.Join(dir, pattern), Format: "raw"}, &route.Spec{}, connectors.Env{Node: "n"})
		must(t, err)
		ps, err := s.Partitions(t.Context())
		must(t, err)
		ids := map[string]bool{}
		for _, p := range ps {
			text, err := json.Marshal(p)
			must(t, err)
			var stored connectors.Partition
			must(t, json.Unmarshal(text, &stored))
			if stored.ID != p.ID || stored.PartSource != p.PartSource {
				t.Errorf("%q is stored as %q", p.ID, stored.ID)
			}
			ids[stored.ID] = true
			path, err := s.(*source).file(stored)
			must(t, err)
			if got := contentOf(t, path); got != filepath.Base(path)+"\n" {
				t.Errorf("%q leads to %q", stored.ID, got)
			}
		}
		if len(ids) != len(ps) || len(ps) == 0 {
			t.Errorf("%s: %d partitions, %d names", pattern, len(ps), len(ids))
		}
	}
}

func TestConfigErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		side route.Side
		cfg  Config
		want string
	}{
		{route.Input, Config{Format: "json"}, "path: is required"},
		{route.Input, Config{Path: "x", Format: "jsonl"}, `unknown format "jsonl"`},
		{route.Input, Config{Path: "x", Mode: "subscribe"}, "not supported yet"},
		{route.Input, Config{Path: "x", Delimiter: "ab"}, "one ASCII byte"},
		{route.Input, Config{Path: "x", Format: "csv"}, "csv.columns: is required"},
		{route.Input, Config{Path: "x", Format: "csv", CSV: CSVConfig{Header: true, Separator: "::"}}, "csv.separator: must be one ASCII byte"},
		{route.Input, Config{Path: "x", Format: "csv", CSV: CSVConfig{Header: true, Separator: "\""}}, "csv.separator"},
		{route.Input, Config{Path: "x", Format: "csv", CSV: CSVConfig{Header: true, OnMismatch: "drop"}}, "csv.on_mismatch"},
		{route.Output, Config{Path: "x", Format: "json", NameBy: "write_time"}, "use source_position for parts"},
		{route.Output, Config{Path: "x", Format: "csv", NameBy: "source_position", CSV: CSVConfig{Header: true, Separator: "auto"}}, "csv.separator: auto is for sources"},
		{route.Output, Config{Path: "x", Format: "csv", CSV: CSVConfig{Header: true, Columns: []string{"a", "b", "a"}}}, `csv.columns: "a" is there twice`},
		{route.Output, Config{Path: "x", Delimiter: ";"}, "delimiter: \";\" may occur inside"},
		{route.Output, Config{Path: "x", Format: "json", Delimiter: " "}, "delimiter: \" \" may occur inside"},
	} {
		if got := errors.Join(c.cfg.Validate(c.side)...); got == nil || !strings.Contains(got.Error(), c.want) {
			t.Errorf("%+v: %v, want %s", c.cfg, got, c.want)
		}
	}
	for _, ok := range []Config{{Path: "x", Format: "json", Delimiter: "\t"}, {Path: "x", Delimiter: "\x00"}, {Path: "x", Format: "raw", Delimiter: ";"},
		{Path: "x", Format: "csv", CSV: CSVConfig{Columns: []string{"a", "a"}}},
		{Path: "x", Format: "csv", NameBy: "source_position", CSV: CSVConfig{Header: true, Columns: []string{"a", "a"}}}} {
		if errs := ok.Validate(route.Output); len(errs) > 0 {
			t.Errorf("%+v: %v", ok, errs)
		}
	}
	for _, side := range []route.Side{route.Input, route.Output} {
		ok := Config{Path: "x", Format: "raw", NameBy: "source_position", Mode: "consume"}
		if errs := ok.Validate(side); len(errs) > 0 {
			t.Errorf("%s: %v", side, errs)
		}
	}
}

func TestEnvelopes(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, `{"message_id":"7","payload":"p","metadata":{"z":"1","a":"2","mqb.src.x":"no"}}
{"message_id":340282366920938463463374607431768211455,"payload_base64":"/w=="}
{"payload":"mine"}
plain text
`)
	b, err := r.mustOpen(message.Position{}).Read(t.Context())
	must(t, err)
	defer b.Release()
	var got []string
	for i := range b.Len() {
		s := string(b.Payload(i))
		for j := range b.MetaLen(i) {
			k, v := b.MetaAt(i, j)
			s += fmt.Sprintf(" %s=%s", k, v)
		}
		got = append(got, s)
	}
	want := []string{"p a=2 z=1 mqb.id=7", "\xff mqb.id=340282366920938463463374607431768211455", `{"payload":"mine"}`, "plain text"}
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// Standard output takes turns, whatever it is called; a file has one writer that
// knows how long it is.
func TestLettersMayGoToTheStandardOutputOfTheRoute(t *testing.T) {
	t.Parallel()
	for path, ok := range map[string]bool{"-": true, "/dev/stdout": true, "out": false} {
		c := Config{Path: path}
		if err := c.TakesLetters(&Config{Path: path}); (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
}
