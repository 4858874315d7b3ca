package connectors

import (
	"context"

	"github.com/mqbridge/mqb/message"
)

// Seeker is a Source that makes a position of what a person says: a number as
// statuses show it, "earliest" or "latest".
type Seeker interface {
	// Seek returns the position at which a run would go on. It changes nothing.
	// An error says what the source has instead.
	Seek(ctx context.Context, p Partition, value string) (message.Position, error)
}
