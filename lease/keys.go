package lease

import (
	"encoding/json"
	"net/url"
	"strings"
	"time"
)

// Keys builds the coordinator's keys of one cluster. Names that users choose
// (routes, partitions, nodes) are path-escaped, so a partition may be called
// "2026/orders.csv".
type Keys struct{ prefix string }

// NewKeys returns the keys of a cluster.
func NewKeys(cluster string) Keys { return Keys{prefix: "/mqb/" + esc(cluster) + "/"} }

func esc(s string) string { return url.PathEscape(s) }

// Prefix is the prefix of everything.
func (k Keys) Prefix() string { return k.prefix }

// ClusterUID holds a random id, written once.
func (k Keys) ClusterUID() string { return k.prefix + "uid" }

// Nodes is the prefix of Node.
func (k Keys) Nodes() string { return k.prefix + "nodes/" }

// Node holds a Node, bound to the node's lease.
func (k Keys) Node(node string) string { return k.Nodes() + esc(node) }

// Cordons is the prefix of Cordon.
func (k Keys) Cordons() string { return k.prefix + "cordons/" }

// Cordon holds what an operator ordered for a node (drain, exclude), whether it
// lives or not.
func (k Keys) Cordon(node string) string { return k.Cordons() + esc(node) }

// Pins is the prefix of all pins, or of one route's.
func (k Keys) Pins(route ...string) string { return k.of("pins/", route) }

// Pin holds a Pin: where an operator wants a partition.
func (k Keys) Pin(route, p string) string { return k.Pins(route) + esc(p) }

// Routes is the prefix of Route.
func (k Keys) Routes() string { return k.prefix + "routes/" }

// Route holds a Route.
func (k Keys) Route(route string) string { return k.Routes() + esc(route) }

// Partitions is the prefix of all partitions, or of one route's.
func (k Keys) Partitions(route ...string) string { return k.of("partitions/", route) }

// Partition holds a Partition.
func (k Keys) Partition(route, p string) string { return k.Partitions(route) + esc(p) }

// Assignments is the prefix of all assignments, or of one route's.
func (k Keys) Assignments(route ...string) string { return k.of("assignments/", route) }

// Assignment holds an Assignment: what the scheduler wants.
func (k Keys) Assignment(route, p string) string { return k.Assignments(route) + esc(p) }

// Owners is the prefix of all owners, or of one route's.
func (k Keys) Owners(route ...string) string { return k.of("owners/", route) }

// Owner holds an Owner, bound to the node's lease: what a node holds.
func (k Keys) Owner(route, p string) string { return k.Owners(route) + esc(p) }

// Epoch holds the decimal epoch counter of a partition. Never deleted.
func (k Keys) Epoch(routeUID, p string) string {
	return k.prefix + "epochs/" + esc(routeUID) + "/" + esc(p)
}

// History holds a History: the last runs of a partition.
func (k Keys) History(routeUID, p string) string { return k.Histories(routeUID) + esc(p) }

// Histories is the prefix of a route's History keys.
func (k Keys) Histories(routeUID string) string { return k.prefix + "history/" + esc(routeUID) + "/" }

// Probe is a node's own key to write when somebody asks how well that works.
func (k Keys) Probe(node string) string { return k.prefix + "probe/" + esc(node) }

// Claimed holds a Claimed: the low-water mark of a partition's checkpoint record.
func (k Keys) Claimed(routeUID, p, leg string) string {
	return k.ClaimedBy(routeUID) + esc(p) + "/" + esc(leg)
}

// ClaimedBy is the prefix of a route's Claimed marks.
func (k Keys) ClaimedBy(routeUID string) string { return k.prefix + "claimed/" + esc(routeUID) + "/" }

// Statuses is the prefix of Status.
func (k Keys) Statuses() string { return k.prefix + "status/" }

// Status holds a NodeStatus, bound to the node's lease.
func (k Keys) Status(node string) string { return k.Statuses() + esc(node) }

// Scheduler holds a Leader, bound to the leader's lease.
func (k Keys) Scheduler() string { return k.prefix + "scheduler" }

