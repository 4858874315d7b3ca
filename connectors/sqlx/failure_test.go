package sqlx_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	ckpt "github.com/mqbridge/mqb/checkpoint/postgres"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sqlx"
	dial "github.com/mqbridge/mqb/dial/postgres"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

// Another process is this test binary with these two set.
const childMode, childURL = "MQB_SQLX_CHILD", "MQB_SQLX_URL"

const keyed = "INSERT INTO t (id) VALUES (${payload:id})"

func ids(from int) func(int) string {
	return func(i int) string { return fmt.Sprintf(`{"id":%d}`, from+i) }
}

// child is an owner with epoch 1 that freezes itself while its transaction holds
// rows 0 to 999; woken, it goes on and says what became of it.
func child(mode, url string) int {
	freeze := func() {
		// To this very thread, or it runs on until another one has taken the signal.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_ = syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
	}
	ctx := context.Background()
	var err error
	switch mode {
	case "before fence":
		// The gate is asked between the rows and the fence, and says yes.
		cfg := &sqlx.Config{URL: url, InsertQuery: keyed, BulkCopy: true}
		var sink connectors.Sink
		if sink, err = sqlx.Type().NewSink(cfg, &route.Spec{Name: "r"}, connectors.Env{}); err != nil {
			break
		}
		var r *run
		if r, err = openRun(ctx, sink, 1); err != nil {
			break
		}
		r.gate = func() error { freeze(); return nil }
		err = r.commit(ctx, batchOf(1000, ids(0)))
	case "inside COPY":
		err = freezeInsideCopy(ctx, url, freeze)
	}
	fmt.Printf("class %s: %v\n", connectors.Classify(err), err)
	return 0
}

func freezeInsideCopy(ctx context.Context, url string, freeze func()) error {
	cfg, err := dial.Parse(url, dial.Options{})
	if err != nil {
		return err
	}
	conn, err := cfg.Connect(ctx)
	if err != nil {
		return err
	}
	session, err := dial.Session(ctx, conn)
	if err != nil {
		return err
	}
	store, err := ckpt.Open(ctx, url, "")
	if err != nil {
		return err
	}
	if _, err := checkpoint.Claim(ctx, store, checkpoint.ClaimRequest{
		Key: recordKey, ClusterUID: "c", RouteUID: "uid", Series: "s", Generation: 1, Epoch: 1, Run: "run-1", Session: session,
	}); err != nil {
		return err
	}
	var rows bytes.Buffer
	for i := range 1000 {
		fmt.Fprintf(&rows, "%d\n", i)
	}
	// The second read comes once the first rows are on their way.
	reads := 0
	_, err = conn.PgConn().CopyFrom(ctx, readerFunc(func(p []byte) (int, error) {
		if reads++; reads == 2 {
			freeze()
		}
		return rows.Read(p)
	}), "BEGIN; COPY t (id) FROM STDIN")
	return err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A stopped process keeps its connection and the locks on its rows for ever;
// time-outs of the server do not end a COPY that waits for its client.
func TestFrozenOwnerIsEndedByItsSuccessorAndWritesNothingWhenItWakes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"before fence", "inside COPY"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := harness.Postgres(t).NewDatabase(t)
			harness.PostgresExec(t, url, "CREATE TABLE t (id int PRIMARY KEY)")
			old := harness.Start(t, harness.Spec{
				Path: os.Args[0], Env: []string{childMode + "=" + mode, childURL + "=" + url},
			})
			harness.Eventually(t, 30*time.Second, func() error {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", old.Pid()))
				if err == nil && !strings.Contains(string(stat), ") T ") {
					err = fmt.Errorf("the owner has not stopped: %s", old.Log())
				}
				return err
			})
			next := start(t, sqlx.Config{URL: url, InsertQuery: keyed, BulkCopy: true}, 2)
			// The same rows: they would wait for the frozen owner's transaction, and
			// fail after the writer's lock time-out.
			if err := next.commit(t.Context(), batchOf(500, ids(0))); err != nil {
				t.Fatalf("the successor: %v", err)
			}
			old.Thaw()
			<-old.Done()
			if log := old.Log(); mode == "before fence" && !strings.Contains(log, "class fenced") || strings.Contains(log, "<nil>") {
				t.Errorf("the woken owner: %s", log)
			}
			if n := harness.PostgresValue[int](t, url, "SELECT count(*) FROM t"); n != 500 {
				t.Errorf("%d rows, the successor wrote 500", n)
			}
		})
	}
}

