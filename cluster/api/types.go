package api

import (
	"time"

	"github.com/mqbridge/mqb/lease"
)

// Lease is one partition: who holds it, and what it does. A partition that
// nobody holds has a row too, with the reason.
type Lease struct {
	Route     string `json:"route"`
	Partition string `json:"partition"`
	Owner     string `json:"owner,omitempty"`
	// Pinned is the node that an operator moved it to.
	Pinned   string      `json:"pinned,omitempty"`
	Epoch    uint64      `json:"epoch"`
	State    lease.State `json:"state"`
	Position string      `json:"position,omitempty"`
	// Lag in records, or bytes for sources that count those; -1 is unknown.
	Lag       int64  `json:"lag"`
	Guarantee string `json:"guarantee,omitempty"`
	// Since is by the clock of the node that reports the state; for display only.
	Since    time.Time       `json:"since,omitzero"`
	Reason   string          `json:"reason,omitempty"`
	NextTry  time.Time       `json:"next_try,omitzero"`
	Counters *lease.Counters `json:"counters,omitempty"`
}

// Leases is the answer of GET /v1/leases.
type Leases struct {
	Leases []Lease `json:"leases"`
	// Problems are those of whole routes, which have no partition to show for it.
	Problems []Problem `json:"problems,omitempty"`
	Summary  Summary   `json:"summary"`
}

// Problem is what a node cannot do for a whole route.
type Problem struct {
	Route string `json:"route"`
	Error string `json:"error"`
}

// Summary counts what Leases lists.
type Summary struct {
	Nodes      int `json:"nodes"`
	Partitions int `json:"partitions"`
	Owned      int `json:"owned"`
	// IdleNodes are live nodes that hold nothing.
	IdleNodes int    `json:"idle_nodes"`
	Text      string `json:"text"`
}

// Route is one route as GET /v1/routes lists it. Spec is set for one route only,
// with its secrets masked.
type Route struct {
	Name       string      `json:"name"`
	UID        string      `json:"uid"`
	Series     string      `json:"series"`
	Generation uint64      `json:"generation"`
	State      lease.State `json:"state"`
	Input      string      `json:"input"`
	Output     string      `json:"output"`
	Guarantee  string      `json:"guarantee"`
	Partitions int         `json:"partitions"`
	Owned      int         `json:"owned"`
	// Lag is the sum over partitions that know theirs; -1 if none does.
	Lag     int64  `json:"lag"`
	Written int64  `json:"written"`
	Error   string `json:"error,omitempty"`
	Spec    string `json:"spec,omitempty"`
}

// Routes is the answer of GET /v1/routes.
type Routes struct {
	Routes []Route `json:"routes"`
}

// Node is one member.
type Node struct {
	Name       string            `json:"name"`
	Address    string            `json:"address"`
	Version    string            `json:"version"`
	Instance   string            `json:"instance"`
	Labels     map[string]string `json:"labels,omitempty"`
	Started    time.Time         `json:"started,omitzero"`
	State      NodeState         `json:"state"`
	Partitions int               `json:"partitions"`
	Scheduler  bool              `json:"scheduler"`
	// Voter of the embedded raft.
	Voter bool `json:"voter"`
	// Excluded: it gets nothing more and keeps what it has.
	Excluded bool `json:"excluded,omitempty"`
	// ExcludedRoutes are those that it gets nothing more of.
	ExcludedRoutes []string `json:"excluded_routes,omitempty"`
	// Settles is when the scheduler begins to move partitions to it: it has just
	// come, or comes and goes. Zero once it has. By the scheduler's clock.
	Settles time.Time `json:"settles,omitzero"`
}

// NodeState is what a member is up to.
type NodeState string

const (
	NodeActive   NodeState = "active"
	NodeDraining NodeState = "draining"
	// NodeDrained holds nothing any more and gets nothing new.
	NodeDrained NodeState = "drained"
	// NodeGone has no live lease, but an order is still noted for it or it is still
	// a member of the embedded raft.
	NodeGone NodeState = "gone"
)

// Nodes is the answer of GET /v1/nodes.
type Nodes struct {
	Nodes []Node `json:"nodes"`
}

// Checkpoint is one checkpoint record, without opaque bytes.
type Checkpoint struct {
	Route      string `json:"route"`
	Key        string `json:"key"`
	Partition  string `json:"partition"`
	Leg        string `json:"leg"`
	Series     string `json:"series,omitempty"`
	Generation uint64 `json:"generation"`
	Epoch      uint64 `json:"epoch"`
	Run        string `json:"run,omitempty"`
	Version    uint64 `json:"version"`
	Position   string `json:"position"`
	Intents    int    `json:"intents"`
	Source     string `json:"source,omitempty"`
	Store      string `json:"store"`
	Error      string `json:"error,omitempty"`
}

// Checkpoints is the answer of GET /v1/checkpoints and of a reset, which answers
// with the records as they were before.
type Checkpoints struct {
	Checkpoints []Checkpoint `json:"checkpoints"`
}

// Applied is what an apply did, or would do, to one route.
type Applied struct {
	Route      string   `json:"route"`
	Outcome    string   `json:"outcome"`
	Generation uint64   `json:"generation"`
	Guarantee  string   `json:"guarantee,omitempty"`
	Position   string   `json:"position,omitempty"`
	Changes    []string `json:"changes,omitempty"`
	Error      *Error   `json:"error,omitempty"`
}

// ApplyResult is the answer of POST /v1/apply. Routes that were refused carry
// their error; the others were applied.
type ApplyResult struct {
	Routes []Applied `json:"routes"`
	DryRun bool      `json:"dry_run,omitempty"`
}

// Explanation is what a route guarantees and why.
type Explanation struct {
	Route     string   `json:"route"`
	Guarantee string   `json:"guarantee"`
	Text      []string `json:"text"`
}

// Explanations is the answer of POST /v1/explain.
type Explanations struct {
	Routes   []Explanation `json:"routes"`
	Warnings []string      `json:"warnings,omitempty"`
}

// ResetRequest is the body of a checkpoint reset.
type ResetRequest struct {
	// Partition is empty for all.
	Partition string `json:"partition,omitempty"`
}

// Version is the answer of GET /v1/version.
type Version struct {
	Version string `json:"version"`
	Node    string `json:"node"`
	Cluster string `json:"cluster"`
}
