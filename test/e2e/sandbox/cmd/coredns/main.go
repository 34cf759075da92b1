// SPDX-License-Identifier: Apache-2.0

// Command coredns is CoreDNS with only the plugins for a cluster's own names. It has no forward
// plugin: the sandbox cannot reach anything outside the machine.
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
