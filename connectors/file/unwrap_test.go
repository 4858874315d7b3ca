package file

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/mqbridge/mqb/jsontext"
	"github.com/mqbridge/mqb/message"
)

func describe(b *message.Batch) string {
	var s bytes.Buffer
	for i := range b.Len() {
		fmt.Fprintf(&s, "%d %d %q", b.Msg(i).Ordinal, b.Msg(i).Next, b.Payload(i))
		for j := range b.MetaLen(i) {
			k, v := b.MetaAt(i, j)
			fmt.Fprintf(&s, " %q=%q", k, v)
		}
		s.WriteByte('\n')
	}
	return s.String()
}

func FuzzQuickEnvelopesAreThoseOfEncodingJSON(f *testing.F) {
	for _, s := range []string{
		`{"message_id":"1","payload":"a\n\"b","metadata":{"k":"v","l":"\u00e4"}}`, `{"message_id":12,"payload_base64":"/w=="}`,
		` { "payload" : {"a":[1]} , "message_id" : "x" } `, `{"message_id":"1","payload":null}`, `{"message_id":"1","payload":[1,2],"metadata":{"mq_bridge.payload_bytes":"1"}}`,
		`{"message_id":"1","payload":"a","payload":"b"}`, `{"message_id":"1","Payload":"a"}`, `{"message_id":"1","payload":"a","metadata":{"b":"1","a":"2"}}`,
		`{"message_id":"1","payload":"a","metadata":{"mqb.id":"own","mqb.src.x":"y"}}`, `{"message_id":"a\"b","payload":"a"}`, `{"message_id":"1","payload":"a"}x`,
		`{"message_id":"","payload":""}`, `{"message_id":"1","payload":"a","metadata":{"a":"1","a":"2"}}`, "{\"message_id\":\"1\",\"payload\":\"\xff\"}", `{"message_id":"1","payload":"a","metadata":null}`,
		`{"message_id":"1","payload":"\ud800"}`, `{"a":1}`, `{"payloaD":1}`, "[1]", "x", `{"message_id":"1","payload":[1]}`, `{"message_id":"1","payload":[1],"metadata":{"mq_bridge.payload_bytes":"0","b":""}}`, `{"message_id":"1","payload":"","payload_base64":""}`, `{"message_id":-1,"payload":1e5}`, `{"message_id":"1","payload_base64":"/w"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if bytes.IndexByte(line, '\n') >= 0 {
			return
		}
		for _, asJSON := range []bool{false, true} {
			quick, slow := message.NewBatch(), message.NewBatch()
			was := unwrap(quick, line, 3, 4, asJSON)
			if was != unwrapped && (quick.Len() > 0 || quick.Bytes() > 0) {
				t.Fatalf("%q: something was left behind", line)
			}
			switch was {
			case undecided:
				continue
			case unwrapped:
				if !jsontext.Valid(line) {
					t.Fatalf("%q is no JSON", line)
				}
			case bare:
				quick.Append(line, 3, 4)
			}
			addEnvelope(slow, line, 3, 4, asJSON)
			if got, want := describe(quick), describe(slow); got != want {
				t.Fatalf("%q, %v:\nquick %s\nslow %s", line, asJSON, got, want)
			}
		}
	})
}

func TestCommonEnvelopesAreReadWithoutEncodingJSON(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		`{"message_id":"1","payload":"a\n\"b","metadata":{"l":"v","k":"\u00e4"}}`, `{"message_id":12,"payload_base64":"/w=="}`, `{"message_id":"1","payload":{"a":1}}`,
	} {
		for _, asJSON := range []bool{false, true} {
			if unwrap(message.NewBatch(), []byte(s), 0, 0, asJSON) != unwrapped {
				t.Errorf("%s is left to encoding/json", s)
			}
		}
	}
	if unwrap(message.NewBatch(), []byte(`{"message_id":"1","payload":[1,{}]}`), 0, 0, true) != unwrapped {
		t.Error("arrays are left to encoding/json")
	}
	for _, s := range []string{`{"id":1}`, "[1]", "text"} {
		if unwrap(message.NewBatch(), []byte(s), 0, 0, true) != bare {
			t.Errorf("%s is left to encoding/json", s)
		}
	}
}

func BenchmarkUnwrap(b *testing.B) {
	line := []byte(`{"message_id":"019b0c6e-7d1e-7000-8000-000000000001","payload":"{\"id\":\"1\",\"first_name\":\"Ines\",\"country\":\"JP\",\"amount\":\"2232.88\",\"created_at\":\"2020-01-01T00:01:22Z\"}","metadata":{"kafka.topic":"orders"}}`)
	pool := message.NewPool(message.NewBudget(1<<20), 1<<19)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		batch, err := pool.Get(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for range 1000 {
			if unwrap(batch, line, 0, 0, false) != unwrapped {
				b.Fatal("not quick")
			}
		}
		batch.Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/line")
}
