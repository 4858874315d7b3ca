package route_test

import (
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/route"
)

const overridden = `
routes:
  my-orders:
    batch_size: 10
    input:
      broker: {url: "h:1", topic: t, consumer_options: [[a, b]]}
      middlewares:
        - filter: "a > 1"
    output: "null"
`

func override(t *testing.T, text string, environ ...string) (*route.File, error) {
	t.Helper()
	return route.Decode("f.yaml", []byte(text), testTypes{}, route.Options{
		Overrides: route.OverridesFrom(append(environ, "PATH=/bin", "MQBD_LISTEN=x")),
		LookupEnv: func(string) (string, bool) { return "", false },
	})
}

func TestOverridesSetAnyKeyWithTheTypeOfItsField(t *testing.T) {
	t.Parallel()
	f, err := override(t, overridden,
		"MQB__MY_ORDERS__BATCH_SIZE=20", "MQB__my_orders__Roll__Age=3s", "MQB__MY_ORDERS__DESCRIPTION=12",
		"MQB__MY_ORDERS__INPUT__BROKER__POLLING_INTERVAL_MS=7", "MQB__MY_ORDERS__INPUT__BROKER__TLS__REQUIRED=true",
		"MQB__MY_ORDERS__INPUT__BROKER__CONSUMER_OPTIONS__0__1=c", `MQB__MY_ORDERS__INPUT__BROKER__COLUMNS={"x": "y"}`,
		"MQB__MY_ORDERS__INPUT__MIDDLEWARES__0__FILTER=a == \"${b}\"", "MQB__MY_ORDERS__INPUT__MIDDLEWARES__1__FILTER=true",
		"MQB__MY_ORDERS__PLACEMENT__EXCLUDE=n1,n2")
	if err != nil {
		t.Fatal(err)
	}
	s := f.Routes[0]
	c := s.Input.Config.(*brokerConfig)
	if s.BatchSize != 20 || s.Roll.Age != 3*time.Second || s.Description != "12" || c.Poll != 7*time.Millisecond || !c.TLS.Required ||
		c.Options[0] != [2]string{"a", "c"} || c.Columns["x"] != "y" || len(s.Placement.Exclude) != 2 || s.Placement.Exclude[1] != "n2" {
		t.Errorf("%+v %+v", s, c)
	}
	if m := s.Input.Middlewares; len(m) != 2 || *m[0].Config.(*exprConfig) != `a == "${b}"` || *m[1].Config.(*exprConfig) != "true" {
		t.Errorf("%+v", m)
	}
	if again, err := route.DecodeRoute("my-orders", s.Normalized(), testTypes{}); err != nil || again.BatchSize != 20 {
		t.Errorf("%v %v", again, err)
	}
}

func TestOverridesReachFilesOfEveryShape(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"input: {broker: {url: u, topic: t}}",
		"f: {input: {broker: {url: u, topic: t}}}",
		"routes: {f: {input: {broker: {url: u, topic: t}}}}",
	} {
		f, err := override(t, text, "MQB__F__INPUT__BROKER__TOPIC=x", "MQB__F__OUTPUT__MEMORY={}")
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if c := f.Routes[0].Input.Config.(*brokerConfig); c.Topic != "x" || f.Routes[0].Output.Type != "memory" {
			t.Errorf("%s: %+v", text, c)
		}
	}
}

