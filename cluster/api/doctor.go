package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/lease"
)

// Verdict of a check.
type Verdict string

const (
	VerdictOK   Verdict = "ok"
	VerdictWarn Verdict = "warn"
	VerdictFail Verdict = "fail"
)

// Check is one line of a doctor's report.
type Check struct {
	Verdict Verdict `json:"verdict"`
	// Check names what was looked at; the names are stable.
	Check string `json:"check"`
	// Subject is the node, route or store, "" for the cluster.
	Subject string `json:"subject,omitempty"`
	Detail  string `json:"detail"`
	// Advice says what to do; "" where there is nothing to do.
	Advice string `json:"advice,omitempty"`
}

// Report is the answer of GET /v1/doctor.
type Report struct {
	Checks []Check `json:"checks"`
	// Failed and Warned count them.
	Failed int `json:"failed"`
	Warned int `json:"warned"`
}

// Vitals are what a node measures of itself.
type Vitals struct {
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Time    time.Time `json:"time"` // by its wall clock
	// NotReady is why it cannot do its work, "" if it can.
	NotReady string        `json:"not_ready,omitempty"`
	Lease    lease.Margins `json:"lease"`
	// Write is how long the coordinator took for one small write; WriteError is
	// set instead if it took none.
	Write      time.Duration `json:"write"`
	WriteError string        `json:"write_error,omitempty"`
	// Commits a second that the node's partitions make in the coordinator.
	Commits float64 `json:"commits"`
	// DataDir and the bytes of its file system that are free and that it has; 0
	// where the system does not say.
	DataDir   string `json:"data_dir"`
	DiskFree  uint64 `json:"disk_free"`
	DiskTotal uint64 `json:"disk_total"`
}

// Member is one node of the embedded raft.
type Member struct {
	Node, Address            string
	Voter, Leader, Reachable bool
}

// Bounds that doctor judges by.
const (
	// CommitBound is how many commits a second the coordinator should be asked
	// for by checkpoints: each is an entry of its log, and beside them leases must
	// be kept alive in time.
	CommitBound = 500
	// skewBound is how far wall clocks may differ before times in the output
	// confuse people. Nothing else depends on them (invariant 7).
	skewBound = 2 * time.Second

	diskWarn, diskFail = 1 << 30, 100 << 20
)

const (
	storeTimeout = 15 * time.Second
	// vitalsTimeout is longer than a node takes whose coordinator does not answer.
	vitalsTimeout = 5 * time.Second
)

// doctor looks at everything; with local=true it measures this node alone.
func (s *Server) doctor(r *http.Request) (any, error) {
	ctx := r.Context()
	local, err := boolean(r.URL.Query(), "local")
	if err != nil {
		return nil, err
	}
	if local {
		if s.cfg.Vitals == nil {
			return Vitals{Node: s.cfg.Node, Version: s.cfg.Version, Time: time.Now()}, nil
		}
		return s.cfg.Vitals(ctx), nil
	}
	var report Report
	var mu sync.Mutex
	add := func(c ...Check) {
		mu.Lock()
		defer mu.Unlock()
		report.Checks = append(report.Checks, c...)
	}
	var wg sync.WaitGroup
	wg.Go(func() { add(s.checkMembers(ctx)...) })
	wg.Go(func() { add(s.checkNodes(ctx)...) })
	wg.Go(func() { add(s.checkStores(ctx)...) })
	wg.Wait()
	slices.SortStableFunc(report.Checks, func(a, b Check) int {
		return cmp.Or(cmp.Compare(checkOrder[a.Check], checkOrder[b.Check]), cmp.Compare(a.Subject, b.Subject))
	})
	for _, c := range report.Checks {
		switch c.Verdict {
		case VerdictFail:
			report.Failed++
		case VerdictWarn:
			report.Warned++
		}
	}
	return report, nil
}

// The names of the checks, in the order of a report.
const (
	checkQuorum    = "quorum"
	checkWrite     = "coordinator-write"
	checkScheduler = "scheduler"
	checkNode      = "node"
	checkLease     = "lease"
	checkClock     = "clock"
	checkVersions  = "versions"
	checkDisk      = "disk"
	checkLoad      = "checkpoint-load"
	checkStore     = "checkpoint-store"
)

var checkOrder = func() map[string]int {
	m := map[string]int{}
	for i, name := range []string{checkQuorum, checkWrite, checkScheduler, checkNode, checkLease, checkClock, checkVersions, checkDisk, checkLoad, checkStore} {
		m[name] = i
	}
	return m
}()

