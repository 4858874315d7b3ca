package file

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/mqbridge/mqb/message"
)

// place is a position in a file: where the next record begins. Its token is the
// JSON of this struct, its sort key the record's number.
type place struct {
	Offset int64 `json:"offset"`
	Record int64 `json:"record"`
	// End: the file ended here when this position was made, so nothing unread is
	// lost if the file is gone by now.
	End bool `json:"end,omitempty"`
	// Open: the record before this position had no line end, and was handed on
	// because the input was declared to be at its end (exit_on_empty).
	Open bool `json:"open,omitempty"`
}

func (p place) position() message.Position {
	b := make([]byte, 0, 64)
	b = append(b, `{"offset":`...)
	b = strconv.AppendInt(b, p.Offset, 10)
	b = append(b, `,"record":`...)
	b = strconv.AppendInt(b, p.Record, 10)
	if p.End {
		b = append(b, `,"end":true`...)
	}
	if p.Open {
		b = append(b, `,"open":true`...)
	}
	return message.Position{Token: append(b, '}'), Sort: message.SortKey(p.Record)}
}

func parsePlace(p message.Position) (place, error) {
	var at place
	if p.IsZero() {
		return at, nil
	}
	if err := json.Unmarshal(p.Token, &at); err != nil {
		return at, fmt.Errorf("position %q of a file: %w", p.Token, err)
	}
	if n, ok := p.Number(); !ok || n != at.Record || at.Offset < 0 {
		return at, fmt.Errorf("position %q of a file does not fit its sort key %q", p.Token, p.Sort)
	}
	return at, nil
}

// positioner makes the position behind any message of a batch.
type positioner struct{}

func (positioner) After(m *message.Message) message.Position {
	return place{Offset: m.Next, Record: m.Ordinal + 1}.position()
}
