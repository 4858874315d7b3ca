package api

import (
	"cmp"
	"strings"

	"github.com/mqbridge/mqb/route"
)

// comparePartitions orders names as people count: orders-2 before orders-10.
func comparePartitions(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			na, nb := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if c := cmp.Or(cmp.Compare(len(na), len(nb)), cmp.Compare(na, nb), cmp.Compare(da, db)); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func digits(s string) (n int) {
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

var strength = map[string]int{
	string(route.AtMostOnce):      1,
	string(route.AtLeastOnce):     2,
	string(route.EffectivelyOnce): 3,
	string(route.ExactlyOnce):     4,
}

// weaker returns the weaker of two guarantees; an unknown one ("") does not count.
func weaker(a, b string) string {
	switch {
	case strength[a] == 0:
		return b
	case strength[b] == 0 || strength[a] <= strength[b]:
		return a
	}
	return b
}
