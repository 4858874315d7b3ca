package kafka

import (
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"

	dial "github.com/mqbridge/mqb/dial/kafka"
)

// settings is what the two lists of options come to. They are written in the names
// of librdkafka, which the dialect hands them to.
type settings struct {
	dial dial.Config

	// Of a producer.
	acks        kgo.Acks
	idempotence string // "", "true", "false"
	codec       string
	level       *int
	batchBytes  int32 // 0: as the topic allows
	inFlight    int   // 0: as many as order allows
	retries     int   // -1: until delivery ends it
	request     time.Duration
	delivery    time.Duration
	partitioner string

	// Of a consumer.
	first     string // "", "earliest", "latest"
	isolation kgo.IsolationLevel

	// unused are options that mean nothing here; a run says so in its log.
	unused []string
}

const (
	// requestTimeout is how long a broker may take for its replicas.
	requestTimeout = 10 * time.Second
	// deliveryTimeout is how long brokers that do answer may fail to take a record,
	// before the route decides what to do about it.
	deliveryTimeout = 30 * time.Second
)

// setter reads the value of one option.
type setter func(s *settings, value string) error

// Options of both sides: how to get in.
var connectionOptions = map[string]setter{
	"client.id":             text(func(s *settings) *string { return &s.dial.ClientID }),
	"security.protocol":     lower(func(s *settings) *dial.Protocol { return &s.dial.Protocol }),
	"sasl.mechanism":        mechanism,
	"sasl.mechanisms":       mechanism,
	"sasl.username":         text(func(s *settings) *string { return &s.dial.Username }),
	"sasl.password":         text(func(s *settings) *string { return &s.dial.Password }),
	"ssl.ca.location":       text(func(s *settings) *string { return &s.dial.TLS.CAFile }),
	"ssl.key.location":      text(func(s *settings) *string { return &s.dial.TLS.KeyFile }),
	"ssl.keystore.location": text(func(s *settings) *string { return &s.dial.TLS.CertFile }),
	"ssl.keystore.password": text(func(s *settings) *string { return &s.dial.TLS.CertPassword }),

	"ssl.certificate.location": text(func(s *settings) *string { return &s.dial.TLS.CertFile }),
	"enable.ssl.certificate.verification": func(s *settings, v string) error {
		on, err := strconv.ParseBool(v)
		s.dial.TLS.AcceptInvalidCerts = s.dial.TLS.AcceptInvalidCerts || !on
		return err
	},
	"socket.connection.setup.timeout.ms": millis(1, func(s *settings) *time.Duration { return &s.dial.DialTimeout }),
}

var producerOptions = map[string]setter{
	"acks":                  acks,
	"request.required.acks": acks,
	"enable.idempotence": func(s *settings, v string) error {
		_, err := strconv.ParseBool(v)
		s.idempotence = strings.ToLower(v)
		return err
	},
	"compression.type":  oneOf(func(s *settings) *string { return &s.codec }, "none", "gzip", "snappy", "lz4", "zstd"),
	"compression.codec": oneOf(func(s *settings) *string { return &s.codec }, "none", "gzip", "snappy", "lz4", "zstd"),
	"compression.level": func(s *settings, v string) error {
		n, err := strconv.Atoi(v)
		if n >= 0 { // -1 is each codec's default
			s.level = &n
		}
		return err
	},
	"message.max.bytes":                     batchMax,
	"max.in.flight":                         inFlight,
	"max.in.flight.requests.per.connection": inFlight,
	"retries":                               retries,
	"message.send.max.retries":              retries,
	"request.timeout.ms":                    millis(100, func(s *settings) *time.Duration { return &s.request }),
	"delivery.timeout.ms":                   millis(1000, func(s *settings) *time.Duration { return &s.delivery }),
	"message.timeout.ms":                    millis(1000, func(s *settings) *time.Duration { return &s.delivery }),
	"partitioner":                           oneOf(func(s *settings) *string { return &s.partitioner }, "consistent_random", "consistent", "murmur2_random", "murmur2"),
}

var consumerOptions = map[string]setter{
	"auto.offset.reset": func(s *settings, v string) error {
		switch v {
		case "earliest", "smallest", "beginning":
			s.first = "earliest"
		case "latest", "largest", "end":
			s.first = "latest"
		default:
			return errors.New("must be earliest or latest: it decides where a first start begins, and nothing else is ever jumped over")
		}
		return nil
	},
	"isolation.level": func(s *settings, v string) error {
		switch v {
		case "read_committed":
			s.isolation = kgo.ReadCommitted()
		case "read_uncommitted":
			s.isolation = kgo.ReadUncommitted()
		default:
			return errors.New("must be read_committed or read_uncommitted")
		}
		return nil
	},
	"enable.auto.commit": func(_ *settings, v string) error {
		if on, err := strconv.ParseBool(v); err != nil || on {
			return errors.New("must be false: offsets follow the position once that is durable")
		}
		return nil
	},
}

