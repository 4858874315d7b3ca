package route_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/route"
)

// inferTypes has a type for each kind of endpoint and stage.
type inferTypes struct{}

var (
	inferSources = map[string]route.SourceCapabilities{
		"file":   {StableIdentity: true, DurablePosition: true, NumberedPosition: true, EndsItself: true, Locality: route.NodeLocal},
		"kafka":  {StableIdentity: true, DurablePosition: true, NumberedPosition: true, Locality: route.Shared},
		"static": {StableIdentity: true, DurablePosition: true, NumberedPosition: true, EndsItself: true, Locality: route.Shared},
		"cdc":    {StableIdentity: true, DurablePosition: true, Locality: route.Shared},
		"query":  {DurablePosition: true, NumberedPosition: true, Locality: route.Shared},
		"memory": {NumberedPosition: true, SettleDeletes: true, Locality: route.EveryNode, Why: "memory has no position"},
		"amqp":   {StableIdentity: true, SettleDeletes: true, Locality: route.Shared, Why: "a queue has no position"},
		"core":   {Locality: route.Shared, Why: "nothing is acknowledged"},
	}
	inferSinks = map[string]route.SinkCapabilities{
		"parts":  {Tier: route.TierDeterministic, Parts: true, Durable: true, Locality: route.NodeLocal, Why: "created if absent"},
		"sqlx":   {Tier: route.TierTransactional, Durable: true, Locality: route.Shared, Why: "one transaction"},
		"async":  {Tier: route.TierTransactional, Locality: route.Shared, Why: "synchronous_commit is off"},
		"keyed":  {Tier: route.TierDeterministic, Durable: true, Locality: route.Shared, Why: "_id absorbs it"},
		"window": {Tier: route.TierDeterministic, Durable: true, Window: "2m", Locality: route.Shared, Why: "deduplicated by id"},
		"mqtt":   {Tier: route.TierNone, Durable: true, Locality: route.Shared, Why: "mqtt repeats", Raise: "an output that absorbs repeats"},
		"memory": {Tier: route.TierNone, Locality: route.EveryNode, Why: "memory ends with its process"},
		"append": {Tier: route.TierDeterministic, Append: true, Durable: true, Locality: route.NodeLocal, Why: "cut to its recorded length"},
		"table":  {Tier: route.TierTransactional, LettersOnce: true, Durable: true, Locality: route.Shared, Why: "one transaction"},
		"inone":  {Tier: route.TierTransactional, System: "postgres://h/one", Durable: true, Locality: route.Shared, Why: "one transaction"},
		"intwo":  {Tier: route.TierTransactional, System: "postgres://h/two", Durable: true, Locality: route.Shared, Why: "one transaction"},
		"null":   {Tier: route.TierNone, Discards: true, Locality: route.Shared},
	}
	inferStages = map[string]route.MiddlewareCapabilities{
		"map":       {Shape: route.ShapeMap, ReplaySame: true},
		"filter":    {Shape: route.ShapeDrop, ReplaySame: true},
		"split":     {Shape: route.ShapeSplit, ReplaySame: true},
		"lookup":    {Shape: route.ShapeMap},
		"aggregate": {Shape: route.ShapeMap, Stateful: true, ReplaySame: true},
		"buffer":    {Shape: route.ShapeHold, ReplaySame: true},
	}
)

func (inferTypes) Endpoint(name string) (route.EndpointType, bool) {
	t := route.EndpointType{Name: name, NewConfig: func() any { return new(nullConfig) }}
	if s, ok := inferSources[name]; ok {
		t.Source = func(any) route.SourceCapabilities { return s }
	}
	if s, ok := inferSinks[name]; ok {
		t.Sink = func(any) route.SinkCapabilities { return s }
	}
	return t, t.Source != nil || t.Sink != nil
}

func (inferTypes) Middleware(name string) (route.MiddlewareType, bool) {
	c, ok := inferStages[name]
	return route.MiddlewareType{
		Name: name, NewConfig: func() any { return new(nullConfig) }, Input: true, Output: true,
		Capabilities: func(any) route.MiddlewareCapabilities { return c },
	}, ok
}

