package cluster

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/lease"
)

const (
	// debounce gathers the changes that one event causes (a node's death, an
	// apply of many routes). Where looking takes longer than that, changes are
	// gathered for as long as a look took, so that at most half a core goes into it.
	debounce = 5 * time.Millisecond
	// mirrorWait is how long the scheduler waits to see its own writes. They
	// come in milliseconds; the bound is for a write that changed nothing.
	mirrorWait = time.Second
	// retryWait is the pause after the coordinator failed.
	retryWait = 250 * time.Millisecond
	// callTimeout bounds one call to the coordinator.
	callTimeout = 5 * time.Second
)

// scheduler decides, while this node leads, which node gets which partition: it
// runs plan.Compute on every change and writes the difference. Each write
// compares the leader's key, so that what a deposed or frozen leader decided is
// refused. All that it knows is in the coordinator: a new leader goes on where
// the old one stopped, at any step.
type scheduler struct {
	cfg       *Config
	keys      lease.Keys
	session   *lease.Session
	election  *election
	mirrors   *mirrors
	tables    *tables
	specs     *specs
	tenure    *tenure
	handoffs  handoffs
	discovery *discovery
	log       *slog.Logger
	resignReq chan chan error
	resigned  bool // for good: the process is stopping

	// What the next plan must have seen.
	wroteAssignments, wrotePartitions int64
	wroteAt                           time.Time

	lead    context.Context // of this leadership; nil while another leads
	unlead  context.CancelFunc
	leading sync.WaitGroup
	stat    *statuses

	mu      sync.Mutex
	tookUp  time.Time // when this leadership began
	said    report
	changed chan struct{} // closed and replaced when said changed
}

// report is what the leader tells people.
type report struct {
	unplaced []plan.Unplaced
	// settling are the nodes that nothing moves to without need, until when.
	settling map[string]time.Time
}

// run schedules until ctx ends.
func (s *scheduler) run(ctx context.Context) {
	defer s.discovery.close()
	defer s.follow()
	for ctx.Err() == nil {
		changed, session := s.mirrors.Changed(), s.session.Changed()
		var hung <-chan struct{}
		if s.stat != nil {
			_, hung = s.stat.wedged()
		}
		looked := time.Now()
		wake := s.step(ctx)
		took := time.Since(looked)
		var timer <-chan time.Time
		if !wake.IsZero() {
			timer = time.After(max(time.Until(wake), debounce))
		}
		select {
		case <-changed:
			sleep(ctx, max(debounce, min(took, retryWait)))
		case <-hung:
		case <-session:
		case <-timer:
		case done := <-s.resignReq:
			s.resigned = true
			s.follow()
			done <- s.election.resign(ctx)
		case <-ctx.Done():
		}
	}
}

