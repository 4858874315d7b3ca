package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/events"
	"github.com/mqbridge/mqb/lease"
)

func TestHistoryTable(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	var b bytes.Buffer
	historyTable(&b, api.History{Runs: []api.Run{
		{Route: "r", Partition: "p", Epoch: 3, Node: "n2", From: from.Add(time.Minute)},
		{Route: "r", Partition: "p", Epoch: 2, Node: "n1", From: from, Until: from.Add(30 * time.Second), End: "drained: the node stopped"},
		{Route: "r", Partition: "p", Epoch: 1, Node: "n\x1b1", From: from, End: lease.EndLost},
	}}, from.Add(2*time.Minute))
	golden(t, "history.txt", b.String())
}

func TestDoctorTable(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	doctorTable(&b, api.Report{Checks: []api.Check{
		{Verdict: api.VerdictOK, Check: "quorum", Detail: "3 of 3 voters reachable, leader n1"},
		{Verdict: api.VerdictWarn, Check: "disk", Subject: "n1", Detail: "900 MiB free", Advice: "make room"},
		{Verdict: api.VerdictFail, Check: "checkpoint-store", Subject: "orders", Detail: "no answer", Advice: "start it"},
	}, Failed: 1, Warned: 1})
	golden(t, "doctor.txt", b.String())
}

func TestHistoryOfARouteInMachineForm(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if r := n.ctl(t, "", "apply", "-f", write(t, "r.yaml", plain)); r.code != 0 {
		t.Fatal(r)
	}
	kv, _, err := n.c.Get(t.Context(), n.keys.Route("orders"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := lease.Decode[lease.Route](kv.Value)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	n.put(t, n.keys.History(r.UID, "p0"), lease.Encode(lease.History{
		{Epoch: 1, Node: "n1", From: at, Until: at.Add(time.Second), End: "released"},
		{Epoch: 2, Node: "n2", From: at.Add(2 * time.Second)},
	}))
	ask := func(args ...string) (v api.History) {
		t.Helper()
		res := n.ctl(t, "", append([]string{"leases", "--history", "-o", "json"}, args...)...)
		if res.code != 0 {
			t.Fatal(res)
		}
		if err := json.Unmarshal([]byte(res.out), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	// Nobody holds it, so the last run is over.
	if v := ask("--route", "orders"); len(v.Runs) != 2 || v.Runs[0].Epoch != 2 || v.Runs[0].End != lease.EndLost {
		t.Errorf("%+v", v)
	}
	n.put(t, n.keys.Owner("orders", "p0"), lease.Encode(lease.Owner{Node: "n2", Epoch: 2}))
	if v := ask("orders", "--node", "n2"); len(v.Runs) != 1 || v.Runs[0].End != "" {
		t.Errorf("%+v", v)
	}
	if res := n.ctl(t, "", "leases", "--history"); res.code != 2 {
		t.Errorf("history of everything: %+v", res)
	}
	if res := n.ctl(t, "", "leases", "nope", "--history"); res.code != 1 {
		t.Errorf("history of a route that is not there: %+v", res)
	}
}

func TestEventsWithoutAnyAreAnEmptyList(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if r := n.ctl(t, "", "events", "-o", "json"); r.code != 0 || !strings.Contains(r.out, `"events": []`) {
		t.Errorf("%+v", r)
	}
	if r := n.ctl(t, "", "backup", "-o", filepath.Join(t.TempDir(), "b")); r.code != 5 || !strings.Contains(r.err, "etcdctl") {
		t.Errorf("backup of a coordinator that is not embedded: %+v", r)
	}
}

func TestABackupThatBreaksOffLeavesTheOneBefore(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	file := write(t, "b", "the one before")
	if r := n.ctl(t, "", "backup", "-o", file); r.code == 0 {
		t.Fatal("a backup of nothing")
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "the one before" {
		t.Errorf("%q %v", text, err)
	}
}

func TestRatesAreOfTheSameOwnersCounters(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	look := func(owner string, written int64) api.Leases {
		return api.Leases{Leases: []api.Lease{
			{Route: "a", Partition: "p0", Owner: owner, State: lease.StateRunning, Lag: 5, Counters: &lease.Counters{Read: 2 * written, Written: written}},
			{Route: "a", Partition: "p1", State: lease.StateUnassigned, Lag: -1},
		}}
	}
	var m meter
	m.see(look("n1", 1000), at)
	top := m.see(look("n1", 1300), at.Add(3*time.Second))
	if r := top.Routes[0]; r.Written != 100 || r.Read != 200 || r.Running != 1 || r.Total != 2 || r.Lag != 5 {
		t.Errorf("route %+v", r)
	}
	if len(top.Nodes) != 1 || top.Nodes[0].Written != 100 {
		t.Errorf("nodes %+v", top.Nodes)
	}
	// Another owner counts from 0: that is no rate of minus a thousand.
	top = m.see(look("n2", 10), at.Add(4*time.Second))
	if top.Routes[0].Written != 0 {
		t.Errorf("after a move %+v", top.Routes[0])
	}
	// The window moves on.
	for i := range 20 {
		top = m.see(look("n2", 10), at.Add(time.Duration(5+i)*time.Second))
	}
	if len(m.samples) > 9 || top.Routes[0].Written != 0 {
		t.Errorf("%d samples, %+v", len(m.samples), top.Routes[0])
	}
}

func TestAdoptAndSetAskFirst(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if r := n.ctl(t, "", "apply", "-f", write(t, "r.yaml", plain)); r.code != 0 {
		t.Fatal(r)
	}
	if r := n.ctl(t, "", "checkpoint", "adopt", "orders"); r.code != 0 || !strings.Contains(r.out, "nothing to adopt") {
		t.Errorf("%+v", r)
	}
	kv, _, err := n.c.Get(t.Context(), n.keys.Route("orders"))
	if err != nil {
		t.Fatal(err)
	}
	route, err := lease.Decode[lease.Route](kv.Value)
	if err != nil {
		t.Fatal(err)
	}
	n.put(t, n.keys.Claimed(route.UID, "p0", "out"), lease.Encode(lease.Claimed{Store: "coordinator", Epoch: 3, Version: 4}))
	if r := n.ctl(t, "n\n", "checkpoint", "adopt", "orders"); r.code != 5 || !strings.Contains(r.err, "the record is gone") {
		t.Errorf("%+v", r)
	}
	if r := n.ctl(t, "y\n", "checkpoint", "adopt", "orders", "-o", "json"); r.code != 0 || !strings.Contains(r.out, `"starts anew at the beginning"`) {
		t.Errorf("%+v", r)
	}
	if r := n.ctl(t, "", "checkpoint", "adopt", "orders", "--yes"); r.code != 0 || !strings.Contains(r.out, "nothing to adopt") {
		t.Errorf("a second time: %+v", r)
	}
	if r := n.ctl(t, "", "checkpoint", "set", "orders", "p9", "4"); r.code != 1 {
		t.Errorf("a partition that is not there: %+v", r)
	}
}

func TestEventLinesCannotMoveTheCursor(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	eventLine(&b, events.Event{Node: "n1", Kind: "acquired", Route: "r", Partition: "p\x1b[2J", Epoch: 3})
	if s := b.String(); strings.Contains(s, "\x1b") || !strings.Contains(s, "acquired (epoch 3)") {
		t.Errorf("%q", s)
	}
}
