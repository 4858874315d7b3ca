package file

import (
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// encoder writes messages in the format of a sink, for one goroutine. It
// allocates nothing per message.
type encoder struct {
	format    string
	delimiter byte
	csv       *csvEncoder // format csv only
	seed      uint64      // of the ids of messages that have none
	idText    []byte
}

func newEncoder(cfg *Config, claim connectors.Claim) (*encoder, error) {
	e := &encoder{format: cfg.format(), delimiter: cfg.delimiter(), seed: idSeed(claim)}
	if e.format == formatCSV {
		var err error
		e.csv, err = newCSVEncoder(&cfg.CSV, claim)
		return e, err
	}
	return e, nil
}

// block returns messages [i, j) with their delimiters as they stand in b, if that
// is what the format makes of them; else nil.
func (e *encoder) block(b *message.Batch, i, j int) []byte {
	if e.delimiter != '\n' || e.format != formatRaw {
		return nil
	}
	return b.Lines(i, j)
}

// appendAll appends messages [i, j). Those that are refused are left out and named.
func (e *encoder) appendAll(dst []byte, b *message.Batch, i, j int) ([]byte, *connectors.RowsError) {
	var refused *connectors.RowsError
	for m := i; m < j; m++ {
		var err error
		if dst, err = e.append(dst, b, m); err != nil {
			if refused == nil {
				refused = new(connectors.RowsError)
			}
			refused.Rows = append(refused.Rows, connectors.RowError{Index: m, Err: err})
		}
	}
	return dst, refused
}

// append appends message m and its delimiter. An error refuses the message; dst is
// then as long as it was.
func (e *encoder) append(dst []byte, b *message.Batch, m int) ([]byte, error) {
	switch e.format {
	case formatNormal, formatJSON:
		return append(appendEnvelope(dst, b, m, e.id(b.Msg(m).Ordinal), e.format == formatJSON), e.delimiter), nil
	case formatCSV:
		return e.csv.append(dst, b.Payload(m))
	}
	return append(append(dst, b.Payload(m)...), e.delimiter), nil
}

// appendOneLine appends a valid JSON value without line ends and other control
// characters, which may be the delimiter: inside of one they are white space between
// tokens.
func appendOneLine(dst, p []byte) []byte {
	at := len(dst)
	dst = append(dst, p...)
	for k := at; k < len(dst); k++ {
		if dst[k] < ' ' {
			dst[k] = ' '
		}
	}
	return dst
}

// idSeed and id make the id of a message that has none: the same whenever the
// same record is written again.
func idSeed(claim connectors.Claim) uint64 {
	h := fnv.New64a()
	for _, s := range []string{claim.RouteUID, claim.Series, claim.Partition.ID} {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	return h.Sum64()
}

func (e *encoder) id(ordinal int64) []byte {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], e.seed)
	binary.BigEndian.PutUint64(raw[8:], uint64(ordinal))
	e.idText = e.idText[:0]
	for i, from := 0, 0; i < 5; i++ {
		n := [...]int{4, 2, 2, 2, 6}[i]
		if i > 0 {
			e.idText = append(e.idText, '-')
		}
		e.idText = hex.AppendEncode(e.idText, raw[from:from+n])
		from += n
	}
	return e.idText
}

// headed reports whether what has to stand before the first record is written.
func (e *encoder) headed() bool { return e.csv == nil || e.csv.headed }

// startFile forgets what belongs to the file before: its header.
func (e *encoder) startFile() {
	if e.csv != nil {
		e.csv.startFile()
	}
}
