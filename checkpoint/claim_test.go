package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/memory"
)

// sessions is a store whose records can be locked by sessions.
type sessions struct {
	*memory.Store
	fail  error // of the next EndSession
	ended []string
}

func (s *sessions) EndSession(_ context.Context, session string) error {
	if err := s.fail; err != nil {
		s.fail = nil
		return err
	}
	s.ended = append(s.ended, session)
	return nil
}

// A claim that could not end the session of the owner before must leave its name
// to the next one: a frozen owner would keep its locks for as long as it is frozen.
func TestSessionThatCouldNotBeEndedIsEndedByTheNextClaim(t *testing.T) {
	s := &sessions{Store: memory.New()}
	claim := func(epoch uint64) error {
		_, err := checkpoint.Claim(t.Context(), s, checkpoint.ClaimRequest{Key: "k", ClusterUID: "c", RouteUID: "r", Series: "s",
			Generation: 1, Epoch: epoch, Run: fmt.Sprint("run-", epoch), Session: fmt.Sprint("session-", epoch)})
		return err
	}
	if err := claim(1); err != nil {
		t.Fatal(err)
	}
	s.fail = errors.New("connection lost")
	if err := claim(2); err == nil {
		t.Fatal("claimed while the owner before may hold locks")
	}
	if err := claim(3); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(s.ended) != "[session-1]" {
		t.Errorf("ended %v, want the session of the first owner", s.ended)
	}
}
