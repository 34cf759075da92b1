// SPDX-License-Identifier: Apache-2.0

// Command etcd is etcd, built from its module. The binary of Debian needs Debian's C library, but
// the image contains only this binary.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
