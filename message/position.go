package message

// Position says where a reader goes on: the source's own token for "next to
// read", and a sort key whose byte order is the order of positions within one
// partition. Two positions of one partition are equal when their sort keys are.
// A Position is immutable: neither field may be written to after it was handed on.
//
// Sources whose records are numbered (file record index, Kafka offset) use
// SortKey of that number as the sort key, which is what part names are made of.
type Position struct {
	Token []byte `json:"token,omitempty"`
	Sort  string `json:"sort,omitempty"`
}

// IsZero reports whether p is the position of a partition that was never read.
func (p Position) IsZero() bool { return p.Sort == "" }

// Compare orders two positions of one partition: -1, 0 or +1. The zero position
// comes first.
func (p Position) Compare(q Position) int {
	switch {
	case p.Sort < q.Sort:
		return -1
	case p.Sort > q.Sort:
		return 1
	}
	return 0
}

// SortKeyDigits is the width of a numeric sort key: enough for every int64.
const SortKeyDigits = 20

// SortKey writes n ≥ 0 as a zero-padded decimal of SortKeyDigits digits.
func SortKey(n int64) string {
	var b [SortKeyDigits]byte
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return string(b[:])
}

// Number reads a numeric sort key back; ok is false for any other sort key and
// for the zero position.
func (p Position) Number() (n int64, ok bool) {
	if len(p.Sort) != SortKeyDigits {
		return 0, false
	}
	for i := 0; i < len(p.Sort); i++ {
		c := p.Sort[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		d := int64(c - '0')
		if n > (1<<63-1-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}
