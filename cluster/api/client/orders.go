package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/mqbridge/mqb/cluster/api"
)

func nodePath(node, rest string) string { return "/v1/nodes/" + url.PathEscape(node) + rest }

// Drain orders a node to hand over all it has and to take nothing new.
func (c *Client) Drain(ctx context.Context, node string) error {
	return c.call(ctx, http.MethodPost, nodePath(node, "/drain"), nil, nil)
}

// Undrain takes the order back.
func (c *Client) Undrain(ctx context.Context, node string) error {
	return c.call(ctx, http.MethodPost, nodePath(node, "/undrain"), nil, nil)
}

// Exclude gives a node nothing more, of all routes or of one; what it has stays.
func (c *Client) Exclude(ctx context.Context, node, route string) error {
	return c.call(ctx, http.MethodPost, nodePath(node, "/exclude"), api.ExcludeRequest{Route: route}, nil)
}

// Include takes the order back.
func (c *Client) Include(ctx context.Context, node, route string) error {
	return c.call(ctx, http.MethodPost, nodePath(node, "/include"), api.ExcludeRequest{Route: route}, nil)
}

// Move pins a partition to a node, which gets it as soon as it can.
func (c *Client) Move(ctx context.Context, route, partition, node string) error {
	return c.call(ctx, http.MethodPost, routePath(route, "/move"), api.MoveRequest{Partition: partition, To: node}, nil)
}

// Release takes the pin away; the partition stays where it is until balance moves it.
func (c *Client) Release(ctx context.Context, route, partition string) error {
	return c.call(ctx, http.MethodPost, routePath(route, "/release"), api.MoveRequest{Partition: partition}, nil)
}

// RemoveNode forgets a node that is dead for good or lost its disk.
func (c *Client) RemoveNode(ctx context.Context, node string) (v api.RemovedNode, err error) {
	return v, c.call(ctx, http.MethodDelete, nodePath(node, ""), nil, &v)
}

// Pause stops the runs of a route; Resume starts them again.
func (c *Client) Pause(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, routePath(name, "/pause"), nil, nil)
}

// Resume undoes Pause.
func (c *Client) Resume(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, routePath(name, "/resume"), nil, nil)
}
