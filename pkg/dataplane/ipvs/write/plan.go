// SPDX-License-Identifier: Apache-2.0

package write

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// scheduler takes each destination in its turn: kube-proxy's default.
const scheduler = "rr"

// Server is a virtual server that has to be there.
type Server struct {
	ipvs.VirtualServer
	// Serving are the endpoints where connections of UDP that exist may stay, sorted; nil for other protocols.
	Serving []netip.AddrPort
}

// Layout is what has to be there in one family, beside the table of nftables.
type Layout struct {
	// Addresses are those of Services that the interface has, sorted.
	Addresses []netip.Addr
	// Servers are sorted.
	Servers []Server
}

// Want returns what serves a state on a node in one family, and adds to unserved what of the state cannot be: see
// proxy.Sites.
func Want(state *proxy.State, node proxy.Node, family dataplane.Family, unserved *proxy.Unserved) *Layout {
	l := &Layout{}
	for _, site := range sites(state, node, family, unserved) {
		if site.Own {
			l.Addresses = append(l.Addresses, site.At.Addr())
		}
		if site.Outside.Action == dataplane.Drop {
			continue
		}
		s := Server{VirtualServer: ipvs.VirtualServer{
			Protocol: site.Port.Protocol, Address: site.At.Addr(), Port: site.At.Port(), Scheduler: scheduler,
			AffinitySeconds: uint32(site.Port.AffinitySeconds), Flags: ipvs.OwnFlag,
		}}
		for _, e := range site.Outside.Endpoints {
			s.Destinations = append(s.Destinations, ipvs.Destination{Address: e, Weight: 1})
		}
		if s.Protocol == "UDP" {
			s.Serving = site.Port.Serving()
		}
		l.Servers = append(l.Servers, s)
	}
	slices.SortFunc(l.Addresses, netip.Addr.Compare)
	l.Addresses = slices.Compact(l.Addresses)
	slices.SortFunc(l.Servers, func(a, b Server) int { return a.Compare(&b.VirtualServer) })
	return l
}

func sites(state *proxy.State, node proxy.Node, family dataplane.Family, unserved *proxy.Unserved) []proxy.Site {
	return proxy.Sites(&proxy.State{Ports: state.Of(family), NodePorts: state.NodePorts}, node, unserved)
}

// Action is what a Step does.
type Action string

// The actions.
const (
	AddServer         Action = "add"
	SetServer         Action = "change"
	DeleteServer      Action = "delete"
	AddDestination    Action = "add destination"
	SetDestination    Action = "change destination"
	DeleteDestination Action = "delete destination"
)

// Step is one thing to do in the kernel.
type Step struct {
	Do Action
	// Server has no destinations here.
	Server      ipvs.VirtualServer
	Destination ipvs.Destination
}

func (s Step) String() string {
	text := string(s.Do) + " " + s.Server.String()
	switch s.Do {
	case AddServer, SetServer:
		if s.Server.AffinitySeconds > 0 {
			text += fmt.Sprintf(", affinity %d s", s.Server.AffinitySeconds)
		}
	case AddDestination, SetDestination:
		text += fmt.Sprintf(" %s, weight %d", s.Destination.Address, s.Destination.Weight)
	case DeleteDestination:
		text += " " + s.Destination.Address.String()
	}
	return text
}

// Change is what turns the virtual servers of one family into those that have to be there.
type Change struct {
	// First is done before the table of nftables lets packets through, Last when none come any more.
	First, Last []Step
	// After are the proxy's virtual servers then. Destinations of weight 0 are left behind: they have connections.
	After []ipvs.VirtualServer
	// Taken are not made, because somebody else has virtual servers there.
	Taken []ipvs.VirtualServer
}

