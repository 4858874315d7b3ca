package route

import "time"

// Spec is one decoded route. Defaults are applied; it is valid as far as that
// can be known without the real systems.
type Spec struct {
	Name        string
	Description string
	Enabled     bool
	Input       Endpoint
	Output      Endpoint

	// Concurrency is the number of middleware workers; order is kept.
	Concurrency int
	// BatchSize is the most messages a batch holds.
	BatchSize int
	// ExitOnEmpty ends the route at the end of its input.
	ExitOnEmpty bool
	// RequiredDelivery refuses a weaker route ("" = anything goes).
	RequiredDelivery Guarantee

	// CheckpointStore is the URL of the store; "" is the default (the sink
	// itself where it is transactional, else the coordinator).
	CheckpointStore string
	Commit          CommitMode
	// CheckpointInterval is how often a position is committed where that is
	// apart from the write.
	CheckpointInterval time.Duration
	SharedStorage      bool
	Placement          Placement
	ExistingParts      string // fail (default) or skip
	Roll               Roll
	OnError            OnError
	MaxRecordBytes     int64
	// ReconnectInterval and GiveUpAfter bound the back-off on connection errors.
	ReconnectInterval time.Duration
	GiveUpAfter       time.Duration

	// source is the route as it was decoded, for Normalized and Masked.
	source *node
}

// Endpoint is one side of a route: the type's name, its decoded config and the
// middlewares beside it, in the order they are written.
type Endpoint struct {
	Type        string
	Config      any
	Middlewares []Middleware
	// Where is file:line:column of the endpoint's name, for messages.
	Where string
}

// Middleware is one decoded middleware.
type Middleware struct {
	Type   string
	Config any
	Where  string
}

// Placement says which nodes may hold a route's partitions; the zero value is all.
type Placement struct {
	Labels  map[string]string // a node must have them all
	Exclude []string          // names of nodes
}

// Roll bounds a part: whichever comes first ends it.
type Roll struct {
	Bytes   int64         // 64 MiB
	Records int64         // 1,000,000
	Age     time.Duration // 10 s
}

// CommitMode says where the position of a route lives.
type CommitMode string

const (
	CommitAuto          CommitMode = "auto"
	CommitTransactional CommitMode = "transactional"
	CommitSeparate      CommitMode = "separate"
)

// OnError is what happens to a record that cannot be handled.
type OnError string

const (
	// OnErrorStop stops the partition before the record (default).
	OnErrorStop OnError = "stop"
	// OnErrorDrop drops the record and counts it.
	OnErrorDrop OnError = "drop"
	// OnErrorDLQ sends the record to the dlq of the output, which sets it.
	OnErrorDLQ OnError = "dlq"
)

// DeadLetterer is the config of a middleware that takes dead letters.
type DeadLetterer interface{ DeadLetters() *Endpoint }

// DeadLetters is the endpoint that takes the route's dead letters, nil if there
// is none.
func (s *Spec) DeadLetters() *Endpoint {
	for _, m := range s.Output.Middlewares {
		if d, ok := m.Config.(DeadLetterer); ok {
			return d.DeadLetters()
		}
	}
	return nil
}

// Guarantee of a route, weakest first.
type Guarantee string

const (
	AtMostOnce      Guarantee = "at-most-once"
	AtLeastOnce     Guarantee = "at-least-once"
	EffectivelyOnce Guarantee = "effectively-once"
	ExactlyOnce     Guarantee = "exactly-once"
)
