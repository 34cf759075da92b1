// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sent is a packet that a test sends.
type sent struct {
	from, to     string // nodes
	family       Family
	protocol     Protocol
	sport, dport uint16 // 0 for icmp
	bytes        int    // of the IP packet
}

// spec is the command line of a fault and the packets that it must affect.
type spec struct {
	name    string
	args    string
	touches func(sent) bool
}

// faults covers every fault of packets between pods. TestRules checks the rules of each one,
// TestRealPackets checks that the kernel applies them as intended.
var faults = []spec{
	{"drop_all", "drop", func(sent) bool { return true }},
	{"drop_node", "drop --node w1", func(p sent) bool { return p.from == "w1" || p.to == "w1" }},
	{"drop_ingress", "drop --node w2 --direction ingress", func(p sent) bool { return p.to == "w2" }},
	{"drop_egress", "drop --node w2 --direction egress", func(p sent) bool { return p.from == "w2" }},
	{"drop_pair", "drop --from w1 --to w2", func(p sent) bool { return p.from == "w1" && p.to == "w2" }},
	{"drop_ipv4", "drop --family ipv4", func(p sent) bool { return p.family == IPv4 }},
	{"drop_ipv6", "drop --node w3 --family ipv6",
		func(p sent) bool { return p.family == IPv6 && (p.from == "w3" || p.to == "w3") }},
	{"drop_udp", "drop --protocol udp", func(p sent) bool { return p.protocol == UDP }},
	{"drop_tcp", "drop --node w1 --direction ingress --protocol tcp",
		func(p sent) bool { return p.to == "w1" && p.protocol == TCP }},
	{"drop_icmp", "drop --protocol icmp", func(p sent) bool { return p.protocol == ICMP }},
	{"drop_icmp_ipv6_pair", "drop --from w3 --to w1 --family ipv6 --protocol icmp", func(p sent) bool {
		return p.from == "w3" && p.to == "w1" && p.family == IPv6 && p.protocol == ICMP
	}},
	{"drop_dport", "drop --dport 5001", func(p sent) bool { return p.dport == 5001 }},
	{"drop_udp_dport", "drop --from w2 --to w3 --protocol udp --dport 5002", func(p sent) bool {
		return p.from == "w2" && p.to == "w3" && p.protocol == UDP && p.dport == 5002
	}},
	{"drop_tcp_ports", "drop --protocol tcp --sport 6001 --dport 5002", func(p sent) bool {
		return p.protocol == TCP && p.sport == 6001 && p.dport == 5002
	}},
	{"drop_sport", "drop --sport 6002", func(p sent) bool { return p.sport == 6002 }},
	// Which flows a hash selects is the matter of TestFlows.
	{"drop_flows", "drop --flows 1/8 --dport 1", func(p sent) bool { return false }},
	{"loss_certain", "loss --percent 100 --node w1 --direction egress", func(p sent) bool { return p.from == "w1" }},
	{"loss_most", "loss --percent 99.99 --from w1 --to w2 --protocol udp --dport 1", func(p sent) bool { return false }},
	{"mtu", "mtu --max-bytes 1300", func(p sent) bool { return p.bytes > 1300 }},
	{"mtu_exact", "mtu --max-bytes 1399 --node w1",
		func(p sent) bool { return p.bytes > 1399 && (p.from == "w1" || p.to == "w1") }},
	{"mtu_passes", "mtu --max-bytes 1400 --node w1", func(p sent) bool { return false }},
	{"mtu_pair", "mtu --max-bytes 576 --from w2 --to w1",
		func(p sent) bool { return p.bytes > 576 && p.from == "w2" && p.to == "w1" }},
	{"delay_all", "delay --by 30ms", func(sent) bool { return true }},
	{"delay_node", "delay --by 30ms --node w2", func(p sent) bool { return p.from == "w2" || p.to == "w2" }},
	{"delay_ingress", "delay --by 30ms --node w2 --direction ingress", func(p sent) bool { return p.to == "w2" }},
	{"delay_egress", "delay --by 30ms --node w3 --direction egress", func(p sent) bool { return p.from == "w3" }},
	{"delay_pair_udp", "delay --by 120ms --from w1 --to w3 --protocol udp", func(p sent) bool {
		return p.from == "w1" && p.to == "w3" && p.protocol == UDP
	}},
	{"delay_ipv6", "delay --by 15ms --family ipv6", func(p sent) bool { return p.family == IPv6 }},
}

// connection is a connection, or its first packet, that a fault of nodes' own traffic may prevent.
type connection struct {
	from, to         string // nodes
	fromHost, toHost bool   // the node itself, otherwise its pod
	family           Family
	dport            uint16
}

