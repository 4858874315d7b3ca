package mysql_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/mysql"
	dial "github.com/mqbridge/mqb/dial/mysql"
	"github.com/mqbridge/mqb/test/freeze"
	"github.com/mqbridge/mqb/test/harness"
)

// ownerEnv turns this test binary into the owner of a record.
const ownerEnv = "MQB_TEST_MYSQL_OWNER"

func TestMain(m *testing.M) {
	if url := os.Getenv(ownerEnv); url != "" {
		if err := owner(context.Background(), url); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	harness.Main(m)
}

func claimRequest(epoch uint64, session string) checkpoint.ClaimRequest {
	return checkpoint.ClaimRequest{Key: "k", ClusterUID: "c", RouteUID: "r", Series: "s", Generation: 1, Epoch: epoch, Run: fmt.Sprint("run-", epoch), Session: session}
}

// owner claims, changes the record in a transaction of its writer session, and
// commits when it is told to.
func owner(ctx context.Context, url string) error {
	store, err := mysql.Open(ctx, url)
	if err != nil {
		return err
	}
	cfg, err := dial.Parse(url, dial.Options{})
	if err != nil {
		return err
	}
	db, err := cfg.Pool()
	if err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	session, err := dial.Session(ctx, conn)
	if err != nil {
		return err
	}
	if _, err := checkpoint.Claim(ctx, store, claimRequest(1, session)); err != nil {
		return err
	}
	for _, sql := range []string{"BEGIN", "UPDATE mqb_checkpoints SET version = version + 1 WHERE `key` = 'k'"} {
		if _, err := conn.ExecContext(ctx, sql); err != nil {
			return err
		}
	}
	fmt.Println("locked")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	fmt.Println("commit:", err)
	return nil
}

// An owner that froze with the row locked would hold it for the server's 8 hours:
// the claim ends its session, and what it had not committed is gone.
func TestFrozenOwnerThatHoldsTheRowLosesIt(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	url := server.URL(server.NewDatabase(t))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerEnv+"="+url)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(out)
	if line, _ := lines.ReadString('\n'); line != "locked\n" {
		t.Fatalf("the owner says %q", line)
	}
	if err := freeze.Process(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}

	s := open(t, url)
	started := time.Now()
	claimed, err := checkpoint.Claim(t.Context(), s, claimRequest(2, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("claimed after %v", time.Since(started))
	if claimed.Record.Epoch != 2 || claimed.Record.Version != 2 {
		t.Fatalf("claimed %+v", claimed.Record)
	}
	// Far less than the server lets a lock be waited for.
	if took := time.Since(started); took > 20*time.Second {
		t.Errorf("the claim took %v", took)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if line, _ := lines.ReadString('\n'); !strings.HasPrefix(line, "commit: ") || strings.Contains(line, "<nil>") {
		t.Fatalf("the frozen owner says %q (invariant 1)", line)
	}
	if rec, err := s.Load(t.Context(), "k"); err != nil || rec.Version != 2 || rec.Epoch != 2 {
		t.Fatalf("%+v, %v", rec, err)
	}
}
