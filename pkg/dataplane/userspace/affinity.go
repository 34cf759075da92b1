// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// maxClients bounds the clients whose endpoints are remembered, of all Services together. The sets of nftables that do
// it in that mode have 65,535 for each Service.
const maxClients = 65_536

// clients remembers the endpoints of clients, for session affinity.
type clients struct {
	mu   sync.Mutex
	last map[client]choice
}

// client is one client of a port of a Service.
type client struct {
	service, protocol string
	address           netip.Addr
}

type choice struct {
	endpoint netip.AddrPort
	at       time.Time
}

// choose returns an endpoint for a new connection: the one that the client has, else any, each as likely as the others.
// There is one at least.
func (c *clients) choose(
	f *Frontend, protocol string, address netip.Addr, endpoints []netip.AddrPort, now time.Time,
) netip.AddrPort {
	one := endpoints[rand.IntN(len(endpoints))]
	if f.Affinity == 0 {
		return one
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := client{f.Service, protocol, address}
	last, ok := c.last[key]
	if ok && now.Sub(last.at) < f.Affinity {
		if _, found := slices.BinarySearchFunc(endpoints, last.endpoint, netip.AddrPort.Compare); found {
			one = last.endpoint
		}
	}
	if c.last == nil {
		c.last = map[client]choice{}
	}
	if !ok && len(c.last) >= maxClients {
		for other := range c.last { // any
			delete(c.last, other)
			break
		}
	}
	c.last[key] = choice{one, now}
	return one
}
