package file

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

func TestCSVAppendsUnderTheColumnsOfTheFile(t *testing.T) {
	t.Parallel()
	for _, compression := range []string{"none", "gzip"} {
		dir := t.TempDir()
		cfg := Config{Path: filepath.Join(dir, "out.csv"+codec(compression).ext()), Format: "csv", CSV: CSVConfig{Header: true}}
		found := "\xef\xbb\xbfzeta,alpha,\"mid, dle\"\r\n1,2,3\r\n"
		if compression == "none" {
			write(t, cfg.Path, found)
		} else {
			write(t, cfg.Path, string(pack(t, codec(compression), found)))
		}
		w := appending(t, cfg, ordersClaim(1))
		put(t, w, `{"alpha":"a","mid, dle":"m","zeta":"z"}`, `{"alpha":"only","new":1}`)
		s := state(t, w)
		must(t, w.Close())
		w = appending(t, cfg, withState(ordersClaim(1), s))
		put(t, w, `{"zeta":9,"alpha":8,"mid, dle":7}`)
		s = state(t, w)
		must(t, w.Close())
		want := found + "z,a,m\n,only,\n9,8,7\n"
		if got := foreign(t, cfg.Path); got != want {
			t.Errorf("%s: %q, want %q", compression, got, want)
		}
		// Other columns, another separator: not into this file.
		for name, change := range map[string]func(*CSVConfig){
			"columns": func(c *CSVConfig) { c.Columns = []string{"alpha", "zeta"} }, "separator": func(c *CSVConfig) { c.Separator = ";" },
		} {
			other := cfg
			change(&other.CSV)
			if _, err := appendTo(t, other, withState(ordersClaim(2), s)); connectors.Classify(err) != connectors.ClassPermanent {
				t.Errorf("%s: %v", name, err)
			}
		}
		w = appending(t, cfg, withState(ordersClaim(2), s))
		if err := w.Write(t.Context(), batchOf(`{"other":1}`), 0, 1); connectors.Classify(err) != connectors.ClassData {
			t.Errorf("a record without any column of the file: %v", err)
		}
	}
}

func TestCSVColumnsStayAcrossACrash(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "out.csv"), Format: "csv", CSV: CSVConfig{Header: true}}
	w := appending(t, cfg, ordersClaim(1))
	s := state(t, w)
	put(t, w, `{"b":1,"a":2}`) // never committed: the header goes with it
	must(t, w.Close())
	w = appending(t, cfg, withState(ordersClaim(1), s))
	put(t, w, `{"b":1,"a":2}`)
	s = state(t, w)
	put(t, w, `{"a":3}`)
	must(t, w.Close())
	w = appending(t, cfg, withState(ordersClaim(2), s))
	put(t, w, `{"a":3,"c":4,"b":5}`)
	if got := contentOf(t, cfg.Path); got != "b,a\n1,2\n5,3\n" {
		t.Errorf("%q", got)
	}
	// Without a header the record alone knows.
	cfg = Config{Path: filepath.Join(t.TempDir(), "out.csv"), Format: "csv", CSV: CSVConfig{Columns: []string{"a", "b"}}}
	w = appending(t, cfg, ordersClaim(1))
	put(t, w, `{"b":1,"a":2}`)
	s = state(t, w)
	must(t, w.Close())
	cfg.CSV.Columns = []string{"b", "a"}
	if _, err := appendTo(t, cfg, withState(ordersClaim(1), s)); connectors.Classify(err) != connectors.ClassPermanent {
		t.Errorf("%v", err)
	}
}

func TestCSVWithAHeaderThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	for _, found := range []string{"a,\"b\n1,2\n", "\n\n", "a,b,a\n1,2,3\n", "a\"b,c\n"} {
		cfg := Config{Path: filepath.Join(t.TempDir(), "out.csv"), Format: "csv", CSV: CSVConfig{Header: true}}
		write(t, cfg.Path, found)
		if _, err := appendTo(t, cfg, ordersClaim(1)); connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "header") {
			t.Errorf("%q: %v", found, err)
		}
		if got := contentOf(t, cfg.Path); got != found {
			t.Errorf("%q became %q", found, got)
		}
	}
}

// A file whose last field is never closed would take in what is appended.
func TestCSVIsNotAppendedInsideAQuotedField(t *testing.T) {
	t.Parallel()
	for _, c := range append([]codec{codecNone}, codecs...) {
		for found, ok := range map[string]bool{"a,b\n1,\"x\n": false, "a,b\n1,\"x\"\"\n": false, "a,b\n1,\"x\"\n": true, "a,b\n1,\"x\"\"\n\"": true,
			"a,b\n1,5\" pipe\n": true, "a,b\n5\" pipe,\"x\n": false} {
			cfg := Config{Path: filepath.Join(t.TempDir(), "out.csv"+c.ext()), Format: "csv", CSV: CSVConfig{Header: true}}
			content := found
			if c != codecNone {
				content = string(pack(t, c, found))
			}
			write(t, cfg.Path, content)
			_, err := appendTo(t, cfg, ordersClaim(1))
			if ok && err != nil || !ok && (connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "inside a quoted field")) {
				t.Errorf("%s: %q: %v", c, found, err)
			}
			if got := contentOf(t, cfg.Path); got != content {
				t.Errorf("%q became %q", content, got)
			}
		}
	}
}

// A header that the next run cannot read, or reads in another way, is the last of
// its file: nothing can be appended to it any more.
func TestAHeaderThatCSVWritesIsOneThatItGoesOnUnder(t *testing.T) {
	t.Parallel()
	for _, record := range []string{"{\"\ufeffid\":1,\"b\":2}", "{\"\\r\\n\":1}", "{\"\":1}", "{\"\\u0000\":1,\"\\ud800\":2}", "{\"a\\\"\":1,\" \":2}"} {
		cfg := Config{Path: filepath.Join(t.TempDir(), "out.csv"), Format: "csv", CSV: CSVConfig{Header: true}}
		w := appending(t, cfg, ordersClaim(1))
		put(t, w, record)
		s := state(t, w)
		must(t, w.Close())
		w = appending(t, cfg, withState(ordersClaim(1), s))
		put(t, w, record)
		must(t, w.Close())
		r := newRig(t, csvFile, contentOf(t, cfg.Path))
		if got, _, err := drain(t, r.mustOpen(message.Position{})); len(got) != 2 || got[0] != got[1] {
			t.Errorf("%q: %q, %v", record, got, err)
		}
	}
	cfg := Config{Path: filepath.Join(t.TempDir(), "out.csv"), Format: "csv", CSV: CSVConfig{Header: true}}
	w := appending(t, cfg, ordersClaim(1))
	if err := w.Write(t.Context(), batchOf(`{"`+strings.Repeat("x", maxHeader)+`":1}`), 0, 1); connectors.Classify(err) != connectors.ClassData {
		t.Errorf("a header that is too long: %v", err)
	}
	put(t, w, `{"a":1}`)
	if got := contentOf(t, cfg.Path); got != "a\n1\n" {
		t.Errorf("%q behind a refused record", got)
	}
}
