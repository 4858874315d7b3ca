package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/harness"
)

// A million records from a real broker into a real database on three nodes,
// while the busiest owner is killed, another one is frozen from outside and a
// third one freezes inside its transaction. Each record's row is there once, in
// order, and every record read is accounted for (invariant 4).
func TestKafkaToPostgresExactlyOnceThroughKillFreezeAndFreezeInsideTransaction(t *testing.T) {
	const (
		partitions = 8
		records    = 1_000_000
		during     = 48 * time.Second
	)
	ctx := ctxOf(t)
	kafka, pg := harness.Kafka(t), harness.Postgres(t)
	topic := kafka.Topic(t, partitions)
	db := pg.NewDatabase(t)
	harness.PostgresExec(t, db, `CREATE TABLE orders (ord bigserial, id bigint NOT NULL, p int NOT NULL, seq bigint NOT NULL, note text)`)

	f := newFleet(t, withHooks)
	must(t, f.Start("n1"))
	must(t, f.Start("n2"))
	env, fired := hooked(t, "tx.rows-sent@150=stop")
	must(t, f.Start("n3", env...))
	must(t, f.Voters(ctx, 3))
	apply(t, f, fmt.Sprintf(`routes:
  orders:
    input:
      kafka: {url: "%s", topic: "%s", group_id: orders}
    output:
      sqlx:
        url: "%s"
        insert_query: "INSERT INTO orders (id, p, seq, note) VALUES (${payload:id}, ${payload:p}, ${payload:seq}, ${payload:note})"
        bulk_copy: true
    required_delivery: exactly-once
`, kafka.Addr, topic, db))
	must(t, f.Until(ctx, time.Minute, "every partition runs", func(l fleet.Leases) bool { return l.Count("running", "") == partitions }))

	produced := make(chan error, 1)
	go func() { produced <- produce(ctx, kafka, topic, partitions, records, during) }()
	landed := func(n int) {
		t.Helper()
		must(t, fleet.Eventually(ctx, 2*time.Minute, func() error {
			if got := harness.PostgresValue[int](t, db, `SELECT count(*) FROM orders`); got < n {
				return fmt.Errorf("%d of %d rows", got, n)
			}
			return nil
		}))
	}
	moved := func(node string) { t.Helper(); must(t, f.MovedFrom(ctx, node, partitions)) }
	leases := func() fleet.Leases {
		t.Helper()
		l, err := f.Leases(ctx)
		must(t, err)
		return l
	}

	// n3 freezes itself with its rows sent and its fence and COMMIT not: it holds
	// a transaction open, with its locks.
	awaitFile(t, fired, time.Minute)
	f.MarkFrozen("n3")
	moved("n3")
	at := harness.PostgresValue[int](t, db, `SELECT count(*) FROM orders`)
	landed(at + 20_000) // the successors write although the zombie held its session
	f.Thaw("n3")

	victim := leases().Busiest("n3")
	f.Kill(victim)
	moved(victim)
	must(t, f.Start(victim))
	must(t, f.Voters(ctx, 3))

	frozen := leases().Busiest(victim)
	f.Freeze(frozen)
	moved(frozen)
	f.Thaw(frozen)

	must(t, <-produced)
	landed(records)
	var sum map[string]int64
	must(t, f.Until(ctx, time.Minute, "the counters add up", func(l fleet.Leases) bool {
		sum = map[string]int64{}
		for _, x := range l {
			for k, v := range x.Counters {
				sum[k] += v
			}
		}
		return sum["read"] > 0 && sum["read"] == sum["written"]+sum["covered"]+sum["filtered"]+sum["deduplicated"]+sum["dead_lettered"]+sum["dropped"]+sum["returned"]
	}))
	t.Logf("counters of the last owners: %v", sum)

	if n, d := harness.PostgresValue[int](t, db, `SELECT count(*) FROM orders`), harness.PostgresValue[int](t, db, `SELECT count(DISTINCT id) FROM orders`); n != records || d != records {
		t.Errorf("%d rows, %d distinct ids, want %d", n, d, records)
	}
	if n := harness.PostgresValue[int](t, db, `SELECT count(*) FROM (SELECT seq - lag(seq) OVER (PARTITION BY p ORDER BY ord) AS step FROM orders) s WHERE step <> 1`); n != 0 {
		t.Errorf("%d rows out of order in their partition", n)
	}
	noNoise(t, f, "n3", frozen)
}

// noNoise checks the log of a woken node: it says once per partition that it
// lost it, naming gate or fence, and neither panics nor loops.
func noNoise(t *testing.T, f *fleet.Fleet, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		log := f.Log(node)
		if strings.Contains(log, "goroutine ") {
			t.Errorf("%s printed a stack trace", node)
		}
		lost := map[string]int{}
		for line := range strings.Lines(log) {
			if strings.Contains(line, "lost ownership") {
				if !strings.Contains(line, "by=gate") && !strings.Contains(line, "by=fence") && !strings.Contains(line, "by=sink") {
					t.Errorf("%s does not say why: %s", node, line)
				}
				lost[field(line, "partition=")+"/"+field(line, "epoch=")]++
			}
		}
		if len(lost) == 0 {
			t.Errorf("%s did not say that it lost its partitions", node)
		}
		for p, n := range lost {
			if n != 1 {
				t.Errorf("%s said %d times that it lost %s", node, n, p)
			}
		}
	}
}

func field(line, key string) string {
	_, rest, _ := strings.Cut(line, key)
	v, _, _ := strings.Cut(rest, " ")
	return strings.TrimSpace(v)
}

// produce spreads records evenly over the partitions and the time. Ids are
// unique, seq counts within a partition.
func produce(ctx context.Context, kafka *harness.KafkaBroker, topic string, partitions, records int, during time.Duration) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.Addr), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return err
	}
	defer client.Close()
	var failed sync.Map
	const slices = 480
	tick := time.NewTicker(during / slices)
	defer tick.Stop()
	sent := 0
	for s := 1; s <= slices; s++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		for ; sent < records*s/slices; sent++ {
			p := sent % partitions
			value := []byte(`{"id":` + strconv.Itoa(sent+1) + `,"p":` + strconv.Itoa(p) + `,"seq":` + strconv.Itoa(sent/partitions) + `,"note":"order \"` + strconv.Itoa(sent) + `\" of many"}`)
			client.Produce(ctx, &kgo.Record{Topic: topic, Partition: int32(p), Value: value}, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Store(err.Error(), true)
				}
			})
		}
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	failed.Range(func(k, _ any) bool { err = fmt.Errorf("produce: %v", k); return false })
	return err
}
