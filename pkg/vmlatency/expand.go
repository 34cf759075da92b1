// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// limits of a guest: above what any plan can need, because a pair needs no more than
// its interval.
var limits = checkup.Limits{PacketsPerSecond: 1000, Concurrency: 16}

// echoTimeout is how long the sender of an echo request waits for the answer. It is much longer than any useful limit:
// a slow network must read as slow, not as lossy.
const echoTimeout = checkup.Duration(5 * time.Second)

// Expand returns the worksheet of a vmLatency check for the cluster of the snapshot,
// and warnings, one line each. It is pure: the same plan and snapshot give the same
// worksheet. A pair whose VMs cannot be started is on it with every reason, as the
// Cause of both.
//
// An error says that plan and snapshot do not match. It has every reason.
func Expand(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
	w, warnings, err := expand(p, check, s)
	if err != nil {
		return nil, nil, fmt.Errorf("check %q: %w", check, err)
	}
	return w, warnings, nil
}

func expand(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
	v, ok := p.Checks[check].Spec.(*Spec)
	if !ok {
		return nil, nil, fmt.Errorf("plan %s has no vmLatency check of that name", p.Name)
	}
	if err := usable(v, s); err != nil {
		return nil, nil, err
	}
	families := slices.DeleteFunc(
		slices.Clone(checkup.IPFamilies),
		func(f checkup.IPFamily) bool { return !slices.Contains(v.IPFamilies, f) },
	)
	w := &checkup.Worksheet{
		Plan: p.Name, Check: check, Kind: Name, Rounds: 1,
		IPFamilies: families,
		Probes: []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{
			Sizes: []int{checkup.VMEchoSize}, Count: v.Measurements(), Interval: v.Interval, Timeout: echoTimeout,
		}}},
		Expect: checkup.Expect{
			Loss: v.Expect.Loss, Latency: v.Expect.Latency, Jitter: v.Expect.Jitter, Regression: v.Expect.Regression,
		},
		Limits: limits, Timeouts: v.Timeouts,
		Guests: &checkup.GuestSheet{Guest: v.Guest, Duration: v.Duration},
	}
	var warnings []string
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	if k := s.KubeVirt; k.Served && k.Unread != "" {
		warn("cannot read whether KubeVirt is ready: %s", k.Unread)
	}

	pairs := v.Pairs
	if len(pairs) == 0 {
		pairs = []checkup.NodePair{{}}
	}
	for _, pair := range pairs {
		if pair.Source != "" && pair.Source == pair.Target {
			warn(
				"both VMs of the pair %s to %s are on one node: the network between nodes is not measured",
				pair.Source,
				pair.Target,
			)
		}
	}
	a := &allocator{run: s.Run, check: p.Name + "/" + check, taken: taken(s)}
	var networks []attachment
	for _, ref := range v.Networks {
		n := attach(s, ref)
		networks = append(networks, n)
		a.taken = append(a.taken, n.ranges...)
		if why := doubt(n.kind, n.binding); why != "" && len(n.reasons) == 0 {
			warn("network %s may lose everything between VMs although it works: %s", ref, why)
		}
		if s.Multus && len(n.reasons) == 0 && n.kind == "" {
			warn(
				"network %s has no config: it is in a file on the nodes: VMs are bound by a bridge, and the config is not checked before the run",
				ref,
			)
		}
	}
	labels := map[string]int{}
	for _, n := range networks {
		for i, pair := range pairs {
			w.Sources = append(w.Sources, endpoints(v, s, a, n, fmt.Sprint(n.ref, " ", i), pair, families, labels)...)
			at := len(w.Sources)
			w.Assignments = append(w.Assignments, []int{at - 1}, []int{at - 2})
		}
	}
	w.Targets = slices.Clone(w.Sources)
	w.Degree, w.Possible = 1, len(w.Sources)
	return w, warnings, nil
}

// usable reports why no worksheet can be made.
func usable(v *Spec, s *cluster.Snapshot) error {
	var problems []error
	if len(v.Networks) == 0 {
		problems = append(problems, errors.New("networks: empty: want at least one"))
	}
	if len(v.IPFamilies) == 0 {
		problems = append(problems, errors.New("ipFamilies: empty: want at least one"))
	}
	if v.Measurements() < 1 {
		problems = append(
			problems,
			fmt.Errorf("duration %s, interval %s: no measurement", v.Duration, v.Interval),
		)
	}
	for _, ref := range v.Networks {
		if s.KubeVirt == nil || s.Multus && s.Network(ref) == nil {
			problems = append(
				problems,
				fmt.Errorf("the snapshot has no data about KubeVirt and network %s: record it again with this plan", ref),
			)
		}
	}
	return errors.Join(problems...)
}

// taken are the known address ranges of the cluster.
func taken(s *cluster.Snapshot) []netip.Prefix {
	ranges := slices.Clone(s.Ranges)
	for _, n := range s.Nodes {
		for _, address := range slices.Concat(n.PodCIDRs, n.InternalIPs) {
			if r, ok := cluster.RangeOf(address); ok && !slices.Contains(ranges, r) {
				ranges = append(ranges, r)
			}
		}
	}
	return ranges
}

// endpoints are the two VMs of a pair on a network. The name of the pair is unique in
// the check.
func endpoints(
	v *Spec,
	s *cluster.Snapshot,
	a *allocator,
	n attachment,
	name string,
	pair checkup.NodePair,
	families []checkup.IPFamily,
	labels map[string]int,
) []checkup.Endpoint {
	reasons := slices.Clone(n.reasons)
	if !s.NodesUnseen() {
		reasons = append(reasons, n.pairReasons(s, pair)...)
	}
	prefixes := map[checkup.IPFamily]netip.Prefix{}
	for _, family := range families {
		p, err := a.prefix(name, family)
		if err != nil {
			reasons = append(reasons, err.Error())
			continue
		}
		prefixes[family] = p
	}
	var cause *checkup.Cause
	if len(reasons) > 0 {
		cause = &checkup.Cause{Stage: checkup.StageSetup, Message: strings.Join(reasons, "; ")}
	}
	vm := func(node, side string, nth byte) checkup.Endpoint {
		e := checkup.Endpoint{Node: node, Label: cmp.Or(node, side), Cause: cause, VM: &checkup.VM{
			Name: cmp.Or(
				node,
				side,
			),
			Network:     n.ref,
			NetworkType: n.kind,
			Bridge:      n.bridge,
			Resource:    n.resource,
			Binding:     n.binding,
			MAC:         a.mac(name, side),
			Addresses:   map[checkup.IPFamily]string{},
			Unused:      map[checkup.IPFamily]string{},
			Target:      nth == hostTarget,
		}}
		for family, p := range prefixes {
			e.VM.Addresses[family] = host(p, nth).String()
			e.VM.Unused[family] = host(p, hostUnused).String()
		}
		if known := s.Node(node); known != nil {
			e.Zone = known.Labels[labelZone]
		}
		if len(v.Networks) > 1 {
			e.Label += " on " + n.ref.String()
		}
		if labels[e.Label]++; labels[e.Label] > 1 {
			number := fmt.Sprintf(" (%d)", labels[e.Label])
			e.Label += number
			e.VM.Name += number
		}
		return e
	}
	return []checkup.Endpoint{vm(pair.Source, "source", hostSource), vm(pair.Target, "target", hostTarget)}
}
