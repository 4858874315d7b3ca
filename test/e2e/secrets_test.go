package e2e

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
	"github.com/mqbridge/mqb/test/harness"
)

// A login that fails is where passwords get out. Neither the commands nor a node
// say one: not in errors, logs, statuses, routes, events or metrics (invariant 11).
func TestALoginThatFailsLeaksNoPasswordAnywhere(t *testing.T) {
	t.Parallel()
	const password = "hunter2-b71c"
	a := harness.NewAuthority(t)
	kafka := harness.StartKafka(t, harness.KafkaOptions{TLS: a.Issue(t, "broker"), Users: map[string]string{"alice": "right"}})
	kafka.CreateTopic(t, "t", 1)
	f := fleettest.New(t, "")
	in := fleettest.CSV(t, f.Dir, "in.csv", 1, 10)
	spec := fmt.Sprintf(`routes:
  out:
    input:
      file: {path: "%s", format: csv}
    output:
      kafka: {url: "%s", topic: t, username: alice, password: "%s", tls: {ca_file: "%s"}}
    shared_storage: true
  in:
    input:
      kafka:
        url: "%s"
        topic: t
        tls: {ca_file: "%s"}
        consumer_options: [["security.protocol", "sasl_ssl"], ["sasl.mechanism", "SCRAM-SHA-256"], ["sasl.username", "alice"], ["sasl.password", "%s"]]
    output:
      "null":
`, in, kafka.SASLSSL, password, a.CA, kafka.SASLSSL, a.CA, password)
	path := fleettest.Write(t, f.Dir, "spec.yaml", spec)
	silent := func(what, said string) {
		t.Helper()
		if strings.Contains(said, password) {
			t.Errorf("%s says the password:\n%s", what, said)
		}
	}
	ctl := filepath.Join(fleettest.Build(t, ""), "mqbctl")
	for _, args := range [][]string{
		{"validate", path, "--connect"}, {"validate", path}, {"explain", path}, {"run", path, "--data-dir", filepath.Join(f.Dir, "state")},
	} {
		out, err := runWith(t.Context(), nil, ctl, args...)
		silent("mqbctl "+args[0], out)
		if failed := args[0] == "run" || len(args) == 3; (err != nil) != failed {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		if args[0] == "run" && !strings.Contains(out, "SASL") {
			t.Errorf("run does not say why:\n%s", out)
		}
	}

	fleettest.Start(t, f, "n1")
	out, err := f.Ctl(t.Context(), "apply", "-f", path)
	fleettest.Must(t, err)
	silent("apply", string(out))
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "the output is quarantined", func(l fleet.Leases) bool {
		return l.Count("quarantined", "") == 1
	}))
	// The input has no partitions to hold: its error stands at the route.
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		out, err := f.Ctl(t.Context(), "routes")
		if err == nil && !strings.Contains(string(out), "SASL") {
			err = fmt.Errorf("no word of it in %s", out)
		}
		return err
	}))
	for _, args := range [][]string{{"routes"}, {"routes", "out"}, {"routes", "in"}, {"leases"}, {"nodes"}, {"events"}, {"checkpoint", "show", "out"}, {"doctor"}} {
		out, err := f.Ctl(t.Context(), args...)
		silent("mqbctl "+strings.Join(args, " "), fmt.Sprint(string(out), err))
	}
	for _, page := range []string{"/metrics", "/readyz", "/v1/routes", "/v1/leases", "/v1/nodes", "/v1/events", "/v1/doctor"} {
		r, err := http.Get("http://" + f.Addr("n1") + page)
		fleettest.Must(t, err)
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		fleettest.Must(t, err)
		if r.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", page, r.Status)
		}
		silent(page, string(body))
	}
	silent("the node's log", f.Log("n1"))
}
