package client

import (
	"context"
	"net/http"
)

// Leave makes the node that is asked hand over what it holds. It takes nothing
// more until it is started again.
func (c *Client) Leave(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/leave", nil, nil)
}
