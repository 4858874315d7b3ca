package harness

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

func TestMongoHasUniqueIDsAndConditionalUpdates(t *testing.T) {
	s := Mongo(t)
	c := s.Database(t, s.NewDatabase(t)).Collection("c")
	if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}, {Key: "v", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}); !mongo.IsDuplicateKeyError(err) {
		t.Fatalf("second insert: %v", err)
	}
	for _, want := range []int64{1, 0} {
		got, err := c.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "a"}, {Key: "v", Value: 1}}, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 2}}}})
		if err != nil || got.ModifiedCount != want {
			t.Fatalf("%+v, %v", got, err)
		}
	}
}
