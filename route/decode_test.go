package route_test

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/route"
)

// A small set of types that has everything a connector may use.

type brokerConfig struct {
	URL      string        `yaml:"url" required:"true" doc:"Where it is."`
	Topic    string        `yaml:"topic" required:"true"`
	Password string        `yaml:"password" secret:"true"`
	Poll     time.Duration `yaml:"polling_interval_ms" default:"100" min:"1ms"`
	Linger   time.Duration `yaml:"linger" default:"1s"`
	Max      route.Bytes   `yaml:"max_bytes" default:"1MiB" min:"1KiB" max:"1GiB"`
	Format   string        `yaml:"format" default:"raw" enum:"raw|json|normal"`
	Options  [][2]string   `yaml:"consumer_options"`
	TLS      struct {
		Required bool   `yaml:"required" default:"false"`
		CAFile   string `yaml:"ca_file"`
	} `yaml:"tls"`
	Columns map[string]string `yaml:"columns"`
	Qos     *int              `yaml:"qos" min:"0" max:"2"`
	Ratio   float64           `yaml:"ratio" default:"0.5"`
}

func (c *brokerConfig) Validate(side route.Side) []error {
	if side == route.Input && c.Format == "json" {
		return []error{&route.ConfigError{Field: "format", Msg: "json is for outputs"}}
	}
	return nil
}

type textConfig struct {
	Body string `yaml:"body" required:"true"`
}

func (c *textConfig) FromScalar(s string) error { c.Body = s; return nil }

type nullConfig struct{}

type exprConfig string

func (c *exprConfig) FromScalar(s string) error {
	if s == "" {
		return errors.New("is empty")
	}
	*c = exprConfig(s)
	return nil
}

// dlqConfig holds an endpoint inside of a middleware.
type dlqConfig struct {
	Endpoint route.Endpoint `yaml:"endpoint" required:"true"`
}

func (c *dlqConfig) DeadLetters() *route.Endpoint { return &c.Endpoint }

type testTypes struct{}

var source = func(any) route.SourceCapabilities { return route.SourceCapabilities{} }
var sink = func(any) route.SinkCapabilities { return route.SinkCapabilities{} }

func (testTypes) Endpoint(name string) (route.EndpointType, bool) {
	t := route.EndpointType{Name: name, Source: source, Sink: sink}
	switch name {
	case "broker", "kafka":
		t.NewConfig = func() any { return new(brokerConfig) }
		t.Reserved = []string{"delayed_ack"}
	case "static":
		t.NewConfig = func() any { return new(textConfig) }
	case "null", "memory":
		t.NewConfig = func() any { return new(nullConfig) }
		t.Source = nil
	default:
		return route.EndpointType{}, false
	}
	return t, true
}

func (testTypes) Middleware(name string) (route.MiddlewareType, bool) {
	caps := func(any) route.MiddlewareCapabilities { return route.MiddlewareCapabilities{Shape: route.ShapeMap} }
	switch name {
	case "filter":
		return route.MiddlewareType{Name: name, NewConfig: func() any { return new(exprConfig) }, Capabilities: caps, Input: true, Output: true}, true
	case "id":
		return route.MiddlewareType{Name: name, NewConfig: func() any { return new(exprConfig) }, Capabilities: caps, Input: true}, true
	case "dlq":
		return route.MiddlewareType{Name: name, NewConfig: func() any { return new(dlqConfig) }, Capabilities: caps, Output: true}, true
	}
	return route.MiddlewareType{}, false
}

func (testTypes) EndpointNames() []string {
	return []string{"broker", "kafka", "memory", "null", "static"}
}
func (testTypes) MiddlewareNames() []string { return []string{"dlq", "filter", "id"} }

