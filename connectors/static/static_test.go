package static

import (
	"log/slog"
	"testing"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sourcetest"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSource(t testing.TB, c *Config) connectors.Source {
	t.Helper()
	src, err := Type().NewSource(c, &route.Spec{}, connectors.Env{})
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func TestSource(t *testing.T) {
	body := `{"hello":"world"}`
	for _, c := range []struct {
		name    string
		drain   bool
		records int
	}{{"endless", false, 200}, {"drained: one batch of the suite's size", true, 64}} {
		t.Run(c.name, func(t *testing.T) {
			sourcetest.Run(t, sourcetest.Harness{New: func(*testing.T) *sourcetest.Subject {
				return &sourcetest.Subject{
					Open:      func(t *testing.T) connectors.Source { return newSource(t, &Config{Body: body}) },
					Payload:   func(int) []byte { return []byte(body) },
					Preloaded: c.records,
					Spec:      &route.Spec{ExitOnEmpty: c.drain},
					Ends:      c.drain,
					Resumes:   true,
					Dense:     true,
				}
			}})
		})
	}
}

func open(t testing.TB, c *Config, batch int) connectors.Reader {
	t.Helper()
	r, err := newSource(t, c).Open(t.Context(), connectors.Claim{
		Spec: &route.Spec{BatchSize: batch}, Budget: message.NewBudget(1 << 20), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMetadataAndFraming(t *testing.T) {
	for _, c := range []struct {
		config Config
		lines  string
	}{
		{Config{Body: "x"}, "x\nx\n"},
		{Config{Body: "two\nlines"}, ""},
		{Config{Body: "x", Metadata: map[string]string{"b": "2", "a": "1"}}, ""},
	} {
		r := open(t, &c.config, 2)
		b, err := r.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := string(b.Lines(0, b.Len())); got != c.lines {
			t.Errorf("%+v: lines %q, want %q", c.config, got, c.lines)
		}
		for k, v := range c.config.Metadata {
			if got, _ := b.Meta(1, k); string(got) != v {
				t.Errorf("metadata %s is %q, want %q", k, got, v)
			}
		}
		if string(b.Payload(1)) != c.config.Body {
			t.Errorf("payload %q", b.Payload(1))
		}
		b.Release()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTemplateIsRefusedAndNotSentLiterally(t *testing.T) {
	if errs := (&Config{Body: "${gen:uuid}"}).Validate(route.Input); len(errs) != 1 {
		t.Fatalf("got %v", errs)
	}
}

func BenchmarkRead(b *testing.B) {
	r := open(b, &Config{Body: `{"id":12345,"name":"somebody","amount":17.5,"at":"2026-01-01T00:00:00Z"}`}, 1024)
	defer r.Close()
	b.ReportAllocs()
	for b.Loop() {
		m, err := r.Read(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		m.Release()
	}
}