// The record and the rows stay together whenever the server dies.
func TestServerKilledWhileCommitting(t *testing.T) {
	t.Parallel()
	server := harness.StartPostgres(t)
	url := server.NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (id int PRIMARY KEY)")
	cfg := sqlx.Config{URL: url, InsertQuery: keyed, BulkCopy: true}
	for epoch := uint64(1); epoch <= 4; epoch++ {
		sink := newSink(t, cfg)
		r, err := openRun(t.Context(), sink, epoch)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := r.held.Position.Number()
		if n := harness.PostgresValue[int64](t, url, "SELECT count(*) FROM t"); n != at {
			t.Fatalf("epoch %d: %d rows at position %d", epoch, n, at)
		}
		if epoch == 4 {
			_ = r.writer.Close()
			_ = sink.Close()
			break
		}
		var commits atomic.Int32
		failed := make(chan error, 1)
		go func() {
			for {
				n, _ := r.held.Position.Number()
				if err := r.commit(context.Background(), batchOf(200, ids(int(n)))); err != nil {
					failed <- err
					return
				}
				commits.Add(1)
			}
		}()
		harness.Eventually(t, 20*time.Second, func() error {
			if commits.Load() < 5 {
				return errors.New("fewer than five commits")
			}
			return nil
		})
		server.Kill()
		err = <-failed
		if c := connectors.Classify(err); c != connectors.ClassConnection && c != connectors.ClassSuspect {
			t.Errorf("class %s: %v", c, err)
		}
		_ = r.writer.Close()
		_ = sink.Close()
		server.Restart(t)
	}
}

// The server commits, the reply never comes: the run must not write the rows
// again, and its successor finds them covered by the record.
func TestLostReplyOfCommitIsNotWrittenTwice(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (id int)") // no key that would hide a repeat
	proxy := newProxy(t, url)
	r := start(t, sqlx.Config{URL: proxy.url, InsertQuery: keyed, BulkCopy: true}, 1)
	if err := r.commit(t.Context(), batchOf(10, ids(0))); err != nil {
		t.Fatal(err)
	}
	r.gate = func() error { proxy.cutAfterNextReply.Store(true); return nil }
	err := r.commit(t.Context(), batchOf(10, ids(10)))
	if c := connectors.Classify(err); c != connectors.ClassConnection {
		t.Fatalf("class %s: %v", c, err)
	}
	next := start(t, sqlx.Config{URL: url, InsertQuery: keyed, BulkCopy: true}, 2)
	at, _ := next.held.Position.Number()
	if n := harness.PostgresValue[int64](t, url, "SELECT count(*) FROM t"); n != 20 || at != 20 {
		t.Errorf("%d rows at position %d, want 20 at 20", n, at)
	}
}

// proxy stands before a server and can swallow a reply.
type proxy struct {
	url string
	// cutAfterNextReply: what the server sends next on a connection is thrown
	// away and the connection is cut.
	cutAfterNextReply atomic.Bool
}

func newProxy(t *testing.T, url string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := strings.TrimPrefix(url[:strings.LastIndex(url, "/")], "postgres://postgres@")
	p := &proxy{url: strings.Replace(url, server, l.Addr().String(), 1)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(client, server) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return p
}

func (p *proxy) serve(client net.Conn, server string) {
	defer client.Close()
	up, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer up.Close()
	go func() {
		_, _ = io.Copy(up, client)
		_ = up.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := up.Read(buf)
		if err != nil || p.cutAfterNextReply.CompareAndSwap(true, false) {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// The version in the UPDATE is what stops a zombie whose session nobody ended;
// the build without the fence shows that nothing else does.
func TestFenceAloneStopsAZombieWhoseSessionLives(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (id int)")
	cfg := sqlx.Config{URL: url, InsertQuery: keyed, BulkCopy: true}
	zombie := start(t, cfg, 1)
	nameless := zombie.held
	nameless.Session = ""
	var err error
	if zombie.held, err = checkpoint.Commit(t.Context(), zombie.store, recordKey, zombie.held, nameless); err != nil {
		t.Fatal(err)
	}
	if err := start(t, cfg, 2).commit(t.Context(), batchOf(10, ids(0))); err != nil {
		t.Fatal(err)
	}
	err = zombie.commit(t.Context(), batchOf(10, ids(0)))
	n := harness.PostgresValue[int](t, url, "SELECT count(*) FROM t")
	if checkpoint.Fenced && (!errors.Is(err, checkpoint.ErrFenced) || n != 10) {
		t.Errorf("%d rows, want 10; the zombie got %v", n, err)
	}
	if !checkpoint.Fenced && (err != nil || n != 20) {
		t.Errorf("without a fence the zombie writes all again: %d rows, %v", n, err)
	}
}
