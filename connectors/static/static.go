// Package static is the "static" endpoint as an input: the same body again and
// again. What it emits depends on nothing but the record number, so a run may
// resume anywhere and on any node.
package static

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// Config is the endpoint as written in a spec. A bare scalar is the body.
type Config struct {
	Body string `yaml:"body" doc:"payload of every record, sent as it stands"`
	// Raw concerns replies only, where a body that is not raw becomes a JSON string.
	Raw      bool              `yaml:"raw" doc:"as a reply: send the body as it stands and not as a JSON string; without effect on an input"`
	Metadata map[string]string `yaml:"metadata" doc:"metadata of every record"`
}

// FromScalar reads `static: body`.
func (c *Config) FromScalar(s string) error {
	c.Body = s
	return nil
}

// Validate refuses what would be sent literally and was not meant so.
func (c *Config) Validate(route.Side) []error {
	if strings.Contains(c.Body, "${") {
		return []error{errors.New("body: templates are not supported yet")}
	}
	return nil
}

// Type is the endpoint type.
func Type() connectors.Type {
	return connectors.Type{
		EndpointType: route.EndpointType{
			Name:      "static",
			NewConfig: func() any { return new(Config) },
			Source: func(any) route.SourceCapabilities {
				return route.SourceCapabilities{
					StableIdentity:   true,
					DurablePosition:  true,
					NumberedPosition: true,
					EndsItself:       true,
					Locality:         route.Shared,
				}
			},
		},
		NewSource: func(config any, _ *route.Spec, _ connectors.Env) (connectors.Source, error) {
			return &source{config: config.(*Config)}, nil
		},
	}
}

// batchBytes is what one batch takes of the process's budget.
const batchBytes = 256 << 10

type source struct{ config *Config }

func (s *source) Partitions(context.Context) ([]connectors.Partition, error) {
	return []connectors.Partition{{ID: "0", PartSource: "static"}}, nil
}

// Identify returns "": no two static inputs differ in anything that a position
// depends on.
func (s *source) Identify(context.Context, connectors.Partition, string) (string, error) {
	return "", nil
}

func (s *source) Open(_ context.Context, claim connectors.Claim) (connectors.Reader, error) {
	pos := claim.Record.Position
	n, ok := pos.Number()
	if !pos.IsZero() && !ok {
		return nil, connectors.Permanent(fmt.Errorf("static: position %q is no record number", pos.Sort), "")
	}
	r := &reader{
		body:  []byte(s.config.Body),
		meta:  s.config.Metadata,
		names: slices.Sorted(maps.Keys(s.config.Metadata)),
		pool:  message.NewPool(claim.Budget, batchBytes),
		limit: int64(claim.Spec.BatchSize),
		end:   math.MaxInt64,
		at:    n,
	}
	// A batch is as many records as fit, at least one. A drain is one batch in
	// all, not one in each run: a run that resumes inside it emits the rest.
	r.limit = min(r.limit, max(1, int64(batchBytes/(len(r.body)+1))))
	if claim.Spec.ExitOnEmpty {
		r.end = r.limit
	}
	r.framed = len(r.names) == 0 && !bytes.ContainsRune(r.body, '\n')
	r.life, r.stop = context.WithCancel(context.Background())
	return r, nil
}

func (s *source) Check(context.Context) error { return nil }
func (s *source) Close() error                { return nil }

type reader struct {
	body   []byte
	meta   map[string]string
	names  []string // of meta, sorted
	framed bool
	pool   *message.Pool
	limit  int64 // records in a batch
	end    int64 // record number at which the input ends
	at     int64

	life context.Context // ends with Close
	stop context.CancelFunc
}

// Read fills one batch.
func (r *reader) Read(ctx context.Context) (*message.Batch, error) {
	if r.at >= r.end {
		return nil, connectors.ErrEndOfInput
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.life, cancel)()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := r.pool.Get(ctx)
	if err != nil {
		return nil, err
	}
	b.Positions = r
	b.From = position(r.at)
	for range min(r.limit, r.end-r.at) {
		off := len(b.Arena)
		b.Arena = append(append(b.Arena, r.body...), '\n')
		b.Add(off, len(r.body), r.at, r.at+1)
		r.at++
		for _, name := range r.names {
			b.AddMeta(name, []byte(r.meta[name]))
		}
	}
	if r.framed {
		b.MarkFramed()
	}
	b.Read = b.Len()
	b.End = position(r.at)
	return b, nil
}

// After implements message.Positioner.
func (r *reader) After(m *message.Message) message.Position { return position(m.Next) }

func position(n int64) message.Position { return message.Position{Sort: message.SortKey(n)} }

// Settle has nothing to free.
func (r *reader) Settle(context.Context, message.Position) error { return nil }

// Lag is 0: a constant has no records waiting.
func (r *reader) Lag() int64 { return 0 }

func (r *reader) Close() error {
	r.stop()
	return nil
}
