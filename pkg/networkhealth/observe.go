// SPDX-License-Identifier: Apache-2.0

package networkhealth

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// Measured is one check of a run: what it expected, measured and reported. Roster and Record may be nil.
type Measured struct {
	Report    *checkup.CheckReport
	Worksheet *checkup.Worksheet
	Roster    *checkup.Roster
	Record    *checkup.Record
}

// Reports reports whether the units of a worksheet are pairs of pods, of which objects are written: agents measure to
// responders or to existing pods. Components of the control plane have objects of their own, and VMs and addresses of
// Services are no pods.
func Reports(w *checkup.Worksheet) bool {
	return w.Connections == nil && w.Guests == nil && len(w.Services) == 0 &&
		len(w.Sources) > 0 && len(w.Assignments) == len(w.Sources) &&
		!slices.ContainsFunc(w.Targets, func(e checkup.Endpoint) bool { return e.Peer != nil })
}

// check is a Measured with indexes.
type check struct {
	Measured
	plan string
	// observations are indexes of the record's, and units those of the report's, both by pair.
	observations []int
	units        []indexed
	sources      map[int]*checkup.Source   // of the first look
	looks        []map[int]*checkup.Source // of further looks
	ends         [2][]Endpoint             // sources and targets; those that cannot be identified have no Kind
}

type indexed struct {
	pair checkup.Pair
	unit *checkup.Unit
}

// index returns nil if the units of the report are not the pairs of the worksheet: a pair that the report does not
// judge must not read as answered.
func index(plan string, m Measured) *check {
	w := m.Worksheet
	if w == nil || m.Report == nil || !Reports(w) || m.Report.Coverage == nil || w.Again != nil ||
		m.Report.Counts.Expected != w.CountPairs() {
		return nil
	}
	if m.Record == nil {
		m.Record = &checkup.Record{}
	}
	if m.Roster == nil {
		m.Roster = &checkup.Roster{}
	}
	c := &check{Measured: m, plan: plan, sources: sourcesOf(m.Record)}
	for i := range m.Record.Looks {
		c.looks = append(c.looks, sourcesOf(&m.Record.Looks[i].Record))
	}
	for s := range w.Sources {
		uid := ""
		if source := c.sources[s]; source != nil {
			uid = source.UID
		}
		c.ends[0] = append(c.ends[0], endpointOf(w.Sources[s], uid))
	}
	for t := range w.Targets {
		c.ends[1] = append(c.ends[1], endpointOf(w.Targets[t], c.entry(t).UID))
	}
	return c.indexed()
}

// indexed fills in observations and units; nil if a unit is no pair of the worksheet.
func (c *check) indexed() *check {
	names := func(endpoints []checkup.Endpoint) map[string]int {
		by := make(map[string]int, len(endpoints))
		for i, e := range endpoints {
			by[e.Name()] = i
		}
		return by
	}
	sources, targets := names(c.Worksheet.Sources), names(c.Worksheet.Targets)
	for i := range c.Report.Units {
		u := &c.Report.Units[i]
		s, known := sources[u.Source]
		t, ok := targets[u.Target]
		if !known || !ok {
			return nil
		}
		pair := checkup.Pair{Source: s, Target: t, Family: u.Family, Transport: u.Transport, Size: u.Size}
		c.units = append(c.units, indexed{pair, u})
	}
	slices.SortStableFunc(c.units, func(a, b indexed) int { return a.pair.Compare(b.pair) })
	for i := range c.Record.Observations {
		c.observations = append(c.observations, i)
	}
	slices.SortStableFunc(c.observations, func(a, b int) int {
		return c.Record.Observations[a].Pair.Compare(c.Record.Observations[b].Pair)
	})
	return c
}

func sourcesOf(r *checkup.Record) map[int]*checkup.Source {
	by := make(map[int]*checkup.Source, len(r.Sources))
	for i := range r.Sources {
		if s := &r.Sources[i]; by[s.Source] == nil || by[s.Source].Ended.Before(s.Ended) {
			by[s.Source] = s
		}
	}
	return by
}

// entry of a target in the roster; empty if it has none.
func (c *check) entry(target int) checkup.RosterEntry {
	if target < 0 || target >= len(c.Roster.Targets) {
		return checkup.RosterEntry{}
	}
	return c.Roster.Targets[target]
}

