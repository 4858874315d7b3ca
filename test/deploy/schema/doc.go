// Package schema holds tests that check the files of /deploy against the schemas
// of compose and of Kubernetes. It is a module of its own, so that the product's
// go.mod does not name theirs.
package schema
