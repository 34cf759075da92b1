// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Judge works out the report of one check. It walks the worksheet's expected
// pairs and asks of each what is known of it; doc.go has the rules. The gate's
// MaxUnmeasured decides between pass and inconclusive.
//
// It is pure, does not depend on the order of the record's observations and
// receptions, and does not keep or change its arguments. A nil roster or record
// means that nothing was set up or collected: every pair is unmeasured.
func Judge(w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate) checkup.CheckReport {
	if w.Placement != nil {
		return judgePlacement(w, record, gate)
	}
	j := newJudge(w, roster, record)
	outcomes := j.outcomes()
	r := checkup.CheckReport{Name: w.Check, Kind: w.Kind, Notes: notes(w)}
	for i := range outcomes {
		o := &outcomes[i]
		r.Counts.Expected++
		if seen := j.observed[i]; seen != nil {
			r.Sent += made(seen)
		}
		switch o.verdict {
		case checkup.Pass:
			r.Counts.Pass++
		case checkup.Fail:
			r.Counts.Fail++
			r.Failed = append(r.Failed, j.result(o))
		default:
			r.Counts.Unmeasured++
			r.Unmeasured = append(r.Unmeasured, j.result(o))
		}
	}
	r.Verdict = verdict(r.Counts, gate.MaxUnmeasured)
	r.Coverage = coverage(w, j.spans, outcomes)
	switch {
	case w.Connections != nil:
		r.Coverage.FailingUpperBound = nil // no sample: every pair is expected
		r.Delays = stageRows(j.attributes, outcomes)
		r.Findings = blame(w, outcomes)
		r.Connections = j.connections(outcomes)
		r.Matrix = matrix(w, outcomes)
	case w.Guests != nil:
		r.Coverage.FailingUpperBound = nil
		r.Delays = j.delayRows(outcomes)
		r.Findings = j.blameNetworks(outcomes)
		r.VMs = j.vms(outcomes)
		r.Notes = append(r.Notes, j.lossNotes(outcomes)...)
	default:
		r.Delays = j.delayRows(outcomes)
		r.Findings = localise(w, j.attributes, outcomes)
		r.Matrix = matrix(w, outcomes)
	}
	r.Agents = j.agentNotes()
	return r
}

// made is how many measurements were made, believed or not.
func made(o *checkup.Observation) int { return max(0, o.Sent) + max(0, o.Spoiled) }

// notes are what setup warned of.
func notes(w *checkup.Worksheet) []string {
	notes := slices.Clone(w.Warnings)
	if c := w.Connections; c != nil && c.Unwritten != "" {
		notes = append(notes, "no PodNetworkConnectivityChecks are written: "+c.Unwritten)
	}
	return notes
}

// NotMeasured is the report of a check that has no worksheet, because its setup
// failed or never ran. Its expected pairs are unknown, so it is inconclusive.
func NotMeasured(name string, kind checkup.Kind, cause checkup.Cause) checkup.CheckReport {
	return checkup.CheckReport{Name: name, Kind: kind, Verdict: checkup.RunInconclusive, Cause: &cause}
}

// Run says which run a report is of. Every field may be empty.
type Run struct {
	Namespace string
	Name      string // of the PipelineRun
	UID       string // of the PipelineRun
	Started   time.Time
	Finished  time.Time
}

// Join makes the report of a run from those of its checks. A check of the plan
// without a report is taken as NotMeasured. Leftovers are fixtures that teardown
// could not remove, as kind/name; they do not change the verdict, which is about
// the network.
func Join(plan *checkup.Plan, run Run, checks []checkup.CheckReport, leftovers []string) checkup.Report {
	r := checkup.Report{
		APIVersion: checkup.APIVersion, Kind: checkup.ReportKind,
		Plan: plan.Name, Namespace: run.Namespace, Run: run.Name, RunUID: run.UID,
		Started: run.Started, Finished: run.Finished,
		Gate: plan.Gate, Leftovers: slices.Clone(leftovers),
	}
	given := func(name string) func(checkup.CheckReport) bool {
		return func(c checkup.CheckReport) bool { return c.Name == name }
	}
	names := plan.CheckNames()
	for _, name := range names {
		if !slices.ContainsFunc(checks, given(name)) {
			r.Checks = append(r.Checks, NotMeasured(name, plan.Checks[name].Kind(),
				checkup.Cause{Stage: checkup.StageSetup, Message: "the check has no worksheet: its setup failed or did not run"}))
			continue
		}
		for _, c := range checks {
			if c.Name == name {
				r.Checks = append(r.Checks, c)
			}
		}
	}
	for _, c := range checks {
		if !slices.Contains(names, c.Name) {
			r.Checks = append(r.Checks, c)
		}
	}
	r.Verdict = checkup.RunInconclusive
	if len(r.Checks) > 0 {
		r.Verdict = checkup.RunPass
	}
	for _, c := range r.Checks {
		r.Verdict = worse(r.Verdict, c.Verdict)
		r.Counts = sum(r.Counts, c.Counts)
	}
	r.Passed = r.Gate.Require.Admits(r.Verdict)
	r.Summary = summary(&r)
	return r
}

