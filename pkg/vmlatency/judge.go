// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/localise"
)

// Judge returns the report of a vmLatency check. Each pair of VMs has two units for
// each family: there and back.
//
// It is pure. A nil roster or record means that nothing was set up or collected.
func Judge(
	w *checkup.Worksheet,
	roster *checkup.Roster,
	record *checkup.Record,
	gate checkup.Gate,
) checkup.CheckReport {
	v := &vms{w: w, roster: roster}
	j := judge.Pairs(w, roster, record, v.rules())
	r := j.Report(gate)
	r.Coverage = nil // no sample: every pair is expected
	r.Findings = v.findings(j)
	r.Notes = append(r.Notes, v.lossNotes(j)...)
	pairs := v.pairs(j)
	for _, p := range pairs {
		r.Units = append(r.Units, p.units...)
	}
	r.Complete = true
	r.Blocks, r.BlocksListUnits = listing(pairs), true
	r.Said = said(pairs)
	return r
}

// Compare adds to the report of a check what is worse than in earlier runs, explained as its failures are: each pair
// from its source. Back, only connectivity is measured.
func Compare(before *history.History, at time.Time, sheet history.Sheet, gate checkup.Gate, r *checkup.CheckReport) {
	v := &vms{w: sheet.Worksheet, roster: sheet.Roster}
	localise.Compare(before, at, sheet, v.rules(), v.differences, r)
}

func (v *vms) rules() judge.Rules { return judge.Rules{Reporter: "guest", Absent: v.absent} }

// vms has the VMs of a check from worksheet and roster. A VM is an index in the
// worksheet's sources, which are also its targets.
type vms struct {
	w      *checkup.Worksheet
	roster *checkup.Roster
}

// vm at an index; nil if the worksheet has none.
func (v *vms) vm(i int) *checkup.VM {
	if i < 0 || i >= len(v.w.Sources) {
		return nil
	}
	return v.w.Sources[i].VM
}

// back reports whether a pair is from the target VM to the source VM.
func (v *vms) back(p checkup.Pair) bool {
	vm := v.vm(p.Source)
	return vm != nil && vm.Target
}

// absent says why one of two VMs was not running, by worksheet and roster: the same
// for both ways.
func (v *vms) absent(p checkup.Pair) *checkup.Cause {
	vms := [2]int{min(p.Source, p.Target), max(p.Source, p.Target)}
	var causes [2]*checkup.Cause
	for i, vm := range vms {
		if vm >= len(v.w.Sources) || vm >= len(v.w.Targets) {
			return &checkup.Cause{Stage: checkup.StageSetup, Message: "the worksheet does not have this VM"}
		}
		if cause := v.w.Sources[vm].Cause; cause != nil {
			return cause // the same for both VMs, and it names its object
		}
		switch entry := v.entry(vm); {
		case entry == nil:
			causes[i] = &checkup.Cause{Stage: checkup.StageSetup, Message: "the VM is not on the roster"}
		case entry.Cause != nil:
			causes[i] = entry.Cause
		case entry.Addresses[p.Family] == "":
			causes[i] = &checkup.Cause{Stage: checkup.StageSetup, Message: fmt.Sprintf("the VM has no %s address", p.Family)}
		}
	}
	a, b := causes[0], causes[1]
	about := 0
	switch {
	case a == nil && b == nil:
		return nil
	case a != nil && b != nil && *a == *b:
		return a
	case a == nil, b != nil && a.Reason == checkup.ReasonOtherVM:
		about = 1
	}
	return &checkup.Cause{
		Stage: causes[about].Stage, Message: fmt.Sprintf("VM %s: %s", v.name(vms[about]), causes[about].Message),
	}
}

// entry of a VM on the roster; nil if it has none.
func (v *vms) entry(vm int) *checkup.RosterEntry {
	if v.roster == nil || vm < 0 || vm >= len(v.roster.Targets) {
		return nil
	}
	return &v.roster.Targets[vm]
}

// node is where a VM ran; empty if it did not.
func (v *vms) node(vm int) string {
	if e := v.entry(vm); e != nil {
		return e.Node
	}
	return ""
}

// network of a pair of VMs.
func (v *vms) network(p checkup.Pair) checkup.NetworkRef {
	if vm := v.vm(p.Source); vm != nil {
		return vm.Network
	}
	return checkup.NetworkRef{}
}

// short is the name of a VM on its network. It is the same in every run.
func (v *vms) short(i int) string {
	if vm := v.vm(i); vm != nil && vm.Name != "" {
		return vm.Name
	}
	return judge.Name(v.w.Sources, i)
}

// name is short, with the node that the VM ran on unless the plan names it.
func (v *vms) name(i int) string {
	s, node := v.short(i), v.node(i)
	if node == "" || i >= len(v.w.Sources) || v.w.Sources[i].Node != "" {
		return s
	}
	return fmt.Sprintf("%s (%s)", s, node)
}