// prevented reports whether a fault affects the first packet of a connection, or its answers.
func (c connection) prevented(touches func(connection) bool) bool {
	// A node connects to its own pod from an address of the pods' bridge. No fault selects that
	// address.
	bridge := c.from == c.to && c.fromHost && !c.toHost
	answer := connection{c.to, c.from, c.toHost, c.fromHost, c.family, 0}
	return touches(c) || !bridge && touches(answer)
}

// hostFaults are faults with ends other than pods, and the packets that they must affect.
// TestConnections checks this.
var hostFaults = []struct {
	name    string
	args    string
	touches func(connection) bool
}{
	{"hosts_port", "drop --from w1 --to w2 --src hosts --dst hosts --protocol tcp --dport 5001", func(c connection) bool {
		return c.from == "w1" && c.to == "w2" && c.fromHost && c.toHost && c.dport == 5001
	}},
	{"hosts_all", "drop --src hosts --dst hosts",
		func(c connection) bool { return c.from != c.to && c.fromHost && c.toHost }},
	{"pods_to_hosts", "drop --node w2 --direction ingress --dst hosts --dport 5002", func(c connection) bool {
		return c.from != "w2" && c.to == "w2" && !c.fromHost && c.toHost && c.dport == 5002
	}},
	{"hosts_to_pods", "drop --from w3 --to w1 --src hosts --family ipv6", func(c connection) bool {
		return c.from == "w3" && c.to == "w1" && c.fromHost && !c.toHost && c.family == IPv6
	}},
	{"any_node", "drop --node w1 --src any --dst any",
		func(c connection) bool { return c.from != c.to && (c.from == "w1" || c.to == "w1") }},
	{"within_pods_to_host", "drop --from w1 --to w1 --dst hosts", func(c connection) bool {
		return c.from == "w1" && c.to == "w1" && !c.fromHost && c.toHost
	}},
	{"within_host_to_pods", "drop --from w1 --to w1 --src hosts", func(c connection) bool {
		return c.from == "w1" && c.to == "w1" && c.fromHost && !c.toHost
	}},
	{"within_host", "drop --from w1 --to w1 --src hosts --dst hosts --dport 5001", func(c connection) bool {
		return c.from == "w1" && c.to == "w1" && c.fromHost && c.toHost && c.dport == 5001
	}},
	{"one_pod", "drop --src any --dst 198.18.102.2 --dport 5001", func(c connection) bool {
		return c.to == "w2" && !c.toHost && c.family == IPv4 && c.dport == 5001 && (c.fromHost || c.from != "w2")
	}},
	{"one_host", "drop --src any --dst fd00:198:18::12",
		func(c connection) bool { return c.to == "w2" && c.toHost && c.family == IPv6 }},
	{"from_one_pod", "drop --src 198.18.101.2 --dst any --dport 5002", func(c connection) bool {
		return c.from == "w1" && !c.fromHost && c.family == IPv4 && c.dport == 5002 && (c.toHost || c.to != "w1")
	}},
	{"loss_hosts", "loss --percent 100 --from w2 --to w3 --src hosts --dst any", func(c connection) bool {
		return c.from == "w2" && c.to == "w3" && c.fromHost
	}},
	{"delay_hosts", "delay --by 20ms --from w2 --to w3 --src any --dst hosts", func(connection) bool { return false }},
}

