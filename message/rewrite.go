package message

import "bytes"

// Rewrite gives every message a new payload: next is called once for each, in
// order, and appends the payload of message i to dst. While it runs, the batch
// still reads as before for message i and those behind it.
//
// The new payloads are laid into spare, which is returned exchanged for the arena
// that the batch had: whoever rewrites batch after batch keeps one arena of their
// own, and no batch holds both the old bytes and the new. Keys and metadata move
// along. The batch is framed afterwards if no payload holds a line end.
func (b *Batch) Rewrite(spare []byte, next func(dst []byte, i int) []byte) (old []byte) {
	dst := spare[:0]
	if dst == nil {
		dst = make([]byte, 0, cap(b.Arena))
	}
	for i := range b.msgs {
		off := len(dst)
		dst = next(dst, i)
		m := &b.msgs[i]
		m.off, m.n = uint32(off), uint32(len(dst)-off)
		dst = append(dst, '\n')
	}
	b.framed = len(b.msgs) > 0 && bytes.Count(dst, []byte{'\n'}) == len(b.msgs)
	for i := range b.msgs {
		m := &b.msgs[i]
		if m.kn != absent {
			off := len(dst)
			dst = append(dst, b.Arena[m.koff:m.koff+m.kn]...)
			m.koff = uint32(off)
		}
		for p := m.moff; p < m.moff+m.mn; p++ {
			pr := &b.pairs[p]
			off := len(dst)
			dst = append(dst, b.Arena[pr.koff:pr.koff+pr.kn]...)
			dst = append(dst, b.Arena[pr.voff:pr.voff+pr.vn]...)
			pr.koff, pr.voff = uint32(off), uint32(off)+pr.kn
		}
	}
	old, b.Arena = b.Arena, dst
	return old[:0]
}
