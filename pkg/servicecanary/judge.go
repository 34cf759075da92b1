// SPDX-License-Identifier: Apache-2.0

package servicecanary

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/servicecheck"
	"github.com/checkplan/checkplan/pkg/stats"
)

// Judge returns the report of a serviceCanary check. Its units are the pairs that failed or were not measured.
//
// It is pure. A nil roster or record means that nothing was set up or collected.
func Judge(
	w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate,
) checkup.CheckReport {
	sheet, err := SheetOf(w)
	if err != nil {
		return judge.NotMeasured(w.Check, w.Kind, checkup.Cause{Stage: checkup.StageSetup, Message: err.Error()})
	}
	l := newLooks(w, sheet, roster, record, gate)
	j := l.judge(w, record)
	servicecheck.Merge(j, w, record, l.judge)
	for i := range j.Outcomes { // what turns is measured once, and decides at once
		if o := &j.Outcomes[i]; l.state.turns(o.Pair) {
			o.Look = nil
		}
	}
	l.excuse(j)
	r := j.Report(gate)
	r.Units = j.Troubled()
	for i := range r.Units {
		label(&r.Units[i], w)
	}
	answered := *j
	answered.Outcomes = slices.DeleteFunc(slices.Clone(j.Outcomes), func(o judge.Outcome) bool {
		v := l.views[o.Pair]
		return v == nil || v.action != nodestate.Forward
	})
	r.Delays = answered.DelayRows()
	r.Findings = findings(j, l)
	r.Blocks = blocks(j, l)
	judge.Confirm(&r, gate)
	return r
}

// Again returns the worksheet of the second look: those of servicecheck.LookAgain without those that turn, which cannot
// be measured again. It is nil if there are none, if the gate does not want failures to be confirmed, and
// after the second look.
func Again(
	w *checkup.Worksheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate,
) *checkup.Worksheet {
	sheet, err := SheetOf(w)
	if err != nil || !gate.Confirm || w.Look > 0 {
		return nil
	}
	l := newLooks(w, sheet, roster, record, gate)
	j := l.judge(w, record)
	j.Outcomes = slices.DeleteFunc(j.Outcomes, func(o judge.Outcome) bool { return l.state.turns(o.Pair) })
	return servicecheck.LookAgain(j, func(p checkup.Pair) bool {
		v := l.views[p]
		return v != nil && v.action == nodestate.Forward
	})
}

// looks judges the looks at a worksheet.
type looks struct {
	w      *checkup.Worksheet
	sheet  *Sheet
	roster *checkup.Roster
	state  *state
	gate   checkup.Gate
	// responders are the targets that the endpoints are, by address.
	responders map[string]checkup.Endpoint
	// views are what the last look at each measured pair showed.
	views map[checkup.Pair]*view
}

// view is who may answer a pair, and who did.
type view struct {
	must
	answered map[string]int
	// missing are endpoints that never answered although they must, and wrong those that answered and must not, both
	// sorted: those of a failed pair.
	missing, wrong []string
	// rewritten is the source address that an endpoint saw although it must see another one; empty if none did.
	rewritten string
	// later are the endpoints that answered after the session affinity, and sticks says that it did not end.
	later  []string
	sticks bool
	// before is what the look before showed; nil in the first one.
	before *view
}

// mustNot reports whether an endpoint must not be used.
func (m must) mustNot(address string) bool { return !slices.Contains(m.endpoints, address) }

func newLooks(
	w *checkup.Worksheet, sheet *Sheet, roster *checkup.Roster, record *checkup.Record, gate checkup.Gate,
) *looks {
	l := &looks{
		w: w, sheet: sheet, roster: roster, state: stateOf(w, roster, record), gate: gate,
		responders: map[string]checkup.Endpoint{}, views: map[checkup.Pair]*view{},
	}
	if roster != nil {
		for t, e := range roster.Targets {
			if t < len(w.Targets) && w.Targets[t].IsFixture() {
				for _, address := range e.Addresses {
					l.responders[address] = w.Targets[t]
				}
			}
		}
	}
	return l
}

