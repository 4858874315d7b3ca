package main

import "testing"

// A guard that was rewritten leaves a mutant that changes nothing; that is found
// here, and not by the next person who runs them all.
func TestEveryMutantFindsItsGuard(t *testing.T) {
	t.Chdir("../..")
	dir := t.TempDir()
	for _, m := range mutants {
		if _, err := m.overlay(dir); err != nil {
			t.Errorf("%s: %v", m.guard, err)
		}
	}
}
