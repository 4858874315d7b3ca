package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
)

// manifest says whose parts a directory holds. The first route that writes there
// creates it; with existing_parts: skip another one takes it over.
type manifest struct {
	V        int    `json:"v"`
	Route    string `json:"route"`
	RouteUID string `json:"route_uid"`
	Series   string `json:"series"`
	Cluster  string `json:"cluster_uid,omitempty"`
}

func (m *manifest) same(o *manifest) bool { return m.RouteUID == o.RouteUID && m.Series == o.Series }

// adoption is what a lineage found when it took a directory over: the records of
// these parts are covered. It is written once, before the lineage's first part,
// so that its own parts are never in it.
type adoption struct {
	V        int                   `json:"v"`
	RouteUID string                `json:"route_uid"`
	Series   string                `json:"series"`
	From     string                `json:"from"` // the route that had it
	Parts    map[string][][2]int64 `json:"parts"`
}

const manifestName = manifestStem + ".json"

func adoptionName(m *manifest) string {
	return manifestStem + "-" + url.PathEscape(m.RouteUID) + "-" + url.PathEscape(m.Series) + ".json"
}

// ownDirectory makes sure that the directory belongs to this lineage and returns
// the ranges of this partition that an earlier lineage wrote. Concurrent callers
// of one lineage come to the same answer.
func (w *parts) ownDirectory() ([]connectors.Range, error) {
	own := &manifest{V: 1, Route: w.claim.Route, RouteUID: w.claim.RouteUID, Series: w.claim.Series, Cluster: w.claim.Record.ClusterUID}
	there, err := w.readManifest()
	if err != nil {
		return nil, err
	}
	if there == nil {
		others, err := w.anyPart()
		if err != nil {
			return nil, err
		}
		if !others {
			if err := w.createJSON(manifestName, own); err != nil {
				return nil, err
			}
		}
		// Read it back: another partition's run, or another route, may have been faster.
		if there, err = w.readManifest(); err != nil {
			return nil, err
		}
	}
	if there == nil || !there.same(own) {
		if w.spec.ExistingParts != "skip" {
			return nil, &connectors.Error{
				Class: connectors.ClassForeign,
				Err:   foreignError(fmt.Sprintf("file sink: route %s: directory %s %s", w.claim.Route, w.dir, lineage(there, own))),
				Hint:  "write to another directory, or keep what is there and do not write those records again: with copy --append, in a route existing_parts: skip",
			}
		}
		if err := w.adopt(there, own); err != nil {
			return nil, err
		}
	}
	return w.readAdoption(own)
}

// foreignError is checkpoint.ErrForeign in words of its own.
type foreignError string

func (e foreignError) Error() string { return string(e) }

func (e foreignError) Is(target error) bool { return target == checkpoint.ErrForeign }

// lineage says in words whose parts are there.
func lineage(there, own *manifest) string {
	switch {
	case there == nil:
		return "holds parts without a manifest, so that it is unknown which route they are from"
	case there.RouteUID == own.RouteUID:
		return "holds parts from before the position of this route was reset"
	case there.Route == own.Route:
		return fmt.Sprintf("holds the parts of an earlier copy, or an earlier route of the same name, which was deleted or belongs to another cluster (uid %s)", there.RouteUID)
	}
	return fmt.Sprintf("holds the parts of route %s (uid %s)", there.Route, there.RouteUID)
}

func (w *parts) adopt(there, own *manifest) error {
	a := adoption{V: 1, RouteUID: own.RouteUID, Series: own.Series, Parts: map[string][][2]int64{}}
	if there != nil {
		a.From = there.Route
	}
	err := w.names(func(name string) error {
		if key, r, ok := parsePart(name); ok {
			a.Parts[key] = append(a.Parts[key], [2]int64{r.First, r.Last})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for key, rs := range a.Parts {
		a.Parts[key] = merge(rs)
	}
	if err := w.createJSON(adoptionName(own), &a); err != nil {
		return err
	}
	// From here on the old lineage is refused. A crash in between repeats this.
	tmp, err := w.writeJSON(own)
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(w.dir, manifestName)); err != nil {
		os.Remove(tmp)
		return w.failed("write manifest", err)
	}
	return w.syncDir()
}

// merge sorts ranges and joins those that touch.
func merge(rs [][2]int64) [][2]int64 {
	slices.SortFunc(rs, func(a, b [2]int64) int {
		if a[0] != b[0] {
			return int(max(-1, min(1, a[0]-b[0])))
		}
		return int(max(-1, min(1, a[1]-b[1])))
	})
	out := rs[:0]
	for _, r := range rs {
		if n := len(out); n > 0 && r[0]-1 <= out[n-1][1] {
			out[n-1][1] = max(out[n-1][1], r[1])
			continue
		}
		out = append(out, r)
	}
	return out
}

func (w *parts) readManifest() (*manifest, error) {
	var m manifest
	found, err := w.readJSON(manifestName, &m)
	if !found || err != nil {
		return nil, err
	}
	return &m, nil
}

func (w *parts) readAdoption(own *manifest) ([]connectors.Range, error) {
	var a adoption
	if _, err := w.readJSON(adoptionName(own), &a); err != nil {
		return nil, err
	}
	var out []connectors.Range
	for _, r := range a.Parts[w.key] {
		out = append(out, connectors.Range{First: r[0], Last: r[1]})
	}
	return out, nil
}

func (w *parts) readJSON(name string, v any) (found bool, err error) {
	b, err := os.ReadFile(filepath.Join(w.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, w.failed("read "+name, err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return false, connectors.Permanent(fmt.Errorf("file sink: %s: %w", filepath.Join(w.dir, name), err), "restore it, or write to another directory")
	}
	return true, nil
}

// createJSON creates a file with the JSON of v unless there is one of that name.
func (w *parts) createJSON(name string, v any) error {
	tmp, err := w.writeJSON(v)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	if err := createAs(tmp, filepath.Join(w.dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
		return w.failed("create "+name, err)
	}
	return w.syncDir()
}

func (w *parts) writeJSON(v any) (tmp string, err error) {
	if tmp, err = writeTemp(w.dir, v); err != nil {
		return "", w.failed("write manifest", err)
	}
	return tmp, nil
}

// writeTemp writes the JSON of v to a new hidden file in dir, durably but for its name.
func writeTemp(dir string, v any) (tmp string, err error) {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, spoolStem+"manifest-")
	if err != nil {
		return "", err
	}
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// names calls fn for each name in the directory, in no order. One pass costs
// about 50 ms for 100,000 names; nothing is opened or looked at.
func (w *parts) names(fn func(string) error) error {
	d, err := os.Open(w.dir)
	if err != nil {
		return w.failed("list", err)
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(4096)
		for _, n := range names {
			if err := fn(n); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			return nil
		}
		if err != nil {
			return w.failed("list", err)
		}
	}
}

// anyPart reports whether the directory holds parts of anybody.
func (w *parts) anyPart() (bool, error) {
	found := errors.New("found")
	err := w.names(func(n string) error {
		if strings.HasPrefix(n, partStem) {
			if _, _, ok := parsePart(n); ok {
				return found
			}
		}
		return nil
	})
	if err == found {
		return true, nil
	}
	return false, err
}