// Options of librdkafka that tune what works in another way here: a batch of the
// route is sent at once and as a whole, fetches size themselves within a bound, and
// no consumer group is joined.
var (
	// batch.size ends a batch and is no limit of a message.
	unusedByProducer = []string{
		"linger.ms", "queue.buffering.max.ms", "queue.buffering.max.messages", "queue.buffering.max.kbytes", "batch.num.messages", "batch.size",
	}
	unusedByConsumer = []string{
		"fetch.min.bytes", "fetch.max.bytes", "fetch.wait.max.ms", "fetch.message.max.bytes", "max.partition.fetch.bytes", "fetch.queue.backoff.ms",
		"fetch.error.backoff.ms", "queued.min.messages", "queued.max.messages.kbytes", "receive.message.max.bytes",
		"session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "partition.assignment.strategy", "group.instance.id",
		"enable.auto.offset.store", "auto.commit.interval.ms", "enable.partition.eof",
	}
)

// read takes a list of options in; side is the key they stand under.
func (s *settings) read(side string, given [][2]string, own map[string]setter, unused []string) []error {
	var errs []error
	seen := map[string]bool{}
	for _, o := range given {
		name, value := o[0], o[1]
		f := own[name]
		if f == nil {
			f = connectionOptions[name]
		}
		var err error
		switch {
		case seen[name]:
			err = errors.New("given twice")
		case f != nil:
			err = f(s, value)
		case slices.Contains(unused, name):
			s.unused = append(s.unused, name)
		default:
			known := slices.Sorted(maps.Keys(own))
			known = append(known, slices.Sorted(maps.Keys(connectionOptions))...)
			err = fmt.Errorf("unknown option; known are %s; without effect are %s", strings.Join(known, ", "), strings.Join(unused, ", "))
		}
		seen[name] = true
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", side, name, plainly(err)))
		}
	}
	return errs
}

// plainly leaves the value out of errors of strconv, which quote it: it may come
// from a variable that holds a secret (invariant 11).
func plainly(err error) error {
	var n *strconv.NumError
	if errors.As(err, &n) {
		return fmt.Errorf("is no value of its kind: %w", n.Err)
	}
	return err
}

func text(field func(*settings) *string) setter {
	return func(s *settings, v string) error {
		if f := field(s); *f == "" || *f == v {
			*f = v
			return nil
		}
		return errors.New("the endpoint has a key of its own for it, with another value")
	}
}

func lower[S ~string](field func(*settings) *S) setter {
	return func(s *settings, v string) error {
		*field(s) = S(strings.ToLower(v))
		return nil
	}
}

func oneOf(field func(*settings) *string, values ...string) setter {
	return func(s *settings, v string) error {
		if !slices.Contains(values, v) {
			return fmt.Errorf("must be one of %s", strings.Join(values, ", "))
		}
		*field(s) = v
		return nil
	}
}

// millis reads a time of at least least milliseconds.
func millis(least int64, field func(*settings) *time.Duration) setter {
	return func(s *settings, v string) error {
		n, err := strconv.ParseInt(v, 10, 32)
		if err == nil && n < least {
			err = fmt.Errorf("must be at least %d", least)
		}
		*field(s) = time.Duration(n) * time.Millisecond
		return err
	}
}

func mechanism(s *settings, v string) error {
	s.dial.Mechanism = dial.Mechanism(strings.ToUpper(v))
	return nil
}

func acks(s *settings, v string) error {
	switch v {
	case "all", "-1":
		s.acks = kgo.AllISRAcks()
	case "1":
		s.acks = kgo.LeaderAck()
	case "0":
		s.acks = kgo.NoAck()
	default:
		return errors.New("must be all, 1 or 0")
	}
	return nil
}

func batchMax(s *settings, v string) error {
	n, err := strconv.ParseInt(v, 10, 32)
	if err == nil && (n < 1000 || n > maxBatchBytes) {
		err = errors.New("must be within 1000 and 67108864")
	}
	s.batchBytes = int32(n)
	return err
}

func inFlight(s *settings, v string) error {
	n, err := strconv.Atoi(v)
	if err == nil && n < 1 {
		err = errors.New("must be at least 1")
	}
	s.inFlight = n
	return err
}

