// Command etcd is the server itself, at the version that this module pins. It
// has a module of its own so that the product does not depend on the server.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
