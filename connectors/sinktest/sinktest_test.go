package sinktest_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func harness(fault, kind string) sinktest.Harness {
	limit := 20 * time.Second
	if fault != "" {
		limit = time.Second
	}
	return sinktest.Harness{Timeout: limit, New: func(*testing.T) *sinktest.Subject {
		p := newPlace(fault, kind)
		s := &sinktest.Subject{
			Open: func(*testing.T) connectors.Sink {
				if kind == "tx" {
					return txSink{sink{p}}
				}
				return sink{p}
			},
			Rows:    func(*testing.T) [][]byte { return p.visible() },
			Block:   func(*testing.T) func() { return p.block() },
			Refused: func(i int) []byte { return fmt.Appendf(nil, "refused %d", i) },
		}
		switch kind {
		case "plain":
			s.Absorbs = true
		case "tx":
			s.Unencodable = func(i int) []byte { return fmt.Appendf(nil, "unencodable %d", i) }
			s.Freeze = func(*testing.T) (string, func(string)) {
				p.store.deaf = fault == "frozen session survives"
				return "frozen", func(key string) { p.store.frozen[key] = "frozen" }
			}
		case "parts":
			s.Objects = func(*testing.T) map[string]string { return p.objects() }
			s.Spools = func(*testing.T) int { return p.spools }
		}
		return s
	}}
}

func TestPlain(t *testing.T)    { sinktest.Run(t, harness("", "plain")) }
func TestStateful(t *testing.T) { sinktest.Run(t, harness("", "stateful")) }
func TestTx(t *testing.T)       { sinktest.Run(t, harness("", "tx")) }
func TestParts(t *testing.T)    { sinktest.Run(t, harness("", "parts")) }

// faults names for each way to break a sink the behaviour that must turn red.
var faults = []struct{ kind, fault, behaviour string }{
	{"plain", "check writes", "check_changes_nothing"},
	{"plain", "reversed", "written_is_visible,_in_order"},
	{"plain", "range ignored", "writes_the_range_and_nothing_else"},
	{"plain", "stops at a refused row", "refused_rows_leave_the_others"},
	{"plain", "wrong row named", "refused_rows_leave_the_others"},
	{"plain", "repeats land twice", "repeat_is_absorbed"},
	{"plain", "gate ignored", "closed_gate"},
	{"plain", "close does not wake a write", "close_while_blocked"},

	{"stateful", "others written beside a refused row", "refused_rows_leave_the_others"},
	{"stateful", "nothing taken back", "what_was_written_behind_the_state_is_taken_back"},
	{"stateful", "the state falls short", "what_was_written_behind_the_state_is_taken_back"},
	{"stateful", "nothing taken back", "the_state_of_an_empty_run"},
	{"stateful", "gate ignored", "closed_gate"},
	{"stateful", "close does not wake a write", "close_while_blocked"},

	{"tx", "visible before the commit", "committed_is_visible,_in_order,_and_nothing_before"},
	{"tx", "rows without the record", "commit_carries_the_record"},
	{"tx", "rows without the record", "next_transaction_gathers_while_the_last_one_commits"},
	{"tx", "discard commits", "discarded_leaves_nothing"},
	{"tx", "truncates one too many", "truncate,_then_commit"},
	{"tx", "drops the wrong row", "drop,_then_commit"},
	{"tx", "unencodable dropped silently", "rows_that_cannot_be_encoded_leave_the_others"},
	{"tx", "others written beside a refused row", "refused_rows_are_named_and_nothing_is_written"},
	{"tx", "wrong row named", "refused_rows_are_named_and_nothing_is_written"},
	{"tx", "rows without the record", "fenced_while_writing"},
	{"tx", "rows before the fence", "fenced_while_writing"},
	{"tx", "epoch instead of version compared", "stale_version_is_no_commit"},
	{"tx", "creates the record", "a_commit_never_creates_the_record"},
	{"tx", "gate ignored", "closed_gate"},
	{"tx", "frozen session survives", "frozen_while_holding_a_lock"},
	{"tx", "close does not wake a write", "close_while_blocked"},

	{"parts", "visible when sealed", "published_is_visible,_in_order,_and_nothing_before"},
	{"parts", "end exclusive in the name", "intent_describes_its_part"},
	{"parts", "visible when sealed", "inherited_intent_is_finished_under_its_name"},
	{"parts", "abort keeps the rows", "aborted_leaves_nothing"},
	{"parts", "repeat replaces", "repeated_publish_changes_nothing"},
	{"parts", "repeat is an error", "repeated_publish_changes_nothing"},
	{"parts", "inherited name ignored", "inherited_intent_is_finished_under_its_name"},
	{"parts", "exists is wrong", "inherited_intent_that_was_published_is_found"},
	{"parts", "repeat replaces", "late_publish_of_a_former_owner_changes_nothing"},
	{"parts", "parts beyond the position taken", "part_beyond_the_position_is_refused"},
	{"parts", "foreign parts taken", "parts_of_another_lineage_are_refused"},
	{"parts", "nothing covered", "parts_of_another_lineage_are_covered_with_existing_parts_skip"},
	{"parts", "gate ignored", "closed_gate"},
	{"parts", "spool left behind", "spool_is_gone_after_abort_and_close"},
	{"parts", "close does not wake a write", "close_while_blocked"},
}

const faultEnv = "SINKTEST_FAULT"

// TestFault is the child of TestBrokenSinkTurnsRed; alone it has nothing to do.
func TestFault(t *testing.T) {
	if kind, fault, ok := strings.Cut(os.Getenv(faultEnv), "/"); ok {
		sinktest.Run(t, harness(fault, kind))
	}
}

// TestBrokenSinkTurnsRed runs the suite over each fault in a process of its own,
// since a failed test cannot be taken back.
func TestBrokenSinkTurnsRed(t *testing.T) {
	for _, f := range faults {
		t.Run(f.kind+"/"+f.fault+"/"+f.behaviour, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFault$/^"+f.behaviour+"$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), faultEnv+"="+f.kind+"/"+f.fault)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("the suite passed a sink with the fault %q:\n%s", f.fault, out)
			}
			if !strings.Contains(string(out), "--- FAIL: TestFault/"+f.behaviour) {
				t.Fatalf("failed otherwise than by its behaviour:\n%s", out)
			}
		})
	}
}
