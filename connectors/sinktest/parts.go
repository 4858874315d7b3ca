package sinktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

var partBehaviours = []behaviour{
	{"check changes nothing", always, checkIsQuiet},
	{"published is visible, in order, and nothing before", always, partVisible},
	{"intent describes its part", always, partIntent},
	{"next part spools while the last one waits", always, partPipelined},
	{"aborted leaves nothing", always, partAbort},
	{"repeated publish changes nothing", always, partRepeat},
	{"inherited intent is finished under its name", always, partInherited},
	{"inherited intent that was published is found", always, partInheritedPublished},
	{"late publish of a former owner changes nothing", always, partZombie},
	{"part beyond the position is refused", always, partBeyond},
	{"parts of another lineage are refused", always, partForeign},
	{"parts of another lineage are covered with existing_parts skip", always, partCovered},
	{"closed gate", always, partGate},
	{"spool is gone after abort and close", func(s *Subject) bool { return s.Spools != nil }, partSpool},
	{"close while blocked", func(s *Subject) bool { return s.Block != nil }, partCloseBlocked},
}

func (o *owner) parts() connectors.PartWriter { return o.writer.(connectors.PartWriter) }

// seal stages messages [from, to) and seals them as [from, end).
func (o *owner) seal(from, to, end int, name string) checkpoint.Intent {
	o.r.Helper()
	o.stage(from, to)
	in, err := o.parts().Seal(o.r.ctx(), at(from), at(end), name)
	if err != nil {
		o.r.Fatalf("seal [%d,%d): %v", from, end, err)
	}
	in.Generation = o.claim.Generation
	return in
}

func (o *owner) stage(from, to int) {
	o.r.Helper()
	if err := o.parts().Stage(o.r.ctx(), o.r.batch(from, to-from, nil), 0, to-from); err != nil {
		o.r.Fatalf("stage: %v", err)
	}
}

func (o *owner) publish(in checkpoint.Intent) {
	o.r.Helper()
	if err := o.parts().Publish(o.r.ctx(), in); err != nil {
		o.r.Fatalf("publish %s: %v", in.Name, err)
	}
}

func (o *owner) exists(in checkpoint.Intent) bool {
	o.r.Helper()
	there, err := o.parts().Exists(o.r.ctx(), in)
	if err != nil {
		o.r.Fatalf("exists %s: %v", in.Name, err)
	}
	return there
}

// objects is what a repeated publish must leave as it is, nil if unknown.
func (r *rig) objects() map[string]string {
	if r.s.Objects == nil {
		return nil
	}
	return r.s.Objects(r.T)
}

