package api

import (
	"net/http"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/actors/pipeline"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Every metric of a node is named here.
var (
	partitionLabels = []string{"route", "partition"}

	descRecords = prometheus.NewDesc("mqb_records_total",
		"Records by what became of them, since this node took the partition. result=read is the sum of the others and what is in flight.",
		append(partitionLabels, "result"), nil)
	descState = prometheus.NewDesc("mqb_partition_state",
		"1 for the state that the partition is in on this node.",
		append(partitionLabels, "state"), nil)
	descEpoch = prometheus.NewDesc("mqb_partition_epoch",
		"Epoch under which this node holds the partition.", partitionLabels, nil)
	descLag = prometheus.NewDesc("mqb_lag",
		"Distance to the end of the input, in records or in the bytes of sources that count those. Absent while unknown.",
		partitionLabels, nil)
	descBytes = prometheus.NewDesc("mqb_bytes_total",
		"Payload bytes written, since this node took the partition.", partitionLabels, nil)
	descCommits = prometheus.NewDesc("mqb_commits_total",
		"Positions committed, since this node took the partition.", partitionLabels, nil)
	descFenceWait = prometheus.NewDesc("mqb_fence_wait_seconds_total",
		"Time that the writer waited for claims and commits; divided by mqb_run_seconds_total it is what the fence costs.",
		partitionLabels, nil)
	descMessages = prometheus.NewDesc("mqb_endpoint_messages_total",
		"Messages of the calls to an endpoint that has the middleware metrics, by side and result.",
		append(partitionLabels, "side", "result"), nil)
	descErrors = prometheus.NewDesc("mqb_endpoint_errors_total",
		"Calls to an endpoint that failed as a whole, where it has the middleware metrics.",
		append(partitionLabels, "side"), nil)
	descCalls = prometheus.NewDesc("mqb_endpoint_call_seconds",
		"How long the calls to an endpoint took, where it has the middleware metrics; a read includes the wait for data.",
		append(partitionLabels, "side"), nil)
	descRunTime = prometheus.NewDesc("mqb_run_seconds_total",
		"Time that the partition ran on this node.", partitionLabels, nil)
)

// collector reads the runs at each scrape: the partitions count for
// themselves, so that nothing is counted twice or kept after a partition left.
type collector struct {
	runs func() []actors.Run
}

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descRecords, descState, descEpoch, descLag, descBytes, descCommits, descFenceWait, descRunTime,
		descMessages, descErrors, descCalls,
	} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, r := range c.runs() {
		p, n := r.Status, r.Status.Counters
		for _, v := range []struct {
			result string
			n      int64
		}{
			{"read", n.Read},
			{"written", n.Written},
			{"covered", n.Covered},
			{"filtered", n.Filtered},
			{"deduplicated", n.Deduplicated},
			{"dead_lettered", n.DeadLettered},
			{"dropped", n.Dropped},
			{"returned", n.Returned},
		} {
			ch <- prometheus.MustNewConstMetric(descRecords, prometheus.CounterValue, float64(v.n), p.Route, p.Partition, v.result)
		}
		ch <- prometheus.MustNewConstMetric(descState, prometheus.GaugeValue, 1, p.Route, p.Partition, string(p.State))
		ch <- prometheus.MustNewConstMetric(descEpoch, prometheus.GaugeValue, float64(p.Epoch), p.Route, p.Partition)
		for _, v := range []struct {
			desc *prometheus.Desc
			n    float64
		}{
			{descBytes, float64(r.Bytes)},
			{descCommits, float64(r.Commits)},
			{descFenceWait, r.FenceWait.Seconds()},
			{descRunTime, r.RunTime.Seconds()},
		} {
			ch <- prometheus.MustNewConstMetric(v.desc, prometheus.CounterValue, v.n, p.Route, p.Partition)
		}
		collectCalls(ch, p.Route, p.Partition, "input", r.Input)
		collectCalls(ch, p.Route, p.Partition, "output", r.Output)
		if p.Lag >= 0 {
			ch <- prometheus.MustNewConstMetric(descLag, prometheus.GaugeValue, float64(p.Lag), p.Route, p.Partition)
		}
	}
}

// collectCalls writes what one side of a partition counted; nil is nothing.
func collectCalls(ch chan<- prometheus.Metric, route, partition, side string, c *pipeline.CallCounts) {
	if c == nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(descMessages, prometheus.CounterValue, float64(c.Messages), route, partition, side, "ok")
	ch <- prometheus.MustNewConstMetric(descMessages, prometheus.CounterValue, float64(c.Failed), route, partition, side, "failed")
	ch <- prometheus.MustNewConstMetric(descErrors, prometheus.CounterValue, float64(c.Errors), route, partition, side)
	ch <- prometheus.MustNewConstHistogram(descCalls, c.Calls, c.Took.Seconds(), c.Within, route, partition, side)
}

// Metrics serves the metrics of this node's partitions and of the process.
// runs is called at each scrape and must not block.
func Metrics(runs func() []actors.Run) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collector{runs},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}
