package e2e

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
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
	ctx := t.Context()
	kafka, pg := harness.Kafka(t), harness.Postgres(t)
	topic := kafka.Topic(t, partitions)
	db := pg.NewDatabase(t)
	harness.PostgresExec(t, db, `CREATE TABLE orders (ord bigserial, id bigint NOT NULL, p int NOT NULL, seq bigint NOT NULL, note text)`)

	f := fleettest.New(t, fleettest.Hooks)
	fleettest.Must(t, f.Start("n1"))
	fleettest.Must(t, f.Start("n2"))
	env, fired := fleettest.Hooked(t, "tx.rows-sent@150=stop")
	fleettest.Must(t, f.Start("n3", env...))
	fleettest.Must(t, f.Voters(ctx, 3))
	fleettest.Apply(t, f, fmt.Sprintf(`routes:
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
	fleettest.Must(t, f.Until(ctx, time.Minute, "every partition runs", func(l fleet.Leases) bool { return l.Count("running", "") == partitions }))

	produced := make(chan error, 1)
	go func() { produced <- produce(ctx, kafka, topic, partitions, records, during) }()
	landed := func(n int) {
		t.Helper()
		fleettest.Must(t, fleet.Eventually(ctx, 2*time.Minute, func() error {
			if got := harness.PostgresValue[int](t, db, `SELECT count(*) FROM orders`); got < n {
				return fmt.Errorf("%d of %d rows", got, n)
			}
			return nil
		}))
	}
	moved := func(node string) { t.Helper(); fleettest.Must(t, f.MovedFrom(ctx, node, partitions)) }
	leases := func() fleet.Leases {
		t.Helper()
		l, err := f.Leases(ctx)
		fleettest.Must(t, err)
		return l
	}

	// n3 freezes itself with its rows sent and its fence and COMMIT not: it holds
	// a transaction open, with its locks.
	fleettest.AwaitFile(t, fired, time.Minute)
	f.MarkFrozen("n3")
	moved("n3")
	at := harness.PostgresValue[int](t, db, `SELECT count(*) FROM orders`)
	landed(at + 20_000) // the successors write although the zombie held its session
	f.Thaw("n3")

	victim := leases().Busiest("n3")
	f.Kill(victim)
	moved(victim)
	fleettest.Must(t, f.Start(victim))
	fleettest.Must(t, f.Voters(ctx, 3))

	frozen := leases().Busiest(victim)
	f.Freeze(frozen)
	moved(frozen)
	f.Thaw(frozen)

	fleettest.Must(t, <-produced)
	landed(records)
	var sum map[string]int64
	fleettest.Must(t, f.Until(ctx, time.Minute, "the counters add up", func(l fleet.Leases) bool {
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
	fleettest.NoNoise(t, f, "n3", frozen)
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
