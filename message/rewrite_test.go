package message

import (
	"fmt"
	"testing"
)

// Hazard: keys, metadata or a neighbour's payload read from an arena that is gone.
func TestRewriteKeepsKeysAndMetadataAndFramesTheBatch(t *testing.T) {
	t.Parallel()
	b := NewBatch()
	for i := range 5 {
		b.Append(fmt.Appendf(nil, "payload %d", i), int64(i), int64(i+1))
		if i != 2 {
			b.SetKey(fmt.Appendf(nil, "key %d", i))
		}
		b.AddMeta("n", fmt.Appendf(nil, "%d", i))
	}
	b.PutMeta(1, "late", []byte("x")) // moves the pairs of message 1
	var spare []byte
	for round := range 3 {
		spare = b.Rewrite(spare, func(dst []byte, i int) []byte {
			return fmt.Appendf(dst, "%s, round %d", b.Payload(i), round)
		})
		for i := range spare[:cap(spare)] {
			spare[:cap(spare)][i] = '#'
		}
	}
	lines := ""
	for i := range 5 {
		want := fmt.Sprintf("payload %d, round 0, round 1, round 2", i)
		lines += want + "\n"
		if got := string(b.Payload(i)); got != want {
			t.Errorf("payload %d: %q", i, got)
		}
		key := fmt.Sprintf("key %d", i)
		if i == 2 {
			key = ""
		}
		if got := b.Key(i); string(got) != key || (got == nil) != (i == 2) {
			t.Errorf("key %d: %q", i, got)
		}
		if v, _ := b.Meta(i, "n"); string(v) != fmt.Sprint(i) {
			t.Errorf("metadata %d: %q", i, v)
		}
	}
	if v, ok := b.Meta(1, "late"); !ok || string(v) != "x" {
		t.Errorf("metadata that came late: %q", v)
	}
	if got := string(b.Lines(0, 5)); got != lines {
		t.Errorf("lines %q", got)
	}
	b.Rewrite(spare, func(dst []byte, i int) []byte { return append(dst, "a\nb"...) })
	if b.Lines(0, 5) != nil {
		t.Error("payloads with line ends passed for lines")
	}
}
