// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlan(t *testing.T) {
	p, err := newPlan(1, 3, 2, "dual")
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, n := range p.Nodes {
		got += strings.Join([]string{n.Name, orDash(n.Zone), joined(n.IPs), joined(n.PodCIDRs)}, " ") + "\n"
	}
	want := `control-plane - 198.18.0.10,2001:2::a 198.18.128.0/24,2001:2:0:100::/64
worker-1 zone-a 198.18.0.11,2001:2::b 198.18.129.0/24,2001:2:0:101::/64
worker-2 zone-b 198.18.0.12,2001:2::c 198.18.130.0/24,2001:2:0:102::/64
worker-3 zone-a 198.18.0.13,2001:2::d 198.18.131.0/24,2001:2:0:103::/64
`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("nodes (-want +got):\n%s", d)
	}
	if got, want := joined(p.balancerIPs()), "198.18.0.2,2001:2::2"; got != want {
		t.Errorf("balancer is %s, want %s", got, want)
	}
	if got, want := joined(p.apiServiceIPs()), "198.19.0.1,2001:2:0:f000::1"; got != want {
		t.Errorf("API service is %s, want %s", got, want)
	}
	if got, want := joined(p.dnsServiceIPs()), "198.19.0.10,2001:2:0:f000::a"; got != want {
		t.Errorf("DNS service is %s, want %s", got, want)
	}
}

// Control planes come first, and the addresses of workers do not change.
func TestPlanOfSeveralControlPlanes(t *testing.T) {
	p, err := newPlan(3, 1, 1, "dual")
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, n := range p.Nodes {
		got += strings.Join([]string{n.Name, orDash(n.Zone), joined(n.IPs), joined(n.PodCIDRs)}, " ") + "\n"
	}
	want := `control-plane - 198.18.0.10,2001:2::a 198.18.128.0/24,2001:2:0:100::/64
control-plane-2 - 198.18.0.111,2001:2::6f 198.18.229.0/24,2001:2:0:165::/64
control-plane-3 - 198.18.0.112,2001:2::70 198.18.230.0/24,2001:2:0:166::/64
worker-1 zone-a 198.18.0.11,2001:2::b 198.18.129.0/24,2001:2:0:101::/64
`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("nodes (-want +got):\n%s", d)
	}
	if got, want := len(p.controlPlanes()), 3; got != want {
		t.Errorf("%d control planes, want %d", got, want)
	}
}

// Worker names change nothing else in the plan.
func TestPlanOfNamedWorkers(t *testing.T) {
	plain, err := newPlan(1, 3, 2, "dual")
	if err != nil {
		t.Fatal(err)
	}
	named, err := newPlan(1, 3, 2, "dual", "node01", "node02")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"control-plane", "node01", "node02", "worker-3"}, named.names()); d != "" {
		t.Errorf("names (-want +got):\n%s", d)
	}
	for i := range plain.Nodes {
		named.Nodes[i].Name = plain.Nodes[i].Name
	}
	same := cmp.Options{
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	}
	if d := cmp.Diff(plain, named, same); d != "" {
		t.Errorf("other fields (-unnamed +named):\n%s", d)
	}
}

// Every address of every plan is in the ranges reserved for tests. No address is used twice, and no
// ranges overlap.
func TestPlanAddressesAreDistinct(t *testing.T) {
	reserved := []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("2001:2::/48")}
	for _, family := range []string{"dual", "ipv4", "ipv6"} {
		for _, workers := range []int{1, 2, 17, maxWorkers} {
			p, err := newPlan(maxControlPlanes, workers, 2, family)
			if err != nil {
				t.Fatal(err)
			}
			var used []netip.Prefix
			for _, ip := range p.balancerIPs() {
				used = append(used, netip.PrefixFrom(ip, ip.BitLen()))
			}
			for i, n := range p.Nodes {
				if len(n.IPs) != len(p.NodeNets) || len(n.PodCIDRs) != len(p.NodeNets) {
					t.Fatalf("%s: %s has %d addresses and %d pod ranges, want %d of each",
						family, n.Name, len(n.IPs), len(n.PodCIDRs), len(p.NodeNets))
				}
				for j := range n.IPs {
					if !p.NodeNets[j].Contains(n.IPs[j]) || !p.PodNets[j].Contains(n.PodCIDRs[j].Addr()) {
						t.Errorf("%s node %d: %s or %s is out of its range", family, i, n.IPs[j], n.PodCIDRs[j])
					}
					used = append(used, netip.PrefixFrom(n.IPs[j], n.IPs[j].BitLen()), n.PodCIDRs[j])
				}
			}
			used = append(used, p.ServiceNets...)
			for i, a := range used {
				if a != a.Masked() {
					t.Errorf("%s: %s has host bits", family, a)
				}
				if !reserved[0].Contains(a.Addr()) && !reserved[1].Contains(a.Addr()) {
					t.Errorf("%s: %s is not reserved for tests", family, a)
				}
				for _, b := range used[:i] {
					if a.Overlaps(b) {
						t.Errorf("%s with %d workers: %s and %s overlap", family, workers, a, b)
					}
				}
			}
		}
	}
}

func TestPlanRefusesAllBadValuesAtOnce(t *testing.T) {
	_, err := newPlan(4, 0, 27, "ipv5", "node01")
	want := `--control-planes is 4: must be from 1 to 3
--nodes is 0: must be from 1 to 100
--worker-names has 1 names for 0 workers
--zones is 27: must be from 1 to 26
--ip-family is "ipv5": must be dual, ipv4 or ipv6`
	if err == nil || err.Error() != want {
		t.Errorf("got error %v, want:\n%s", err, want)
	}

	for _, names := range [][]string{
		{"Node"}, {"a", "a"}, {"control-plane-2"}, {"br10"}, {"worker-2"}, {"a-very-long-name"}, {"a.b"}, {""},
	} {
		if _, err := newPlan(1, 2, 1, "dual", names...); err == nil || !strings.HasPrefix(err.Error(), "--worker-names: ") {
			t.Errorf("names %q: %v, want an error", names, err)
		}
	}
}
