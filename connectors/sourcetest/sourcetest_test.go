package sourcetest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func harness(fault string, ends bool) sourcetest.Harness {
	limit := 20 * time.Second
	if fault != "" {
		limit = time.Second
	}
	return sourcetest.Harness{Timeout: limit, New: func(*testing.T) *sourcetest.Subject {
		d := newData(fault, ends)
		return &sourcetest.Subject{
			Open:      func(*testing.T) connectors.Source { return d },
			Append:    func(_ *testing.T, _, n int) { d.append(n) },
			Payload:   payload,
			Ends:      ends,
			Resumes:   true,
			LoseHead:  func(_ *testing.T, n int) { d.change(func() { d.lost = d.place(n) }) },
			LoseTail:  func(_ *testing.T, keep int) { d.change(func() { d.rows = d.rows[:d.place(keep)] }) },
			Replace:   func(*testing.T) { d.change(func() { d.id = "two" }) },
			AppendBad: func(*testing.T) { d.change(func() { d.rows = append(d.rows, row{bad: true}) }) },
			Held:      func(*testing.T) int { return d.lost },
		}
	}}
}

func TestEndingSource(t *testing.T)  { sourcetest.Run(t, harness("", true)) }
func TestEndlessSource(t *testing.T) { sourcetest.Run(t, harness("", false)) }

// faults names for each way to break a source the behaviour that must turn red.
var faults = []struct{ fault, behaviour string }{
	{"partition id changes", "partitions_are_stable"},
	{"identity changes", "identity_is_stable"},
	{"order swapped", "order_and_counters"},
	{"counters off", "order_and_counters"},
	{"end is a batch", "order_and_counters"},
	{"no positions inside a batch", "position_after_each_record_of_a_batch"},
	{"resumes one too far", "resume_at_every_stored_position"},
	{"resumes one too early", "resume_at_every_stored_position"},
	{"resumes one too far", "nothing_lost_or_doubled_over_many_re-opens"},
	{"settle frees what was read", "settle_keeps_what_is_behind_it"},
	{"settle frees nothing", "settle_keeps_what_is_behind_it"},
	{"settle once only", "settle_twice_and_in_the_middle_of_a_batch"},
	{"growth unnoticed", "end_of_input,_then_growth"},
	{"growth unnoticed", "waits_at_the_end,_then_growth"},
	{"any loss is a gap", "a_head_lost_before_the_position_is_none"},
	{"close does not wake Read", "close_while_Read_waits_for_records"},
	{"cancel does not wake Read", "cancel_while_Read_waits_for_records"},
	{"close does not wake a starved Read", "close_while_Read_waits_for_memory"},
	{"memory unbounded", "bounded_memory_with_a_stalled_consumer"},
	{"lost head ignored", "lost_head_is_a_gap"},
	{"lost head ignored", "head_lost_under_a_reader_is_a_gap"},
	{"lost tail ignored", "lost_tail_is_a_gap"},
	{"replacement ignored", "replaced_data_is_reported"},
	{"bad record taken silently", "rejected_record_leaves_the_others"},
	{"bad record taken silently", "refused_rejection_stops_before_the_record"},
	{"records before a bad one lost", "refused_rejection_stops_before_the_record"},
}

const faultEnv = "SOURCETEST_FAULT"

// TestFault is the child of TestBrokenSourceTurnsRed; alone it has nothing to do.
func TestFault(t *testing.T) {
	fault, ends, ok := strings.Cut(os.Getenv(faultEnv), "/")
	if ok {
		sourcetest.Run(t, harness(fault, ends == "ends"))
	}
}

// TestBrokenSourceTurnsRed runs the suite over each fault in a process of its
// own, since a failed test cannot be taken back.
func TestBrokenSourceTurnsRed(t *testing.T) {
	for _, f := range faults {
		t.Run(f.fault+"/"+f.behaviour, func(t *testing.T) {
			t.Parallel()
			ends := "ends"
			if strings.Contains(f.behaviour, "waits_for_records") || strings.HasPrefix(f.behaviour, "waits") {
				ends = "endless"
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFault$/^"+f.behaviour+"$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), faultEnv+"="+f.fault+"/"+ends)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("the suite passed a source with the fault %q:\n%s", f.fault, out)
			}
			if !strings.Contains(string(out), "--- FAIL: TestFault/"+f.behaviour) {
				t.Fatalf("failed otherwise than by its behaviour:\n%s", out)
			}
		})
	}
}
