// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Limits on payload sizes, in bytes.
const (
	// MinUDPSize is the smallest payload of a udp probe: it holds the header by
	// which the responder counts, and in which it tells how long it took.
	MinUDPSize = 32
	// MaxDatagramSize is the largest payload of a udp or icmp probe: what an IPv4
	// packet of 65535 bytes leaves behind the headers (RFC 791, RFC 768, RFC 792).
	MaxDatagramSize = 65535 - 20 - 8
	// MaxStreamSize is the largest payload of a tcp or http probe, and the most
	// that a responder's /bytes gives.
	MaxStreamSize = 16 << 20
)

// MaxTimeout is the longest duration in a plan. A check that takes longer than
// a day is not one.
const MaxTimeout = Duration(24 * time.Hour)

// MaxPlanSize is the most bytes that a plan may have as indented JSON: it
// reaches the steps in an environment variable, and Linux takes at most 128 KiB
// of name, value and a zero byte as one (MAX_ARG_STRLEN, execve(2)).
const MaxPlanSize = 128<<10 - len("PLAN=") - 1

// MaxPipelineSize is the most bytes that all copies of a plan in its Pipeline
// may have: etcd takes objects of 1.5 MiB, and the status of a PipelineRun holds
// the Pipeline with everything in it.
const MaxPipelineSize = 1 << 20

// Problem is something that makes no sense in a plan although each of its
// fields is right by itself.
type Problem struct {
	// Rule that the plan breaks: a name out of RuleNames.
	Rule string
	// Path to the field, by JSON names, an index of a list as "[0]"; empty for the
	// plan as a whole.
	Path []string
	// Message is one line, without the path.
	Message string
}

// String prints the path, if there is one, and the message.
func (p Problem) String() string {
	if len(p.Path) == 0 {
		return p.Message
	}
	return strings.ReplaceAll(strings.Join(p.Path, "."), ".[", "[") + ": " + p.Message
}

// Problems tells everything in the plan that makes no sense, in the order of
// the rules and, within one, of the names of the checks; nil if the plan is good. It is for
// plans whose shape is right already, as those that pkg/load returns, or that
// Set has changed.
func (p *Plan) Problems() []Problem {
	var found []Problem
	names := slices.Sorted(maps.Keys(p.Checks))
	for _, r := range rules {
		report := func(path []string, format string, args ...any) {
			found = append(found, Problem{r.name, path, fmt.Sprintf(format, args...)})
		}
		if r.plan != nil {
			r.plan(p, report)
		}
		for _, name := range names {
			under := func(k Kind) reporter {
				at := []string{"checks", name, string(k)}
				return func(path []string, format string, args ...any) {
					report(append(slices.Clone(at), path...), format, args...)
				}
			}
			check := p.Checks[name]
			if check.PodMesh != nil && r.mesh != nil {
				r.mesh(check.PodMesh, under(KindPodMesh))
			}
			if check.ControlPlane != nil && r.control != nil {
				r.control(check.ControlPlane, under(KindControlPlane))
			}
			if check.Placement != nil && r.placement != nil {
				r.placement(check.Placement, under(KindPlacement))
			}
			if check.VMLatency != nil && r.vms != nil {
				r.vms(check.VMLatency, under(KindVMLatency))
			}
		}
	}
	return found
}

// RuleNames are the names of all rules of Problems.
func RuleNames() []string {
	names := make([]string, len(rules))
	for i, r := range rules {
		names[i] = r.name
	}
	return names
}

type reporter func(path []string, format string, args ...any)

// rule is one rule: about the plan, or about each check of some kinds, whose
// paths then begin at the check's kind.
type rule struct {
	name      string
	plan      func(*Plan, reporter)
	mesh      func(*PodMesh, reporter)
	control   func(*ControlPlane, reporter)
	placement func(*PlacementCheck, reporter)
	vms       func(*VMLatency, reporter)
}

