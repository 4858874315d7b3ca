package route

import (
	"fmt"
	"slices"
	"strings"
)

// Inference is what a route guarantees, and why.
type Inference struct {
	// Guarantee is that of the weakest leg.
	Guarantee Guarantee
	Legs      []Leg
	// Raise is the nearest change that would give a stronger guarantee; "" if
	// there is none.
	Raise string
	// Conflicts are combinations that cannot run at all. The decoder reports
	// them as errors, so a decoded route has none.
	Conflicts []string
}

// Leg is the guarantee of one sink of a route.
type Leg struct {
	Name      string
	Guarantee Guarantee
	// Reasons in the order of the path of a record.
	Reasons []Reason
	// Window within which a repeat is absorbed; "" if unbounded, or if none is.
	Window string
	// Conditions that the guarantee needs and that are not ours to keep.
	Conditions []string
	Raise      string
}

// Reason is one question that decided, with its answer.
type Reason struct {
	Question string
	Answer   string
	Why      string
}

// strength orders guarantees, weakest first.
var strength = []Guarantee{AtMostOnce, AtLeastOnce, EffectivelyOnce, ExactlyOnce}

// Compare orders two guarantees: -1 when g is weaker than h.
func (g Guarantee) Compare(h Guarantee) int {
	return slices.Index(strength, g) - slices.Index(strength, h)
}

// DeliveryError says that a route is weaker than its required_delivery.
type DeliveryError struct {
	Required, Got Guarantee
	Raise         string
}

func (e *DeliveryError) Error() string {
	s := fmt.Sprintf("required_delivery is %s, but the route is %s", e.Required, e.Got)
	if e.Raise != "" {
		s += "; to raise it: " + e.Raise
	}
	return s
}

// Meets returns a *DeliveryError if the route is weaker than required; ""
// requires nothing (invariant 9).
func (in Inference) Meets(required Guarantee) error {
	if required == "" || in.Guarantee.Compare(required) >= 0 {
		return nil
	}
	return &DeliveryError{Required: required, Got: in.Guarantee, Raise: in.Raise}
}

// Lines writes the inference out for people, a line each.
func (in Inference) Lines() []string {
	var out []string
	for _, l := range in.Legs {
		out = append(out, fmt.Sprintf("%s: %s", l.Name, l.Guarantee))
		for _, r := range l.Reasons {
			line := fmt.Sprintf("  %s %s", r.Question, r.Answer)
			if r.Why != "" {
				line += ": " + r.Why
			}
			out = append(out, line)
		}
		if l.Window != "" {
			out = append(out, "  Repeats are absorbed within: "+l.Window)
		}
		for _, c := range l.Conditions {
			out = append(out, "  As long as: "+c)
		}
		if l.Raise != "" {
			out = append(out, "  To raise it: "+l.Raise)
		}
	}
	return out
}

// Infer derives the guarantee of a route from what its endpoints and middlewares
// declare. It looks at the spec alone; what the probe of a real system finds is
// judged when the route is opened. A spec whose types are unknown is
// at-most-once.
func Infer(spec *Spec, types Types) Inference {
	input, haveInput := types.Endpoint(spec.Input.Type)
	output, haveOutput := types.Endpoint(spec.Output.Type)
	if !haveInput || !haveOutput || input.Source == nil || output.Sink == nil {
		return Inference{Guarantee: AtMostOnce, Conflicts: []string{"an endpoint of the route is not known"}}
	}
	j := judge{
		spec: spec, guarantee: ExactlyOnce,
		source: input.Source(spec.Input.Config), sink: output.Sink(spec.Output.Config),
	}
	for _, m := range slices.Concat(spec.Input.Middlewares, spec.Output.Middlewares) {
		if t, ok := types.Middleware(m.Type); ok {
			j.stages = append(j.stages, stage{m.Type, t.Capabilities(m.Config)})
		}
	}
	j.judge()
	in := Inference{Guarantee: j.guarantee, Legs: []Leg{j.leg("output")}, Conflicts: j.conflicts}
	in.Raise = in.Legs[0].Raise
	if e := spec.DeadLetters(); e != nil {
		if t, ok := types.Endpoint(e.Type); ok && t.Sink != nil {
			in.deadLetters(j, t.Sink(e.Config))
		}
	}
	return in
}