// judge judges one look by its record.
func (l *looks) judge(w *checkup.Worksheet, record *checkup.Record) *judge.Judgement {
	j := judge.Pairs(w, l.roster, record, judge.Rules{LooksAgain: l.gate.Confirm, Pools: true})
	observed := map[checkup.Pair]*checkup.Observation{}
	own := map[int]map[checkup.IPFamily]string{} // by source
	if record != nil {
		for i := range record.Observations {
			observed[record.Observations[i].Pair] = &record.Observations[i]
		}
		for _, s := range record.Sources {
			own[s.Source] = s.Addresses
		}
	}
	tests := 0
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if o.Verdict == checkup.Unmeasured {
			continue
		}
		v, cause := l.view(o, observed[o.Pair], own[o.Pair.Source])
		if cause != nil {
			unmeasured(o, *cause)
			continue
		}
		v.before = l.views[o.Pair]
		l.views[o.Pair] = v
		if l.shares(v) {
			tests += 2 * len(v.endpoints)
		}
	}
	level, doubt := judge.Level(w, tests), 0.0
	if l.gate.Confirm && w.Look == 0 { // a further look decides
		doubt = judge.Doubt / float64(max(tests, 1))
	}
	for i := range j.Outcomes {
		if o := &j.Outcomes[i]; o.Verdict != checkup.Unmeasured {
			l.compare(w, o, l.views[o.Pair], level, doubt)
		}
	}
	l.forget(j)
	return j
}

// forget leaves the pairs of a node and a Service with session affinity undecided that do not end it: each connection
// after its timeout leads to the endpoint of the one before it, in all of these pairs, although they choose
// independently of each other. All nodes together have a quarter of judge.FalseAlarms, as the shares have. These pairs
// do not fail: IPVS keeps the affinity of a client as long as the kernel remembers its closed connections. If the look
// before left them undecided, and this one cannot show that the affinity ends, they are unmeasured in this one.
//
// Where endpoints need not have equal shares, one that is chosen again shows nothing.
func (l *looks) forget(j *judge.Judgement) {
	if l.sheet.Share != ShareEven {
		return
	}
	type client struct {
		source  int
		service string
	}
	chance := map[client]float64{}
	pairs := map[client][]*judge.Outcome{}
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		v := l.views[o.Pair]
		if o.Verdict != checkup.Pass || v == nil || !v.one || v.action != nodestate.Forward || len(v.answered) != 1 {
			continue
		}
		c := client{o.Pair.Source, serviceOf(l.w.Targets[o.Pair.Target])}
		if pairs[c] = append(pairs[c], o); len(pairs[c]) == 1 {
			chance[c] = 1
		}
		last := slices.Collect(maps.Keys(v.answered))[0] // the only one
		for _, address := range v.later {
			if chance[c] /= float64(len(v.endpoints)); address != last {
				chance[c] = math.Inf(1)
			}
			last = address
		}
	}
	level := judge.Level(l.w, len(pairs))
	for c, of := range pairs {
		for _, o := range of {
			v := l.views[o.Pair]
			switch {
			case chance[c] <= level && len(v.later) > 0:
				v.sticks = true
				o.Verdict = checkup.Undecided
				o.Cause = checkup.Cause{Stage: checkup.StageEcho, Reason: checkup.ReasonShare, Message: fmt.Sprintf(
					"%s answered all %d further connections, each made after the timeout of the session affinity, which chance does "+
						"not explain: the affinity does not end, or the proxy keeps it while the kernel remembers closed connections, "+
						"as IPVS does", l.names(v.later[:1]), len(v.later))}
			case !math.IsInf(chance[c], 1) && v.before != nil && v.before.sticks:
				l.views[o.Pair] = v.before
				unmeasured(o, checkup.Cause{Stage: checkup.StageCollect, Message: fmt.Sprintf(
					"only %s after the timeout of the session affinity: too few to show whether it ends",
					checkup.Count(len(v.later), "connection"))})
			}
		}
	}
}

