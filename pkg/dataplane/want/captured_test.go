// SPDX-License-Identifier: Apache-2.0

package want_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
	"github.com/checkplan/checkplan/pkg/nodestate"
)

// The files are rules that kube-proxy wrote into a kernel for testdata/cluster.yaml: those with a version in their names
// kube-proxy of that version, the others kube-proxy 1.35.6. TestCapturedVersions and TestCaptured of
// test/e2e/sandbox/kubeproxy write them anew (UPDATE=1).

func state(t *testing.T, node string) []*nodestate.ServiceEndpoints {
	t.Helper()
	text, err := os.ReadFile("testdata/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []json.RawMessage }
	if err := yaml.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	cluster, err := nodestate.New(nodestate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		var kind struct{ Kind string }
		var node corev1.Node
		var service corev1.Service
		var slice discoveryv1.EndpointSlice
		if err := json.Unmarshal(item, &kind); err != nil {
			t.Fatal(err)
		}
		object := map[string]any{"Node": &node, "Service": &service, "EndpointSlice": &slice}[kind.Kind]
		if err := json.Unmarshal(item, object); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "Node":
			cluster.SetNode(&node)
		case "Service":
			cluster.SetService(&service)
		case "EndpointSlice":
			cluster.SetSlice(&slice)
		}
	}
	return cluster.State(node)
}

