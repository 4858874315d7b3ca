// Package mongodb keeps checkpoint records in a MongoDB collection, one document
// a record. An update of one document compares and writes in one step.
package mongodb

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/mqbridge/mqb/checkpoint"
	dial "github.com/mqbridge/mqb/dial/mongodb"
)

// DefaultCollection is the collection of the records, in the URL's database.
const DefaultCollection = "mqb_checkpoints"

// callTimeout bounds one call.
const callTimeout = 10 * time.Second

// Store implements checkpoint.Store. It is no SessionEnder: each call writes one
// document and nothing else, so that the server holds no lock for a client that
// froze; a writer with open transactions of its own is the sink's affair.
//
// The driver may repeat a write whose reply was lost (retryWrites); the server
// then tells the repetition from a second write.
type Store struct {
	client   *mongo.Client
	records  *mongo.Collection
	identity string
}

var _ checkpoint.Store = (*Store)(nil)

// document is a record as it is stored. Epoch, run and version are copies, for
// comparisons and for people.
type document struct {
	Key     string `bson:"_id"`
	Epoch   int64  `bson:"epoch"`
	Run     string `bson:"run"`
	Version int64  `bson:"version"`
	Record  string `bson:"record"`
}

// Open connects to the database of a mongodb:// URL (dial/mongodb.Config); the
// collection is the URL's or DefaultCollection, and comes with the first record.
// The user needs to find, insert and update there. The caller closes the store.
func Open(ctx context.Context, url string) (*Store, error) {
	cfg, err := dial.Parse(url)
	if err != nil {
		return nil, err
	}
	name := cfg.Collection
	if name == "" {
		name = DefaultCollection
	}
	client, err := cfg.Connect()
	if err != nil {
		return nil, err
	}
	s := &Store{client: client, identity: cfg.Address() + "/" + name}
	asking, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	replicated, err := dial.Replicated(asking, client)
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("checkpoint collection %s: %w", s.identity, err)
	}
	// A primary that was deposed and does not know it yet answers every other read
	// from what it has. A server alone has no such predecessor.
	concern := readconcern.Local()
	if replicated {
		concern = readconcern.Linearizable()
	}
	s.records = client.Database(cfg.Database).Collection(name, options.Collection().SetReadConcern(concern))
	return s, nil
}

// Load implements checkpoint.Store.
func (s *Store) Load(ctx context.Context, key string) (checkpoint.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var doc document
	err := s.records.FindOne(ctx, bson.D{{Key: "_id", Value: key}}).Decode(&doc)
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return checkpoint.Record{}, checkpoint.ErrNotFound
	case err != nil:
		return checkpoint.Record{}, fmt.Errorf("load %s: %w", key, err)
	}
	return checkpoint.Decode([]byte(doc.Record))
}

// Swap implements checkpoint.Store.
func (s *Store) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	if rec.Version != expected+1 || rec.Version > math.MaxInt64 || rec.Epoch > math.MaxInt64 {
		return fmt.Errorf("swap %s: version %d, epoch %d cannot follow version %d", key, rec.Version, rec.Epoch, expected)
	}
	body, err := checkpoint.Encode(rec)
	if err != nil {
		return fmt.Errorf("swap %s: %w", key, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	doc := document{Key: key, Epoch: int64(rec.Epoch), Run: rec.Run, Version: int64(rec.Version), Record: string(body)}
	if expected == 0 {
		return s.create(ctx, doc)
	}
	filter := bson.D{{Key: "_id", Value: key}}
	if checkpoint.Fenced {
		// The comparison is part of the write (invariant 1).
		filter = append(filter, bson.E{Key: "version", Value: int64(expected)})
	}
	err = s.records.FindOneAndUpdate(ctx, filter, bson.D{{Key: "$set", Value: bson.D{
		{Key: "epoch", Value: doc.Epoch}, {Key: "run", Value: doc.Run}, {Key: "version", Value: doc.Version}, {Key: "record", Value: doc.Record},
	}}}, options.FindOneAndUpdate().SetProjection(bson.D{{Key: "version", Value: 1}})).Err()
	if !errors.Is(err, mongo.ErrNoDocuments) {
		return failed("swap", key, err)
	}
	// Nothing deletes a record: one that is gone went back.
	err = s.records.FindOne(ctx, filter[:1], options.FindOne().SetProjection(bson.D{{Key: "version", Value: 1}})).Err()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return fmt.Errorf("swap %s: %w: the record is gone", key, checkpoint.ErrRegressed)
	}
	return checkpoint.ErrConflict
}

func (s *Store) create(ctx context.Context, doc document) error {
	_, err := s.records.InsertOne(ctx, doc)
	if mongo.IsDuplicateKeyError(err) {
		return checkpoint.ErrConflict
	}
	return failed("create", doc.Key, err)
}

// List implements checkpoint.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]checkpoint.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// Linearizable reads are of one document; here a majority's word is enough.
	records := s.records.Clone(options.Collection().SetReadConcern(readconcern.Majority()))
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: prefix}, {Key: "$lt", Value: prefix + last}}}}
	cursor, err := records.Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, failed("list", prefix, err)
	}
	var docs []document
	if err := cursor.All(ctx, &docs); err != nil {
		return nil, failed("list", prefix, err)
	}
	entries := make([]checkpoint.Entry, len(docs))
	for i, doc := range docs {
		entries[i].Key = doc.Key
		entries[i].Record, entries[i].Err = checkpoint.Decode([]byte(doc.Record))
	}
	return entries, nil
}

// last is the highest character there is; no key contains it.
const last = "\U0010FFFF"

// Identity implements checkpoint.Store: hosts, database and collection.
func (s *Store) Identity() string { return s.identity }

// Close ends the connections.
func (s *Store) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return s.client.Disconnect(ctx)
}

func failed(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", op, key, err)
}