// worse returns the worse of two verdicts; one that is not known is as bad as
// inconclusive, never better.
func worse(a, b checkup.RunVerdict) checkup.RunVerdict {
	if !slices.Contains(checkup.RunVerdicts, b) {
		b = checkup.RunInconclusive
	}
	if slices.Index(checkup.RunVerdicts, b) < slices.Index(checkup.RunVerdicts, a) {
		return b
	}
	return a
}

// verdict of a check with these counts.
func verdict(c checkup.Counts, maxUnmeasured checkup.Percent) checkup.RunVerdict {
	switch measured := c.Pass + c.Fail; {
	case c.Fail > 0:
		return checkup.RunFail
	case measured == 0:
		return checkup.RunInconclusive
	// A hair of tolerance, so that 1 of 20 is within "5%" in binary too. A
	// maximum that is not a number holds for nothing.
	case !(100*float64(c.Unmeasured)/float64(c.Expected) <= float64(maxUnmeasured)+1e-9):
		return checkup.RunInconclusive
	default:
		return checkup.RunPass
	}
}

// summary is one line for lists of runs.
func summary(r *checkup.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", r.Verdict)
	b.WriteString(score(r))
	findings := 0
	for _, check := range r.Checks {
		if check.Cause != nil {
			fmt.Fprintf(&b, "; %s was not measured: %s", check.Name, check.Cause)
		}
		findings += len(check.Findings)
	}
	for _, check := range r.Checks {
		if len(check.Findings) > 0 {
			fmt.Fprintf(&b, "; %s", check.Findings[0].Message)
			if findings > 1 {
				fmt.Fprintf(&b, " (and %s)", count(findings-1, "more finding"))
			}
			break
		}
	}
	for _, s := range []string{outages(r), measuredVMs(r)} {
		if s != "" {
			fmt.Fprintf(&b, "; %s", s)
		}
	}
	if len(r.Leftovers) > 0 {
		fmt.Fprintf(&b, "; %s left behind", count(len(r.Leftovers), "object"))
	}
	return b.String()
}

// score says how many of what passed.
func score(r *checkup.Report) string {
	var parts []string
	dry := false // there is a placement, if only a disabled one
	for _, unit := range units {
		var c checkup.Counts
		for i := range r.Checks {
			dry = dry || r.Checks[i].Placement != nil
			if unitOf(&r.Checks[i]) == unit {
				c = sum(c, r.Checks[i].Counts)
			}
		}
		if c.Expected > 0 {
			parts = append(parts, fmt.Sprintf("%d of %s passed, %d failed, %d unmeasured", c.Pass, count(c.Expected, unit), c.Fail, c.Unmeasured))
		}
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, "; ")
	case dry:
		return "nothing was to be placed"
	default:
		return "no pair was to be measured"
	}
}

