package kafka

import (
	"errors"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	dial "github.com/mqbridge/mqb/dial/kafka"
)

const (
	// fetchBytes is what one fetch asks for. A reader holds at most two of them,
	// the one it is cutting batches from and the one that arrives meanwhile
	// (invariant 8); a single record batch may be larger, as the topic's
	// max.message.bytes allows.
	fetchBytes = 512 << 10
	// unpackedBytes is what a fetch may unpack to: where records compress well,
	// less is asked for, down to minFetchBytes.
	unpackedBytes = 1 << 20
	minFetchBytes = 16 << 10
	// fetchWait is how long a broker holds a fetch back when there is nothing.
	fetchWait = 500 * time.Millisecond
	// decompressBytes bounds what one record batch may unpack to, unless records
	// may be larger than half of it.
	decompressBytes = 64 << 20
)

// fetcher makes the client of one reader: it consumes one partition from one
// offset, outside of any group. A client of its own costs two connections and
// buys that a reader that is not read stops its own fetches and nobody else's.
func fetcher(e *endpoint, maxRecord int64, partition int32, from position, h *health) (*kgo.Client, error) {
	return dial.Client(e.settings.dial,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{e.config.Topic: {
			partition: kgo.NoResetOffset().At(from.offset).WithEpoch(from.epoch),
		}}),
		// A position that the log does not hold is an error and never another
		// position (invariant 10).
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(e.settings.isolation),
		// The markers of transactions carry positions behind the last record.
		kgo.KeepControlRecords(),
		kgo.FetchMaxBytes(fetchBytes),
		kgo.FetchMaxPartitionBytes(fetchBytes),
		kgo.FetchMaxWait(fetchWait),
		kgo.MaxDecompressBatchBytes(unpackLimit(maxRecord)),
		kgo.WithPools(&slabs{}),
		kgo.WithHooks(h),
	)
}

func unpackLimit(maxRecord int64) int {
	return int(min(max(decompressBytes, 2*maxRecord), math.MaxInt32))
}

// health watches a client's connections, since kgo tries again for ever and tells
// nobody, and how well its fetches are compressed. Safe for concurrent use.
type health struct {
	failing atomic.Pointer[failure] // nil after an answer

	packed, unpacked atomic.Int64 // bytes of the batches since the last resize
}

type failure struct {
	since time.Time
	err   error
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (h *health) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err != nil {
		h.fail(err)
	}
}

// OnBrokerDisconnect implements kgo.HookBrokerDisconnect. A connection that only
// was idle is followed by answers on another one.
func (h *health) OnBrokerDisconnect(kgo.BrokerMetadata, net.Conn) { h.fail(errDisconnected) }

var errDisconnected = errors.New("the connection was closed, and no other one could be made")

// OnBrokerE2E implements kgo.HookBrokerE2E. A frozen broker accepts connections,
// so only an answer counts as health; and one that lets nobody in answers all that
// is said up to the login.
func (h *health) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	if err := e2e.Err(); err != nil {
		h.fail(err)
		return
	}
	switch kmsg.Key(key) {
	case kmsg.ApiVersions, kmsg.SASLHandshake, kmsg.SASLAuthenticate:
		return
	}
	h.expect()
}

// expect forgets what failed: an answer came, or one is waited for only from now on.
func (h *health) expect() {
	if h.failing.Load() != nil {
		h.failing.Store(nil)
	}
}

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (h *health) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, m kgo.FetchBatchMetrics) {
	h.packed.Add(int64(m.CompressedBytes))
	h.unpacked.Add(int64(m.UncompressedBytes))
}

// ask returns how much the next fetch may ask for, as the last ones unpacked; ok
// is false when nothing was fetched since the last call.
func (h *health) ask() (n int64, ok bool) {
	packed, unpacked := h.packed.Swap(0), h.unpacked.Swap(0)
	if packed == 0 || unpacked == 0 {
		return 0, false
	}
	return min(fetchBytes, max(minFetchBytes, unpackedBytes*packed/unpacked)), true
}

func (h *health) fail(err error) {
	h.failing.CompareAndSwap(nil, &failure{since: time.Now(), err: err})
}

// unreachable returns the first error since the last answer, if there was none
// for longer than d.
func (h *health) unreachable(d time.Duration) error {
	if f := h.failing.Load(); f != nil && time.Since(f.since) > d {
		return f.err
	}
	return nil
}

// slabs takes the memory of decoded record batches back from kgo, which would
// otherwise make about 150 bytes of garbage a record. It keeps no more than one
// fetch's worth. Safe for concurrent use.
type slabs struct {
	mu      sync.Mutex
	records [][]kgo.Record
	kept    int // records in slabs
	bytes   [][]byte
}

const (
	maxSlabs       = 128
	maxSlabRecords = 8 << 10
	maxBuffers     = 2
)

// GetRecords implements kgo.PoolRecords.
func (s *slabs) GetRecords(n int) []kgo.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.records) - 1; i >= 0; i-- {
		r := s.records[i]
		if cap(r) >= n {
			last := len(s.records) - 1
			s.records[i] = s.records[last]
			s.records = s.records[:last]
			s.kept -= cap(r)
			return r[:0]
		}
	}
	return make([]kgo.Record, 0, n)
}

// PutRecords implements kgo.PoolRecords.
func (s *slabs) PutRecords(r []kgo.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.records) < maxSlabs && s.kept+cap(r) <= maxSlabRecords {
		s.records = append(s.records, r)
		s.kept += cap(r)
	}
}

// GetDecompressBytes implements kgo.PoolDecompressBytes.
func (s *slabs) GetDecompressBytes([]byte, kgo.CompressionCodecType) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.bytes); n > 0 {
		b := s.bytes[n-1]
		s.bytes = s.bytes[:n-1]
		return b
	}
	return nil
}

// PutDecompressBytes implements kgo.PoolDecompressBytes.
func (s *slabs) PutDecompressBytes(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.bytes) < maxBuffers && cap(b) <= 2*fetchBytes {
		s.bytes = append(s.bytes, b)
	}
}