// resign gives leadership up and never campaigns again.
func (s *scheduler) resign(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case s.resignReq <- done:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sleep waits d out, or until ctx ends. It makes no timer that is over already: in a
// synctest bubble such timers upset the race detector (golang/go#78156).
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// step looks once and acts. It returns when to look again even if nothing
// changes; zero is never.
func (s *scheduler) step(ctx context.Context) (wake time.Time) {
	if !s.mirrors.synced() {
		return time.Time{}
	}
	s.tables.membership()
	now := time.Now()
	here := make(map[string]int64, len(s.tables.nodes.rows))
	for name, n := range s.tables.nodes.rows {
		here[name] = int64(n.Lease)
	}
	s.tenure.observe(now, here)

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.elect(ctx); err != nil {
		s.log.Debug("election", "error", err)
		return now.Add(retryWait)
	}
	if !s.election.leads() {
		s.follow()
		return s.tenure.next(now)
	}
	s.takeUp(now)
	s.tables.update()
	if behind := s.behind(now); !behind.IsZero() {
		return behind
	}
	if err := s.schedule(ctx, now); err != nil {
		s.log.Warn("scheduling", "term", s.election.term, "error", err)
		return now.Add(retryWait)
	}
	return earliest(s.tenure.next(now), s.handoffs.next(now))
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// elect finds out whether this node leads, and tries to if nobody does. A
// draining node leaves the seat to others as long as there are any.
func (s *scheduler) elect(ctx context.Context) error {
	snapshot := s.mirrors.scheduler.Snapshot()
	if s.election.deposed(snapshot) {
		s.follow() // also if the seat is won again right below: the guard is another
	}
	if s.resigned || s.tables.draining(s.cfg.Name) && s.othersServe() {
		return s.election.resign(ctx)
	}
	if s.election.reclaim(snapshot); s.election.leads() {
		return nil
	}
	return s.election.campaign(ctx, snapshot)
}

func (s *scheduler) othersServe() bool {
	for name := range s.tables.nodes.rows {
		if name != s.cfg.Name && !s.tables.draining(name) {
			return true
		}
	}
	return false
}

// takeUp begins what only the leader does.
func (s *scheduler) takeUp(now time.Time) {
	if s.lead != nil {
		return
	}
	s.tookUp = now
	s.lead, s.unlead = context.WithCancel(context.Background())
	s.stat = newStatuses(s.cfg.Coordinator, s.keys, s.log)
	lead, stat := s.lead, s.stat
	s.leading.Go(func() { stat.run(lead) })
	s.handoffs = handoffs{}
	s.wroteAssignments, s.wrotePartitions = 0, 0
}

// follow ends what only the leader does.
func (s *scheduler) follow() {
	if s.lead == nil {
		return
	}
	s.unlead()
	s.discovery.stop()
	s.leading.Wait()
	s.lead, s.unlead, s.stat = nil, nil, nil
	s.publish(report{})
}

// behind returns until when to wait for the mirrors to show our last writes: a
// plan on older assignments would move partitions that already moved, and one
// without this node, whose key was written before it could lead, would take away
// what it has begun to run.
func (s *scheduler) behind(now time.Time) time.Time {
	if here, ok := s.tables.nodes.rows[s.cfg.Name]; !ok || here.Lease != s.session.Lease() {
		if until := s.tookUp.Add(mirrorWait); now.Before(until) {
			return until
		}
	}
	if s.tables.assignments.rev >= s.wroteAssignments && s.tables.partitions.rev >= s.wrotePartitions {
		return time.Time{}
	}
	if until := s.wroteAt.Add(mirrorWait); now.Before(until) {
		return until
	}
	return time.Time{}
}

// schedule makes one plan and carries it out.
func (s *scheduler) schedule(ctx context.Context, now time.Time) error {
	s.specs.keep(s.tables.routes.rows)
	s.discovery.set(s.lead, s.election.guard(), s.targets(now))
	hung, _ := s.stat.wedged()
	in := s.input(now, hung)
	p := plan.Compute(in)
	s.publish(report{unplaced: p.Unplaced, settling: s.tenure.settling(now)})
	if err := s.assign(ctx, p); err != nil || !s.election.leads() {
		return err
	}
	if err := s.forget(ctx, now); err != nil || !s.election.leads() {
		return err
	}
	return s.evict(ctx, now, hung)
}

// wanted reports whether a route's partitions are to run. A spec that only this
// node cannot read is no reason to stop what others run.
func (s *scheduler) wanted(name string) bool {
	r, ok := s.tables.routes.rows[name]
	if !ok || r.value.Paused {
		return false
	}
	d := s.specs.of(name, r)
	return d.err != nil || d.spec.Enabled
}

func (s *scheduler) input(now time.Time, hung map[plan.Key]string) plan.Input {
	in := plan.Input{
		Assigned: make(map[plan.Key]string, len(s.tables.assignments.rows)),
		Owners:   make(map[plan.Key]string, len(s.tables.owners.rows)),
		Wedged:   hung,
		Moves:    s.cfg.Moves,
		Rules:    make(map[string]plan.Rule, len(s.tables.routes.rows)),
	}
	for name := range s.tables.nodes.rows {
		in.Nodes = append(in.Nodes, s.node(now, name))
	}
	wanted := make(map[string]bool, len(s.tables.routes.rows))
	for name := range s.tables.routes.rows {
		wanted[name] = s.wanted(name)
		in.Rules[name] = s.rule(name)
	}
	for k := range s.tables.partitions.rows {
		if p, ok := s.tables.partition(k); ok && wanted[k.Route] {
			in.Partitions = append(in.Partitions, plan.Partition{Key: k, Node: p.value.Node, Pin: s.tables.pin(k), Weight: p.value.Weight})
		}
	}
	for k := range s.tables.assignments.rows {
		if a, ok := s.tables.assignment(k); ok {
			in.Assigned[k] = a.value.Node
		}
	}
	for k, o := range s.tables.owners.rows {
		in.Owners[k] = o.value.Node
	}
	return in
}

func (s *scheduler) node(now time.Time, name string) plan.Node {
	return plan.Node{
		Name: name, Settled: s.tenure.settled(now, name), Draining: s.tables.draining(name),
		Excluded: s.tables.cordons.rows[name].value.Exclude, Labels: s.tables.nodes.rows[name].value.Labels,
	}
}

// rule is where a route's partitions may be: what its spec asks for, and the
// nodes that an operator excluded for it. Without a spec that can be read there
// is nothing to ask for.
func (s *scheduler) rule(name string) plan.Rule {
	var rule plan.Rule
	if d := s.specs.of(name, s.tables.routes.rows[name]); d.err == nil {
		rule.Labels, rule.Avoid = d.spec.Placement.Labels, d.spec.Placement.Exclude
	}
	for node, c := range s.tables.cordons.rows {
		if len(c.value.Routes) > 0 && s.tables.closed(node, name) {
			rule.Closed = append(rule.Closed, node)
		}
	}
	return rule
}

// assign writes what the plan changes, and takes away assignments of earlier
// routes of the same name.
func (s *scheduler) assign(ctx context.Context, p plan.Plan) error {
	ops := map[string]lease.Op{}
	for k, a := range s.tables.assignments.rows {
		if _, ok := s.tables.assignment(k); !ok {
			ops[a.Key] = lease.Delete(a.Key)
		}
	}
	reasons := map[plan.Reason]int{}
	for _, c := range p.Changes {
		key := s.keys.Assignment(c.Route, c.Partition)
		reasons[c.Reason]++
		if c.To == "" {
			ops[key] = lease.Delete(key)
			continue
		}
		ops[key] = lease.Put(key, lease.Encode(lease.Assignment{
			Node: c.To, Term: s.election.term, Generation: s.tables.routes.rows[c.Route].value.Generation,
		}))
		s.log.Debug("assign", "route", c.Route, "partition", c.Partition, "from", c.From, "to", c.To, "reason", c.Reason)
	}
	if len(ops) == 0 {
		return nil
	}
	for batch := range batches(ops) {
		rev, err := s.write(ctx, nil, batch)
		if err != nil || rev == 0 {
			return err
		}
		s.wroteAssignments, s.wroteAt = rev, time.Now()
	}
	if len(reasons) > 0 {
		s.log.Info("assignments changed", "term", s.election.term, "reasons", reasons, "unplaced", len(p.Unplaced), "more", p.Deferred)
	}
	return nil
}

// forget removes partitions and pins of routes that are gone, or that an earlier
// route of the same name left, and pins to nodes that are long gone.
func (s *scheduler) forget(ctx context.Context, now time.Time) error {
	var partitions, pins []lease.KV
	for k, p := range s.tables.partitions.rows {
		if _, ok := s.tables.partition(k); !ok {
			partitions = append(partitions, p.KV)
		}
	}
	for k, p := range s.tables.pins.rows {
		if s.tables.pin(k) == "" || s.tenure.gone(now, p.value.Node) {
			pins = append(pins, p.KV)
		}
	}
	rev, err := s.remove(ctx, partitions)
	if rev != 0 {
		s.wrotePartitions, s.wroteAt = rev, time.Now()
	}
	if err != nil || !s.election.leads() {
		return err
	}
	_, err = s.remove(ctx, pins)
	return err
}

// remove deletes keys as they were read, and returns the revision of the last
// deletion. What others rewrote meanwhile stays.
func (s *scheduler) remove(ctx context.Context, old []lease.KV) (last int64, err error) {
	for some := range slices.Chunk(old, txnOps-1) {
		compares := make([]lease.Compare, len(some))
		ops := make([]lease.Op, len(some))
		for i, kv := range some {
			compares[i], ops[i] = lease.ModRevisionIs(kv.Key, kv.ModRevision), lease.Delete(kv.Key)
		}
		rev, err := s.write(ctx, compares, ops)
		if err != nil || rev == 0 {
			return last, err
		}
		last = rev
	}
	return last, nil
}

// write makes one guarded transaction. It returns its revision; 0 if it was
// refused: by the guard, which ends this leadership, or by another compare, in
// which case the change that broke it brings the next step.
func (s *scheduler) write(ctx context.Context, compares []lease.Compare, ops []lease.Op) (int64, error) {
	res, err := s.cfg.Coordinator.Txn(ctx, append(s.election.guard(), compares...), ops)
	if err != nil {
		return 0, err
	}
	if res.Succeeded {
		return res.Revision, nil
	}
	kv, _, err := s.cfg.Coordinator.Get(ctx, s.keys.Scheduler())
	if err != nil {
		return 0, err
	}
	if kv == nil || kv.ModRevision != s.election.rev {
		s.election.lost()
		s.follow()
	}
	return 0, nil
}

// targets are the routes that the leader lists: all but those whose partitions
// each node finds on itself.
func (s *scheduler) targets(now time.Time) map[string]target {
	out := map[string]target{}
	for name, r := range s.tables.routes.rows {
		d := s.specs.of(name, r)
		if d.err != nil || d.placement == perNode || !s.wanted(name) {
			continue
		}
		t := target{name: name, uid: r.value.UID, generation: r.value.Generation, created: r.CreateRevision, spec: d.spec}
		if d.placement == oneNode {
			if t.pin = s.home(now, name); t.pin == "" {
				continue
			}
		}
		out[name] = t
	}
	return out
}

// home is the one node of a route whose output is on a node's own disk: where
// its partitions were first pinned, dead or alive, since their output is there;
// otherwise the node with least to do, which the first listing makes lasting.
func (s *scheduler) home(now time.Time, name string) string {
	var first plan.Key
	home := ""
	for k := range s.tables.partitions.rows {
		if k.Route != name || home != "" && k.Compare(first) >= 0 {
			continue
		}
		if p, ok := s.tables.partition(k); ok && p.value.Node != "" {
			first, home = k, p.value.Node
		}
	}
	if home != "" {
		return home
	}
	load := map[string]int{}
	for _, a := range s.tables.assignments.rows {
		load[a.value.Node]++
	}
	var candidates []string
	rule := s.rule(name)
	for node := range s.tables.nodes.rows {
		if !s.tables.draining(node) && !s.tables.closed(node, name) && rule.Bars(s.node(now, node)) == "" {
			candidates = append(candidates, node)
		}
	}
	if len(candidates) == 0 {
		return ""
	}
	return slices.MinFunc(candidates, func(a, b string) int {
		settled := func(n string) int {
			if s.tenure.settled(now, n) {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(settled(a), settled(b)), cmp.Compare(load[a], load[b]), cmp.Compare(a, b))
	})
}

// publish keeps what people are told.
func (s *scheduler) publish(r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(r.unplaced, s.said.unplaced) && maps.Equal(r.settling, s.said.settling) {
		return
	}
	if n := len(r.unplaced); n > 0 && n != len(s.said.unplaced) {
		s.log.Warn("partitions that no node can hold", "count", n,
			"route", r.unplaced[0].Route, "partition", r.unplaced[0].Partition, "reason", r.unplaced[0].Reason)
	}
	s.said = r
	close(s.changed)
	s.changed = make(chan struct{})
}

// reported returns what people are told, and a channel that is closed when that
// changes. It is never changed.
func (s *scheduler) reported() (report, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said, s.changed
}
