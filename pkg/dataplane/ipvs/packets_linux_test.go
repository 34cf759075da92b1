// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// within calls a function on a thread in a network of ip netns.
func within(t *testing.T, name string, call func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		file, err := os.Open("/run/netns/" + name)
		if err == nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			call()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// connect returns the address that the server says the client has, "refused", or "nothing".
func connect(to netip.AddrPort) string {
	conn, err := net.DialTimeout("tcp", to.String(), 3*time.Second)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case err != nil:
		return "nothing"
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(3 * time.Second))
	text, err := io.ReadAll(conn)
	if err != nil || len(text) == 0 {
		return "nothing"
	}
	return string(text)
}

// TestKernelPackets: what Parse says of rules and virtual servers is what the kernel does with packets from outside, from
// the node and from a pod, in rules of the kinds that kube-proxy writes.
func TestKernelPackets(t *testing.T) {
	network(t)
	defer exec.Command("ip", "netns", "delete", "client").Run()
	defer exec.Command("ip", "netns", "delete", "pod").Run()
	commands(t, `
		ip link set lo up
		ip link add kube-ipvs0 type dummy
		ip netns add client
		ip link add c0 type veth peer name eth0 netns client
		ip address add 192.0.2.1/24 dev c0
		ip link set c0 up
		ip -n client link set lo up
		ip -n client address add 192.0.2.9/24 dev eth0
		ip -n client link set eth0 up
		ip -n client route add default via 192.0.2.1
		ip netns add pod
		ip link add p0 type veth peer name eth0 netns pod
		ip address add 10.244.1.1/24 dev p0
		ip link set p0 up
		ip -n pod link set lo up
		ip -n pod address add 10.244.1.5/24 dev eth0
		ip -n pod link set eth0 up
		ip -n pod route add default via 10.244.1.1
		ip route add 10.96.0.0/16 dev c0
		ip address add 10.96.0.1/32 dev kube-ipvs0
		ip address add 10.96.0.2/32 dev kube-ipvs0
		ip address add 10.96.0.4/32 dev kube-ipvs0
		ip address add 203.0.113.15/32 dev kube-ipvs0
		ip address add 203.0.113.16/32 dev kube-ipvs0
		ipset create KUBE-CLUSTER-IP hash:ip,port
		ipset add KUBE-CLUSTER-IP 10.96.0.1,tcp:80
		ipset add KUBE-CLUSTER-IP 10.96.0.2,tcp:80
		ipset add KUBE-CLUSTER-IP 10.96.0.3,tcp:80
		ipset create KUBE-LOAD-BALANCER hash:ip,port
		ipset add KUBE-LOAD-BALANCER 203.0.113.15,tcp:443
		ipset add KUBE-LOAD-BALANCER 203.0.113.16,tcp:443
		ipset create KUBE-LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net
		ipset add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.15,tcp:443,198.51.100.0/24
		ipset add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.16,tcp:443,192.0.2.0/28
		ipset create KUBE-LOOP-BACK hash:ip,port,ip
		ipset add KUBE-LOOP-BACK 10.244.1.5,tcp:8080,10.244.1.5
		ipset create KUBE-IPVS-IPS hash:ip
		ipset add KUBE-IPVS-IPS 10.96.0.1
		ipset add KUBE-IPVS-IPS 10.96.0.2
		ipset add KUBE-IPVS-IPS 10.96.0.4
		ipset add KUBE-IPVS-IPS 203.0.113.15
		ipset add KUBE-IPVS-IPS 203.0.113.16
	`)
	restore := exec.Command("iptables-nft-restore")
	restore.Stdin = strings.NewReader(`*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ
-A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MASQUERADE
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
COMMIT
*filter
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-A INPUT -j KUBE-PROXY-FIREWALL
-A INPUT -j KUBE-IPVS-FILTER
-A OUTPUT -j KUBE-IPVS-OUT-FILTER
-A KUBE-PROXY-FIREWALL -m set ! --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN
-A KUBE-PROXY-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src -j RETURN
-A KUBE-PROXY-FIREWALL -j DROP
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
-A KUBE-IPVS-OUT-FILTER -s 203.0.113.15 -m ipvs --vaddr 203.0.113.15 --vproto tcp --vport 443 -j DROP
COMMIT
`)
	if out, err := restore.CombinedOutput(); err != nil {
		t.Fatalf("iptables-nft-restore: %v: %s", err, out)
	}
	for file, value := range map[string]string{"net/ipv4/ip_forward": "1", "net/ipv4/vs/conntrack": "1"} {
		if err := os.WriteFile("/proc/sys/"+file, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	pod := Destination{Address: netip.MustParseAddrPort("10.244.1.5:8080"), Weight: 1}
	for _, s := range []VirtualServer{
		{Address: netip.MustParseAddr("10.96.0.1"), Port: 80, Destinations: []Destination{pod}},
		{Address: netip.MustParseAddr("10.96.0.2"), Port: 80},                                   // no endpoint
		{Address: netip.MustParseAddr("10.96.0.3"), Port: 80, Destinations: []Destination{pod}}, // the interface lacks the address
		{Address: netip.MustParseAddr("10.96.0.4"), Port: 80, Destinations: []Destination{pod}}, // a set lacks it
		{Address: netip.MustParseAddr("203.0.113.15"), Port: 443, Destinations: []Destination{pod}},
		{Address: netip.MustParseAddr("203.0.113.16"), Port: 443, Destinations: []Destination{pod}},
		{Address: netip.MustParseAddr("192.0.2.1"), Port: 30080, Destinations: []Destination{pod}},
	} {
		s.Protocol, s.Scheduler = "TCP", "rr"
		if err := Add(dataplane.IPv4, &s); err != nil {
			t.Fatal(err)
		}
		for _, d := range s.Destinations {
			if err := AddDestination(dataplane.IPv4, &s, d); err != nil {
				t.Fatal(err)
			}
		}
	}
	within(t, "pod", func() {
		l, err := net.Listen("tcp4", "0.0.0.0:8080")
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
				fmt.Fprint(conn, host)
				conn.Close()
			}
		}()
	})
	compare := func(name string, origins ...dataplane.Origin) {
		table, _, err := Read(dataplane.IPv4)
		if err != nil || len(table.Unknown) > 0 {
			t.Fatalf("%s: %v %q", name, err, table.Unknown)
		}
		for _, f := range table.Frontends {
			if !slices.Contains(origins, f.From) {
				continue
			}
			to := netip.AddrPortFrom(f.Address, f.Port)
			own := map[dataplane.Origin]string{dataplane.Outside: "192.0.2.9", dataplane.Pod: "10.244.1.5", dataplane.Node: f.Address.String()}[f.From]
			if !f.Address.IsValid() {
				to = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), f.Port)
				own = strings.Replace(own, "invalid IP", "192.0.2.1", 1)
			}
			if f.Address == netip.MustParseAddr("10.96.0.3") && f.From == dataplane.Node {
				own = "192.0.2.1" // the node does not have the address
			}
			got := ""
			switch f.From {
			case dataplane.Node:
				got = connect(to)
			case dataplane.Pod:
				within(t, "pod", func() { got = connect(to) })
			default:
				within(t, "client", func() { got = connect(to) })
			}
			rewritten := f.Masquerade == dataplane.Rewritten || f.From == dataplane.Pod && len(f.Endpoints) == 1 && f.Endpoints[0].Hairpin
			in := len(f.Sources) == 0
			for _, p := range f.Sources {
				in = in || f.From != dataplane.Node && p.Contains(netip.MustParseAddr(own))
			}
			want := map[dataplane.Action]string{dataplane.Forward: own, dataplane.Reject: "refused", dataplane.Drop: "nothing", dataplane.Pass: "nothing"}[f.Action]
			switch {
			case f.Action == dataplane.Forward && !in:
				want = "nothing"
			case f.Action == dataplane.Forward && rewritten:
				want = "10.244.1.1"
			}
			t.Logf("%s: %s from %s: %s: %s", name, f.Key, f.From, f.Action, got)
			if got != want {
				t.Errorf("%s: %s from %s: %s, want %s by %+v", name, f.Key, f.From, got, want, f)
			}
		}
	}
	compare("conntrack", dataplane.Outside, dataplane.Pod, dataplane.Node)
	if err := os.WriteFile("/proc/sys/net/ipv4/vs/conntrack", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	compare("no conntrack", dataplane.Outside)
}
