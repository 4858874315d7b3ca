package logging_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/slogtest"
	"time"

	"encoding/json"

	"github.com/mqbridge/mqb/logging"
)

type log struct {
	*slog.Logger
	out bytes.Buffer
	now time.Time
}

func newLog() *log {
	l := &log{now: time.Unix(1000, 0)}
	next := slog.NewTextHandler(&l.out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	l.Logger = slog.New(logging.Sample(next, 10*time.Second, func() time.Time { return l.now }))
	return l
}

// lines returns what was shown since the last call.
func (l *log) lines() []string {
	defer l.out.Reset()
	return strings.Split(strings.TrimSuffix(l.out.String(), "\n"), "\n")
}

func TestARepeatedErrorIsShownOnceAnIntervalWithTheCountOfTheOthers(t *testing.T) {
	t.Parallel()
	l := newLog()
	r := l.With("route", "a", "partition", "0")
	for i := range 100 {
		r.Warn("not reachable", "error", fmt.Errorf("dial 10.0.0.1:%d: refused", 1000+i), "in", i)
		l.now = l.now.Add(time.Millisecond)
	}
	if got := l.lines(); len(got) != 1 || strings.Contains(got[0], "suppressed") {
		t.Errorf("%q", got)
	}
	l.now = l.now.Add(10 * time.Second)
	r.Warn("not reachable", "error", errors.New("dial 10.0.0.1:7: refused"))
	if got := l.lines(); len(got) != 1 || !strings.Contains(got[0], "suppressed=99") {
		t.Errorf("%q", got)
	}
	l.now = l.now.Add(time.Hour)
	r.Warn("not reachable", "error", errors.New("dial 10.0.0.1:7: refused"))
	if got := l.lines(); len(got) != 1 || strings.Contains(got[0], "suppressed") {
		t.Errorf("%q", got)
	}
}

// What is new must be seen at once, whatever else repeats.
func TestNeitherTheFirstNorAChangedErrorIsHidden(t *testing.T) {
	t.Parallel()
	l := newLog()
	for range 3 {
		l.Warn("m", "route", "a", "error", "refused")
		l.Warn("m", "route", "b", "error", "refused")
		l.Error("m", "route", "a", "error", "refused")
		l.Warn("m", "route", "a", "error", "no such table")
		l.Warn("other", "route", "a", "error", "refused")
		l.With("partition", "1").Warn("m", "route", "a", "error", "refused")
		l.Info("m", "route", "a", "error", "refused")
	}
	got := l.lines()
	if len(got) != 6+3 {
		t.Errorf("%d lines:\n%s", len(got), strings.Join(got, "\n"))
	}
}

func TestManyKindsAreForgottenAndNotKeptForEver(t *testing.T) {
	t.Parallel()
	l := newLog()
	for i := range 3000 {
		l.Warn("m", "route", fmt.Sprintf("r%d", i))
	}
	l.lines()
	l.Warn("m", "route", "r0")
	if got := l.lines(); !strings.Contains(got[0], "r0") {
		t.Errorf("%q", got)
	}
}

func TestHandlerContract(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	err := slogtest.TestHandler(logging.Sample(slog.NewJSONHandler(&b, nil), time.Minute, nil), func() []map[string]any {
		var out []map[string]any
		for line := range bytes.Lines(b.Bytes()) {
			var m map[string]any
			if err := json.Unmarshal(line, &m); err != nil {
				t.Fatal(err)
			}
			out = append(out, m)
		}
		return out
	})
	if err != nil {
		t.Error(err)
	}
}