// networkFaults are faults of an additional network, and the packets between its guests that they
// must affect. Guests know each other's link addresses.
var networkFaults = []spec{
	{"network_drop_all", "drop --network br10", func(sent) bool { return true }},
	{"network_drop_node", "drop --node w1 --network br10", func(p sent) bool { return p.from == "w1" || p.to == "w1" }},
	{"network_drop_ingress", "drop --node w2 --direction ingress --network br10",
		func(p sent) bool { return p.to == "w2" }},
	{"network_drop_egress", "drop --node w2 --direction egress --network br10",
		func(p sent) bool { return p.from == "w2" }},
	{"network_drop_pair", "drop --from w1 --to w2 --network br10",
		func(p sent) bool { return p.from == "w1" && p.to == "w2" }},
	{"network_drop_ipv4", "drop --network br10 --family ipv4", func(p sent) bool { return p.family == IPv4 }},
	{"network_drop_ipv6", "drop --node w3 --network br10 --family ipv6", func(p sent) bool {
		return p.family == IPv6 && (p.from == "w3" || p.to == "w3")
	}},
	{"network_drop_icmp", "drop --network br10 --protocol icmp", func(p sent) bool { return p.protocol == ICMP }},
	{"network_drop_udp_dport", "drop --from w2 --to w3 --network br10 --protocol udp --dport 5002", func(p sent) bool {
		return p.from == "w2" && p.to == "w3" && p.protocol == UDP && p.dport == 5002
	}},
	{"network_drop_sport", "drop --network br10 --sport 6002", func(p sent) bool { return p.sport == 6002 }},
	{"network_drop_flows", "drop --network br10 --node w2 --flows 1/8 --dport 1", func(p sent) bool { return false }},
	{"network_loss_certain", "loss --percent 100 --node w1 --direction egress --network br10",
		func(p sent) bool { return p.from == "w1" }},
	{"network_loss", "loss --percent 20 --network br10 --protocol udp --dport 1", func(p sent) bool { return false }},
	{"network_mtu", "mtu --max-bytes 1399 --from w1 --to w3 --network br10", func(p sent) bool {
		return p.bytes > 1399 && p.from == "w1" && p.to == "w3"
	}},
	{"network_mtu_passes", "mtu --max-bytes 1400 --network br10", func(p sent) bool { return false }},
	{"network_delay_all", "delay --by 30ms --network br10", func(sent) bool { return true }},
	{"network_delay_node", "delay --by 400ms --node w2 --network br10",
		func(p sent) bool { return p.from == "w2" || p.to == "w2" }},
	{"network_delay_pair_ipv6", "delay --by 30ms --from w1 --to w3 --network br10 --family ipv6", func(p sent) bool {
		return p.from == "w1" && p.to == "w3" && p.family == IPv6
	}},
}

// staleService is a Service without a pod, port 53, in each family.
var staleService = map[Family]netip.Addr{
	IPv4: netip.MustParseAddr("10.96.0.10"), IPv6: netip.MustParseAddr("fd00:96::a"),
}

// staleOf keeps the flows of w1 to staleService with the pod of w2. TestStale checks what the kernel does.
func staleOf(f Family) string {
	endpoint := map[Family]string{IPv4: "198.18.102.2:5001", IPv6: "[fd00:198:18:102::2]:5001"}[f]
	return fmt.Sprintf("stale --node w1 --service %s --endpoint %s", netip.AddrPortFrom(staleService[f], 53), endpoint)
}

// specNetwork is an additional network of the nodes of specNodes.
func specNetwork() Node {
	return Node{Name: "br10", NetNS: "/run/sandbox/br10.net", Ports: []string{"w1", "w2", "w3"}}
}

// specNodes are three nodes like those of the sandbox.
func specNodes() []Node {
	var nodes []Node
	for i := 1; i <= 3; i++ {
		nodes = append(nodes, Node{
			Name:   fmt.Sprintf("w%d", i),
			NetNS:  fmt.Sprintf("/run/sandbox/w%d.net", i),
			Uplink: "eth0",
			PodCIDRs: []netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("198.18.%d.0/24", 100+i)),
				netip.MustParsePrefix(fmt.Sprintf("fd00:198:18:%d::/64", 100+i)),
			},
			IPs: []netip.Addr{
				netip.MustParseAddr(fmt.Sprintf("198.18.0.%d", 10+i)),
				netip.MustParseAddr(fmt.Sprintf("fd00:198:18::%d", 10+i)),
			},
		})
	}
	return nodes
}

