package harness

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const kafkaVersion = "4.3.1"

// KafkaBroker is a one-node Kafka cluster (broker and KRaft controller in one
// process). It keeps its ports and its data over restarts.
type KafkaBroker struct {
	// Addr is host:port of the broker, without TLS and login.
	Addr string
	// SSL, SASLSSL and SASLPlain are further listeners, with KafkaOptions.TLS.
	SSL, SASLSSL, SASLPlain string
	// DataDir holds its log directories.
	DataDir string

	spec       Spec
	controller int // its port
	mu         sync.Mutex
	proc       *Process
}

// KafkaOptions changes a private broker.
type KafkaOptions struct {
	// Properties are added to server.properties, over the harness's own.
	Properties map[string]string
	// JVM replaces the options of the virtual machine, which are chosen for a
	// quick start, not for throughput.
	JVM []string
	// TLS adds three listeners with this identity: one that wants a certificate of
	// the client, and two that want a login of one of Users, with and without TLS.
	TLS   *Identity
	Users map[string]string
}

var (
	sharedKafka     *KafkaBroker
	sharedKafkaErr  error
	sharedKafkaOnce sync.Once
)

// Kafka returns the broker that the tests of this binary share, starting it on
// first use. Use topics of your own (Topic), and StartKafka to harm a broker.
// The package's TestMain calls Main, which stops it.
func Kafka(t testing.TB) *KafkaBroker {
	t.Helper()
	sharedKafkaOnce.Do(func() {
		dir, err := os.MkdirTemp("", "mqb-kafka-")
		if err != nil {
			sharedKafkaErr = err
			return
		}
		sharedKafka, sharedKafkaErr = newKafka(dir, KafkaOptions{})
		atEnd(func() {
			if sharedKafkaErr == nil {
				// Its data goes with it: an orderly stop would only cost time.
				sharedKafka.Process().Kill()
			}
			_ = os.RemoveAll(dir)
		})
	})
	if sharedKafkaErr != nil {
		t.Fatalf("harness: kafka: %v", sharedKafkaErr)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last output of kafka:\n%s", sharedKafka.Process().Log())
		}
	})
	return sharedKafka
}

// StartKafka starts a broker for one test, which may kill and freeze it.
func StartKafka(t testing.TB, opts KafkaOptions) *KafkaBroker {
	t.Helper()
	b, err := newKafka(t.TempDir(), opts)
	if err != nil {
		t.Fatalf("harness: kafka: %v", err)
	}
	t.Cleanup(func() {
		b.Process().Kill()
		if t.Failed() {
			t.Logf("last output of kafka:\n%s", b.Process().Log())
		}
	})
	return b
}

func newKafka(dir string, opts KafkaOptions) (*KafkaBroker, error) {
	lib, err := cached("kafka-"+kafkaVersion, downloadKafka)
	if err != nil {
		return nil, err
	}
	formatted, err := cached("kafka-"+kafkaVersion+"-formatted", func(dir string) error { return formatKafka(lib, dir) })
	if err != nil {
		return nil, err
	}
	var free [5]int
	for i := range free {
		if free[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	port, controller := free[0], free[1]
	data := filepath.Join(dir, "data")
	if err := copyFormatted(formatted, data); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "server.properties")
	b := &KafkaBroker{Addr: fmt.Sprintf("127.0.0.1:%d", port), DataDir: data, controller: controller}
	properties := opts.Properties
	if opts.TLS != nil {
		properties = b.secure(controller, free[2:], opts)
	}
	if err := os.WriteFile(config, kafkaProperties(data, port, controller, properties), 0o644); err != nil {
		return nil, err
	}
	jvm := opts.JVM
	if jvm == nil {
		jvm = []string{"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xms128m", "-Xmx384m"}
	}
	b.spec = Spec{
		Name:  "kafka",
		Path:  "java",
		Args:  append(slices.Clone(jvm), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(lib, "lib", "*"), "kafka.Kafka", config),
		Dir:   dir,
		Ready: b.ready,
	}
	b.proc, err = start(context.Background(), b.spec)
	return b, err
}

func (b *KafkaBroker) ready(ctx context.Context) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Addr))
	if err != nil {
		return err
	}
	defer c.Close()
	d, err := kadm.NewClient(c).BrokerMetadata(ctx)
	if err == nil && len(d.Brokers) == 0 {
		err = errors.New("no broker registered yet")
	}
	return err
}

