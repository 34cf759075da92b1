// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// address is an address of a Service that nodes may measure. All nodes have the same ones, but the host of a node port
// is each node's own.
type address struct {
	service, port string
	kind          Address
	family        checkup.IPFamily
	host          string // empty for NodePort
	number        int
	endpoints     int
	state         string
	expected      servicecheck.Expectation
	// local says that expected differs between nodes.
	local bool
}

// Expand returns the worksheet of a services check for the cluster of the snapshot, and warnings, one line each. It is
// pure: the same plan, snapshot and round give the same worksheet. The round counts from 0 and is taken modulo the
// number of rounds.
//
// An error says that nothing can be measured, or that plan and snapshot do not match.
func Expand(p *checkup.Plan, check string, s *cluster.Snapshot, round int) (*checkup.Worksheet, []string, error) {
	w, warnings, err := expand(p, check, s, round)
	if err != nil {
		return nil, nil, fmt.Errorf("check %q: %w", check, err)
	}
	return w, warnings, nil
}

func expand(p *checkup.Plan, check string, s *cluster.Snapshot, round int) (*checkup.Worksheet, []string, error) {
	spec, ok := p.Checks[check].Spec.(*Spec)
	if !ok {
		return nil, nil, fmt.Errorf("plan %s has no services check of that name", p.Name)
	}
	if spec.Probe.Count < 1 || spec.Sample.Budget < 1 || spec.Sample.Degree < 0 || round < 0 {
		return nil, nil, errors.New("probe.count and sample.budget must be at least 1, sample.degree and sample.round at least 0")
	}
	nodes, tolerations, warnings, err := servicecheck.Sources(spec.Placement, s)
	if err != nil {
		return nil, nil, err
	}
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	chosen, err := spec.Services.Choose(s)
	if err != nil {
		return nil, nil, err
	}
	states, err := statesOf(chosen)
	if err != nil {
		return nil, nil, err
	}
	served := states.all.State("")
	if left := leftOut(spec, chosen, served, nodes); left != "" {
		warn("not measured: %s", left)
	}
	all := addressesOf(spec, chosen, served)
	if len(all) == 0 {
		return nil, nil, fmt.Errorf("none of %s has a TCP port at an address that the plan measures (%v): "+
			"see services, addresses and ipFamilies", checkup.Count(len(chosen.ServiceObjects), "Service"), spec.Addresses)
	}

	w := &checkup.Worksheet{
		Plan: p.Name, Check: check, Kind: Name, Seed: kind.Seed(p.Name, check), Budget: spec.Sample.Budget,
		Probes: []checkup.TransportProbe{{Transport: checkup.TCP, Probe: checkup.Probe{
			Sizes: []int{0}, Count: spec.Probe.Count, Interval: spec.Probe.Interval, Timeout: spec.Probe.Timeout,
		}}},
		Expect: checkup.Expect{Loss: spec.Expect.Loss, Latency: spec.Expect.Latency},
		Limits: spec.Limits, Resources: spec.Resources, Timeouts: spec.Timeouts,
	}
	if spec.Sample.Seed != nil {
		w.Seed = *spec.Sample.Seed
	}
	if len(nodes) > spec.Sample.Budget {
		return nil, nil, fmt.Errorf("sample.budget: %s is not enough for one address from each of %s: "+
			"raise it, or admit fewer nodes by placement", checkup.Count(spec.Sample.Budget, "pair"), checkup.Count(len(nodes), "node"))
	}
	sampled := servicecheck.SampleOf(w.Seed, round, spec.Sample.Degree, spec.Sample.Budget, len(nodes), len(all))
	w.Degree, w.Round, w.Rounds, w.Possible = sampled.Degree, sampled.Round, sampled.Rounds, len(nodes)*len(all)
	if want := spec.Sample.Degree; sampled.Degree < len(all) && (want == 0 || want > sampled.Degree) {
		warn("sample.budget (%s) allows %d of %d addresses from each of %s: raise it, or rotate the sample",
			checkup.Count(spec.Sample.Budget, "pair"), sampled.Degree, len(all), checkup.Count(len(nodes), "node"))
	}

	sheet := Sheet{Closed: spec.Expect.Closed}
	if sheet.Listings, err = spec.Services.Listings(); err != nil {
		return nil, nil, err
	}
	if sheet.Closed == "" {
		sheet.Closed = servicecheck.ClosedExact
	}
	write(w, &sheet, nodes, tolerations, all, sampled.Assignments, states)
	if w.CountPairs() == 0 {
		return nil, nil, errors.New("no node has an address at which a node port answers: see addresses and ipFamilies")
	}
	if w.Details, err = json.Marshal(sheet); err != nil {
		return nil, nil, err
	}
	if expected := cost.ExpectedProbe(w); expected > w.AgentDeadline() {
		warn("probing takes about %v, but agents have %v of timeouts.probe (%v): later pairs are unmeasured: "+
			"raise it or limits.packetsPerSecond, or lower sample.degree",
			time.Duration(expected).Round(time.Second), w.AgentDeadline(), w.Timeouts.Probe)
	}
	return w, warnings, nil
}

