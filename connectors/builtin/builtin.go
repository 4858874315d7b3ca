// Package builtin is the registry of every connector and middleware that the
// programs are built with. Another program may put together its own.
package builtin

import (
	"sync"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/file"
	"github.com/mqbridge/mqb/connectors/kafka"
	"github.com/mqbridge/mqb/connectors/memory"
	"github.com/mqbridge/mqb/connectors/null"
	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/connectors/static"
	"github.com/mqbridge/mqb/middleware"
)

// Registry returns the registry. It is built once and only read.
func Registry() *connectors.Registry { return registry() }

var registry = sync.OnceValue(func() *connectors.Registry {
	return connectors.NewRegistry(
		[]connectors.Type{
			file.Type(),
			kafka.Type(),
			memory.Type(),
			null.Type(),
			sqlx.Type(),
			static.Type(),
		},
		middleware.Types(),
	)
})