func env(pairs ...string) route.LookupEnv {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

func decode(t *testing.T, text string, pairs ...string) *route.File {
	t.Helper()
	f, err := route.Decode("mqb.yaml", []byte(text), testTypes{}, route.Options{LookupEnv: env(pairs...)})
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	return f
}

func refuse(t *testing.T, text string, pairs ...string) route.Errors {
	t.Helper()
	_, err := route.Decode("mqb.yaml", []byte(text), testTypes{}, route.Options{LookupEnv: env(pairs...)})
	var errs route.Errors
	if !errors.As(err, &errs) {
		t.Fatalf("want Errors, got %v", err)
	}
	return errs
}

func TestDecodeShapes(t *testing.T) {
	t.Parallel()
	one := func(indent string) string {
		lines := []string{"input:", "  broker:", "    url: b:9092", "    topic: orders", "  middlewares:", "    - filter: country == 'DE'", "output: null", ""}
		return indent + strings.Join(lines, "\n"+indent)
	}
	for name, c := range map[string]struct{ text, route string }{
		"routes map":         {"routes:\n  a:\n" + one("    "), "a"},
		"names at top level": {"a:\n" + one("  "), "a"},
		"one bare route":     {one(""), "mqb"},
	} {
		t.Run(name, func(t *testing.T) {
			f := decode(t, c.text)
			if len(f.Routes) != 1 || f.Routes[0].Name != c.route {
				t.Fatalf("routes: %+v", f.Routes)
			}
			r := f.Routes[0]
			in := r.Input.Config.(*brokerConfig)
			if in.Topic != "orders" || in.Poll != 100*time.Millisecond || in.Linger != time.Second || in.Max != 1<<20 || in.Ratio != 0.5 {
				t.Errorf("input: %+v", in)
			}
			if len(r.Input.Middlewares) != 1 || *r.Input.Middlewares[0].Config.(*exprConfig) != "country == 'DE'" {
				t.Errorf("middlewares: %+v", r.Input.Middlewares)
			}
			if r.Output.Type != "null" || !strings.HasPrefix(r.Input.Where, "mqb.yaml:") {
				t.Errorf("output %+v, input at %s", r.Output, r.Input.Where)
			}
		})
	}
}

func TestDecodeDefaultsStandInOnePlace(t *testing.T) {
	t.Parallel()
	r := decode(t, "input: {static: hello}").Routes[0]
	if r.Output.Type != "null" {
		t.Errorf("an absent output is %q, not null", r.Output.Type)
	}
	if !r.Enabled || r.Concurrency != 1 || r.BatchSize != 1024 || r.CheckpointInterval != time.Second ||
		r.Roll != (route.Roll{Bytes: 64 << 20, Records: 1_000_000, Age: 10 * time.Second}) || r.MaxRecordBytes != 16<<20 ||
		r.GiveUpAfter != 30*time.Second || r.ReconnectInterval != 5*time.Second ||
		r.OnError != route.OnErrorStop || r.Commit != route.CommitAuto || r.ExistingParts != "fail" {
		t.Errorf("%+v", r)
	}
}

func TestDecodeRouteKeys(t *testing.T) {
	t.Parallel()
	r := decode(t, `
input: {static: "5"}
output: {broker: {url: u, topic: t, qos: 1, polling_interval_ms: 20, linger: 3m, max_bytes: 1MB, consumer_options: [[a, b]], tls: {required: true}, columns: {x: "${payload:x}"}}}
description: d
enabled: false
concurrency: 4
batch_size: 10
exit_on_empty: true
required_delivery: at-least-once
checkpoint_store: postgres://u:p@h/db
commit: separate
checkpoint_interval: 2s
shared_storage: true
placement: {exclude: [n3], labels: {zone: a, disk: "1"}}
existing_parts: skip
roll: {bytes: 8MiB, records: 5, age: 1m}
on_error: drop
max_record_bytes: 1MiB
reconnect_interval_ms: 100
give_up_after: 1m
`).Routes[0]
	if r.Input.Config.(*textConfig).Body != "5" {
		t.Error("static body")
	}
	out := r.Output.Config.(*brokerConfig)
	if *out.Qos != 1 || out.Poll != 20*time.Millisecond || out.Linger != 3*time.Minute || out.Max != 1_000_000 ||
		out.Options[0] != [2]string{"a", "b"} || !out.TLS.Required || out.Columns["x"] != "${payload:x}" {
		t.Errorf("%+v", out)
	}
	if r.Enabled || r.Concurrency != 4 || r.BatchSize != 10 || !r.ExitOnEmpty || r.RequiredDelivery != route.AtLeastOnce ||
		r.Commit != route.CommitSeparate || r.CheckpointInterval != 2*time.Second || !r.SharedStorage || r.ExistingParts != "skip" ||
		r.Roll != (route.Roll{Bytes: 8 << 20, Records: 5, Age: time.Minute}) || r.OnError != route.OnErrorDrop ||
		!maps.Equal(r.Placement.Labels, map[string]string{"zone": "a", "disk": "1"}) || !slices.Equal(r.Placement.Exclude, []string{"n3"}) ||
		r.MaxRecordBytes != 1<<20 || r.ReconnectInterval != 100*time.Millisecond || r.GiveUpAfter != time.Minute {
		t.Errorf("%+v", r)
	}
}

// Each text has one mistake; want is "line:col" and words of the message.
func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	const broker = "input: {static: x}\noutput:\n  broker:\n    url: u\n    topic: t\n"
	for name, c := range map[string]struct{ text, at, want string }{
		"unknown key (fromat)":       {broker + "    fromat: raw\n", "6:5", `did you mean "format"?`},
		"unknown route key":          {broker + "bacth_size: 5\n", "6:1", `did you mean "batch_size"?`},
		"unknown nested key":         {broker + "    tls:\n      requird: true\n", "7:7", `did you mean "required"?`},
		"wrong type":                 {broker + "batch_size: many\n", "6:13", "must be an integer"},
		"quoted number":              {broker + "batch_size: \"5\"\n", "6:13", "without quotes"},
		"number for a string":        {broker + "description: 5\n", "6:14", "put it in quotes"},
		"mapping for a string":       {broker + "description: {a: b}\n", "6:14", "not a mapping"},
		"duration without a unit":    {broker + "checkpoint_interval: 5\n", "6:22", "with a unit"},
		"milliseconds with a unit":   {broker + "reconnect_interval_ms: 5s\n", "6:24", "milliseconds"},
		"both spellings":             {broker + "reconnect_interval_ms: 5\nreconnect_interval: 5s\n", "7:1", "says the same"},
		"size":                       {broker + "    max_bytes: lots\n", "6:16", "must be a size"},
		"below the minimum":          {broker + "    max_bytes: 12\n", "6:16", "at least 1KiB"},
		"above the maximum":          {broker + "concurrency: 1000001\n", "6:14", "at most 1000000"},
		"enum":                       {broker + "on_error: stpo\n", "6:11", `did you mean "stop"?`},
		"dlq without one":            {broker + "on_error: dlq\n", "6:11", "needs a dlq"},
		"dlq and drop":               {broker + "  middlewares:\n  - dlq:\n      endpoint: memory\non_error: drop\n", "9:11", "contradicts the dlq"},
		"dlq to nowhere":             {broker + "  middlewares:\n  - dlq: {}\n", "7:10", "is required"},
		"dlq to a typo":              {broker + "  middlewares:\n  - dlq:\n      endpoint:\n        kafak: {}\n", "9:9", "kafka"},
		"missing required":           {"input: {static: x}\noutput:\n  broker:\n    url: u\n", "4:5", "output.broker.topic: is required"},
		"empty required":             {"input: {static: x}\noutput:\n  broker:\n    url: u\n    topic: ''\n", "5:12", "must not be empty"},
		"no input":                   {"routes:\n  a:\n    output: null\n", "3:5", "input: is required"},
		"endpoint of the dialect":    {"input: {nats: {}}\n", "1:9", "not supported yet"},
		"unknown endpoint":           {"input: {brokre: {}}\n", "1:9", `did you mean "broker"?`},
		"unknown endpoint, bare":     {"input: {static: x}\noutput: nul\n", "2:9", `did you mean "null"?`},
		"two endpoints":              {"input:\n  static: x\n  broker: {}\n", "3:3", "second endpoint"},
		"typo of middlewares":        {"input:\n  static: x\n  middleware: []\n", "3:3", `did you mean "middlewares"?`},
		"only an output":             {"input: {static: x}\noutput:\n  middlewares: []\n", "3:3", "names no endpoint"},
		"cannot be an input":         {"input: {null: null}\n", "1:9", "cannot be an input"},
		"input of the dialect":       {"input: {memory: x}\n", "1:9", "as an input is not supported yet"},
		"middleware of the dialect":  {"input:\n  static: x\n  middlewares:\n    - weak_join: {}\n", "4:7", "not supported yet"},
		"unknown middleware":         {"input:\n  static: x\n  middlewares:\n    - fliter: a\n", "4:7", `did you mean "filter"?`},
		"middleware on wrong side":   {"input: {static: x}\noutput:\n  null:\n  middlewares:\n    - id: a\n", "5:7", "cannot stand on an output"},
		"two names in a middleware":  {"input:\n  static: x\n  middlewares:\n    - filter: a\n      id: b\n", "5:7", "one level deeper"},
		"reserved key":               {broker + "    delayed_ack: true\n", "6:5", "not supported yet"},
		"key that would be ignored":  {broker + "commit_concurrency_limit: 5\n", "6:1", "not supported yet"},
		"duplicate key":              {broker + "    topic: u\n", "6:5", "twice, first in line 5"},
		"duplicate route":            {"routes:\n  a: {input: {static: x}}\n  a: {input: {static: x}}\n", "3:3", "twice"},
		"Validate names a field":     {"input:\n  broker:\n    url: u\n    topic: t\n    format: json\n", "5:13", "json is for outputs"},
		"FromScalar fails":           {"input:\n  static: x\n  middlewares:\n    - filter: ''\n", "4:7", "is empty"},
		"scalar for a mapping":       {"input: {broker: x}\n", "1:17", "must be a mapping"},
		"unset variable":             {"input: {static: \"${NOPE}\"}\n", "1:17", "NOPE is not set"},
		"two checkpoint stores":      {"input: {broker: {url: u, topic: t, checkpoint_store: coordinator}}\ncheckpoint_store: memory\n", "1:36", "differs"},
		"placement of a typo":        {broker + "placement: {label: {zone: a}}\n", "6:13", "did you mean"},
		"placement of a number":      {broker + "placement: {labels: {zone: 1}}\n", "6:28", "put it in quotes"},
		"store of later":             {broker + "checkpoint_store: gs://b/p\n", "6:19", "not supported yet"},
		"store of nobody":            {broker + "checkpoint_store: mysqll://h/d\n", "6:19", `did you mean "mysql"?`},
		"store without a place":      {broker + "checkpoint_store: \"s3://\"\n", "6:19", "needs a host"},
		"file store that is no path": {broker + "checkpoint_store: file://positions.json\n", "6:19", "absolute path"},
		"sqlite store as in sqlx":    {broker + "checkpoint_store: \"sqlite://:memory:\"\n", "6:19", "absolute path"},
		"store in the source":        {broker + "checkpoint_store: cursors\n", "6:19", "not supported yet"},
		"transactional with a store": {broker + "commit: transactional\ncheckpoint_store: coordinator\n", "7:19", "keeps the position in the sink"},
		"syntax":                     {"input: {static: x\noutput: [", "", ""},
		"a route beside routes":      {"routes:\n  a: {input: {static: x}}\nb: {input: {static: x}}\n", "3:1", "move it under routes"},
		"typo of routes":             {"ruotes:\n  a: {input: {static: x}}\n", "1:1", `did you mean "routes"?`},
		"not a mapping":              {"- a\n- b\n", "1:1", "not a list"},
		"empty":                      {"", "1:1", "not nothing"},
		"alias to nothing":           {"input: *x\n", "1:8", "no anchor"},
		"second document":            {"input: {static: x}\n---\ninput: {static: x}\n", "3:1", "second document"},
		"tag":                        {"input: {static: !!binary x}\n", "1:17", "not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := refuse(t, c.text)
			if len(errs) != 1 {
				t.Fatalf("want one error, got:\n%v", errs)
			}
			got := errs[0].Error()
			if !strings.HasPrefix(got, "mqb.yaml:"+c.at) || !strings.Contains(got, c.want) {
				t.Errorf("got %s\nwant %s and %q", got, c.at, c.want)
			}
		})
	}
}

