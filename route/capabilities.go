// Package route holds the specification of routes: their YAML, templates and
// expressions, what each endpoint declares about itself, and the guarantee that
// follows from it.
package route

// Locality says which nodes can hold a partition of an endpoint.
type Locality string

const (
	// Shared: any node.
	Shared Locality = "shared"
	// NodeLocal: only the node on which the data is (local files, SQLite).
	NodeLocal Locality = "node"
	// EveryNode: a partition per node, never moved (listeners).
	EveryNode Locality = "every_node"
)

// SourceCapabilities is what a source, as configured, declares.
type SourceCapabilities struct {
	// StableIdentity: a record read again has the same identity.
	StableIdentity bool
	// DurablePosition: reading resumes at a stored position (positional source).
	DurablePosition bool
	// NumberedPosition: sort keys are numbers (message.SortKey), so parts can be
	// named by them.
	NumberedPosition bool
	// SettleDeletes: settling removes data from the source.
	SettleDeletes bool
	// EndsItself: the source has an end (files, static); exit_on_empty ends there.
	EndsItself bool
	Locality   Locality
	// Why is filled where a capability is missing: "mqtt has no replay position".
	Why string
}

// Tier is what a sink can promise (docs/design.md, words).
type Tier int

const (
	// TierNone: repeated writes land twice.
	TierNone Tier = 3
	// TierDeterministic: name or key absorbs a repeated write.
	TierDeterministic Tier = 2
	// TierTransactional: rows, position and fence in one transaction.
	TierTransactional Tier = 1
)

// SinkCapabilities is what a sink, as configured, declares.
type SinkCapabilities struct {
	Tier Tier
	// Parts: a T2 sink of immutable parts; it needs a source with numbered
	// positions and uses intents.
	Parts bool
	// Append: a T2 sink that is told where it ended by the checkpoint record, and
	// cuts what was written behind that: a repeat replaces what it repeats.
	Append bool
	// System names the system that a transaction spans, "" if there is none: a dlq
	// in the same one is written in the transactions of the output.
	System string
	// LettersOnce: as the endpoint of a dlq it absorbs a letter that is written
	// again, by its id.
	LettersOnce bool
	// Durable: an acknowledged write survives a crash of the system behind it,
	// as configured.
	Durable bool
	// Discards: nothing is kept (null); every guarantee about effects is void
	// but trivially met.
	Discards bool
	// Window is the stated window within which a repeat is absorbed, "" if unbounded.
	Window   string
	Locality Locality
	// Why explains the tier; Raise names the nearest change that would lift it.
	Why, Raise string
}

// MiddlewareCapabilities is what a middleware, as configured, declares.
type MiddlewareCapabilities struct {
	// Shape: map, drop, split or hold.
	Shape Shape
	// Stateful: what it does depends on earlier messages.
	Stateful bool
	// Serial: one worker at a time, since it paces. It says nothing of the result.
	Serial bool
	// PlainWrites: it changes how single writes are made, so that it has no effect
	// on a transaction or a part, which the route begins again as a whole.
	PlainWrites bool
	// Replay: the same messages give the same result again.
	ReplaySame bool
}

// Shape is what a middleware does to the number of messages.
type Shape string

const (
	ShapeMap   Shape = "map"
	ShapeDrop  Shape = "drop"
	ShapeSplit Shape = "split"
	ShapeHold  Shape = "hold"
)

// EndpointType describes an endpoint by name. Connectors register theirs; the
// spec decoder looks them up through Types.
type EndpointType struct {
	Name string
	// NewConfig returns a pointer to a zero config struct of the endpoint. Its
	// fields carry `yaml`, `doc` and `default` tags: default values are applied
	// by the decoder from the tag, so that docs and behaviour cannot differ. If
	// the pointer has a method Validate(side Side) []error, it is called after
	// decoding. If it has a method FromScalar(string) error, the endpoint may be
	// written as a bare scalar (static: "body"). If the config of an input has a
	// method Reads(output any) bool, a route is refused whose output, or whose dlq,
	// has a config that it says yes to: it would read what it writes. If that of an
	// output has a method TakesLetters(output any) *ConfigError, it says why it cannot hold the
	// dead letters of a route with that output. What a method
	// Remarks(side Side) []string returns of a config without errors is shown as
	// warnings: what was written and has no effect, and why.
	NewConfig func() any
	// Source and Sink are nil for an endpoint that cannot be one.
	Source func(config any) SourceCapabilities
	Sink   func(config any) SinkCapabilities
	// Reserved lists keys of the dialect that exist but are not built yet; they
	// are refused as "not supported yet".
	Reserved []string
}

// MiddlewareType describes a middleware by name, like EndpointType.
type MiddlewareType struct {
	Name         string
	NewConfig    func() any
	Capabilities func(config any) MiddlewareCapabilities
	// Input and Output say on which side the middleware may stand.
	Input, Output bool
	Reserved      []string
}

// Types is how the decoder finds endpoint and middleware types.
type Types interface {
	Endpoint(name string) (EndpointType, bool)
	Middleware(name string) (MiddlewareType, bool)
	// EndpointNames and MiddlewareNames list what exists, for suggestions.
	EndpointNames() []string
	MiddlewareNames() []string
}

// Side says where an endpoint stands.
type Side string

const (
	Input  Side = "input"
	Output Side = "output"
)