func (inferTypes) EndpointNames() []string   { return nil }
func (inferTypes) MiddlewareNames() []string { return nil }

func inferSpec(line string) *route.Spec {
	words := strings.Fields(line)
	s := &route.Spec{Input: route.Endpoint{Type: words[0]}, Output: route.Endpoint{Type: words[1]}, Commit: route.CommitAuto, OnError: route.OnErrorStop}
	for _, w := range words[2:] {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "commit":
			s.Commit = route.CommitMode(value)
		case "store":
			s.CheckpointStore = value
		case "on_error":
			s.OnError = route.OnError(value)
		default:
			s.Input.Middlewares = append(s.Input.Middlewares, route.Middleware{Type: key})
		}
	}
	return s
}

func TestInfer(t *testing.T) {
	t.Parallel()
	const (
		most, least, effectively, exactly = route.AtMostOnce, route.AtLeastOnce, route.EffectivelyOnce, route.ExactlyOnce
	)
	for _, c := range []struct {
		route string
		want  route.Guarantee
		raise string // words of it; "" = nothing to raise
	}{
		// input, output, then middlewares and keys.
		{"file parts", exactly, ""},
		{"kafka parts", exactly, ""},
		{"static parts", exactly, ""},
		{"file parts filter map split", exactly, ""},
		{"file parts on_error=drop", exactly, ""},
		{"file parts store=postgres://h/d", exactly, ""},
		{"file parts store=memory", least, "checkpoint_store: coordinator"},
		{"file parts lookup", least, "no lookup"},
		{"query parts", exactly, ""},

		{"kafka append", exactly, ""},
		{"kafka append lookup", exactly, ""},
		{"kafka append aggregate", least, "no aggregate"},
		{"core append", most, "an input that resumes"},

		{"kafka sqlx", exactly, ""},
		{"file sqlx commit=transactional", exactly, ""},
		{"cdc sqlx filter", exactly, ""},
		{"kafka sqlx lookup", exactly, ""},
		{"kafka sqlx aggregate", least, "no aggregate"},
		{"kafka sqlx buffer", least, "no buffer"},
		{"kafka sqlx commit=separate", least, "commit: auto"},
		{"kafka sqlx store=coordinator", least, "no checkpoint_store"},
		{"kafka sqlx commit=separate store=memory", least, "coordinator, and commit: auto"},
		{"kafka async", most, "durable writes"},
		{"amqp sqlx", least, "an input that resumes"},
		{"memory sqlx", least, "an input that resumes"},
		{"core sqlx", most, "an input that resumes"},

		{"kafka keyed", effectively, "transactional or writes parts"},
		{"amqp keyed", effectively, "transactional or writes parts"},
		{"kafka window", effectively, "transactional or writes parts"},
		{"query keyed", least, "keep their identity"},
		{"kafka keyed lookup", least, "no lookup"},
		{"core keyed", most, "an input that resumes"},

		{"kafka mqtt", least, "an output that absorbs repeats"},
		{"amqp mqtt", least, "an input that resumes at a position, such as kafka or file, and an output that absorbs repeats"},
		{"core mqtt", most, "an input that resumes"},
		{"kafka memory", most, "durable writes"},

		{"kafka null", exactly, ""},
		{"memory null", exactly, ""},
	} {
		in := route.Infer(inferSpec(c.route), inferTypes{})
		if in.Guarantee != c.want || len(in.Legs) != 1 || in.Legs[0].Guarantee != c.want || len(in.Conflicts) > 0 {
			t.Errorf("%s: got %s, want %s\n%s\n%s", c.route, in.Guarantee, c.want, strings.Join(in.Lines(), "\n"), in.Conflicts)
		}
		if (c.raise == "") != (in.Raise == "") || !strings.Contains(in.Raise, c.raise) {
			t.Errorf("%s: raise %q, want %q", c.route, in.Raise, c.raise)
		}
		if len(in.Legs[0].Reasons) == 0 {
			t.Errorf("%s: no reasons", c.route)
		}
	}
	if in := route.Infer(inferSpec("kafka window"), inferTypes{}); in.Legs[0].Window != "2m" {
		t.Errorf("the window is not stated: %+v", in.Legs[0])
	}
}