func TestDecodeReportsAllErrorsInOrder(t *testing.T) {
	t.Parallel()
	errs := refuse(t, `
routes:
  a:
    input: {broker: {url: u, tpoic: t}}
    batch_size: x
  b:
    output: {nope: {}}
`)
	var at []int
	for _, e := range errs {
		at = append(at, e.Line)
	}
	if !slices.Equal(at, []int{4, 4, 5, 7, 7}) {
		t.Errorf("lines %v:\n%v", at, errs)
	}
	if errs[0].Route != "a" || errs[len(errs)-1].Route != "b" {
		t.Errorf("routes:\n%v", errs)
	}
}

func TestApplicationKeysAreWarnings(t *testing.T) {
	t.Parallel()
	f := decode(t, "log_level: info\nx-shared: &s {static: x}\nroutes:\n  a: {input: *s}\nui_addr: 127.0.0.1:9091\n")
	if len(f.Warnings) != 3 || !strings.Contains(f.Warnings[0], "mqb.yaml:1:1: log_level") {
		t.Errorf("%q", f.Warnings)
	}
	f = decode(t, "log_level: info\na: {input: {static: x}}\n")
	if len(f.Warnings) != 1 || len(f.Routes) != 1 {
		t.Errorf("%q", f.Warnings)
	}
}

