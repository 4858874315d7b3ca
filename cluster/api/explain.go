package api

import "github.com/mqbridge/mqb/cluster/catalog"

// ExplainView writes inferences out for people.
func ExplainView(list []catalog.Explanation, warnings []string) Explanations {
	out := Explanations{Routes: make([]Explanation, 0, len(list)), Warnings: warnings}
	for _, e := range list {
		out.Routes = append(out.Routes, Explanation{Route: e.Spec.Name, Guarantee: string(e.Inference.Guarantee), Text: e.Inference.Lines()})
	}
	return out
}
