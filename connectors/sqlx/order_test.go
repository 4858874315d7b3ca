package sqlx_test

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/test/harness"
)

// Rows of different sizes do not stand in a table in the order in which they came:
// one that fits goes into a page with room left by a longer one.
func TestAnOlderRowOfAKeyNeverWinsWhereRowsDifferInSize(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (k int PRIMARY KEY, n int, v text, mqb_order int)")
	r := start(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: []string{"k"}}, 1)
	random := rand.New(rand.NewSource(1))
	last := map[int]int{}
	if err := r.commit(t.Context(), batchOf(3000, func(i int) string {
		k := random.Intn(1000)
		last[k] = i
		return fmt.Sprintf(`{"k":%d,"n":%d,"v":"%s"}`, k, i, strings.Repeat("x", random.Intn(1500)))
	})); err != nil {
		t.Fatal(err)
	}
	var want int
	for _, n := range last {
		want += n
	}
	expect(t, url, "SELECT sum(n) FROM t", fmt.Sprint(want))
}