// downloadKafka lets Maven fetch Kafka and what it needs into dir/lib.
func downloadKafka(dir string) error {
	pom := `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>mqb.test</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + kafkaVersion + `</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
`
	if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(pom), 0o644); err != nil {
		return err
	}
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("kafka needs java 17 and mvn (Debian: default-jre-headless, maven): %w", err)
		}
	}
	cmd := exec.Command("mvn", "-B", "-q", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(dir, "lib"))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mvn copy-dependencies: %w\n%s", err, out)
	}
	return nil
}

// formatKafka makes an empty data directory once, since the formatter costs as
// much as half a start; a broker gets a copy with a cluster id of its own.
func formatKafka(lib, dir string) error {
	config := filepath.Join(dir, "format.properties")
	if err := os.WriteFile(config, kafkaProperties(filepath.Join(dir, "data"), 1, 2, nil), 0o644); err != nil {
		return err
	}
	cmd := exec.Command("java", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(lib, "lib", "*"), "kafka.tools.StorageTool",
		"format", "-t", clusterID(), "-c", config)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("format: %w\n%s", err, out)
	}
	return nil
}

var idLine = regexp.MustCompile(`(?m)^(cluster\.id|directory\.id)=.*$`)

func copyFormatted(formatted, data string) error {
	if err := os.CopyFS(data, os.DirFS(filepath.Join(formatted, "data"))); err != nil {
		return err
	}
	path := filepath.Join(data, "meta.properties")
	meta, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	meta = idLine.ReplaceAllFunc(meta, func(line []byte) []byte {
		key, _, _ := strings.Cut(string(line), "=")
		return []byte(key + "=" + clusterID())
	})
	return os.WriteFile(path, meta, 0o644)
}

// clusterID makes a random id in Kafka's spelling: 16 bytes in URL-safe base64,
// not beginning with a dash.
func clusterID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	raw[0] = 0x42
	return base64.RawURLEncoding.EncodeToString(raw[:])
}

func kafkaProperties(data string, port, controller int, more map[string]string) []byte {
	p := map[string]string{
		"node.id":                                          "1",
		"process.roles":                                    "broker,controller",
		"listeners":                                        fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, controller),
		"advertised.listeners":                             fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", port),
		"listener.security.protocol.map":                   "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"inter.broker.listener.name":                       "PLAINTEXT",
		"controller.listener.names":                        "CONTROLLER",
		"controller.quorum.voters":                         fmt.Sprintf("1@127.0.0.1:%d", controller),
		"log.dirs":                                         data,
		"auto.create.topics.enable":                        "false",
		"offsets.topic.replication.factor":                 "1",
		"offsets.topic.num.partitions":                     "1",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"transaction.state.log.num.partitions":             "1",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"share.coordinator.state.topic.num.partitions":     "1",
		"group.initial.rebalance.delay.ms":                 "0",
		"log.cleaner.dedupe.buffer.size":                   "4194304",
		"num.network.threads":                              "2",
		"num.io.threads":                                   "4",
	}
	maps.Copy(p, more)
	var s strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&s, "%s=%s\n", k, p[k])
	}
	return []byte(s.String())
}

// Process is the broker's current life: freeze, thaw, kill or stop it there.
func (b *KafkaBroker) Process() *Process {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.proc
}

// Restart ends the broker, if it still runs, and starts it again on its data.
func (b *KafkaBroker) Restart(t testing.TB) {
	t.Helper()
	b.Process().Stop()
	p, err := start(t.Context(), b.spec)
	if err != nil {
		t.Fatalf("harness: restart: %v", err)
	}
	b.mu.Lock()
	b.proc = p
	b.mu.Unlock()
}

// Client returns a plain client that is closed with the test.
func (b *KafkaBroker) Client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Addr), kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	if err != nil {
		t.Fatalf("harness: kafka client: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// Admin returns an admin client that is closed with the test.
func (b *KafkaBroker) Admin(t testing.TB) *kadm.Client {
	t.Helper()
	return kadm.NewClient(b.Client(t))
}

var topicNumber atomic.Int64

// Topic creates a topic with a name that no other test uses; config is pairs of
// a topic configuration's name and value.
func (b *KafkaBroker) Topic(t testing.TB, partitions int, config ...string) string {
	t.Helper()
	name := fmt.Sprintf("t%d-%s", topicNumber.Add(1), strings.ToLower(notTopic.ReplaceAllString(t.Name(), "-")))
	b.CreateTopic(t, name, partitions, config...)
	return name
}

var notTopic = regexp.MustCompile(`[^a-zA-Z0-9]+`)

// CreateTopic creates a topic and returns when it has leaders. Right after a
// deletion of the same name it waits until that is through.
func (b *KafkaBroker) CreateTopic(t testing.TB, name string, partitions int, config ...string) {
	t.Helper()
	configs := map[string]*string{}
	for i := 0; i+1 < len(config); i += 2 {
		configs[config[i]] = kadm.StringPtr(config[i+1])
	}
	adm := b.Admin(t)
	Eventually(t, 30*time.Second, func() error {
		_, err := adm.CreateTopic(t.Context(), int32(partitions), 1, configs, name)
		return err
	})
	b.awaitLeaders(t, adm, name, partitions)
}

// AddPartitions raises the number of partitions of a topic to total.
func (b *KafkaBroker) AddPartitions(t testing.TB, topic string, total int) {
	t.Helper()
	adm := b.Admin(t)
	r, err := adm.UpdatePartitions(t.Context(), total, topic)
	if err == nil {
		err = r.Error()
	}
	if err != nil {
		t.Fatalf("harness: add partitions to %s: %v", topic, err)
	}
	b.awaitLeaders(t, adm, topic, total)
}

func (b *KafkaBroker) awaitLeaders(t testing.TB, adm *kadm.Client, topic string, partitions int) {
	t.Helper()
	Eventually(t, 30*time.Second, func() error {
		ends, err := adm.ListEndOffsets(t.Context(), topic)
		if err == nil {
			err = ends.Error()
		}
		if err == nil && len(ends[topic]) != partitions {
			err = fmt.Errorf("%d partitions", len(ends[topic]))
		}
		return err
	})
}

// DeleteTopic deletes a topic and returns when it is gone from the metadata.
func (b *KafkaBroker) DeleteTopic(t testing.TB, topic string) {
	t.Helper()
	adm := b.Admin(t)
	if _, err := adm.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatalf("harness: delete topic %s: %v", topic, err)
	}
	Eventually(t, 30*time.Second, func() error {
		d, err := adm.ListTopics(t.Context(), topic)
		if err != nil {
			return err
		}
		if !errors.Is(d[topic].Err, kerr.UnknownTopicOrPartition) {
			return errors.New("still there")
		}
		return nil
	})
}

// Produce writes records (Topic and Partition are taken from each) and returns
// when all are acknowledged, with their offsets filled in. Nothing is compressed,
// so that tests know what a record weighs.
func (b *KafkaBroker) Produce(t testing.TB, records ...*kgo.Record) {
	t.Helper()
	c := b.Client(t, kgo.ProducerLinger(5*time.Millisecond), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err := c.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatalf("harness: produce: %v", err)
	}
}

// ProduceN writes values "0" … "n-1" to one partition.
func (b *KafkaBroker) ProduceN(t testing.TB, topic string, partition, from, n int) {
	t.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Partition: int32(partition), Value: fmt.Append(nil, from+i)}
	}
	b.Produce(t, records...)
}

// DeleteRecords moves the start of a partition's log to offset, as retention does.
func (b *KafkaBroker) DeleteRecords(t testing.TB, topic string, partition int, offset int64) {
	t.Helper()
	var o kadm.Offsets
	o.Add(kadm.Offset{Topic: topic, Partition: int32(partition), At: offset})
	r, err := b.Admin(t).DeleteRecords(t.Context(), o)
	if err == nil {
		err = r.Error()
	}
	if err != nil {
		t.Fatalf("harness: delete records of %s: %v", topic, err)
	}
}