// Difference compares virtual servers that are there, the proxy's and others, with those that have to be. Both are
// sorted. Removed endpoints get no new connections; existing connections stay: in TCP and SCTP until they
// end, in UDP as long as the endpoint serves.
func Difference(have []ipvs.VirtualServer, want []Server) Change {
	var c Change
	for i, j := 0, 0; i < len(have) || j < len(want); {
		order := 1
		switch {
		case i == len(have):
		case j == len(want):
			order = -1
		default:
			order = have[i].Compare(&want[j].VirtualServer)
		}
		switch {
		case order < 0:
			if own(&have[i]) {
				c.Last = append(c.Last, Step{Do: DeleteServer, Server: bare(have[i])})
			}
			i++
		case order > 0:
			c.add(&want[j])
			j++
		case !own(&have[i]):
			c.Taken = append(c.Taken, bare(want[j].VirtualServer))
			i, j = i+1, j+1
		default:
			c.change(&have[i], &want[j])
			i, j = i+1, j+1
		}
	}
	return c
}

func own(s *ipvs.VirtualServer) bool { return s.Flags&ipvs.OwnFlag != 0 }

func bare(s ipvs.VirtualServer) ipvs.VirtualServer {
	s.Destinations = nil
	return s
}

func (c *Change) add(want *Server) {
	c.First = append(c.First, Step{Do: AddServer, Server: bare(want.VirtualServer)})
	for _, d := range want.Destinations {
		c.First = append(c.First, Step{AddDestination, bare(want.VirtualServer), d})
	}
	c.After = append(c.After, want.VirtualServer)
}

func (c *Change) change(have *ipvs.VirtualServer, want *Server) {
	server := bare(want.VirtualServer)
	if have.Scheduler != want.Scheduler || have.AffinitySeconds != want.AffinitySeconds || have.Flags != want.Flags ||
		have.ClientBits != want.ClientBits {
		c.First = append(c.First, Step{Do: SetServer, Server: server})
	}
	has := map[netip.AddrPort]ipvs.Destination{}
	for _, d := range have.Destinations {
		has[d.Address] = d
	}
	after := server
	for _, d := range want.Destinations {
		switch old, ok := has[d.Address]; {
		case !ok:
			c.First = append(c.First, Step{AddDestination, server, d})
		case old.Weight != d.Weight || old.Method != d.Method:
			c.First = append(c.First, Step{SetDestination, server, d})
		}
		delete(has, d.Address)
		after.Destinations = append(after.Destinations, d)
	}
	for _, d := range have.Destinations {
		if _, left := has[d.Address]; !left {
			continue
		}
		_, serves := slices.BinarySearchFunc(want.Serving, d.Address, netip.AddrPort.Compare)
		switch {
		case want.Protocol == "UDP" && !serves:
			c.First = append(c.First, Step{DeleteDestination, server, ipvs.Destination{Address: d.Address}})
			continue
		case d.Weight != 0:
			c.First = append(c.First, Step{SetDestination, server, ipvs.Destination{Address: d.Address}})
		}
		after.Destinations = append(after.Destinations, ipvs.Destination{Address: d.Address})
	}
	ipvs.Sort([]ipvs.VirtualServer{after})
	c.After = append(c.After, after)
}

// Drained returns what deletes the destinations of a server that get no new connections and have no open ones, and
// what the server has then. The list is what the kernel has.
func Drained(s ipvs.VirtualServer, list []ipvs.Destination) ([]Step, ipvs.VirtualServer) {
	connections := map[netip.AddrPort]uint32{}
	for _, d := range list {
		connections[d.Address] = d.Connections
	}
	var steps []Step
	after := bare(s)
	for _, d := range s.Destinations {
		if d.Weight == 0 && connections[d.Address] == 0 {
			steps = append(steps, Step{DeleteDestination, bare(s), ipvs.Destination{Address: d.Address}})
			continue
		}
		after.Destinations = append(after.Destinations, d)
	}
	return steps, after
}

// draining reports whether a server has destinations that get no new connections.
func draining(s *ipvs.VirtualServer) bool {
	return slices.ContainsFunc(s.Destinations, func(d ipvs.Destination) bool { return d.Weight == 0 })
}
