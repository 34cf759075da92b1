// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Expand returns the worksheet of a controlPlane check for the cluster of the
// snapshot, and warnings, one line each. It is pure: the same plan and snapshot
// give the same worksheet.
//
// What the pairs need and the snapshot does not have is on the worksheet, too: as a
// target without a Peer, as a source without a Node. Their pairs are expected, and
// will be unmeasured.
//
// An error says that nothing can be measured, or that plan and snapshot do not
// match. It has every reason.
func Expand(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
	x, err := expand(p, check, s)
	if err != nil {
		return nil, nil, fmt.Errorf("check %q: %w", check, err)
	}
	return x.worksheet, x.warnings, nil
}

// expansion is the state of Expand.
type expansion struct {
	layout
	check *Spec
	s     *cluster.Snapshot
	seed  uint64

	nodes     map[string]*cluster.Node // by name
	addresses map[netip.Addr]string    // names of nodes, by their internal addresses
	facets    map[string]*facet        // by ComponentPair.To, those computed so far
	sources   map[string][]*source     // by role, those computed so far
	pods      map[string]*source       // by the pod that they stand for
	balancers map[string]*target       // load balancers, by host:port

	worksheet *checkup.Worksheet
	warnings  []string
	problems  []error
}

// facet is the targets of a pair's To.
type facet struct {
	targets []*target
	// families that an instance has addresses of, by target.instance.
	families map[string][]checkup.IPFamily
}

// target is a target of the worksheet to be.
type target struct {
	checkup.Endpoint
	// instance is the same for the addresses of one thing in several families.
	instance string
	// fronts names the port of the Service that this is an address of, and behind
	// those that lead to an endpoint.
	fronts string
	behind []string
	index  int // in the worksheet
}

// source is a source of the worksheet to be.
type source struct {
	checkup.Endpoint
	// fleeting says that the name of its pod changes with each rollout: its label
	// names its node instead, and further ones on the node are numbered.
	fleeting bool
	families []checkup.IPFamily
	targets  map[*target]bool
	index    int
}

func expand(p *checkup.Plan, check string, s *cluster.Snapshot) (*expansion, error) {
	c, ok := p.Checks[check].Spec.(*Spec)
	if !ok {
		return nil, fmt.Errorf("plan %s has no controlPlane check of that name", p.Name)
	}
	if err := usable(c); err != nil {
		return nil, err
	}
	preset, err := decide(c.Preset, s)
	if err != nil {
		return nil, err
	}
	x := &expansion{
		layout:    layoutOf(c, preset),
		check:     c,
		s:         s,
		seed:      kind.Seed(p.Name, check),
		nodes:     map[string]*cluster.Node{},
		addresses: map[netip.Addr]string{},
		facets:    map[string]*facet{},
		sources:   map[string][]*source{},
		pods:      map[string]*source{},
		balancers: map[string]*target{},
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		x.nodes[n.Name] = n
		for _, ip := range n.InternalIPs {
			a, err := netip.ParseAddr(ip)
			if other, taken := x.addresses[a.Unmap()]; err == nil && (!taken || n.Name < other) {
				x.addresses[a.Unmap()] = n.Name
			}
		}
	}

	sources, targets, err := x.assign()
	if _, used := x.sources[componentNode]; (!used || x.roles[componentNode].own) && !defaultPlacement(c.Placement) {
		x.warn("placement has no effect: no pair is from nodes (preset %s): add pairs whose from is node", preset)
	}
	if err := errors.Join(append(x.problems, err)...); err != nil {
		return nil, err
	}
	x.write(p, check, sources, targets)
	return x, nil
}

// usable reports values with which Expand cannot work. A plan that was loaded has
// none.
func usable(c *Spec) error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !slices.Contains(Presets, c.Preset) {
		add("preset: %q: want one of %q", c.Preset, Presets)
	}
	if c.MaxNodes < 1 {
		add("maxNodes: %d: want 1 or more", c.MaxNodes)
	}
	if c.Measurements() < 1 {
		add("probe.count: %d: want 1 or more", c.Probe.Count)
	}
	if c.Interval <= 0 {
		add("interval: %s: want more than 0s", c.Interval)
	}
	for _, f := range c.IPFamilies {
		if !slices.Contains(checkup.IPFamilies, f) {
			add("ipFamilies: %q: want one of %q", f, checkup.IPFamilies)
		}
	}
	return errors.Join(problems...)
}