func TestVariables(t *testing.T) {
	t.Parallel()
	f := decode(t, `
input:
  broker:
    url: ${HOST:-localhost}:${PORT}
    topic: "${TOPIC}"
    password: ${PASSWORD}
    max_bytes: ${MAX:-2MiB}
batch_size: ${BATCH:-17}
concurrency: "${WORKERS}"
description: ${A:-${B:-deep}}
`, "PORT", "9092", "TOPIC", "orders", "PASSWORD", "12345", "WORKERS", "3", "A", "")
	r := f.Routes[0]
	in := r.Input.Config.(*brokerConfig)
	if in.URL != "localhost:9092" || in.Topic != "orders" || in.Password != "12345" || in.Max != 2<<20 || r.BatchSize != 17 || r.Concurrency != 3 || r.Description != "deep" {
		t.Errorf("%+v %+v", in, r)
	}
}

// Hazard: load-time interpolation eats the templates of messages.
func TestVariablesLeaveTemplatesAlone(t *testing.T) {
	t.Parallel()
	const text = `${payload:a.b} ${metadata:k} ${message:id} ${gen:uuid} ${env:HOME} $${X} $${Y:-z} ${payload:-a} ${} ${1} $X`
	r := decode(t, "input: {static: '"+text+" ${X}'}\n", "X", "value").Routes[0]
	if got := r.Input.Config.(*textConfig).Body; got != text+" value" {
		t.Errorf("got %s", got)
	}
}

