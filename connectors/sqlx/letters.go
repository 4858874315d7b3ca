package sqlx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/jsontext"
	"github.com/mqbridge/mqb/message"
)

// letters is the connectors.PlainWriter of a dlq: each call is a transaction of its
// own. A letter that is written again is absorbed where the table has an id.
type letters struct{ w *writer }

var _ connectors.PlainWriter = (*letters)(nil)

func (l *letters) Close() error { return l.w.Close() }

// Write implements connectors.PlainWriter.
func (l *letters) Write(ctx context.Context, b *message.Batch, i, j int) error {
	if err := l.w.claim.Gate(); err != nil {
		return err
	}
	t := l.w.Begin().(*txn)
	defer t.Discard()
	var bad connectors.RowsError
	var refused *connectors.RowsError
	if err := t.Add(b, i, j); errors.As(err, &refused) {
		bad.Rows = append(bad.Rows, refused.Rows...)
	}
	index := make([]int, 0, j-i) // in b, by row of t
	for n, next := i, 0; n < j; n++ {
		if next < len(bad.Rows) && bad.Rows[next].Index == n {
			next++
			continue
		}
		index = append(index, n)
	}
	for t.Rows() > 0 {
		err := l.w.commit(ctx, t, nil)
		if err == nil {
			break
		}
		if !errors.As(err, &refused) {
			return err
		}
		for n, row := range refused.Rows {
			at := row.Index - n
			bad.Rows = append(bad.Rows, connectors.RowError{Index: index[at], Err: row.Err})
			index = slices.Delete(index, at, at+1)
			t.Drop(at)
		}
	}
	if bad.Rows == nil {
		return nil
	}
	slices.SortFunc(bad.Rows, func(a, b connectors.RowError) int { return a.Index - b.Index })
	return &bad
}

// lettersPlan is how letters are written: a plan, or a target with columns: auto.
type lettersPlan struct {
	plan
	target *target
}

// prepareLetters looks at what letters go to. With columns: auto or an insert_query
// they are written as a route would; with a table alone they fill those columns
// that a letter has something for.
func (s *sink) prepareLetters(ctx context.Context, conn *pgx.Conn) (*lettersPlan, error) {
	var p lettersPlan
	var err error
	switch {
	case s.cfg.Columns == "auto":
		p.target, err = s.findTarget(ctx, conn, lettersName)
	case s.cfg.InsertQuery != "":
		p.plan, err = s.planStatement(ctx, conn, lettersName, s.cfg.stmt, s.cfg.BulkCopy)
	default:
		p.plan, err = s.planLetters(ctx, conn)
	}
	if err != nil {
		return nil, err
	}
	return &p, nil
}

func (s *sink) planLetters(ctx context.Context, conn *pgx.Conn) (plan, error) {
	op := "look at table " + s.cfg.table.quoted()
	permanent := func(err error) error {
		return connectors.Permanent(fmt.Errorf("route %s: sqlx %s: %w", s.spec.Name, op, err),
			"a table of dead letters: CREATE TABLE "+s.cfg.table.quoted()+" (id text PRIMARY KEY, route text, partition text, ordinal bigint, place text, error text, payload bytea, metadata jsonb, at timestamptz DEFAULT now())")
	}
	t, err := readTable(ctx, conn, s.cfg.table)
	if errors.Is(err, errNoTable) {
		return plan{}, permanent(err)
	}
	if err != nil {
		return plan{}, s.classed(op, err)
	}
	unique, err := t.isUnique(ctx, conn, []string{"id"})
	switch {
	case err != nil:
		return plan{}, s.classed(op, err)
	case !unique:
		return plan{}, permanent(errors.New("no column id with a unique index, so that a letter which is written again would be there twice"))
	case !t.has("payload"):
		return plan{}, permanent(errors.New("no column payload"))
	}
	stmt, err := letterStatement(t)
	if err != nil {
		return plan{}, permanent(err)
	}
	return s.planStatement(ctx, conn, lettersName, stmt, false)
}

// lettersRefused is the error of letters in a route's transaction: their cause is
// no row of it.
func (w *writer) lettersRefused(err error) error {
	if connectors.Classify(err) != connectors.ClassData {
		return err
	}
	return w.failed(opLetters, connectors.Permanent(errors.New(err.Error()), "mend the endpoint of the dlq; the records stay unread until then"))
}

// letterColumns are the columns that a letter has something for, and the token of each.
var letterColumns = []struct{ name, token string }{
	{"id", "${message:id}"},
	{"route", "${metadata:mqb.dlq.route}"},
	{"partition", "${metadata:mqb.dlq.partition}"},
	{"ordinal", "${metadata:mqb.dlq.ordinal}"},
	{"place", "${metadata:mqb.dlq.place}"},
	{"error", "${metadata:mqb.dlq.error}"},
	{"payload", "${message:id}"},
	{"metadata", "${message:id}"},
}

func letterStatement(t *table) (*statement, error) {
	var columns, tokens []string
	for _, c := range letterColumns {
		if t.has(c.name) {
			columns, tokens = append(columns, c.name), append(tokens, c.token)
		}
	}
	s, err := parseStatement("INSERT INTO " + t.name + " (" + quoted(columns...) + ") VALUES (" + strings.Join(tokens, ", ") + `) ON CONFLICT ("id") DO NOTHING`)
	if err != nil {
		return nil, err
	}
	s.letters = true
	for i, c := range columns {
		switch c {
		case "payload":
			s.tokens[i].Namespace = wholeNamespace
		case "metadata":
			s.tokens[i].Namespace = letterNamespace
		}
	}
	return s, nil
}

// appendMetadata appends all metadata of a message as a JSON object.
func appendMetadata(dst []byte, b *message.Batch, i int) []byte {
	dst = append(dst, '{')
	for n := range b.MetaLen(i) {
		if n > 0 {
			dst = append(dst, ',')
		}
		key, value := b.MetaAt(i, n)
		dst = append(jsontext.AppendString(dst, storable(key)), ':')
		dst = jsontext.AppendString(dst, storable(value))
	}
	return append(dst, '}')
}

// storable is text that PostgreSQL takes: what surrounds a dead letter must not be
// why it is lost.
func storable(v []byte) []byte {
	if checkText(v) == nil {
		return v
	}
	return bytes.ReplaceAll(bytes.ToValidUTF8(v, []byte("\uFFFD")), []byte{0}, []byte("\uFFFD"))
}
