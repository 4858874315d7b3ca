package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	kafka := harness.Kafka(t)
	for _, step := range []string{"run.claimed", "kafka.buffered", "kafka.answered", "commit.before-write", "after.position-committed"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			dir, topic := t.TempDir(), kafka.Topic(t, 1)
			in := fleettest.CSV(t, dir, "in.csv", 1, crashRows)
			spec := fleettest.Write(t, dir, "spec.yaml", slowly(in, fmt.Sprintf("      kafka: {url: %q, topic: %q}", kafka.Addr, topic), "required_delivery: at-least-once"))
			killed(t, step, []string{"run", spec, "--data-dir", filepath.Join(dir, "state")}, nil)
			checkTopic(t, kafka, topic, crashRows)
		})
	}
}

// What a topic refuses goes to another topic, and everything else is written. kill -9
// around the letters: none is missing, and one that is there twice has the same id.
func TestWhatKafkaRefusesIsDeadLetteredInKafkaWhateverIsKilled(t *testing.T) {
	t.Parallel()
	const rows = 1000
	bin, kafka := fleettest.Build(t, fleettest.Hooks), harness.Kafka(t)
	refused := map[int]bool{1: true, 300: true, 301: true, 1000: true}
	var text strings.Builder
	for i := 1; i <= rows; i++ {
		filler := ""
		if refused[i] {
			filler = strings.Repeat("x", 5000)
		}
		fmt.Fprintf(&text, `{"id":%d,"filler":"%s"}`+"\n", i, filler)
	}
	for _, hook := range []string{"", "dlq.verdicts-committed@1", "dlq.verdicts-committed@2", "dlq.written@1", "dlq.written@2", "commit.before-write@3"} {
		t.Run(cmp.Or(hook, "nothing is killed"), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			topic, letters := kafka.Topic(t, 1, "max.message.bytes", "2000"), kafka.Topic(t, 1)
			spec := fleettest.Write(t, dir, "spec.yaml", fmt.Sprintf(`routes:
  r:
    input:
      file: {path: "%s", format: raw}
    output:
      kafka: {url: "%s", topic: "%s"}
      middlewares: [{dlq: {endpoint: {kafka: {url: "%s", topic: "%s"}}}}]
    batch_size: 50
    checkpoint_interval: 10ms
`, fleettest.Write(t, dir, "in.jsonl", text.String()), kafka.Addr, topic, kafka.Addr, letters))
			run := []string{"run", spec, "--data-dir", filepath.Join(dir, "state")}
			if hook != "" {
				env, fired := fleettest.Hooked(t, hook+"=kill")
				out, _ := runWith(t.Context(), env, filepath.Join(bin, "mqbctl"), run...)
				if _, err := os.Stat(fired); err != nil {
					t.Fatalf("the hook never fired: %v\n%s", err, out)
				}
			}
			if _, err := fleet.Run(t.Context(), filepath.Join(bin, "mqbctl"), run...); err != nil {
				t.Fatal(err)
			}
			written := map[int]int{}
			for _, r := range topicOf(t, kafka, topic) {
				written[r.row]++
			}
			ids := map[int]string{}
			for _, r := range topicOf(t, kafka, letters) {
				id := r.headers["mqb.id"]
				if before, twice := ids[r.row]; id == "" || twice && before != id || !strings.Contains(r.headers["mqb.dlq.error"], "max.message.bytes") {
					t.Errorf("letter of row %d: id %q, before %q, headers %v", r.row, id, before, r.headers)
				}
				ids[r.row] = id
			}
			for i := 1; i <= rows; i++ {
				if _, lettered := ids[i]; lettered != refused[i] || refused[i] == (written[i] > 0) {
					t.Errorf("row %d: written %d times, dead letter %v", i, written[i], lettered)
				}
			}
		})
	}
}

type written struct {
	row     int
	headers map[string]string
}

// topicOf reads a topic of one partition.
func topicOf(t *testing.T, kafka *harness.KafkaBroker, topic string) (out []written) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ends, err := kafka.Admin(t).ListEndOffsets(ctx, topic)
	fleettest.Must(t, err)
	c := kafka.Client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	for int64(len(out)) < ends[topic][0].Offset {
		f := c.PollFetches(ctx)
		fleettest.Must(t, f.Err())
		for _, r := range f.Records() {
			var row struct{ ID json.Number }
			fleettest.Must(t, json.Unmarshal(r.Value, &row))
			i, err := row.ID.Int64()
			fleettest.Must(t, err)
			w := written{int(i), map[string]string{}}
			for _, h := range r.Headers {
				w.headers[h.Key] = string(h.Value)
			}
			out = append(out, w)
		}
	}
	return out
}

// checkTopic: rows 1 to n are there in order, but for a stretch that is there again,
// under the same ids.
func checkTopic(t *testing.T, kafka *harness.KafkaBroker, topic string, n int) {
	t.Helper()
	ids, last, repeats, starts := map[int]string{}, 0, 0, 0
	for _, r := range topicOf(t, kafka, topic) {
		id := r.headers["mq_bridge.message_id"]
		if before, twice := ids[r.row]; twice {
			if repeats++; before != id {
				t.Fatalf("row %d is there under the ids %x and %x", r.row, before, id)
			}
		}
		ids[r.row] = id
		if r.row != last+1 {
			if starts++; r.row > last {
				t.Fatalf("row %d stands behind row %d", r.row, last)
			}
		}
		last = r.row
	}
	unique := map[string]bool{}
	for i := 1; i <= n; i++ {
		id, there := ids[i]
		if !there || len(id) != 16 || unique[id] {
			t.Fatalf("row %d: there %v, id %x", i, there, id)
		}
		unique[id] = true
	}
	// A run repeats what it wrote since its last commit, which here are a few batches.
	if starts > crashRounds || repeats >= n {
		t.Errorf("%d rows are there twice, after %d steps back", repeats, starts)
	}
}
