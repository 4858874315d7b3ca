package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/cluster/events"
	"github.com/mqbridge/mqb/lease"
)

// peerTimeout bounds a question to another node: one that does not answer is
// named, and keeps nobody waiting.
const peerTimeout = 2 * time.Second

// inspections are the calls that look behind leases and routes.
func (s *Server) inspections() map[string]func(*http.Request) (any, error) {
	return map[string]func(*http.Request) (any, error){
		"GET /v1/routes/{route}/history":            s.history,
		"GET /v1/events":                            s.listEvents,
		"GET /v1/doctor":                            s.doctor,
		"POST /v1/routes/{route}/checkpoints/set":   s.setCheckpoint,
		"POST /v1/routes/{route}/checkpoints/adopt": s.adoptCheckpoints,
	}
}

// Run is one epoch of a partition: who ran under it, and why that ended.
type Run struct {
	Route     string `json:"route"`
	Partition string `json:"partition"`
	Epoch     uint64 `json:"epoch"`
	Node      string `json:"node"`
	// From and Until are by the clock of the nodes that wrote them.
	From  time.Time `json:"from"`
	Until time.Time `json:"until,omitzero"`
	// End is "" while the run goes on.
	End string `json:"end,omitempty"`
}

// History is the answer of GET /v1/routes/{route}/history: the last runs of each
// partition, newest first.
type History struct {
	Runs []Run `json:"runs"`
}

func (s *Server) history(r *http.Request) (any, error) {
	name, only := r.PathValue("route"), r.URL.Query().Get("partition")
	e, err := s.cfg.Catalog.Get(r.Context(), name)
	if err != nil {
		return nil, err
	}
	kvs, _, err := s.cfg.Coordinator.List(r.Context(), s.cfg.Keys.Histories(e.Route.UID))
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	owners, err := placed[lease.Owner](r.Context(), s.cfg.Coordinator, s.cfg.Keys, s.cfg.Keys.Owners(name))
	if err != nil {
		return nil, fmt.Errorf("read owners: %w", err)
	}
	out := History{Runs: []Run{}}
	for _, kv := range kvs {
		h, err := lease.Decode[lease.History](kv.Value)
		partition, ok := s.cfg.Keys.SplitName(kv.Key)
		if err != nil || !ok || only != "" && partition != only {
			continue
		}
		for i, t := range h {
			run := Run{Route: name, Partition: partition, Epoch: t.Epoch, Node: t.Node, From: t.From, Until: t.Until, End: t.End}
			if i == len(h)-1 && run.End == "" && owners[place{name, partition}].Epoch != t.Epoch {
				run.End = lease.EndLost // the next owner will write it
			}
			out.Runs = append(out.Runs, run)
		}
	}
	if only != "" && len(out.Runs) == 0 {
		return nil, fmt.Errorf("route %s: history of partition %s: %w", name, only, catalog.ErrNotFound)
	}
	slices.SortStableFunc(out.Runs, func(a, b Run) int {
		return cmp.Or(comparePartitions(a.Partition, b.Partition), cmp.Compare(b.Epoch, a.Epoch))
	})
	return out, nil
}

// Events is the answer of GET /v1/events: what happened lately on the nodes that
// answered, oldest first.
type Events struct {
	Events []events.Event `json:"events"`
	// Unreachable names the nodes that did not answer.
	Unreachable []Unreachable `json:"unreachable,omitempty"`
	// Cursor asks for what comes after, when it is given with the next call.
	Cursor string `json:"cursor"`
}

// Unreachable is a node, or the coordinator, that did not answer.
type Unreachable struct {
	Node  string `json:"node"`
	Error string `json:"error"`
}

