package route

import "time"

// routeKeys are the keys of a route beside input and output. Their defaults
// stand here and nowhere else:
//
//   - batch_size 1024: with records of a few hundred bytes a batch fills about
//     the quarter MiB that one read of a file or a Kafka fetch brings; larger
//     ones only add memory, smaller ones cost a channel hop each few records.
//   - checkpoint_interval 1s: what may be read again after a crash, against a
//     write to the store per partition and interval.
//   - roll 64MiB, 1,000,000 records, 10s: parts large enough for an object store
//     to list well, and small enough to be spooled and uploaded in seconds.
//   - max_record_bytes 16MiB: the largest record that brokers are commonly set to.
//   - give_up_after 30s: ten times the default lease TTL; a system that cannot be
//     reached from here for so long may be reachable from another node.
//   - reconnect_interval_ms 5000: the cap of the back-off. It keeps the load of
//     retries off a system that is coming back, and finds it soon enough.
type routeKeys struct {
	Description        string        `yaml:"description" doc:"What the route is for."`
	Enabled            bool          `yaml:"enabled" default:"true" doc:"false keeps the route known and stopped."`
	Concurrency        int           `yaml:"concurrency" default:"1" min:"1" max:"1000000" doc:"Middleware workers per partition; the order of messages is kept. One works where a middleware paces or remembers."`
	BatchSize          int           `yaml:"batch_size" default:"1024" min:"1" max:"1000000" doc:"The most messages in one batch."`
	ExitOnEmpty        bool          `yaml:"exit_on_empty" default:"false" doc:"End the route at the end of its input instead of waiting for more."`
	RequiredDelivery   Guarantee     `yaml:"required_delivery" enum:"at-most-once|at-least-once|effectively-once|exactly-once" doc:"Refuse the route if its guarantee is weaker."`
	CheckpointStore    string        `yaml:"checkpoint_store" doc:"URL of the store of positions. Absent: the sink where it is transactional, else the coordinator. An input's own key of this name means the same."`
	Commit             CommitMode    `yaml:"commit" default:"auto" enum:"auto|transactional|separate" doc:"transactional keeps the position in the sink, in one transaction with the rows; separate keeps it apart; auto takes the strongest the sink offers."`
	CheckpointInterval time.Duration `yaml:"checkpoint_interval" alias:"checkpoint_interval_ms" default:"1s" min:"10ms" max:"1h" doc:"How often a position is committed where that is apart from the write."`
	SharedStorage      bool          `yaml:"shared_storage" default:"false" doc:"Local paths of this route are mounted on all nodes, so any node may hold any partition."`
	Placement          placementKeys `yaml:"placement" doc:"Which nodes may hold the route's partitions; absent means all. A change moves partitions off nodes that may not any more."`
	ExistingParts      string        `yaml:"existing_parts" default:"fail" enum:"fail|skip" doc:"What to do about parts that another route left under the same prefix: refuse to start, or take their records as already covered."`
	Roll               rollKeys      `yaml:"roll" doc:"When a part is complete; whichever comes first."`
	OnError            OnError       `yaml:"on_error" enum:"stop|drop|dlq" doc:"A record that cannot be handled: stop its partition, drop and count it, or send it to the dlq of the output. dlq where there is a dlq, else stop."`
	MaxRecordBytes     Bytes         `yaml:"max_record_bytes" default:"16MiB" min:"1" max:"1GiB" doc:"A larger record counts as one that cannot be handled."`
	ReconnectInterval  time.Duration `yaml:"reconnect_interval_ms" alias:"reconnect_interval" default:"5000" min:"1ms" max:"1h" doc:"The longest pause between two attempts to reach a system."`
	GiveUpAfter        time.Duration `yaml:"give_up_after" alias:"give_up_after_ms" default:"30s" min:"1s" max:"24h" doc:"How long a node keeps a partition whose systems it cannot reach before it hands it back."`
}

type placementKeys struct {
	Labels  map[string]string `yaml:"labels" doc:"Labels that a node must have, all of them (mqbd --label)."`
	Exclude []string          `yaml:"exclude" doc:"Names of nodes that must not hold any."`
}

type rollKeys struct {
	Bytes   Bytes         `yaml:"bytes" default:"64MiB" min:"1KiB" max:"5GiB" doc:"Size of a part before compression."`
	Records int64         `yaml:"records" default:"1000000" min:"1" doc:"Records of a part."`
	Age     time.Duration `yaml:"age" alias:"age_ms" default:"10s" min:"10ms" max:"24h" doc:"Time since the first record of a part."`
}

// unsupportedRouteKeys belong to the dialect or to the design and would have to
// be ignored today, so they are refused.
var unsupportedRouteKeys = []string{
	"allow_fault_injection", "commit_concurrency_limit", "delivery_mode",
	"empty_batch_delay_ms", "partitions", "startup_timeout_ms",
}

// applicationKeys configure mq-bridge's own process. Beside routes they are
// warned about, not refused: a file of mq-bridge runs unchanged.
var applicationKeys = []string{
	"config_security", "consumers", "env_vars", "log_level", "logger",
	"metrics_addr", "plugins", "publishers", "ui_addr",
}

// dialectEndpoints and dialectMiddlewares are what mq-bridge knows; those that
// this binary has no type for are "not supported yet" rather than unknown.
var (
	dialectEndpoints = []string{
		"amqp", "aws", "clickhouse", "custom", "dir_spool", "elasticsearch", "fanout", "file", "grpc", "http",
		"http_bulk", "ibmmq", "kafka", "meilisearch", "memory", "mongodb", "mqtt", "nats", "null", "object_store",
		"postgres_cdc", "pulsar", "qdrant", "reader", "redis_streams", "ref", "request", "response", "sequence",
		"sled", "sqlx", "static", "stream_buffer", "switch", "typesense", "websocket", "zeromq",
	}
	dialectMiddlewares = []string{
		"aggregate", "buffer", "compression", "cookie_jar", "deduplication", "delay", "dlq", "encryption",
		"filter", "id", "limiter", "lookup", "metrics", "otel", "pack", "random_panic", "retry", "timeout",
		"transform", "unpack", "weak_join",
	}
)

// oneSided are the endpoints of the dialect that stand on one side only; each of
// the others is both an input and an output there.
var oneSided = map[string]Side{
	"fanout": Output, "null": Output, "reader": Output, "request": Output, "response": Output, "switch": Output,
	"elasticsearch": Output, "meilisearch": Output, "qdrant": Output, "typesense": Output,
	"postgres_cdc": Input, "sequence": Input,
}

func (k *routeKeys) spec() *Spec {
	return &Spec{
		Description: k.Description, Enabled: k.Enabled,
		Concurrency: k.Concurrency, BatchSize: k.BatchSize, ExitOnEmpty: k.ExitOnEmpty,
		RequiredDelivery: k.RequiredDelivery,
		CheckpointStore:  k.CheckpointStore, Commit: k.Commit, CheckpointInterval: k.CheckpointInterval,
		SharedStorage: k.SharedStorage, Placement: Placement(k.Placement), ExistingParts: k.ExistingParts,
		Roll:    Roll{Bytes: int64(k.Roll.Bytes), Records: k.Roll.Records, Age: k.Roll.Age},
		OnError: k.OnError, MaxRecordBytes: int64(k.MaxRecordBytes),
		ReconnectInterval: k.ReconnectInterval, GiveUpAfter: k.GiveUpAfter,
	}
}
