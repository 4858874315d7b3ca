package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/connectors"
)

// Regression: half a minute without a word, and then the error. What is waited for is
// said once, also where nothing is logged.
func TestAWaitForASystemOutOfReachIsNotSilent(t *testing.T) {
	t.Parallel()
	var told strings.Builder
	l := &localRun{cli: &cli{err: &told}, log: slog.New(slog.DiscardHandler)}
	_, err := retry(t.Context(), l, "r", "output", time.Minute, func(context.Context) (struct{}, error) {
		if told.Len() > 0 {
			return struct{}{}, nil
		}
		return struct{}{}, connectors.Connection(errors.New("connection refused"))
	})
	if want := "warning: route r: output: not reachable yet, trying for 1m0s: connection refused\n"; err != nil || told.String() != want {
		t.Errorf("%q, %v", told.String(), err)
	}
}
