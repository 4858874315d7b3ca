package route

import (
	"fmt"
	"net/url"
	"strings"
)

// storeType is a scheme of checkpoint_store.
type storeType struct {
	scheme string
	// example is a URL, for hints and documentation.
	example string
	// local: what the URL names is on the disk of a node.
	local bool
}

// storeTypes are the stores that checkpoint_store can name; the others of the
// dialect and of the design are refused until they exist.
var (
	storeTypes = []storeType{
		{scheme: "postgres", example: "postgres://user:password@host/database[/table]"},
		{scheme: "postgresql"},
		{scheme: "mysql", example: "mysql://user:password@host/database[/table]"},
		{scheme: "mariadb"},
		{scheme: "mongodb", example: "mongodb://host/database[/collection]"},
		{scheme: "mongodb+srv"},
		{scheme: "s3", example: "s3://bucket/prefix"},
		{scheme: "file", example: "file:///directory", local: true},
		{scheme: "sqlite", example: "sqlite:///file.db[/table]", local: true},
	}
	unsupportedStores = []string{"abfs", "az", "etcd", "gs", "kafka"}
)

func storeTypeOf(rawURL string) (storeType, bool) {
	scheme, _, isURL := strings.Cut(rawURL, "://")
	for _, s := range storeTypes {
		if isURL && s.scheme == scheme {
			return s, true
		}
	}
	return storeType{}, false
}

// checkStore returns what is wrong with a checkpoint_store, nil if nothing is. It
// shows no part of the URL but its scheme, since the rest may hold a password.
func checkStore(rawURL string) *ConfigError {
	if rawURL == "coordinator" || rawURL == "memory" {
		return nil
	}
	const hint = "coordinator or postgres://host/db"
	scheme, rest, isURL := strings.Cut(rawURL, "://")
	s, known := storeTypeOf(rawURL)
	switch {
	case !isURL:
		return &ConfigError{Msg: "a store in the source database (a bare name) is not supported yet", Hint: hint}
	case known && s.local:
		if u, err := url.Parse(rawURL); err != nil || u.Host != "" || strings.Trim(u.Path, "/") == "" {
			return &ConfigError{Msg: fmt.Sprintf("a %s store needs an absolute path, behind three slashes", scheme), Hint: s.example}
		}
		return nil
	case known:
		if u, err := url.Parse(rawURL); rest == "" || err == nil && u.Host == "" && u.Path == "" {
			return &ConfigError{Msg: fmt.Sprintf("a %s store needs a host and a name", scheme), Hint: s.example}
		}
		return nil
	}
	for _, s := range unsupportedStores {
		if scheme == s {
			return &ConfigError{Msg: fmt.Sprintf("a %s store is not supported yet", s), Hint: hint}
		}
	}
	var names []string
	for _, s := range storeTypes {
		names = append(names, s.scheme)
	}
	return &ConfigError{Msg: fmt.Sprintf("unknown store %q", scheme), Hint: didYouMean(scheme, names)}
}

// StoreLocality says which nodes reach the checkpoint store of the route: NodeLocal
// where checkpoint_store is on a disk, unless shared_storage mounts it everywhere.
// A record in the sink or the coordinator is Shared here; the sink says where it is
// itself.
func (s *Spec) StoreLocality() Locality {
	if t, ok := storeTypeOf(s.CheckpointStore); ok && t.local && !s.SharedStorage {
		return NodeLocal
	}
	return Shared
}

// storesDocument lists what checkpoint_store takes.
func storesDocument() string {
	var b strings.Builder
	b.WriteString("`checkpoint_store` takes `coordinator`, `memory` (for tests: it ends with its process)")
	local := ""
	for _, s := range storeTypes {
		if s.example != "" {
			fmt.Fprintf(&b, ", `%s`", s.example)
		}
		if s.local {
			local += fmt.Sprintf(", `%s://`", s.scheme)
		}
	}
	fmt.Fprintf(&b, ". %s are on one node's disk: without `shared_storage`, only that node can hold the route's partitions. "+
		"A `file:///positions.json` of mq-bridge is left alone; the records go into the directory `positions.json.d` beside it.", local[2:])
	return b.String()
}
