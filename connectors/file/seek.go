package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

var _ connectors.Seeker = (*source)(nil)

// Seek implements connectors.Seeker: numbers of records, from 0. Where a record
// begins is known only by reading the file up to there.
func (s *source) Seek(ctx context.Context, p connectors.Partition, value string) (message.Position, error) {
	if value == "earliest" {
		return message.Position{}, nil
	}
	want, err := strconv.ParseInt(value, 10, 64)
	if value != "latest" && (err != nil || want < 0) {
		return message.Position{}, connectors.Permanent(fmt.Errorf("%q is no number of a record, earliest or latest", value), "")
	}
	if err == nil && want == 0 {
		return message.Position{}, nil
	}
	if s.pipe {
		return message.Position{}, connectors.Permanent(fmt.Errorf("%s is read once, and counting its records would take them", s.cfg.Path), "earliest is the only position of a pipe")
	}
	spec := *s.spec
	spec.ExitOnEmpty = true // the end of the file is the end
	budget := message.NewBudget(message.DefaultBudget)
	r, err := s.Open(ctx, connectors.Claim{
		Partition: p, Spec: &spec, Budget: budget, Gate: func() error { return nil },
		Reject: func(context.Context, connectors.BadRecord) error { return nil }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return message.Position{}, err
	}
	defer func() { _ = r.Close() }()
	var last message.Position
	for {
		b, err := r.Read(ctx)
		if errors.Is(err, connectors.ErrEndOfInput) {
			if value == "latest" {
				return last, nil
			}
			n, _ := last.Number()
			return message.Position{}, connectors.Permanent(fmt.Errorf("partition %s has %d records, and no record %d", p.ID, n, want), "")
		}
		if err != nil {
			return message.Position{}, err
		}
		last = b.End
		end, _ := b.End.Number()
		if value == "latest" || end < want {
			b.Release()
			continue
		}
		at := b.End
		if end > want {
			at = message.Position{}
			for i := range b.Len() {
				if b.Msg(i).Ordinal == want-1 {
					at = b.PositionAfter(i)
				}
			}
		}
		b.Release()
		if at.IsZero() {
			return at, connectors.Permanent(fmt.Errorf("record %d of partition %s cannot be read, so what comes after it cannot be named", want-1, p.ID), "name a record before or after it")
		}
		return at, nil
	}
}
