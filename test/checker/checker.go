// Package checker counts what a reader of the output would see. It shares no
// code with the product, so that both cannot be wrong in the same way: it lists
// files, reads lines and parses them with the standard library only.
package checker

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Report is what was found in a directory of parts that hold JSON lines.
type Report struct {
	Parts   int
	Records int64
	// Missing and Doubled count ids of 1..N that are absent or there more than once.
	Missing, Doubled int64
	// Examples name a few of them.
	Examples []string
	// Disorder counts records that stand before a lower id of the same partition.
	Disorder int64
}

// OK reports whether every id is there exactly once and in order.
func (r Report) OK() bool { return r.Missing == 0 && r.Doubled == 0 && r.Disorder == 0 }

func (r Report) String() string {
	s := fmt.Sprintf("%d parts, %d records: %d missing, %d doubled, %d out of order", r.Parts, r.Records, r.Missing, r.Doubled, r.Disorder)
	if len(r.Examples) > 0 {
		s += " (" + strings.Join(r.Examples, ", ") + ")"
	}
	return s
}

// Parts reads every part of dir (files named part-*.bin, in name order) and
// looks for the ids 1..n in the field "id" of each line.
func Parts(dir string, n int64) (Report, error) {
	var r Report
	files, err := filepath.Glob(filepath.Join(dir, "part-*.bin"))
	if err != nil {
		return r, err
	}
	seen := make([]uint8, n+1)
	last := map[string]int64{} // by partition: the name without the range
	for _, f := range files {
		r.Parts++
		partition := strings.TrimSuffix(filepath.Base(f), ".bin")
		if len(partition) > 42 {
			partition = partition[:len(partition)-42]
		}
		if err := r.read(f, seen, partition, last); err != nil {
			return r, err
		}
	}
	for id := int64(1); id <= n; id++ {
		switch {
		case seen[id] == 0:
			r.Missing++
			r.example("id %d missing", id)
		case seen[id] > 1:
			r.Doubled++
			r.example("id %d there %d times", id, seen[id])
		}
	}
	return r, nil
}

func (r *Report) read(path string, seen []uint8, partition string, last map[string]int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(make([]byte, 1<<20), 16<<20)
	for line := 1; in.Scan(); line++ {
		var row struct{ ID json.RawMessage }
		if err := json.Unmarshal(in.Bytes(), &row); err != nil {
			return fmt.Errorf("%s:%d: no JSON: %w", path, line, err)
		}
		id, err := strconv.ParseInt(strings.Trim(string(row.ID), `"`), 10, 64)
		if err != nil || id < 1 || id >= int64(len(seen)) {
			return fmt.Errorf("%s:%d: id %s is none of 1..%d", path, line, row.ID, len(seen)-1)
		}
		if seen[id] < 255 {
			seen[id]++
		}
		if id <= last[partition] {
			r.Disorder++
			r.example("id %d after %d in %s", id, last[partition], partition)
		}
		last[partition] = id
		r.Records++
	}
	return in.Err()
}

func (r *Report) example(format string, args ...any) {
	if len(r.Examples) < 5 {
		r.Examples = append(r.Examples, fmt.Sprintf(format, args...))
	}
}
