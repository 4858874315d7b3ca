package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/mqbridge/mqb/actors"
)

// Pace of the progress. What is over sooner than progressAfter needs none; a
// terminal's line is written over, other lines stay in somebody's log.
const (
	progressAfter    = 2 * time.Second
	progressTerminal = 200 * time.Millisecond
	progressLines    = 10 * time.Second
)

// screen is standard error with a line of progress at its end. What others write
// through it, logs and warnings, goes above the line. Safe for concurrent use.
type screen struct {
	terminal bool

	mu   sync.Mutex
	w    io.Writer
	line string // as shown, "" when none is
}

// newScreen wraps what commands write their messages to.
func newScreen(w io.Writer) *screen { return &screen{w: w, terminal: isTerminal(w)} }

// Sequences of the line: back to its beginning and clear it; and no wrapping
// while it is written, so that one longer than the terminal is cut and can be
// cleared.
const (
	clearLine = "\r\x1b[K"
	cutLine   = "\x1b[?7l%s\x1b[?7h"
)

// Write implements io.Writer.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == "" {
		return s.w.Write(p)
	}
	fmt.Fprint(s.w, clearLine)
	n, err := s.w.Write(p)
	if strings.HasSuffix(string(p), "\n") {
		fmt.Fprintf(s.w, cutLine, s.line)
	}
	return n, err
}

// show replaces the line; "" takes it away. Elsewhere than on a terminal each line
// stands for itself.
func (s *screen) show(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.terminal && line != "":
		fmt.Fprintln(s.w, line)
	case s.terminal && (line != "" || s.line != ""):
		s.line = line
		fmt.Fprintf(s.w, clearLine+cutLine, line)
	}
}

// progress decides when a line is shown, and knows how far the input is.
type progress struct {
	screen  *screen
	started time.Time
	next    time.Time
	// inputs are what was left of each partition when it was first seen, and now.
	inputs map[string]*remaining
	// hidden is left out of lines, "" for nothing.
	hidden string

	settled int64     // records read and no longer waiting
	moved   time.Time // when settled changed last
}

// stall is how long nothing is committed before a line says so: much longer than
// what a database or a disk needs, and soon enough to look at it.
const stall = 10 * time.Second

type remaining struct {
	first, now int64
	since      time.Time
}

func newProgress(s *screen, started time.Time) *progress {
	return &progress{screen: s, started: started, next: started.Add(progressAfter), inputs: map[string]*remaining{}}
}

// update looks at the runs and shows a line if one is due.
func (p *progress) update(s summary, runs []actors.Run, now time.Time) {
	for _, r := range runs {
		if r.Status.Lag < 0 || r.Status.Counters.Read == 0 {
			continue
		}
		key := r.Status.Route + "\x00" + r.Status.Partition
		in := p.inputs[key]
		if in == nil || r.Status.Lag > in.first {
			in = &remaining{first: r.Status.Lag, since: now}
			p.inputs[key] = in
		}
		in.now = r.Status.Lag
	}
	if n := s.Read - s.waiting(); n != p.settled || s.waiting() == 0 || p.moved.IsZero() {
		p.settled, p.moved = n, now
	}
	if now.Before(p.next) {
		return
	}
	if p.screen.terminal {
		p.next = now.Add(progressTerminal)
	} else {
		p.next = now.Add(progressLines)
	}
	line := s.line()
	trouble := s.trouble()
	if done := p.done(now, trouble == "" && now.Sub(p.moved) < stall); done != "" {
		line += ", " + done
	}
	if trouble != "" {
		trouble = clean(trouble)
		if p.hidden != "" {
			trouble = strings.ReplaceAll(trouble, p.hidden, "")
		}
		line += "; " + trouble
	} else if still := now.Sub(p.moved); still >= stall {
		line += fmt.Sprintf("; %d records wait, nothing was committed for %s", s.waiting(), still.Truncate(time.Second))
	}
	p.screen.show(line)
}

// done says how much of the input is read and how long the rest takes at this
// pace; "" as long as that is not known. Partitions count what they have left in
// units of their own, bytes or records; each one's own share is what counts.
// What has trouble has no pace.
func (p *progress) done(now time.Time, paced bool) string {
	var first, left int64
	since := now
	for _, in := range p.inputs {
		first, left = first+in.first, left+in.now
		if in.since.Before(since) {
			since = in.since
		}
	}
	if first <= 0 {
		return ""
	}
	out := fmt.Sprintf("%d%%", 100*(first-left)/first)
	if took := now.Sub(since); paced && left > 0 && left < first && took >= time.Second {
		eta := time.Duration(float64(took) * float64(left) / float64(first-left))
		out += fmt.Sprintf(", about %s left", eta.Round(max(time.Second, eta/20).Truncate(time.Second)))
	}
	return out
}