// checkMembers judges the embedded raft.
func (s *Server) checkMembers(ctx context.Context) []Check {
	if s.cfg.Members == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	var leader string
	var voters, live int
	var gone []string
	for _, m := range s.cfg.Members(ctx) {
		if m.Leader {
			leader = m.Node
		}
		if m.Voter {
			voters++
			if m.Reachable {
				live++
			}
		}
		if !m.Reachable {
			gone = append(gone, m.Node+" at "+m.Address)
		}
	}
	c := Check{Verdict: VerdictOK, Check: checkQuorum,
		Detail: fmt.Sprintf("%d of %d voters reachable, leader %s", live, voters, cmp.Or(leader, "none"))}
	if len(gone) > 0 {
		c.Verdict = VerdictWarn
		c.Detail += "; not reachable: " + strings.Join(gone, ", ")
		c.Advice = "start them again; a node that will not come back goes with mqbctl nodes remove"
	}
	switch {
	case live <= voters/2:
		c.Verdict = VerdictFail
		c.Advice = "more than half of the voters must live: start them again, or restore a backup (mqbd restore)"
	case leader == "":
		c.Verdict = VerdictFail
		c.Advice = "wait for an election; if none succeeds, look at the network between the voters"
	case voters == 2 && c.Verdict == VerdictOK:
		c.Verdict = VerdictWarn
		c.Advice = "two voters survive no loss: join a third node"
	}
	return []Check{c}
}

// checkNodes asks every node for its vitals.
func (s *Server) checkNodes(ctx context.Context) []Check {
	var own Vitals
	var others map[string]Vitals
	var unreachable []Unreachable
	asked := time.Now()
	var wg sync.WaitGroup
	if s.cfg.Vitals != nil {
		wg.Go(func() { own = s.cfg.Vitals(ctx) })
	}
	wg.Go(func() { others, unreachable = askPeers[Vitals](ctx, s, vitalsTimeout, "/v1/doctor?local=true") })
	wg.Wait()
	answered := time.Now()

	var out []Check
	for _, u := range unreachable {
		if u.Node == "coordinator" {
			continue // its own line says so
		}
		out = append(out, Check{VerdictFail, checkNode, u.Node, "no answer: " + u.Error,
			"its lease lives, so it runs: look at the network, or at a process that is frozen"})
	}
	nodes := map[string]Vitals{s.cfg.Node: own}
	maps.Copy(nodes, others)
	if s.cfg.Vitals == nil {
		delete(nodes, s.cfg.Node)
	}
	versions := map[string][]string{}
	var commits float64
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		v := nodes[name]
		out = append(out, checkVitals(name, v)...)
		if name != s.cfg.Node {
			out = append(out, checkSkew(name, v.Time, asked, answered))
		}
		versions[v.Version] = append(versions[v.Version], name)
		commits += v.Commits
	}
	out = append(out, checkVersionsOf(versions), checkCommits(commits))
	return append(out, s.checkScheduler(ctx))
}

func checkVitals(name string, v Vitals) []Check {
	node := Check{VerdictOK, checkNode, name, "ready, version " + v.Version, ""}
	if v.NotReady != "" {
		node.Verdict, node.Detail, node.Advice = VerdictFail, "not ready: "+v.NotReady, "its log says more"
	}
	write := Check{VerdictOK, checkWrite, name, fmt.Sprintf("a write took %s", round(v.Write)), ""}
	switch {
	case v.WriteError != "":
		write.Verdict, write.Detail = VerdictFail, v.WriteError
		write.Advice = "without the coordinator nothing is acquired, and what runs suspends itself"
	case v.Lease.TryTimeout > 0 && v.Write > v.Lease.TryTimeout/2:
		write.Verdict = VerdictWarn
		write.Advice = fmt.Sprintf("a keepalive may take %s: look at the disks of the voters and at the network", round(v.Lease.TryTimeout))
	}
	l := Check{VerdictOK, checkLease, name, fmt.Sprintf("ttl %s, margin %s, a keepalive each %s; proven for %s more",
		v.Lease.TTL, v.Lease.Margin, v.Lease.Interval, round(v.Lease.Left)), ""}
	switch {
	case v.Lease.Left <= 0:
		l.Verdict, l.Advice = VerdictFail, "the gate is closed: the node cannot prove its lease and writes nothing"
	case v.Lease.Left < v.Lease.Interval:
		l.Verdict, l.Advice = VerdictWarn, "keepalives come late: look at the machine's load, or set a longer --lease-ttl"
	}
	out := []Check{node, write, l}
	if v.DiskTotal > 0 {
		d := Check{VerdictOK, checkDisk, name, fmt.Sprintf("%s: %s of %s free", v.DataDir, size(v.DiskFree), size(v.DiskTotal)), ""}
		const advice = "make room: a coordinator that cannot write its log stops, and with it the node"
		switch {
		case v.DiskFree < diskFail:
			d.Verdict, d.Advice = VerdictFail, advice
		case v.DiskFree < diskWarn, v.DiskFree < v.DiskTotal/20:
			d.Verdict, d.Advice = VerdictWarn, advice
		}
		out = append(out, d)
	}
	return out
}

