// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// lab is a Server at loopback addresses, which need no interface. The node is 127.0.0.1, its pods are 127.1.0.0/16.
type lab struct {
	*Server
	t     *testing.T
	node  proxy.Node
	state proxy.State

	mu      sync.Mutex
	has     map[netip.Addr]bool // the interface
	deleted int
	dials   int   // connections to endpoints
	err     error // of what is asked of the interface next
	clock   time.Time
}

// patience bounds what has to happen; silence is how long nothing has to come.
const (
	patience = 20 * time.Second
	silence  = 500 * time.Millisecond
)

func newLab(t *testing.T) *lab {
	l := &lab{t: t, node: atNode("127.0.0.1", "127.1.0.0/16"), has: map[netip.Addr]bool{}, clock: time.Now()}
	l.state.NodePorts = map[dataplane.Family]proxy.NodePorts{}
	change := func(f func()) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.err == nil {
			f()
		}
		return l.err
	}
	l.Server = New()
	l.Device = proxy.Device{
		Name:   dataplane.UserspaceDevice,
		Create: func() error { return nil },
		Addresses: func() ([]netip.Addr, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return slices.Collect(maps.Keys(l.has)), nil
		},
		Add:    func(a netip.Addr) error { return change(func() { l.has[a] = true }) },
		Remove: func(a netip.Addr) error { return change(func() { delete(l.has, a) }) },
		Delete: func() error { return change(func() { clear(l.has); l.deleted++ }) },
	}
	l.Dial = func(network, address string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, address, timeout)
		l.mu.Lock()
		defer l.mu.Unlock()
		if err == nil && network == "tcp" {
			l.dials++
		}
		return conn, err
	}
	l.Now = func() time.Time {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.clock
	}
	t.Cleanup(func() {
		if err := l.Cleanup(t.Context()); err != nil {
			t.Error(err)
		}
		until(t, "no connection and no session", func() bool { return l.Counts().Connections == 0 && l.Counts().Sessions == 0 })
	})
	return l
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after %s: %s", patience, what)
		}
	}
}

// write serves ports, and returns what is not served.
func (l *lab) write(ports ...proxy.Port) []string {
	l.t.Helper()
	l.state.Ports = ports
	err := l.Write(l.t.Context(), &l.state, l.node)
	var unserved proxy.Unserved
	if err != nil && !errors.As(err, &unserved) {
		l.t.Fatal(err)
	}
	return unserved.Problems
}

// backend is an endpoint of TCP and UDP. It answers with its name, the host that it was asked by, and all that it was
// sent, once the client has ended; in UDP with the packet.
func backend(t *testing.T, name, host string) netip.AddrPort {
	t.Helper()
	at := free(t, host)
	tcp, err := net.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tcp.Close(); udp.Close() })
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				text, err := io.ReadAll(conn)
				if err == nil {
					fmt.Fprintf(conn, "%s %s", name, text)
				}
			}()
		}
	}()
	go func() {
		packet := make([]byte, maxPacket)
		for {
			n, from, err := udp.ReadFrom(packet)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(fmt.Appendf(nil, "%s %s %s", name, from, packet[:n]), from)
		}
	}()
	return at
}

// free returns a port of a host that nobody has, in TCP and UDP.
func free(t *testing.T, host string) netip.AddrPort {
	t.Helper()
	for range 100 {
		tcp, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Skipf("no loopback address %s: %v", host, err)
		}
		at := tcp.Addr().(*net.TCPAddr).AddrPort()
		udp, err := net.ListenPacket("udp", at.String())
		tcp.Close()
		if err != nil {
			continue
		}
		udp.Close()
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	}
	t.Fatal("no port is free")
	return netip.AddrPort{}
}

// at is a port of a Service at a place that nobody has.
func (l *lab) at(service, host string, changes ...func(*proxy.Port)) proxy.Port {
	l.t.Helper()
	p := port(service, host, changes...)
	p.Port = free(l.t, host).Port()
	return p
}

func forwards(to ...netip.AddrPort) proxy.Traffic {
	return proxy.Traffic{Action: dataplane.Forward, Endpoints: slices.SortedFunc(slices.Values(to), netip.AddrPort.Compare)}
}

