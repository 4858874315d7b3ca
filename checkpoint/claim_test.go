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

// lockedStore is a store whose record a frozen owner holds.
type lockedStore struct {
	*sessions
	committed checkpoint.Record
}

func (s *lockedStore) Load(context.Context, string) (checkpoint.Record, error) {
	return checkpoint.Record{}, &checkpoint.LockedError{Key: "k", Committed: s.committed}
}

// The coordinator's counter went back, and the owner before is frozen with the
// record's row in its hands: the claim has to hear the epoch to raise the counter
// to, since only a higher one may end that owner's session.
func TestClaimBelowAFrozenOwnersEpochIsFencedInsteadOfWaiting(t *testing.T) {
	s := &lockedStore{sessions: &sessions{Store: memory.New()}, committed: checkpoint.Record{ClusterUID: "c", Epoch: 4, Run: "frozen", Session: "session-4"}}
	_, err := checkpoint.Claim(t.Context(), s, checkpoint.ClaimRequest{Key: "k", ClusterUID: "c", RouteUID: "r", Series: "s",
		Generation: 1, Epoch: 1, Run: "run-1", Session: "session-1"})
	var fenced *checkpoint.FencedError
	if !errors.As(err, &fenced) || fenced.Stored != 4 {
		t.Errorf("%v, want fenced by epoch 4", err)
	}
	if len(s.ended) > 0 {
		t.Errorf("ended %v", s.ended)
	}
}