func unpack(t *testing.T, name string) []byte {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join("testdata", name+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func dump(t *testing.T, name string) *netfilter.Dump {
	t.Helper()
	var d netfilter.Dump
	if err := json.Unmarshal(unpack(t, name), &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

func kernel(t *testing.T, name string) *ipvs.Kernel {
	t.Helper()
	var k ipvs.Kernel
	if err := json.Unmarshal(unpack(t, name), &k); err != nil {
		t.Fatal(err)
	}
	return &k
}

func parseIPVS(t *testing.T, k *ipvs.Kernel) dataplane.Table {
	t.Helper()
	have, err := ipvs.Parse(k)
	if err != nil {
		t.Fatal(err)
	}
	return have
}

// TestCaptured: the rules that kube-proxy wrote are what is wanted, on each node, in each mode and family.
func TestCaptured(t *testing.T) {
	for _, node := range []string{"node-a", "node-b", "node-c"} {
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			for _, row := range []struct {
				file string
				mode dataplane.Mode
				read func(name string) (dataplane.Table, bool)
			}{
				{"nftables-%s-%s.json", dataplane.NFTables, func(name string) (dataplane.Table, bool) { return nftables.Parse(dump(t, name)) }},
				{"iptables-nft-%s-%s.json", dataplane.IPTables, func(name string) (dataplane.Table, bool) { return iptables.Parse(dump(t, name)) }},
				{"iptables-legacy-%s-%s.json", dataplane.IPTables, func(name string) (dataplane.Table, bool) {
					var tables []netfilter.LegacyTable
					if err := json.Unmarshal(unpack(t, name), &tables); err != nil {
						t.Fatal(err)
					}
					have, ok, err := iptables.ParseLegacy(tables, family)
					if err != nil {
						t.Fatal(err)
					}
					return have, ok
				}},
				{"iptables-save-%s-%s.txt", dataplane.IPTables, func(name string) (dataplane.Table, bool) {
					return iptables.ParseSave(string(unpack(t, name)), family)
				}},
				{"ipvs-%s-%s.json", dataplane.IPVS, func(name string) (dataplane.Table, bool) { return parseIPVS(t, kernel(t, name)), true }},
				{"ipvs-legacy-%s-%s.json", dataplane.IPVS, func(name string) (dataplane.Table, bool) { return parseIPVS(t, kernel(t, name)), true }},
			} {
				name := fmt.Sprintf(row.file, node, family)
				if row.file == "ipvs-legacy-%s-%s.json" && node != "node-a" {
					continue // a virtual machine is slow, and the rules differ from the others by where they are only
				}
				t.Run(name, func(t *testing.T) {
					have, ok := row.read(name)
					if !ok || len(have.Unknown) > 0 || have.Mode != row.mode || have.Family != family {
						t.Fatalf("ok %v, mode %s, family %s, not understood: %q", ok, have.Mode, have.Family, have.Unknown)
					}
					wanted := want.Table(state(t, node), family, row.mode)
					if len(wanted.Frontends) < 80 {
						t.Fatalf("%d frontends, want 80 or more", len(wanted.Frontends))
					}
					for _, d := range dataplane.Compare(wanted, have) {
						t.Error(show(d))
					}
					// And the names are those of the rules, without which a difference could not name its Service. Virtual servers
					// have no names.
					for _, f := range have.Frontends {
						if f.Service == "" && f.Action != dataplane.Pass && row.mode != dataplane.IPVS {
							t.Errorf("%s from %s: no Service", f.Key, f.From)
						}
					}
				})
			}
		}
	}
}

// TestCapturedVersions: other versions of kube-proxy wrote the same, but for their known differences.
func TestCapturedVersions(t *testing.T) {
	// kube-proxy 1.31, mode nftables: what a Service without usable endpoints does is decided before source ranges are
	// compared, and before the node's own connections to a load balancer's address are forwarded.
	old := map[dataplane.Family][]string{
		dataplane.IPv4: {
			"action shop/local-elsewhere:http (drop, not forward); 203.0.113.14:80/TCP from node",
			"sources shop/sources-empty:https (all sources, not 198.51.100.0/24); 203.0.113.16:443/TCP from node",
		},
		dataplane.IPv6: {"action shop/local-elsewhere:http (drop, not forward); [2001:db8:f::14]:80/TCP from node"},
	}
	for _, version := range []string{"v1.31", "v1.33", "v1.36"} {
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			for _, row := range []struct {
				file  string
				mode  dataplane.Mode
				parse func(*netfilter.Dump) (dataplane.Table, bool)
			}{
				{"nftables", dataplane.NFTables, nftables.Parse},
				{"iptables-nft", dataplane.IPTables, iptables.Parse},
			} {
				name := fmt.Sprintf("%s-%s-node-a-%s.json", row.file, version, family)
				t.Run(name, func(t *testing.T) {
					have, ok := row.parse(dump(t, name))
					if !ok || len(have.Unknown) > 0 || have.Mode != row.mode || have.PodsBy != pods[family] {
						t.Fatalf("ok %v, mode %s, pods by %s, not understood: %q", ok, have.Mode, have.PodsBy, have.Unknown)
					}
					var wanted []string
					if version == "v1.31" && row.mode == dataplane.NFTables {
						wanted = old[family]
					}
					got := lines(dataplane.Compare(want.Table(state(t, "node-a"), family, row.mode), have))
					if diff := cmp.Diff(wanted, got); diff != "" {
						t.Errorf("(-want +got)\n%s", diff)
					}
				})
			}
		}
	}
}

// pods are the addresses of the pods of node-a.
var pods = map[dataplane.Family]string{dataplane.IPv4: "10.244.1.0/24", dataplane.IPv6: "fd00:244:1::/64"}

// show words a difference in one line.
func show(d dataplane.Difference) string {
	text := fmt.Sprintf("%s %s:%s", d.Kind, d.Service, d.PortName)
	if d.Endpoint.IsValid() {
		text += " " + d.Endpoint.String()
	}
	if d.Want != "" || d.Have != "" {
		text += fmt.Sprintf(" (%s, not %s)", d.Have, d.Want)
	}
	if d.Whole {
		text += " whole"
	}
	for _, p := range d.At {
		var from []string
		for _, o := range p.From {
			from = append(from, string(o))
		}
		text += fmt.Sprintf("; %s from %s", p.Key, strings.Join(from, " "))
	}
	return text
}

func lines(differences []dataplane.Difference) []string {
	var list []string
	for _, d := range differences {
		list = append(list, show(d))
	}
	return list
}

// rulesOf are the places of the rules of chains whose name begins with what is before the star, and has what is after
// it.
func rulesOf(t *testing.T, d *netfilter.Dump, chain string) []int {
	t.Helper()
	var list []int
	for i, r := range d.Rules {
		if prefix, has, _ := strings.Cut(chain, "*"); strings.HasPrefix(r.Chain, prefix) && strings.Contains(r.Chain, has) {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		t.Fatalf("no rules in a chain %s", chain)
	}
	return list
}

func set(t *testing.T, d *netfilter.Dump, name string) *netfilter.Set {
	t.Helper()
	for i := range d.Sets {
		if d.Sets[i].Name == name {
			return &d.Sets[i]
		}
	}
	t.Fatalf("no set %s", name)
	return nil
}

// element finds one by what its chain contains, or its comment.
func element(t *testing.T, s *netfilter.Set, has string) int {
	t.Helper()
	for i, e := range s.Elements {
		if strings.Contains(e.Verdict.Chain+" "+e.Comment, has) {
			return i
		}
	}
	t.Fatalf("no element %s in set %s", has, s.Name)
	return 0
}

func remove(t *testing.T, d *netfilter.Dump, chain string, rule int) {
	t.Helper()
	at := rulesOf(t, d, chain)[rule]
	d.Rules = slices.Delete(d.Rules, at, at+1)
}

// TestDamagedNFTables: what somebody changed in the rules of node-a is the one difference that is found.
func TestDamagedNFTables(t *testing.T) {
	for _, row := range []struct {
		name   string
		damage func(t *testing.T, d *netfilter.Dump)
		want   []string
	}{
		{"nothing", func(t *testing.T, d *netfilter.Dump) {}, nil},
		{"an endpoint's chain is empty", func(t *testing.T, d *netfilter.Dump) {
			for range 2 {
				remove(t, d, "endpoint-*shop/plain/tcp/http__10.244.2.5", 0)
			}
		}, []string{"endpointMissing shop/plain:http 10.244.2.5:8080; 10.96.0.1:80/TCP from outside pod node"}},
		{"the rule of an endpoint that rewrites the address", func(t *testing.T, d *netfilter.Dump) {
			remove(t, d, "endpoint-*shop/node-port/tcp/http__10.244.1.48/8080", 1)
		}, []string{"endpointMissing shop/node-port:http 10.244.1.48:8080; node port 30080/TCP from outside pod node; 10.96.0.12:80/TCP from outside pod node"}},
		{"the rule that marks connections of an endpoint to itself", func(t *testing.T, d *netfilter.Dump) {
			remove(t, d, "endpoint-*shop/plain/tcp/http__10.244.1.4", 0)
		}, []string{"hairpin shop/plain:http 10.244.1.4:8080; 10.96.0.1:80/TCP from pod"}},
		{"an element of service-ips", func(t *testing.T, d *netfilter.Dump) {
			s := set(t, d, "service-ips")
			i := element(t, s, "shop/plain/")
			s.Elements = slices.Delete(s.Elements, i, i+1)
		}, []string{"missing shop/plain:http (, not forward) whole; 10.96.0.1:80/TCP from outside pod node"}},
		{"an element of service-nodeports", func(t *testing.T, d *netfilter.Dump) {
			s := set(t, d, "service-nodeports")
			i := element(t, s, "shop/node-port/udp")
			s.Elements = slices.Delete(s.Elements, i, i+1)
		}, []string{"missing shop/node-port:stats (, not forward); node port 30053/UDP from outside pod node"}},
		{"an element of no-endpoint-services", func(t *testing.T, d *netfilter.Dump) {
			s := set(t, d, "no-endpoint-services")
			i := element(t, s, "shop/empty")
			s.Elements = slices.Delete(s.Elements, i, i+1)
		}, []string{"missing shop/empty:http (, not reject) whole; 10.96.0.6:80/TCP from outside pod node"}},
		{"drop instead of reject", func(t *testing.T, d *netfilter.Dump) {
			s := set(t, d, "no-endpoint-services")
			s.Elements[element(t, s, "shop/empty")].Verdict = &netfilter.Verdict{}
		}, []string{"action shop/empty:http (drop, not reject); 10.96.0.6:80/TCP from outside pod node"}},
		{"an element leads to another Service", func(t *testing.T, d *netfilter.Dump) {
			s := set(t, d, "service-ips")
			s.Elements[element(t, s, "shop/plain/")].Verdict.Chain = s.Elements[element(t, s, "shop/ports/tcp/metrics")].Verdict.Chain
		}, []string{"service shop/plain:http (shop/ports, not shop/plain); 10.96.0.1:80/TCP from outside pod node"}},
		{"an element for an address that no Service has", func(t *testing.T, d *netfilter.Dump) {
			s := set(t, d, "service-ips")
			e := s.Elements[element(t, s, "shop/plain/")]
			e.Key = slices.Clone(e.Key)
			e.Key[3] = 99
			s.Elements = append(s.Elements, e)
		}, []string{"extra shop/plain:http (forward, not ); 10.96.0.99:80/TCP from outside pod node"}},
		{"a number of the load balancer leads nowhere", func(t *testing.T, d *netfilter.Dump) {
			for i := range d.Sets {
				s := &d.Sets[i]
				if len(s.Elements) == 3 && s.Elements[0].Verdict != nil && strings.Contains(s.Elements[0].Verdict.Chain, "shop/plain/") {
					s.Elements = s.Elements[:2]
				}
			}
		}, []string{"endpointMissing shop/plain:http 10.244.3.6:8080; 10.96.0.1:80/TCP from outside pod node"}},
		{"the source ranges are not compared", func(t *testing.T, d *netfilter.Dump) {
			remove(t, d, "firewall-*shop/sources/tcp/https", 0)
		}, []string{"sources shop/sources:https (all sources, not 192.0.2.0/28 198.51.100.0/23 203.0.113.15/32); 203.0.113.15:443/TCP from outside pod node"}},
		{"the affinity of one endpoint is not compared", func(t *testing.T, d *netfilter.Dump) {
			for _, i := range rulesOf(t, d, "service-*shop/sticky/") {
				if r := d.Rules[i]; slices.ContainsFunc(r.Exprs, func(e netfilter.Expression) bool { return e.Name == "lookup" }) {
					d.Rules = slices.Delete(d.Rules, i, i+1)
					return
				}
			}
		}, []string{"affinity shop/sticky:http (not for all endpoints alike, not 600 s); 10.96.0.11:80/TCP from outside pod node"}},
		{"another timeout of affinity", func(t *testing.T, d *netfilter.Dump) {
			for i := range d.Sets {
				if strings.HasPrefix(d.Sets[i].Name, "affinity-") && strings.Contains(d.Sets[i].Name, "shop/sticky/") {
					d.Sets[i].Timeout = 60_000
				}
			}
		}, []string{"affinity shop/sticky:http (60 s, not 600 s); 10.96.0.11:80/TCP from outside pod node"}},
		{"external traffic keeps its source", func(t *testing.T, d *netfilter.Dump) { remove(t, d, "external-*shop/external-ip/tcp/http", 0) }, []string{"masquerade shop/external-ip:http (preserved, not rewritten); 203.0.113.30:80/TCP from outside pod node"}},
		{"the policy Local is not kept", func(t *testing.T, d *netfilter.Dump) {
			for _, i := range rulesOf(t, d, "external-*shop/local-here/") {
				r := &d.Rules[i]
				last := &r.Exprs[len(r.Exprs)-1]
				if bytes.Contains(last.Data, []byte("local-")) && len(r.Exprs) == 1 {
					for j, other := range d.Rules {
						if other.Chain == r.Chain && len(other.Exprs) > 1 && bytes.Contains(other.Exprs[len(other.Exprs)-1].Data, []byte("service-")) {
							*last = d.Rules[j].Exprs[len(other.Exprs)-1]
						}
					}
				}
			}
		}, []string{"endpointExtra shop/local-here:http 10.244.2.57:8080; node port 30082/TCP from outside"}},
		{"a rule of a kind that nobody knows, in one Service's chain", func(t *testing.T, d *netfilter.Dump) {
			i := rulesOf(t, d, "endpoint-*shop/unnamed/tcp/__")[0]
			d.Rules = slices.Insert(d.Rules, i, netfilter.Rule{Table: "kube-proxy", Chain: d.Rules[i].Chain, Handle: 7,
				Exprs: []netfilter.Expression{{Name: "quota"}, {Name: "counter"}}})
		}, []string{"unmeasured shop/unnamed: (table kube-proxy, chain endpoint-M5IMAZE5-shop/unnamed/tcp/__10.244.1.12/8080, rule 7: quota: not understood (quota, counter), not ); 10.96.0.3:443/TCP from outside pod node"}},
	} {
		t.Run(row.name, func(t *testing.T) { damaged(t, "nftables-node-a-IPv4.json", row.damage, row.want) })
	}
}

// TestDamagedNFTables136 is the same for the rules of kube-proxy 1.36, where these are different.
func TestDamagedNFTables136(t *testing.T) {
	for _, row := range []struct {
		name   string
		damage func(t *testing.T, d *netfilter.Dump)
		want   []string
	}{
		{"a number of the load balancer leads nowhere", func(t *testing.T, d *netfilter.Dump) {
			s := set(t, d, endpointsOf(t, d, "shop/plain/"))
			s.Elements = s.Elements[:len(s.Elements)-1]
		}, []string{"endpointMissing shop/plain:http 10.244.3.6:8080; 10.96.0.1:80/TCP from outside pod node"}},
		{"an endpoint has another port", func(t *testing.T, d *netfilter.Dump) {
			s := set(t, d, endpointsOf(t, d, "shop/plain/"))
			s.Elements[0].Data[5]++
		}, []string{"endpointPort shop/plain:http 10.244.1.4:8080 (8081, not 8080); 10.96.0.1:80/TCP from outside pod node"}},
		{"all connections go to the first endpoint", func(t *testing.T, d *netfilter.Dump) {
			s := set(t, d, endpointsOf(t, d, "shop/plain/"))
			for i := range s.Elements {
				s.Elements[i].Data = s.Elements[0].Data
			}
		}, []string{"endpointMissing shop/plain:http 10.244.2.5:8080; 10.96.0.1:80/TCP from outside pod node", "endpointMissing shop/plain:http 10.244.3.6:8080; 10.96.0.1:80/TCP from outside pod node"}},
		{"an endpoint is no address", func(t *testing.T, d *netfilter.Dump) {
			s := set(t, d, endpointsOf(t, d, "shop/plain/"))
			s.Elements[0].Data = s.Elements[0].Data[:3]
		}, []string{"unmeasured shop/plain:http (table kube-proxy, chain service-KMAT73PK-shop/plain/tcp/http, rule 131: nat: not understood (meta, cmp, numgen, lookup, nat), not ); 10.96.0.1:80/TCP from outside pod node"}},
		{"an element of hairpin-connections", func(t *testing.T, d *netfilter.Dump) {
			s := set(t, d, "hairpin-connections")
			i := slices.IndexFunc(s.Elements, func(e netfilter.SetElement) bool { return bytes.HasPrefix(e.Key, []byte{10, 244, 1, 4}) })
			s.Elements = slices.Delete(s.Elements, i, i+1)
		}, []string{"hairpin shop/plain:http 10.244.1.4:8080; 10.96.0.1:80/TCP from pod"}},
		{"the rule for connections of an endpoint to itself", func(t *testing.T, d *netfilter.Dump) { remove(t, d, "masquerading", 1) }, []string{"hairpin shop/hints:http 10.244.1.76:8080; 10.96.0.19:80/TCP from pod", "hairpin shop/internal-local:http 10.244.1.36:8080; 10.96.0.9:80/TCP from pod", "and 9 more"}},
		{"external traffic keeps its source", func(t *testing.T, d *netfilter.Dump) { remove(t, d, "external-*shop/external-ip/tcp/http", 0) }, []string{"masquerade shop/external-ip:http (preserved, not rewritten); 203.0.113.30:80/TCP from outside pod node"}},
	} {
		t.Run(row.name, func(t *testing.T) { damaged(t, "nftables-v1.36-node-a-IPv4.json", row.damage, row.want) })
	}
}

// endpointsOf is the name of the map that the rule of a Service's chain chooses an endpoint from.
func endpointsOf(t *testing.T, d *netfilter.Dump, service string) string {
	t.Helper()
	for _, i := range rulesOf(t, d, "service-*"+service) {
		for _, e := range d.Rules[i].Exprs {
			if at := bytes.Index(e.Data, []byte("__map")); e.Name == "lookup" && at >= 0 {
				name, _, _ := bytes.Cut(e.Data[at:], []byte{0})
				return string(name)
			}
		}
	}
	t.Fatalf("no map of endpoints of %s", service)
	return ""
}

// damaged compares rules that somebody changed with what is wanted.
func damaged(t *testing.T, file string, damage func(*testing.T, *netfilter.Dump), wanted []string) {
	t.Helper()
	d := dump(t, file)
	damage(t, d)
	have, _ := nftables.Parse(d)
	got := lines(dataplane.Compare(want.Table(state(t, "node-a"), dataplane.IPv4, dataplane.NFTables), have))
	if len(got) > 4 {
		got = append(got[:2], fmt.Sprintf("and %d more", len(got)-2))
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestDamagedIPTables is the same for the mode iptables: lines of iptables-save that have a text are removed, or
// changed.
func TestDamagedIPTables(t *testing.T) {
	for _, row := range []struct {
		name, line string
		with       string // instead of the line; empty: removed
		want       []string
	}{
		{"one endpoint's balancing", `KUBE-SVC-.*shop/plain:http -> 10.244.2.5:8080`, "", []string{"endpointMissing shop/plain:http 10.244.2.5:8080; 10.96.0.1:80/TCP from outside pod node"}},
		{"the last endpoint's", `KUBE-SVC-.*shop/plain:http -> 10.244.3.6:8080`, "", []string{"endpointMissing shop/plain:http 10.244.3.6:8080; 10.96.0.1:80/TCP from outside pod node"}},
		{"an endpoint's rewriting", `KUBE-SEP-.*--to-destination 10.244.2.5:8080`, "", []string{"endpointMissing shop/plain:http 10.244.2.5:8080; 10.96.0.1:80/TCP from outside pod node"}},
		{"an endpoint's rewriting, to another port", `(.*KUBE-SEP-.*--to-destination 10.244.2.5:)8080`, "${1}9999", []string{"endpointPort shop/plain:http 10.244.2.5:8080 (9999, not 8080); 10.96.0.1:80/TCP from outside pod node"}},
		{"a cluster IP", `-A KUBE-SERVICES.*shop/plain:http cluster IP`, "", []string{"missing shop/plain:http (, not forward) whole; 10.96.0.1:80/TCP from outside pod node"}},
		{"a node port", `-A KUBE-NODEPORTS.*shop/node-port:stats"? `, "", []string{"missing shop/node-port:stats (, not forward); node port 30053/UDP from outside pod node"}},
		{"a Service without endpoints", `-A KUBE-SERVICES.*shop/empty:http has no endpoints`, "", []string{"missing shop/empty:http (, not reject) whole; 10.96.0.6:80/TCP from outside pod node"}},
		{"drop instead of reject", `(.*-A KUBE-SERVICES.*shop/empty:http has no endpoints.*) -j REJECT.*`, "$1 -j DROP", []string{"action shop/empty:http (drop, not reject); 10.96.0.6:80/TCP from outside pod node"}},
		{"the firewall", `-A KUBE-PROXY-FIREWALL.*shop/sources:https`, "", []string{"sources shop/sources:https (pass elsewhere, not drop elsewhere); 203.0.113.15:443/TCP from outside pod node"}},
		{"a source range", `-A KUBE-FW-.* -s 198.51.100.0/24 `, "", []string{"sources shop/sources:https (192.0.2.0/28 198.51.101.0/24 203.0.113.15/32, not 192.0.2.0/28 198.51.100.0/23 203.0.113.15/32); 203.0.113.15:443/TCP from outside pod node"}},
		{"pods of the node, and the policy Local", `-A KUBE-EXT-.*"pod traffic for shop/local-here:http`, "", []string{"endpointMissing shop/local-here:http 10.244.2.57:8080; node port 30082/TCP from pod"}},
		{"affinity", `-A KUBE-SVC-.*shop/sticky:http -> .*recent`, "", []string{"affinity shop/sticky:http (not for all endpoints alike, not 600 s); 10.96.0.11:80/TCP from outside pod node"}},
		{"the jump to all Services for packets from elsewhere", `-A PREROUTING .*KUBE-SERVICES`, "", []string{"action shop/both-local:http (drop, not forward); node port 30084/TCP from pod", "missing shop/external-ip:http (, not forward); 10.96.0.18:80/TCP from outside pod; 203.0.113.30:80/TCP from outside pod", "and 18 more"}},
		{"masquerading", `-A KUBE-POSTROUTING .*MASQUERADE`, "", []string{"masquerade shop/both-local:http (preserved, not rewritten); node port 30084/TCP from node", "masquerade shop/external-ip:http (preserved, not rewritten); 203.0.113.30:80/TCP from outside pod node", "and 17 more"}},
		{"a word that nobody knows", `(-A KUBE-SEP-)(.*--to-destination 10.244.2.5:8080)`, "${1}$2 --persistent", []string{"unmeasured shop/plain:http (table nat: -A KUBE-SEP-XJJACS233KSMPCQH -p tcp -m comment --comment \"shop/plain:http\" -m tcp -j DNAT --to-destination 10.244.2.5:8080 --persistent, not ); 10.96.0.1:80/TCP from outside pod node"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			pattern := regexp.MustCompile(row.line)
			var kept []string
			found := 0
			for line := range strings.Lines(string(unpack(t, "iptables-save-node-a-IPv4.txt"))) {
				if !pattern.MatchString(line) {
					kept = append(kept, line)
					continue
				}
				found++
				if row.with != "" {
					kept = append(kept, pattern.ReplaceAllString(line, row.with))
				}
			}
			if found == 0 {
				t.Fatalf("no line has %s", row.line)
			}
			have, _ := iptables.ParseSave(strings.Join(kept, ""), dataplane.IPv4)
			got := lines(dataplane.Compare(want.Table(state(t, "node-a"), dataplane.IPv4, dataplane.IPTables), have))
			if len(got) > 4 {
				got = append(got[:2], fmt.Sprintf("and %d more", len(got)-2))
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
