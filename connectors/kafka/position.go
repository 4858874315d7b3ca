package kafka

import (
	"encoding/binary"
	"fmt"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/message"
)

// position is the content of a token: the offset to read next, the topic it is
// an offset of, and the leader epoch of the record before it (-1 unknown), with
// which a log that was cut back and written again is told from the one we read.
type position struct {
	topic  [16]byte
	offset int64
	epoch  int32
}

const tokenBytes = 16 + 8 + 4

func (p position) encode() message.Position {
	t := make([]byte, 0, tokenBytes)
	t = append(t, p.topic[:]...)
	t = binary.BigEndian.AppendUint64(t, uint64(p.offset))
	t = binary.BigEndian.AppendUint32(t, uint32(p.epoch))
	return message.Position{Token: t, Sort: message.SortKey(p.offset)}
}

func decode(p message.Position) (position, error) {
	if len(p.Token) != tokenBytes {
		return position{}, fmt.Errorf("position %q is not one of Kafka: %w", p.Sort, checkpoint.ErrForeign)
	}
	var out position
	copy(out.topic[:], p.Token)
	out.offset = int64(binary.BigEndian.Uint64(p.Token[16:]))
	out.epoch = int32(binary.BigEndian.Uint32(p.Token[24:]))
	if n, ok := p.Number(); !ok || n != out.offset {
		return position{}, fmt.Errorf("position %q does not agree with its token: %w", p.Sort, checkpoint.ErrRegressed)
	}
	return out, nil
}

// positions makes the positions of the batches that were read under one leader
// epoch. Immutable, so that batches share it.
type positions struct {
	topic [16]byte
	epoch int32
}

// After implements message.Positioner.
func (p *positions) After(m *message.Message) message.Position {
	return position{topic: p.topic, offset: m.Next, epoch: p.epoch}.encode()
}
