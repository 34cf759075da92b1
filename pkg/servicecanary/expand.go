// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Names of the Services. endpointsService is headless: its EndpointSlices name the endpoints that are measured by
// themselves.
const (
	endpointsService = "endpoints"
	notReadyService  = "not-ready"
	hairpinService   = "hairpin"
)

// fixtures are the Services of each policy.
var fixtures = map[Policy][]checkup.ServiceFixture{
	ClusterIP:           {{Name: "cluster-ip"}},
	InternalLocal:       {{Name: "internal-local", InternalLocal: true}},
	SessionAffinity:     {{Name: "session-affinity", ClientIP: 10}},
	NodePort:            {{Name: "node-port", NodePort: true}},
	ExternalLocal:       {{Name: "external-local", NodePort: true, ExternalLocal: true}},
	PublishNotReady:     {{Name: "publish-not-ready", PublishNotReady: true}, {Name: notReadyService}},
	TrafficDistribution: {{Name: "prefer-close", Distribution: corev1.ServiceTrafficDistributionPreferClose}},
	Hairpin:             {{Name: hairpinService, InternalLocal: true}},
	EndpointLeaves:      {{Name: "endpoint-leaves"}},
	Terminating:         {{Name: "terminating"}},
}

// Sheet is what the worksheet's Details have.
type Sheet struct {
	// Closed and Share are the plan's.
	Closed servicecheck.Closed `json:"closed"`
	Share  Share               `json:"share"`
}

// SheetOf decodes the Details of a worksheet.
func SheetOf(w *checkup.Worksheet) (*Sheet, error) {
	var s Sheet
	if err := json.Unmarshal(w.Details, &s); err != nil {
		return nil, fmt.Errorf("read the details of the worksheet: %w", err)
	}
	return &s, nil
}

// Expand returns the worksheet of a serviceCanary check for the cluster of the snapshot, and warnings, one line each.
// It is pure: the same plan and snapshot give the same worksheet.
//
// An error says that nothing can be measured, or that it would be too much.
func Expand(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
	w, warnings, err := expand(p, check, s)
	if err != nil {
		return nil, nil, fmt.Errorf("check %q: %w", check, err)
	}
	return w, warnings, nil
}

func expand(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
	spec, ok := p.Checks[check].Spec.(*Spec)
	if !ok {
		return nil, nil, fmt.Errorf("plan %s has no %s check of that name", p.Name, Name)
	}
	if spec.Probe.Count < 1 || spec.Budget < 1 || spec.Endpoints < 1 {
		return nil, nil, errors.New("probe.count, budget and endpoints must be at least 1")
	}
	nodes, tolerations, warnings, err := servicecheck.Sources(spec.Placement, s)
	if err != nil {
		return nil, nil, err
	}
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	w := &checkup.Worksheet{
		Plan: p.Name, Check: check, Kind: Name, Seed: kind.Seed(p.Name, check), Rounds: 1, Budget: spec.Budget,
		IPFamilies: families(spec, nodes),
		Probes: []checkup.TransportProbe{
			{Transport: checkup.TCP, Probe: probe(spec, 0)},
			{Transport: checkup.UDP, Probe: probe(spec, checkup.MinIdentifySize)},
		},
		Expect: checkup.Expect{Loss: spec.Expect.Loss, Latency: spec.Expect.Latency},
		Limits: spec.Limits, Resources: spec.Resources, Timeouts: spec.Timeouts,
	}
	if len(w.IPFamilies) == 0 {
		return nil, nil, errors.New("ipFamilies: pod CIDRs and internal addresses of the nodes do not show the IP families of " +
			"their pods: set ipFamilies")
	}
	sheet := Sheet{
		Closed: cmp.Or(spec.Expect.Closed, servicecheck.ClosedExact), Share: cmp.Or(spec.Expect.Share, ShareEven),
	}
	if w.Details, err = json.Marshal(sheet); err != nil {
		return nil, nil, err
	}
	with := endpointNodes(w.Seed, nodes, spec.Endpoints)
	if len(with) < spec.Endpoints {
		warn("endpoints: %d, but %s ready: each responder has a node of its own", spec.Endpoints,
			checkup.CountAre(len(with), "node"))
	}
	write(w, spec, nodes, with, tolerations)
	w.Possible = 0
	for _, targets := range w.Assignments {
		w.Possible += len(targets)
	}
	if n := w.CountPairs(); n > spec.Budget {
		return nil, nil, fmt.Errorf("budget: %s are not enough for the %d of %s: raise it, admit fewer nodes by placement, or "+
			"leave out policies", checkup.Count(spec.Budget, "pair"), n, checkup.Count(len(nodes), "node"))
	}
	if need := leastCount(w, len(with), w.CountPairs()); sheet.Share == ShareEven && spec.Probe.Count < need {
		warn("probe.count: with %d, an endpoint of %d may be missed by chance, and a pair be undecided: want %d", spec.Probe.Count,
			len(with), need)
	}
	if expected := cost.ExpectedProbe(w); expected > w.AgentDeadline() {
		warn("probing takes about %v, but agents have %v of timeouts.probe (%v): later pairs are unmeasured: "+
			"raise it or limits.packetsPerSecond, or lower probe.count",
			time.Duration(expected).Round(time.Second), w.AgentDeadline(), w.Timeouts.Probe)
	}
	return w, warnings, nil
}