// goes makes a cluster IP lead to endpoints.
func goes(endpoints ...netip.AddrPort) func(*proxy.Port) {
	return func(p *proxy.Port) { p.Internal = forwards(endpoints...) }
}

func udp(p *proxy.Port) { p.Protocol = "UDP" }

// place is where clients of a cluster IP connect to.
func place(p proxy.Port) string { return netip.AddrPortFrom(p.ClusterIP, p.Port).String() }

// dial connects from an address; empty: any.
func dial(network, from, to string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	if from != "" && network == "tcp" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	} else if from != "" {
		d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
	}
	return d.Dial(network, to)
}

// ask connects, sends a text, ends its own side, and returns the answer. Refused and closed are answers, too.
func ask(from, to string) string {
	conn, err := dial("tcp", from, to, patience)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.ECONNRESET): // at once
		return "reset"
	case err != nil:
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err = io.WriteString(conn, "hello")
	if err == nil {
		err = conn.(*net.TCPConn).CloseWrite()
	}
	text, failed := io.ReadAll(conn)
	if err = errors.Join(err, failed); errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ENOTCONN) {
		return "reset"
	} else if err != nil {
		return err.Error()
	}
	return string(text)
}

// silent reports that nobody answers a connection, not even by refusing it.
func silent(from, to string) bool {
	conn, err := dial("tcp", from, to, silence)
	if err == nil {
		conn.Close()
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// talk is a client of UDP.
type talk struct {
	net.Conn
	t *testing.T
}

func talks(t *testing.T, from, to string) talk {
	t.Helper()
	conn, err := dial("udp", from, to, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return talk{conn, t}
}

// ask sends a packet, and returns who answers, and at which address the proxy is for it.
func (c talk) ask(text string, wait time.Duration) (who, from string) {
	c.t.Helper()
	_, err := io.WriteString(c, text)
	packet := make([]byte, maxPacket)
	n := 0
	if err == nil {
		_ = c.SetReadDeadline(time.Now().Add(wait))
		n, err = c.Read(packet)
	}
	switch parts := strings.SplitN(string(packet[:n]), " ", 3); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer", ""
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused", ""
	case err != nil:
		return err.Error(), ""
	case len(parts) != 3 || parts[2] != text:
		return fmt.Sprintf("answer %.100q", parts), ""
	default:
		return parts[0], parts[1]
	}
}

// answers returns the answers to many connections.
func answers(from, to string) map[string]bool {
	all := map[string]bool{}
	for range 60 {
		all[ask(from, to)] = true
	}
	return all
}

func same(have map[string]bool, want ...string) bool {
	return len(have) == len(want) && !slices.ContainsFunc(want, func(w string) bool { return !have[w] })
}

// TestServes: TCP and UDP, in both families, to each endpoint; the end of one direction is not that of the other one.
func TestServes(t *testing.T) {
	for _, host := range []string{"127.96.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			l := newLab(t)
			near := map[string]string{"127.96.0.1": "127.0.0.1", "::1": "::1"}[host]
			a, b := backend(t, "a", near), backend(t, "b", near)
			if host == "::1" { // the only one; endpoints are at the node, then
				l.node = atNode("::1", "")
			}
			web := l.at("web", host, goes(a, b))
			dns := l.at("dns", host, goes(a, b), udp)
			if host == "::1" {
				for _, p := range []*proxy.Port{&web, &dns} {
					p.ExternalIPs, p.ClusterIP, p.Inside, p.External = []netip.Addr{p.ClusterIP}, addr("fd00:96::1"), p.Internal, p.Internal
					p.Internal = to("reject")
				}
			}
			if unserved := l.write(web, dns); len(unserved) > 0 {
				t.Fatal(unserved)
			}
			at := func(p proxy.Port) string { return netip.AddrPortFrom(addr(host), p.Port).String() }
			if have := answers("", at(web)); !same(have, "a hello", "b hello") {
				t.Errorf("TCP: %v", have)
			}
			have := map[string]bool{}
			for range 60 {
				c := talks(t, "", at(dns))
				who, from := c.ask("hello", patience)
				have[who] = true
				if again, still := c.ask("again", patience); again != who || still != from {
					t.Errorf("a session changed from %s to %s", who, again)
				}
				if who, _ := c.ask(strings.Repeat("x", 40_000), patience); who == "no answer" || !have[who] {
					t.Errorf("a large packet: %s", who)
				}
			}
			if !same(have, "a", "b") {
				t.Errorf("UDP: %v", have)
			}
			until(t, "TCP connections end", func() bool { return l.Counts().Connections == 0 })
			if c := l.Counts(); c.Sessions != 60 || c.TurnedAway != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
}

// TestPolicies: what connections of each origin get. The node is 127.0.0.1, a pod 127.1.0.1, and 127.0.0.9 outside.
func TestPolicies(t *testing.T) {
	l := newLab(t)
	a, b := backend(t, "a", "127.0.0.1"), backend(t, "b", "127.0.0.1")
	lb := func(inside, outside proxy.Traffic, sources string) func(*proxy.Port) {
		return func(p *proxy.Port) {
			p.LoadBalancerIPs, p.Inside, p.External, p.Sources = []netip.Addr{p.ClusterIP}, inside, outside, prefixes(sources)
			p.ClusterIP, p.Internal = addr("127.97.0.1"), to("reject")
		}
	}
	internal := func(traffic proxy.Traffic) func(*proxy.Port) {
		return func(p *proxy.Port) { p.Internal = traffic }
	}
	for _, row := range []struct {
		name               string
		change             func(*proxy.Port)
		outside, pod, node string // empty: dropped
	}{
		{"a cluster IP", internal(forwards(a)), "a", "a", "a"},
		{"no endpoints", internal(to("reject")), "refused", "refused", "refused"},
		{"Local without endpoints", internal(to("drop")), "", "", ""},
		{"Local", lb(forwards(a), forwards(b), ""), "b", "a", "a"},
		{"Local without endpoints, from outside", lb(forwards(a), to("drop"), ""), "", "a", "a"},
		{"no endpoints of a load balancer", lb(to("reject"), to("reject"), "127.0.0.9/32"), "refused", "refused", "refused"},
		{"sources", lb(forwards(a), forwards(a), "127.0.0.8/29"), "a", "", ""},
		{"other sources", lb(forwards(a), forwards(a), "127.1.0.0/16 198.51.100.0/24"), "", "a", ""},
		{"sources, Local", lb(forwards(a), forwards(b), "127.0.0.0/29 127.0.0.9/32"), "b", "", "a"},
		{"sources, and Local without endpoints", lb(forwards(a), to("drop"), "127.0.0.0/24"), "", "", "a"},
	} {
		for _, protocol := range []string{"TCP", "UDP"} {
			t.Run(row.name+" "+protocol, func(t *testing.T) {
				p := l.at("web", "127.96.0.1", row.change, func(p *proxy.Port) { p.Protocol = protocol })
				if unserved := l.write(p); len(unserved) > 0 {
					t.Fatal(unserved)
				}
				at := netip.AddrPortFrom(addr("127.96.0.1"), p.Port).String()
				for from, want := range map[string]string{"127.0.0.9": row.outside, "127.1.0.1": row.pod, "127.0.0.1": row.node} {
					switch {
					case protocol == "TCP" && want == "":
						if !silent(from, at) {
							t.Errorf("from %s: not dropped", from)
						}
					case protocol == "TCP":
						if have := strings.TrimSuffix(ask(from, at), " hello"); have != want {
							t.Errorf("from %s: %q, want %q", from, have, want)
						}
					default:
						wait := patience
						if want == "" {
							want, wait = "no answer", silence
						}
						if have, _ := talks(t, from, at).ask("hello", wait); have != want {
							t.Errorf("from %s: %q, want %q", from, have, want)
						}
					}
				}
			})
		}
	}
}

// TestNodePorts: at the node's addresses, and not at loopback ones.
func TestNodePorts(t *testing.T) {
	l := newLab(t)
	a := backend(t, "a", "127.0.0.1")
	p := l.at("web", "127.96.0.1", goes(a), func(p *proxy.Port) { p.NodePort = free(t, "127.0.0.1").Port() })
	p.Inside, p.External = p.Internal, p.Internal
	l.state.NodePorts[dataplane.IPv4] = proxy.NodePorts{All: true}
	if unserved := l.write(p); len(unserved) > 0 {
		t.Fatal(unserved)
	}
	if have := ask("", fmt.Sprint("127.0.0.1:", p.NodePort)); have != "refused" {
		t.Errorf("at the loopback address: %s", have)
	}
	if have := ask("", fmt.Sprint("127.96.0.1:", p.NodePort)); have != "refused" {
		t.Errorf("at the cluster IP: %s", have)
	}
}

// TestChanges: what happens to clients when a Service changes.
func TestChanges(t *testing.T) {
	l := newLab(t)
	a, b := backend(t, "a", "127.0.0.1"), backend(t, "b", "127.0.0.1")
	web, dns := l.at("web", "127.96.0.1", goes(a)), l.at("dns", "127.96.0.2", goes(a), udp)
	other := l.at("other", "127.96.0.1", goes(a))
	l.write(web, dns, other)
	open := func(p proxy.Port) net.Conn {
		conn, err := dial("tcp", "", place(p), patience)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	ends := func(conn net.Conn) string {
		_ = conn.(*net.TCPConn).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		text, err := io.ReadAll(conn)
		if err != nil {
			return "reset"
		}
		return string(text)
	}
	old, kept, lost, client := open(web), open(web), open(other), talks(t, "", place(dns))
	until(t, "three connections", func() bool { return l.Counts().Connections == 3 })
	if who, _ := client.ask("hello", patience); who != "a" {
		t.Fatal(who)
	}
	until(t, "connections have endpoints", func() bool { return l.relayed() == 3 })

	goes(b)(&web)
	goes(b)(&dns)
	l.write(web, dns, other)
	if have := ask("", place(web)); have != "b hello" {
		t.Errorf("a new connection: %s", have)
	}
	if have := ends(old); have != "a " {
		t.Errorf("a TCP connection to an endpoint that is gone: %s", have)
	}
	if who, _ := client.ask("hello", patience); who != "b" {
		t.Errorf("a UDP session to an endpoint that is gone: %s", who)
	}

	l.write(dns, other) // the address stays
	if have := ask("", place(web)); have != "refused" {
		t.Errorf("a port that is gone: %s", have)
	}
	if have := ends(kept); have != "a " {
		t.Errorf("a TCP connection to a port that is gone: %s", have)
	}
	l.write(dns)
	if have := ends(lost); have != "reset" {
		t.Errorf("a TCP connection to an address that is gone: %s", have)
	}
	l.write()
	if who, _ := client.ask("hello", patience); who != "refused" {
		t.Errorf("UDP without a Service: %s", who)
	}
	until(t, "nothing is left", func() bool { return l.Counts() == Counts{} && len(l.has) == 0 })
}

// relayed returns the number of connections that have got an endpoint.
func (l *lab) relayed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dials
}

// TestEndpointsFail: a client gets another endpoint if one does not take it, and is reset if none does.
func TestEndpointsFail(t *testing.T) {
	l := newLab(t)
	good, bad, worse := backend(t, "a", "127.0.0.1"), free(t, "127.0.0.1"), free(t, "127.0.0.1")
	some, none := l.at("some", "127.96.0.1", goes(good, bad, worse)), l.at("none", "127.96.0.2", goes(bad, worse))
	sticky := l.at("sticky", "127.96.0.3", goes(good, bad, worse), func(p *proxy.Port) { p.AffinitySeconds = 60 })
	dns := l.at("dns", "127.96.0.4", goes(bad), udp)
	l.write(some, none, sticky, dns)
	for _, row := range []struct {
		at   proxy.Port
		want string
	}{{some, "a hello"}, {none, "reset"}, {sticky, "a hello"}} {
		if have := answers("", place(row.at)); !same(have, row.want) {
			t.Errorf("%s: %v", row.at.Service, have)
		}
	}
	if who, _ := talks(t, "", place(dns)).ask("hello", silence); who != "no answer" {
		t.Errorf("UDP: %s", who)
	}
	until(t, "sessions with endpoints that refuse end", func() bool { return l.Counts().Sessions == 0 })
}

func (l *lab) pass(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock = l.clock.Add(d)
}

// TestAffinity: for how long a client keeps its endpoint.
func TestAffinity(t *testing.T) {
	l := newLab(t)
	var all []netip.AddrPort
	for _, name := range strings.Split("abcdefgh", "") {
		all = append(all, backend(t, name, "127.0.0.1"))
	}
	for _, protocol := range []string{"TCP", "UDP"} {
		t.Run(protocol, func(t *testing.T) {
			web := l.at("web", "127.96.0.1", goes(all...), func(p *proxy.Port) { p.Protocol, p.AffinitySeconds = protocol, 60 })
			l.write(web)
			get := func(from string) string {
				if protocol == "UDP" {
					who, _ := talks(t, from, place(web)).ask("hello", patience)
					return who
				}
				return ask(from, place(web))
			}
			first := get("127.0.0.9")
			for range 60 {
				l.pass(59 * time.Second) // after the last one
				if have := get("127.0.0.9"); have != first {
					t.Fatalf("%s after %s", have, first)
				}
			}
			others, later := map[string]bool{}, map[string]bool{}
			for i := range 60 {
				others[get(fmt.Sprint("127.0.1.", i+1))] = true
				l.pass(61 * time.Second)
				later[get("127.0.0.9")] = true
			}
			if len(others) == 1 || len(later) == 1 {
				t.Errorf("other clients get %v, the first one gets %v later", others, later)
			}
			last := get("127.0.0.9")
			web.Internal.Endpoints = slices.DeleteFunc(slices.Clone(web.Internal.Endpoints), func(e netip.AddrPort) bool {
				return strings.HasPrefix(last, string('a'+byte(slices.Index(all, e))))
			})
			l.write(web)
			if have := get("127.0.0.9"); have == last {
				t.Errorf("%s is no endpoint any more", have)
			}
		})
	}
}

// TestChoose: each endpoint is as likely as the others; the clients that are remembered are bounded.
func TestChoose(t *testing.T) {
	var c clients
	endpoints := ports("10.1.0.1:80 10.1.0.2:80 10.1.0.3:80")
	count := map[netip.AddrPort]int{}
	for range 30_000 {
		count[c.choose(&Frontend{}, "TCP", addr("10.0.0.1"), endpoints, time.Time{})]++
	}
	for _, e := range endpoints {
		if count[e] < 9_000 || count[e] > 11_000 { // twelve standard deviations
			t.Errorf("%v", count)
		}
	}
	f, a := &Frontend{Affinity: time.Minute}, addr("10.0.0.1")
	for range maxClients + 10 {
		c.choose(f, "TCP", a, endpoints, time.Time{})
		a = a.Next()
	}
	if len(c.last) != maxClients {
		t.Errorf("%d clients", len(c.last))
	}
}

// TestIdle: a UDP session ends when no packet has come for some time, and its client gets another one.
func TestIdle(t *testing.T) {
	l := newLab(t)
	l.Idle = time.Second
	dns := l.at("dns", "127.96.0.1", goes(backend(t, "a", "127.0.0.1")), udp)
	l.write(dns)
	c := talks(t, "", place(dns))
	_, first := c.ask("hello", patience)
	until(t, "the session ends", func() bool { return l.Counts().Sessions == 0 })
	who, second := c.ask("hello", patience)
	if who != "a" || second == "" || second == first {
		t.Errorf("%s saw %s, then %s", who, first, second)
	}
}

// TestLimits: a listener takes a quarter of all connections, and of all sessions; all take no more than the limit.
func TestLimits(t *testing.T) {
	l := newLab(t)
	l.MaxConnections, l.MaxSessions = 8, 8
	a := backend(t, "a", "127.0.0.1")
	var all []proxy.Port
	for i := range 6 {
		all = append(all, l.at(fmt.Sprint("s", i), fmt.Sprint("127.96.0.", i+1), goes(a)))
		all = append(all, l.at(fmt.Sprint("u", i), fmt.Sprint("127.96.0.", i+1), goes(a), udp))
	}
	l.write(all...)
	var conns []net.Conn
	for i := range 3 {
		switch conn, err := dial("tcp", "", place(all[0]), patience); {
		case err == nil:
			defer conn.Close()
			conns = append(conns, conn)
		case i < 2 || !errors.Is(err, unix.ECONNRESET): // the third one is reset, perhaps before dial returns
			t.Fatal(err)
		}
		until(t, "it is counted", func() bool { return l.Counts().Connections+l.Counts().TurnedAway == int64(i+1) })
	}
	if have := ask("", place(all[0])); have != "reset" || l.Counts().Connections != 2 {
		t.Errorf("beyond the share: %s, %+v", have, l.Counts())
	}
	for i := range 3 {
		for range 2 {
			conn, err := dial("tcp", "", place(all[2*i+2]), patience)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
	}
	until(t, "eight connections", func() bool { return l.Counts().Connections == 8 })
	if have := ask("", place(all[10])); have != "reset" {
		t.Errorf("beyond the limit: %s", have)
	}
	conns[0].Close()
	until(t, "seven connections", func() bool { return l.Counts().Connections == 7 })
	if have := ask("", place(all[10])); have != "a hello" {
		t.Errorf("within the limit again: %s", have)
	}

	turned := l.Counts().TurnedAway
	one, two, three := talks(t, "", place(all[1])), talks(t, "", place(all[1])), talks(t, "", place(all[1]))
	_, first := one.ask("hello", patience)
	_, second := two.ask("hello", patience)
	one.ask("hello", patience)
	three.ask("hello", patience) // makes an end to that of two, which was silent for longer
	if _, have := one.ask("hello", patience); have != first {
		t.Errorf("the session that was used last ended")
	}
	if who, have := two.ask("hello", patience); who != "a" || have == second {
		t.Errorf("the session that was used first did not end")
	}
	if c := l.Counts(); c.Sessions != 2 || c.TurnedAway != turned+2 {
		t.Errorf("%+v", c)
	}
	for i := range 3 {
		for range 2 {
			talks(t, "", place(all[2*i+3])).ask("hello", patience)
		}
	}
	if who, _ := talks(t, "", place(all[11])).ask("hello", silence); who != "no answer" || l.Counts().Sessions != 8 {
		t.Errorf("beyond the limit: %s, %+v", who, l.Counts())
	}
}

// TestUnserved: what cannot be opened costs nothing else, and is tried again.
func TestUnserved(t *testing.T) {
	l := newLab(t)
	a := backend(t, "a", "127.0.0.1")
	web, dns, other := l.at("web", "127.96.0.1", goes(a)), l.at("dns", "127.96.0.1", goes(a), udp), l.at("other", "127.96.0.2", goes(a))
	taken, err := net.Listen("tcp", place(web))
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", place(dns))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{
		fmt.Sprintf("TCP %s of shop/web is not served: bind: address already in use", place(web)),
		fmt.Sprintf("UDP %s of shop/dns is not served: bind: address already in use", place(dns)),
	}, l.write(web, dns, other)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if have := ask("", place(other)); have != "a hello" {
		t.Errorf("another Service: %s", have)
	}
	if err := l.Present(t.Context()); err != nil {
		t.Error(err)
	}
	taken.Close()
	packets.Close()
	if unserved := l.write(web, dns, other); len(unserved) > 0 {
		t.Error(unserved)
	}
	if have := ask("", place(web)); have != "a hello" {
		t.Errorf("when nobody has it: %s", have)
	}

	l.err = errors.New("no memory")
	more := l.at("more", "127.96.0.3", goes(a))
	if diff := cmp.Diff([]string{
		"address 127.96.0.3 is not served: add it to interface cplan-userspace: no memory",
		"address 127.96.0.2 is no longer needed, but cannot be removed from interface cplan-userspace: no memory",
	}, l.write(web, dns, more)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err := l.Present(t.Context()); err != nil {
		t.Errorf("what could not be added is not gone: %v", err)
	}
	if have := ask("", place(web)); have != "a hello" {
		t.Errorf("another Service: %s", have)
	}
	l.err = nil
	if unserved := l.write(web, dns, more); len(unserved) > 0 || l.has[addr("127.96.0.2")] {
		t.Error(unserved, l.has)
	}

	// As many sources as no filter has: nobody is let in whom the filter would keep out.
	web.LoadBalancerIPs, web.Inside, web.External = addrs("127.96.0.4"), web.Internal, web.Internal
	l.write(web)
	web.Sources = nil
	for i := range 5_000 {
		web.Sources = append(web.Sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}), 32))
	}
	at := netip.AddrPortFrom(addr("127.96.0.4"), web.Port)
	if diff := cmp.Diff([]string{fmt.Sprintf("TCP %s of shop/web is not served: 5000 prefixes of sources are too many for the kernel", at)}, l.write(web)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if have := ask("", at.String()); have != "refused" {
		t.Error(have)
	}
}

// TestLifetime: addresses of a predecessor are used or removed; an address that somebody removes is noticed, and comes
// back; in the end nothing is left.
func TestLifetime(t *testing.T) {
	l := newLab(t)
	l.has[addr("127.96.0.1")], l.has[addr("127.96.0.9")] = true, true
	web := l.at("web", "127.96.0.1", goes(backend(t, "a", "127.0.0.1")))
	l.write(web)
	if !maps.Equal(l.has, map[netip.Addr]bool{addr("127.96.0.1"): true}) {
		t.Errorf("after a predecessor: %v", l.has)
	}
	if err := l.Present(t.Context()); err != nil {
		t.Error(err)
	}
	delete(l.has, addr("127.96.0.1"))
	if err := l.Present(t.Context()); err == nil || err.Error() != "interface cplan-userspace lacks 1 of its addresses, such as 127.96.0.1" {
		t.Errorf("error %v", err)
	}
	if l.write(web); !l.has[addr("127.96.0.1")] {
		t.Errorf("after somebody removed it: %v", l.has)
	}
	if more, err := l.Tidy(t.Context()); more || err != nil {
		t.Error(more, err)
	}
	conn, err := dial("tcp", "", place(web), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	until(t, "a connection", func() bool { return l.Counts().Connections == 1 })
	if err := l.Cleanup(t.Context()); err != nil || l.deleted != 1 || len(l.has) > 0 {
		t.Error(err, l.has)
	}
	until(t, "no connection", func() bool { return l.Counts().Connections == 0 })
	if have := ask("", place(web)); have != "refused" {
		t.Error(have)
	}
	if err := l.Present(t.Context()); err != nil {
		t.Error(err)
	}

	l.Device.Create = func() error { return errors.New("not permitted") }
	l.state.Ports = []proxy.Port{web}
	if err := l.Write(t.Context(), &l.state, l.node); err == nil || errors.As(err, new(proxy.Unserved)) {
		t.Errorf("without an interface: %v", err)
	}
}

// TestDevice: the interface in a kernel. Its addresses are not the node's, and nothing that the node sends has them.
func TestDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	d := New().Device
	is := func(want string) {
		t.Helper()
		have, err := d.Addresses()
		slices.SortFunc(have, netip.Addr.Compare)
		if diff := cmp.Diff(want, strings.Trim(fmt.Sprint(have), "[]")); diff != "" || err != nil {
			t.Fatalf("%v (-want +got)\n%s", err, diff)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	is("")
	do(d.Delete())
	if err := d.Add(addr("10.96.0.1")); err == nil {
		t.Error("an address without an interface")
	}
	do(d.Create())
	do(d.Create())
	for _, a := range addrs("10.96.0.1 10.96.0.2 fd00:96::1 10.96.0.1 fd00:96::1") {
		do(d.Add(a))
	}
	is("10.96.0.1 10.96.0.2 fd00:96::1")
	if node, err := proxy.Addresses(); err != nil || len(node) > 0 {
		t.Errorf("the node's addresses: %v, %v", node, err)
	}
	for _, a := range addrs("10.96.0.2 10.96.0.2 10.96.0.3") {
		do(d.Remove(a))
	}
	is("10.96.0.1 fd00:96::1")
	for _, a := range []string{"10.96.0.1", "fd00:96::1"} {
		for _, protocol := range []string{"TCP", "UDP"} {
			s := New()
			if err := s.listen(Place{protocol, netip.AddrPortFrom(addr(a), 80)}, &Frontend{Open: true}); err != nil {
				t.Errorf("%s at %s: %v", protocol, a, err)
				continue
			}
			for place := range s.open {
				s.close(place)
			}
		}
	}
	do(d.Delete())
	is("")
}