var rules = []rule{
	{name: "plan-name", plan: planName},
	{name: "plan-size", plan: planSize},
	{name: "no-check", plan: noCheck},
	{name: "check-name", plan: checkName},
	{name: "no-kind", plan: noKind},
	{name: "one-kind", plan: oneKind},
	{name: "after-self", plan: afterSelf},
	{name: "after-unknown", plan: afterUnknown},
	{name: "after-twice", plan: afterTwice},
	{name: "after-cycle", plan: afterCycle},
	{name: "durations", mesh: durations, control: controlDurations, placement: placementDurations, vms: vmDurations},
	{name: "families-twice", mesh: func(m *PodMesh, r reporter) { familiesTwice(m.IPFamilies, r) }, control: func(c *ControlPlane, r reporter) { familiesTwice(c.IPFamilies, r) }, vms: func(v *VMLatency, r reporter) { familiesTwice(v.IPFamilies, r) }},
	{name: "no-probe", mesh: noProbe},
	{name: "no-size", mesh: noSize},
	{name: "size-twice", mesh: sizeTwice},
	{name: "size-limit", mesh: sizeLimit},
	{name: "path", mesh: path},
	{name: "pods-udp", mesh: podsUDP},
	{name: "pods-size", mesh: podsSize},
	{name: "latency-order", mesh: func(m *PodMesh, r reporter) { latencyOrder(m.Expect.Latency, r) }, control: func(c *ControlPlane, r reporter) { latencyOrder(c.Expect.Latency, r) }, vms: func(v *VMLatency, r reporter) { latencyOrder(v.Expect.Latency, r) }},
	{name: "loss-all", mesh: func(m *PodMesh, r reporter) { lossAll(m.Expect.Loss, r) }, control: func(c *ControlPlane, r reporter) { lossAll(c.Expect.Loss, r) }, vms: func(v *VMLatency, r reporter) { lossAll(v.Expect.Loss, r) }},
	{name: "jitter-one", mesh: jitterOne, vms: vmJitterOne},
	{name: "unreachable-limits", mesh: unreachableLimits},
	{name: "budget", mesh: budget},
	{name: "probe-timeout", mesh: probeTimeout, control: controlTimeout, vms: vmTimeout},
	{name: "role-name", control: roleName},
	{name: "role-where", control: roleWhere},
	{name: "role-host", control: roleHost},
	{name: "role-tls", control: roleTLS},
	{name: "pair-role", control: pairRole},
	{name: "pair-twice", control: pairTwice},
	{name: "watch-interval", control: watchInterval},
	{name: "watch-length", control: watchLength},
	{name: "disabled-placement", placement: disabledPlacement},
	{name: "network-config", placement: networkConfig},
	{name: "no-network", vms: noNetwork},
	{name: "network-twice", vms: networkTwice},
	{name: "no-family", vms: noFamily},
	{name: "node-pair", vms: nodePair},
	{name: "too-many-vms", vms: tooManyVMs},
	{name: "measurements", vms: measurements},
	{name: "guest-login", vms: guestLogin},
	{name: "kiagnose-twice", plan: kiagnoseTwice},
}

// dnsLabel is a DNS label as RFC 1123 allows it, in lower case as Kubernetes
// demands it.
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

const dnsLabelWords = "lower-case letters, digits and hyphens, with no hyphen at either end"

func planName(p *Plan, report reporter) {
	switch {
	case p.Name == "":
		report(nil, "the plan has no name")
	case !dnsLabel.MatchString(p.Name):
		report(nil, "name %q is not a DNS label: want %s", p.Name, dnsLabelWords)
	case len(p.Name) > MaxPlanName:
		report(nil, "name has %d characters; at most %d leave room for the names of its runs", len(p.Name), MaxPlanName)
	}
}