// endpointOf identifies an endpoint of a worksheet. Its Kind is empty if it cannot be identified: an existing pod
// without a known UID, or a pod without a node.
func endpointOf(e checkup.Endpoint, uid string) Endpoint {
	namespace, name, workload := strings.Cut(e.Pod, "/")
	switch {
	case !fits(e.Node, maxName):
		return Endpoint{}
	case !workload:
		return Endpoint{Kind: StandIn, Node: e.Node}
	case !fits(namespace, maxLabel) || !fits(name, maxName) || !fits(uid, maxUID):
		return Endpoint{}
	}
	return Endpoint{Kind: Workload, Namespace: namespace, Name: name, UID: uid, Node: e.Node}
}

// fits reports whether a name can be written as it is. Names are never cut: that would name something else.
func fits(s string, most int) bool { return s != "" && len(s) <= most && checkup.Clean(s) == s }

// spec of the object of an assignment; false if it can have none.
func (c *check) spec(source, target int) (Spec, bool) {
	s := Spec{
		Observer: Observer{Name: ObserverName, Plan: c.plan, Check: c.Worksheet.Check},
		Source:   c.ends[0][source], Target: c.ends[1][target],
	}
	return s, s.Source.Kind != "" && s.Target.Kind != ""
}

// missing returns the reason why the worksheet lacks a side of an object's pair; empty if it has both. An existing pod
// whose UID is not known counts as the one of the object.
func (c *check) missing() func(Spec) string {
	present := [2]map[Endpoint]string{{}, {}}
	for side, endpoints := range [][]checkup.Endpoint{c.Worksheet.Sources, c.Worksheet.Targets} {
		for i, e := range endpoints {
			namespace, name, workload := strings.Cut(e.Pod, "/")
			key := Endpoint{Kind: StandIn, Node: e.Node}
			if workload {
				key = Endpoint{Kind: Workload, Namespace: namespace, Name: name}
			}
			present[side][key] = c.ends[side][i].UID
		}
	}
	return func(s Spec) string {
		for side, e := range []Endpoint{s.Source, s.Target} {
			key := Endpoint{Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}
			if e.Kind == StandIn {
				key.Node = e.Node
			}
			uid, ok := present[side][key]
			if !ok || uid != "" && uid != e.UID {
				return []string{ReasonSourceGone, ReasonTargetGone}[side]
			}
		}
		return ""
	}
}

// result is what was measured with one probe of a pair.
type result struct {
	pair       checkup.Pair
	reach      Reachability
	sent, lost int
	unit       *checkup.Unit        // nil for a pair that passed
	observed   *checkup.Observation // nil for others
}

// results are those of each probe of an assignment, in the worksheet's order.
func (c *check) results(source, target int) []result {
	var all []result
	for p := range c.Worksheet.PairsBetween(source, target) {
		r := result{pair: p, reach: Unknown}
		if i, ok := slices.BinarySearchFunc(c.units, p, func(x indexed, p checkup.Pair) int {
			return x.pair.Compare(p)
		}); ok {
			r.unit = c.units[i].unit
			if r.unit.Verdict != checkup.Unmeasured {
				r.count(r.unit.Sent, r.unit.Received)
			}
		} else if i, ok := slices.BinarySearchFunc(c.observations, p, func(i int, p checkup.Pair) int {
			return c.Record.Observations[i].Pair.Compare(p)
		}); ok {
			r.observed = &c.Record.Observations[c.observations[i]]
			if r.observed.Unmeasured == nil {
				r.count(r.observed.Sent, r.observed.Received)
			}
		}
		all = append(all, r)
	}
	return all
}

// count takes the numbers of a measured pair. Numbers that cannot be leave it Unknown.
func (r *result) count(sent, received int) {
	switch {
	case sent <= 0 || received < 0 || received > sent:
		return
	case received == 0:
		r.reach = Unreachable
	default:
		r.reach = Reachable
	}
	r.sent, r.lost = sent, sent-received
}

// delay is the distribution of the answers' delays; nil without any.
func (r *result) delay() *checkup.Delay {
	switch {
	case r.reach != Reachable:
		return nil
	case r.unit != nil:
		return r.unit.Delay
	}
	return judge.DelayOf([][]int64{r.observed.RTTs})
}

// name of the probe, such as "udp IPv6 1400B".
func (r *result) name() string {
	family := cmp.Or(string(r.pair.Family), "any")
	return clip(fmt.Sprintf("%s %s %dB", r.pair.Transport, family, r.pair.Size), maxProbeName)
}

// worst is the reachability of a pair by that of its probes.
func worst(results []result) Reachability {
	for _, r := range Reachabilities {
		if slices.ContainsFunc(results, func(one result) bool { return one.reach == r }) {
			return r
		}
	}
	return Unknown
}

