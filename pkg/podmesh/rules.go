// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// rules are those of a podMesh check, in the order in which their problems are
// reported.
func rules() []kind.Rule {
	return append([]kind.Rule{
		kind.RuleOf("durations", durations),
		kind.RuleOf("families-twice", func(m *Spec, r kind.Reporter) { kind.FamiliesTwice(m.IPFamilies, r) }),
		kind.RuleOf("no-probe", noProbe),
		kind.RuleOf("no-size", noSize),
		kind.RuleOf("size-twice", sizeTwice),
		kind.RuleOf("size-limit", sizeLimit),
		kind.RuleOf("path", path),
		kind.RuleOf("pods-which", podsWhich),
		kind.RuleOf("pods-udp", podsUDP),
		kind.RuleOf("pods-size", podsSize),
		kind.RuleOf("latency-order", func(m *Spec, r kind.Reporter) { kind.LatencyOrder(m.Expect.Latency, r) }),
		kind.RuleOf("loss-all", func(m *Spec, r kind.Reporter) { kind.LossAll(m.Expect.Loss, r) }),
		kind.RuleOf("jitter-one", jitterOne),
		kind.RuleOf("unreachable-limits", unreachableLimits),
		kind.RuleOf("regression", regression),
		kind.RuleOf("topology", topology),
		kind.RuleOf("budget", budget),
		kind.RuleOf("probe-timeout", probeTimeout),
	}, kind.KubernetesRules(parts)...)
}

// parts are the fields to which Kubernetes' own rules apply.
func parts(m *Spec) kind.Parts {
	p := kind.Parts{
		Placements: []kind.Part[checkup.Placement]{
			kind.At(m.Sources.Placement, "sources", "placement"),
			kind.At(m.Targets.Placement, "targets", "placement"),
		},
		Resources: []kind.Part[checkup.Resources]{kind.At(m.Resources, "resources")},
	}
	for _, pods := range m.existing() {
		side := pods.side + "s"
		if pods.Name == "" {
			p.Selectors = append(p.Selectors, kind.At(pods.Selector, side, "pods", "selector"))
		}
		p.Namespaces = append(p.Namespaces, kind.At(pods.Namespace, side, "pods", "namespace"))
		p.Names = append(p.Names, kind.At(pods.Name, side, "pods", "name"))
	}
	return p
}

func durations(m *Spec, report kind.Reporter) {
	check := func(d checkup.Duration, least checkup.Duration, path ...string) {
		kind.Duration(d, least, report, path...)
	}
	for _, t := range checkup.Transports {
		if p, ok := m.Probes[t]; ok {
			check(p.Interval, 1, "probes", string(t), "interval")
			check(p.Timeout, 1, "probes", string(t), "timeout")
		}
	}
	kind.LatencyDurations(m.Expect.Latency, report)
	if max := m.Expect.Jitter.Max; max != nil {
		check(*max, 1, "expect", "jitter", "max")
	}
	check(m.Limits.StartJitter, 0, "limits", "startJitter")
	kind.Timeouts(m.Timeouts, report)
}

func noProbe(m *Spec, report kind.Reporter) {
	if len(m.Probes) == 0 {
		report([]string{"probes"}, "no probe: want at least one of tcp, udp, icmp, http")
	}
}

func noSize(m *Spec, report kind.Reporter) {
	for _, t := range checkup.Transports {
		if p, ok := m.Probes[t]; ok && len(p.Sizes) == 0 {
			report([]string{"probes", string(t), "sizes"}, "no size: want at least one")
		}
	}
}

// eachSize yields every payload size of every probe, with its path.
func eachSize(m *Spec, yield func(t checkup.Transport, size int, path []string)) {
	for _, t := range checkup.Transports {
		for i, size := range m.Probes[t].Sizes {
			yield(t, size, []string{"probes", string(t), "sizes", kind.Index(i)})
		}
	}
}

func sizeTwice(m *Spec, report kind.Reporter) {
	for _, t := range checkup.Transports {
		kind.Duplicates(m.Probes[t].Sizes, report, "probes", string(t), "sizes")
	}
}

func sizeLimit(m *Spec, report kind.Reporter) {
	eachSize(m, func(t checkup.Transport, size int, path []string) {
		least, most := 0, checkup.MaxStreamSize
		switch t {
		case checkup.UDP:
			least, most = checkup.MinUDPSize, checkup.MaxDatagramSize
		case checkup.ICMP:
			most = checkup.MaxDatagramSize
		}
		if size < least || size > most {
			report(path, "%d bytes: want from %d to %d for %s", size, least, most, t)
		}
	})
}

