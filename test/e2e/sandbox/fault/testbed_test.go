// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// testbed is three nodes w1 to w3 with one pod each, like those of the sandbox, joined by a bridge.
// Each node is a namespace that forwards between the bridge of its pods and its uplink, with static
// routes, both IP families, connection tracking and a foreign filter table. Only file descriptors
// of this process keep the namespaces: nothing outlives the test, also after a failure.
//
// Pods do not answer by themselves: no echo replies, no resets. All packets are sent by tests.
type testbed struct {
	nodes []Node
	pods  []pod // of the node with the same index

	// network is where faults between the pods act, if not in the nodes: see newNetworkTestbed.
	network []Node
}

type pod struct {
	netns  string
	v4, v6 netip.Addr
}

// addr returns the pod's address of a family.
func (p pod) addr(f Family) netip.Addr {
	if f == IPv6 {
		return p.v6
	}
	return p.v4
}

func newTestbed(t *testing.T) *testbed {
	t.Helper()
	needTools(t)
	b := &testbed{}
	fabric := newNetNS(t)
	ip(t, fabric, "link add fabric type bridge", "link set fabric up")
	for i := 1; i <= 3; i++ {
		node, podNS := newNetNS(t), newNetNS(t)
		b.nodes = append(b.nodes, specNodes()[i-1])
		b.nodes[i-1].NetNS = node
		b.pods = append(b.pods, pod{
			netns: podNS,
			v4:    netip.MustParseAddr(fmt.Sprintf("198.18.%d.2", 100+i)),
			v6:    netip.MustParseAddr(fmt.Sprintf("fd00:198:18:%d::2", 100+i)),
		})
		for _, ns := range []string{node, podNS} {
			for _, key := range []string{"net/ipv6/conf/all/accept_dad", "net/ipv6/conf/default/accept_dad"} {
				sysctl(t, ns, key, "0")
			}
		}
		sysctl(t, node, "net/ipv4/ip_forward", "1")
		sysctl(t, node, "net/ipv6/conf/all/forwarding", "1")
		sysctl(t, podNS, "net/ipv4/icmp_echo_ignore_all", "1")
		sysctl(t, podNS, "net/ipv6/icmp/echo_ignore_all", "1")
		lines := []string{
			"link set lo up",
			"link add eth0 type veth peer name node" + strconv.Itoa(i) + " netns " + fabric,
			"link add cni0 type bridge",
			"link add veth0 type veth peer name eth0 netns " + podNS,
			"link set veth0 master cni0",
			"link set eth0 up", "link set cni0 up", "link set veth0 up",
			fmt.Sprintf("addr add 198.18.0.%d/24 dev eth0", 10+i),
			fmt.Sprintf("addr add fd00:198:18::%d/64 dev eth0 nodad", 10+i),
			fmt.Sprintf("addr add 198.18.%d.1/24 dev cni0", 100+i),
			fmt.Sprintf("addr add fd00:198:18:%d::1/64 dev cni0 nodad", 100+i),
		}
		for j := 1; j <= 3; j++ {
			if j != i {
				lines = append(lines,
					fmt.Sprintf("route add 198.18.%d.0/24 via 198.18.0.%d", 100+j, 10+j),
					fmt.Sprintf("route add fd00:198:18:%d::/64 via fd00:198:18::%d", 100+j, 10+j))
			}
		}
		ip(t, node, lines...)
		ip(t, fabric, fmt.Sprintf("link set node%d master fabric", i), fmt.Sprintf("link set node%d up", i))
		ip(t, podNS,
			"link set lo up", "link set eth0 up",
			fmt.Sprintf("addr add %s/24 dev eth0", b.pods[i-1].v4),
			fmt.Sprintf("addr add %s/64 dev eth0 nodad", b.pods[i-1].v6),
			fmt.Sprintf("route add default via 198.18.%d.1", 100+i),
			fmt.Sprintf("route add default via fd00:198:18:%d::1", 100+i))
		nft(t, node, foreignTable)
		nft(t, podNS, "table inet quiet { chain output { type filter hook output priority 0; tcp flags rst drop; }; }")
	}
	for i := range b.nodes {
		awaitLinks(t, b.nodes[i].NetNS, b.pods[i].netns)
	}
	awaitLinks(t, fabric)
	return b
}

