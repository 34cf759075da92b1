// SPDX-License-Identifier: Apache-2.0

// Command coredns is CoreDNS with only the plugins that answer for a cluster's
// own names: nothing in the sandbox can reach beyond the machine, so there is
// nothing to forward to.
package main

import (
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"

	"github.com/coredns/coredns/coremain"
)

func main() { coremain.Run() }
