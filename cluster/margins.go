package cluster

import "github.com/mqbridge/mqb/lease"

// Margins are the times of the node's lease.
func (n *Node) Margins() lease.Margins { return n.session.Margins() }
