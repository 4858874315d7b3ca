package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"

	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/route"
)

type empty struct{}

func (s *Server) version(*http.Request) (any, error) {
	return Version{Version: s.cfg.Version, Node: s.cfg.Node, Cluster: s.cfg.Cluster}, nil
}

func (s *Server) snapshot(ctx context.Context) (*Snapshot, map[string]About, error) {
	snap, err := Read(ctx, s.cfg.Coordinator, s.cfg.Keys)
	if err != nil {
		return nil, nil, err
	}
	return snap, s.about.of(s.cfg.Catalog, snap.Routes), nil
}

func (s *Server) leases(r *http.Request) (any, error) {
	snap, about, err := s.snapshot(r.Context())
	if err != nil {
		return nil, err
	}
	out := snap.Leases(about)
	if name := r.URL.Query().Get("route"); name != "" {
		if _, ok := snap.Routes[name]; !ok {
			return nil, fmt.Errorf("route %s: %w", name, catalog.ErrNotFound)
		}
		out.Leases = slices.DeleteFunc(out.Leases, func(l Lease) bool { return l.Route != name })
	}
	return out, nil
}

func (s *Server) nodes(r *http.Request) (any, error) {
	snap, err := Read(r.Context(), s.cfg.Coordinator, s.cfg.Keys)
	if err != nil {
		return nil, err
	}
	var voters map[string]bool
	if s.cfg.Voters != nil {
		voters = s.cfg.Voters(r.Context())
	}
	return snap.NodesView(voters), nil
}

func (s *Server) routes(r *http.Request) (any, error) {
	snap, about, err := s.snapshot(r.Context())
	if err != nil {
		return nil, err
	}
	return snap.RoutesView(about), nil
}

func (s *Server) route(r *http.Request) (any, error) {
	name := r.PathValue("route")
	snap, about, err := s.snapshot(r.Context())
	if err != nil {
		return nil, err
	}
	for _, v := range snap.RoutesView(about).Routes {
		if v.Name == name {
			spec, _, err := s.cfg.Catalog.Describe(name, snap.Routes[name].Spec)
			if err == nil {
				v.Spec = spec.Masked() // what does not decode cannot be masked, so it is not shown
			}
			return v, nil
		}
	}
	return nil, fmt.Errorf("route %s: %w", name, catalog.ErrNotFound)
}

func (s *Server) deleteRoute(r *http.Request) (any, error) {
	return empty{}, s.cfg.Catalog.Delete(r.Context(), r.PathValue("route"))
}

func (s *Server) checkpoints(r *http.Request) (any, error) {
	name := r.PathValue("route")
	list, store, err := s.cfg.Catalog.Checkpoints(r.Context(), name)
	if err != nil {
		return nil, err
	}
	return CheckpointsView(name, store, list), nil
}

func (s *Server) resetCheckpoints(r *http.Request) (any, error) {
	var req ResetRequest
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	name := r.PathValue("route")
	before, err := s.cfg.Catalog.Reset(r.Context(), name, req.Partition)
	if err != nil {
		return nil, err
	}
	return CheckpointsView(name, "", before), nil
}

// CheckpointsView is how records are shown, in the order of their partitions. An
// empty store leaves it out.
func CheckpointsView(name, store string, list []catalog.Checkpoint) Checkpoints {
	out := Checkpoints{Checkpoints: make([]Checkpoint, 0, len(list))}
	for _, c := range list {
		v := Checkpoint{
			Route: name, Key: c.Key, Partition: c.Partition, Leg: c.Leg, Store: store,
			Series: c.Record.Series, Generation: c.Record.Generation, Epoch: c.Record.Epoch,
			Run: c.Record.Run, Version: c.Record.Version, Position: PositionText(c.Record.Position),
			Intents: len(c.Record.Intents), Source: c.Record.Source,
		}
		if c.Err != nil {
			v.Error = c.Err.Error()
		}
		out.Checkpoints = append(out.Checkpoints, v)
	}
	slices.SortFunc(out.Checkpoints, func(a, b Checkpoint) int { return comparePartitions(a.Partition, b.Partition) })
	return out
}

// File is the JSON body of apply, validate and explain; a body of another content
// type is the file itself. Variables and overrides (route.OverridePrefix) are taken from Env alone, never from
// the environment of the node that answers, which is not the caller's to read.
type File struct {
	Name string            `json:"name,omitempty"`
	Text string            `json:"text"`
	Env  map[string]string `json:"env,omitempty"`
}

func (f File) lookup(name string) (string, bool) {
	v, ok := f.Env[name]
	return v, ok
}

// overrides are those of the variables that override the file.
func (f File) overrides() []route.Override {
	var environ []string
	for name, value := range f.Env {
		environ = append(environ, name+"="+value)
	}
	return route.OverridesFrom(environ)
}

func readFile(r *http.Request) (File, error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind == "application/json" {
		var f File
		err := readJSON(r, &f)
		return f, err
	}
	text, err := io.ReadAll(r.Body)
	var tooBig *http.MaxBytesError
	if errors.As(err, &tooBig) {
		return File{}, &Error{Message: fmt.Sprintf("the file has more than %d bytes", tooBig.Limit), Code: CodeUsage}
	}
	return File{Text: string(text)}, err
}

func (s *Server) apply(r *http.Request) (any, error) {
	f, err := readFile(r)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	dry := false
	if v := q.Get("dry_run"); v != "" {
		if dry, err = strconv.ParseBool(v); err != nil {
			return nil, &Error{Message: "dry_run must be true or false", Code: CodeUsage}
		}
	}
	results, err := s.cfg.Catalog.Apply(r.Context(), []byte(f.Text), catalog.ApplyOptions{
		Position: catalog.Position(q.Get("position")), DryRun: dry, File: f.Name, LookupEnv: f.lookup, Overrides: f.overrides(),
	})
	if err != nil {
		return nil, err
	}
	return applyView(results, dry), nil
}

func applyView(results []catalog.Result, dry bool) ApplyResult {
	out := ApplyResult{Routes: make([]Applied, 0, len(results)), DryRun: dry}
	for _, res := range results {
		out.Routes = append(out.Routes, Applied{
			Route: res.Route, Outcome: string(res.Outcome), Generation: res.Generation,
			Guarantee: string(res.Guarantee), Position: res.Position, Changes: res.Changes,
			Error: AsError(res.Err),
		})
	}
	return out
}

func (s *Server) validate(r *http.Request) (any, error) {
	f, err := readFile(r)
	if err != nil {
		return nil, err
	}
	_, _, err = s.cfg.Catalog.Explain([]byte(f.Text), f.Name, f.lookup, f.overrides())
	return empty{}, err
}

func (s *Server) explain(r *http.Request) (any, error) {
	f, err := readFile(r)
	if err != nil {
		return nil, err
	}
	list, warnings, err := s.cfg.Catalog.Explain([]byte(f.Text), f.Name, f.lookup, f.overrides())
	if err != nil {
		return nil, err
	}
	return ExplainView(list, warnings), nil
}