// outages says how many connections passed although they had outages; empty if
// none did.
func outages(r *checkup.Report) string {
	n := 0
	var all []checkup.Outage
	for _, c := range r.Checks {
		for _, k := range c.Connections {
			if k.Verdict == checkup.Pass && len(k.Outages) > 0 {
				n++
				all = append(all, k.Outages...)
			}
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s that passed had outages, the longest of %s", count(n, "pair"), lasted(*longest(all)))
}

// units are what checks count.
var units = []string{"pair", "placement"}

// unitOf is what a check counts: sides of a placement, or else pairs.
func unitOf(c *checkup.CheckReport) string {
	if c.Placement != nil {
		return units[1]
	}
	return units[0]
}

func sum(a, b checkup.Counts) checkup.Counts {
	return checkup.Counts{Expected: a.Expected + b.Expected, Pass: a.Pass + b.Pass, Fail: a.Fail + b.Fail, Unmeasured: a.Unmeasured + b.Unmeasured}
}

// failure is the way in which a pair failed.
type failure uint8

const (
	lost    failure = iota + 1 // nothing, or less than the limit allows, came back
	slow                       // a delay or its variation was over a limit
	reached                    // something came through that must not
)

// outcome is what is known of one expected pair.
type outcome struct {
	pair    checkup.Pair
	attr    int // index of (family, transport, size) in attributesOf
	verdict checkup.Verdict
	cause   checkup.Cause
	failure failure
	// As observed; zero if unmeasured.
	sent, received, duplicates, reordered int
	rtts                                  []int64
	// direction in which requests of this pair were lost, by the target's count.
	direction checkup.Direction
	// carried is direction, or that of the same nodes' udp pairs.
	carried checkup.Direction
	// broken says that the worksheet itself is wrong here.
	broken bool
	// told is what a pair's Results come to, if they are to be believed, whatever
	// the verdict; nil for pairs of which no Result was told.
	told *told
}

// why it did not pass; nil if it did.
func (o *outcome) why() *checkup.Cause {
	if o.verdict == checkup.Pass {
		return nil
	}
	return &checkup.Cause{Stage: o.cause.Stage, Reason: o.cause.Reason, Message: or(o.cause.Message, "no reason was given")}
}

// judge holds the arguments of Judge, indexed.
type judge struct {
	w       *checkup.Worksheet
	roster  *checkup.Roster
	sources []source
	// expected pairs in the worksheet's order, and what they differ in
	pairs      []checkup.Pair
	attributes []attribute
	// spans are where the pairs of each assignment begin, with the end behind them;
	// first is where the assignments of each source begin in spans
	spans []int
	first []int
	// by position in pairs
	observed  []*checkup.Observation
	conflict  map[int]bool
	told      map[int]*told
	reception map[int]int
	// counted targets are those whose responder's count is known
	counted map[int]bool
	// full is how many requests the responder of a target dropped, by family
	full map[side]int
	// strays are observations that name no source of the worksheet, and results
	strays, strayResults int
}

// side is a target in one family.
type side struct {
	target int
	family checkup.IPFamily
}

// source is what is known of one source of the worksheet.
type source struct {
	recorded bool
	cause    *checkup.Cause
	ends     []*checkup.AgentEnd
	controls []checkup.Control
	told     int // observations
	results  int // results, each counted once
	alien    int // pairs that are none of its own on the worksheet
}

func newJudge(w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record) *judge {
	j := &judge{
		w: w, roster: roster,
		sources: make([]source, len(w.Assignments)), first: make([]int, len(w.Assignments)),
		pairs: make([]checkup.Pair, 0, w.CountPairs()), attributes: attributesOf(w),
		conflict: map[int]bool{}, told: map[int]*told{}, reception: map[int]int{}, counted: map[int]bool{}, full: map[side]int{},
	}
	for s, targets := range w.Assignments {
		j.first[s] = len(j.spans)
		for _, t := range targets {
			j.spans = append(j.spans, len(j.pairs))
			j.pairs = slices.AppendSeq(j.pairs, w.PairsBetween(s, t))
		}
	}
	j.spans = append(j.spans, len(j.pairs))
	j.observed = make([]*checkup.Observation, len(j.pairs))
	if record == nil {
		return j
	}
	for _, s := range record.Sources {
		if s.Source < 0 || s.Source >= len(j.sources) {
			continue
		}
		known := &j.sources[s.Source]
		known.recorded = true
		known.controls = append(known.controls, s.Controls...)
		if known.cause == nil {
			known.cause = s.Cause
		}
		if s.End != nil {
			known.ends = append(known.ends, s.End)
		}
		known.alien += s.Unrequested
		for _, p := range s.Conflicts {
			if at, ok := j.position(p); ok && p.Source == s.Source {
				j.conflict[at] = true
			}
		}
	}
	for i := range record.Observations {
		o := &record.Observations[i]
		if o.Source < 0 || o.Source >= len(j.sources) {
			j.strays++
			continue
		}
		j.sources[o.Source].told++
		at, ok := j.position(o.Pair)
		switch {
		case !ok:
			j.sources[o.Source].alien++
		case j.observed[at] == nil:
			j.observed[at] = o
		case !reflect.DeepEqual(j.observed[at], o):
			j.conflict[at] = true
			if made(o) > made(j.observed[at]) { // whichever came first
				j.observed[at] = o
			}
		}
	}
	j.fold(record.Results)
	for _, t := range record.Counted {
		j.counted[t] = true
	}
	for _, r := range record.Receptions {
		if at, ok := j.position(r.Pair); ok {
			j.reception[at] = max(j.reception[at], r.Packets)
		}
		to := side{r.Target, r.Family}
		j.full[to] = max(j.full[to], r.Dropped)
	}
	return j
}

// position finds a pair among the expected ones.
func (j *judge) position(p checkup.Pair) (int, bool) {
	if p.Source < 0 || p.Source >= len(j.w.Assignments) {
		return 0, false
	}
	targets := j.w.Assignments[p.Source]
	t, ok := slices.BinarySearch(targets, p.Target)
	if !ok {
		if t = slices.Index(targets, p.Target); t < 0 {
			return 0, false
		}
	}
	span := j.first[p.Source] + t
	for at := j.spans[span]; at < j.spans[span+1]; at++ {
		if j.pairs[at] == p {
			return at, true
		}
	}
	return 0, false
}

// outcomes of every expected pair, in the worksheet's order.
func (j *judge) outcomes() []outcome {
	all := make([]outcome, len(j.pairs))
	for span, end := range j.spans[1:] {
		from := j.spans[span]
		for i := from; i < end; i++ {
			o := &all[i]
			o.pair, o.attr = j.pairs[i], i-from
			if t := o.pair.Target; t >= 0 && t < len(j.w.Targets) && j.w.Targets[t].Peer != nil {
				o.attr = slices.Index(j.attributes, attribute{o.pair.Family, o.pair.Transport, o.pair.Size})
			}
			j.outcome(i, o)
		}
		carry(all[from:end])
	}
	return all
}

// outcome of one expected pair.
func (j *judge) outcome(at int, o *outcome) {
	if cause := j.unmeasured(at, o); cause != nil {
		o.verdict, o.cause = checkup.Unmeasured, *cause
		return
	}
	j.expect(at, o)
	if cause := j.dropped(at, o); cause != nil {
		o.verdict, o.failure, o.cause = checkup.Unmeasured, 0, *cause
	}
	if o.verdict == checkup.Pass && o.told != nil {
		if cause := j.incomplete(at); cause != nil {
			o.verdict, o.cause = checkup.Unmeasured, *cause
		}
	}
	if o.verdict == checkup.Unmeasured {
		o.sent, o.received, o.duplicates, o.reordered, o.rtts = 0, 0, 0, 0, nil
	} else if o.failure == lost {
		o.direction = j.direction(at)
	}
}

// unmeasured says why nothing that may be believed is known of a pair; nil if
// something is.
func (j *judge) unmeasured(at int, o *outcome) *checkup.Cause {
	p := j.pairs[at]
	if p.Source >= len(j.w.Sources) || p.Target < 0 || p.Target >= len(j.w.Targets) {
		o.broken = true
		return &checkup.Cause{Stage: checkup.StageSetup, Message: "the worksheet assigns a pair whose source or target it does not have"}
	}
	if cause := j.absent(p); cause != nil {
		return cause
	}
	s, seen := &j.sources[p.Source], j.observed[at]
	for _, c := range s.controls {
		if (c.Family == p.Family || p.Family == checkup.AnyIPFamily) && !c.OK {
			return &checkup.Cause{Stage: checkup.StageControl, Message: fmt.Sprintf("the %s got its control pair %q wrong (%s), so it is not trusted", j.teller(), c.Name, or(c.Message, "it did not say how"))}
		}
	}
	if seen == nil {
		switch {
		case s.cause != nil:
			return s.cause
		case !s.recorded:
			return &checkup.Cause{Stage: checkup.StageCollect, Message: "nothing was recorded of the source"}
		case len(s.ends) == 0:
			return &checkup.Cause{Stage: checkup.StageCollect, Message: fmt.Sprintf("the %s did not come to its end", j.teller())}
		default:
			return &checkup.Cause{Stage: checkup.StageCollect, Message: fmt.Sprintf("the %s ended without telling", j.teller())}
		}
	}
	if s.alien > 0 {
		return &checkup.Cause{Stage: checkup.StageCollect, Reason: checkup.ReasonUnrequested,
			Message: fmt.Sprintf("the %s reported %s, so it is not trusted", j.teller(), count(s.alien, "unrequested pair"))}
	}
	if j.conflict[at] {
		return &checkup.Cause{Stage: checkup.StageCollect, Reason: checkup.ReasonConflict,
			Message: fmt.Sprintf("the %s reported this pair twice, with different results", j.teller())}
	}
	if seen.Unmeasured != nil {
		return seen.Unmeasured
	}
	family := p.Family
	if family == checkup.AnyIPFamily && len(s.controls) > 0 {
		// Whichever was controlled; all of that are right, as was seen above.
		family = s.controls[0].Family
		for _, f := range checkup.IPFamilies {
			if s.controlled(f) == "" {
				family = f
			}
		}
	}
	if missing := s.controlled(family); missing != "" {
		return &checkup.Cause{Stage: checkup.StageControl, Message: fmt.Sprintf("the %s told no control pair %q, so it is not trusted", j.teller(), missing)}
	}
	return nil
}

// controlled returns the name of a control pair of the family that the agent did
// not tell; empty if it told them all.
func (s *source) controlled(f checkup.IPFamily) string {
	for _, name := range controlNames {
		if !slices.ContainsFunc(s.controls, func(c checkup.Control) bool { return c.Family == f && c.Name == name }) {
			return name
		}
	}
	return ""
}

// controlNames are the control pairs that an agent must tell for each family.
var controlNames = []string{"self", "closed"}

// absent says why the target could not be measured, by the roster.
func (j *judge) absent(p checkup.Pair) *checkup.Cause {
	if j.w.Guests != nil {
		return j.absentVM(p)
	}
	if j.roster == nil || p.Target >= len(j.roster.Targets) {
		return &checkup.Cause{Stage: checkup.StageSetup, Message: "the target is not on the roster"}
	}
	entry := j.roster.Targets[p.Target]
	if entry.Cause != nil {
		return entry.Cause
	}
	if j.w.Targets[p.Target].Peer == nil && entry.Addresses[p.Family] == "" {
		return &checkup.Cause{Stage: checkup.StageSetup, Message: fmt.Sprintf("the target has no %s address; if no pod of this cluster has one, leave it out of the plan's ipFamilies", p.Family)}
	}
	return nil
}

// expect holds an observation against the plan's expectations.
func (j *judge) expect(at int, o *outcome) {
	seen, told := j.observed[at], j.told[at]
	o.sent, o.received, o.duplicates, o.reordered, o.rtts = seen.Sent, seen.Received, seen.Duplicates, seen.Reordered, seen.RTTs
	unmeasured := func(stage checkup.Stage, format string, args ...any) {
		o.verdict, o.failure, o.cause = checkup.Unmeasured, 0, checkup.Cause{Stage: stage, Message: fmt.Sprintf(format, args...)}
	}
	ordered, expect := j.w.Measurements(o.pair), j.w.ExpectOf(o.pair)
	switch {
	case told != nil && told.wrong != "":
		unmeasured(checkup.StageCollect, "%s", told.wrong)
		return
	case told != nil && seen.Sent > ordered:
		unmeasured(checkup.StageCollect, "the agent told %d measurements, of %d ordered", seen.Sent, ordered)
		return
	case told != nil:
		o.told = told
	}
	if told == nil && (seen.Sent < 0 || seen.Spoiled < 0 || seen.Received < 0 || seen.Received > seen.Sent ||
		seen.Sent > ordered || len(seen.RTTs) != seen.Received ||
		slices.ContainsFunc(seen.RTTs, func(rtt int64) bool { return rtt < 0 })) {
		unmeasured(checkup.StageCollect, "the numbers do not add up: %d sent, %d spoiled and %d received with %d delays, of %d ordered",
			seen.Sent, seen.Spoiled, seen.Received, len(seen.RTTs), ordered)
		return
	}
	if seen.Failure != nil && !ofNetwork(seen.Failure.Stage) {
		o.verdict, o.cause = checkup.Unmeasured, *seen.Failure
		return
	}
	if seen.Spoiled > 0 && 2*seen.Sent < ordered {
		if told != nil {
			unmeasured(told.spoiled.Stage, "%d of %d measurements are none, and %d of %d ordered are good; the last of them: %s", seen.Spoiled, seen.Spoiled+seen.Sent, seen.Sent, ordered, told.spoiled.Message)
			return
		}
		unmeasured(checkup.StageSelf, "the %s was held up in %d of %d measurements, and %d of %d ordered are good", j.teller(), seen.Spoiled, seen.Spoiled+seen.Sent, seen.Sent, ordered)
		return
	}
	if seen.Sent == 0 {
		unmeasured(checkup.StageCollect, "no measurement was made")
		return
	}
	fail := func(f failure, stage checkup.Stage, message string) {
		if o.verdict == checkup.Fail {
			o.cause.Message += "; " + message
			return
		}
		o.verdict, o.failure, o.cause = checkup.Fail, f, checkup.Cause{Stage: stage, Message: message}
	}
	o.verdict = checkup.Pass
	if expect.Unreachable {
		if through := j.through(seen); through != "" {
			fail(reached, answerStage(seen.Pair), "must be unreachable, but "+through)
		}
	} else {
		j.limits(seen, expect, fail)
	}
	switch few := o.verdict == checkup.Pass && seen.Sent < ordered; {
	case few && seen.Spoiled > 0 && told != nil:
		unmeasured(told.spoiled.Stage, "%d of %d measurements are none, and %d of %d ordered are too few to pass; the last of them: %s", seen.Spoiled, seen.Spoiled+seen.Sent, seen.Sent, ordered, told.spoiled.Message)
	case few && seen.Spoiled > 0:
		unmeasured(checkup.StageSelf, "the %s was held up in %d of %d measurements, and %d of %d ordered are too few to pass", j.teller(), seen.Spoiled, seen.Spoiled+seen.Sent, seen.Sent, ordered)
	case few:
		unmeasured(checkup.StageCollect, "only %d of %d measurements were made: too few to pass", seen.Sent, ordered)
	}
}

// limits calls fail for each limit that the observation breaks.
func (j *judge) limits(seen *checkup.Observation, expect checkup.Expect, fail func(failure, checkup.Stage, string)) {
	stage := answerStage(seen.Pair)
	failed := checkup.Cause{Stage: stage, Message: "no answer"}
	if seen.Failure != nil {
		failed = *seen.Failure
	}
	if seen.Received == 0 {
		message := failed.Message
		if j.w.Guests != nil {
			message = fmt.Sprintf("no connectivity - 100%% packet loss (%s)", failed.Message)
		}
		fail(lost, failed.Stage, message)
		return
	}
	if limit := expect.Loss.Max; limit != nil {
		if loss := percent(seen.Sent-seen.Received, seen.Sent); loss > *limit {
			what := "lost"
			if seen.Stages != nil {
				what = "failed"
			}
			fail(lost, failed.Stage, fmt.Sprintf("%d of %d %s (%s), limit %s; last: %s", seen.Sent-seen.Received, seen.Sent, what, loss, limit, failed.Message))
		}
	}
	if c := j.w.Connections; c != nil && c.MaxOutage != nil {
		if o := longest(seen.Outages); o != nil && o.Duration() > time.Duration(*c.MaxOutage) {
			fail(lost, o.Cause.Stage, fmt.Sprintf("an outage of %s, limit %s, %s: %s", lasted(*o), c.MaxOutage, during(*o), o.Cause.Message))
		}
	}
	var sorted []int64
	for _, l := range expect.Latency.Ordered() {
		if l.Limit == nil {
			continue
		}
		if sorted == nil {
			sorted = slices.Clone(seen.RTTs)
			slices.Sort(sorted)
		}
		if rtt := quantile(sorted, l.Quantile); rtt > time.Duration(*l.Limit).Microseconds() {
			fail(slow, stage, j.over(l.Name, rtt, *l.Limit))
		}
	}
	if limit := expect.Jitter.Max; limit != nil {
		if v := jitter(seen.RTTs); v > time.Duration(*limit).Microseconds() {
			fail(slow, stage, j.over("jitter", v, *limit))
		}
	}
}

// over says that a delay, in microseconds, is over its limit: of VMs in the words
// of kiagnose's VM latency checkup.
func (j *judge) over(name string, us int64, limit checkup.Duration) string {
	if j.w.Guests == nil {
		return fmt.Sprintf("%s %s, limit %s", name, micros(us), limit)
	}
	if name != "jitter" {
		name += " latency"
	}
	return fmt.Sprintf("actual %s %q is greater than desired %q", name, micros(us), limit)
}

// through tells what came through to, or back from, a target that must be
// unreachable; empty if nothing did.
func (j *judge) through(seen *checkup.Observation) string {
	if seen.Received > 0 {
		return fmt.Sprintf("%d of %d were answered", seen.Received, seen.Sent)
	}
	if n := len(seen.Stages[checkup.StageConnect]); n > 0 {
		return fmt.Sprintf("%d of %d were connected", n, seen.Sent)
	}
	stream := seen.Transport == checkup.TCP || seen.Transport == checkup.HTTP
	if f := seen.Failure; f != nil && stream && (f.Stage == checkup.StageEcho || f.Stage == checkup.StageResponse) {
		return "it was connected to: " + f.Message
	}
	if at, ok := j.position(seen.Pair); ok && j.reception[at] > 0 {
		return fmt.Sprintf("%s arrived at the target", count(j.reception[at], "request"))
	}
	return ""
}

// ofNetwork reports whether a failure at the stage is one of the path; at the
// other stages it is one of ours.
func ofNetwork(s checkup.Stage) bool { return slices.Contains(networkStages, s) }

// networkStages are the stages at which a failure is one of the path.
var networkStages = []checkup.Stage{checkup.StageResolve, checkup.StageConnect, checkup.StageHandshake, checkup.StageEcho, checkup.StageResponse}

// answerStage is the stage at which a pair's delay is taken.
func answerStage(p checkup.Pair) checkup.Stage {
	switch {
	case p.Transport == checkup.HTTP:
		return checkup.StageResponse
	case p.Transport == checkup.TCP && p.Size == 0, p.Transport == checkup.TLS:
		return checkup.StageConnect
	default:
		return checkup.StageEcho
	}
}

// direction in which an observed udp pair lost packets, by what the target's
// responder counted. A responder of which no count is known, or whose count is
// older than the answers, tells nothing; nor does one whose count includes
// spoiled requests, unless it is all or nothing.
func (j *judge) direction(at int) checkup.Direction {
	seen := j.observed[at]
	if seen.Transport != checkup.UDP || !j.counted[seen.Target] {
		return checkup.DirectionUnknown
	}
	arrived, made := j.reception[at], seen.Sent+seen.Spoiled
	switch {
	case arrived < seen.Received:
		return checkup.DirectionUnknown
	case arrived == 0:
		return checkup.DirectionForward
	case arrived >= made:
		return checkup.DirectionReturn
	case seen.Spoiled > 0:
		return checkup.DirectionUnknown
	case arrived == seen.Received:
		return checkup.DirectionForward
	default:
		return checkup.DirectionBoth
	}
}

// dropped says that a udp pair's loss may be the responder's doing: all that it
// lost did not arrive there, and the responder's socket dropped as many requests
// or more for want of room. Then nothing is known of the network; nor if the
// target must be unreachable and nothing seems to have arrived.
func (j *judge) dropped(at int, o *outcome) *checkup.Cause {
	seen := j.observed[at]
	n := j.full[side{o.pair.Target, o.pair.Family}]
	suspect := o.failure == lost || o.verdict == checkup.Pass && j.w.Expect.Unreachable
	missing := seen.Sent + seen.Spoiled - j.reception[at]
	if !suspect || o.pair.Transport != checkup.UDP || !j.counted[o.pair.Target] || seen.Sent-seen.Received > missing || missing > n {
		return nil
	}
	return &checkup.Cause{Stage: checkup.StageSelf, Message: fmt.Sprintf("%d of %d requests did not arrive, but the responder's socket had no room for %d", missing, seen.Sent+seen.Spoiled, n)}
}

// carry lets what the udp pairs of one source and target tell of the direction
// hold for the other transports of the same family too, if all of those fail as
// well: one loss is then the simpler explanation.
func carry(pairs []outcome) {
	for _, family := range checkup.IPFamilies {
		directions, all := map[checkup.Direction]bool{}, true
		for i := range pairs {
			if o := &pairs[i]; o.pair.Family == family && o.verdict != checkup.Unmeasured {
				all = all && o.failure == lost
				if o.direction != checkup.DirectionUnknown {
					directions[o.direction] = true
				}
			}
		}
		told := checkup.DirectionUnknown
		for d := range directions {
			told = d
		}
		if len(directions) > 1 {
			told = checkup.DirectionBoth
		}
		for i := range pairs {
			if o := &pairs[i]; o.pair.Family == family && o.failure == lost {
				o.carried = o.direction
				if o.carried == checkup.DirectionUnknown && all {
					o.carried = told
				}
			}
		}
	}
}

// result of a pair that did not pass, by name.
func (j *judge) result(o *outcome) checkup.PairResult {
	r := checkup.PairResult{
		Source: name(j.w.Sources, o.pair.Source), Target: name(j.w.Targets, o.pair.Target),
		Family: o.pair.Family, Transport: o.pair.Transport, Size: o.pair.Size,
		Verdict: o.verdict, Cause: *o.why(), Sent: o.sent, Received: o.received, Direction: o.direction,
	}
	if len(o.rtts) > 0 {
		r.Delay = delay([][]int64{o.rtts})
	}
	return r
}

// name of an endpoint; an index that the worksheet does not have is told as such.
func name(of []checkup.Endpoint, i int) string {
	if i < 0 || i >= len(of) {
		return fmt.Sprintf("#%d", i)
	}
	return of[i].Name()
}

// Notes are worth reading when an agent's timers were this late, in microseconds.
const (
	lateP99 = 1_000
	lateMax = 50_000
)

// agentNotes tells what the agents said of themselves.
func (j *judge) agentNotes() []checkup.AgentNote {
	var notes []checkup.AgentNote
	for i, s := range j.sources {
		add := func(format string, args ...any) {
			notes = append(notes, checkup.AgentNote{Source: name(j.w.Sources, i), Note: fmt.Sprintf(format, args...)})
		}
		for _, c := range s.controls {
			if !c.OK {
				add("control pair %q (%s) wrong: %s", c.Name, c.Family, or(c.Message, "it did not say how"))
			}
		}
		if s.alien > 0 {
			add("reported %s", count(s.alien, "unrequested pair"))
		}
		for _, end := range s.ends {
			if end.Observations != s.told {
				add("says that it told %s; %d arrived", count(end.Observations, "pair"), s.told)
			}
			if end.Results != s.results {
				add("says that it told %s; %d arrived", count(end.Results, "measurement"), s.results)
			}
			if d := end.SelfDoubt; d.SchedulingDelayP99 >= lateP99 || d.SchedulingDelayMax >= lateMax {
				add("was held up: its timers were up to %s late (p99 %s)", micros(d.SchedulingDelayMax), micros(d.SchedulingDelayP99))
			}
			if t := end.SelfDoubt.ThrottledMicros; t != nil && *t > 0 {
				add("was throttled for %s by its CPU limit", micros(*t))
			}
		}
	}
	if j.strays > 0 {
		notes = append(notes, checkup.AgentNote{Source: "unknown", Note: fmt.Sprintf("%s of sources that the worksheet does not have", count(j.strays, "observation"))})
	}
	if j.strayResults > 0 {
		notes = append(notes, checkup.AgentNote{Source: "unknown", Note: fmt.Sprintf("%s of sources that the worksheet does not have", count(j.strayResults, "measurement"))})
	}
	return notes
}

// matrix is the source-by-target summary, or nil where it would be too large.
func matrix(w *checkup.Worksheet, outcomes []outcome) *checkup.Matrix {
	if len(w.Sources) == 0 || len(w.Targets) == 0 || len(w.Sources) > checkup.MatrixMax || len(w.Targets) > checkup.MatrixMax {
		return nil
	}
	type cell struct{ pass, fail, unmeasured int }
	cells := make([][]cell, len(w.Sources))
	for i := range cells {
		cells[i] = make([]cell, len(w.Targets))
	}
	for i := range outcomes {
		o := &outcomes[i]
		if o.broken {
			continue
		}
		switch c := &cells[o.pair.Source][o.pair.Target]; o.verdict {
		case checkup.Pass:
			c.pass++
		case checkup.Fail:
			c.fail++
		default:
			c.unmeasured++
		}
	}
	m := &checkup.Matrix{}
	for _, e := range w.Targets {
		m.Targets = append(m.Targets, e.Name())
	}
	for i, e := range w.Sources {
		m.Sources = append(m.Sources, e.Name())
		row := make([]byte, len(w.Targets))
		for k, c := range cells[i] {
			switch {
			case c.fail > 0 && c.pass+c.unmeasured == 0:
				row[k] = 'x'
			case c.fail > 0:
				row[k] = '/'
			case c.unmeasured > 0:
				row[k] = '?'
			case c.pass > 0:
				row[k] = '.'
			default:
				row[k] = ' '
			}
		}
		m.Cells = append(m.Cells, string(row))
	}
	return m
}

// attribute is what pairs of one source and target differ in.
type attribute struct {
	family    checkup.IPFamily
	transport checkup.Transport
	size      int
}

// attributesOf lists every family, transport and size of the worksheet, in its
// order, and behind them those that only targets with a Peer have.
func attributesOf(w *checkup.Worksheet) []attribute {
	var all []attribute
	for _, f := range w.IPFamilies {
		for _, p := range w.Probes {
			for _, z := range p.Sizes {
				all = append(all, attribute{f, p.Transport, z})
			}
		}
	}
	for _, t := range w.Targets {
		if t.Peer == nil {
			continue
		}
		if a := (attribute{t.Peer.Family, t.Peer.Transport, 0}); !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// delayRows summarises delays and losses by transport, family and size, of pairs
// whose delay is measured.
func (j *judge) delayRows(outcomes []outcome) []checkup.DelayRow {
	rows := make([]checkup.DelayRow, 0, len(j.attributes))
	for _, a := range j.attributes {
		rows = append(rows, checkup.DelayRow{Transport: a.transport, Family: a.family, Size: a.size})
	}
	rtts := make([][][]int64, len(j.attributes))
	for i := range outcomes {
		o := &outcomes[i]
		if o.verdict == checkup.Unmeasured || j.back(o.pair) {
			continue
		}
		row := &rows[o.attr]
		row.Pairs++
		row.Sent += o.sent
		row.Received += o.received
		row.Duplicates += o.duplicates
		row.Reordered += o.reordered
		rtts[o.attr] = append(rtts[o.attr], o.rtts)
	}
	for i := range rows {
		rows[i].Loss = percent(rows[i].Sent-rows[i].Received, rows[i].Sent)
		rows[i].Delay = delay(rtts[i])
	}
	return rows
}

// delay is the distribution of the delays of some pairs; nil if there are none.
func delay(pairs [][]int64) *checkup.Delay {
	all := slices.Concat(pairs...)
	if len(all) == 0 {
		return nil
	}
	sum, differences, n := 0.0, 0.0, 0
	for _, rtts := range pairs {
		for i, v := range rtts {
			sum += float64(v)
			if i > 0 {
				differences += math.Abs(float64(v - rtts[i-1]))
				n++
			}
		}
	}
	mean, squares := sum/float64(len(all)), 0.0
	for _, v := range all {
		squares += (float64(v) - mean) * (float64(v) - mean)
	}
	d := &checkup.Delay{Mean: int64(math.Round(mean)), StdDev: int64(math.Round(math.Sqrt(squares / float64(len(all)))))}
	if n > 0 {
		d.Jitter = int64(math.Round(differences / float64(n)))
	}
	slices.Sort(all)
	d.Min, d.Max = all[0], all[len(all)-1]
	d.P50, d.P90, d.P95, d.P99 = quantile(all, 0.50), quantile(all, 0.90), quantile(all, 0.95), quantile(all, 0.99)
	return d
}

// jitter is the mean absolute difference of consecutive delays; 0 for fewer than
// two.
func jitter(rtts []int64) int64 {
	if d := delay([][]int64{rtts}); d != nil {
		return d.Jitter
	}
	return 0
}

// quantile is the nearest-rank quantile of sorted values: the smallest of them
// such that at least the share q are not above it. It is always a value that
// was measured, and the largest one where there are too few to tell.
func quantile(sorted []int64, q float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	// 0.99*100 is a little more than 99 in binary, hence the hair.
	rank := int(math.Ceil(q*float64(len(sorted)) - 1e-9))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// percent is part of whole, rounded to a thousandth; 0 of 0 is 0.
func percent(part, whole int) checkup.Percent {
	if whole == 0 {
		return 0
	}
	return checkup.Percent(math.Round(100_000*float64(part)/float64(whole)) / 1000)
}

// micros prints microseconds as a duration.
func micros(us int64) string { return (time.Duration(us) * time.Microsecond).String() }

// count prints a number with its noun, in the plural where it is.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// or returns s, or what to say where it is empty.
func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