func probe(spec *Spec, size int) checkup.Probe {
	return checkup.Probe{
		Sizes: []int{size}, Count: spec.Probe.Count, Interval: spec.Probe.Interval, Timeout: spec.Probe.Timeout,
	}
}

// leastCount is the least number of measurements of a pair that shows an endpoint which is never reached, of so many,
// in a check of so many pairs.
func leastCount(w *checkup.Worksheet, endpoints, pairs int) int {
	if endpoints < 2 {
		return 1
	}
	level := judge.Level(w, 2*endpoints*pairs)
	return int(math.Ceil(math.Log(level) / math.Log(1-1/float64(endpoints))))
}

// families are those of the plan, or those that the nodes' pods have.
func families(spec *Spec, nodes []cluster.Node) []checkup.IPFamily {
	shown := map[checkup.IPFamily]bool{}
	for _, of := range []func(cluster.Node) []string{
		func(n cluster.Node) []string { return n.PodCIDRs },
		func(n cluster.Node) []string { return n.InternalIPs },
	} {
		for _, n := range nodes {
			for _, address := range of(n) {
				if f, ok := cluster.FamilyOf(address); ok {
					shown[f] = true
				}
			}
		}
		if len(shown) > 0 {
			break
		}
	}
	return slices.DeleteFunc(slices.Clone(checkup.IPFamilies), func(f checkup.IPFamily) bool {
		return len(spec.IPFamilies) == 0 && !shown[f] || len(spec.IPFamilies) > 0 && !slices.Contains(spec.IPFamilies, f)
	})
}

// endpointNodes are up to n nodes that are ready, in an order of the seed: as many of each zone as of the others, as
// far as there are.
func endpointNodes(seed uint64, nodes []cluster.Node, n int) []cluster.Node {
	left := slices.DeleteFunc(slices.Clone(nodes), func(n cluster.Node) bool { return n.Ready != corev1.ConditionTrue })
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(left), func(a, b int) { left[a], left[b] = left[b], left[a] })
	taken := map[string]int{} // by zone
	zone := func(n cluster.Node) string { return n.Labels[corev1.LabelTopologyZone] }
	var chosen []cluster.Node
	for len(chosen) < n && len(left) > 0 {
		best := 0
		for i := range left {
			if taken[zone(left[i])] < taken[zone(left[best])] {
				best = i
			}
		}
		taken[zone(left[best])]++
		chosen, left = append(chosen, left[best]), slices.Delete(left, best, best+1)
	}
	return chosen
}

