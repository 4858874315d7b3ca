package main

import (
	"context"
	"fmt"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/spf13/cobra"
)

// drainCommand is for what runs before a stop and knows no names: a pod's preStop.
func drainCommand(began *bool) *cobra.Command {
	var server string
	var access client.Access
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "drain", Short: "Make the node on this machine hand everything over before it is stopped", Args: cobra.NoArgs,
		Long: `Make the node on this machine hand everything over before it is stopped. From
then on it is not ready, and takes nothing more until it is started again: unlike
the order that mqbctl drain NODE gives, this ends with the process.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			*began = true
			c, err := client.New(server, access)
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return leave(ctx, c)
		},
	}
	ownNodeFlags(cmd.Flags(), &server, &access)
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "give up waiting after this long; the node goes on to hand over")
	return cmd
}

// leaveInterval is how often the node is asked whether it is empty.
const leaveInterval = 100 * time.Millisecond

// leave returns when the node holds nothing, or when nobody is there to take it.
func leave(ctx context.Context, c *client.Client) error {
	self, err := c.Version(ctx)
	if err != nil {
		return err
	}
	if err := c.Leave(ctx); err != nil {
		return err
	}
	ticker := time.NewTicker(leaveInterval)
	defer ticker.Stop()
	for {
		v, err := c.Nodes(ctx)
		if err == nil {
			left, others := 0, false
			for _, n := range v.Nodes {
				if n.Name == self.Node {
					left = n.Partitions
				} else if n.State == api.NodeActive {
					others = true
				}
			}
			if left == 0 || !others {
				return nil
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("node %s is not empty yet: %w", self.Node, ctx.Err())
		}
	}
}