func mustParse(t testing.TB, args string) Fault {
	t.Helper()
	f, err := Parse(strings.Fields(args))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The tables above contain each value of each field at least once.
func TestFaultsAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range faults {
		f := mustParse(t, c.args)
		seen["kind "+string(f.Kind)] = true
		seen["family "+string(f.Family)] = true
		seen["protocol "+string(f.Protocol)] = true
		scope := "all nodes"
		switch {
		case f.From != "":
			scope = "ordered pair"
		case f.Node != "":
			scope = "node, direction " + string(f.Direction)
		}
		seen["scope "+scope] = true
		seen[string(f.Kind)+": "+scope] = true
		seen[fmt.Sprintf("ports sport=%t dport=%t any=%t", f.SrcPort != 0, f.DstPort != 0, f.Protocol == AnyProtocol)] = true
	}
	want := []string{"scope all nodes", "scope ordered pair", "scope node, direction "}
	for _, v := range []Kind{Drop, Loss, MTU, Delay} {
		want = append(want, "kind "+string(v))
	}
	for _, v := range []Direction{Both, Ingress, Egress} {
		want = append(want, "drop: node, direction "+string(v), "delay: node, direction "+string(v))
	}
	for _, v := range []Family{AnyFamily, IPv4, IPv6} {
		want = append(want, "family "+string(v))
	}
	for _, v := range []Protocol{AnyProtocol, TCP, UDP, ICMP} {
		want = append(want, "protocol "+string(v))
	}
	for _, k := range []Kind{Drop, MTU, Delay} {
		want = append(want, string(k)+": all nodes", string(k)+": ordered pair")
	}
	for _, c := range hostFaults {
		f := mustParse(t, c.args)
		for side, e := range map[string]End{"src": f.Src, "dst": f.Dst} {
			if e.addr().IsValid() {
				e = "address"
			}
			seen[side+" "+string(e)] = true
		}
		seen[fmt.Sprintf("within a node %t", f.From != "" && f.From == f.To)] = true
	}
	for _, v := range []End{Pods, Hosts, Any, "address"} {
		want = append(want, "src "+string(v), "dst "+string(v))
	}
	want = append(want, "within a node true", "within a node false",
		"ports sport=false dport=true any=true", "ports sport=true dport=false any=true",
		"ports sport=false dport=true any=false", "ports sport=true dport=true any=false")
	for _, w := range want {
		if !seen[w] {
			t.Errorf("no fault in the tables covers %s", w)
		}
	}
	// The package comment and Usage explain each kind and flag.
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	full := Fault{
		Network: "n", Src: Hosts, Dst: Any, Percent: 1, MaxBytes: 68, Delay: 1,
		Node: "n", Direction: Egress, From: "n", To: "n",
		Family: IPv4, Protocol: TCP, SrcPort: 1, DstPort: 1, Flows: 1, Buckets: 2,
		Service: "192.0.2.1:53", Endpoint: "192.0.2.2:53", For: time.Second,
	}
	for _, word := range append(strings.Fields(full.String()), "drop ", "loss ", "mtu ", "delay ", "snat ", "stale ") {
		for name, text := range map[string]string{"doc.go": string(doc), "Usage": Usage} {
			if (strings.HasPrefix(word, "--") || strings.HasSuffix(word, " ")) && !strings.Contains(text, word) {
				t.Errorf("%s does not explain %q", name, word)
			}
		}
	}
}

