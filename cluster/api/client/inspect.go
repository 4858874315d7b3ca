package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/mqbridge/mqb/cluster/api"
)

// History lists the last runs of a route's partitions, of one if partition is
// not "".
func (c *Client) History(ctx context.Context, route, partition string) (v api.History, err error) {
	path := routePath(route, "/history")
	if partition != "" {
		path += "?partition=" + url.QueryEscape(partition)
	}
	return v, c.call(ctx, http.MethodGet, path, nil, &v)
}

// Events lists what happened lately, of one route if route is not "". The cursor
// of an answer asks for what came after it.
func (c *Client) Events(ctx context.Context, route, cursor string) (v api.Events, err error) {
	q := url.Values{"route": {route}, "cursor": {cursor}}
	return v, c.call(ctx, http.MethodGet, "/v1/events?"+q.Encode(), nil, &v)
}

// Doctor has the cluster examined.
func (c *Client) Doctor(ctx context.Context) (v api.Report, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/doctor", nil, &v)
}

// SetCheckpoint sends a partition to a position.
func (c *Client) SetCheckpoint(ctx context.Context, route string, req api.SetRequest) (v api.SetResult, err error) {
	return v, c.call(ctx, http.MethodPost, routePath(route, "/checkpoints/set"), req, &v)
}

// AdoptCheckpoints takes over the records of a route, or moves them.
func (c *Client) AdoptCheckpoints(ctx context.Context, route string, req api.AdoptRequest) (v api.AdoptResult, err error) {
	return v, c.call(ctx, http.MethodPost, routePath(route, "/checkpoints/adopt"), req, &v)
}

// Backup writes the state of the embedded coordinator to w. After an error, what
// was written is not a backup.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/backup", nil)
	if err != nil {
		return &api.Error{Message: err.Error(), Code: api.CodeUsage}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var e api.Error
		if json.NewDecoder(io.LimitReader(resp.Body, maxAnswerBytes)).Decode(&e) == nil && e.Message != "" {
			return &e
		}
		return &api.Error{Message: fmt.Sprintf("%s answered %s", c.base, resp.Status), Code: api.CodeFailed}
	}
	n, err := io.Copy(w, resp.Body)
	if err == nil && resp.ContentLength >= 0 && n != resp.ContentLength {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return &api.Error{Message: fmt.Sprintf("the backup broke off after %d bytes: %v", n, err), Code: api.CodeFailed}
	}
	return nil
}
