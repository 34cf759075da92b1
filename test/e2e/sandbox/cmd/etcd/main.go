// SPDX-License-Identifier: Apache-2.0

// Command etcd is etcd, built from its module: Debian's binary needs Debian's C
// library beside it, and this one is alone in its image.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