// Hazard (invariant 11): an error repeats the value of a secret.
func TestErrorsHideSecrets(t *testing.T) {
	t.Parallel()
	errs := refuse(t, `
input: {static: x}
output: {broker: {url: u, topic: t, password: 31337, format: "${S}"}}
batch_size: ${S}
`, "S", "hunter2")
	if len(errs) != 3 || strings.Contains(errs.Error(), "hunter2") || strings.Contains(errs.Error(), "31337") {
		t.Errorf("%v", errs)
	}
}

func TestNormalizedReadsBackEqual(t *testing.T) {
	t.Parallel()
	r := decode(t, `
batch_size: 12
output:
  middlewares:
    - filter: "a: b # no comment"
  broker: {topic: "yes", url: "postgres://u:s3cret@h/db?sslpassword=x", password: "p\nq", columns: {z: "1", a: "${payload:a}"}, consumer_options: [[sasl.password, shh]]}
input: {broker: {url: "${U}", topic: t, checkpoint_store: coordinator}}
roll: {age: 5s, bytes: 1MiB}
`, "U", "${NOT_AGAIN}").Routes[0]
	text := r.Normalized()
	again, err := route.DecodeRoute(r.Name, text, testTypes{})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if again.Normalized() != text {
		t.Errorf("not stable:\n%s\n%s", text, again.Normalized())
	}
	if !reflect.DeepEqual(strip(r), strip(again)) {
		t.Errorf("not equal:\n%+v\n%+v\n%s", strip(r), strip(again), text)
	}
	if again.CheckpointStore != "coordinator" || again.Input.Config.(*brokerConfig).URL != "${NOT_AGAIN}" {
		t.Errorf("%s", text)
	}
	masked := r.Masked()
	for _, secret := range []string{"s3cret", "shh", "p\\nq", "sslpassword=x"} {
		if strings.Contains(masked, secret) {
			t.Errorf("masked shows %q:\n%s", secret, masked)
		}
		if !strings.Contains(text, secret) {
			t.Errorf("normalized lacks %q:\n%s", secret, text)
		}
	}
}

