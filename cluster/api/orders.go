package api

import (
	"fmt"
	"net/http"

	"github.com/mqbridge/mqb/cluster/catalog"
)

// orders are what operators tell the scheduler.
func (s *Server) orders() map[string]func(*http.Request) (any, error) {
	return map[string]func(*http.Request) (any, error){
		"POST /v1/nodes/{node}/drain":     s.drain,
		"POST /v1/nodes/{node}/undrain":   s.undrain,
		"POST /v1/nodes/{node}/exclude":   s.exclude,
		"POST /v1/nodes/{node}/include":   s.include,
		"DELETE /v1/nodes/{node}":         s.removeNode,
		"POST /v1/routes/{route}/move":    s.move,
		"POST /v1/routes/{route}/release": s.release,
		"POST /v1/routes/{route}/pause":   s.pause,
		"POST /v1/routes/{route}/resume":  s.resume,
	}
}

// ExcludeRequest is the body of an exclusion and of its end.
type ExcludeRequest struct {
	// Route is empty for all.
	Route string `json:"route,omitempty"`
}

// MoveRequest is the body of a move, and, without To, of its release.
type MoveRequest struct {
	Partition string `json:"partition"`
	To        string `json:"to,omitempty"`
}

// RemovedNode is what the removal of a node took away.
type RemovedNode struct {
	Node string `json:"node"`
	// Member: it was a member of the embedded raft.
	Member     bool `json:"member"`
	Orders     int  `json:"orders"`
	Pins       int  `json:"pins"`
	Partitions int  `json:"partitions"`
}

func (s *Server) drain(r *http.Request) (any, error) {
	return empty{}, s.cfg.Catalog.Drain(r.Context(), r.PathValue("node"))
}

func (s *Server) undrain(r *http.Request) (any, error) {
	return empty{}, s.cfg.Catalog.Undrain(r.Context(), r.PathValue("node"))
}

func (s *Server) exclude(r *http.Request) (any, error) {
	var req ExcludeRequest
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	return empty{}, s.cfg.Catalog.Exclude(r.Context(), r.PathValue("node"), req.Route)
}

func (s *Server) include(r *http.Request) (any, error) {
	var req ExcludeRequest
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	return empty{}, s.cfg.Catalog.Include(r.Context(), r.PathValue("node"), req.Route)
}

func (s *Server) move(r *http.Request) (any, error) {
	var req MoveRequest
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	if req.Partition == "" || req.To == "" {
		return nil, &Error{Message: "a move needs a partition and a node", Code: CodeUsage}
	}
	return empty{}, s.cfg.Catalog.Move(r.Context(), r.PathValue("route"), req.Partition, req.To)
}

func (s *Server) release(r *http.Request) (any, error) {
	var req MoveRequest
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	return empty{}, s.cfg.Catalog.Release(r.Context(), r.PathValue("route"), req.Partition)
}

func (s *Server) pause(r *http.Request) (any, error) {
	return empty{}, s.cfg.Catalog.Pause(r.Context(), r.PathValue("route"))
}

func (s *Server) resume(r *http.Request) (any, error) {
	return empty{}, s.cfg.Catalog.Resume(r.Context(), r.PathValue("route"))
}

// removeNode takes a dead node out of the embedded raft first: it is the quorum
// that suffers from it, and a repetition finds the keys still there.
func (s *Server) removeNode(r *http.Request) (any, error) {
	ctx, node := r.Context(), r.PathValue("node")
	if err := s.cfg.Catalog.Dead(ctx, node); err != nil {
		return nil, err
	}
	member := false
	if s.cfg.Voters != nil && s.cfg.RemoveMember != nil {
		_, member = s.cfg.Voters(ctx)[node]
	}
	if member {
		if err := s.cfg.RemoveMember(ctx, node); err != nil {
			return nil, err
		}
	}
	f, err := s.cfg.Catalog.RemoveNode(ctx, node)
	if err != nil {
		return nil, err
	}
	if !member && f == (catalog.Forgotten{}) {
		return nil, fmt.Errorf("node %s: %w: nothing is kept of it", node, catalog.ErrNotFound)
	}
	return RemovedNode{Node: node, Member: member, Orders: f.Orders, Pins: f.Pins, Partitions: f.Partitions}, nil
}