func planSize(p *Plan, report reporter) {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		report(nil, "writing the plan as JSON: %v", err)
		return
	}
	size := len(b) + bytes.Count(b, []byte("$"))*len(`u0024`)
	if size > MaxPlanSize {
		report(nil, "the plan has %d bytes as JSON; at most %d fit what Linux passes to a task: split it", size, MaxPlanSize)
	} else if copies := len(p.Checks) + 1; size*copies > MaxPipelineSize {
		report(nil, "the plan has %d bytes as JSON, and its Pipeline holds it %d times, once per check and once at the end; at most %d bytes fit: split it", size, copies, MaxPipelineSize)
	}
}

func noCheck(p *Plan, report reporter) {
	if len(p.Checks) == 0 {
		report([]string{"checks"}, "no check: want at least one")
	}
}

func checkName(p *Plan, report reporter) {
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		switch {
		case !dnsLabel.MatchString(name):
			report([]string{"checks", name}, "name %q is not a DNS label: want %s", name, dnsLabelWords)
		case len(name) > MaxCheckName:
			report([]string{"checks", name}, "name has %d characters; at most %d leave room for the names of its tasks", len(name), MaxCheckName)
		}
	}
}

func noKind(p *Plan, report reporter) {
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		if p.Checks[name].Kind() == "" {
			report([]string{"checks", name}, "no kind of check: want one of %s", kindWords())
		}
	}
}

func kindWords() string {
	words := make([]string, len(Kinds))
	for i, k := range Kinds {
		words[i] = string(k)
	}
	return strings.Join(words, ", ")
}

func oneKind(p *Plan, report reporter) {
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		if kinds, _ := p.Checks[name].set(); len(kinds) > 1 {
			report([]string{"checks", name}, "a check has one kind, this one has %q: make a check of each", kinds)
		}
	}
}

// eachAfter yields every element of every after, with its path.
func eachAfter(p *Plan, yield func(name string, i int, after string, path []string)) {
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		for i, after := range p.Checks[name].After {
			yield(name, i, after, []string{"checks", name, "after", index(i)})
		}
	}
}

func afterSelf(p *Plan, report reporter) {
	eachAfter(p, func(name string, _ int, after string, path []string) {
		if after == name {
			report(path, "check %q comes after itself", name)
		}
	})
}

func afterUnknown(p *Plan, report reporter) {
	eachAfter(p, func(_ string, _ int, after string, path []string) {
		if _, ok := p.Checks[after]; !ok {
			report(path, "no check %q in this plan; it has %s", after, strings.Join(slices.Sorted(maps.Keys(p.Checks)), ", "))
		}
	})
}

func afterTwice(p *Plan, report reporter) {
	eachAfter(p, func(name string, i int, after string, path []string) {
		if slices.Contains(p.Checks[name].After[:i], after) {
			report(path, "check %q is named twice", after)
		}
	})
}