// leftOut counts what no address of the selected Services stands for, in the families and kinds of addresses that the
// plan measures; empty if there is nothing. served are the selected Services that proxies serve, and nodes the sources.
func leftOut(
	spec *Spec, s *cluster.Snapshot, served []*nodestate.ServiceEndpoints, nodes []cluster.Node,
) string {
	ports, nodePorts, limited := map[nodestate.Protocol]int{}, map[checkup.IPFamily]bool{}, 0
	for _, m := range served {
		counted := false // the ports of all families are the same
		for _, f := range m.Families {
			family := checkup.IPFamily(f.Family)
			if !spec.wants(family) {
				continue
			}
			for _, p := range f.Ports {
				if !counted {
					ports[p.Protocol]++
				}
				nodePorts[family] = nodePorts[family] || p.NodePort != 0
			}
			counted = true
			if len(f.LoadBalancerSources) > 0 {
				limited += len(f.LoadBalancerIPs)
			}
		}
	}
	var all []string
	add := func(n int, noun, why string) {
		if n > 0 {
			all = append(all, strings.TrimSuffix(checkup.Count(n, noun)+" ("+why+")", " ()"))
		}
	}
	add(ports[nodestate.UDP], "UDP port", "")
	add(ports[nodestate.SCTP], "SCTP port", "")
	if slices.Contains(spec.Addresses, ExternalIP) {
		add(limited, "load balancer IP", "source ranges")
		proxied := 0
		for i := range s.ServiceObjects {
			for _, ingress := range s.ServiceObjects[i].Status.LoadBalancer.Ingress {
				if ingress.IPMode != nil && *ingress.IPMode != corev1.LoadBalancerIPModeVIP {
					proxied++
				}
			}
		}
		add(proxied, "load balancer IP", "not served by nodes: ipMode Proxy")
	}
	if slices.Contains(spec.Addresses, NodePort) {
		for _, family := range checkup.IPFamilies {
			without := 0
			for _, n := range nodes {
				if nodePorts[family] && hostOf(n, family) == "" {
					without++
				}
			}
			add(without, "node", fmt.Sprintf("node ports only: no internal %s address", family))
		}
	}
	add(len(s.ServiceObjects)-len(served), "Service", "not served by nodes: headless, ExternalName, or another proxy's")
	return strings.Join(all, ", ")
}

// addressesOf lists the addresses of TCP ports that the plan measures, in the order of Services, families, ports and
// kinds. An address that the load balancer serves to some sources only is left out: what it does depends on addresses
// that pods get later. leftOut counts those.
func addressesOf(spec *Spec, s *cluster.Snapshot, served []*nodestate.ServiceEndpoints) []address {
	digest := servicecheck.Digests(s.ServiceObjects, s.EndpointSlices)
	var all []address
	for _, m := range served {
		service := m.Namespace + "/" + m.Name
		for _, f := range m.Families {
			family := checkup.IPFamily(f.Family)
			if !spec.wants(family) {
				continue
			}
			for _, p := range f.Ports {
				if p.Protocol != nodestate.TCP {
					continue
				}
				add := func(kind Address, host string, number int32, action nodestate.Action) {
					if slices.Contains(spec.Addresses, kind) {
						all = append(all, address{
							service: service, port: p.Name, kind: kind, family: family, host: host, number: int(number),
							endpoints: len(p.Endpoints), state: digest.Of(service, family), expected: expectation(action),
							local: kind == ClusterIP && m.InternalTrafficToLocal,
						})
					}
				}
				add(ClusterIP, f.ClusterIP, p.Port, p.Internal)
				if p.NodePort != 0 {
					add(NodePort, "", p.NodePort, p.Inside)
				}
				external := slices.Clone(f.ExternalIPs)
				if len(f.LoadBalancerSources) == 0 {
					external = append(external, f.LoadBalancerIPs...)
				}
				slices.Sort(external)
				for _, host := range slices.Compact(external) {
					add(ExternalIP, host, p.Port, p.Inside)
				}
			}
		}
	}
	return all
}