// defaultPlacement reports whether a placement is empty or the schema's default.
func defaultPlacement(p checkup.Placement) bool {
	linux := map[string]string{corev1.LabelOSStable: "linux"}
	return (len(p.NodeSelector) == 0 || maps.Equal(p.NodeSelector, linux)) && len(p.Tolerations)+len(p.Affinity) == 0
}

func (x *expansion) warn(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !slices.Contains(x.warnings, line) {
		x.warnings = append(x.warnings, line)
	}
}

// assign gives each source the targets of its pairs, and returns the sources and
// targets that have pairs.
func (x *expansion) assign() ([]*source, []*target, error) {
	var sources []*source
	var targets []*target
	assigned := map[*target]bool{}
	results, measurable := 0, false
	for _, pair := range x.pairs {
		to := x.facet(pair.To)
		from := x.sourcesOf(pair.From)
		if !x.chosen && pair.From == componentAggregatedAPIServer && pair.To == componentEtcd {
			from = slices.DeleteFunc(slices.Clone(from), func(s *source) bool { return !usesEtcd(s.Pod) })
		}
		for _, s := range from {
			for _, t := range to.targets {
				if !s.reaches(t, to) {
					continue
				}
				if s.targets == nil {
					s.targets = map[*target]bool{}
					sources = append(sources, s)
				}
				if !assigned[t] {
					assigned[t] = true
					targets = append(targets, t)
				}
				if !s.targets[t] {
					s.targets[t] = true
					results += x.check.Measurements()
				}
				if results > checkup.MaxResults {
					return nil, nil, fmt.Errorf(
						"pairs x measurements of each (%d) are more than the %d results that a check may keep; %s to %s has %s and %s: lengthen interval, shorten for, lower maxNodes, or name fewer pairs",
						x.check.Measurements(),
						checkup.MaxResults,
						pair.From,
						pair.To,
						checkup.Count(len(from), "source"),
						checkup.Count(len(to.targets), "target"),
					)
				}
				measurable = measurable || s.Node != "" && t.Peer != nil
			}
		}
	}
	if !measurable && len(x.problems) == 0 {
		reasons := "no pair has a source and a target"
		if len(x.warnings) > 0 {
			reasons = strings.Join(x.warnings, "; ")
		}
		return nil, nil, fmt.Errorf("nothing can be measured (preset %s): %s", x.preset, reasons)
	}
	return sources, targets, nil
}

// usesEtcd reports whether the pod (namespace/name) of an aggregated API server connects to the cluster's etcd: those
// of OpenShift do (https://github.com/openshift/cluster-openshift-apiserver-operator,
// https://github.com/openshift/cluster-authentication-operator). Others, such as metrics-server, have no etcd or their
// own.
func usesEtcd(pod string) bool {
	namespace, _, _ := strings.Cut(pod, "/")
	return slices.Contains([]string{"openshift-apiserver", "openshift-oauth-apiserver"}, namespace)
}

// reaches reports whether a source probes a target: it does, unless it has no
// address of the target's family and the same instance has an address of one of the
// source's families.
func (s *source) reaches(t *target, f *facet) bool {
	if t.Peer == nil || t.Peer.Family == checkup.AnyIPFamily || slices.Contains(s.families, t.Peer.Family) {
		return true
	}
	return !slices.ContainsFunc(
		f.families[t.instance],
		func(f checkup.IPFamily) bool { return slices.Contains(s.families, f) },
	)
}

