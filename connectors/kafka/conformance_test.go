package kafka

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sourcetest"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

func TestSource(t *testing.T) {
	b := harness.Kafka(t)
	adm := b.Admin(t)
	// A new broker makes its groups topic at the first question.
	harness.Eventually(t, 60*time.Second, func() error {
		_, err := adm.DescribeGroups(t.Context(), "first")
		return err
	})
	payload := func(i int) []byte {
		return fmt.Appendf(nil, `{"n":%d,"filler":"%s"}`, i, bytes.Repeat([]byte("x"), 80))
	}
	sourcetest.Run(t, sourcetest.Harness{
		// A reader without records wakes up once a second.
		Blocked: 200 * time.Millisecond,
		New: func(t *testing.T) *sourcetest.Subject {
			topic := b.Topic(t, 1)
			spec := &route.Spec{Name: "sourcetest", Enabled: true, MaxRecordBytes: 1000, OnError: route.OnErrorStop}
			return &sourcetest.Subject{
				Spec: spec,
				Open: func(t *testing.T) connectors.Source {
					s, err := Type().NewSource(&Config{URL: b.Addr, Topic: topic, GroupID: "g-" + topic, ConnectTimeout: 5 * time.Second}, spec, connectors.Env{})
					if err != nil {
						t.Fatal(err)
					}
					return s
				},
				Append: func(t *testing.T, from, n int) {
					records := make([]*kgo.Record, n)
					for i := range records {
						records[i] = &kgo.Record{Topic: topic, Value: payload(from + i)}
					}
					b.Produce(t, records...)
				},
				Payload:  payload,
				Resumes:  true,
				LoseHead: func(t *testing.T, n int) { b.DeleteRecords(t, topic, 0, int64(n)) },
				Replace: func(t *testing.T) {
					b.DeleteTopic(t, topic)
					b.CreateTopic(t, topic, 1)
					b.ProduceN(t, topic, 0, 0, 500)
				},
				AppendBad: func(t *testing.T) {
					b.Produce(t, &kgo.Record{Topic: topic, Value: make([]byte, 2000)})
				},
			}
		},
	})
}