// way is "<source> -> <target>" of a pair of VMs.
func (v *vms) way(p checkup.Pair) string { return v.name(p.Source) + " -> " + v.name(p.Target) }

// vmPair is one pair of VMs with its units.
type vmPair struct {
	// source and target are the names of the VMs
	source, target, network string
	// units there and back of each family, alternating; a way that the worksheet does
	// not expect has none
	units []checkup.Unit
}

// pairs of VMs, in the order of the worksheet.
func (v *vms) pairs(j *judge.Judgement) []*vmPair {
	var pairs []*vmPair
	at := map[[2]int]*vmPair{}
	listed := map[checkup.Pair]bool{}
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		p := o.Pair
		if listed[p] {
			continue
		}
		key := [2]int{min(p.Source, p.Target), max(p.Source, p.Target)}
		pair := at[key]
		if pair == nil {
			network := cmp.Or(v.network(p).String(), "no network")
			pair = &vmPair{source: v.name(p.Source), target: v.name(p.Target), network: network}
			at[key], pairs = pair, append(pairs, pair)
		}
		back := p
		back.Source, back.Target = p.Target, p.Source
		for _, o := range []*judge.Outcome{o, j.Find(back)} {
			if o != nil && !listed[o.Pair] {
				listed[o.Pair] = true
				pair.units = append(pair.units, v.unit(j, o))
			}
		}
	}
	return pairs
}

// unit is one way of a pair of VMs in one family.
func (v *vms) unit(j *judge.Judgement, o *judge.Outcome) checkup.Unit {
	p := o.Pair
	u := j.Unit(o)
	u.Name = fmt.Sprintf("%s -> %s over %s %s", v.short(p.Source), v.short(p.Target), v.network(p), p.Family)
	u.Labels = map[string]string{checkup.UnitNetwork: v.network(p).String(), checkup.UnitWay: checkup.WayThere}
	nodes := map[string]string{checkup.UnitSourceNode: v.node(p.Source), checkup.UnitTargetNode: v.node(p.Target)}
	for label, node := range nodes {
		if node != "" {
			u.Labels[label] = node
		}
	}
	if v.back(p) {
		// One answer is enough here: limits and delays belong to the other way.
		u.Labels[checkup.UnitWay], u.Delay = checkup.WayBack, nil
		return u
	}
	if probe, ok := v.w.Probe(p.Transport); ok && o.Sent > 0 {
		u.Values = append(u.Values, checkup.Value{
			Name: checkup.UnitDuration, Measure: checkup.MeasureMicroseconds,
			Value: float64(o.Sent) * float64(probe.Interval) / 1e3,
		})
	}
	return u
}

// lossNotes names each pair that lost echo requests and did not fail for it, nor is undecided because of it.
func (v *vms) lossNotes(j *judge.Judgement) []string {
	var notes []string
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if o.Received == 0 || o.Received == o.Sent {
			continue
		}
		loss, limit := checkup.PercentOf(o.Sent-o.Received, o.Sent), "the plan sets no limit"
		if v.back(o.Pair) {
			limit = "connectivity needs one"
		}
		if most := v.w.ExpectOf(o.Pair).Loss.Max; most != nil {
			if slices.ContainsFunc(o.Breaches, func(b checkup.Breach) bool { return b.Limit == checkup.LimitLoss }) {
				continue // its cause
			}
			if limit = "the limit is " + most.String(); loss > *most {
				limit += ", but so few requests do not prove that it is exceeded"
			}
		}
		notes = append(notes, fmt.Sprintf(
			"%s to %s over %s, %s: %d of %d echo requests were not answered (%s); %s",
			v.name(
				o.Pair.Source,
			),
			v.name(o.Pair.Target),
			v.network(o.Pair),
			o.Pair.Family,
			o.Sent-o.Received,
			o.Sent,
			loss,
			limit,
		))
	}
	return notes
}

// worstFirst orders verdicts.
var worstFirst = []checkup.Verdict{checkup.Fail, checkup.Unmeasured, checkup.Undecided, checkup.Pass}

// worst verdict of the units of a pair.
func (p *vmPair) worst() checkup.Verdict {
	for _, v := range worstFirst {
		if slices.ContainsFunc(p.units, func(u checkup.Unit) bool { return u.Verdict == v }) {
			return v
		}
	}
	return checkup.Pass
}

// causes say why a pair has a verdict, a line for each cause: alone if every unit has
// it, else with its units.
func (p *vmPair) causes(verdict checkup.Verdict) []string {
	var causes []string
	of := map[string][]string{}
	for i := range p.units {
		u := &p.units[i]
		if u.Cause == nil || u.Verdict != verdict {
			continue
		}
		s, what := u.Cause.String(), string(u.Family)
		if u.Labels[checkup.UnitWay] == checkup.WayBack {
			what += " back"
		}
		if of[s] == nil {
			causes = append(causes, s)
		}
		of[s] = append(of[s], what)
	}
	lines := make([]string, 0, len(causes))
	for _, s := range causes {
		if len(of[s]) < len(p.units) {
			s = strings.Join(of[s], ", ") + ": " + s
		}
		lines = append(lines, s)
	}
	return lines
}