// newNetworkTestbed is three nodes with one guest each, joined by the additional network br10, like
// that of the sandbox: a bridge in each node, and one in the network's own namespace. Guests know
// each other's link addresses, and send nothing by themselves.
func newNetworkTestbed(t *testing.T) *testbed {
	t.Helper()
	needTools(t)
	b := &testbed{}
	network := specNetwork()
	network.NetNS = newNetNS(t)
	b.network = []Node{network}
	ip(t, network.NetNS,
		"link add br10 type bridge mcast_snooping 0", "link set br10 addrgenmode none", "link set br10 up")
	nft(t, network.NetNS, "table inet stranger") // without connection tracking
	mac := func(i int) string { return fmt.Sprintf("02:00:00:00:10:%02x", i) }
	for i := 1; i <= 3; i++ {
		node, guest := newNetNS(t), newNetNS(t)
		b.nodes = append(b.nodes, specNodes()[i-1])
		b.nodes[i-1].NetNS, b.nodes[i-1].Uplink = node, ""
		b.pods = append(b.pods, pod{
			netns: guest,
			v4:    netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i)),
			v6:    netip.MustParseAddr(fmt.Sprintf("fd00:10::%d", i)),
		})
		ip(t, node,
			"link add br10 type bridge mcast_snooping 0",
			"link add eth1 type veth peer name w"+strconv.Itoa(i)+" netns "+network.NetNS,
			"link add veth0 type veth peer name net1 netns "+guest,
			"link set br10 addrgenmode none", "link set eth1 addrgenmode none", "link set veth0 addrgenmode none",
			"link set eth1 master br10", "link set veth0 master br10",
			"link set br10 up", "link set eth1 up", "link set veth0 up")
		ip(t, network.NetNS,
			fmt.Sprintf("link set w%d addrgenmode none", i),
			fmt.Sprintf("link set w%d master br10", i),
			fmt.Sprintf("link set w%d up", i))
		nft(t, node, foreignTable)
		sysctl(t, guest, "net/ipv4/icmp_echo_ignore_all", "1")
		sysctl(t, guest, "net/ipv6/icmp/echo_ignore_all", "1")
		nft(t, guest, "table inet quiet { chain output { type filter hook output priority 0; tcp flags rst drop;"+
			" icmpv6 type { nd-router-solicit, mld-listener-report, mld2-listener-report } drop; }; }")
		lines := []string{
			"link set lo up", "link set net1 addrgenmode none", "link set net1 address " + mac(i), "link set net1 up",
			fmt.Sprintf("addr add %s/24 dev net1", b.pods[i-1].v4),
			fmt.Sprintf("addr add %s/64 dev net1 nodad", b.pods[i-1].v6),
		}
		for j := 1; j <= 3; j++ {
			if j != i {
				lines = append(lines,
					fmt.Sprintf("neigh add 192.0.2.%d lladdr %s dev net1 nud permanent", j, mac(j)),
					fmt.Sprintf("neigh add fd00:10::%d lladdr %s dev net1 nud permanent", j, mac(j)))
			}
		}
		ip(t, guest, lines...)
	}
	for _, n := range b.places() {
		awaitLinks(t, n.NetNS)
	}
	return b
}

