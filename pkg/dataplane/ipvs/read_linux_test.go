// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// network is a new network of the test's own, on a kernel that has IPVS. Its goroutine keeps the thread.
func network(t *testing.T) {
	t.Helper()
	if os.Getenv("CHECKPLAN_GUEST") == "" {
		t.Skip("needs a kernel with IPVS, in a virtual machine: make e2e-ipvs")
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

func commands(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if out, err := exec.Command(fields[0], fields[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.TrimSpace(line), err, out)
		}
	}
}

// TestKernelRead: with NET_ADMIN and no other capability, all is read; without it, nothing is.
func TestKernelRead(t *testing.T) {
	network(t)
	if _, by, err := ReadKernel(dataplane.IPv4); len(by) > 0 || err != nil {
		t.Fatalf("%v %v in a network with nothing", by, err)
	}
	commands(t, `
		ip link add kube-ipvs0 type dummy
		ip address add 10.96.0.1/32 dev kube-ipvs0
		ip link add eth9 type dummy
		ip address add 192.0.2.1/24 dev eth9
		ipset create KUBE-CLUSTER-IP hash:ip,port family inet
		ipset add KUBE-CLUSTER-IP 10.96.0.1,tcp:80
		ipset create KUBE-LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net family inet
		ipset add KUBE-LOAD-BALANCER-SOURCE-CIDR 10.96.0.1,sctp:80,192.0.2.0/24
		ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
		ipset add KUBE-NODE-PORT-TCP 30080
		iptables-nft -t nat -N KUBE-SERVICES
		iptables-nft -t nat -A PREROUTING -j KUBE-SERVICES
		iptables-nft -t nat -A OUTPUT -j KUBE-SERVICES
		iptables-nft -t nat -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst ! -s 10.244.0.0/16 -j MARK --or-mark 0x4000
	`)
	for _, s := range []VirtualServer{
		{Protocol: "TCP", Address: netip.MustParseAddr("10.96.0.1"), Port: 80, Scheduler: "rr", AffinitySeconds: 60},
		{Protocol: "UDP", Address: netip.MustParseAddr("192.0.2.1"), Port: 30053, Scheduler: "rr"},
	} {
		if err := Add(dataplane.IPv4, &s); err != nil {
			t.Fatal(err)
		}
		for _, d := range []Destination{{Address: netip.MustParseAddrPort("10.244.0.5:8080"), Weight: 1}, {Address: netip.MustParseAddrPort("10.244.0.6:8080")}} {
			if err := AddDestination(dataplane.IPv4, &s, d); err != nil {
				t.Fatal(err)
			}
		}
	}
	capabilities(t, 1<<unix.CAP_NET_ADMIN)
	table, by, err := Read(dataplane.IPv4)
	if err != nil {
		t.Fatalf("with NET_ADMIN only: %v", err)
	}
	if len(by) != 1 || by[0] != dataplane.KubeProxy || len(table.Unknown) > 0 || table.PodsBy != "10.244.0.0/16" {
		t.Errorf("%v, %q, pods by %s", by, table.Unknown, table.PodsBy)
	}
	var keys []string
	for _, f := range table.Frontends {
		if f.From == dataplane.Outside {
			keys = append(keys, f.Key.String())
		}
		if f.Action != dataplane.Forward || len(f.Endpoints) != 1 || (f.AffinitySeconds == 60) != f.Address.IsValid() {
			t.Errorf("%+v", f)
		}
	}
	if got := strings.Join(keys, ", "); got != "node port 30053/UDP, 10.96.0.1:80/TCP" {
		t.Error(got)
	}
	k, _, err := ReadKernel(dataplane.IPv4)
	if err != nil || len(k.Rules.IPSets) != 3 || !k.Untracked { // the kernel's default in a new network
		t.Errorf("%+v, %v", k, err)
	}
	for _, s := range k.Rules.IPSets {
		if s.Unknown != "" || len(s.Entries) != 1 || s.Index == 0 && s.Name != k.Rules.IPSets[0].Name {
			t.Errorf("%+v", s)
		}
	}
	capabilities(t, 0)
	if _, _, err := Read(dataplane.IPv4); !errors.Is(err, unix.EPERM) {
		t.Errorf("without a capability: %v", err)
	}
}

// capabilities sets those of the thread.
func capabilities(t *testing.T, set uint32) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: set, Permitted: 1 << unix.CAP_NET_ADMIN}}
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
}
