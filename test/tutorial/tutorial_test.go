// Package tutorial types what docs/tutorial.md says, on a real server, and compares
// the answers.
package tutorial

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// rewrite makes the answers those of this run: go test ./test/tutorial -rewrite.
var rewrite = flag.Bool("rewrite", false, "write the answers into docs/tutorial.md")

const page = "../../docs/tutorial.md"

// Comments of the page that steer the test.
var (
	untilComment = regexp.MustCompile(`^<!-- until: (.*) -->$`)
	varyComment  = "<!-- numbers vary -->"
)

// volatile are the parts of answers that no two runs share. Where the page says
// that numbers vary, all of them do.
var volatile = []struct {
	pattern *regexp.Regexp
	as      string
}{
	{regexp.MustCompile(`(?m)^\d+ records, [^,\n]+, \d+/s\b[^\n]*\n`), ""}, // progress, which a terminal writes over
	{regexp.MustCompile(`in \d+\.\d\d s: \d+ records/s`), "in T s: R records/s"},
	{regexp.MustCompile(`\b[a-z2-7]{16}\b`), "UID"},
	{regexp.MustCompile(`copy-[0-9a-f]{12}`), "copy-ID"},
	{regexp.MustCompile(`\[\d+\] \d+\n`), ""}, // of the shell's jobs
}

var (
	number = regexp.MustCompile(`\d+(\.\d+)?( [KM]iB|[KM]B| B|ms|s)?`)
	spaces = regexp.MustCompile(` +`)
)

func normalized(text string, vary bool) string {
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.as)
	}
	if vary {
		text = number.ReplaceAllString(text, "N")
	}
	return spaces.ReplaceAllString(text, " ") // columns are as wide as what is in them
}

// The page is what a new user reads first: each command and each message on it is
// that of this program.
func TestEveryMessageOfTheTutorialIsTheOneThatThisProgramGives(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(t)
	var out bytes.Buffer
	inside, vary, ran := false, false, 0
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		fmt.Fprintln(&out, line)
		switch {
		case !inside && line == varyComment:
			vary = true
		case !inside && untilComment.MatchString(line):
			s.until(untilComment.FindStringSubmatch(line)[1])
		case !inside && line == "```console":
			inside = true
		case inside && line == "```":
			inside, vary = false, false
		case inside && strings.HasPrefix(line, "$ "):
			command := line[2:]
			for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "> ") {
				i++
				command += "\n" + lines[i][2:]
				fmt.Fprintln(&out, lines[i])
			}
			var want strings.Builder
			for i+1 < len(lines) && lines[i+1] != "```" && !strings.HasPrefix(lines[i+1], "$ ") {
				i++
				fmt.Fprintln(&want, lines[i])
			}
			got := s.run(command)
			ran++
			if normalized(got, vary) != normalized(want.String(), vary) {
				if !*rewrite {
					t.Errorf("$ %s\n--- the page\n%s--- the program\n%s", command, want.String(), got)
				}
				out.WriteString(shown(got))
			} else {
				out.WriteString(want.String())
			}
		}
	}
	if ran < 40 {
		t.Errorf("only %d commands were found on the page", ran)
	}
	if *rewrite {
		if err := os.WriteFile(page, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// shown is an answer as a terminal leaves it.
func shown(text string) string {
	for _, v := range volatile {
		if v.as == "" {
			text = v.pattern.ReplaceAllString(text, "")
		}
	}
	return text
}

// session is a shell in a directory of its own, beside a server of its own.
type session struct {
	t      *testing.T
	server *harness.PostgresServer
	// ports turns the ports of this run into those that the page's reader has.
	ports *strings.Replacer
	in    io.Writer
	out   *bufio.Reader
}

func newSession(t *testing.T) *session {
	server := harness.StartPostgres(t)
	// A password counts for the tutorial's role alone.
	admin := server.URL("postgres")
	harness.PostgresExec(t, admin, "CREATE ROLE app LOGIN PASSWORD 'secret'")
	harness.PostgresExec(t, admin, "CREATE DATABASE shop OWNER app")
	hba := harness.PostgresValue[string](t, admin, "SHOW hba_file")
	rules, err := os.ReadFile(hba)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hba, append([]byte("host all app 127.0.0.1/32 scram-sha-256\n"), rules...), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.PostgresExec(t, admin, "SELECT pg_reload_conf()")

	bin := filepath.Join(t.TempDir(), "bin")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "../../cmd/mqbd", "../../cmd/mqbctl")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	port := strconv.Itoa(harness.FreePort(t))
	node := "127.0.0.1:" + port
	ctx, cancel := context.WithCancel(context.Background())
	shell := exec.CommandContext(ctx, "bash", "--norc", "--noprofile")
	shell.Dir = t.TempDir()
	shell.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "PGPORT="+strconv.Itoa(server.Port), "PGOPTIONS=", "MQBCTL_SERVER="+node, "MQBD_LISTEN="+node, "LC_ALL=C.UTF-8")
	in, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	shell.Stdout, shell.Stderr = w, w
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	s := &session{t: t, server: server, ports: strings.NewReplacer(":"+strconv.Itoa(server.Port), ":5432", ":"+port, ":7070"), in: in, out: bufio.NewReader(r)}
	t.Cleanup(func() {
		// A node that the page started ends with its shell.
		fmt.Fprintln(in, "kill $(jobs -p) 2>/dev/null; wait")
		_ = in.Close()
		_ = shell.Wait()
		cancel()
		_ = r.Close()
	})
	return s
}

// end closes what a command says.
const end = "-- end of the answer --"

// run types a command and returns all that is said until it ends. Commands that need
// another machine are done here.
func (s *session) run(command string) string {
	s.t.Helper()
	switch {
	case strings.HasPrefix(command, "make build"):
		return "" // built, and in the PATH
	case command == "sudo systemctl stop postgresql":
		s.server.Stop()
		return ""
	case command == "sudo systemctl start postgresql":
		s.server.Restart(s.t)
		return ""
	}
	if _, err := fmt.Fprintf(s.in, "%s\nmqb_rc=$?; echo; echo '%s'; (exit $mqb_rc)\n", command, end); err != nil {
		s.t.Fatal(err)
	}
	out := s.ports.Replace(s.answer(command))
	s.t.Logf("$ %s\n%s", command, out)
	return out
}

func (s *session) answer(command string) string {
	s.t.Helper()
	var out strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("%s: the shell ended: %v\n%s", command, err, out.String())
		}
		if strings.TrimSuffix(line, "\n") == end {
			// The empty line before it stands for an answer without an end of line.
			return strings.TrimSuffix(out.String(), "\n")
		}
		out.WriteString(line)
	}
}

// until waits for what a comment of the page says.
func (s *session) until(condition string) {
	s.t.Helper()
	harness.Eventually(s.t, time.Minute, func() error {
		if got := s.run("{ " + condition + "; } >/dev/null 2>&1; echo $?"); strings.TrimSpace(got) != "0" {
			return fmt.Errorf("not yet: %s", condition)
		}
		return nil
	})
}
