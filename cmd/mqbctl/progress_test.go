package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/lease"
)

// laggingRun is a partition that has read something and has lag left.
func laggingRun(partition string, read, lag int64) actors.Run {
	return actors.Run{Status: lease.PartitionStatus{
		Route: "r", Partition: partition, State: lease.StateRunning, Lag: lag, Counters: lease.Counters{Read: read, Written: read},
	}, Bytes: read * 100}
}

func TestProgressIsALineOnATerminalAfterTwoSecondsAndLinesElsewhereEachTen(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{true, false} {
		var b bytes.Buffer
		scr := &screen{w: &b, terminal: terminal}
		start := time.Unix(1000, 0)
		p := newProgress(scr, start)
		shown := 0
		for at := time.Duration(0); at <= 30*time.Second; at += 100 * time.Millisecond {
			left := int64(30_000 - at/time.Millisecond)
			runs := []actors.Run{laggingRun("a", 1+int64(at/time.Millisecond), left), laggingRun("b", 1, -1)}
			before := b.Len()
			p.update(summarize(runs, at), runs, start.Add(at))
			if b.Len() > before {
				shown++
				if at < 2*time.Second {
					t.Fatalf("shown after %v", at)
				}
			}
			if at == 15*time.Second && terminal && !strings.Contains(b.String(), "50%, about 15s left") {
				t.Errorf("%q", b.String())
			}
		}
		scr.show("")
		switch {
		case terminal && (shown < 100 || !strings.HasSuffix(b.String(), clearLine+fmt.Sprintf(cutLine, ""))):
			t.Errorf("terminal: %d, %q", shown, b.String()[max(0, b.Len()-80):])
		case !terminal && (shown != 3 || strings.Contains(b.String(), "\x1b") || strings.Count(b.String(), "\n") != 3):
			t.Errorf("elsewhere: %d, %q", shown, b.String())
		}
	}
}

// Regression: an output that froze was shown as a pace that sinks, and nothing else.
func TestProgressSaysThatNothingIsCommittedAnyMore(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	start := time.Unix(1000, 0)
	p := newProgress(&screen{w: &b}, start)
	at := func(after time.Duration, read, written int64) string {
		b.Reset()
		r := laggingRun("a", read, 1000)
		r.Status.Counters.Written = written
		p.update(summarize([]actors.Run{r}, after), []actors.Run{r}, start.Add(after))
		return b.String()
	}
	at(9*time.Second, 50, 50) // idle is no stall
	at(19*time.Second, 80, 50)
	if got := at(30*time.Second, 90, 50); !strings.HasSuffix(got, "; 40 records wait, nothing was committed for 21s\n") {
		t.Errorf("%q", got)
	}
	if got := at(41*time.Second, 90, 60); strings.Contains(got, "wait") {
		t.Errorf("%q", got)
	}
}

// Logs and the line of progress share the terminal: a log stands in a line of its
// own, and the progress below it.
func TestALogDoesNotGarbleTheLineOfProgress(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	scr := &screen{w: &b, terminal: true}
	scr.show("5 records")
	fmt.Fprintln(scr, "a log")
	scr.show("6 records")
	scr.show("")
	fmt.Fprintln(scr, "the end")
	if got, want := screenOf(b.String()), "a log\nthe end\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// screenOf is what a terminal shows in the end.
func screenOf(s string) string {
	s = strings.NewReplacer("\x1b[?7l", "", "\x1b[?7h", "").Replace(s)
	var out []string
	for _, line := range strings.SplitAfter(s, "\n") {
		if i := strings.LastIndex(line, clearLine); i >= 0 {
			line = line[i+len(clearLine):]
		}
		out = append(out, line)
	}
	return strings.Join(out, "")
}

// The trouble of a partition that tries again is in the line, whole and harmless.
func TestProgressShowsTheTroubleOfAPartition(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	p := newProgress(&screen{w: &b}, time.Unix(0, 0))
	run := laggingRun("a", 0, -1)
	run.Status.State, run.Status.Error = lease.StateAcquiring, "no \x1b[2Jway"
	p.update(summarize([]actors.Run{run}, time.Second), []actors.Run{run}, time.Unix(5, 0))
	if got := b.String(); !strings.Contains(got, "route r partition a: no ?[2Jway") {
		t.Errorf("%q", got)
	}
}