// sum adds up measurements.
func sum(results []result) (sent, lost int) {
	for _, r := range results {
		sent, lost = sent+r.sent, lost+r.lost
	}
	return sent, lost
}

// window is when the probes of a source were measured, within the run. Where it is not known, it is the start of the
// run: an observation must not seem newer than it is.
func (c *check) window(run Run, source int, results []result) Window {
	by := []*checkup.Source{c.sources[source]}
	for _, r := range results {
		if r.unit != nil && r.unit.After > 0 { // a further look decided
			for _, look := range c.looks {
				by = append(by, look[source])
			}
			break
		}
	}
	within := func(t time.Time) time.Time {
		if t.Before(run.Started) {
			return second(run.Started)
		}
		if t.After(run.Finished) {
			return second(run.Finished)
		}
		return second(t)
	}
	w := Window{Start: within(time.Time{}), End: within(time.Time{})}
	for i, s := range by {
		if s == nil || s.Ended.IsZero() {
			continue
		}
		if i == 0 {
			w.Start = within(s.Began)
		}
		if end := within(s.Ended); end.After(w.End) {
			w.End = end
		}
	}
	if w.Start.After(w.End) {
		w.Start = w.End
	}
	return w
}

// second is a time as it is written.
func second(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// status of a pair after this run. before is the status of its object; nil if it has none.
func (c *check) status(in *Input, source, target int, before *Status) *Status {
	results := c.results(source, target)
	reach := worst(results)
	st := &Status{
		Reachability: reach, ObservedBy: in.Run.by(),
		Coverage: Coverage{
			Extent: Partial, Sampling: clip(c.sampling(source, target), maxSampling),
			MeasuredPairs: int64(max(0, c.Report.Coverage.Measured)), PossiblePairs: int64(max(0, c.Report.Coverage.Possible)),
		},
	}
	st.Reason, st.Message = words(results)
	now, changed := second(in.Run.Finished), second(in.Run.Finished)
	sent, lost := sum(results)
	if sent > 0 {
		w := c.window(in.Run, source, results)
		changed, st.LastObservationTime = w.End, w.End
		st.StaleTime = w.End.Add(time.Duration(in.Config.StaleAfter))
		st.ExpireTime = w.End.Add(time.Duration(in.Config.ExpireAfter))
		st.Loss = &Loss{Window: w, Sent: int64(sent), Lost: int64(lost), Percent: checkup.PercentOf(lost, sent).String()}
		st.Latency, st.Probes = latencyOf(results, w), probesOf(results)
		st.Source, st.Target = c.pod(source), c.targetPod(target)
	} else {
		// The pair is expected, so its object stays, with the last observation.
		st.StaleTime, st.ExpireTime = now, now.Add(time.Duration(in.Config.ExpireAfter))
		if before != nil && !before.LastObservationTime.IsZero() {
			st.LastObservationTime, st.StaleTime = before.LastObservationTime, before.StaleTime
			st.Loss, st.Latency, st.Probes = before.Loss, before.Latency, before.Probes
			st.Source, st.Target = before.Source, before.Target
			if st.ExpireTime.Before(st.StaleTime) {
				st.StaleTime = st.ExpireTime
			}
		} else {
			st.Probes = probesOf(results)
		}
	}
	st.LastTransitionTime = changed
	if before != nil && before.Reachability == reach && !before.LastTransitionTime.IsZero() {
		st.LastTransitionTime = before.LastTransitionTime
	}
	return st
}

// words are reason and message of a pair.
func words(results []result) (reason, message string) {
	var not, missing []string // with the cause
	for i := range results {
		r := &results[i]
		switch r.reach {
		case Unreachable:
			not = append(not, r.name()+because(r.cause()))
		case Unknown:
			missing = append(missing, r.name()+because(r.cause()))
		}
	}
	sent, lost := sum(results)
	switch {
	case len(not) == len(results):
		reason, message = ReasonNoAnswer, "no probe was answered: "+not[0]
	case len(not) > 0:
		reason = ReasonSomeNoAnswer
		message = fmt.Sprintf("%d of %d probes were not answered: %s", len(not), len(results), strings.Join(not, "; "))
	case len(missing) == len(results):
		reason, message = ReasonNotMeasured, "the run could not measure it: "+missing[0]
	case len(missing) > 0:
		reason = ReasonSomeMissing
		message = fmt.Sprintf("%d of %d probes were not measured: %s",
			len(missing), len(results), strings.Join(missing, "; "))
	default:
		reason, message = ReasonAnswered, checkup.Count(len(results), "probe")+" answered"
		if lost > 0 {
			message += fmt.Sprintf("; %d of %d measurements were not", lost, sent)
		}
	}
	return reason, clip(message, maxMessage)
}

// cause is why a probe was not answered or not measured; nil if that is not known.
func (r *result) cause() *checkup.Cause {
	switch {
	case r.unit != nil && r.unit.Confirmation != checkup.Gone:
		return r.unit.Cause
	case r.observed != nil:
		return cmp.Or(r.observed.Unmeasured, r.observed.Failure)
	}
	return nil
}

func because(c *checkup.Cause) string {
	if c == nil {
		return ""
	}
	return ": " + c.String()
}

// latencyOf is the distribution of the first probe that was answered.
func latencyOf(results []result, w Window) *Latency {
	for i := range results {
		r := &results[i]
		if d := r.delay(); d != nil && r.sent > r.lost {
			l := &Latency{Window: w, Probe: r.name(), Count: int64(r.sent - r.lost), Min: max(0, d.Min), Mean: max(0, d.Mean)}
			l.P50 = max(l.Min, d.P50)
			l.P90 = max(l.P50, d.P90)
			l.P99 = max(l.P90, d.P99)
			l.Max = max(l.P99, d.Max)
			return l
		}
	}
	return nil
}

// probesOf lists the probes, worst first.
func probesOf(results []result) []Probe {
	var probes []Probe
	for i := range results {
		r := &results[i]
		p := Probe{Name: r.name(), Reachability: r.reach}
		if r.reach != Unknown {
			p.Sent, p.Lost = new(int64(r.sent)), new(int64(r.lost))
		}
		if r.reach != Reachable || r.lost > 0 {
			if cause := r.cause(); cause != nil {
				p.Message = clip(cause.String(), maxProbeMessage)
			}
		}
		if d := r.delay(); d != nil {
			p.P50, p.Max = new(max(0, d.P50)), new(max(0, d.Max))
		}
		if !slices.ContainsFunc(probes, func(q Probe) bool { return q.Name == p.Name }) {
			probes = append(probes, p)
		}
	}
	slices.SortStableFunc(probes, func(a, b Probe) int { return cmp.Compare(rank(a.Reachability), rank(b.Reachability)) })
	return probes[:min(len(probes), maxProbes)]
}

// rank orders reachabilities, worst first.
func rank(r Reachability) int {
	if i := slices.Index(Reachabilities, r); i >= 0 {
		return i
	}
	return slices.Index(Reachabilities, Unknown)
}

// pod is the source as it measured; for a StandIn, the agent's pod.
func (c *check) pod(source int) *ObservedPod {
	s := c.sources[source]
	if s == nil {
		return nil
	}
	return observedPod(s.Pod, s.UID, c.Worksheet.Sources[source].Node, s.Addresses)
}

func (c *check) targetPod(target int) *ObservedPod {
	e := c.entry(target)
	t := c.Worksheet.Targets[target]
	return observedPod(cmp.Or(e.Pod, t.Pod), e.UID, t.Node, e.Addresses)
}

func observedPod(pod, uid, node string, addresses map[checkup.IPFamily]string) *ObservedPod {
	namespace, name, _ := strings.Cut(pod, "/")
	p := &ObservedPod{
		Namespace: clip(namespace, maxLabel), Name: clip(name, maxName), UID: clip(uid, maxUID), Node: clip(node, maxName),
	}
	for _, f := range checkup.IPFamilies {
		if a, err := netip.ParseAddr(addresses[f]); err == nil && a.Zone() == "" {
			p.Addresses = append(p.Addresses, a.String())
		}
	}
	return p
}

// sampling says how a pair was chosen and measured.
func (c *check) sampling(source, target int) string {
	w := c.Worksheet
	who := "an agent pod that the run started on the source's node, not a workload, measured to "
	if c.ends[0][source].Kind == Workload {
		who = "an agent in the source's own pod measured to "
	}
	to := "a responder pod that the run started on the target's node"
	if c.ends[1][target].Kind == Workload {
		to = "the target's own pod"
	}
	return fmt.Sprintf("%s%s; %s check, round %d of %d, degree %d, seed %d",
		who, to, w.Kind, w.Round, w.Rounds, w.Degree, w.Seed)
}

// clip makes one harmless line of at most so many characters.
func clip(s string, most int) string {
	s = checkup.Clean(s)
	if len(s) <= most {
		return s
	}
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most-1]) + "…"
}