// listEvents answers with this node's events and, unless local=true, with those
// of all others.
func (s *Server) listEvents(r *http.Request) (any, error) {
	q := r.URL.Query()
	cursor, err := parseCursor(q.Get("cursor"))
	if err != nil {
		return nil, err
	}
	local, err := boolean(q, "local")
	if err != nil {
		return nil, err
	}
	var out Events
	if s.cfg.Events != nil {
		out.Events = s.cfg.Events.After(cursor)
	}
	if local {
		return out, nil
	}
	query := url.Values{"local": {"true"}, "cursor": {q.Get("cursor")}}
	answers, unreachable := askPeers[Events](r.Context(), s, peerTimeout, "/v1/events?"+query.Encode())
	out.Unreachable = unreachable
	for _, a := range answers {
		out.Events = append(out.Events, a.Events...)
	}
	cursor.See(out.Events)
	out.Cursor = formatCursor(cursor)
	slices.SortStableFunc(out.Events, func(a, b events.Event) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Seq, b.Seq))
	})
	// What every node saw is told once, as the first of them tells it.
	seen := map[string]bool{}
	route := q.Get("route")
	out.Events = slices.DeleteFunc(out.Events, func(e events.Event) bool {
		key := string(e.Kind) + " " + e.Subject
		again := e.Subject != "" && seen[key]
		seen[key] = true
		return again || route != "" && e.Route != route
	})
	if out.Events == nil {
		out.Events = []events.Event{}
	}
	return out, nil
}

// A cursor is a query string: node=instance:number.
func formatCursor(c events.Cursor) string {
	v := url.Values{}
	for node, at := range c {
		v.Set(node, at.Instance+":"+strconv.FormatUint(at.Seq, 10))
	}
	return v.Encode()
}

func parseCursor(text string) (events.Cursor, error) {
	bad := &Error{Message: "cursor is not one that an answer gave", Code: CodeUsage}
	v, err := url.ParseQuery(text)
	if err != nil {
		return nil, bad
	}
	c := events.Cursor{}
	for node, at := range v {
		instance, number, ok := strings.Cut(at[0], ":")
		seq, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil {
			return nil, bad
		}
		c[node] = events.At{Instance: instance, Seq: seq}
	}
	return c, nil
}

func boolean(q url.Values, name string) (bool, error) {
	v := q.Get(name)
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, &Error{Message: name + " must be true or false", Code: CodeUsage}
	}
	return b, nil
}

// askPeers asks every other live node the same, side by side. A coordinator that
// does not say who they are counts as one that did not answer.
func askPeers[T any](ctx context.Context, s *Server, timeout time.Duration, path string) (answers map[string]T, unreachable []Unreachable) {
	listing, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	nodes, err := named[lease.Node](listing, s.cfg.Coordinator, s.cfg.Keys, s.cfg.Keys.Nodes())
	if err != nil {
		return nil, []Unreachable{{Node: "coordinator", Error: err.Error()}}
	}
	delete(nodes, s.cfg.Node)
	answers = make(map[string]T, len(nodes))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		wg.Go(func() {
			asking, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			var v T
			err := s.askPeer(asking, nodes[name].Address, path, &v)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				unreachable = append(unreachable, Unreachable{Node: name, Error: err.Error()})
				return
			}
			answers[name] = v
		})
	}
	wg.Wait()
	slices.SortFunc(unreachable, func(a, b Unreachable) int { return cmp.Compare(a.Node, b.Node) })
	return answers, unreachable
}

// maxPeerBytes bounds the answer of a peer (invariant 8).
const maxPeerBytes = 8 << 20

func (s *Server) askPeer(ctx context.Context, address, path string, v any) error {
	do := s.cfg.Peer
	if do == nil {
		do = plainPeer
	}
	resp, err := do(ctx, address, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body := io.LimitReader(resp.Body, maxPeerBytes)
	if resp.StatusCode != http.StatusOK {
		var e Error
		if json.NewDecoder(body).Decode(&e) != nil || e.Message == "" {
			return fmt.Errorf("answered %s", resp.Status)
		}
		return &e
	}
	return json.NewDecoder(body).Decode(v)
}

// plainPeer keeps no connections: peers are asked when a person asks.
func plainPeer(ctx context.Context, address, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	return (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
}