// Each fault compiles to the rules in testdata. UPDATE=1 rewrites them.
func TestRules(t *testing.T) {
	dir := filepath.Join("testdata", "rules")
	cases := map[string]string{}
	for _, c := range faults {
		cases[c.name] = c.args
	}
	for _, c := range hostFaults {
		cases[c.name] = c.args
	}
	for _, c := range networkFaults {
		cases[c.name] = c.args
	}
	// Packets of snat arrive: TestFaults of the module has a run with it.
	cases["snat"], cases["snat_ipv4_tcp"] = "snat --node w1", "snat --node w2 --family ipv4 --protocol tcp"
	// TestFor sends packets.
	cases["drop_for"], cases["network_loss_for"] = "drop --for 2s", "loss --percent 50 --for 1500ms --network br10 --node w1"
	cases["stale"] = staleOf(IPv4)
	cases["stale_ipv6"] = staleOf(IPv6)
	var want []string
	for name, args := range cases {
		want = append(want, name+".nft")
		t.Run(name, func(t *testing.T) {
			f := mustParse(t, args)
			vias := []Via{""}
			switch {
			case f.Kind == Delay && f.Network != "":
				vias = []Via{Queue}
			case f.Kind == Delay:
				vias = []Via{Queue, Netem}
			}
			var b strings.Builder
			fmt.Fprintf(&b, "# sandbox fault add %s\n", args)
			for _, via := range vias {
				sets, err := compile("7", append(specNodes(), specNetwork()), f, via)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range sets {
					fmt.Fprintf(&b, "\n# on %s\n", strings.TrimSpace(s.Node.Name+" "+string(via)))
					b.WriteString(s.Text)
					if via == Netem {
						fmt.Fprintf(&b, "# tc %s\n", strings.Join(prioArgs(s.Node.Uplink), " "))
						fmt.Fprintf(&b, "# tc %s\n", strings.Join(netemArgs(s.Node.Uplink, f.Delay), " "))
					}
				}
			}
			golden(t, filepath.Join(dir, name+".nft"), b.String())
		})
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files in %s (-want +got):\n%s", dir, diff)
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if os.Getenv("UPDATE") == "1" {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// The String of a fault parses to the same fault.
func TestParsePrints(t *testing.T) {
	for _, c := range []struct {
		args string
		want Fault
	}{
		{"drop", Fault{Kind: Drop}},
		{"drop --dport 80 --protocol tcp", Fault{Kind: Drop, Protocol: TCP, DstPort: 80}},
		{"drop -node=w1 -direction egress", Fault{Kind: Drop, Node: "w1", Direction: Egress}},
		{"drop --to b --from a --family ipv6", Fault{Kind: Drop, From: "a", To: "b", Family: IPv6}},
		{"loss --percent 20%", Fault{Kind: Loss, Percent: 2000}},
		{"loss --percent 0.5", Fault{Kind: Loss, Percent: 50}},
		{"loss --percent 0.01", Fault{Kind: Loss, Percent: 1}},
		{"loss --percent 12.34", Fault{Kind: Loss, Percent: 1234}},
		{"loss --percent 100", Fault{Kind: Loss, Percent: 10000}},
		{"drop --network br10 --node w1", Fault{Kind: Drop, Node: "w1", Network: "br10"}},
		{"drop --src pods --dst hosts", Fault{Kind: Drop, Dst: Hosts}},
		{"drop --src any --dst ::ffff:198.18.0.1", Fault{Kind: Drop, Src: Any, Dst: "198.18.0.1"}},
		{"drop --dst FD00:0::1", Fault{Kind: Drop, Dst: "fd00::1"}},
		{"mtu --max-bytes 1400", Fault{Kind: MTU, MaxBytes: 1400}},
		{"drop --flows 1/8", Fault{Kind: Drop, Flows: 1, Buckets: 8}},
		{"drop --for 2s", Fault{Kind: Drop, For: 2 * time.Second}},
		{"mtu --max-bytes 1400 --for 1.5s --node w1", Fault{Kind: MTU, MaxBytes: 1400, Node: "w1", For: 1500 * time.Millisecond}},
		{"loss --percent 50 --flows 255/256 --dport 80", Fault{Kind: Loss, Percent: 5000, DstPort: 80, Flows: 255, Buckets: 256}},
		{"stale --endpoint [FD00::1]:053 --service [fd00:96::0:a]:53 --node w1",
			Fault{Kind: Stale, Node: "w1", Service: "[fd00:96::a]:53", Endpoint: "[fd00::1]:53"}},
		{"stale --node w1 --service 10.96.0.10:53 --endpoint [::ffff:10.0.0.3]:5353",
			Fault{Kind: Stale, Node: "w1", Service: "10.96.0.10:53", Endpoint: "10.0.0.3:5353"}},
		{"delay --by 0.03s --sport 53", Fault{Kind: Delay, Delay: 30 * time.Millisecond, SrcPort: 53}},
	} {
		t.Run(c.args, func(t *testing.T) {
			got := mustParse(t, c.args)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("Parse (-want +got):\n%s", diff)
			}
			if again := mustParse(t, got.String()); again != got {
				t.Errorf("%q prints as %q, which parses as %q", c.args, got, again)
			}
			if err := got.Validate(); err != nil {
				t.Errorf("Validate: %v", err)
			}
		})
	}
}

// Each mistake has its own message, and one error contains all of them.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "missing kind of fault: want one of drop, loss, mtu, delay, snat, stale"},
		{"lose", "fault lose: unknown kind: want one of drop, loss, mtu, delay, snat, stale"},
		{"drop --bogus", "fault drop: flag provided but not defined: -bogus"},
		{"drop w1", `fault drop: unexpected argument "w1"`},
		{"drop --node", "fault drop: flag needs an argument: -node"},
		{"drop --node --direction", "fault drop: --node \"--direction\": want a node name"},
		{"drop --percent 3", "fault drop: --percent is a flag of loss, not of drop"},
		{"drop --max-bytes 300", "fault drop: --max-bytes is a flag of mtu, not of drop"},
		{"drop --by 3ms", "fault drop: --by is a flag of delay, not of drop"},
		{"loss", "fault loss: loss needs --percent"},
		{"loss --percent 0", `fault loss: --percent "0": want a percentage with at most two decimals, 0.01 to 100`},
		{"loss --percent 100.01", `fault loss: --percent "100.01": want a percentage with at most two decimals, 0.01 to 100`},
		{"loss --percent 1.234", `fault loss: --percent "1.234": want a percentage with at most two decimals, 0.01 to 100`},
		{"loss --percent -5", `fault loss: --percent "-5": want a percentage with at most two decimals, 0.01 to 100`},
		{"loss --percent NaN", `fault loss: --percent "NaN": want a percentage with at most two decimals, 0.01 to 100`},
		{"mtu", "fault mtu: mtu needs --max-bytes"},
		{"snat", "fault snat: snat needs --node"},
		{"snat --node w1 --direction egress", "fault snat: snat excludes --direction, --src, --dst, --network and --flows"},
		{"stale", "fault stale: stale needs --service\nstale needs --endpoint\nstale needs --node"},
		{"drop --service 10.96.0.10:53", "fault drop: --service is a flag of stale, not of drop"},
		{"stale --node w1 --service 10.96.0.10 --endpoint [fe80::1%eth0]:53",
			`fault stale: --service "10.96.0.10": want IP:PORT, such as 10.96.0.10:53 or [fd00:96::a]:53` + "\n" +
				`--endpoint "[fe80::1%eth0]:53": want IP:PORT, such as 10.96.0.10:53 or [fd00:96::a]:53`},
		{"stale --node w1 --service 10.96.0.10:53 --endpoint [fd00::1]:53",
			"fault stale: --service and --endpoint have different IP families"},
		{"stale --node w1 --service 10.96.0.10:53 --endpoint 10.0.0.3:53 --protocol tcp",
			"fault stale: stale excludes all flags but --node, --service and --endpoint"},
		{"mtu --max-bytes 67", `fault mtu: --max-bytes "67": want a number of bytes, 68 to 65535`},
		{"mtu --max-bytes 65536", `fault mtu: --max-bytes "65536": want a number of bytes, 68 to 65535`},
		{"delay", "fault delay: delay needs --by"},
		{"delay --by 30", `fault delay: --by "30": want a duration such as 30ms, in whole microseconds, 1us to 1m`},
		{"delay --by 61s", `fault delay: --by "61s": want a duration such as 30ms, in whole microseconds, 1us to 1m`},
		{"delay --by 1500ns", `fault delay: --by "1500ns": want a duration such as 30ms, in whole microseconds, 1us to 1m`},
		{"drop --for 2", `fault drop: --for "2": want a duration such as 2s, in whole milliseconds, 1ms to 1h`},
		{"drop --for 1500us", `fault drop: --for "1500us": want a duration such as 2s, in whole milliseconds, 1ms to 1h`},
		{"delay --by 3ms --for 2s", "fault delay: --for is a flag of drop, loss and mtu, not of delay"},
		{"drop --direction ingress", "fault drop: --direction needs --node"},
		{"drop --node w1 --direction up", `fault drop: --direction "up": want one of ingress, egress`},
		{"drop --node w1 --from w2 --to w3", "fault drop: --node excludes --from and --to"},
		{"drop --from w1", "fault drop: --from and --to need each other"},
		{"drop --from w1 --to w1",
			"fault drop: --from and --to are the same node: a fault cannot affect packets between its pods"},
		{"delay --by 1ms --from w1 --to w1 --dst hosts",
			"fault delay: --from and --to are the same node: a delay cannot affect packets within a node"},
		{"drop --src pod", `fault drop: --src "pod": want one of pods, hosts, any or an IP address`},
		{"drop --dst fe80::1%eth0", `fault drop: --dst "fe80::1%eth0": want one of pods, hosts, any or an IP address`},
		{"drop --dst=", `fault drop: --dst "": want one of pods, hosts, any or an IP address`},
		{"drop --src 198.18.101.2 --dst fd00::1", "fault drop: --src and --dst have different IP families"},
		{"drop --dst fd00::1 --family ipv4", "fault drop: fd00::1 is not an ipv4 address"},
		{"drop --family ipv5", `fault drop: --family "ipv5": want one of ipv4, ipv6`},
		{"drop --protocol sctp", `fault drop: --protocol "sctp": want one of tcp, udp, icmp`},
		{"drop --protocol icmp --dport 3", "fault drop: icmp has no ports"},
		{"drop --protocol icmp --flows 1/8", "fault drop: icmp has no flows"},
		{"drop --flows 8", `fault drop: --flows "8": want K/N, with K from 1 to N-1 and N up to 256`},
		{"drop --flows 0/8", `fault drop: --flows "0/8": want K/N, with K from 1 to N-1 and N up to 256`},
		{"drop --flows 8/8", `fault drop: --flows "8/8": want K/N, with K from 1 to N-1 and N up to 256`},
		{"drop --flows 1/257", `fault drop: --flows "1/257": want K/N, with K from 1 to N-1 and N up to 256`},
		{"drop --flows 1/8/2 --node w1 --from w2 --to w3",
			"fault drop: --flows \"1/8/2\": want K/N, with K from 1 to N-1 and N up to 256\n--node excludes --from and --to"},
		{"drop --dport 0", `fault drop: --dport "0": want a port, 1 to 65535`},
		{"drop --sport 65536", `fault drop: --sport "65536": want a port, 1 to 65535`},
		{"delay --by x --family 4 --direction ingress --percent 3", "fault delay: " + strings.Join([]string{
			`--by "x": want a duration such as 30ms, in whole microseconds, 1us to 1m`,
			`--family "4": want one of ipv4, ipv6`,
			"--percent is a flag of loss, not of delay",
			"--direction needs --node",
		}, "\n")},
	} {
		t.Run(c.args, func(t *testing.T) {
			f, err := Parse(strings.Fields(c.args))
			if err == nil {
				t.Fatalf("Parse returned %q, want an error", f)
			}
			if diff := cmp.Diff(c.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
	for _, args := range []string{"-h", "--help", "drop --help", "loss --percent x -h"} {
		if _, err := Parse(strings.Fields(args)); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("Parse(%q) returned %v, want flag.ErrHelp", args, err)
		}
	}
}

// Validate checks a Fault that Parse did not make.
func TestValidateRefuses(t *testing.T) {
	for _, c := range []struct {
		fault Fault
		want  string
	}{
		{Fault{}, "fault : unknown kind: want one of drop, loss, mtu, delay, snat, stale"},
		{Fault{Kind: Loss, Percent: 10001}, "fault loss: loss of 10001 hundredths of a percent: want 1 to 10000"},
		{Fault{Kind: Drop, Flows: 1}, "fault drop: flows 1/0: want K/N, with K from 1 to N-1 and N up to 256"},
		{Fault{Kind: Drop, Buckets: 8}, "fault drop: flows 0/8: want K/N, with K from 1 to N-1 and N up to 256"},
		{Fault{Kind: MTU, MaxBytes: 5}, "fault mtu: longest packet of 5 bytes: want 68 to 65535"},
		{Fault{Kind: Delay, Delay: time.Hour}, "fault delay: delay of 1h0m0s: want whole microseconds, up to 1m0s"},
		{Fault{Kind: Stale, Node: "a", Service: "10.96.0.10:053", Endpoint: "10.0.0.3:53"},
			`fault stale: address "10.96.0.10:053": want IP:PORT, such as 10.96.0.10:53 or [fd00:96::a]:53`},
		{Fault{Kind: Drop, For: -time.Second}, "fault drop: for -1s: want a duration such as 2s, in whole milliseconds, 1ms to 1h"},
		{Fault{Kind: Drop, Node: "a b"}, `fault drop: "a b" is not a node name`},
		{Fault{Kind: Drop, Node: "a", Direction: "x"}, `fault drop: direction "x": want one of ingress, egress`},
		{Fault{Kind: Drop, Src: "fd00:0::1", Dst: "pods"},
			"fault drop: end \"fd00:0::1\": want one of pods, hosts, any or an IP address\n" +
				"end \"pods\": want one of pods, hosts, any or an IP address"},
		{Fault{Kind: Drop, Family: "x", Protocol: "y"},
			"fault drop: family \"x\": want one of ipv4, ipv6\nprotocol \"y\": want one of tcp, udp, icmp"},
	} {
		got := fmt.Sprint(c.fault.Validate())
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("Validate of %#v (-want +got):\n%s", c.fault, diff)
		}
	}
}

// compile rejects nodes that the fault cannot distinguish or does not find.
func TestCompileRefuses(t *testing.T) {
	nodes := specNodes()
	v4only := specNodes()
	for i := range v4only {
		v4only[i].PodCIDRs = v4only[i].PodCIDRs[:1]
	}
	overlap := specNodes()
	overlap[2].PodCIDRs[0] = netip.MustParsePrefix("198.18.101.128/25")
	sameIP := specNodes()
	sameIP[1].IPs[0] = sameIP[0].IPs[0]
	twin := append(specNodes(), Node{Name: "w1"})
	for _, c := range []struct {
		name  string
		nodes []Node
		args  string
		want  string
	}{
		{"unknown", nodes, "drop --node w9", "fault drop --node w9: unknown node w9: want one of w1, w2, w3"},
		{"unknown pair", nodes, "drop --from a --to b",
			"fault drop --from a --to b: unknown node a: want one of w1, w2, w3\nunknown node b: want one of w1, w2, w3"},
		{"one node", nodes[:1], "drop --node w1", "fault drop --node w1: needs two nodes or more, has 1"},
		{"no node", nil, "drop", "fault drop: needs two nodes or more, has 0"},
		{"family", v4only, "drop --family ipv6",
			"fault drop --family ipv6: the nodes have no matching addresses of this IP family"},
		{"overlap", overlap, "drop", "pod CIDR 198.18.101.128/25 of w3 overlaps 198.18.101.0/24 of w1"},
		{"address", nodes, "drop --src hosts --dst 192.0.2.1",
			"fault drop --src hosts --dst 192.0.2.1: 192.0.2.1 is not an address of a node or its pods"},
		{"same address", sameIP, "drop", "address 198.18.0.11 of w2 is also an address of w1"},
		{"twin", twin, "drop", "two nodes are named w1"},
		{"no network", nodes, "drop --network br10", "fault drop --network br10: the nodes have no additional network"},
		{"unknown network", append(nodes, specNetwork()), "drop --network br11",
			"fault drop --network br11: unknown network br11: want one of br10"},
		{"not in the network", append(nodes, specNetwork()), "drop --from w1 --to w9 --network br10",
			"fault drop --from w1 --to w9 --network br10: network br10 has no node w9: want one of w1, w2, w3"},
		{"unknown node of a Service", nodes, "stale --node w9 --service 10.96.0.10:53 --endpoint 10.0.0.3:53",
			"fault stale --node w9 --service 10.96.0.10:53 --endpoint 10.0.0.3:53: unknown node w9: want one of w1, w2, w3"},
		{"network as node", append(nodes, specNetwork()), "drop --node br10",
			"fault drop --node br10: unknown node br10: want one of w1, w2, w3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := compile("1", c.nodes, mustParse(t, c.args), "")
			if diff := cmp.Diff(c.want, fmt.Sprint(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// For all arguments, Parse returns an error or a valid fault whose String parses to the same fault.
func FuzzParse(f *testing.F) {
	for _, c := range faults {
		f.Add(c.args)
	}
	for _, c := range hostFaults {
		f.Add(c.args)
	}
	for _, c := range networkFaults {
		f.Add(c.args)
	}
	f.Add(staleOf(IPv4))
	f.Add(staleOf(IPv6))
	f.Add("loss --percent 100.00% --node -- x")
	f.Add("drop --node=\u00a0 --dport 0x50")
	f.Fuzz(func(t *testing.T, line string) {
		got, err := Parse(strings.Split(line, " "))
		if err != nil {
			return
		}
		if err := got.Validate(); err != nil {
			t.Errorf("%q parses to %#v, which is invalid: %v", line, got, err)
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var again Fault
		if err := json.Unmarshal(text, &again); err != nil || again != got {
			t.Errorf("%q prints as %s, which parses as %q, %v", line, text, again, err)
		}
	})
}

// Another process can read the records, and a new ID is greater than all others.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	if got, err := List(filepath.Join(dir, "none")); got != nil || err != nil {
		t.Errorf("List of a missing directory returned %v, %v", got, err)
	}
	want := []Record{
		{ID: "2", Fault: mustParse(t, "drop --node w1"), Added: time.Unix(1, 0).UTC(), Status: Incomplete},
		{
			ID: "10", Fault: mustParse(t, "delay --by 30ms"), Added: time.Unix(2, 0).UTC(),
			Via: Queue, Holder: &Process{PID: 1, Start: 1}, Complete: true, Status: HolderGone,
		},
		{
			ID: "11", Fault: mustParse(t, "drop"), Added: time.Unix(3, 0).UTC(),
			Places: []Place{{Node: "w1", NetNS: "/none"}}, Complete: true, Status: NodeGone,
		},
		{ID: "12", Fault: mustParse(t, "drop"), Added: time.Unix(4, 0).UTC(), Complete: true, Status: Active},
	}
	for _, r := range want {
		if err := r.write(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, stranger := range []string{"x.json", "01.json", "0.json", "README"} {
		if err := os.WriteFile(filepath.Join(dir, stranger), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	if id, err := nextID(got); id != "13" || err != nil {
		t.Errorf("nextID returned %s, %v; want 13", id, err)
	}
	if id, err := nextID([]Record{{ID: "10000"}}); err == nil {
		t.Errorf("nextID after the greatest ID returned %s, want an error", id)
	}

	// A broken file is an error, and List still returns all other records.
	if err := os.WriteFile(filepath.Join(dir, "13.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := List(dir); err == nil || len(got) != len(want) {
		t.Errorf("List with a broken file returned %d records, %v; want %d and an error", len(got), err, len(want))
	}
	// Clear of all faults also removes broken records, but no other file.
	if _, err := Clear(t.Context(), dir, nil); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if diff := cmp.Diff([]string{"0.json", "01.json", "README", "x.json"}, left); diff != "" {
		t.Errorf("files after Clear (-want +got):\n%s", diff)
	}
	if _, err := Clear(t.Context(), dir, nil, "../x"); err == nil {
		t.Error("Clear accepted a path as an ID")
	}
}
