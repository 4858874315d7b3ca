package sinktest_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

type part struct {
	rows        [][]byte
	first, last int64
}

func (p *place) objects() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]string{}
	for name, pt := range p.parts {
		out[name] = string(bytes.Join(pt.rows, []byte("\n")))
	}
	return out
}

type partWriter struct {
	*writer
	staged  [][]byte
	spooled bool
	sealed  map[string]part
	covered []connectors.Range
}

func (w *partWriter) lineage() string { return w.claim.RouteUID + "/" + w.claim.Series }

// adopt holds what is there already against the claim.
func (w *partWriter) adopt() error {
	w.sealed = map[string]part{}
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.manifest == "" {
		p.manifest = w.lineage()
	}
	if p.manifest != w.lineage() {
		if w.claim.Spec.ExistingParts != "skip" && p.fault != "foreign parts taken" {
			return checkpoint.ErrForeign
		}
		for _, name := range p.order {
			if pt := p.parts[name]; p.fault != "nothing covered" {
				w.covered = append(w.covered, connectors.Range{First: pt.first, Last: pt.last})
			}
		}
		return nil
	}
	from, _ := w.claim.Record.Position.Number()
	for name, pt := range p.parts {
		inherited := slices.ContainsFunc(w.claim.Record.Intents, func(in checkpoint.Intent) bool { return in.Name == name })
		if pt.last >= from && !inherited && p.fault != "parts beyond the position taken" {
			return checkpoint.ErrRegressed
		}
	}
	return nil
}

func (w *partWriter) spool(open bool) {
	switch {
	case w.spooled == open, !open && w.p.fault == "spool left behind":
		return
	case open:
		w.p.spools++
	default:
		w.p.spools--
	}
	w.spooled = open
}

func (w *partWriter) Stage(_ context.Context, b *message.Batch, i, j int) error {
	w.spool(true)
	for ; i < j; i++ {
		w.staged = append(w.staged, slices.Clone(b.Payload(i)))
	}
	return nil
}

func (w *partWriter) OpenPart() (records, size int64) {
	for _, r := range w.staged {
		size += int64(len(r)) + 1
	}
	return int64(len(w.staged)), size
}

func (w *partWriter) Seal(_ context.Context, from, end message.Position, name string) (checkpoint.Intent, error) {
	w.spool(false)
	first, _ := from.Number()
	last, _ := end.Number()
	last--
	if name == "" || w.p.fault == "inherited name ignored" {
		name = fmt.Sprintf("part-%s-%010d-%s-%s.jsonl", w.claim.Partition.PartSource, w.claim.Partition.PartNumber, message.SortKey(first), message.SortKey(last))
		if w.p.fault == "end exclusive in the name" {
			name = fmt.Sprintf("part-%s-%010d-%s-%s.jsonl", w.claim.Partition.PartSource, w.claim.Partition.PartNumber, message.SortKey(first), message.SortKey(last+1))
		}
		if w.p.fault == "inherited name ignored" {
			name += w.claim.Run
		}
	}
	records, size := w.OpenPart()
	sum := crc32.ChecksumIEEE(bytes.Join(w.staged, []byte("\n")))
	w.sealed[name] = part{rows: w.staged, first: first, last: last}
	w.staged = nil
	if w.p.fault == "visible when sealed" {
		w.put(name)
	}
	return checkpoint.Intent{
		From: from, End: end, First: first, Last: last, Name: name, Records: records, Bytes: size, Digest: fmt.Sprintf("crc32:%08x", sum),
	}, nil
}

func (w *partWriter) put(name string) {
	if _, ok := w.p.parts[name]; !ok {
		w.p.order = append(w.p.order, name)
	}
	w.p.parts[name] = w.sealed[name]
}

func (w *partWriter) Publish(ctx context.Context, in checkpoint.Intent) error {
	if err := w.p.wait(ctx, w.closed); err != nil {
		return err
	}
	if err := w.gate(); err != nil {
		return err
	}
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	_, there := w.p.parts[in.Name]
	switch {
	case there && w.p.fault == "repeat replaces":
		w.sealed[in.Name] = part{rows: [][]byte{[]byte("again")}}
		w.put(in.Name)
	case there && w.p.fault == "repeat is an error":
		return fmt.Errorf("%s exists", in.Name)
	case !there:
		w.put(in.Name)
	}
	return nil
}

func (w *partWriter) Exists(_ context.Context, in checkpoint.Intent) (bool, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	_, ok := w.p.parts[in.Name]
	return ok != (w.p.fault == "exists is wrong"), nil
}

func (w *partWriter) Covered() []connectors.Range { return w.covered }

func (w *partWriter) Abort() error {
	w.spool(false)
	if w.p.fault != "abort keeps the rows" {
		w.staged = nil
	}
	return nil
}

func (w *partWriter) Close() error {
	w.spool(false)
	return w.writer.Close()
}
