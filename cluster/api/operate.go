package api

import (
	"bytes"
	"fmt"
	"net/http"
	"time"

	"github.com/mqbridge/mqb/cluster/catalog"
)

// SetRequest is the body of POST /v1/routes/{route}/checkpoints/set.
type SetRequest struct {
	Partition string `json:"partition"`
	// Value is a position as statuses show it, earliest or latest.
	Value  string `json:"value"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// SetResult is its answer: the records as they were, and the new position.
type SetResult struct {
	Before   []Checkpoint `json:"before"`
	Position string       `json:"position"`
	DryRun   bool         `json:"dry_run,omitempty"`
}

// AdoptRequest is the body of POST /v1/routes/{route}/checkpoints/adopt.
type AdoptRequest struct {
	// Store is the checkpoint_store to move the records to; "" adopts them where
	// they are.
	Store  string `json:"store,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// Adoption is what adopting does to one record.
type Adoption struct {
	Partition string `json:"partition"`
	Leg       string `json:"leg"`
	Finding   string `json:"finding"`
	Action    string `json:"action"`
	Position  string `json:"position"`
}

// AdoptResult is the answer of an adopt; without adoptions nothing was to be done.
type AdoptResult struct {
	Adoptions []Adoption `json:"adoptions"`
	DryRun    bool       `json:"dry_run,omitempty"`
}

func (s *Server) setCheckpoint(r *http.Request) (any, error) {
	var req SetRequest
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	if req.Partition == "" || req.Value == "" {
		return nil, &Error{Message: "partition and value must be given", Code: CodeUsage}
	}
	name := r.PathValue("route")
	before, at, err := s.cfg.Catalog.SetPosition(r.Context(), name, req.Partition, req.Value, req.DryRun)
	if err != nil {
		return nil, err
	}
	return SetResult{Before: CheckpointsView(name, "", before).Checkpoints, Position: PositionText(at), DryRun: req.DryRun}, nil
}

func (s *Server) adoptCheckpoints(r *http.Request) (any, error) {
	var req AdoptRequest
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	list, err := s.cfg.Catalog.Adopt(r.Context(), r.PathValue("route"), catalog.AdoptOptions{Store: req.Store, DryRun: req.DryRun})
	if err != nil {
		return nil, err
	}
	out := AdoptResult{Adoptions: make([]Adoption, 0, len(list)), DryRun: req.DryRun}
	for _, a := range list {
		out.Adoptions = append(out.Adoptions, Adoption{Partition: a.Partition, Leg: a.Leg, Finding: a.Finding, Action: a.Action,
			Position: PositionText(a.Record.Position)})
	}
	return out, nil
}

// backup answers with the coordinator's state. It is gathered before the first
// byte leaves, so that a failure is an error and no torn file.
func (s *Server) backup(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Backup == nil {
		writeError(w, &Error{Message: "the coordinator's state is not kept by the nodes", Code: CodeRefused,
			Hint: "back etcd up with its own tools (etcdctl snapshot save)"})
		return
	}
	var b bytes.Buffer
	if err := s.cfg.Backup(r.Context(), &b); err != nil {
		writeError(w, AsError(err))
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", "mqb-"+time.Now().UTC().Format("20060102T150405Z")+".backup"))
	_, _ = w.Write(b.Bytes())
}