// deadLetters adds the leg of the dlq: it is at most as good as the route's own,
// and letters that were written just before a crash are written again.
func (in *Inference) deadLetters(output judge, sink SinkCapabilities) {
	j := judge{spec: output.spec, guarantee: ExactlyOnce, source: output.source, sink: sink}
	j.position()
	if sink.System != "" && sink.System == output.sink.System {
		j.say("Are letters, rows, position and fence one transaction?", "yes", "the dlq is in the system of the output")
		in.addLetters(j)
		return
	}
	j.say("Is a letter durable before the position moves over its record?", "yes", "")
	j.say("Is a record that was dead-lettered kept out of the output afterwards?", "yes", "the decision stands in the record before it is carried out")
	switch {
	case sink.Discards:
		j.say("Does the dlq keep anything?", "no", "")
	case sink.LettersOnce:
		j.say("Does the dlq absorb a letter that is written again?", "yes", "by its id")
		raise := ""
		if output.sink.System != "" {
			raise = "a dlq in the same system as the output, whose transactions then take the letters"
		}
		j.limit(EffectivelyOnce, raise)
	default:
		j.say("Does the dlq absorb a letter that is written again?", "no", "it stands there twice then, with the same id (metadata mqb.id)")
		j.limit(AtLeastOnce, "a dlq that knows a letter by its id, such as a table with a unique column id")
	}
	in.addLetters(j)
}

func (in *Inference) addLetters(j judge) {
	leg := j.leg("dlq")
	in.Legs = append(in.Legs, leg)
	if leg.Guarantee.Compare(in.Guarantee) < 0 {
		in.Guarantee, in.Raise = leg.Guarantee, leg.Raise
	}
}

func (j *judge) leg(name string) Leg {
	return Leg{
		Name: name, Guarantee: j.guarantee, Reasons: j.reasons, Window: j.window, Conditions: j.conditions,
		Raise: strings.Join(j.raise, ", and "),
	}
}

type stage struct {
	name string
	MiddlewareCapabilities
}

// remembers reports whether a restart forgets something that the stage needs.
func (s stage) remembers() bool { return s.Stateful || s.Shape == ShapeHold }

// judge asks the questions of one leg. Each answer may cap the guarantee.
type judge struct {
	spec   *Spec
	source SourceCapabilities
	sink   SinkCapabilities
	stages []stage

	guarantee  Guarantee
	raise      []string // what lifts the caps that are lowest
	reasons    []Reason
	window     string
	conditions []string
	conflicts  []string
}

func (j *judge) say(question, answer, why string) {
	j.reasons = append(j.reasons, Reason{question, answer, why})
}

// limit caps the guarantee; raise says what would lift this cap. Of several caps
// at the lowest place all have to be lifted, so their texts add up.
func (j *judge) limit(g Guarantee, raise string) {
	switch c := g.Compare(j.guarantee); {
	case c > 0 || g == ExactlyOnce:
		return
	case c < 0:
		j.guarantee, j.raise = g, nil
	}
	if raise != "" && !slices.Contains(j.raise, raise) {
		j.raise = append(j.raise, raise)
	}
}

func (j *judge) judge() {
	if j.spec.Commit == CommitTransactional && j.sink.Tier != TierTransactional {
		j.conflicts = append(j.conflicts, fmt.Sprintf("commit: transactional needs a transactional output, %s is none", j.spec.Output.Type))
	}
	if j.sink.Discards {
		j.say("Does the output keep anything?", "no", "nothing can be lost in it or land twice")
		return
	}
	j.position()
	j.store()
	j.stagesReplay()
	switch {
	case j.sink.Tier == TierTransactional:
		j.transaction()
	case j.sink.Tier == TierDeterministic && j.sink.Parts:
		j.parts()
	case j.sink.Append:
		j.appends()
	case j.sink.Tier == TierDeterministic:
		j.key()
	default:
		j.say("Does the output absorb a repeated write?", "no", j.sink.Why)
		j.limit(AtLeastOnce, j.sink.Raise)
	}
	j.durable()
	j.badRecords()
}

// position: does reading go on where it ended?
func (j *judge) position() {
	const question = "Does reading resume at a stored position?"
	switch {
	case j.source.DurablePosition:
		j.say(question, "yes", "")
	case j.source.SettleDeletes:
		j.say(question, "no", j.source.Why)
		absorbed := j.source.StableIdentity && j.sink.Tier == TierDeterministic && !j.sink.Parts
		if !absorbed {
			j.limit(AtLeastOnce, "an input that resumes at a position, such as kafka or file")
		}
	default:
		j.say(question, "no", j.source.Why)
		j.limit(AtMostOnce, "an input that resumes at a position, such as kafka or file")
	}
}

// inSink reports whether the record lives in the sink.
func (j *judge) inSink() bool {
	return j.sink.Tier == TierTransactional && j.spec.Commit != CommitSeparate && j.spec.CheckpointStore == ""
}

