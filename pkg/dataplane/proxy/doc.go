// SPDX-License-Identifier: Apache-2.0

// Package proxy is what the service proxies of this project have in common, whatever they write rules with. They are
// clients of KEP-2094's API (pkg/nodestate/api) and know nothing of Kubernetes.
//
//	state := proxy.Check(items)          // messages of the API as addresses and numbers
//	rules := write.Render(state, node)   // pkg/dataplane/nftables/write, pkg/dataplane/iptables/write: pure
//	checks := proxy.StaleUDP(old, state) // the UDP connections that must be forgotten; pure
//
// Proxy runs them for each state: first the rules, then conntrack, then the answers of the health check ports.
//
// A message is not trusted: what cannot be served is one of the state's Problems, and after Check, names have only
// letters, digits and hyphens, and all else is numbers. So no text of a message can become a part of a rule.
package proxy