func (r *rig) unchanged(before map[string]string, why string) {
	r.Helper()
	if after := r.objects(); !maps.Equal(before, after) {
		r.Errorf("%s: the objects changed from %v to %v", why, slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
	}
}

func position(n int, in ...checkpoint.Intent) option {
	rec := checkpoint.Record{Intents: in}
	if n > 0 {
		rec.Position = at(n)
	}
	return record(rec)
}

func partVisible(r *rig) {
	o := r.open(1)
	for from := 0; from < 60; from += 20 {
		o.stage(from, from+10)
		o.stage(from+10, from+20)
		in, err := o.parts().Seal(r.ctx(), at(from), at(from+20), "")
		if err != nil {
			r.Fatal(err)
		}
		r.sees("before Publish", span(0, from)...)
		o.publish(in)
		r.sees("after Publish", span(0, from+20)...)
	}
	o.close()
	again := r.open(2, position(60))
	defer again.close()
	again.publish(again.seal(60, 65, 65, ""))
	r.sees("after a second run", span(0, 65)...)
}

func partIntent(r *rig) {
	o := r.open(1)
	defer o.close()
	// [10, 25) of which only [10, 20) hold records: the source has gaps.
	o.stage(10, 20)
	records, bytes := o.parts().OpenPart()
	if records != 10 || bytes <= 0 {
		r.Errorf("the open part holds %d records of %d bytes, want 10", records, bytes)
	}
	in, err := o.parts().Seal(r.ctx(), at(10), at(25), "")
	if err != nil {
		r.Fatal(err)
	}
	if in.From.Compare(at(10)) != 0 || in.End.Compare(at(25)) != 0 || in.First != 10 || in.Last != 24 {
		r.Errorf("the intent covers [%q, %q), ordinals %d to %d; want [10, 25) and 10 to 24", in.From.Sort, in.End.Sort, in.First, in.Last)
	}
	if in.Records != 10 || in.Bytes <= 0 {
		r.Errorf("the intent says %d records, %d bytes; want 10", in.Records, in.Bytes)
	}
	want := fmt.Sprintf("part-%s-%010d-%s-%s.", o.claim.Partition.PartSource, o.claim.Partition.PartNumber, message.SortKey(10), message.SortKey(24))
	if !strings.HasPrefix(path.Base(in.Name), want) {
		r.Errorf("the part is called %s, want %s…", in.Name, want)
	}
	if records, bytes := o.parts().OpenPart(); records != 0 || bytes != 0 {
		r.Errorf("%d records, %d bytes are open after Seal", records, bytes)
	}
	o.publish(in)
	if objects := r.objects(); objects != nil {
		if _, ok := objects[in.Name]; !ok || len(objects) != 1 {
			r.Errorf("the objects are %v, want %s alone", slices.Sorted(maps.Keys(objects)), in.Name)
		}
	}
}

func partPipelined(r *rig) {
	o := r.open(1)
	defer o.close()
	first := o.seal(0, 10, 10, "")
	o.stage(10, 15)
	o.publish(first)
	r.sees("after the first part", span(0, 10)...)
	o.stage(15, 20)
	second, err := o.parts().Seal(r.ctx(), at(10), at(20), "")
	if err != nil {
		r.Fatal(err)
	}
	o.publish(second)
	r.sees("after the second part", span(0, 20)...)
}

func partAbort(r *rig) {
	o := r.open(1)
	defer o.close()
	o.stage(0, 10)
	if err := o.parts().Abort(); err != nil {
		r.Fatal(err)
	}
	if records, bytes := o.parts().OpenPart(); records != 0 || bytes != 0 {
		r.Errorf("%d records, %d bytes are open after Abort", records, bytes)
	}
	r.sees("after Abort")
	o.publish(o.seal(10, 20, 20, ""))
	r.sees("after the next part", span(10, 20)...)
}

func partRepeat(r *rig) {
	o := r.open(1)
	in := o.seal(0, 10, 10, "")
	o.publish(in)
	before := r.objects()
	o.publish(in) // the reply was lost
	r.unchanged(before, "published twice")
	o.close()
	// A new owner that stages the range again publishes over what is there.
	again := r.open(2, position(0, in))
	defer again.close()
	if repeat := again.seal(0, 10, 10, in.Name); repeat.Digest != in.Digest {
		r.Errorf("the same records have the digest %q, then %q", in.Digest, repeat.Digest)
	}
	again.publish(in)
	r.unchanged(before, "published again by the next owner")
	r.sees("after repeats", span(0, 10)...)
}

func partInherited(r *rig) {
	old := r.open(1)
	in := old.seal(0, 10, 10, "")
	old.close() // dies between the intent and the part
	o := r.open(2, position(0, in))
	defer o.close()
	if o.exists(in) {
		r.Error("a part exists that was never published")
	}
	got := o.seal(0, 10, 10, in.Name)
	if got.Name != in.Name {
		r.Errorf("the inherited part is called %s, want %s", got.Name, in.Name)
	}
	o.publish(in)
	if !o.exists(in) {
		r.Error("a part does not exist that was just published")
	}
	r.sees("after the inherited part", span(0, 10)...)
	o.publish(o.seal(10, 15, 15, ""))
	r.sees("after the next part", span(0, 15)...)
}

func partInheritedPublished(r *rig) {
	old := r.open(1)
	in := old.seal(0, 10, 10, "")
	old.publish(in)
	old.close() // dies between the part and the position
	before := r.objects()
	o := r.open(2, position(0, in))
	defer o.close()
	if !o.exists(in) {
		r.Fatal("the published part is not found")
	}
	o.publish(o.seal(10, 20, 20, ""))
	for name, body := range before {
		if r.objects()[name] != body {
			r.Errorf("%s changed", name)
		}
	}
	r.sees("after the next part", span(0, 20)...)
}

func partZombie(r *rig) {
	zombie := r.open(1)
	in := zombie.seal(0, 10, 10, "")
	o := r.open(2, position(0, in))
	defer o.close()
	got := o.seal(0, 10, 10, in.Name)
	o.publish(got)
	o.publish(o.seal(10, 20, 20, ""))
	before := r.objects()
	// It may be told so or not; a reader sees no difference (invariant 1).
	_ = zombie.parts().Publish(r.ctx(), in)
	r.unchanged(before, "a former owner published late")
	r.sees("after the former owner woke", span(0, 20)...)
	zombie.close()
	r.sees("after the former owner closed", span(0, 20)...)
}

func (r *rig) refusedOpen(want error, why string, epoch uint64, opts ...option) {
	r.Helper()
	o, err := r.tryOpen(epoch, opts...)
	if err == nil {
		o.close()
	}
	if !errors.Is(err, want) {
		r.Errorf("%s: got %v, want %v", why, err, want)
	}
}

func partBeyond(r *rig) {
	o := r.open(1)
	o.publish(o.seal(0, 10, 10, ""))
	second := o.seal(10, 20, 20, "")
	o.publish(second)
	o.close()
	before := r.objects()
	r.refusedOpen(checkpoint.ErrRegressed, "a record that went back by two parts", 2, position(0))
	r.refusedOpen(checkpoint.ErrRegressed, "a record that went back by one part", 2, position(10))
	r.refusedOpen(checkpoint.ErrRegressed, "a record that went back into a part", 2, position(15))
	r.unchanged(before, "refused")
	for _, opt := range []option{position(10, second), position(20)} {
		o, err := r.tryOpen(3, opt)
		if err != nil {
			r.Errorf("a record that covers all parts: %v", err)
			continue
		}
		o.close()
	}
}

func partForeign(r *rig) {
	o := r.open(1)
	o.publish(o.seal(0, 10, 10, ""))
	o.close()
	before := r.objects()
	r.refusedOpen(checkpoint.ErrForeign, "another route", 1, lineage("uid-other", series))
	r.refusedOpen(checkpoint.ErrForeign, "another series", 2, lineage(routeUID, "s2"))
	r.unchanged(before, "refused")
}

func partCovered(r *rig) {
	o := r.open(1)
	o.publish(o.seal(0, 10, 10, ""))
	o.publish(o.seal(10, 15, 20, ""))
	if got := o.parts().Covered(); len(got) != 0 {
		r.Errorf("own parts are covered: %v", got)
	}
	o.close()
	next := r.open(1, lineage("uid-other", series), existingParts("skip"))
	defer next.close()
	ranges := next.parts().Covered()
	for n := range int64(25) {
		covered := slices.ContainsFunc(ranges, func(c connectors.Range) bool { return c.Covers(n) })
		if covered != (n < 20) {
			r.Errorf("ordinal %d covered: %v, in %v; want 0 to 19", n, covered, ranges)
		}
	}
	for i := 1; i < len(ranges); i++ {
		if ranges[i].First <= ranges[i-1].Last {
			r.Errorf("the covered ranges %v are not in order", ranges)
		}
	}
	next.publish(next.seal(20, 25, 25, ""))
	r.sees("after the other lineage went on", append(span(0, 15), span(20, 25)...)...)
}

func partGate(r *rig) {
	o := r.open(1)
	in := o.seal(0, 10, 10, "")
	o.shut.Store(true)
	if err := o.parts().Publish(r.ctx(), in); !errors.Is(err, connectors.ErrGateClosed) {
		r.Errorf("got %v, want ErrGateClosed", err)
	}
	r.sees("behind a closed gate")
	o.close()
	r.sees("after the end of the run")
}

func partSpool(r *rig) {
	o := r.open(1)
	o.stage(0, 10)
	if r.s.Spools(r.T) == 0 {
		r.Error("an open part has no spool: Spools counts something else")
	}
	if err := o.parts().Abort(); err != nil {
		r.Fatal(err)
	}
	if n := r.s.Spools(r.T); n != 0 {
		r.Errorf("%d spools after Abort", n)
	}
	o.publish(o.seal(0, 10, 10, ""))
	if n := r.s.Spools(r.T); n != 0 {
		r.Errorf("%d spools after Publish", n)
	}
	o.seal(10, 20, 20, "")
	o.stage(20, 30)
	o.close()
	if n := r.s.Spools(r.T); n != 0 {
		r.Errorf("%d spools after Close", n)
	}
	r.sees("after Close", span(0, 10)...)
}

func partCloseBlocked(r *rig) {
	o := r.open(1)
	in := o.seal(0, 10, 10, "")
	o.closeWhileBlocked(func() error { return o.parts().Publish(context.WithoutCancel(r.Context()), in) })
}