// store: does the position survive a crash?
func (j *judge) store() {
	if !j.source.DurablePosition || j.inSink() {
		return
	}
	const question = "Is the position kept where a crash does not reach it?"
	scheme, _, _ := strings.Cut(j.spec.CheckpointStore, "://")
	if scheme == "memory" {
		j.say(question, "no", "checkpoint_store: memory ends with its process")
		j.limit(AtLeastOnce, "checkpoint_store: coordinator")
		return
	}
	if scheme == "" {
		scheme = "coordinator"
	}
	where := "in the " + scheme
	if j.spec.StoreLocality() == NodeLocal {
		where += " on the disk of one node, which alone can hold the partition"
	}
	j.say(question, "yes", where+", under the epoch of the partition")
}

// stagesReplay: is a batch that is made again the same batch?
func (j *judge) stagesReplay() {
	const question = "Do the middlewares give the same again after a restart?"
	if len(j.stages) == 0 {
		return
	}
	same := true
	for _, s := range j.stages {
		switch {
		case s.remembers():
			same = false
			j.say(question, "no", s.name+" depends on earlier messages, which a restart forgets")
			j.limit(AtLeastOnce, "no "+s.name)
			if j.sink.Parts {
				j.conflicts = append(j.conflicts, fmt.Sprintf("%s depends on earlier messages, so a part could not be made again: it cannot be used with name_by: source_position", s.name))
			}
		case !s.ReplaySame && j.sink.Tier != TierTransactional && !j.sink.Append:
			// In one transaction with the position, what was made differently the
			// first time was never seen by anybody; what was appended is cut.
			same = false
			j.say(question, "no", s.name+" may decide differently the second time")
			j.limit(AtLeastOnce, "no "+s.name)
		}
	}
	if same {
		j.say(question, "yes", "")
	}
}

func (j *judge) transaction() {
	const question = "Are rows, position and fence one transaction?"
	if j.inSink() {
		j.say(question, "yes", j.sink.Why)
		return
	}
	if j.spec.Commit == CommitSeparate {
		j.say(question, "no", "commit: separate keeps the position elsewhere")
		j.limit(AtLeastOnce, "commit: auto, without checkpoint_store")
		return
	}
	j.say(question, "no", "checkpoint_store keeps the position elsewhere")
	j.limit(AtLeastOnce, "no checkpoint_store: the output then keeps the position itself")
}

func (j *judge) parts() {
	if !j.source.NumberedPosition {
		j.conflicts = append(j.conflicts, fmt.Sprintf("parts are named after numbered records, and %s does not number its own", j.spec.Input.Type))
	}
	j.say("Does the output absorb a repeated write?", "yes", j.sink.Why)
	j.say("Is a former owner kept from adding to it?", "yes", "a part is promised in the record before it is created, and created only if absent")
	j.conditions = append(j.conditions, "parts at and behind the position are not deleted")
}

func (j *judge) appends() {
	if j.spec.SharedStorage {
		j.conflicts = append(j.conflicts, "a file is appended to by one node: use name_by: source_position with shared_storage, or remove it")
	}
	j.say("Does the output absorb a repeated write?", "yes", j.sink.Why)
	j.say("Is a former owner kept from adding to it?", "yes", "an owner waits for the lock of the file, then cuts it to where the record says that it ends")
	j.conditions = append(j.conditions, "nobody else writes to the file, and its readers can bear bytes that are cut later (parts have none)")
}

func (j *judge) key() {
	const question = "Does the output absorb a repeated write?"
	if !j.source.StableIdentity {
		j.say(question, "no", fmt.Sprintf("its key would, but a record of %s may come back as another one", j.spec.Input.Type))
		j.limit(AtLeastOnce, "an input whose records keep their identity")
		return
	}
	j.window = j.sink.Window
	j.say(question, "yes", j.sink.Why)
	raise := j.sink.Raise
	if raise == "" {
		raise = "an output that is transactional or writes parts"
	}
	j.limit(EffectivelyOnce, raise)
}

// durable: an acknowledged write that a crash can undo is lost once the position
// has moved over it.
func (j *judge) durable() {
	const question = "Does an acknowledged write survive a crash of the output?"
	if j.sink.Durable {
		j.say(question, "yes", "")
		return
	}
	j.say(question, "no", j.sink.Why)
	j.limit(AtMostOnce, "an output with durable writes")
}

func (j *judge) badRecords() {
	switch j.spec.OnError {
	case OnErrorDLQ:
		j.say("What becomes of a record that cannot be handled?", "dead-lettered", "")
	case OnErrorDrop:
		j.say("What becomes of a record that cannot be handled?", "dropped", "on_error: drop; it is counted and not part of the guarantee")
	}
}