// checkSkew compares a wall clock with ours, as far as the time of the question
// allows. It is about what people read, nothing else.
func checkSkew(name string, theirs, asked, answered time.Time) Check {
	skew := max(theirs.Sub(answered), asked.Sub(theirs), 0)
	c := Check{VerdictOK, checkClock, name, "its wall clock agrees", ""}
	if skew > skewBound {
		c.Verdict, c.Detail = VerdictWarn, fmt.Sprintf("its wall clock differs by %s at least", round(skew))
		c.Advice = "set the clocks by NTP: times in leases and events mislead, though nothing is decided by them"
	}
	return c
}

func checkVersionsOf(versions map[string][]string) Check {
	if len(versions) <= 1 {
		return Check{VerdictOK, checkVersions, "", "all nodes run the same version", ""}
	}
	var list []string
	for _, v := range slices.Sorted(maps.Keys(versions)) {
		list = append(list, v+" on "+strings.Join(versions[v], ", "))
	}
	return Check{VerdictWarn, checkVersions, "", strings.Join(list, "; "), "finish the upgrade"}
}

func checkCommits(n float64) Check {
	c := Check{VerdictOK, checkLoad, "", fmt.Sprintf("%.0f commits a second in the coordinator, %d are fine", n, CommitBound), ""}
	if n > CommitBound {
		c.Verdict = VerdictWarn
		c.Advice = "raise checkpoint_interval or roll, or move checkpoints out of the coordinator: mqbctl checkpoint adopt ROUTE --store URL"
	}
	return c
}

func (s *Server) checkScheduler(ctx context.Context) Check {
	c := Check{VerdictFail, checkScheduler, "", "", "no partition moves or starts until a node is elected; see its log"}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	kv, _, err := s.cfg.Coordinator.Get(ctx, s.cfg.Keys.Scheduler())
	switch {
	case err != nil:
		c.Detail = err.Error()
	case kv == nil:
		c.Detail = "no node is the scheduler"
	default:
		l, _ := lease.Decode[lease.Leader](kv.Value)
		return Check{VerdictOK, checkScheduler, "", fmt.Sprintf("%s, term %d", l.Node, l.Term), ""}
	}
	return c
}

// checkStores probes the store of each route, from this node.
func (s *Server) checkStores(ctx context.Context) []Check {
	list, err := s.cfg.Catalog.List(ctx)
	if err != nil {
		return []Check{{VerdictFail, checkStore, "", "routes cannot be read: " + err.Error(), ""}}
	}
	var mu sync.Mutex
	var out []Check
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, e := range list {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			probing, cancel := context.WithTimeout(ctx, storeTimeout)
			defer cancel()
			c := s.checkStore(probing, e)
			mu.Lock()
			out = append(out, c)
			mu.Unlock()
		})
	}
	wg.Wait()
	return out
}

func (s *Server) checkStore(ctx context.Context, e catalog.Entry) Check {
	began := time.Now()
	store, err := s.cfg.Catalog.Probe(ctx, e)
	var unsafe *catalog.UnsafeStoreError
	switch {
	case err == nil:
		return Check{VerdictOK, checkStore, e.Name, fmt.Sprintf("%s compares and writes in one step (%s)", store, round(time.Since(began))), ""}
	case errors.Is(err, catalog.ErrLocalStore):
		return Check{VerdictOK, checkStore, e.Name, store + " is on one node's disk, so it is not looked at from here", ""}
	case errors.As(err, &unsafe):
		return Check{VerdictFail, checkStore, e.Name, err.Error(), "this store cannot fence: upgrade it, or use another one"}
	}
	return Check{VerdictFail, checkStore, e.Name, AsError(err).Message, "the route cannot commit while its store does not answer"}
}

func round(d time.Duration) time.Duration {
	if d >= time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}

func size(n uint64) string {
	v, unit := float64(n), 0
	for v >= 1024 && unit < 5 {
		v, unit = v/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTP"[unit-1])
}
