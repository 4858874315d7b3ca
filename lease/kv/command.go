package kv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mqbridge/mqb/lease"
)

// Kind says what a Command does.
type Kind uint8

const (
	KindTxn Kind = iota + 1
	KindGrant
	KindRevoke
)

// Command is one change of a Store, as a replicated log carries it.
type Command struct {
	Kind     Kind
	Compares []lease.Compare // KindTxn
	Ops      []lease.Op      // KindTxn
	TTL      time.Duration   // KindGrant
	Lease    lease.LeaseID   // KindRevoke
}

// Outcome is what a Command did. It depends on the store and the command alone.
type Outcome struct {
	Result lease.Result  // KindTxn
	Lease  lease.LeaseID // KindGrant
	Err    error
}

// Apply carries a command out.
func (s *Store) Apply(c Command) Outcome {
	var o Outcome
	switch c.Kind {
	case KindTxn:
		o.Result, o.Err = s.Txn(c.Compares, c.Ops)
	case KindGrant:
		o.Lease = s.Grant(c.TTL)
	case KindRevoke:
		s.Revoke(c.Lease)
	default:
		o.Err = fmt.Errorf("kv: unknown command %d", c.Kind)
	}
	return o
}

// errMalformed: bytes that AppendBinary did not write.
var errMalformed = errors.New("kv: malformed command")

const commandVersion = 1

// AppendBinary appends the encoded command to b: a version byte, the kind and
// its fields; numbers are varints, strings and values have their length before
// them.
func (c *Command) AppendBinary(b []byte) []byte {
	b = append(b, commandVersion, byte(c.Kind))
	switch c.Kind {
	case KindTxn:
		b = binary.AppendUvarint(b, uint64(len(c.Compares)))
		for i := range c.Compares {
			x := &c.Compares[i]
			b = append(b, byte(x.Field))
			b = appendBytes(b, x.Key)
			b = binary.AppendVarint(b, x.Number)
			b = appendBytes(b, x.Value)
		}
		b = binary.AppendUvarint(b, uint64(len(c.Ops)))
		for i := range c.Ops {
			x := &c.Ops[i]
			b = append(b, byte(x.Kind))
			b = appendBytes(b, x.Key)
			b = appendBytes(b, x.Value)
			b = binary.AppendVarint(b, int64(x.Lease))
		}
	case KindGrant:
		b = binary.AppendVarint(b, int64(c.TTL))
	case KindRevoke:
		b = binary.AppendVarint(b, int64(c.Lease))
	}
	return b
}

func appendBytes[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// DecodeCommand reads what AppendBinary wrote. The command shares nothing with b.
func DecodeCommand(b []byte) (Command, error) {
	d := decoder{b: b}
	if d.byte() != commandVersion {
		return Command{}, errMalformed
	}
	c := Command{Kind: Kind(d.byte())}
	switch c.Kind {
	case KindTxn:
		// The smallest compare takes 4 bytes and the smallest operation 4, which
		// bounds what a count can make this allocate.
		c.Compares = make([]lease.Compare, d.count(4))
		for i := range c.Compares {
			c.Compares[i] = lease.Compare{Field: lease.Field(d.byte()), Key: string(d.bytes()), Number: d.varint(), Value: bytes.Clone(d.bytes())}
		}
		c.Ops = make([]lease.Op, d.count(4))
		for i := range c.Ops {
			c.Ops[i] = lease.Op{Kind: lease.OpKind(d.byte()), Key: string(d.bytes()), Value: bytes.Clone(d.bytes()), Lease: lease.LeaseID(d.varint())}
		}
	case KindGrant:
		c.TTL = time.Duration(d.varint())
	case KindRevoke:
		c.Lease = lease.LeaseID(d.varint())
	default:
		d.bad = true
	}
	if d.bad || len(d.b) > 0 {
		return Command{}, errMalformed
	}
	return c, nil
}

// decoder takes fields off the front of b; after the first bad one everything is zero.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() {
	d.b, d.bad = nil, true
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	x := d.b[0]
	d.b = d.b[1:]
	return x
}

func (d *decoder) uvarint() uint64 {
	x, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return x
}

func (d *decoder) varint() int64 {
	x, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return x
}

// count reads how many items of at least size bytes follow.
func (d *decoder) count(size int) int {
	n := d.uvarint()
	if n > uint64(len(d.b)/size) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	x := d.b[:n]
	d.b = d.b[n:]
	return x
}