func strip(s *route.Spec) map[string]any {
	out := map[string]any{}
	v := reflect.ValueOf(*s)
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && f.Name != "Input" && f.Name != "Output" {
			out[f.Name] = v.Field(i).Interface()
		}
	}
	for _, e := range []route.Endpoint{s.Input, s.Output} {
		out[e.Type] = e.Config
		for _, m := range e.Middlewares {
			out[m.Type] = m.Config
		}
	}
	return out
}

func TestMaskURL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"postgres://u:p@h:5432/db":              "postgres://u:***@h:5432/db",
		"postgres://u:p@a@h/db":                 "postgres://u:***@h/db",
		"postgres://u:p/a?b#c@h/db":             "postgres://u:***@h/db",
		"mongodb://u:p@a:1,b:2/db":              "mongodb://u:***@a:1,b:2/db",
		"http://h:80/p?email=a@b":               "http://h:80/p?email=a@b",
		"https://h/p?api_key=1&x=2":             "https://h/p?api_key=***&x=2",
		"host=h user=u password=p dbname=d":     "host=h user=u password=*** dbname=d",
		"host=h password='a b' user=u":          "host=h password=*** user=u",
		"postgres://h/db":                       "postgres://h/db",
		"plain text":                            "plain text",
		"redis://:secret@h:6379":                "redis://:***@h:6379",
		"postgres://u:%40%2F@h/db?sslkey=/file": "postgres://u:***@h/db?sslkey=***",
	} {
		if got := route.MaskURL(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

// Hazard: nested aliases expand to more memory than there is; nesting ends the
// process with a stack overflow, which cannot be recovered.
func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strconv.Itoa(i) + ": v\n")
	}
	return b.String()
}

func TestHostileFilesAreRefusedQuickly(t *testing.T) {
	t.Parallel()
	laughs := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'k'; c++ {
		prev := string(c - 1)
		laughs += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+prev+",", 9) + "*" + prev + "]\n"
	}
	for name, text := range map[string]string{
		"billion laughs": laughs,
		"self reference": "input: &a [*a]\n",
		"deep brackets":  strings.Repeat("[", 1<<20),
		"deep lists":     strings.Repeat("- ", 1<<19) + "x",
		"deep keys":      strings.Repeat("? ", 1<<19) + "x",
		"deep braces":    strings.Repeat("{a: ", 1<<19),
		"many keys":      manyKeys(1 << 18),
		"keys of a line": "a: {" + strings.Repeat("a: b,", 30_000) + "}",
		"many lines":     strings.Repeat("#\n", 1<<21),
		"many aliases":   "a: &a x\nb: [" + strings.Repeat("*a,", 90_000) + "]",
		"many commas":    "a: [" + strings.Repeat("1,", 1<<21-10) + "]",
		"too large":      "input: {static: " + strings.Repeat("x", route.MaxFileBytes) + "}",
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			refuse(t, text)
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// The bounds against hostile files leave room for large honest ones, in blocks
// as well as in JSON on one line.
func TestAThousandRoutesDecode(t *testing.T) {
	t.Parallel()
	var block, line strings.Builder
	block.WriteString("routes:\n")
	line.WriteString(`{"routes":{`)
	for i := range 1000 {
		name := "r" + strconv.Itoa(i)
		block.WriteString("  " + name + ":\n    input:\n      broker:\n        url: x\n        topic: t\n        columns: {a: b, c: d, e: f}\n      middlewares:\n        - filter: a\n    output:\n      broker: {url: a, topic: b}\n    batch_size: 5\n    roll: {age: 5s, bytes: 1MiB}\n")
		if i > 0 {
			line.WriteByte(',')
		}
		line.WriteString(`"` + name + `":{"input":{"broker":{"url":"x","topic":"t"},"middlewares":[{"filter":"a"}]},"output":{"broker":{"url":"a","topic":"b"}},"batch_size":5}`)
	}
	line.WriteString("}}")
	for _, text := range []string{block.String(), line.String()} {
		if n := len(decode(t, text).Routes); n != 1000 {
			t.Errorf("%d routes", n)
		}
	}
}

// Regression (bug 46): a misspelt key was ignored, and the route ran with the
// default. Every place of a route where a key can stand refuses one it does not know.
func TestUnknownKeysAreNeverIgnored(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"input: {static: x}\nfromat: raw\n",
		"input: {static: x}\nroll: {fromat: raw}\n",
		"input: {static: x, fromat: raw}\n",
		"input: {static: {body: x, fromat: raw}}\n",
		"input: {broker: {url: u, topic: t, fromat: raw}}\n",
		"input: {broker: {url: u, topic: t, tls: {fromat: raw}}}\n",
		"input: {static: x}\noutput: {null: {fromat: raw}}\n",
		"input: {static: x}\noutput: {null: null, fromat: raw}\n",
		"input: {static: x, middlewares: [{filter: a, fromat: raw}]}\n",
		"input: {static: x, middlewares: [{filter: {fromat: raw}}]}\n",
		"input: {static: x, middlewares: [{fromat: raw}]}\n",
		"input: {<<: {fromat: raw}, static: x}\n",
	} {
		errs := refuse(t, text)
		if !strings.Contains(errs.Error(), "fromat") && !strings.Contains(errs.Error(), "must be a single value") {
			t.Errorf("%s: %v", text, errs)
		}
	}
}