// SchedulerTerm holds the decimal term counter. Never deleted.
func (k Keys) SchedulerTerm() string { return k.prefix + "scheduler-term" }

// Checkpoints is the prefix of the coordinator's own checkpoint store.
func (k Keys) Checkpoints() string { return k.prefix + "checkpoints/" }

func (k Keys) of(kind string, route []string) string {
	if len(route) == 0 {
		return k.prefix + kind
	}
	return k.prefix + kind + esc(route[0]) + "/"
}

// SplitPartition takes the route and the partition out of a key of Partitions,
// Assignments, Owners or Pins.
func (k Keys) SplitPartition(key string) (route, p string, ok bool) {
	rest, ok := strings.CutPrefix(key, k.prefix)
	if !ok {
		return "", "", false
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 {
		return "", "", false
	}
	route, err1 := url.PathUnescape(parts[1])
	p, err2 := url.PathUnescape(parts[2])
	return route, p, err1 == nil && err2 == nil
}

// SplitName takes the node or route name out of a key of Nodes, Cordons, Routes
// or Statuses.
func (k Keys) SplitName(key string) (name string, ok bool) {
	i := strings.LastIndexByte(key, '/')
	if i < 0 {
		return "", false
	}
	name, err := url.PathUnescape(key[i+1:])
	return name, err == nil && name != ""
}

// Node is a member, as it announces itself.
type Node struct {
	Name     string            `json:"name"`
	Instance string            `json:"instance"` // random, new at each start
	Address  string            `json:"address"`  // host:port that others reach it at
	Version  string            `json:"version"`
	Labels   map[string]string `json:"labels,omitempty"`
	Started  time.Time         `json:"started"` // for display only; never compared
	// Leaving: the process is shutting down in order and wants nothing more.
	Leaving bool `json:"leaving,omitempty"`
}

// Cordon is what an operator ordered for a node.
type Cordon struct {
	// Drain: no new partitions, and the ones it has move away.
	Drain bool `json:"drain"`
	// Exclude: no new partitions that another node could hold; those it has stay.
	Exclude bool `json:"exclude,omitempty"`
	// Routes are those that the node is excluded for, by name, with their uids: a
	// route created again under the name is not meant.
	Routes map[string]string `json:"routes,omitempty"`
	Since  time.Time         `json:"since"`
}

// Empty reports whether nothing is ordered.
func (c Cordon) Empty() bool { return !c.Drain && !c.Exclude && len(c.Routes) == 0 }

// Pin is an operator's order to keep a partition on a node while that node can
// hold it.
type Pin struct {
	Node  string    `json:"node"`
	Since time.Time `json:"since"` // for display only
}

// Route is a route as it stands in the cluster. Spec is the normalized YAML of
// this one route (the value below its name in the routes map).
type Route struct {
	UID        string `json:"uid"`
	Series     string `json:"series"`
	Generation uint64 `json:"generation"`
	Spec       string `json:"spec"`
	// Older holds the specs of generations that an intent may still name.
	Older  map[uint64]string `json:"older,omitempty"`
	Paused bool              `json:"paused,omitempty"`
}

// Partition is a discovered unit of ownership.
type Partition struct {
	ID string `json:"id"`
	// Node pins a partition of node locality; empty for shared ones.
	Node string `json:"node,omitempty"`
	// Weight counts in the scheduler's balance; 0 means 1.
	Weight int `json:"weight,omitempty"`
	// Attributes are the source's own notes, handed back to it at Open.
	Attributes map[string]string `json:"attributes,omitempty"`
	// PartSource and PartNumber name parts made from the partition.
	PartSource string `json:"part_source,omitempty"`
	PartNumber int    `json:"part_number,omitempty"`
	// Late: it was found after the route's first partitions, so it is read from
	// its beginning.
	Late bool `json:"late,omitempty"`
	// Generation of the route whose source listed it: one that a later
	// generation's source does not list is not the route's any more.
	Generation uint64 `json:"generation,omitempty"`
}

// Assignment is what the scheduler wants; it is never an Owner.
type Assignment struct {
	Node string `json:"node"`
	// Term of the scheduler that wrote it.
	Term int64 `json:"term"`
	// Generation of the route it was planned for.
	Generation uint64 `json:"generation"`
}

// Owner is what a node holds.
type Owner struct {
	Node       string `json:"node"`
	Instance   string `json:"instance"`
	Epoch      uint64 `json:"epoch"`
	Generation uint64 `json:"generation"`
}

// Claimed is the floor under a checkpoint record: a claim that finds less than
// this lost data (docs/protocol.md, stores).
type Claimed struct {
	Store   string `json:"store"`
	Epoch   uint64 `json:"epoch"`
	Version uint64 `json:"version"`
}

// Leader is the elected scheduler.
type Leader struct {
	Node string `json:"node"`
	Term int64  `json:"term"`
}

// State is the state of a partition, everywhere the same.
type State string

const (
	StateUnassigned  State = "unassigned"
	StateAcquiring   State = "acquiring"
	StateClaiming    State = "claiming"
	StateOpening     State = "opening"
	StateRunning     State = "running"
	StateSuspended   State = "suspended"
	StateDraining    State = "draining"
	StateQuarantined State = "quarantined"
	StateWedged      State = "wedged"
	StatePaused      State = "paused"
	StateDone        State = "done"
)

// Counters are those of invariant 4, summed since the node took the partition:
// Read = Written + Covered + Filtered + Deduplicated + DeadLettered + Dropped +
// Returned + what is in flight.
type Counters struct {
	Read         int64 `json:"read"`
	Written      int64 `json:"written"`
	Covered      int64 `json:"covered"`
	Filtered     int64 `json:"filtered"`
	Deduplicated int64 `json:"deduplicated"`
	DeadLettered int64 `json:"dead_lettered"`
	Dropped      int64 `json:"dropped"`
	Returned     int64 `json:"returned"`
}

// PartitionStatus is what a node says of one partition it holds or tries to hold.
type PartitionStatus struct {
	Route     string    `json:"route"`
	Partition string    `json:"partition"`
	State     State     `json:"state"`
	Epoch     uint64    `json:"epoch"`
	Position  string    `json:"position"` // sort key of the durable position, readable form
	Lag       int64     `json:"lag"`      // records (or bytes where the source counts those) behind; -1 unknown
	Guarantee string    `json:"guarantee"`
	Since     time.Time `json:"since"` // of the state
	Error     string    `json:"error,omitempty"`
	NextTry   time.Time `json:"next_try,omitzero"`
	Counters  Counters  `json:"counters"`
}

// RouteStatus is what a node cannot do for a whole route: read its spec, or list
// its source's partitions.
type RouteStatus struct {
	Route   string    `json:"route"`
	Error   string    `json:"error"`
	Since   time.Time `json:"since"`
	NextTry time.Time `json:"next_try,omitzero"`
}

// NodeStatus is written by each node, on change and at most every 2 s.
type NodeStatus struct {
	Node       string            `json:"node"`
	Partitions []PartitionStatus `json:"partitions"`
	Routes     []RouteStatus     `json:"routes,omitempty"`
	// Unplaced is filled by the scheduler's leader: partitions that no node can
	// hold, state unassigned, with the reason as error.
	Unplaced []PartitionStatus `json:"unplaced,omitempty"`
	// Settling is filled by the scheduler's leader: nodes that just came or flap,
	// so that nothing moves to them without need, and until when, by its clock.
	Settling map[string]time.Time `json:"settling,omitempty"`
	// Omitted counts partitions left out because the status grew too large.
	Omitted int `json:"omitted,omitempty"`
}

// Encode marshals a value of this file for the coordinator.
func Encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("lease: " + err.Error()) // only types of this file are passed
	}
	return b
}

// Decode reads a value written by Encode.
func Decode[T any](b []byte) (T, error) {
	var v T
	err := json.Unmarshal(b, &v)
	return v, err
}
