package sqlx_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// run is one claimed run of partition p of route r.
type run struct {
	sink   connectors.Sink
	store  checkpoint.Store
	writer connectors.TxWriter
	held   checkpoint.Record
	gate   func() error
}

const recordKey = "c/uid/1/p/out"

func openRun(ctx context.Context, sink connectors.Sink, epoch uint64) (*run, error) {
	return openRunLogged(ctx, sink, epoch, slog.New(slog.DiscardHandler))
}

func openRunLogged(ctx context.Context, sink connectors.Sink, epoch uint64, log *slog.Logger) (*run, error) {
	prepared, err := sink.Prepare(ctx, connectors.Partition{ID: "p"})
	if err != nil {
		return nil, err
	}
	r := &run{sink: sink, gate: func() error { return nil }}
	if r.store, err = sink.(connectors.TxSink).Store(ctx); err == nil {
		var claimed checkpoint.Claimed
		claimed, err = checkpoint.Claim(ctx, r.store, checkpoint.ClaimRequest{
			Key: recordKey, ClusterUID: "c", RouteUID: "uid", Series: "s", Generation: 1,
			Epoch: epoch, Run: fmt.Sprint("run-", epoch), Session: prepared.Session(),
		})
		r.held = claimed.Record
	}
	if err != nil {
		_ = prepared.Close()
		return nil, err
	}
	w, err := prepared.Open(ctx, connectors.Claim{
		Route: "r", RouteUID: "uid", Partition: connectors.Partition{ID: "p"}, Epoch: epoch, Key: recordKey, Record: r.held,
		Spec: &route.Spec{Name: "r"}, Gate: func() error { return r.gate() }, Log: log,
	})
	if err != nil {
		_ = prepared.Close()
		return nil, err
	}
	r.writer = w.(connectors.TxWriter)
	return r, nil
}

// start opens a run that ends with the test.
func start(t testing.TB, cfg sqlx.Config, epoch uint64) *run {
	t.Helper()
	sink := newSink(t, cfg)
	r, err := openRun(context.Background(), sink, epoch)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.writer.Close()
		_ = sink.Close()
	})
	return r
}

// commit writes the payloads as one transaction; the record's position counts
// the rows. It discards the transaction.
func (r *run) commit(ctx context.Context, b *message.Batch) error {
	txn := r.writer.Begin()
	defer txn.Discard()
	if err := txn.Add(b, 0, b.Len()); err != nil {
		return err
	}
	return r.commitTxn(ctx, txn)
}

func (r *run) commitTxn(ctx context.Context, txn connectors.Txn) error {
	next := r.held
	next.Version++
	n, _ := next.Position.Number()
	next.Position = message.Position{Sort: message.SortKey(n + int64(txn.Rows()))}
	err := txn.Commit(ctx, connectors.Swap{Key: recordKey, Expected: r.held.Version, Record: next})
	if err == nil {
		r.held = next
	}
	return err
}

func batchOf(n int, payload func(i int) string) *message.Batch {
	b := message.NewBatch()
	for i := range n {
		b.Append([]byte(payload(i)), int64(i), int64(i+1))
	}
	return b
}
