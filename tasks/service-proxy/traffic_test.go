// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
	iptables "github.com/checkplan/checkplan/pkg/dataplane/iptables/write"
	virtual "github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	ipvs "github.com/checkplan/checkplan/pkg/dataplane/ipvs/write"
	nftables "github.com/checkplan/checkplan/pkg/dataplane/nftables/write"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/userspace"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

// space is a network of its own, with a thread that is in it.
type space struct {
	t     *testing.T
	name  string
	tid   int
	calls chan func()
}

func newSpace(t *testing.T, name string) *space {
	s := enter(t, name, func() error { return unix.Unshare(unix.CLONE_NEWNET) })
	s.ip("link set lo up")
	return s
}

// join returns another thread in the same network.
func (s *space) join() *space {
	return enter(s.t, s.name, func() error {
		file, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", s.tid))
		if err != nil {
			return err
		}
		defer file.Close()
		return unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
	})
}

func enter(t *testing.T, name string, enter func() error) *space {
	s := &space{t: t, name: name, calls: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := enter()
		s.tid = unix.Gettid()
		ready <- err
		for call := range s.calls {
			call()
		}
	}()
	if err := <-ready; err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	t.Cleanup(func() { close(s.calls) })
	return s
}

// in calls a function in the network.
func (s *space) in(call func()) {
	done := make(chan struct{})
	s.calls <- func() { defer close(done); call() }
	<-done
}

func (s *space) ip(args string, more ...any) {
	s.t.Helper()
	s.in(func() {
		if out, err := exec.Command("ip", strings.Fields(fmt.Sprintf(args, more...))...).CombinedOutput(); err != nil {
			s.t.Errorf("%s: ip "+args+": %v: %s", append(append([]any{s.name}, more...), err, out)...)
		}
	})
}

// serve answers each client with the name of the network and the address that it came from.
func (s *space) serve() {
	s.t.Helper()
	var l net.Listener
	var u net.PacketConn
	var errs [2]error
	s.in(func() {
		l, errs[0] = net.Listen("tcp4", "0.0.0.0:8080")
		u, errs[1] = net.ListenPacket("udp4", "0.0.0.0:8080")
	})
	if err := errors.Join(errs[:]...); err != nil {
		s.t.Fatal(err)
	}
	answer := func(from net.Addr) []byte {
		host, _, _ := net.SplitHostPort(from.String())
		return []byte(s.name + " " + host)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(answer(conn.RemoteAddr()))
			conn.Close()
		}
	}()
	go func() {
		for {
			_, from, err := u.ReadFrom(make([]byte, 100))
			if err != nil {
				return
			}
			_, _ = u.WriteTo(answer(from), from)
		}
	}()
	s.t.Cleanup(func() { l.Close(); u.Close() })
}

// patience is how long a connection may take: longer in a virtual machine without KVM (test/kernel). A packet that is
// dropped takes all of it.
var patience = map[bool]time.Duration{false: time.Second, true: 5 * time.Second}[os.Getenv("CHECKPLAN_GUEST") != ""]

// get connects, and returns what the server says; "refused" and "no answer" are answers, too.
func (s *space) get(address string) string {
	answer := ""
	s.in(func() {
		var timeout net.Error
		conn, err := net.DialTimeout("tcp4", address, patience)
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			answer = "refused"
		case errors.As(err, &timeout) && timeout.Timeout():
			answer = "no answer"
		case err != nil:
			answer = err.Error()
		default:
			defer conn.Close()
			text, err := io.ReadAll(conn)
			if answer = string(text); err != nil {
				answer += err.Error()
			}
		}
	})
	return answer
}

// answers returns what many connections are answered with.
func (s *space) answers(address string) map[string]bool {
	all := map[string]bool{}
	for range 40 {
		all[s.get(address)] = true
	}
	return all
}

func endpoint(address string, local, internal, external, inside bool) *api.Endpoint {
	return &api.Endpoint{Address: address, Port: 8080, Local: local, Internal: internal, External: external, Inside: inside}
}

// traffic is a Service, with what its kinds of traffic do: as many letters as kinds, f, r or d.
func traffic(name string, n int, protocol api.Protocol, kinds string, endpoints ...*api.Endpoint) *api.ServiceEndpoints {
	action := map[byte]api.Action{'f': api.Action_FORWARD, 'r': api.Action_REJECT, 'd': api.Action_DROP}
	return &api.ServiceEndpoints{Namespace: "shop", Name: name, Families: []*api.Family{{
		Family: api.IPFamily_IPv4, ClusterIP: fmt.Sprintf("10.96.0.%d", n), ExternalIPs: []string{fmt.Sprintf("203.0.113.%d", n)},
		LoadBalancerIPs: []string{fmt.Sprintf("203.0.113.%d", n+100)}, NodePortPrefixes: []string{"0.0.0.0/0"},
		Ports: []*api.Port{{Name: "http", Protocol: protocol, Port: 80, NodePort: int32(30000 + n), Internal: action[kinds[0]],
			External: action[kinds[1]], Inside: action[kinds[2]], Endpoints: endpoints}},
	}}}
}

