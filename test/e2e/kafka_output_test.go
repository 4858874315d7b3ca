package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
	"github.com/mqbridge/mqb/test/harness"
)

// kill -9 at each step of writing into Kafka, early and late: nothing is lost, which
// is what the route promises, and what is there twice can be told by its id.
func TestKillAtAnyStepOfWritingToKafkaLosesNothing(t *testing.T) {
	t.Parallel()
	const rows = 2000
	bin, kafka := fleettest.Build(t, fleettest.Hooks), harness.Kafka(t)
	for _, step := range []string{"run.claimed", "kafka.buffered", "kafka.answered", "commit.before-write", "after.position-committed"} {
		for _, pass := range []int{1, 4} {
			if step == "run.claimed" && pass > 1 {
				continue // it is passed once a run
			}
			t.Run(fmt.Sprintf("%s@%d", step, pass), func(t *testing.T) {
				t.Parallel()
				dir, topic := t.TempDir(), kafka.Topic(t, 1)
				spec := fleettest.Write(t, dir, "spec.yaml", fmt.Sprintf(`routes:
  r:
    input:
      file: {path: "%s", format: csv}
    output:
      kafka: {url: "%s", topic: "%s"}
    batch_size: 20
    checkpoint_interval: 10ms
    required_delivery: at-least-once
`, fleettest.CSV(t, dir, "in.csv", 1, rows), kafka.Addr, topic))
				run := []string{"run", spec, "--data-dir", filepath.Join(dir, "state")}
				env, fired := fleettest.Hooked(t, fmt.Sprintf("%s@%d=kill", step, pass))
				out, err := runWith(t.Context(), env, filepath.Join(bin, "mqbctl"), run...)
				if err == nil {
					t.Fatal("the run was not killed")
				}
				if _, err := os.Stat(fired); err != nil {
					t.Fatalf("the hook never fired: %v\n%s", err, out)
				}
				if _, err := fleet.Run(t.Context(), filepath.Join(bin, "mqbctl"), run...); err != nil {
					t.Fatal(err)
				}
				checkTopic(t, kafka, topic, rows)
			})
		}
	}
}

// checkTopic reads a topic of one partition: rows 1 to n are there in order, but for
// a stretch that is there again, under the same ids.
func checkTopic(t *testing.T, kafka *harness.KafkaBroker, topic string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ends, err := kafka.Admin(t).ListEndOffsets(ctx, topic)
	fleettest.Must(t, err)
	c := kafka.Client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	ids, last, repeats, starts := map[int]string{}, 0, 0, 0
	for read := int64(0); read < ends[topic][0].Offset; {
		f := c.PollFetches(ctx)
		fleettest.Must(t, f.Err())
		for _, r := range f.Records() {
			read++
			var row struct{ ID json.Number }
			fleettest.Must(t, json.Unmarshal(r.Value, &row))
			i, err := row.ID.Int64()
			fleettest.Must(t, err)
			id := ""
			for _, h := range r.Headers {
				if h.Key == "mq_bridge.message_id" {
					id = string(h.Value)
				}
			}
			if before, twice := ids[int(i)]; twice {
				if repeats++; before != id {
					t.Fatalf("row %d is there under the ids %x and %x", i, before, id)
				}
			}
			ids[int(i)] = id
			if int(i) != last+1 {
				if starts++; int(i) > last {
					t.Fatalf("row %d stands behind row %d", i, last)
				}
			}
			last = int(i)
		}
	}
	unique := map[string]bool{}
	for i := 1; i <= n; i++ {
		id, there := ids[i]
		if !there || len(id) != 16 || unique[id] {
			t.Fatalf("row %d: there %v, id %x", i, there, id)
		}
		unique[id] = true
	}
	if starts > 1 || repeats >= n {
		t.Errorf("%d rows are there twice, after %d steps back", repeats, starts)
	}
}
