package kafka

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/static"
	dial "github.com/mqbridge/mqb/dial/kafka"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

func TestOptionsThatAreUnknownOrContradictThemselvesAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		side    route.Side
		options [][2]string
		want    string
	}{
		{route.Output, [][2]string{{"lingerms", "5"}}, "linger.ms"},
		{route.Output, [][2]string{{"group.id", "g"}}, "unknown option"},
		{route.Output, [][2]string{{"acks", "2"}}, "all, 1 or 0"},
		{route.Output, [][2]string{{"acks", "all"}, {"acks", "1"}}, "twice"},
		{route.Output, [][2]string{{"acks", "1"}, {"enable.idempotence", "true"}}, "acks: all"},
		{route.Output, [][2]string{{"max.in.flight", "6"}}, "at most 5"},
		{route.Output, [][2]string{{"compression.type", "brotli"}}, "zstd"},
		{route.Output, [][2]string{{"message.max.bytes", secret}}, "message.max.bytes"},
		{route.Output, [][2]string{{"message.max.bytes", "67108865"}}, "within"},
		{route.Output, [][2]string{{"delivery.timeout.ms", "999"}}, "at least 1000"},
		{route.Output, [][2]string{{"request.timeout.ms", "99"}}, "at least 100"},
		{route.Output, [][2]string{{"retries", "-1"}}, "negative"},
		{route.Input, [][2]string{{"acks", "all"}}, "unknown option"},
		{route.Input, [][2]string{{"enable.auto.commit", "true"}}, "must be false"},
		{route.Input, [][2]string{{"auto.offset.reset", "none"}}, "earliest or latest"},
		{route.Input, [][2]string{{"isolation.level", "none"}}, "read_committed"},
	} {
		cfg := &Config{URL: "a:1", Topic: "t"}
		if c.side == route.Output {
			cfg.ProducerOptions = c.options
		} else {
			cfg.ConsumerOptions = c.options
		}
		errs := cfg.Validate(c.side)
		if said := fmt.Sprint(errs); len(errs) != 1 || !strings.Contains(said, c.want) || strings.Contains(said, secret) {
			t.Errorf("%v: %v, want %q", c.options, errs, c.want)
		}
	}
	for side, cfg := range map[route.Side]*Config{
		route.Input:  {URL: "a:1", Topic: "t", PartitionKey: "k", DelayedAck: true, ProducerOptions: [][2]string{{"acks", "all"}}},
		route.Output: {URL: "a:1", Topic: "t", GroupID: "g", SourceMetadata: true, ConsumerOptions: [][2]string{{"isolation.level", "read_committed"}}},
	} {
		if errs := cfg.Validate(side); len(errs) != 3 {
			t.Errorf("%s: keys of the other side: %v", side, errs)
		}
	}
}

// What validation lets through must not be refused by the client when the route runs.
func TestTheLeastThatAnOptionTakesMakesAProducer(t *testing.T) {
	t.Parallel()
	for _, o := range [][2]string{
		{"delivery.timeout.ms", "1000"}, {"request.timeout.ms", "100"}, {"message.max.bytes", "1000"}, {"retries", "0"}, {"max.in.flight", "1"},
		{"delivery.timeout.ms", "2147483647"}, {"request.timeout.ms", "2147483647"}, {"message.max.bytes", "67108864"}, {"socket.connection.setup.timeout.ms", "1"},
	} {
		cfg := &Config{URL: "a:1", Topic: "t", ProducerOptions: [][2]string{o}}
		s, errs := cfg.settings(route.Output)
		if len(errs) > 0 {
			t.Errorf("%v: %v", o, errs)
			continue
		}
		c, err := dial.Client(s.dial, s.producer(0)...)
		if err != nil {
			t.Errorf("%v: %v", o, err)
			continue
		}
		c.Close()
	}
}

// The client's libraries take their default instead of a level that they do not know.
func TestEveryCompressionLevelIsOneThatItsLibraryKnows(t *testing.T) {
	t.Parallel()
	for codec, apply := range map[string]func(int) error{
		"gzip": func(n int) error { _, err := gzip.NewWriterLevel(nil, n); return err },
		"lz4": func(n int) error {
			return lz4.NewWriter(nil).Apply(lz4.CompressionLevelOption(lz4.CompressionLevel(n)))
		},
		"zstd": func(n int) error {
			w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.EncoderLevel(n)))
			if err == nil {
				_ = w.Close()
			}
			return err
		},
	} {
		for n := range 30 {
			if err := apply(level(codec, n)); err != nil {
				t.Errorf("%s %d: %v", codec, n, err)
			}
		}
	}
	if level("lz4", 1) == level("lz4", 9) || level("zstd", 1) == level("zstd", 19) {
		t.Error("weak and strong are one level")
	}
}