// write makes the worksheet.
func (x *expansion) write(p *checkup.Plan, check string, sources []*source, targets []*target) {
	c := x.check
	labelTargets(targets)
	labelSources(sources)
	slices.SortFunc(
		targets,
		func(a, b *target) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Label, b.Label)) },
	)
	slices.SortFunc(
		sources,
		func(a, b *source) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Label, b.Label)) },
	)
	w := &checkup.Worksheet{
		Plan:      p.Name,
		Check:     check,
		Kind:      Name,
		Seed:      x.seed,
		Rounds:    1,
		Expect:    checkup.Expect{Loss: c.Expect.Loss, Latency: c.Expect.Latency},
		Limits:    c.Limits,
		Resources: c.Resources,
		Timeouts:  c.Timeouts,
		Connections: &checkup.ConnectionSheet{
			Deadlines: c.Probe.Deadlines,
			MaxOutage: c.Expect.Outage.Max,
			Checks:    c.ConnectivityChecks,
		},
	}
	if c.For != nil {
		w.Connections.For = *c.For
	}
	endpoints := map[string][]int{}
	transports := map[checkup.Transport]bool{}
	families := map[checkup.IPFamily]bool{}
	for i, t := range targets {
		t.index = i
		t.Zone = x.zone(t.Node)
		for _, service := range t.behind {
			endpoints[service] = append(endpoints[service], i)
		}
		if t.Peer != nil {
			transports[t.Peer.Transport], families[t.Peer.Family] = true, true
		}
	}
	for _, t := range targets {
		if t.Peer != nil && t.fronts != "" {
			t.Peer.Backends = endpoints[t.fronts]
		}
		w.Targets = append(w.Targets, t.Endpoint)
	}
	for i, s := range sources {
		s.index = i
		s.Zone = x.zone(s.Node)
		assignment := make([]int, 0, len(s.targets))
		certificates := map[string]bool{}
		for t := range s.targets {
			assignment = append(assignment, t.index)
			if t.Peer != nil && t.Peer.ClientCertificate != "" {
				certificates[t.Peer.ClientCertificate] = true
			}
		}
		slices.Sort(assignment)
		s.ClientCertificates = slices.Sorted(maps.Keys(certificates))
		w.Sources, w.Assignments = append(w.Sources, s.Endpoint), append(w.Assignments, assignment)
		w.Possible += len(assignment)
		w.Degree = max(w.Degree, len(assignment))
	}
	for _, f := range checkup.IPFamilies {
		if families[f] {
			w.IPFamilies = append(w.IPFamilies, f)
		}
	}
	if len(w.IPFamilies) == 0 { // DNS names only: as the nodes have them
		w.IPFamilies = x.nodeFamilies()
	}
	for _, t := range checkup.Transports {
		if transports[t] {
			w.Probes = append(w.Probes, checkup.TransportProbe{Transport: t, Probe: checkup.Probe{
				Sizes: []int{0}, Count: c.Measurements(), Interval: c.Interval, Timeout: c.Probe.Deadlines.Sum(),
			}})
		}
	}
	x.worksheet = w
	x.warnOfNodes()
	x.warnOfRate()
}

func (x *expansion) zone(node string) string {
	if n := x.nodes[node]; n != nil {
		return n.Labels[corev1.LabelTopologyZone]
	}
	return ""
}

// nodeFamilies are the families of the nodes' internal addresses that the plan
// probes; IPv4 if there are none.
func (x *expansion) nodeFamilies() []checkup.IPFamily {
	var families []checkup.IPFamily
	for _, f := range checkup.IPFamilies {
		if slices.ContainsFunc(
			x.s.Nodes,
			func(n cluster.Node) bool { return slices.Contains(familiesOf(n.InternalIPs), f) },
		) &&
			x.wants(f) {
			families = append(families, f)
		}
	}
	if len(families) == 0 {
		return []checkup.IPFamily{checkup.IPv4}
	}
	return families
}

// wants reports whether the plan probes a family. A DNS name has any family.
func (x *expansion) wants(f checkup.IPFamily) bool {
	return f == checkup.AnyIPFamily || len(x.check.IPFamilies) == 0 || slices.Contains(x.check.IPFamilies, f)
}

// familiesOf are the families of addresses or CIDRs, each once.
func familiesOf(addresses []string) []checkup.IPFamily {
	var families []checkup.IPFamily
	for _, a := range addresses {
		if f, ok := cluster.FamilyOf(a); ok && !slices.Contains(families, f) {
			families = append(families, f)
		}
	}
	return families
}

// warnOfNodes warns of nodes of sources and targets that are not ready.
func (x *expansion) warnOfNodes() {
	var notReady []string
	for _, e := range slices.Concat(x.worksheet.Sources, x.worksheet.Targets) {
		if n := x.nodes[e.Node]; n != nil && n.Ready != corev1.ConditionTrue {
			notReady = append(notReady, n.Name)
		}
	}
	slices.Sort(notReady)
	if notReady = slices.Compact(notReady); len(notReady) > 0 {
		x.warn(
			"%s not ready, and will probably fail or be unmeasured: %s",
			checkup.CountAre(len(notReady), "node"),
			checkup.Some(notReady),
		)
	}
}

// warnOfRate warns if an agent needs a higher rate than limits.packetsPerSecond.
func (x *expansion) warnOfRate() {
	w := x.worksheet
	limit := w.Limits.PacketsPerSecond
	needed := int(time.Duration(w.Degree) * time.Second / time.Duration(x.check.Interval))
	if limit > 0 && needed > limit {
		x.warn(
			"an agent measures up to %d pairs every %s, %d measurements a second, but limits.packetsPerSecond allows %d: they will be late: raise it or interval, or lower maxNodes",
			w.Degree,
			x.check.Interval,
			needed,
			limit,
		)
	}
}