// afterCycle reports each cycle of more than one check once, at the check of it
// whose name comes first.
func afterCycle(p *Plan, report reporter) {
	done := map[string]bool{}
	var trail []string
	var visit func(name string)
	visit = func(name string) {
		if i := slices.Index(trail, name); i >= 0 {
			if cycle := trail[i:]; len(cycle) > 1 {
				first := slices.Index(cycle, slices.Min(cycle))
				cycle = slices.Concat(cycle[first:], cycle[:first], cycle[first:first+1])
				report([]string{"checks", cycle[0], "after"}, "checks come after one another in a circle: %s", strings.Join(cycle, " after "))
			}
			return
		}
		check, ok := p.Checks[name]
		if !ok || done[name] {
			return
		}
		trail = append(trail, name)
		for _, after := range check.After {
			visit(after)
		}
		trail = trail[:len(trail)-1]
		done[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		visit(name)
	}
}

// checkDuration reports a duration that is below the least, which is 0 or 1, or
// above MaxTimeout.
func checkDuration(report reporter, d Duration, least Duration, path ...string) {
	switch {
	case d < least && least == 0:
		report(path, "%s is less than 0s", d)
	case d < least:
		report(path, "%s is not more than 0s", d)
	case d > MaxTimeout:
		report(path, "%s is more than a day", d)
	}
}

func timeouts(t Timeouts, report reporter) {
	checkDuration(report, t.Setup, 1, "timeouts", "setup")
	checkDuration(report, t.Probe, 1, "timeouts", "probe")
}

func durations(m *PodMesh, report reporter) {
	check := func(d Duration, least Duration, path ...string) { checkDuration(report, d, least, path...) }
	for _, t := range Transports {
		if p, ok := m.Probes[t]; ok {
			check(p.Interval, 1, "probes", string(t), "interval")
			check(p.Timeout, 1, "probes", string(t), "timeout")
		}
	}
	for _, l := range m.Expect.Latency.Ordered() {
		if l.Limit != nil {
			check(*l.Limit, 1, "expect", "latency", l.Name)
		}
	}
	if max := m.Expect.Jitter.Max; max != nil {
		check(*max, 1, "expect", "jitter", "max")
	}
	check(m.Limits.StartJitter, 0, "limits", "startJitter")
	timeouts(m.Timeouts, report)
}

func familiesTwice(families []IPFamily, report reporter) {
	for i, f := range families {
		if slices.Contains(families[:i], f) {
			report([]string{"ipFamilies", index(i)}, "%s is there twice", f)
		}
	}
}

func noProbe(m *PodMesh, report reporter) {
	if len(m.Probes) == 0 {
		report([]string{"probes"}, "no probe: want at least one of tcp, udp, icmp, http")
	}
}

func noSize(m *PodMesh, report reporter) {
	for _, t := range Transports {
		if p, ok := m.Probes[t]; ok && len(p.Sizes) == 0 {
			report([]string{"probes", string(t), "sizes"}, "no size, and so nothing to measure: want at least one")
		}
	}
}

// eachSize yields every payload size of every probe, with its path.
func eachSize(m *PodMesh, yield func(t Transport, i, size int, path []string)) {
	for _, t := range Transports {
		for i, size := range m.Probes[t].Sizes {
			yield(t, i, size, []string{"probes", string(t), "sizes", index(i)})
		}
	}
}

func sizeTwice(m *PodMesh, report reporter) {
	eachSize(m, func(t Transport, i, size int, path []string) {
		if slices.Contains(m.Probes[t].Sizes[:i], size) {
			report(path, "%d is there twice", size)
		}
	})
}

func sizeLimit(m *PodMesh, report reporter) {
	eachSize(m, func(t Transport, _, size int, path []string) {
		least, most := 0, MaxStreamSize
		switch t {
		case UDP:
			least, most = MinUDPSize, MaxDatagramSize
		case ICMP:
			most = MaxDatagramSize
		}
		if size < least || size > most {
			report(path, "%d bytes: want from %d to %d for %s", size, least, most, t)
		}
	})
}

func path(m *PodMesh, report reporter) {
	at := []string{"probes", string(HTTP), "path"}
	p, ok := m.Probes[HTTP]
	switch {
	case !ok:
	case !strings.HasPrefix(p.Path, "/"):
		report(at, "%q: want a path that begins with a slash", p.Path)
	case strings.ContainsFunc(p.Path, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' }):
		report(at, "%q: want visible ASCII characters only, and no #; write others as %%20", p.Path)
	}
}

func podsUDP(m *PodMesh, report reporter) {
	if _, ok := m.Probes[UDP]; ok && m.Targets.Pods != nil {
		report([]string{"probes", string(UDP)}, "targets.pods are existing pods, and those do not answer udp as our responder does: want tcp, icmp or http")
	}
}

func podsSize(m *PodMesh, report reporter) {
	if m.Targets.Pods == nil {
		return
	}
	eachSize(m, func(t Transport, _, size int, path []string) {
		if (t == TCP || t == HTTP) && size != 0 {
			report(path, "%d bytes: targets.pods are existing pods, and those do not answer with as many bytes as they are asked for: want 0", size)
		}
	})
}

func latencyOrder(limits LatencyLimits, report reporter) {
	var lower *LatencyLimit
	for _, l := range limits.Ordered() {
		if l.Limit == nil {
			continue
		}
		if lower != nil && *lower.Limit > *l.Limit {
			report([]string{"expect", "latency", l.Name}, "%s is less than the limit on %s, %s, which so can never be reached", *l.Limit, lower.Name, *lower.Limit)
		}
		lower = &l
	}
}

func lossAll(limit LossLimit, report reporter) {
	if max := limit.Max; max != nil && *max >= 100 {
		report([]string{"expect", "loss", "max"}, "%s is no limit, and a pair through which nothing came fails in any case: want less than 100%%", *max)
	}
}

func jitterOne(m *PodMesh, report reporter) {
	if m.Expect.Jitter.Max == nil {
		return
	}
	for _, t := range Transports {
		if p, ok := m.Probes[t]; ok && p.Count > 1 {
			return
		}
	}
	if len(m.Probes) > 0 {
		report([]string{"expect", "jitter", "max"}, "no probe has a count above 1, and jitter is a difference between two delays")
	}
}

func unreachableLimits(m *PodMesh, report reporter) {
	if !m.Expect.Unreachable {
		return
	}
	const message = "%s is a limit on answers, and expect.unreachable wants none"
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

// perAssignment is the least number of pairs and of measurements that one source
// and one target stand for: in one IP family, where the plan names none.
func (m *PodMesh) perAssignment() (pairs, measurements int) {
	for _, p := range m.Probes {
		pairs += len(p.Sizes)
		measurements += len(p.Sizes) * p.Count
	}
	families := max(len(m.IPFamilies), 1)
	return pairs * families, measurements * families
}

func budget(m *PodMesh, report reporter) {
	pairs, _ := m.perAssignment()
	if m.Sample.Degree < 0 || pairs == 0 || m.Targets.Pods != nil {
		return
	}
	// The smallest cluster in which every node can have that many partners has one
	// node more.
	k := max(m.Sample.Degree, 1)
	if need := (k + 1) * k * pairs; need > m.Sample.Budget {
		what := fmt.Sprintf("%d nodes with %d partners each are", k+1, k)
		if m.Sample.Degree == 0 {
			what = "two nodes are"
		}
		report([]string{"sample", "budget"}, "%d is less than the smallest sample: %s %d pairs, with %d per source and target", m.Sample.Budget, what, need, pairs)
	}
}

// probeTimeout compares the time that a source needs at the least, with its
// smallest number of targets and no waiting for what is lost, with the timeout.
func probeTimeout(m *PodMesh, report reporter) {
	_, measurements := m.perAssignment()
	timeout := time.Duration(m.Timeouts.Probe)
	if timeout <= 0 || measurements == 0 || m.Limits.PacketsPerSecond < 1 {
		return
	}
	for _, t := range Transports {
		p, ok := m.Probes[t]
		if !ok || len(p.Sizes) == 0 || p.Count < 1 || p.Interval <= 0 || p.Timeout <= 0 || p.Interval > MaxTimeout || p.Timeout > MaxTimeout {
			continue
		}
		need := time.Duration(min(p.Count, MaxCount)-1)*time.Duration(p.Interval) + time.Duration(p.Timeout)
		if need > timeout {
			report([]string{"timeouts", "probe"}, "%s is less than the %s that one pair of %s takes when its last answer is lost: %d intervals of %s and a timeout of %s",
				m.Timeouts.Probe, need, t, p.Count-1, p.Interval, p.Timeout)
		}
	}
	k := max(m.Sample.Degree, 1)
	if m.Targets.Pods != nil {
		k = 1
	}
	if need := float64(k) * float64(measurements) / float64(m.Limits.PacketsPerSecond); need > timeout.Seconds() {
		report([]string{"timeouts", "probe"}, "%s is less than the %.0fs that an agent takes for %d measurements at limits.packetsPerSecond %d",
			m.Timeouts.Probe, need, k*measurements, m.Limits.PacketsPerSecond)
	}
}

func index(i int) string { return fmt.Sprintf("[%d]", i) }
