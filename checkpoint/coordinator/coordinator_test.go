package coordinator_test

import (
	"bytes"
	"testing"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/coordinator"
	"github.com/mqbridge/mqb/checkpoint/storetest"
	"github.com/mqbridge/mqb/lease"
	lm "github.com/mqbridge/mqb/lease/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{New: func(t *testing.T) *storetest.Subject {
		c := lm.New()
		t.Cleanup(func() { _ = c.Close() })
		keys := lease.NewKeys("test")
		return &storetest.Subject{
			Open: func(*testing.T) checkpoint.Store { return coordinator.New(c, keys) },
			Tamper: func(t *testing.T, key string, change func([]byte) []byte) {
				key = keys.Checkpoints() + key
				kv, _, err := c.Get(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				var old []byte
				if kv != nil {
					old = kv.Value
				}
				body := change(bytes.Clone(old))
				op := lease.Put(key, body)
				switch {
				case bytes.Equal(body, old):
					return
				case body == nil:
					op = lease.Delete(key)
				}
				if _, err := c.Txn(t.Context(), nil, []lease.Op{op}); err != nil {
					t.Fatal(err)
				}
			},
		}
	}})
}
