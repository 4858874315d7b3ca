package checkpoint

import (
	"errors"
	"testing"

	"github.com/mqbridge/mqb/message"
)

func TestRecordSurvivesEncoding(t *testing.T) {
	rec := Record{ClusterUID: "c", RouteUID: "r", Series: "s", Generation: 2, Epoch: 3, Run: "x", Version: 4,
		Position: message.Position{Token: []byte{0, 255}, Sort: message.SortKey(7)}, Intents: []Intent{{Name: "p", Last: 9}}}
	data, err := Encode(rec)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if got.Epoch != 3 || got.Position.Sort != rec.Position.Sort || got.Intents[0].Last != 9 || got.V != 1 {
		t.Fatalf("got %+v", got)
	}
}

// Every single flipped bit and every cut must be noticed: a torn record that
// decodes would resume somewhere else without a word.
func TestTornRecordIsNeverDecoded(t *testing.T) {
	data, err := Encode(Record{ClusterUID: "c", RouteUID: "r", Epoch: 3, Version: 4})
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		if _, err := Decode(data[:i]); !errors.Is(err, ErrRegressed) {
			t.Fatalf("cut at %d: %v", i, err)
		}
		for bit := range 8 {
			torn := append([]byte(nil), data...)
			torn[i] ^= 1 << bit
			if _, err := Decode(torn); err == nil {
				t.Fatalf("bit %d of byte %d flipped and not noticed", bit, i)
			}
		}
	}
}

func FuzzRecordDecode(f *testing.F) {
	data, _ := Encode(Record{ClusterUID: "c", RouteUID: "r", Epoch: 3, Version: 4})
	f.Add(data)
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := Decode(data)
		if err != nil {
			return
		}
		if _, err := Encode(rec); err != nil && !errors.Is(err, ErrTooLarge) {
			t.Fatal(err)
		}
	})
}