// view returns who may answer a measured pair, and who did; or why that is not known.
func (l *looks) view(
	o *judge.Outcome, seen *checkup.Observation, own map[checkup.IPFamily]string,
) (*view, *checkup.Cause) {
	v := &view{answered: map[string]int{}, later: seen.Later}
	sum := 0
	for _, a := range seen.Answerers {
		if a.Count < 1 || a.Count > o.Received-sum {
			return nil, &checkup.Cause{
				Stage: checkup.StageCollect, Message: "the agent reports more answers by endpoint than it received",
			}
		}
		v.answered[a.Address] += a.Count
		sum += a.Count
	}
	if sum < o.Received {
		return nil, &checkup.Cause{Stage: checkup.StageCollect,
			Message: "the agent does not report who answered: the agent, or a " +
				"responder, is of an older version"}
	}
	fixture, isService := l.w.ServiceOf(o.Pair.Target)
	switch {
	case !isService:
		itself := l.roster.Targets[o.Pair.Target].Addresses[o.Pair.Family]
		v.must = must{action: nodestate.Forward, endpoints: []string{itself}}
		return v, nil
	case fixture.Name == hairpinService:
		address := own[o.Pair.Family]
		if address == "" {
			return nil, &checkup.Cause{Stage: checkup.StageCollect, Message: "the agent's own address is not known"}
		}
		v.must = must{action: nodestate.Forward, endpoints: []string{address}}
		return v, nil
	case l.state.unknown != nil:
		return nil, l.state.unknown
	}
	at := l.state.before
	if l.state.turns(o.Pair) {
		if l.state.unknownTurned != nil {
			return nil, l.state.unknownTurned
		}
		at = l.state.turned
	}
	var ok bool
	if v.must, ok = l.state.of(at, o.Pair); !ok {
		return nil, &checkup.Cause{
			Stage: checkup.StageSetup, Message: "the Service did not exist any more when measuring began",
		}
	}
	wrong := slices.ContainsFunc(slices.Collect(maps.Keys(v.answered)), v.mustNot)
	if seen.Unturned && !wrong && (o.Received > 0 || v.action != nodestate.Forward) {
		return nil, &checkup.Cause{Stage: checkup.StageCollect,
			Message: "the endpoint did not change while this node's agent " +
				"measured: the agent began too late, or no other endpoint is ready"}
	}
	if v.preserved {
		if seen.Witnessed < o.Received {
			return nil, &checkup.Cause{Stage: checkup.StageCollect,
				Message: "the agent does not report which source address the " +
					"endpoint saw: the agent, or a responder, is of an older version"}
		}
		// On the way to the other node, the network may have put an address of the first node in the place of the agent's.
		if seen.SeenAs != "" && !slices.ContainsFunc(l.w.Sources[o.Pair.Source].Exits, func(exit string) bool {
			return sameAddress(exit, seen.SeenAs)
		}) {
			v.rewritten = seen.SeenAs
		}
	}
	return v, nil
}

// sameAddress reports whether two texts are the same IP address.
func sameAddress(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, wrong := netip.ParseAddr(b)
	return err == nil && wrong == nil && x.Unmap() == y.Unmap()
}

// unmeasured makes an outcome unmeasured.
func unmeasured(o *judge.Outcome, cause checkup.Cause) {
	o.Verdict, o.Cause, o.Breaches, o.Failure, o.Sent, o.Received, o.RTTs = checkup.Unmeasured, cause, nil, 0, 0, 0, nil
}

// shares reports whether the shares of the endpoints are tested.
func (l *looks) shares(v *view) bool {
	return v.action == nodestate.Forward && !v.one && len(v.endpoints) > 1
}

