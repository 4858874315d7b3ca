package sqlx_test

import (
	"context"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/test/harness"
)

// BenchmarkCommit writes rows of the comparison's shape in transactions of 16,384
// and fills the next one while the last one commits; an op is a row.
func BenchmarkCommit(b *testing.B) {
	const perTxn, perBatch = 16384, 1024
	for _, way := range []struct {
		name, table string
		cfg         sqlx.Config
	}{
		{"copy", ordersTable, sqlx.Config{InsertQuery: ordersQuery, BulkCopy: true}},
		{"copy with primary key", ordersTable + "; ALTER TABLE t ADD PRIMARY KEY (id)", sqlx.Config{InsertQuery: ordersQuery, BulkCopy: true}},
		{"insert", ordersTable, sqlx.Config{InsertQuery: ordersQuery}},
		{"insert do nothing", ordersTable + "; ALTER TABLE t ADD PRIMARY KEY (id)", sqlx.Config{InsertQuery: ordersQuery + " ON CONFLICT DO NOTHING"}},
		{"upsert", ordersTable + "; ALTER TABLE t ADD PRIMARY KEY (id)", sqlx.Config{InsertQuery: ordersQuery + " ON CONFLICT (id) DO UPDATE SET amount = excluded.amount"}},
		{"columns", ordersTable, sqlx.Config{Table: "t", Columns: "auto"}},
		{"columns with a key", ordersTable + "; ALTER TABLE t ADD PRIMARY KEY (id)", sqlx.Config{Table: "t", Columns: "auto", Key: []string{"id"}}},
		{"payload", "CREATE TABLE t (id bigserial PRIMARY KEY, payload bytea)", sqlx.Config{Table: "t"}},
	} {
		b.Run(way.name, func(b *testing.B) {
			way.cfg.URL = harness.Postgres(b).NewDatabase(b)
			harness.PostgresExec(b, way.cfg.URL, way.table)
			r := start(b, way.cfg, 1)
			var batches []*message.Batch
			for n := 0; n < b.N; n += perBatch {
				batches = append(batches, batchOf(min(perBatch, b.N-n), func(i int) string { return orderJSON(n + i) }))
			}
			b.ReportAllocs()
			b.ResetTimer()
			gathered := make(chan connectors.Txn)
			go func() {
				defer close(gathered)
				txn := r.writer.Begin()
				for _, batch := range batches {
					if err := txn.Add(batch, 0, batch.Len()); err != nil {
						b.Error(err)
						return
					}
					if txn.Rows() >= perTxn {
						gathered <- txn
						txn = r.writer.Begin()
					}
				}
				gathered <- txn
			}()
			for txn := range gathered {
				if err := r.commitTxn(context.Background(), txn); err != nil {
					b.Error(err)
				}
				txn.Discard()
			}
			b.StopTimer()
			if n := harness.PostgresValue[int](b, way.cfg.URL, "SELECT count(*) FROM t"); n != b.N {
				b.Fatalf("%d rows of %d", n, b.N)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// The work of one row that the sink adds allocates nothing; what is left is per
// transaction.
func TestCommitAllocatesPerTransactionNotPerRow(t *testing.T) {
	for name, cfg := range map[string]sqlx.Config{
		"copy":    {InsertQuery: ordersQuery, BulkCopy: true},
		"columns": {Table: "t", Columns: "auto"},
		"upsert":  {Table: "t", Columns: "auto", Key: []string{"id"}},
	} {
		cfg.URL = harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, cfg.URL, ordersTable+"; CREATE UNIQUE INDEX ON t (id)")
		r := start(t, cfg, 1)
		var batches []*message.Batch
		for n := range 6 {
			batches = append(batches, batchOf(5000, func(i int) string { return []func(int) string{orderJSON, orderText}[i%2](5000*n + i) }))
		}
		next := 0
		got := testing.AllocsPerRun(len(batches)-1, func() {
			if err := r.commit(context.Background(), batches[next]); err != nil {
				t.Fatal(err)
			}
			next++
		})
		if got > 500 {
			t.Errorf("%s: %v allocations for a transaction of 5000 rows", name, got)
		}
	}
}