// listing has the pairs of VMs, the worst first, each with the causes of its verdict
// and a table of its families.
func listing(pairs []*vmPair) []checkup.Block {
	if len(pairs) == 0 {
		return nil
	}
	shown := slices.Clone(pairs)
	slices.SortStableFunc(shown, func(a, b *vmPair) int {
		return cmp.Compare(slices.Index(worstFirst, a.worst()), slices.Index(worstFirst, b.worst()))
	})
	list := &checkup.List{Noun: "pair"}
	for _, p := range shown {
		item := checkup.Item{Verdict: p.worst(), Text: fmt.Sprintf("%s -> %s over %s", p.source, p.target, p.network)}
		for _, verdict := range worstFirst {
			for _, s := range p.causes(verdict) {
				item.Items = append(item.Items, checkup.Item{Text: s})
			}
		}
		item.Table = p.table()
		list.Items = append(list.Items, item)
	}
	return []checkup.Block{{Title: fmt.Sprintf("Pairs of VMs (%d)", len(pairs)), List: list}}
}

// table has a row for each family; nil if nothing was measured.
func (p *vmPair) table() *checkup.Table {
	if !slices.ContainsFunc(p.units, func(u checkup.Unit) bool { return u.Verdict != checkup.Unmeasured }) {
		return nil
	}
	t := &checkup.Table{Noun: "family", Columns: []checkup.Column{
		{Name: "family"}, {Name: "verdict"}, {Name: "back"},
		{Name: "sent", Measure: checkup.MeasureCount}, {Name: "loss", Measure: checkup.MeasurePercent},
		{Name: "dup", Measure: checkup.MeasureCount, Priority: 4},
		{Name: "reord", Measure: checkup.MeasureCount, Priority: 4},
	}}
	for i, name := range []string{"min", "avg", "p50", "p99", "max", "stddev"} {
		t.Columns = append(t.Columns, checkup.Column{
			Name: name, Measure: checkup.MeasureMicroseconds, Priority: []int{3, 1, 0, 0, 0, 2}[i],
		})
	}
	for _, family := range checkup.IPFamilies {
		there, back := p.unit(family, checkup.WayThere), p.unit(family, checkup.WayBack)
		if there == nil && back == nil {
			continue
		}
		row := make([]checkup.Cell, len(t.Columns))
		row[0] = checkup.Text(string(family))
		if back != nil {
			row[2] = checkup.Text(string(back.Verdict))
		}
		if there != nil {
			row[1] = checkup.Text(string(there.Verdict))
			numbers(row[3:], there)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// numbers fills the cells with a unit's measurements.
func numbers(row []checkup.Cell, u *checkup.Unit) {
	if u.Sent > 0 {
		row[0] = checkup.Number(u.Sent)
		row[1] = checkup.Number(checkup.PercentOf(u.Sent-u.Received, u.Sent))
		row[2], row[3] = checkup.Number(u.Duplicates), checkup.Number(u.Reordered)
	}
	if d := u.Delay; d != nil {
		for i, us := range []int64{d.Min, d.Mean, d.P50, d.P99, d.Max, d.StdDev} {
			row[4+i] = checkup.Number(us)
		}
	}
}

// unit of a family and way; nil if the pair has none.
func (p *vmPair) unit(family checkup.IPFamily, way string) *checkup.Unit {
	for i := range p.units {
		if u := &p.units[i]; u.Family == family && u.Labels[checkup.UnitWay] == way {
			return u
		}
	}
	return nil
}

// said are the delays of the first pair of VMs that has some, and the number of other
// such pairs, as a clause; nil if no pair has delays.
func said(pairs []*vmPair) []string {
	first, more := "", 0
	for _, p := range pairs {
		var families []string
		for i := range p.units {
			u := &p.units[i]
			d := u.Delay
			if d == nil {
				continue
			}
			s := fmt.Sprintf("%s min/avg/max %s/%s/%s", u.Family, judge.Micros(d.Min), judge.Micros(d.Mean), judge.Micros(d.Max))
			if u.Received < u.Sent {
				s += fmt.Sprintf(", %s lost", checkup.PercentOf(u.Sent-u.Received, u.Sent))
			}
			families = append(families, s)
		}
		switch {
		case len(families) == 0:
		case first == "":
			first = fmt.Sprintf("%s to %s over %s: %s", p.source, p.target, p.network, strings.Join(families, ", "))
		default:
			more++
		}
	}
	switch {
	case first == "":
		return nil
	case more > 0:
		first += fmt.Sprintf(" (and %s of VMs)", checkup.Count(more, "more pair"))
	}
	return []string{first}
}
