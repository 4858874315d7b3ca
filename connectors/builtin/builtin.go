// Package builtin is the registry of every connector and middleware that the
// programs are built with. Another program may put together its own.
package builtin

import (
	"sync"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/memory"
	"github.com/mqbridge/mqb/connectors/null"
	"github.com/mqbridge/mqb/connectors/static"
)

// Registry returns the registry. It is built once and only read.
func Registry() *connectors.Registry { return registry() }

var registry = sync.OnceValue(func() *connectors.Registry {
	return connectors.NewRegistry(
		[]connectors.Type{
			memory.Type(),
			null.Type(),
			static.Type(),
		},
		nil,
	)
})