// compare judges a measured pair by who answered. Of each test of a share, a probability up to level fails the pair,
// and one up to doubt leaves it undecided.
func (l *looks) compare(w *checkup.Worksheet, o *judge.Outcome, v *view, level, doubt float64) {
	if v.action != nodestate.Forward {
		how, expected := l.sheet.Closed, servicecheck.Refused
		if o.Pair.Transport == checkup.UDP { // a host need not send ICMP errors
			how = servicecheck.ClosedAny
		}
		if v.action == nodestate.Drop {
			expected = servicecheck.Dropped
		}
		for address := range v.answered {
			v.wrong = append(v.wrong, address)
		}
		slices.Sort(v.wrong)
		servicecheck.MustNotConnect(w, o, expected, how)
		return
	}
	for address := range v.answered {
		if v.mustNot(address) {
			v.wrong = append(v.wrong, address)
		}
	}
	slices.Sort(v.wrong)
	for _, address := range v.endpoints {
		if v.answered[address] == 0 && !v.one {
			v.missing = append(v.missing, address)
		}
	}
	fail := func(failure judge.Failure, reason checkup.Reason, format string, args ...any) {
		o.Verdict, o.Failure, o.Breaches = checkup.Fail, failure, nil
		o.Cause = checkup.Cause{Stage: checkup.StageEcho, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(v.wrong) > 0:
		n := 0
		for _, address := range v.wrong {
			n += v.answered[address]
		}
		fail(judge.Reached, checkup.ReasonReached, "%d of %d answered by %s, which this node must not use for the Service",
			n, o.Sent, l.names(v.wrong))
		return
	case v.rewritten != "":
		fail(judge.Rewritten, "", "the endpoint saw the source address %s, which is neither the agent's nor its node's: "+
			"externalTrafficPolicy Local must preserve it", v.rewritten)
		return
	case o.Verdict == checkup.Fail && o.Received > 0 && len(v.missing) > 0 && len(v.endpoints) > 1:
		o.Cause.Reason = checkup.ReasonUnreached
		o.Cause.Message = fmt.Sprintf("%s never answers through the Service; %s", l.names(v.missing), o.Cause.Message)
		return
	case o.Verdict != checkup.Pass:
		return
	case v.one && len(v.answered) > 1:
		fail(judge.Lost, checkup.ReasonShare, "%s answered, although the session affinity allows one endpoint",
			checkup.Count(len(v.answered), "endpoint"))
		return
	case !l.shares(v):
		return
	}
	even := 1 / float64(len(v.endpoints))
	for _, address := range v.endpoints {
		n := v.answered[address]
		// X is the number of answers of this endpoint; of n or less, as many of the others.
		atMost := stats.AtLeast(o.Received-n, o.Received, 1-even)
		atLeast := stats.AtLeast(n, o.Received, even)
		chance := 1.0
		if l.sheet.Share == ShareEven {
			chance = min(atMost, atLeast)
		}
		switch {
		case n == 0 && atMost <= level:
			fail(judge.Lost, checkup.ReasonUnreached, "%s is never reached, in %d of %d answers",
				l.names(v.missing), o.Received, o.Sent)
			return
		case n > 0 && chance <= level:
			fail(judge.Lost, checkup.ReasonShare, "%s gave %d of %d answers, expected 1 in %d; chance does not explain the difference",
				l.names([]string{address}), n, o.Received, len(v.endpoints))
			return
		case n == 0 || chance <= doubt:
			o.Verdict = checkup.Undecided
			o.Cause = checkup.Cause{Stage: checkup.StageEcho, Reason: checkup.ReasonShare, Message: fmt.Sprintf(
				"%s gave %d of %d answers, expected 1 in %d; chance may explain the difference",
				l.names([]string{address}), n, o.Received, len(v.endpoints))}
		}
	}
}

// names words addresses of endpoints: "10.244.1.5 (worker-1)".
func (l *looks) names(addresses []string) string {
	var all []string
	for _, a := range addresses {
		if e, ok := l.responders[a]; ok {
			a = fmt.Sprintf("%s (%s)", a, e.Node)
		}
		all = append(all, a)
	}
	return "endpoint " + strings.Join(all, ", ")
}

// labels words endpoints: "endpoint on worker-1", whatever the family; an unknown address as it is.
func (l *looks) labels(addresses []string) string {
	var all []string
	for _, a := range addresses {
		if e, ok := l.responders[a]; ok {
			a = e.Name()
		}
		all = append(all, a)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// excuse makes the pairs unmeasured that did not pass, and whose Service changed, or may have, while it was measured.
// The path to a responder itself does not change, and the endpoints of hairpinService are the agents, which come and
// go.
func (l *looks) excuse(j *judge.Judgement) {
	servicecheck.ExcuseBy(j, func(o *judge.Outcome) *checkup.Cause {
		fixture, ok := l.w.ServiceOf(o.Pair.Target)
		switch {
		case !ok || fixture.Name == hairpinService:
			return nil
		case l.state.unknownAfter != nil:
			return l.state.unknownAfter
		case l.state.changed(o.Pair):
			return &servicecheck.Changed
		}
		return nil
	})
}

// Labels of units.
const labelService = "service"

// label adds which Service a unit's target is.
func label(u *checkup.Unit, w *checkup.Worksheet) {
	i := slices.IndexFunc(w.Targets, func(e checkup.Endpoint) bool { return e.Name() == u.Target })
	if i < 0 {
		return
	}
	u.Labels = map[string]string{labelService: serviceOf(w.Targets[i]), checkup.UnitSourceNode: u.Source}
}

// serviceOf names the Service that a target is, or that has the responder that it is.
func serviceOf(e checkup.Endpoint) string { return cmp.Or(e.OfService, endpointsService) }

// blocks say of each Service how its pairs did, and how the endpoints share what was answered.
func blocks(j *judge.Judgement, l *looks) []checkup.Block {
	counts := map[string]checkup.Counts{}
	expects := map[string]map[string]bool{}
	type shares struct{ least, most checkup.Percent }
	of := map[string]shares{}
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		name := serviceOf(l.w.Targets[o.Pair.Target])
		counts[name] = judge.Sum(counts[name], judge.Counted(o.Verdict))
		v := l.views[o.Pair]
		if o.Verdict == checkup.Unmeasured || v == nil {
			continue
		}
		if expects[name] == nil {
			expects[name] = map[string]bool{}
		}
		expects[name][expected(v)] = true
		if !l.shares(v) || o.Received == 0 {
			continue
		}
		s, ok := of[name]
		for _, address := range v.endpoints {
			share := checkup.PercentOf(v.answered[address], o.Received)
			if !ok {
				s, ok = shares{share, share}, true
			}
			s.least, s.most = min(s.least, share), max(s.most, share)
		}
		of[name] = s
	}
	table := &checkup.Table{Noun: "Service", Columns: []checkup.Column{
		{Name: "Service"}, {Name: "endpoints"}, {Name: "pairs", Measure: checkup.MeasureCount},
		{Name: "pass", Measure: checkup.MeasureCount}, {Name: "fail", Measure: checkup.MeasureCount},
		{Name: "unmeasured", Measure: checkup.MeasureCount}, {Name: "least share", Measure: checkup.MeasurePercent},
		{Name: "most", Measure: checkup.MeasurePercent}, {Name: "undecided", Measure: checkup.MeasureCount},
	}}
	for _, s := range l.w.Services {
		c, ok := counts[s.Name]
		if !ok {
			continue
		}
		least, most := checkup.Text(""), checkup.Text("")
		if x, ok := of[s.Name]; ok {
			least, most = checkup.Number(x.least), checkup.Number(x.most)
		}
		table.Rows = append(table.Rows, []checkup.Cell{
			checkup.Text(s.Name), checkup.Text(strings.Join(slices.Sorted(maps.Keys(expects[s.Name])), ", ")),
			checkup.Number(c.Expected), checkup.Number(c.Pass),
			checkup.Number(c.Fail), checkup.Number(c.Unmeasured), least, most, checkup.Number(c.Undecided),
		})
	}
	return []checkup.Block{{Title: "Services of this check", Table: table}}
}

// expected words how many endpoints must answer.
func expected(v *view) string {
	switch {
	case v.action == nodestate.Reject:
		return "refused"
	case v.action == nodestate.Drop:
		return "dropped"
	case v.one:
		return fmt.Sprintf("one of %d", len(v.endpoints))
	}
	return strconv.Itoa(len(v.endpoints))
}
