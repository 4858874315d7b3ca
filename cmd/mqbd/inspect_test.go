package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/events"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/test/freeze"
)

func TestHistoryEventsAndDoctorTellOfANodeThatFreezesAndDies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	routes := fileRoute(t, dir)
	nodes := map[string]*process{}
	for _, name := range []string{"n1", "n2", "n3"} {
		args := []string{"--name", name, "--data-dir", filepath.Join(dir, name), "--listen", "127.0.0.1:0"}
		if n1 := nodes["n1"]; n1 != nil {
			args = append(args, "--join", n1.addr)
		}
		nodes[name] = start(t, dir, nil, args...)
	}
	one := nodes["n1"]
	eventually(t, "three voters", one.Doctor, func(v api.Report) bool {
		return strings.Contains(fmt.Sprint(v.Checks), "3 of 3 voters") && v.Failed == 0
	})
	text, err := os.ReadFile(routes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Apply(t.Context(), api.File{Text: string(text)}, "", false); err != nil {
		t.Fatal(err)
	}
	all := func(ctx context.Context) (api.Leases, error) { return one.Leases(ctx, "") }
	v := eventually(t, "one partition each", all, func(v api.Leases) bool {
		owners := map[string]bool{}
		for _, l := range v.Leases {
			owners[l.Owner] = true
		}
		return running(v) && len(owners) == 3
	})
	var lost string
	for _, l := range v.Leases {
		if l.Owner == "n3" {
			lost = l.Partition
		}
	}
	told, err := one.Events(t.Context(), "", "")
	if err != nil || len(told.Unreachable) > 0 {
		t.Fatalf("%+v %v", told, err)
	}
	kinds := map[string]int{}
	for _, e := range told.Events {
		kinds[string(e.Kind)+" "+e.Node]++
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		if kinds["acquired "+n] == 0 {
			t.Errorf("no acquire of %s in %v", n, kinds)
		}
	}

	// While its lease still lives, a frozen node is asked, and named.
	if err := freeze.Process(nodes["n3"].cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	frozen, err := one.Events(t.Context(), "", told.Cursor)
	if err != nil || len(frozen.Unreachable) != 1 || frozen.Unreachable[0].Node != "n3" {
		t.Errorf("events beside a frozen node: %+v %v", frozen.Unreachable, err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("waited %s for a frozen node", took)
	}
	report, err := one.Doctor(t.Context())
	if err != nil || report.Warned+report.Failed == 0 || !strings.Contains(fmt.Sprint(report.Checks), "not reachable: n3") {
		t.Errorf("doctor beside a frozen node: %+v %v", report, err)
	}
	_ = nodes["n3"].cmd.Process.Kill()

	history := eventually(t, "taken over", func(ctx context.Context) (api.History, error) { return one.History(ctx, "csv", lost) },
		func(h api.History) bool { return len(h.Runs) >= 2 && h.Runs[0].Node != "n3" })
	if last := history.Runs[1]; last.Node != "n3" || last.End != lease.EndLost || history.Runs[0].Epoch <= last.Epoch || history.Runs[0].End != "" {
		t.Errorf("history %+v", history)
	}
	left := 0
	eventually(t, "told of", func(ctx context.Context) (api.Events, error) { return one.Events(ctx, "", told.Cursor) }, func(v api.Events) bool {
		left = 0
		for _, e := range v.Events {
			if e.Kind == events.NodeLeft && strings.HasPrefix(e.Subject, "n3/") {
				left++
			}
			if e.Node == "n1" && e.Seq <= 1 {
				t.Errorf("the cursor brings back %+v", e)
			}
		}
		return left > 0
	})
	if left != 1 {
		t.Errorf("told %d times that n3 left", left)
	}
}

func TestSetSendsARunningPartitionToARecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	routes := fileRoute(t, dir)
	text, err := os.ReadFile(routes)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(text), "    output:")
	head = strings.Replace(head, "messages_per_second: 500", "messages_per_second: 20", 1)
	head = strings.Replace(head, "    roll: {records: 100}\n", "", 1)
	if err := os.WriteFile(routes, []byte(head+"    output: null\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := start(t, dir, nil, "--listen", "127.0.0.1:0", "--routes", routes)
	all := func(ctx context.Context) (api.Leases, error) { return p.Leases(ctx, "") }
	eventually(t, "running", all, func(v api.Leases) bool { return len(v.Leases) == 3 && v.Leases[0].State == lease.StateRunning })
	eventually(t, "recorded", func(ctx context.Context) (api.Checkpoints, error) { return p.Checkpoints(ctx, "csv") },
		func(v api.Checkpoints) bool { return len(v.Checkpoints) == 3 })
	for value, want := range map[string]string{"5001": "has 5000 records", "x": "no number of a record"} {
		_, err := p.SetCheckpoint(t.Context(), "csv", api.SetRequest{Partition: "f0.csv", Value: value})
		if e := api.AsError(err); e == nil || e.Code != api.CodeRefused || !strings.Contains(e.Message, want) {
			t.Errorf("set to %s: %v", value, err)
		}
	}
	res, err := p.SetCheckpoint(t.Context(), "csv", api.SetRequest{Partition: "f0.csv", Value: "4321", DryRun: true})
	if err != nil || res.Position != "4321" {
		t.Fatalf("dry run %+v %v", res, err)
	}
	res, err = p.SetCheckpoint(t.Context(), "csv", api.SetRequest{Partition: "f0.csv", Value: "4321"})
	if err != nil || res.Position != "4321" || len(res.Before) != 1 {
		t.Fatalf("%+v %v", res, err)
	}
	v := eventually(t, "behind the position", all, func(v api.Leases) bool {
		return v.Leases[0].State == lease.StateRunning && len(v.Leases[0].Position) == 4 && v.Leases[0].Position >= "4321"
	})
	if v.Leases[0].Epoch < 3 || v.Leases[1].Epoch != 1 {
		t.Errorf("epochs %d and %d: the owner was not fenced, or others were", v.Leases[0].Epoch, v.Leases[1].Epoch)
	}
}
