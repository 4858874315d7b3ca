package mongodb_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/mongodb"
	"github.com/mqbridge/mqb/checkpoint/storetest"
	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Steps: 5, Workers: 8, Timeout: time.Minute,
		New: func(t *testing.T) *storetest.Subject {
			server := harness.Mongo(t)
			db := server.NewDatabase(t)
			records := server.Database(t, db).Collection("records")
			return &storetest.Subject{
				Open:   func(t *testing.T) checkpoint.Store { return open(t, server.URL(db+"/records")) },
				Tamper: func(t *testing.T, key string, change func([]byte) []byte) { tamper(t, records, key, change) },
			}
		},
	})
}

func open(t *testing.T, url string) *mongodb.Store {
	t.Helper()
	s, err := mongodb.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tamper(t *testing.T, records *mongo.Collection, key string, change func([]byte) []byte) {
	t.Helper()
	ctx := context.Background()
	filter := bson.D{{Key: "_id", Value: key}}
	var doc struct{ Record string }
	if err := records.FindOne(ctx, filter).Decode(&doc); err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		t.Fatal(err)
	}
	var old []byte
	if doc.Record != "" {
		old = []byte(doc.Record)
	}
	body := change(old)
	if _, err := records.DeleteOne(ctx, filter); err != nil {
		t.Fatal(err)
	}
	if body == nil {
		return
	}
	rec, err := checkpoint.Decode(body)
	if err != nil { // torn: the fields beside it are whole
		rec, _ = checkpoint.Decode([]byte(doc.Record))
	}
	if _, err := records.InsertOne(ctx, bson.D{
		{Key: "_id", Value: key}, {Key: "epoch", Value: int64(rec.Epoch)}, {Key: "run", Value: rec.Run},
		{Key: "version", Value: int64(rec.Version)}, {Key: "record", Value: string(body)},
	}); err != nil {
		t.Fatal(err)
	}
}
