package main

import (
	"context"
	"errors"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// tens is a source that hands on ten records at a time, from the claim's position on.
type tens struct{ connectors.Source }

func (tens) Open(_ context.Context, claim connectors.Claim) (connectors.Reader, error) {
	n, _ := claim.Record.Position.Number()
	return &tensReader{at: n, spec: claim.Spec}, nil
}

type tensReader struct {
	connectors.Reader
	at   int64
	spec *route.Spec
}

func (r *tensReader) Read(context.Context) (*message.Batch, error) {
	b := &message.Batch{From: message.Position{Sort: message.SortKey(r.at)}, Positions: r}
	for range 10 {
		b.Append([]byte("x"), r.at, r.at+1)
		r.at++
	}
	b.Read, b.End = 10, message.Position{Sort: message.SortKey(r.at)}
	return b, nil
}

func (*tensReader) After(m *message.Message) message.Position {
	return message.Position{Sort: message.SortKey(m.Next)}
}

func (*tensReader) Settle(context.Context, message.Position) error { return nil }

// A run that fails is followed by one that reads again what was not durable. Those
// records are the same ones, so they must not use up the limit twice.
func TestALimitIsNotUsedUpByRecordsThatAreReadAgain(t *testing.T) {
	t.Parallel()
	b := newBounds(42, 0, true)
	s := &boundedSource{Source: tens{}, bounds: b}
	open := func(at int64) connectors.Reader {
		t.Helper()
		claim := connectors.Claim{Partition: connectors.Partition{ID: "p"}, Spec: &route.Spec{}}
		if at > 0 {
			claim.Record.Position = message.Position{Sort: message.SortKey(at)}
		}
		r, err := s.Open(t.Context(), claim)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	read := func(r connectors.Reader) (n int, end string) {
		t.Helper()
		for {
			batch, err := r.Read(t.Context())
			if errors.Is(err, connectors.ErrEndOfInput) {
				return n, end
			}
			if err != nil {
				t.Fatal(err)
			}
			n += batch.Len()
			end = batch.End.Sort
		}
	}
	r := open(0)
	if n, end := read(r); n != 42 || end != message.SortKey(42) {
		t.Fatalf("%d records up to %s", n, end)
	}
	// 17 of them are durable, of which the source was told 13; the run fails.
	if err := r.Settle(t.Context(), message.Position{Sort: message.SortKey(13)}); err != nil {
		t.Fatal(err)
	}
	if n, end := read(open(17)); n != 25 || end != message.SortKey(42) {
		t.Errorf("%d records up to %s", n, end)
	}
	if n, _ := read(open(42)); n != 0 {
		t.Errorf("%d records more", n)
	}
}

// What another partition gives back is not for a reader that has gone past its cut:
// the records behind it would be jumped over.
func TestAReaderThatWasCutByTheLimitDoesNotGoOnBehindTheCut(t *testing.T) {
	t.Parallel()
	s := &boundedSource{Source: tens{}, bounds: newBounds(15, 0, true)}
	open := func(partition string) connectors.Reader {
		t.Helper()
		r, err := s.Open(t.Context(), connectors.Claim{Partition: connectors.Partition{ID: partition}, Spec: &route.Spec{}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	other, cut := open("other"), open("cut")
	for i, r := range []connectors.Reader{other, cut} {
		if b, err := r.Read(t.Context()); err != nil || b.Len() != []int{10, 5}[i] {
			t.Fatal(b, err)
		}
	}
	open("other") // its run failed
	if b, err := cut.Read(t.Context()); !errors.Is(err, connectors.ErrEndOfInput) {
		t.Errorf("went on at record %d, and the records from 5 on are missing (%v)", b.Msg(0).Ordinal, err)
	}
}
