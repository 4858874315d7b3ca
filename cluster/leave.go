package cluster

import (
	"context"
	"errors"
)

// Leave makes the node hand over what it holds and take nothing more, while it
// goes on to answer: for a stop that follows soon. There is no way back, but unlike
// an operator's order to drain it ends with the process. It returns when the others
// have been told, not when the node is empty.
func (n *Node) Leave(ctx context.Context) error {
	n.mu.Lock()
	ready := n.running && n.runner != nil
	n.leaving = n.leaving || ready
	n.mu.Unlock()
	if !ready {
		return errors.New("the node does not take part yet")
	}
	// Without a lease now, it says so when it registers again.
	return n.leave(ctx)
}
