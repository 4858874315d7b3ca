// Package mongodb makes clients of MongoDB, for checkpoint stores and connectors
// alike: URLs that name a database and a collection, and the settings that make
// an acknowledged write a durable one.
package mongodb

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// Config is a parsed URL, mongodb://[user:password@]host[,host…]/db[/collection][?options]
// or the same with mongodb+srv. It never changes and is safe for concurrent use.
type Config struct {
	Database string
	// Collection is "" when the URL names none.
	Collection string

	hosts  string
	client *options.ClientOptions
}

// How long the driver looks for a server that can take a request, and for one
// connection; options in the URL win.
const (
	selectionTimeout = 5 * time.Second
	connectTimeout   = 5 * time.Second
)

// Parse reads a URL. Its errors do not show the URL, which may hold a password
// (invariant 11).
func Parse(rawURL string) (*Config, error) {
	scheme, rest, found := strings.Cut(rawURL, "://")
	if !found || scheme != "mongodb" && scheme != "mongodb+srv" {
		return nil, errors.New("mongodb: not a mongodb:// URL")
	}
	// Not with net/url, which knows one host only. Reserved characters of user and
	// password are percent-encoded, so the first slash ends the hosts.
	rest, query, hasQuery := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	db, coll, _ := strings.Cut(path, "/")
	c := &Config{hosts: authority[strings.LastIndexByte(authority, '@')+1:]}
	var errDB, errColl error
	c.Database, errDB = url.PathUnescape(db)
	c.Collection, errColl = url.PathUnescape(coll)
	if errDB != nil || errColl != nil || c.hosts == "" || strings.Contains(coll, "/") {
		return nil, errors.New("mongodb: the URL must be mongodb://host/database or mongodb://host/database/collection")
	}
	if c.Database == "" {
		return nil, fmt.Errorf("mongodb: the URL for %s names no database", c.hosts)
	}
	// The order of the hosts means nothing.
	hosts := strings.Split(c.hosts, ",")
	slices.Sort(hosts)
	c.hosts = strings.Join(hosts, ",")
	plain := scheme + "://" + authority + "/" + db
	if hasQuery {
		plain += "?" + query
	}
	c.client = options.Client().SetAppName("mqb").
		SetServerSelectionTimeout(selectionTimeout).SetConnectTimeout(connectTimeout).
		ApplyURI(plain)
	if err := c.client.Validate(); err != nil {
		if strings.Contains(authority, "@") || strings.Contains(strings.ToLower(query), "password") {
			// The driver quotes what it does not understand.
			return nil, fmt.Errorf("mongodb: the URL for %s cannot be used; are user and password percent-encoded?", c.hosts)
		}
		return nil, fmt.Errorf("mongodb: URL for %s: %w", c.hosts, err)
	}
	// A write is acknowledged when no failover takes it back, and reads see it,
	// whatever the URL says.
	journal := true
	c.client.SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journal})
	c.client.SetReadPreference(readpref.Primary())
	return c, nil
}

// Address names hosts and database without secrets, "mongodb://host:27017/db".
func (c *Config) Address() string { return "mongodb://" + c.hosts + "/" + c.Database }

// Connect makes a client. It connects in the background; the caller disconnects it.
func (c *Config) Connect() (*mongo.Client, error) {
	client, err := mongo.Connect(c.client)
	if err != nil {
		return nil, fmt.Errorf("mongodb: connect to %s: %w", c.Address(), err)
	}
	return client, nil
}

// codeCommandNotFound is the server's error code for a command it does not have.
const codeCommandNotFound = 59

// Replicated reports whether the server is a member of a replica set, or a router
// to some: only those have read concerns above "local".
func Replicated(ctx context.Context, client *mongo.Client) (bool, error) {
	var hello struct {
		SetName string `bson:"setName"`
		Msg     string `bson:"msg"`
	}
	admin := client.Database("admin")
	err := admin.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
	var server mongo.ServerError
	if errors.As(err, &server) && server.HasErrorCode(codeCommandNotFound) {
		err = admin.RunCommand(ctx, bson.D{{Key: "isMaster", Value: 1}}).Decode(&hello)
	}
	return hello.SetName != "" || hello.Msg == "isdbgrid", err
}
