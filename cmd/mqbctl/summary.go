package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/lease"
)

// summary is what a run did so far.
type summary struct {
	Records int64 `json:"records"`
	// Read counts what came in; the rest of Counters says what became of it.
	Read     int64          `json:"read"`
	Counters lease.Counters `json:"counters"`
	Bytes    int64          `json:"bytes"`
	Seconds  float64        `json:"seconds"`
	Rate     float64        `json:"records_per_second"`
	// FenceSeconds is the time that writers waited for claims and commits, summed
	// over partitions like RunSeconds, the time they ran.
	FenceSeconds float64  `json:"fence_seconds"`
	RunSeconds   float64  `json:"run_seconds"`
	Partitions   int      `json:"partitions"`
	Done         int      `json:"done"`
	Errors       []string `json:"errors,omitempty"`

	ended   map[partitionOf]bool // done or stopped with an error; false: not yet
	stopped []api.Lease          // those with an error
	note    string               // the last trouble of a partition that tries again
	running bool                 // a partition runs, or is done
}

type partitionOf struct{ route, partition string }

func summarize(runs []actors.Run, elapsed time.Duration) summary {
	s := summary{Seconds: elapsed.Seconds(), Partitions: len(runs), ended: map[partitionOf]bool{}}
	slices.SortFunc(runs, func(a, b actors.Run) int {
		return cmp.Or(cmp.Compare(a.Status.Route, b.Status.Route), cmp.Compare(a.Status.Partition, b.Status.Partition))
	})
	for _, r := range runs {
		st, n := r.Status, r.Status.Counters
		s.Records += n.Written
		s.Read += n.Read
		s.Counters = addCounters(s.Counters, n)
		s.Bytes += r.Bytes
		s.FenceSeconds += r.FenceWait.Seconds()
		s.RunSeconds += r.RunTime.Seconds()
		reason := strings.Replace(st.Error, "route "+st.Route+": ", "", 1) // it is named in front
		trouble := fmt.Sprintf("route %s partition %s: %s", st.Route, st.Partition, reason)
		s.running = s.running || st.State == lease.StateRunning || st.State == lease.StateDone
		s.ended[partitionOf{st.Route, st.Partition}] = st.State == lease.StateDone || st.State == lease.StateQuarantined
		switch {
		case st.State == lease.StateDone:
			s.Done++
		case st.State == lease.StateQuarantined:
			s.Errors = append(s.Errors, trouble)
			s.stopped = append(s.stopped, api.Lease{Route: st.Route, Partition: st.Partition, State: "stopped", Reason: reason})
		case st.Error != "":
			s.note = trouble
		}
	}
	if s.Seconds > 0 {
		s.Rate = float64(s.Records) / s.Seconds
	}
	return s
}

func addCounters(a, b lease.Counters) lease.Counters {
	return lease.Counters{
		Read: a.Read + b.Read, Written: a.Written + b.Written, Covered: a.Covered + b.Covered,
		Filtered: a.Filtered + b.Filtered, Deduplicated: a.Deduplicated + b.Deduplicated,
		DeadLettered: a.DeadLettered + b.DeadLettered, Dropped: a.Dropped + b.Dropped, Returned: a.Returned + b.Returned,
	}
}

// complete reports whether each route has ended all its partitions: those that its
// input listed, by their names, since there may be others that earlier runs knew, whose
// files are gone; and those others, which may have been left unread.
func (s summary) complete(expected map[string][]string) bool {
	for route, partitions := range expected {
		for _, p := range partitions {
			if !s.ended[partitionOf{route, p}] {
				return false
			}
		}
	}
	for p, ended := range s.ended {
		if _, ours := expected[p.route]; ours && !ended {
			return false
		}
	}
	return true
}

// waiting is how many records were read whose end is still open.
func (s summary) waiting() int64 {
	n := s.Counters
	return s.Read - n.Written - n.Covered - n.Filtered - n.Deduplicated - n.DeadLettered - n.Dropped - n.Returned
}

func (s summary) line() string {
	line := fmt.Sprintf("%d records, %s, %.0f/s", s.Records, size(s.Bytes), s.Rate)
	if s.Partitions > 1 {
		line += fmt.Sprintf(", %d of %d partitions done", s.Done, s.Partitions)
	}
	return line
}

// trouble is the first error of a partition that stopped or tries again.
func (s summary) trouble() string {
	switch {
	case len(s.Errors) > 0:
		return s.Errors[0]
	case s.note != "":
		return "trying again: " + s.note
	}
	return ""
}

// finish prints the summary and turns stopped partitions into the exit code.
func (l *localRun) finish(s summary, end ending) error {
	err := l.print(s, func(w io.Writer) {
		if s.Read == 0 && len(s.Errors) > 0 {
			return // it never began: no count says more than the error
		}
		fmt.Fprintf(w, "%d records, %s in %.2f s: %.0f records/s\n", s.Records, size(s.Bytes), s.Seconds, s.Rate)
		if extra := s.others(); extra != "" {
			fmt.Fprintf(w, "of %d read: %s\n", s.Read, extra)
		}
	})
	if s.Read > 0 && s.Counters.Filtered == s.Read {
		note := "note: no record passed the filter; a name that a record does not have is null there"
		if l.sample != "" {
			note += "\nhint: see the names with " + l.sample
		}
		fmt.Fprintln(l.err, note)
	}
	switch {
	case err != nil:
		return err
	case len(s.Errors) > 0:
		e := &api.Error{
			Message: fmt.Sprintf("%d of %d partitions stopped", len(s.Errors), s.Partitions), Code: api.CodeFailed, Details: s.stops(),
		}
		if s.Read > 0 {
			e.Hint = l.resume
		}
		return e
	case end == outOfReach:
		return &api.Error{Message: fmt.Sprintf("nothing was delivered within %s: %s", l.options.connectTimeout, s.note), Code: api.CodeUnreachable}
	case end == interrupted && !l.follow:
		msg := "interrupted"
		if s.note != "" {
			msg += "; " + s.note
		}
		return &api.Error{Message: msg, Code: api.CodeFailed, Hint: l.resume}
	}
	return nil
}

// stops lists errors once each, with who has them.
func (s summary) stops() []string {
	var b bytes.Buffer
	reasons(&b, s.stopped, time.Time{})
	return strings.Split(strings.Trim(b.String(), "\n"), "\n")
}

// others lists what was not written, so that the counts add up (invariant 4).
func (s summary) others() string {
	n := map[string]int64{
		"already covered": s.Counters.Covered, "filtered": s.Counters.Filtered, "deduplicated": s.Counters.Deduplicated,
		"dead-lettered": s.Counters.DeadLettered, "dropped": s.Counters.Dropped, "in flight when a run stopped": s.Counters.Returned,
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(n)) {
		if n[k] > 0 {
			out = append(out, fmt.Sprintf("%d %s", n[k], k))
		}
	}
	return strings.Join(out, ", ")
}