// A setting that somebody believes in must not be ignored.
func TestAnOverrideThatHitsNothingIsAnErrorWithItsNameAndTheNearestOne(t *testing.T) {
	t.Parallel()
	for variable, want := range map[string]string{
		"MQB__MY_ORDER__BATCH_SIZE=1":                         "MQB__MY_ORDER: names no route of this file (did you mean MQB__MY_ORDERS?)",
		"MQB__X__BATCH_SIZE=1":                                "names no route of this file (routes: my_orders)",
		"MQB__MY_ORDERS__BATCH_SIZ=1":                         `unknown key (did you mean "batch_size"?)`,
		"MQB__MY_ORDERS__INPUT__BROKER__TOPC=1":               `input.broker.topc: unknown key (did you mean "topic"?)`,
		"MQB__MY_ORDERS__INPUT__BROKER__TOPIC__X=1":           "there is a single value, which has no x",
		"MQB__MY_ORDERS__INPUT__KAFKA__TOPIC=1":               "a second endpoint",
		"MQB__MY_ORDERS__INPUT__BROKER__CONSUMER_OPTIONS__5=": "the list has 1 entries and no entry 5",
		"MQB__MY_ORDERS__INPUT__MIDDLEWARES__X__FILTER=":      "x is no index of a list",
		"MQB__MY_ORDERS__BATCH_SIZE=many":                     "batch_size: must be an integer, not this value",
		"MQB__MY_ORDERS__BATCH_SIZE=0":                        "batch_size: must be at least 1",
		"MQB__MY_ORDERS__=1":                                  "has an empty part",
		"MQB__MY_ORDERS=1":                                    "a route is a mapping",
	} {
		_, err := override(t, overridden, variable)
		name, value, _ := strings.Cut(variable, "=")
		if err == nil || !strings.HasPrefix(err.Error(), strings.Split(name, "__BATCH")[0]) || strings.Contains(err.Error(), "f.yaml") {
			t.Errorf("%s: %v", variable, err)
			continue
		}
		if want = strings.TrimPrefix(want, name+": "); !strings.Contains(err.Error(), strings.TrimPrefix(want, "MQB__MY_ORDER: ")) {
			t.Errorf("%s: %v", variable, err)
		}
		if len(value) > 3 && strings.Contains(err.Error(), value) {
			t.Errorf("%s: shows the value: %v", variable, err)
		}
	}
	if _, err := override(t, overridden, "MQB__MY_ORDERS__BATCH_SIZE=1", "MQB__my_orders__batch_size=2"); err == nil || !strings.Contains(err.Error(), "sets what MQB__MY_ORDERS__BATCH_SIZE sets already") {
		t.Errorf("twice: %v", err)
	}
}

func TestAnOverriddenSecretStaysMasked(t *testing.T) {
	t.Parallel()
	f, err := override(t, overridden, "MQB__MY_ORDERS__INPUT__BROKER__PASSWORD=geheim", "MQB__MY_ORDERS__INPUT__BROKER__URL=x://u:geheim@h/d")
	if err != nil {
		t.Fatal(err)
	}
	if c := f.Routes[0].Input.Config.(*brokerConfig); c.Password != "geheim" || strings.Contains(f.Routes[0].Masked(), "geheim") {
		t.Errorf("%+v\n%s", c, f.Routes[0].Masked())
	}
}

// A text that is no UTF-8 cannot be passed on to the nodes as it is: a file of such a
// name would be looked for under another one.
func TestWhatIsNoUTF8IsRefusedAndDoesNotBecomeAnotherText(t *testing.T) {
	t.Parallel()
	const text = "routes:\n  r:\n    input: {broker: {url: ü, topic: \"${T}\"}}\n"
	env := func(value string) route.LookupEnv {
		return func(string) (string, bool) { return value, true }
	}
	for says, c := range map[string]struct {
		text      string
		env       string
		overrides []route.Override
	}{
		"f.yaml:3:28: the file is not UTF-8":     {strings.Replace(text, "ü", "a\xff", 1), "t", nil},
		"f.yaml:3:37: variable T is not UTF-8\n": {text, "\xfft", nil},
		"MQB__R__INPUT__BROKER__TOPIC: is not":   {text, "t", []route.Override{{Name: "MQB__R__INPUT__BROKER__TOPIC", Value: "\xc3"}}},
	} {
		_, err := route.Decode("f.yaml", []byte(c.text), testTypes{}, route.Options{LookupEnv: env(c.env), Overrides: c.overrides})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("want %s, got %v", says, err)
		}
	}
}