// awaitLinks waits until every link in the namespaces is up, every link of a bridge forwards, and every address receives.
// The kernel notices the carrier of a new link later, and makes the route to an own IPv6 address later, on a busy machine
// after seconds: until then routes do not count, and frames are lost.
func awaitLinks(t *testing.T, netns ...string) {
	t.Helper()
	deadline := time.Now().Add(settled)
	for _, ns := range netns {
		for {
			var links, addresses, routes string
			err := inNetNS(ns, func() (err error) {
				show := func(name string, args ...string) string {
					out, failed := command(t.Context(), "", name, args...)
					err = errors.Join(err, failed)
					return out
				}
				links = show("ip", "-oneline", "link", "show", "up") + show("bridge", "-oneline", "link", "show")
				addresses = show("ip", "-6", "-oneline", "address", "show", "scope", "global")
				routes = show("ip", "-6", "route", "show", "table", "local")
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Count(links, "\n") - strings.Count(links, "LOOPBACK")
			ready := lines > 0 && strings.Count(links, "state UP")+strings.Count(links, "state forwarding") == lines
			for line := range strings.Lines(addresses) { // 3: eth0    inet6 fd00:198:18::11/64 scope global nodad
				address, _, _ := strings.Cut(strings.Fields(line)[3], "/")
				ready = ready && strings.Contains(routes, "local "+address+" dev ")
			}
			if ready {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("links are not up or do not forward, or addresses do not receive:\n%s%s%s", links, addresses, routes)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// resolves reports whether the first guest resolves the link address of the second. It deletes the
// permanent neighbor entry and restores it.
func (b *testbed) resolves(t *testing.T, f Family) bool {
	t.Helper()
	netns, neighbor := b.pods[0].netns, b.pods[1].addr(f)
	shown := func() string {
		var out string
		err := inNetNS(netns, func() (err error) {
			out, err = command(t.Context(), "", "ip", "neigh", "show", neighbor.String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	_, mac, _ := strings.Cut(shown(), "lladdr ")
	mac, _, _ = strings.Cut(mac, " ")
	ip(t, netns, fmt.Sprintf("neigh del %s dev net1", neighbor))
	defer ip(t, netns, fmt.Sprintf("neigh replace %s lladdr %s dev net1 nud permanent", neighbor, mac))
	if err := inNetNS(netns, func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(neighbor, 9).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("resolve me"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(3500 * time.Millisecond)
	for ; time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if strings.Contains(shown(), "lladdr "+mac) {
			return true
		}
	}
	return false
}

// onEach runs a test between pods, and between guests of an additional network.
func onEach(t *testing.T, test func(*testing.T, *testbed)) {
	t.Run("pods", func(t *testing.T) { test(t, newTestbed(t)) })
	t.Run("network", func(t *testing.T) { test(t, newNetworkTestbed(t)) })
}

// parse parses the arguments of a fault of this testbed.
func (b *testbed) parse(t *testing.T, args string) Fault {
	t.Helper()
	for _, n := range b.network {
		args += " --network " + n.Name
	}
	return mustParse(t, args)
}

// places returns the namespaces in which faults can act.
func (b *testbed) places() []Node { return append(b.network, b.nodes...) }

// needTools skips a test if this machine cannot run it.
func needTools(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
	for tool, pkg := range map[string]string{"ip": "iproute2", "nft": "nftables"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: apt-get install %s", tool, pkg)
		}
	}
}

// foreignTable is a short form of the rules of kube-proxy for forwarded packets.
// Clear must not change it.
const foreignTable = "table inet stranger { chain forward { " +
	"type filter hook forward priority 0; ct state invalid counter drop; }; }"

// newNetNS creates a network namespace that exists until the test ends, and returns its file.
func newNetNS(t *testing.T) string {
	t.Helper()
	path, closeNS := openNewNetNS(t)
	t.Cleanup(closeNS)
	return path
}

// openNewNetNS is newNetNS, but the caller closes the namespace.
func openNewNetNS(t *testing.T) (path string, closeNS func()) {
	t.Helper()
	var f *os.File
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		f, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Skipf("cannot create a network namespace: %v", err)
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), func() { f.Close() }
}

// ip runs commands of the tool ip, those for IPv6 last.
func ip(t *testing.T, netns string, lines ...string) {
	t.Helper()
	batch := map[bool]string{}
	for _, l := range lines {
		batch[strings.Contains(l, "fd00:")] += l + "\n"
	}
	err := inNetNS(netns, func() error {
		if _, err := command(t.Context(), batch[false], "ip", "-batch", "-"); err != nil {
			return err
		}
		_, err := command(t.Context(), batch[true], "ip", "-6", "-batch", "-")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// nft runs nft with arguments and returns its output.
func nft(t testing.TB, netns string, args ...string) string {
	t.Helper()
	var out string
	err := inNetNS(netns, func() (err error) {
		out, err = command(context.Background(), "", "nft", args...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sysctl(t *testing.T, netns, key, value string) {
	t.Helper()
	err := inNetNS(netns, func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0) })
	if err != nil {
		t.Fatal(err)
	}
}

// counted returns how many packets the rules of one fault have counted, in all nodes.
func (b *testbed) counted(t testing.TB, id string) int {
	t.Helper()
	sum := 0
	for _, n := range b.places() {
		var listing struct {
			Nftables []struct {
				Rule struct {
					Table string
					Expr  []struct {
						Counter struct{ Packets int }
					}
				}
			}
		}
		out := nft(t, n.NetNS, "-j", "list", "ruleset")
		if err := json.Unmarshal([]byte(out), &listing); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, o := range listing.Nftables {
			for _, e := range o.Rule.Expr {
				if o.Rule.Table == tablePrefix+id {
					sum += e.Counter.Packets
				}
			}
		}
	}
	return sum
}

// assertClean fails if the nodes hold anything of a fault, if a foreign table is gone, or if dir is
// not empty.
func (b *testbed) assertClean(t *testing.T, dir string) {
	t.Helper()
	for _, n := range b.places() {
		tables := nft(t, n.NetNS, "list", "tables")
		if strings.Contains(tables, tablePrefix) {
			t.Errorf("node %s still holds %s", n.Name, tables)
		}
		if !strings.Contains(tables, "stranger") {
			t.Errorf("the foreign table is gone from node %s", n.Name)
		}
		queues := ""
		if err := inNetNS(n.NetNS, func() error {
			data, err := os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
			queues = string(data)
			return err
		}); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
		if queues != "" {
			t.Errorf("node %s still has a queue: %s", n.Name, queues)
		}
		if _, err := exec.LookPath("tc"); err == nil && n.Uplink != "" {
			if err := inNetNS(n.NetNS, func() error {
				out, err := command(t.Context(), "", "tc", "qdisc", "show", "dev", n.Uplink)
				if strings.Contains(out, "netem") || strings.Contains(out, "prio") {
					t.Errorf("node %s still has a qdisc: %s", n.Name, out)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range left {
		t.Errorf("file %s is left in the directory of faults", e.Name())
	}
}

// The sockets of the pods. The kernel sends UDP. The tests build TCP segments and ICMP messages and
// use raw sockets for them: so each packet is sent once and is never answered.

var (
	sports = []uint16{6001, 6002}
	dports = []uint16{5001, 5002}
)

// socketKey identifies the socket that sends or receives a packet.
type socketKey struct {
	pod      int
	family   Family
	protocol Protocol
	port     uint16 // UDP only
}

// arrival is a packet that a pod received.
type arrival struct {
	id  uint32 // index of the packet in those sent
	pod int
	at  time.Time
}

// traffic is the open sockets of all pods. Arrivals are read from a channel.
type traffic struct {
	b        *testbed
	sockets  map[socketKey]net.PacketConn
	arrivals chan arrival
}

func (b *testbed) openTraffic(t *testing.T) *traffic {
	t.Helper()
	tr := &traffic{b: b, sockets: map[socketKey]net.PacketConn{}, arrivals: make(chan arrival, 1<<16)}
	stopped := make(chan struct{})
	readers := 0
	t.Cleanup(func() {
		for _, s := range tr.sockets {
			s.Close()
		}
		for range readers {
			<-stopped
		}
	})
	open := func(k socketKey, network, address string) net.PacketConn {
		var conn net.PacketConn
		if err := inNetNS(b.pods[k.pod].netns, func() (err error) {
			conn, err = net.ListenPacket(network, address)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		tr.sockets[k] = conn
		return conn
	}
	receive := func(k socketKey, conn net.PacketConn) {
		if r, ok := conn.(interface{ SetReadBuffer(int) error }); ok {
			if err := r.SetReadBuffer(4 << 20); err != nil {
				t.Fatal(err)
			}
		}
		readers++
		go func() {
			defer func() { stopped <- struct{}{} }()
			buf := make([]byte, 65536)
			for {
				n, _, err := conn.ReadFrom(buf)
				at := time.Now()
				if err != nil {
					return
				}
				if id, ok := identify(k, buf[:n]); ok {
					tr.arrivals <- arrival{id: id, pod: k.pod, at: at}
				}
			}
		}()
	}
	for p := range b.pods {
		for _, f := range []Family{IPv4, IPv6} {
			n, icmp := "4", "icmp"
			if f == IPv6 {
				n, icmp = "6", "ipv6-icmp"
			}
			addr := b.pods[p].addr(f)
			for _, port := range sports {
				open(socketKey{p, f, UDP, port}, "udp"+n, netip.AddrPortFrom(addr, port).String())
			}
			for _, port := range dports {
				k := socketKey{p, f, UDP, port}
				receive(k, open(k, "udp"+n, netip.AddrPortFrom(addr, port).String()))
			}
			for protocol, name := range map[Protocol]string{TCP: "tcp", ICMP: icmp} {
				k := socketKey{p, f, protocol, 0}
				receive(k, open(k, "ip"+n+":"+name, addr.String()))
			}
		}
	}
	return tr
}

const echoID = 0xc4ec // identifier of our echo requests

// headers returns the length of the headers of a packet.
func headers(p sent) int {
	n := map[Family]int{IPv4: 20, IPv6: 40}[p.family]
	return n + map[Protocol]int{UDP: 8, TCP: 20, ICMP: 8}[p.protocol]
}

// identify reads the ID that compose wrote.
func identify(k socketKey, b []byte) (uint32, bool) {
	switch k.protocol {
	case TCP: // a SYN; the ID is its sequence number
		if len(b) < 20 || b[13] != 0x02 {
			return 0, false
		}
		return binary.BigEndian.Uint32(b[4:]), true
	case ICMP: // an echo request
		request := byte(8)
		if k.family == IPv6 {
			request = 128
		}
		if len(b) < 12 || b[0] != request || binary.BigEndian.Uint16(b[4:]) != echoID {
			return 0, false
		}
		return binary.BigEndian.Uint32(b[8:]), true
	}
	if len(b) < 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}

// compose returns what follows the IP header, for UDP what follows the UDP header.
func compose(p sent, id uint32, src, dst netip.Addr) []byte {
	body := make([]byte, p.bytes-headers(p))
	switch p.protocol {
	case TCP:
		h := make([]byte, 20)
		binary.BigEndian.PutUint16(h[0:], p.sport)
		binary.BigEndian.PutUint16(h[2:], p.dport)
		binary.BigEndian.PutUint32(h[4:], id)
		h[12] = 5 << 4 // words of header
		h[13] = 0x02   // SYN
		binary.BigEndian.PutUint16(h[14:], 65535)
		seg := append(h, body...)
		pseudo := append(src.AsSlice(), dst.AsSlice()...)
		pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(seg)))
		pseudo = binary.BigEndian.AppendUint32(pseudo, unix.IPPROTO_TCP)
		binary.BigEndian.PutUint16(seg[16:], checksum(append(pseudo, seg...)))
		return seg
	case ICMP:
		h := make([]byte, 8)
		h[0] = 8
		if p.family == IPv6 {
			h[0] = 128
		}
		binary.BigEndian.PutUint16(h[4:], echoID)
		binary.BigEndian.PutUint32(body, id)
		msg := append(h, body...)
		if p.family == IPv4 { // for IPv6 the kernel adds it, RFC 3542 section 3.1
			binary.BigEndian.PutUint16(msg[2:], checksum(msg))
		}
		return msg
	}
	binary.BigEndian.PutUint32(body, id)
	return body
}

// checksum is the checksum of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for len(b) > 1 {
		sum += uint32(b[0])<<8 | uint32(b[1])
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// send sends one packet and returns the time.
func (tr *traffic) send(t *testing.T, id int, p sent) time.Time {
	t.Helper()
	from, to := tr.b.pod(p.from), tr.b.pod(p.to)
	src, dst := tr.b.pods[from].addr(p.family), tr.b.pods[to].addr(p.family)
	key := socketKey{from, p.family, p.protocol, 0}
	var addr net.Addr = &net.IPAddr{IP: dst.AsSlice()}
	if p.protocol == UDP {
		key.port = p.sport
		addr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, p.dport))
	}
	at := time.Now()
	if _, err := tr.sockets[key].WriteTo(compose(p, uint32(id), src, dst), addr); err != nil {
		t.Fatalf("send %+v: %v", p, err)
	}
	return at
}

func (b *testbed) pod(node string) int {
	for i, n := range b.nodes {
		if n.Name == node {
			return i
		}
	}
	panic("unknown node " + node)
}

// outcome says when each packet was sent and when it arrived, by index.
type outcome struct {
	sent    []time.Time
	arrived map[int]time.Time
	order   []int // of arrival
}

// settled is the timeout for packets that must arrive or be counted, and for connections that must succeed. On a busy
// machine, processes stand still for seconds.
const settled = time.Minute

// exchange sends packets, and waits until each has arrived or was counted as lost. lost returns how
// many packets are lost; nil: no packet may be lost.
func (tr *traffic) exchange(t *testing.T, packets []sent, lost func() int) outcome {
	t.Helper()
	o := outcome{arrived: map[int]time.Time{}}
	take := func(a arrival) {
		if int(a.id) >= len(packets) || a.pod != tr.b.pod(packets[a.id].to) {
			t.Fatalf("packet %d arrived at pod %d, want its destination", a.id, a.pod)
		}
		if _, twice := o.arrived[int(a.id)]; twice {
			t.Fatalf("packet %d arrived twice", a.id)
		}
		o.arrived[int(a.id)] = a.at
		o.order = append(o.order, int(a.id))
	}
	for i, p := range packets {
		o.sent = append(o.sent, tr.send(t, i, p))
		runtime.Gosched()
	}
	deadline := time.After(settled)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for len(o.arrived) < len(packets) {
		select {
		case a := <-tr.arrivals:
			take(a)
		case <-look.C:
			if lost != nil && len(tr.arrivals) == 0 && len(o.arrived)+lost() >= len(packets) {
				return o
			}
		case <-deadline:
			missing := []sent{}
			for i, p := range packets {
				if _, ok := o.arrived[i]; !ok {
					missing = append(missing, p)
				}
			}
			tr.b.explain(t)
			t.Fatalf("%d of %d packets neither arrived nor were counted, for example %+v",
				len(missing), len(packets), missing[0])
		}
	}
	return o
}

// matrix returns one packet of each sort that a fault can distinguish.
func (b *testbed) matrix() []sent {
	var all []sent
	for _, from := range b.nodes {
		for _, to := range b.nodes {
			for _, f := range []Family{IPv4, IPv6} {
				if from.Name == to.Name {
					continue
				}
				p := sent{from: from.Name, to: to.Name, family: f, bytes: 100}
				for _, size := range []int{100, 576, 1400} {
					p.bytes = size
					p.protocol, p.sport, p.dport = UDP, 6001, 5001
					all = append(all, p)
					p.protocol, p.sport, p.dport = ICMP, 0, 0
					all = append(all, p)
				}
				p.bytes = 100
				for _, p.protocol = range []Protocol{UDP, TCP} {
					p.sport, p.dport = 6001, 5002
					all = append(all, p)
					p.sport, p.dport = 6002, 5001
					all = append(all, p)
				}
			}
		}
	}
	return all
}

// netNS returns the namespace of a node or of its pod, and addr its address.
func (b *testbed) netNS(node string, host bool) string {
	if i := b.pod(node); host {
		return b.nodes[i].NetNS
	} else {
		return b.pods[i].netns
	}
}

func (b *testbed) addr(node string, host bool, f Family) netip.Addr {
	i := b.pod(node)
	if !host {
		return b.pods[i].addr(f)
	}
	if f == IPv6 {
		return b.nodes[i].IPs[1]
	}
	return b.nodes[i].IPs[0]
}

// answer answers UDP packets to port 5001 of the pod of a node with the node's name, until the test ends.
func (b *testbed) answer(t *testing.T, node string, f Family) {
	t.Helper()
	var conn net.PacketConn
	err := inNetNS(b.netNS(node, false), func() (err error) {
		conn, err = net.ListenPacket("udp", netip.AddrPortFrom(b.addr(node, false, f), 5001).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			_, from, err := conn.ReadFrom(make([]byte, 64))
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(node), from) // ask sends again
		}
	}()
}

// ask sends a packet from a port of the pod of a node to port 53 of staleService, and again each second, until it is
// answered. It returns the answer.
func (b *testbed) ask(t *testing.T, node string, f Family, port uint16) string {
	t.Helper()
	var conn net.Conn
	err := inNetNS(b.netNS(node, false), func() (err error) {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: b.addr(node, false, f).AsSlice(), Port: int(port)}}
		conn, err = d.DialContext(t.Context(), "udp", netip.AddrPortFrom(staleService[f], 53).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer := make([]byte, 64)
	for deadline := time.Now().Add(settled); ; {
		_, err := conn.Write([]byte("who"))
		if err == nil {
			err = conn.SetReadDeadline(time.Now().Add(time.Second))
		}
		n := 0
		if err == nil {
			n, err = conn.Read(answer)
		}
		if err == nil {
			return string(answer[:n])
		}
		if time.Now().After(deadline) {
			t.Fatalf("no answer within %v: %v", settled, err)
		}
		time.Sleep(50 * time.Millisecond) // an error can come at once
	}
}

// forgetFlows removes all entries of connection tracking of a namespace: those of a message without a tuple.
func forgetFlows(t *testing.T, netns string) {
	t.Helper()
	f, err := openNetNS(netns)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(f.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const subsystem, deleteFlows = 1, 2 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE
	if _, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: subsystem<<8 | deleteFlows, Flags: netlink.Request | netlink.Acknowledge},
		Data:   []byte{unix.AF_UNSPEC, 0, 0, 0}, // struct nfgenmsg
	}); err != nil {
		t.Fatal(err)
	}
}

// listen accepts TCP connections on every port of connections, in all nodes and pods, until the
// test ends.
func (b *testbed) listen(t *testing.T) {
	t.Helper()
	seen := map[string]bool{}
	for _, c := range b.connections() {
		netns, address := b.netNS(c.to, c.toHost), fmt.Sprintf("[::]:%d", c.dport)
		if seen[netns+address] {
			continue
		}
		seen[netns+address] = true
		err := inNetNS(netns, func() error {
			l, err := net.Listen("tcp", address)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// connections returns one connection of each sort that a fault can distinguish. It has none between
// pods of one node: each node has one pod.
func (b *testbed) connections() []connection {
	var all []connection
	for _, from := range b.nodes {
		for _, to := range b.nodes {
			for _, ends := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
				for _, family := range []Family{IPv4, IPv6} {
					for _, port := range []uint16{5001, 5002} {
						c := connection{from.Name, to.Name, ends[0], ends[1], family, port}
						if c.from != c.to || c.fromHost || c.toHost {
							all = append(all, c)
						}
					}
				}
			}
		}
	}
	return all
}

// connect tries all connections at once and fails for each with the wrong outcome. The timeout allows lost segments for a
// connection that must succeed. It ends before the first retransmission for one that must fail.
func (b *testbed) connect(t *testing.T, all []connection, touches func(connection) bool) {
	t.Helper()
	// Not goroutines that dial, each on a thread in a namespace: on a busy machine the last of them run seconds later.
	fds, errs := make([]unix.PollFd, len(all)), make([]error, len(all))
	for i, c := range all {
		err := inNetNS(b.netNS(c.from, c.fromHost), func() error {
			fd, err := startConnect(netip.AddrPortFrom(b.addr(c.to, c.toHost, c.family), c.dport))
			fds[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(int(fds[i].Fd))
	}
	for started, open := time.Now(), len(all); open > 0; {
		if _, err := unix.Poll(fds, 20); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		for i, c := range all {
			timeout := settled
			if c.prevented(touches) {
				timeout = 800 * time.Millisecond
			}
			switch {
			case fds[i].Fd < 0: // decided: poll ignores it
				continue
			case fds[i].Revents != 0:
				no, err := unix.GetsockoptInt(int(fds[i].Fd), unix.SOL_SOCKET, unix.SO_ERROR)
				if errs[i] = err; no != 0 {
					errs[i] = unix.Errno(no)
				}
			case time.Since(started) > timeout:
				errs[i] = os.ErrDeadlineExceeded
			default:
				continue
			}
			fds[i].Fd = -1
			open--
		}
	}
	wrong := false
	for i, c := range all {
		if got, want := errs[i] != nil, c.prevented(touches); got != want {
			t.Errorf("%+v: prevented %t (%v), want %t", c, got, errs[i], want)
			wrong = true
		}
	}
	if wrong {
		b.explain(t)
	}
}

// startConnect starts a TCP connection from the namespace of this thread, and does not wait for it.
func startConnect(to netip.AddrPort) (fd int, err error) {
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, address); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// explain logs what a failed test needs to find lost packets: what the kernel has counted and tracks in each namespace.
func (b *testbed) explain(t *testing.T) {
	t.Helper()
	var log strings.Builder
	for i, n := range b.nodes {
		for what, netns := range map[string]string{"node": n.NetNS, "pod of": b.pods[i].netns} {
			err := inNetNS(netns, func() error {
				out, err := command(context.Background(), "", "bash", "-c", "nstat -as; cd /proc/thread-self/net; "+
					"cat stat/nf_conntrack; grep -v ASSURED nf_conntrack | head -30; cat dev; "+
					"ss -tan '( sport >= :5001 and sport <= :5002 ) or ( dport >= :5001 and dport <= :5002 )' | "+
					"grep -v CLOSE-WAIT | head -30; ip neighbour; ip link; ip -6 route show table local; nft list ruleset")
				log.WriteString(out)
				return err
			})
			fmt.Fprintf(&log, "\n(above: %s %s; %v)\n\n", what, n.Name, err)
		}
	}
	t.Log("packets were lost:\n" + log.String())
}