// write fills in sources, targets and assignments of the worksheet, and what the sheet has of them. sampled has the
// indexes of the addresses of each node.
func write(w *checkup.Worksheet, sheet *Sheet, nodes []cluster.Node, tolerations []checkup.Toleration, all []address,

	sampled [][]int, states *states,
) {
	type target struct {
		checkup.Endpoint
		Target
	}
	type place struct {
		address int
		node    string
	}
	var targets []target
	at := map[place]int{}
	type pair struct {
		target   int
		expected servicecheck.Expectation
	}
	assigned, zones := make([][]pair, len(nodes)), examples(nodes)
	for i, n := range nodes {
		w.Sources = append(w.Sources, checkup.Endpoint{
			Node: n.Name, NodeUID: n.UID, Zone: zoneOf(n), Tolerations: tolerations,
		})
		var internal map[portKey]servicecheck.Expectation
		for _, index := range sampled[i] {
			a, key := all[index], place{address: index}
			if a.kind == NodePort {
				key.node = n.Name
				if a.host = hostOf(n, a.family); a.host == "" {
					continue // the node has no address of the family
				}
			}
			if a.local {
				if internal == nil {
					internal = states.internal(n.Name)
				}
				a.expected = internal[portKey{a.service, a.port, a.family}]
			}
			if _, ok := at[key]; !ok {
				at[key] = len(targets)
				peer := &checkup.Peer{Host: a.host, Port: a.number, Family: a.family, Transport: checkup.TCP}
				targets = append(targets, target{
					checkup.Endpoint{Node: key.node, Label: a.service + " " + peer.Address(), Peer: peer},
					Target{
						Service: a.service, Port: a.port, Address: a.kind, Endpoints: a.endpoints, State: a.state,
						Why: states.why(&a, zones),
					},
				})
			}
			assigned[i] = append(assigned[i], pair{at[key], a.expected})
		}
	}
	order := make([]int, len(targets))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(targets[a].Node, targets[b].Node), cmp.Compare(targets[a].Label, targets[b].Label))
	})
	index := make([]int, len(targets))
	for i, was := range order {
		index[was] = i
		w.Targets = append(w.Targets, targets[was].Endpoint)
		sheet.Targets = append(sheet.Targets, targets[was].Target)
	}
	for _, pairs := range assigned {
		for i := range pairs {
			pairs[i].target = index[pairs[i].target]
		}
		slices.SortFunc(pairs, func(a, b pair) int { return cmp.Compare(a.target, b.target) })
		assignment, expected := make([]int, len(pairs)), make([]byte, len(pairs))
		for i, p := range pairs {
			assignment[i], expected[i] = p.target, byte(p.expected)
		}
		w.Assignments, sheet.Expected = append(w.Assignments, assignment), append(sheet.Expected, string(expected))
	}
	for _, f := range checkup.IPFamilies {
		if slices.ContainsFunc(w.Targets, func(e checkup.Endpoint) bool { return e.Peer.Family == f }) {
			w.IPFamilies = append(w.IPFamilies, f)
		}
	}
}

func zoneOf(n cluster.Node) string { return n.Labels[corev1.LabelTopologyZone] }

// hostOf returns the first internal address of a node of a family, at which node ports answer in every configuration of
// kube-proxy but one with other prefixes in --nodeport-addresses; empty if it has none.
func hostOf(n cluster.Node, family checkup.IPFamily) string {
	for _, ip := range n.InternalIPs {
		if f, ok := cluster.FamilyOf(ip); ok && f == family {
			return ip
		}
	}
	return ""
}
