package route

import "reflect"

// Ordered is a field of a config that takes a mapping of anything and keeps the
// order in which it was written.
type Ordered []OrderedEntry

// OrderedEntry is one key of an Ordered. A mapping in Value is an Ordered again, a
// list an []any; scalars are string, bool, int64, json.Number or nil.
type OrderedEntry struct {
	Key   string
	Value any
}

var orderedType = reflect.TypeFor[Ordered]()

func (n *node) ordered() any {
	switch n.kind {
	case mappingNode:
		o := make(Ordered, len(n.entries))
		for i := range n.entries {
			o[i] = OrderedEntry{n.entries[i].key, n.entries[i].value.ordered()}
		}
		return o
	case sequenceNode:
		l := make([]any, len(n.items))
		for i, x := range n.items {
			l[i] = x.ordered()
		}
		return l
	}
	return n.plain()
}