func TestInferConflicts(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"cdc parts":                       "does not number its own",
		"amqp parts":                      "does not number its own",
		"file parts aggregate":            "aggregate depends on earlier messages",
		"file parts buffer":               "buffer depends on earlier messages",
		"kafka mqtt commit=transactional": "needs a transactional output",
		"kafka null commit=transactional": "needs a transactional output",
	} {
		in := route.Infer(inferSpec(line), inferTypes{})
		if len(in.Conflicts) != 1 || !strings.Contains(in.Conflicts[0], want) {
			t.Errorf("%s: %q, want %q", line, in.Conflicts, want)
		}
	}
	_, err := route.Decode("f.yaml", []byte("input: {cdc: {}}\noutput: {parts: {}}\n"), inferTypes{}, route.Options{})
	if err == nil || !strings.Contains(err.Error(), "f.yaml:2:1: route f: output: parts are named after numbered records") {
		t.Errorf("decode: %v", err)
	}
}

// letters is the config of a middleware that takes dead letters.
type letters struct{ to route.Endpoint }

func (l letters) DeadLetters() *route.Endpoint { return &l.to }

// A dead letter that may stand in the dlq twice is a record whose effect may land
// twice: the leg says so, and the route with it (invariant 9).
func TestADLQThatForgetsLowersTheRouteAndSaysSo(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]route.Guarantee{
		"mqtt": route.AtLeastOnce, "append": route.AtLeastOnce, "table": route.EffectivelyOnce, "null": route.ExactlyOnce,
	} {
		s := inferSpec("kafka sqlx on_error=dlq")
		s.Output.Middlewares = []route.Middleware{{Type: "map", Config: letters{route.Endpoint{Type: to}}}}
		in := route.Infer(s, inferTypes{})
		if in.Guarantee != want || len(in.Legs) != 2 || in.Legs[0].Guarantee != route.ExactlyOnce || in.Legs[1].Name != "dlq" || in.Legs[1].Guarantee != want {
			t.Errorf("%s: %s\n%s", to, in.Guarantee, strings.Join(in.Lines(), "\n"))
		}
		if want == route.AtLeastOnce && !strings.Contains(in.Raise, "knows a letter by its id") {
			t.Errorf("%s: raise %q", to, in.Raise)
		}
	}
}

// In the system of the output a letter is part of the transaction.
func TestADLQInTheSystemOfTheOutputIsExactlyOnce(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]route.Guarantee{"inone": route.ExactlyOnce, "intwo": route.AtLeastOnce} {
		s := inferSpec("kafka inone on_error=dlq")
		s.Output.Middlewares = []route.Middleware{{Type: "map", Config: letters{route.Endpoint{Type: to}}}}
		if in := route.Infer(s, inferTypes{}); in.Guarantee != want {
			t.Errorf("%s: %s\n%s", to, in.Guarantee, strings.Join(in.Lines(), "\n"))
		}
	}
}

func TestAppendingToASharedFileIsAConflict(t *testing.T) {
	t.Parallel()
	s := inferSpec("kafka append")
	s.SharedStorage = true
	if in := route.Infer(s, inferTypes{}); len(in.Conflicts) != 1 {
		t.Errorf("%q", in.Conflicts)
	}
}

// Invariant 9: a weaker route is refused, and told what would help.
func TestRequiredDeliveryRefusesAWeakerRoute(t *testing.T) {
	t.Parallel()
	in := route.Infer(inferSpec("kafka sqlx commit=separate"), inferTypes{})
	for _, g := range []route.Guarantee{"", route.AtMostOnce, route.AtLeastOnce} {
		if err := in.Meets(g); err != nil {
			t.Errorf("%s: %v", g, err)
		}
	}
	for _, g := range []route.Guarantee{route.EffectivelyOnce, route.ExactlyOnce} {
		err := in.Meets(g)
		var d *route.DeliveryError
		if !errors.As(err, &d) || d.Got != route.AtLeastOnce || !strings.Contains(err.Error(), "to raise it: commit: auto") {
			t.Errorf("%s: %v", g, err)
		}
	}
}