// Places are right after tabs of comments, CRLF and letters of several bytes.
func TestPlacesInUnusualFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, at string }{
		"crlf":      {"# c\r\ninput: {static: x}\r\nnope: 1\r\n", "3:1"},
		"bytes":     {"input: {static: \"äöü€\"}\nöäü: {a: b}\n", "2:1"},
		"same line": {"input: {static: \"äö\", nope: 1}\n", "1:23"},
		"comments":  {"# one\n\n\t# two\ninput: {static: x} # three\n  # four\nnope: 1\n", "6:1"},
		"block":     {"description: |\n  a\n\n  b: c\ninput: {static: x}\nnope: 1\n", "6:1"},
		"folded":    {"description: >-\n  a\n  b\n\n\ninput: {static: x}\nnope: 1\n", "7:1"},
		"plain":     {"description: a\n  b\n  c\ninput: {static: x}\nnope: 1\n", "5:1"},
		"bom":       {"\ufeffinput: {static: x}\nnope: 1\n", "2:1"},
	} {
		errs := refuse(t, c.text)
		if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "mqb.yaml:"+c.at+":") {
			t.Errorf("%s: want %s, got %v", name, c.at, errs)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		"routes:\n  a:\n    input: {static: x}\n    output: null\n",
		"input: {broker: {url: u, topic: t, consumer_options: [[a, b]], columns: {x: y}, tls: {required: true}}}\nroll: {age: 1s}\n",
		"a: &a {input: {static: &s 'x'}}\nb: {<<: *a, description: |\n  text\n}\n",
		"input: {static: \"${X:-y} ${payload:a}\"}\nbatch_size: 0x10\nenabled: no\n",
		"input:\n  static: !!str 5\n  middlewares:\n    - filter: >-\n        a\n        b\n",
		"? input\n: {static: x}\n---\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := route.Decode("f.yaml", data, testTypes{}, route.Options{LookupEnv: env("X", "1")})
		if err != nil {
			if err.Error() == "" {
				t.Error("an error that says nothing")
			}
			return
		}
		for _, r := range file.Routes {
			text := r.Normalized()
			again, err := route.DecodeRoute(r.Name, text, testTypes{})
			if err != nil {
				t.Fatalf("%v\n%q\n%s", err, data, text)
			}
			if again.Normalized() != text || !reflect.DeepEqual(strip(r), strip(again)) {
				t.Fatalf("reads back as another route:\n%q\n%s\n%s", data, text, again.Normalized())
			}
			_ = r.Masked()
		}
	})
}