func TestOptionsThatMeanNothingHereAreSaidInTheLog(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	s := newTestSink(t, b.Addr, b.Topic(t, 1), produce("linger.ms", "50", "compression.type", "zstd", "compression.level", "3", "enable.idempotence", "true",
		"retries", "10", "request.timeout.ms", "5000", "partitioner", "consistent"))
	var log bytes.Buffer
	claim := sinkClaim()
	claim.Log = slog.New(slog.NewTextHandler(&log, nil))
	p, err := s.Prepare(t.Context(), connectors.Partition{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Open(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.(connectors.PlainWriter).Write(t.Context(), payloads("a"), 0, 1); err != nil {
		t.Fatal(err)
	}
	if s := log.String(); !strings.Contains(s, "linger.ms") || strings.Contains(s, "compression") {
		t.Errorf("%s", s)
	}
}

// To librdkafka it is a size of batches: a message beyond it goes alone.
func TestABatchSizeIsNoLimitOfAMessage(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	w := mustOpenSink(t, newTestSink(t, b.Addr, topic, produce("batch.size", "16384")))
	if err := w.Write(t.Context(), payloads("a", strings.Repeat("x", 20_000)), 0, 2); err != nil {
		t.Fatal(err)
	}
	if got := consume(t, b, topic); len(got) != 2 {
		t.Fatalf("%d records", len(got))
	}
}

func TestATopicThatTakesLessThanAnyClientSendsStillTakesWhatFits(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1, "max.message.bytes", "400")
	w := mustOpenSink(t, newTestSink(t, b.Addr, topic))
	var rows *connectors.RowsError
	err := w.Write(t.Context(), payloads("a", strings.Repeat("x", 390), "b"), 0, 3)
	if !errors.As(err, &rows) || len(rows.Rows) != 1 || rows.Rows[0].Index != 1 {
		t.Fatalf("%v", err)
	}
	if got := values(consume(t, b, topic)); fmt.Sprint(got) != "[a b]" {
		t.Fatalf("%q", got)
	}
}

// In the dialect delayed_ack lets the input go on before the brokers have answered, and
// lost messages. Whoever relies on it for speed is told that it does nothing here.
func TestAnEarlyAckIsNotTakenOverSilently(t *testing.T) {
	t.Parallel()
	types := connectors.NewRegistry([]connectors.Type{Type(), static.Type()}, nil)
	text := `
input: {static: x}
output:
  kafka: {url: "a:1", topic: t, delayed_ack: true, producer_options: [["linger.ms", "5"]]}
`
	f, err := route.Decode("orders.yaml", []byte(text), types, route.Options{})
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Join(f.Warnings, "\n")
	if len(f.Warnings) != 2 || !strings.Contains(said, "orders.yaml:4:3: kafka: delayed_ack has no effect") || !strings.Contains(said, "linger.ms") {
		t.Fatalf("%s", said)
	}
	f, err = route.Decode("orders.yaml", []byte(strings.Replace(text, "true, producer_options: [[\"linger.ms\", \"5\"]]", "false", 1)), types, route.Options{})
	if err != nil || len(f.Warnings) > 0 {
		t.Fatal(f, err)
	}
}

func TestATopicWithoutALimitOfItsOwnCanBeWrittenTo(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1, "max.message.bytes", fmt.Sprint(math.MaxInt32))
	w := mustOpenSink(t, newTestSink(t, b.Addr, topic))
	large := strings.Repeat("x", 3<<20) // more than topics take by default
	if err := w.Write(t.Context(), payloads("a", large), 0, 2); err != nil {
		t.Fatal(err)
	}
	if got := values(consume(t, b, topic)); len(got) != 2 || got[1] != large {
		t.Fatalf("%d records", len(got))
	}
}

func TestWhereAFirstStartBeginsCanBeSaid(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	b.ProduceN(t, topic, 0, 0, 3)
	reset := func(value string) option {
		return func(c *Config, _ *route.Spec) { c.ConsumerOptions = [][2]string{{"auto.offset.reset", value}} }
	}
	for _, c := range []struct {
		opts []option
		want int64
	}{
		{[]option{reset("earliest")}, 0},
		{[]option{reset("latest"), group("g-" + topic)}, 3},
		{[]option{group("g-" + topic)}, 0},
		{nil, 3},
	} {
		s := newTestSource(t, b, topic, c.opts...)
		// The first question about a group makes a new broker create a topic.
		harness.Eventually(t, 60*time.Second, func() error { return s.Check(t.Context()) })
		claim := s.testClaim(t, 0, message.Position{})
		claim.Late = false
		if got := openClaim(t, s, claim).next; got != c.want {
			t.Errorf("begins at %d, want %d", got, c.want)
		}
	}
}

// What a person sees of a route never holds the password, wherever it was written.
func TestPasswordsOfARouteAreMasked(t *testing.T) {
	t.Parallel()
	types := connectors.NewRegistry([]connectors.Type{Type(), static.Type()}, nil)
	text := `
input:
  static: x
output:
  kafka:
    url: a:1
    topic: t
    username: u
    password: ` + secret + `
    tls: {cert_file: a.p12, cert_password: ` + secret + `}
`
	options := `
input:
  static: x
output:
  kafka: {url: "a:1", topic: t, producer_options: [["security.protocol", "sasl_ssl"], ["sasl.username", "u"], ["sasl.password", "` + secret + `"], ["ssl.keystore.location", "a.p12"], ["ssl.keystore.password", "` + secret + `"]]}
`
	for _, text := range []string{text, options} {
		f, err := route.Decode("orders.yaml", []byte(text), types, route.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if shown := f.Routes[0].Masked(); strings.Contains(shown, secret) || !strings.Contains(shown, "***") {
			t.Errorf("%s", shown)
		}
	}
	_, err := route.Decode("orders.yaml", []byte(strings.Replace(text, "password: "+secret, "password: ["+secret+"]", 1)), types, route.Options{})
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("%v", err)
	}
}