// TestTraffic: packets through a kernel with each mode's rules. Two pods are on a node, and a client is outside.
func TestTraffic(t *testing.T) {
	for mode, start := range map[dataplane.Mode]func(*slog.Logger) writer{
		dataplane.NFTables:  func(log *slog.Logger) writer { return nftables.New(log) },
		dataplane.IPTables:  func(log *slog.Logger) writer { return iptables.New(log) },
		dataplane.IPVS:      func(log *slog.Logger) writer { return ipvs.New(log) },
		dataplane.Userspace: func(*slog.Logger) writer { return userspace.New() },
	} {
		t.Run(string(mode), func(t *testing.T) {
			for _, program := range []string{"ip", programs[mode]} {
				if program == "" {
					continue
				}
				if _, err := exec.LookPath(program); err != nil || os.Geteuid() != 0 {
					t.Skipf("needs %s, and root: %v", program, err)
				}
			}
			if mode == dataplane.IPVS {
				if _, err := virtual.Servers(dataplane.IPv4); err != nil {
					t.Skip(err)
				}
			}
			testTraffic(t, mode, start(slog.New(slog.DiscardHandler)))
		})
	}
}

func testTraffic(t *testing.T, mode dataplane.Mode, w writer) {
	on, outside := newSpace(t, "node"), newSpace(t, "outside")
	pods := map[string]*space{"10.244.1.4": newSpace(t, "pod1"), "10.244.1.5": newSpace(t, "pod2")}
	on.in(func() {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
			t.Skip(err)
		}
	})
	for address, pod := range pods {
		on.ip("link add %s type veth peer name eth0 netns %d", pod.name, pod.tid)
		on.ip("addr add 10.244.1.1/32 dev %s", pod.name)
		on.ip("link set %s up", pod.name)
		on.ip("route add %s/32 dev %s", address, pod.name)
		pod.ip("addr add %s/32 dev eth0", address)
		pod.ip("link set eth0 up")
		pod.ip("route add 10.244.1.1/32 dev eth0")
		pod.ip("route add default via 10.244.1.1")
		pod.serve()
	}
	on.ip("link add outside type veth peer name eth0 netns %d", outside.tid)
	on.ip("addr add 192.0.2.1/24 dev outside")
	on.ip("link set outside up")
	outside.ip("addr add 192.0.2.77/24 dev eth0")
	outside.ip("link set eth0 up")
	outside.ip("route add default via 192.0.2.1")
	// Packets to addresses of Services need a route, too. If it leads back, the kernel informs the client, and then
	// refuses nothing for some time.
	uplink := newSpace(t, "uplink")
	on.ip("link add uplink type veth peer name eth0 netns %d", uplink.tid)
	on.ip("addr add 198.18.0.1/24 dev uplink")
	on.ip("link set uplink up")
	uplink.ip("link set eth0 up")
	on.ip("route add default via 198.18.0.2")
	on.ip("neigh add 198.18.0.2 lladdr 02:00:00:00:00:01 dev uplink")

	if s, ok := w.(*userspace.Server); ok { // its own connections are of the node, whatever thread asks for them
		dials := on.join()
		s.Dial = func(network, address string, timeout time.Duration) (conn net.Conn, err error) {
			dials.in(func() { conn, err = net.DialTimeout(network, address, timeout) })
			return conn, err
		}
	}
	var old *proxy.State
	write := func(items ...*api.ServiceEndpoints) {
		t.Helper()
		state := proxy.Check(items)
		if len(state.Problems) > 0 {
			t.Fatal(state.Problems)
		}
		var err error
		on.in(func() {
			var at proxy.Node
			at.Addresses, err = proxy.Addresses()
			at.Pods, _ = proxy.ParsePods([]string{"10.244.1.0/24"}, "")
			if err == nil {
				err = w.Write(context.Background(), state, at)
			}
			if err == nil {
				_, err = proxy.Forget(proxy.NewStale(proxy.StaleUDP(old, state), at.Addresses))
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		old = state
	}
	one, two := endpoint("10.244.1.4", true, true, true, true), endpoint("10.244.1.5", true, true, true, true)
	local := traffic("local", 2, api.Protocol_TCP, "fff", one, endpoint("10.244.1.5", false, true, false, true))
	local.ExternalTrafficToLocal = true
	elsewhere := traffic("elsewhere", 3, api.Protocol_TCP, "fdf", endpoint("10.244.1.5", false, true, false, true))
	elsewhere.ExternalTrafficToLocal = true
	sources := traffic("sources", 5, api.Protocol_TCP, "fff", one)
	sources.Families[0].LoadBalancerSources = []string{"198.51.100.0/24"}
	sticky := traffic("sticky", 6, api.Protocol_TCP, "fff", one, two)
	sticky.AffinitySeconds = 600
	all := []*api.ServiceEndpoints{traffic("web", 1, api.Protocol_TCP, "fff", one, two), local, elsewhere,
		traffic("empty", 4, api.Protocol_TCP, "rrr"), sources, sticky}
	write(all...)

	const masqueraded = " 10.244.1.1"
	// seen is what a client is answered with, in a mode in which pods never see its address.
	seen := func(answer string) string {
		if name, _, ok := strings.Cut(answer, " "); ok && mode == dataplane.Userspace && strings.HasPrefix(name, "pod") {
			return name + masqueraded
		}
		return answer
	}
	pod := pods["10.244.1.4"]
	is := func(from *space, address string, want ...string) {
		t.Helper()
		have := from.answers(address)
		same := len(have) == len(want)
		for _, text := range want {
			same = same && have[seen(text)]
		}
		if !same {
			t.Errorf("from %s to %s: %v, want %q", from.name, address, have, want)
		}
	}
	once := func(from *space, address, want string) {
		t.Helper()
		if have := from.get(address); have != seen(want) {
			t.Errorf("from %s to %s: %q, want %q", from.name, address, have, seen(want))
		}
	}
	is(outside, "10.96.0.1:80", "pod1"+masqueraded, "pod2"+masqueraded)
	is(pod, "10.96.0.1:80", "pod1"+masqueraded, "pod2 10.244.1.4") // the first is the hairpin
	is(on, "10.96.0.1:80", "pod1"+masqueraded, "pod2"+masqueraded)
	is(outside, "192.0.2.1:30001", "pod1"+masqueraded, "pod2"+masqueraded)
	is(on, "192.0.2.1:30001", "pod1"+masqueraded, "pod2"+masqueraded)
	is(outside, "203.0.113.1:80", "pod1"+masqueraded, "pod2"+masqueraded)
	is(outside, "203.0.113.101:80", "pod1"+masqueraded, "pod2"+masqueraded)

	is(outside, "203.0.113.2:80", "pod1 192.0.2.77") // the policy Local keeps the source
	is(outside, "192.0.2.1:30002", "pod1 192.0.2.77")
	is(pod, "203.0.113.2:80", "pod1"+masqueraded, "pod2 10.244.1.4")

	once(outside, "203.0.113.3:80", "no answer")
	once(outside, "192.0.2.1:30003", "no answer")
	once(pod, "203.0.113.3:80", "pod2 10.244.1.4")
	once(on, "192.0.2.1:30003", "pod2"+masqueraded)

	once(outside, "10.96.0.4:80", "refused")
	once(outside, "203.0.113.4:80", "refused")
	once(outside, "192.0.2.1:30004", "refused")
	once(pod, "10.96.0.4:80", "refused")
	once(on, "10.96.0.4:80", "refused")
	if mode != dataplane.IPTables {
		once(outside, "10.96.0.1:81", "refused") // a port that no Service has
	}

	once(outside, "203.0.113.105:80", "no answer") // not from this source
	once(outside, "203.0.113.5:80", "pod1"+masqueraded)
	once(outside, "192.0.2.1:30005", "pod1"+masqueraded)

	if have := outside.answers("10.96.0.6:80"); len(have) != 1 {
		t.Errorf("with session affinity: %v", have)
	}

	// A client that sends all its packets from one port is served when its Service comes, and when its endpoint ends.
	var client net.Conn
	outside.in(func() {
		var err error
		if client, err = net.Dial("udp4", "10.96.0.7:80"); err != nil {
			t.Error(err)
		}
	})
	defer client.Close()
	ask := func() string {
		_, _ = client.Write([]byte("hello"))
		_ = client.SetReadDeadline(time.Now().Add(patience))
		answer := make([]byte, 100)
		n, err := client.Read(answer)
		if err != nil {
			return "no answer"
		}
		return string(answer[:n])
	}
	if have := ask(); have != "no answer" {
		t.Errorf("without a Service: %s", have)
	}
	write(append(all, traffic("udp", 7, api.Protocol_UDP, "fff", one))...)
	if have := ask(); have != "pod1"+masqueraded {
		t.Errorf("with a Service: %s", have)
	}
	write(append(all, traffic("udp", 7, api.Protocol_UDP, "fff", two))...)
	if have := ask(); have != "pod2"+masqueraded {
		t.Errorf("with another endpoint: %s", have)
	}

	var err error
	on.in(func() { err = w.Cleanup(context.Background()) })
	if err != nil {
		t.Error(err)
	}
	once(on, "192.0.2.1:30001", "refused") // nobody listens there
}