func path(m *Spec, report kind.Reporter) {
	at := []string{"probes", string(checkup.HTTP), "path"}
	p, ok := m.Probes[checkup.HTTP]
	switch {
	case !ok:
	case !strings.HasPrefix(p.Path, "/"):
		report(at, "%q: want a path that begins with a slash", p.Path)
	case strings.ContainsFunc(p.Path, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' }):
		report(at, "%q: want visible ASCII characters only, and no #; write others as %%20", p.Path)
	}
}

// podsWhich wants existing pods to be chosen in one way; that they are chosen at all is a rule on selectors.
func podsWhich(m *Spec, report kind.Reporter) {
	for _, pods := range m.existing() {
		if pods.Name != "" && !pods.Selector.IsZero() {
			report([]string{pods.side + "s", "pods", "selector"}, "cannot be combined with name: want one of them")
		}
	}
}

func podsUDP(m *Spec, report kind.Reporter) {
	if _, ok := m.Probes[checkup.UDP]; ok && m.Targets.Pods != nil {
		report(
			[]string{"probes", string(checkup.UDP)},
			"existing pods (targets.pods) do not answer checkplan's udp probes: want tcp, icmp or http",
		)
	}
}

func podsSize(m *Spec, report kind.Reporter) {
	if m.Targets.Pods == nil {
		return
	}
	eachSize(m, func(t checkup.Transport, size int, path []string) {
		if (t == checkup.TCP || t == checkup.HTTP) && size != 0 {
			report(
				path,
				"%d bytes: existing pods (targets.pods) do not answer with the requested number of bytes: want 0",
				size,
			)
		}
	})
}

func jitterOne(m *Spec, report kind.Reporter) {
	if m.Expect.Jitter.Max == nil {
		return
	}
	for _, t := range checkup.Transports {
		if p, ok := m.Probes[t]; ok && p.Count > 1 {
			return
		}
	}
	if len(m.Probes) > 0 {
		report(
			[]string{"expect", "jitter", "max"},
			"jitter is a difference between two delays: want a probe with a count above 1",
		)
	}
}

func unreachableLimits(m *Spec, report kind.Reporter) {
	if !m.Expect.Unreachable {
		return
	}
	const message = "%s limits answers, but expect.unreachable wants no answer"
	if max := m.Expect.Loss.Max; max != nil {
		report([]string{"expect", "loss", "max"}, message, *max)
	}
	for _, l := range m.Expect.Latency.Ordered() {
		if l.Limit != nil {
			report([]string{"expect", "latency", l.Name}, message, *l.Limit)
		}
	}
	if max := m.Expect.Jitter.Max; max != nil {
		report([]string{"expect", "jitter", "max"}, message, *max)
	}
}

func regression(m *Spec, report kind.Reporter) {
	if m.Expect.Regression != nil && m.Expect.Unreachable {
		report([]string{"expect", "regression"}, "compares answers, but expect.unreachable wants no answer")
	}
	kind.Regression(m.Expect.Regression, report)
}

// maxTopology is the most labels of a topology: each multiplies the places that a run looks at.
const maxTopology = 4

func topology(m *Spec, report kind.Reporter) {
	if n := len(m.Sample.Topology); n > maxTopology {
		report([]string{"sample", "topology"}, "%d labels: want at most %d", n, maxTopology)
	}
	for i, key := range m.Sample.Topology {
		at := []string{"sample", "topology", kind.Index(i)}
		if len(validation.IsQualifiedName(key)) > 0 {
			report(at, "%q: want the key of a node label, such as topology.kubernetes.io/rack", key)
		}
		if slices.Contains(m.Sample.Topology[:i], key) {
			report(at, "duplicate: %q", key)
		}
	}
}

// perAssignment is the least number of pairs and of measurements for one source and
// one target: in one IP family, if the plan names none.
func (m *Spec) perAssignment() (pairs, measurements int) {
	for _, p := range m.Probes {
		pairs += len(p.Sizes)
		measurements += len(p.Sizes) * p.Count
	}
	families := max(len(m.IPFamilies), 1)
	return pairs * families, measurements * families
}

func budget(m *Spec, report kind.Reporter) {
	pairs, _ := m.perAssignment()
	if m.Sample.Degree < 0 || pairs == 0 || m.Targets.Pods != nil {
		return
	}
	// The smallest cluster in which every node can have k partners has k+1 nodes.
	k := max(m.Sample.Degree, 1)
	if need := (k + 1) * k * pairs; need > m.Sample.Budget {
		what := fmt.Sprintf("%d nodes with %d partners each are", k+1, k)
		if m.Sample.Degree == 0 {
			what = "two nodes are"
		}
		report(
			[]string{"sample", "budget"},
			"%d is less than the smallest sample: %s %d pairs, with %d per source and target",
			m.Sample.Budget,
			what,
			need,
			pairs,
		)
	}
}

// probeTimeout compares the timeout with the least time that a source needs: with its
// smallest number of targets, and without waits for lost answers.
func probeTimeout(m *Spec, report kind.Reporter) {
	_, measurements := m.perAssignment()
	timeout := time.Duration(m.Timeouts.Probe)
	if timeout <= 0 || measurements == 0 || m.Limits.PacketsPerSecond < 1 {
		return
	}
	for _, t := range checkup.Transports {
		p, ok := m.Probes[t]
		if !ok || len(p.Sizes) == 0 || p.Count < 1 || p.Interval <= 0 || p.Timeout <= 0 ||
			p.Interval > checkup.MaxTimeout ||
			p.Timeout > checkup.MaxTimeout {
			continue
		}
		need := time.Duration(min(p.Count, checkup.MaxCount)-1)*time.Duration(p.Interval) + time.Duration(p.Timeout)
		if need > timeout {
			report(
				[]string{"timeouts", "probe"},
				"%s is less than the %s that one pair of %s takes if its last answer is lost: %d intervals of %s and a timeout of %s",
				m.Timeouts.Probe,
				need,
				t,
				p.Count-1,
				p.Interval,
				p.Timeout,
			)
		}
	}
	k := max(m.Sample.Degree, 1)
	if m.Targets.Pods != nil {
		k = 1
	}
	if need := float64(k) * float64(measurements) / float64(m.Limits.PacketsPerSecond); need > timeout.Seconds() {
		report(
			[]string{"timeouts", "probe"},
			"%s is less than the %.0fs that an agent takes for %d measurements at limits.packetsPerSecond %d",
			m.Timeouts.Probe,
			need,
			k*measurements,
			m.Limits.PacketsPerSecond,
		)
	}
}
