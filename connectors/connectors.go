// Package connectors is the contract between routes and the systems they read
// and write. One subpackage per system implements it; sourcetest and sinktest
// are the suites each of them passes. Connectors know nothing of actors or of
// the cluster: they get a Claim, which says who they are and what is durable.
package connectors

import (
	"context"
	"log/slog"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// Partition is one ordered part of an input.
type Partition struct {
	// ID is stable over restarts and unique within the route: "orders-3", "2026/a.csv".
	ID string
	// Node pins the partition to a node (node locality, every_node); "" is any.
	Node string
	// Weight is the scheduler's: 0 means 1.
	Weight int
	// Attributes are the source's own notes (path, topic, number), stored with
	// the partition and handed back in Claim.Partition.
	Attributes map[string]string
	// PartSource and PartNumber name parts made from this partition: topic or
	// "file-<base>-<hash>", and the number (0 where the source has none).
	PartSource string
	PartNumber int
}

// Claim is what a run holds when it opens its connectors: the identity of the
// run, its fence and its record. The record is the connector's to read, not to
// change.
type Claim struct {
	Route      string
	RouteUID   string
	Series     string
	Generation uint64
	Leg        string
	Node       string // name of this node
	Partition  Partition
	Epoch      uint64
	Run        string
	// Key is the checkpoint key in its stored form.
	Key string
	// Record as claimed: Position is where to start (zero = from the start),
	// Source the identity that Identify returned.
	Record checkpoint.Record
	// Resumed is false on the first run ever of this partition.
	Resumed bool
	// Late: the partition was found after the route had first started, so its
	// first run begins at the earliest position, whatever the input's rule for a
	// first start says.
	Late bool

	Spec   *route.Spec
	Budget *message.Budget
	// Gate returns an error once this node may no longer write (its lease
	// cannot be proven alive). Sinks ask right before each irrevocable step.
	Gate func() error
	// Reject is called by a reader, within Read, for a record of the batch that it
	// is about to return and that it cannot hand on. nil means: it is taken care of
	// by the route's rule (dropped or dead-lettered; add it to Batch.Read and
	// Batch.Dropped), go on behind it. An error means: stop before it and return
	// that error.
	Reject func(ctx context.Context, bad BadRecord) error
	Log    *slog.Logger
}

// BadRecord is a record that cannot be read or written.
type BadRecord struct {
	Ordinal int64
	// Place is where a person finds it: "orders.csv:17 (byte 2034)", "orders[3]@8812".
	Place string
	Err   error
	// Payload is the raw bytes as far as they were read; valid during the call.
	Payload []byte
}

// Source is the input of a route, as configured. Safe for concurrent use; it
// holds no connection until it is used and is closed by its owner.
type Source interface {
	// Partitions lists what there is to own. It is called again and again by
	// whoever discovers partitions; it must be cheap and must not disturb
	// owners. A partition that is gone from the list is left to its owner.
	Partitions(ctx context.Context) ([]Partition, error)
	// Identify returns the identity of a partition's data ("" if the source has
	// none). recorded is what the checkpoint record holds, "" at the first
	// claim. ErrGap when the data was replaced or truncated under us,
	// checkpoint.ErrForeign when it is another source altogether.
	Identify(ctx context.Context, p Partition, recorded string) (string, error)
	// Open starts reading at claim.Record.Position. It is called after the
	// claim, by one run at a time.
	Open(ctx context.Context, claim Claim) (Reader, error)
	// Check connects and looks, changes nothing: validate --connect.
	Check(ctx context.Context) error
	Close() error
}

// Connector is implemented by a source that asks a server who it is. Connect is called
// before the claim, which ends the run before it and would wait for the connection
// too; a server that is out of reach is found out with nothing claimed. It does
// nothing that another owner can notice.
type Connector interface {
	Connect(ctx context.Context) error
}

// Reader reads one partition for one run. Read is called by one goroutine;
// Settle and Lag may be called by another one at the same time; Close is called
// once, after Read returned or to make it return.
type Reader interface {
	// Read waits for records and returns a batch with at least one of Read > 0
	// or a moved End; ownership of the batch passes to the caller. Errors:
	// ErrEndOfInput (nothing more for now and the source has an end; a later
	// call may find more), ErrGap, a permanent or connection error, the
	// context's. A batch and an error are never returned together.
	Read(ctx context.Context) (*message.Batch, error)
	// Settle tells the source that everything before p is durable (invariant 2).
	// Called in order, at most once a second and at the end of the run. An
	// error is logged and retried with the next one; it does not end the run.
	Settle(ctx context.Context, p message.Position) error
	// Lag is how far the last Read was behind the end: records, or bytes for
	// sources that count those; -1 when unknown. Must not block.
	Lag() int64
	Close() error
}

// Sink is the output of a route, as configured. Safe for concurrent use.
type Sink interface {
	// Prepare connects for one run, before the claim. It does nothing that
	// another owner can notice: no locks, no client id taken over.
	Prepare(ctx context.Context, p Partition) (Prepared, error)
	// Check connects and looks, changes nothing: validate --connect.
	Check(ctx context.Context) error
	Close() error
}

// TxSink is a T1 sink: it keeps the checkpoint records of its route itself, and
// swaps them inside its own transactions.
type TxSink interface {
	Sink
	// Store returns the store in the sink. It is shared by the route's runs and
	// closed with the sink.
	Store(ctx context.Context) (checkpoint.Store, error)
}

// Prepared is a sink connection that has not been claimed for. Close is called
// if Open is not, or failed.
type Prepared interface {
	// Session names this connection for the record, so that a successor can end
	// it; "" where a sink holds no locks.
	Session() string
	// Open makes the writer: a TxWriter, a PartWriter or a PlainWriter, as the
	// sink's capabilities say. The writer owns the connection from then on.
	Open(ctx context.Context, claim Claim) (Writer, error)
	Close() error
}

// Writer is what the three kinds of writers share.
type Writer interface {
	// Close ends the writer's life and frees what it holds. What was not
	// committed is discarded. It must return quickly and make a blocked call return.
	Close() error
}

// PlainWriter writes batches; the position is committed apart from it (T3, and
// T2 sinks whose key absorbs a repeat).
type PlainWriter interface {
	Writer
	// Write writes messages [i, j) of b and returns when they are as durable as
	// the sink's settings make them. A *RowsError names messages (by index in
	// b) that were refused while all others were written.
	Write(ctx context.Context, b *message.Batch, i, j int) error
}

// StatefulWriter is a PlainWriter whose sink has to remember something beside the
// position: where a file ended (docs/protocol.md, append). What State returns
// stands in the record as SinkState, in one write with the position, and is handed
// back in Claim.Record to the run after this one, which takes back what was written
// since. A *RowsError of its Write means that nothing of [i, j) was written, since
// the state may not cover what stands behind a message that stops the run.
type StatefulWriter interface {
	PlainWriter
	// State makes what was written as durable as the sink's settings say and
	// returns the sink's state, at most a few hundred bytes. It is called before
	// the first Write of a run, which begins when the record holds what it returned,
	// and before each commit; by the goroutine that calls Write. Nothing written in
	// between gives the same bytes.
	State(ctx context.Context) ([]byte, error)
}

// Paced is implemented by a StatefulWriter that wants its commits to be apart, since
// each of them waits for a disk (fsync: periodic). The route's checkpoint_interval
// holds where it is longer.
type Paced interface {
	CommitEvery() time.Duration
}

// LegDeadLetters is the Claim.Leg with which the endpoint of a dlq is opened. Its
// writer must be a PlainWriter; several partitions of a route write through
// writers of their own at the same time. Claim.Record is then empty, since the
// record belongs to the route's own sink. Each message carries its letter's id as
// metadata mqb.id, the same whenever the letter is written again.
const LegDeadLetters = "dlq"

// Swap is the record change that a transaction carries.
type Swap struct {
	Key      string
	Expected uint64
	Record   checkpoint.Record
}

// TxWriter writes rows and the record in one transaction (T1).
type TxWriter interface {
	Writer
	// Begin starts gathering a transaction. It does not touch the server, so
	// that the next transaction is encoded while the last one commits.
	Begin() Txn
}

// Txn gathers rows, then commits them with the record. One goroutine at a time;
// transactions of one writer commit one after the other.
type Txn interface {
	// Add encodes messages [i, j) of b. It copies what it needs. A *RowsError
	// names messages that cannot be encoded (missing field, wrong type); the
	// others were added. Rows are numbered from 0 in the order they were added,
	// refused ones left out.
	Add(b *message.Batch, i, j int) error
	Rows() int
	Bytes() int
	// Commit sends the rows, then the fence and the COMMIT in one flight.
	// nil: durable. *checkpoint.FencedError: the record is not at swap.Expected
	// and another's. *RowsError: nothing was written; Index counts rows of this
	// Txn; drop or truncate and commit again. Any other error: the outcome is
	// unknown or nothing was written, the run ends.
	Commit(ctx context.Context, swap Swap) error
	// Drop removes one row. Truncate keeps rows [0, n).
	Drop(row int)
	Truncate(n int)
	// Discard frees the buffers; the Txn must not be used again. Also called
	// after Commit.
	Discard()
}

// LetterTxn is a Txn whose dlq is in the same system (SinkCapabilities.System), so
// that dead letters are part of the transaction: each is there once, with the
// position over its record.
type LetterTxn interface {
	Txn
	// TakesLetters reports whether that is so for this route.
	TakesLetters() bool
	// AddLetters encodes messages [i, j) of b as letters, in the form in which the
	// endpoint of a dlq gets them (LegDeadLetters). Commit writes them with the
	// rows; an error of theirs, here or there, is never a *RowsError.
	AddLetters(b *message.Batch, i, j int) error
}

// PartWriter makes immutable parts (T2, docs/protocol.md, parts). The committer decides where
// a part ends; the writer spools, names and publishes. Stage and Seal are called
// by one goroutine, Publish, Exists and Discard by another.
type PartWriter interface {
	Writer
	// Stage appends messages [i, j) of b to the open part, opening one if needed.
	Stage(ctx context.Context, b *message.Batch, i, j int) error
	// Open says what the open part holds: records and bytes (0, 0 if none).
	OpenPart() (records, bytes int64)
	// Seal ends the open part and names it for [from, end) (numbered positions;
	// name != "" fixes the name: an inherited intent). The intent is complete
	// but for the generation, and nothing of it is visible yet. The part's bytes
	// need not be durable until Publish returns.
	Seal(ctx context.Context, from, end message.Position, name string) (checkpoint.Intent, error)
	// Publish makes the sealed part durable and visible under its name, if that
	// name is absent; a name that is there already is success. Parts are
	// published in the order they were sealed. It checks the gate right before.
	Publish(ctx context.Context, in checkpoint.Intent) error
	// Exists reports whether the part of an inherited intent is there.
	Exists(ctx context.Context, in checkpoint.Intent) (bool, error)
	// Covered lists ordinal ranges [First, Last] that parts of another lineage
	// hold and existing_parts: skip told us to accept, in order.
	Covered() []Range
	// Abort discards the open part.
	Abort() error
}

// Range is an inclusive range of ordinals.
type Range struct{ First, Last int64 }

// Covers reports whether n is inside r.
func (r Range) Covers(n int64) bool { return r.First <= n && n <= r.Last }
