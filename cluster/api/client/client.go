// Package client calls the API of a node.
package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/mqbridge/mqb/cluster/api"
)

// DefaultServer is where a node listens unless it was told otherwise.
const DefaultServer = "http://127.0.0.1:7070"

// maxAnswerBytes bounds an answer: 100,000 partitions fit.
const maxAnswerBytes = 64 << 20

// Client calls one node. Safe for concurrent use. Every error is an *api.Error.
type Client struct {
	base string
	http *http.Client
}

// New makes a client of a server: "host:port" or a URL, https where access names
// authorities or a certificate and nothing else is said; "" is the port of
// DefaultServer. It reads the files of access and does not connect.
func New(server string, access Access) (*Client, error) {
	server = cmp.Or(server, strings.TrimPrefix(DefaultServer, "http://"))
	if !strings.Contains(server, "://") {
		server = access.scheme() + server
	}
	u, err := url.Parse(server)
	switch {
	case err != nil:
		return nil, &api.Error{Message: "the server address is no URL", Code: api.CodeUsage}
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "":
		return nil, &api.Error{Message: "the server address must be host:port, https://host:port or http://host:port", Code: api.CodeUsage}
	}
	c, err := access.http()
	if err != nil {
		return nil, &api.Error{Message: err.Error(), Code: api.CodeUsage}
	}
	return &Client{base: u.Scheme + "://" + u.Host, http: c}, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Version says who answers.
func (c *Client) Version(ctx context.Context) (v api.Version, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/version", nil, &v)
}

// Ready is nil if the node can do its work.
func (c *Client) Ready(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, "/readyz", nil, nil)
}

// Leases lists partitions, of one route if route is not "".
func (c *Client) Leases(ctx context.Context, route string) (v api.Leases, err error) {
	path := "/v1/leases"
	if route != "" {
		path += "?route=" + url.QueryEscape(route)
	}
	return v, c.call(ctx, http.MethodGet, path, nil, &v)
}

// Nodes lists members.
func (c *Client) Nodes(ctx context.Context) (v api.Nodes, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/nodes", nil, &v)
}

// Routes lists routes.
func (c *Client) Routes(ctx context.Context) (v api.Routes, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/routes", nil, &v)
}

// Route returns one route with its masked spec.
func (c *Client) Route(ctx context.Context, name string) (v api.Route, err error) {
	return v, c.call(ctx, http.MethodGet, routePath(name, ""), nil, &v)
}

// Delete removes a route.
func (c *Client) Delete(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, routePath(name, ""), nil, nil)
}

// Checkpoints lists the records of a route.
func (c *Client) Checkpoints(ctx context.Context, route string) (v api.Checkpoints, err error) {
	return v, c.call(ctx, http.MethodGet, routePath(route, "/checkpoints"), nil, &v)
}

// ResetCheckpoints sends a route, or one partition of it, back to the start of
// its input, and returns the records as they were.
func (c *Client) ResetCheckpoints(ctx context.Context, route, partition string) (v api.Checkpoints, err error) {
	return v, c.call(ctx, http.MethodPost, routePath(route, "/checkpoints/reset"), api.ResetRequest{Partition: partition}, &v)
}

// Apply brings the routes of a file into the cluster. position is "", "keep" or
// "earliest".
func (c *Client) Apply(ctx context.Context, f api.File, position string, dryRun bool) (v api.ApplyResult, err error) {
	q := url.Values{}
	if position != "" {
		q.Set("position", position)
	}
	if dryRun {
		q.Set("dry_run", "true")
	}
	return v, c.call(ctx, http.MethodPost, "/v1/apply?"+q.Encode(), f, &v)
}

func routePath(name, rest string) string { return "/v1/routes/" + url.PathEscape(name) + rest }

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return &api.Error{Message: err.Error(), Code: api.CodeFailed}
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return &api.Error{Message: err.Error(), Code: api.CodeUsage}
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return c.unreachable(err)
	}
	if resp.StatusCode != http.StatusOK {
		var e api.Error
		if json.Unmarshal(data, &e) != nil || e.Message == "" {
			return &api.Error{
				Message: fmt.Sprintf("%s answered %s, which no mqbd does", c.base, resp.Status), Code: api.CodeUnreachable,
				Hint: "is --server (MQBCTL_SERVER) the address of an mqbd?",
			}
		}
		return &e
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return &api.Error{
			Message: fmt.Sprintf("%s gave an answer that no mqbd gives: %v", c.base, err), Code: api.CodeUnreachable,
			Hint: "is --server (MQBCTL_SERVER) the address of an mqbd?",
		}
	}
	return nil
}

func (c *Client) unreachable(err error) error {
	if errors.Is(err, context.Canceled) {
		return &api.Error{Message: "interrupted", Code: api.CodeFailed}
	}
	var own *api.Error
	if errors.As(err, &own) {
		return own
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	hint := "start mqbd, or name another one with --server or MQBCTL_SERVER"
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &cert):
		hint = "--ca (MQBCTL_CA) names the authority of the nodes' certificates"
	case errors.Is(err, io.EOF) && strings.HasPrefix(c.base, "http://"):
		hint = "does this node want https://?"
	}
	return &api.Error{Message: fmt.Sprintf("no answer from %s: %v", c.base, err), Code: api.CodeUnreachable, Hint: hint}
}