// write fills in the Services, sources, targets and assignments of the worksheet.
func write(w *checkup.Worksheet, spec *Spec, nodes, with []cluster.Node, tolerations []checkup.Toleration) {
	w.Services = []checkup.ServiceFixture{{Name: endpointsService, Headless: true, PublishNotReady: true}}
	all := []string{endpointsService}
	var some, one, leaves, terminates []string
	for _, p := range Policies {
		if !spec.has(p) {
			continue
		}
		for _, s := range fixtures[p] {
			w.Services = append(w.Services, s)
			switch p {
			case InternalLocal: // some nodes have no endpoint
				some = append(some, s.Name)
			case ExternalLocal: // one node has an endpoint
				one = append(one, s.Name)
			case EndpointLeaves:
				leaves = append(leaves, s.Name)
			case Terminating:
				terminates = append(terminates, s.Name)
			case PublishNotReady, Hairpin:
			default:
				all = append(all, s.Name)
			}
		}
	}
	responder := func(n cluster.Node) checkup.Endpoint {
		return checkup.Endpoint{Node: n.Name, Tolerations: tolerations}
	}
	labelled := func(e checkup.Endpoint) checkup.Endpoint {
		e.Label = "endpoint " + endpointOn(e)
		return e
	}
	var everyone []checkup.Endpoint
	for i, n := range with {
		e := responder(n)
		e.In = slices.Clone(all)
		if i < (len(with)+1)/2 {
			e.In = append(e.In, some...)
		}
		if i == 0 {
			e.In = append(e.In, one...)
		}
		if i == len(with)-1 {
			e.Joins = slices.Concat(leaves, terminates)
		}
		everyone = append(everyone, labelled(e))
	}
	if len(with) > 0 {
		// Every Service selects it, but it is an endpoint only where publishNotReadyAddresses says so.
		e := responder(with[len(with)-1])
		e.In, e.NeverReady = slices.Concat(all, some, one), true
		if spec.has(PublishNotReady) {
			for _, s := range fixtures[PublishNotReady] {
				e.In = append(e.In, s.Name)
			}
			everyone = append(everyone, labelled(e))
		}
	}
	ports := map[string]checkup.Endpoint{} // node ports of one node, by label
	asked := make([][]string, len(nodes))  // labels of those that a node asks
	asks := askedNodes(w.Seed, nodes, with, spec.Expect.Closed)
	for _, s := range w.Services[1:] {
		if !s.NodePort {
			everyone = append(everyone, checkup.Endpoint{Label: s.Name, OfService: s.Name})
			continue
		}
		for i := range nodes {
			for _, n := range asks(i, s.ExternalLocal) {
				if hosts := hostsOf(n, w.IPFamilies); len(hosts) > 0 {
					e := checkup.Endpoint{Node: n.Name, Label: s.Name + " at " + n.Name, OfService: s.Name, Hosts: hosts}
					ports[e.Label], asked[i] = e, append(asked[i], e.Label)
				}
			}
		}
	}
	w.Targets = slices.AppendSeq(slices.Clone(everyone), maps.Values(ports))
	if in := slices.Concat(leaves, terminates); len(in) > 0 && len(with) > 0 {
		// No node measures it by itself: it ends.
		e := responder(with[0])
		e.In, e.Leaves, e.Ends = in, leaves, len(terminates) > 0
		w.Targets = append(w.Targets, labelled(e))
	}
	slices.SortFunc(w.Targets, func(a, b checkup.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Label, b.Label))
	})
	index := map[string]int{}
	for i, t := range w.Targets {
		index[t.Label] = i
	}
	for i, n := range nodes {
		source := checkup.Endpoint{Node: n.Name, Zone: n.Labels[corev1.LabelTopologyZone], Tolerations: tolerations}
		if spec.has(Hairpin) {
			source.In = []string{hairpinService}
		}
		if spec.has(ExternalLocal) {
			source.Exits = n.InternalIPs
		}
		var assigned []int
		for _, t := range everyone {
			assigned = append(assigned, index[t.Label])
		}
		for _, label := range asked[i] {
			assigned = append(assigned, index[label])
		}
		slices.Sort(assigned)
		w.Sources, w.Assignments = append(w.Sources, source), append(w.Assignments, assigned)
	}
}

// endpointOn words which endpoint a responder is: "on worker-1", "that is not ready, on worker-1".
func endpointOn(e checkup.Endpoint) string {
	switch {
	case e.NeverReady:
		return "that is not ready, on " + e.Node
	case len(e.Leaves) > 0 || e.Ends:
		return "that leaves, on " + e.Node
	default:
		return "on " + e.Node
	}
}

// askedNodes returns a function that says at which nodes the one of an index asks node ports. These are the node itself
// and another one, or, for a policy Local, one that has the only endpoint, and one that has none: never the node
// itself, because a proxy need not recognise the pods of its node, for which the policy does not count. The seed puts
// the nodes in a ring, in which each node asks the next one. So each is asked, and there are at most two pairs of nodes
// for each. With servicecheck.ClosedAny, none without an endpoint is asked for a policy Local: other proxies may serve
// clients in the cluster there, as that of Cilium does, which decides at the client's node.
func askedNodes(
	seed uint64, nodes, with []cluster.Node, closed servicecheck.Closed,
) func(i int, local bool) []cluster.Node {
	ring := rand.New(rand.NewPCG(seed, 1)).Perm(len(nodes))
	at := make([]int, len(nodes)) // in the ring, by index
	for k, i := range ring {
		at[i] = k
	}
	return func(i int, local bool) []cluster.Node {
		var asked []cluster.Node
		endpoint := ""
		switch {
		case !local:
			asked = append(asked, nodes[i])
		case len(with) > 0:
			if endpoint = with[0].Name; endpoint != nodes[i].Name {
				asked = append(asked, with[0])
			}
		}
		if local && closed == servicecheck.ClosedAny {
			return asked
		}
		for k := 1; k < len(ring); k++ {
			next := nodes[ring[(at[i]+k)%len(ring)]]
			if next.Ready == corev1.ConditionTrue && next.Name != endpoint {
				return append(asked, next)
			}
		}
		return asked
	}
}

// hostsOf returns the first internal address of a node of each family, at which node ports answer in every
// configuration of kube-proxy but one with other prefixes in --nodeport-addresses.
func hostsOf(n cluster.Node, families []checkup.IPFamily) map[checkup.IPFamily]string {
	hosts := map[checkup.IPFamily]string{}
	for _, ip := range n.InternalIPs {
		if f, ok := cluster.FamilyOf(ip); ok && hosts[f] == "" && slices.Contains(families, f) {
			hosts[f] = ip
		}
	}
	return hosts
}