func retries(s *settings, v string) error {
	n, err := strconv.Atoi(v)
	if err == nil && n < 0 {
		err = errors.New("must not be negative")
	}
	s.retries = n
	return err
}

// producer is the client options of a producer; topicMax is the largest record
// batch that the topic takes, 0 if that is not known.
func (s *settings) producer(topicMax int32) []kgo.Opt {
	most := cmp.Or(s.batchBytes, min(topicMax, maxBatchBytes), defaultBatchBytes)
	most = max(most, minBatchBytes)
	opts := []kgo.Opt{
		kgo.RequiredAcks(s.acks),
		kgo.RecordPartitioner(s.byKey()),
		kgo.ProducerBatchCompression(s.compression()),
		kgo.ProducerBatchMaxBytes(most),
		kgo.ProduceRequestTimeout(s.request),
		kgo.RecordDeliveryTimeout(s.delivery),
		// A batch is buffered as a whole and then sent, so that one that is refused
		// takes those behind it in its partition with it: order is kept when they are
		// sent again. Its size is the route's.
		kgo.ManualFlushing(),
		kgo.MaxBufferedRecords(1 << 30),
		kgo.UnknownTopicRetries(unknownTopicRetries),
	}
	if s.retries >= 0 {
		opts = append(opts, kgo.RecordRetries(s.retries))
	}
	if s.idempotent() {
		// What was sent and not answered is given up at the end of its time. It is
		// written again, as after any other failure: at-least-once.
		return append(opts, kgo.AllowIdempotentProduceCancellation())
	}
	opts = append(opts, kgo.DisableIdempotentWrite())
	if s.inFlight > 0 {
		opts = append(opts, kgo.MaxProduceRequestsInflightPerBroker(s.inFlight))
	}
	return opts
}

const (
	// maxBatchBytes is what a request has room for; topics may name any limit.
	maxBatchBytes = 64 << 20
	// minBatchBytes is the least that a client sends at once. A topic may take less:
	// what is too large for it is then refused by the broker.
	minBatchBytes = 512
	// defaultBatchBytes is what topics take by default (message.max.bytes).
	defaultBatchBytes = 1_048_588
	// unknownTopicRetries gives a topic that was just created time to be known by
	// all brokers.
	unknownTopicRetries = 20
)

func (s *settings) idempotent() bool {
	return s.idempotence == "true" || s.idempotence == "" && s.acks == kgo.AllISRAcks()
}

// validate reports what the options of a producer contradict each other in.
func (s *settings) validate() []error {
	var errs []error
	if s.idempotence == "true" && s.acks != kgo.AllISRAcks() {
		errs = append(errs, errors.New("producer_options: enable.idempotence: true needs acks: all"))
	}
	if s.idempotent() && s.inFlight > 5 {
		errs = append(errs, errors.New("producer_options: max.in.flight: an idempotent producer has at most 5"))
	}
	return errs
}

func (s *settings) compression() kgo.CompressionCodec {
	c := kgo.NoCompression()
	switch s.codec {
	case "gzip":
		c = kgo.GzipCompression()
	case "snappy":
		c = kgo.SnappyCompression()
	case "lz4":
		c = kgo.Lz4Compression()
	case "zstd":
		c = kgo.ZstdCompression()
	}
	if s.level != nil {
		c = c.WithLevel(level(s.codec, *s.level))
	}
	return c
}

// level is n, which counts as the programs of the codec do, as its library counts:
// those pass over what they do not know and take their default. Beyond the strongest
// one it is that.
func level(codec string, n int) int {
	switch codec {
	case "gzip":
		return min(n, gzip.BestCompression)
	case "lz4":
		levels := []lz4.CompressionLevel{lz4.Fast, lz4.Level1, lz4.Level2, lz4.Level3, lz4.Level4, lz4.Level5, lz4.Level6, lz4.Level7, lz4.Level8, lz4.Level9}
		return int(levels[min(n, len(levels)-1)])
	case "zstd":
		return int(zstd.EncoderLevelFromZstd(cmp.Or(n, 3))) // 0 is the default, which is 3
	}
	return n
}

// byKey picks partitions as librdkafka does, by default too, so that a key stays in
// the partition in which the dialect's own program put it; murmur2 is what
// programs in Java do.
func (s *settings) byKey() kgo.Partitioner {
	if strings.HasPrefix(s.partitioner, "murmur2") {
		return kgo.StickyKeyPartitioner(nil)
	}
	return kgo.StickyKeyPartitioner(func(key []byte, n int) int {
		return int(crc32.ChecksumIEEE(key) % uint32(n))
	})
}
