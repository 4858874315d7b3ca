package checkpoint

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Verdicts names records that become dead letters. The sink may not refuse them
// again, so the decision stands here before it is carried out, and whoever runs
// the partition next follows it.
type Verdicts struct {
	// Ordinals are the records' numbers, rising: the first as uvarint, then the
	// distance of each to the one before. A transaction's worth of them, 16,384,
	// fits in a record.
	Ordinals []byte `json:"ordinals"`
	// Reason is what was said of the first one.
	Reason string `json:"reason,omitempty"`
}

// maxReason bounds Verdicts.Reason in bytes.
const maxReason = 512

// NewVerdicts makes Verdicts of ordinals in any order; nil of none.
func NewVerdicts(ordinals []int64, reason string) *Verdicts {
	if len(ordinals) == 0 {
		return nil
	}
	rising := slices.Clone(ordinals)
	slices.Sort(rising)
	rising = slices.Compact(rising)
	v := &Verdicts{Reason: reason[:min(len(reason), maxReason)]}
	last := int64(0)
	for _, n := range rising {
		v.Ordinals = binary.AppendUvarint(v.Ordinals, uint64(n-last))
		last = n
	}
	return v
}

// Numbers returns the ordinals, rising; none of nil. ErrRegressed if they cannot
// be read.
func (v *Verdicts) Numbers() ([]int64, error) {
	if v == nil {
		return nil, nil
	}
	var out []int64
	last := int64(0)
	for b := v.Ordinals; len(b) > 0; {
		d, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, fmt.Errorf("%w: the verdicts of the record cannot be read", ErrRegressed)
		}
		b = b[n:]
		last += int64(d)
		out = append(out, last)
	}
	return out, nil
}
