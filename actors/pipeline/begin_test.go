package pipeline

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqbridge/mqb/message"
)

// A source that begins where its end is says so by a batch without records. If its
// run dies with the first records in its hands, the next one must not choose again:
// it would begin behind them.
func TestARunThatDiesAtItsFirstRecordDoesNotLetTheSourceChooseItsBeginningAgain(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		for _, refused := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, refused), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.spec.CheckpointInterval = time.Hour
					w.refuse["500"] = refused
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					chosen := message.NewBatch()
					chosen.End, chosen.Positions = pos(500), positioner{}
					s := &script{}
					s.steps = append(s.steps, gives(chosen), gives(batch(500, 510)), func(ctx context.Context) (*message.Batch, error) {
						if !refused {
							synctest.Wait()
							cancel()
						}
						<-ctx.Done()
						return nil, ctx.Err()
					})
					_, err := w.claim(kind).run(ctx, s)
					if err == nil {
						t.Fatal("no error")
					}
					if n, _ := w.record().Position.Number(); n < 500 {
						t.Errorf("position %d", n)
					}
				})
			})
		}
	}
}
