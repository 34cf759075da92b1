// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// noun is what the check counts: what one node has for one Service in one family.
const noun = "rule set"

// Judge returns the report of a check. Its units are those that failed or were not measured.
//
// It is pure. It does not use the roster; a nil record means that nothing was collected.
func Judge(w *checkup.Worksheet, _ *checkup.Roster, record *checkup.Record, gate checkup.Gate) checkup.CheckReport {
	sheet, err := SheetOf(w)
	if err != nil {
		return judge.NotMeasured(w.Check, w.Kind, checkup.Cause{Stage: checkup.StageSetup, Message: err.Error()})
	}
	j := &judging{w: w, sheet: sheet, evidence: evidenceOf(record)}
	r := checkup.CheckReport{Name: w.Check, Kind: w.Kind, Noun: noun, Notes: slices.Clone(w.Warnings)}
	for source := range w.Sources {
		for _, f := range w.IPFamilies {
			j.side(source, f)
		}
	}
	for i := range j.outcomes {
		o := &j.outcomes[i]
		r.Counts = judge.Sum(r.Counts, judge.Counted(o.verdict))
		if o.verdict != checkup.Pass {
			r.Units = append(r.Units, j.unit(o))
		}
	}
	r.Findings = j.findings()
	r.Coverage = j.coverage()
	r.Blocks = []checkup.Block{{Title: "Nodes", Table: j.nodes()}}
	r.Notes = append(r.Notes, j.notes()...)
	r.Verdict = judge.Verdict(r.Counts, gate.MaxUnmeasured)
	return r
}

// outcome is the verdict of a unit.
type outcome struct {
	source, family int // indexes of the worksheet
	service        int // index of the sheet; others for rules of Services that do not exist
	verdict        checkup.Verdict
	cause          checkup.Cause // of one that did not pass
	trouble        *troubled     // what was recorded; nil if nothing was of this Service
}

// others is the service of the unit that there are no rules for Services that do not exist.
const others = -1

// evidence is what a record has.
type evidence struct {
	facts   map[string]*found
	causes  map[string]*checkup.Cause // why there is no fact
	sources map[int]*checkup.Cause    // why a source did not report
	changed map[string]bool
	// unknown says why it is not known what changed; nil if it is.
	unknown *checkup.Cause
	// seen: a node has rules of kube-proxy.
	seen bool
}

func evidenceOf(record *checkup.Record) *evidence {
	const attempt = "cannot tell whether its Service changed while the rules were read: "
	e := &evidence{facts: map[string]*found{}, causes: map[string]*checkup.Cause{}, sources: map[int]*checkup.Cause{}}
	notKnown := func(why string) {
		e.unknown = &checkup.Cause{Stage: checkup.StageCollect, Reason: checkup.ReasonChanged, Message: attempt + why}
	}
	notKnown("the probe task did not list the Services again")
	if record == nil {
		return e
	}
	for i := range record.Sources {
		e.sources[record.Sources[i].Source] = record.Sources[i].Cause
	}
	for i := range record.Facts {
		fact := &record.Facts[i]
		if fact.Unit == stateFact {
			var meanwhile changed
			if err := json.Unmarshal(fact.Content, &meanwhile); fact.Cause == nil && err != nil {
				notKnown(err.Error())
			} else if fact.Cause != nil {
				notKnown(fact.Cause.Message)
			} else {
				e.unknown, e.changed = nil, map[string]bool{}
				for _, key := range meanwhile.Services {
					e.changed[key] = true
				}
			}
			continue
		}
		var f found
		if fact.Cause != nil {
			e.causes[fact.Unit] = fact.Cause
		} else if err := json.Unmarshal(fact.Content, &f); err != nil {
			e.causes[fact.Unit] = &checkup.Cause{Stage: checkup.StageCollect, Message: "cannot read what was recorded: " + err.Error()}
		} else {
			e.facts[fact.Unit] = &f
			e.seen = e.seen || f.Mode != ""
		}
	}
	return e
}

type judging struct {
	*evidence
	w        *checkup.Worksheet
	sheet    *Sheet
	outcomes []outcome
}

// side adds the outcomes of a node in a family.
func (j *judging) side(source int, f checkup.IPFamily) {
	unit := unitOf(source, f)
	seen := j.facts[unit]
	trouble := map[int]*troubled{}
	if seen != nil {
		for i := range seen.Troubled {
			trouble[seen.Troubled[i].Service] = &seen.Troubled[i]
		}
	}
	add := func(service int, verdict checkup.Verdict, cause checkup.Cause) {
		o := outcome{source, slices.Index(j.w.IPFamilies, f), service, verdict, cause, trouble[service]}
		j.outcomes = append(j.outcomes, o)
	}
	var not *checkup.Cause // why nothing of it was measured
	switch {
	case seen == nil:
		not = cmp.Or(j.causes[unit], j.sources[source], &checkup.Cause{
			Stage: checkup.StageCollect, Message: "the agent did not report the rules of this family",
		})
	case seen.None && !j.seen:
		not = &checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonOtherProxy,
			Message: "no node has rules of kube-proxy, nor of another known proxy"}
	}
	for i, s := range j.sheet.Services {
		if !slices.Contains(s.Families, f) {
			continue
		}
		switch t := trouble[i]; {
		case not != nil:
			add(i, checkup.Unmeasured, *not)
		case t != nil && t.Gone:
			add(i, checkup.Unmeasured, meanwhile("the Service changed during the run: it was deleted, or nodes do not serve it any more"))
		case t == nil && !seen.None:
			add(i, checkup.Pass, checkup.Cause{})
		case t != nil && t.Unread:
			add(i, checkup.Unmeasured, checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonUnknownRule,
				Message: cmp.Or(t.text(), "its packets may meet rules that were not understood")})
		case j.unknown != nil:
			add(i, checkup.Unmeasured, *j.unknown)
		case j.changed[keyOf(s.Name, f)]:
			add(i, checkup.Unmeasured, meanwhile("the Service or its EndpointSlices changed during the run"))
		case seen.None:
			add(i, checkup.Fail, checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonNoRules,
				Message: fmt.Sprintf("the node has no rules of kube-proxy for %s", f)})
		case t.Young != always:
			add(i, checkup.Unmeasured, meanwhile(fmt.Sprintf("the Service changed less than %s before the rules were read (expect.%s.max): %s",
				j.sheet.Expect.allowed(t.Young), t.Young, cmp.Or(t.text(), "the node has other rules"))))
		case t.Missing:
			add(i, checkup.Fail, checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonMissing,
				Message: "the node has no rules for the Service"})
		default:
			add(i, checkup.Fail, checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonDiffers,
				Message: cmp.Or(t.text(), "the node has other rules")})
		}
	}
	switch {
	case not != nil:
		add(others, checkup.Unmeasured, *not)
	case seen.Extra.Count > 0:
		verdict, cause := j.extra(seen, f)
		add(others, verdict, cause)
	case seen.Extra.Unread:
		add(others, checkup.Unmeasured, checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonUnknownRule,
			Message: cmp.Or(seen.Extra.Text, "rules that were not understood may serve further Services")})
	default:
		add(others, checkup.Pass, checkup.Cause{})
	}
}

// text has the first differences in words; it is empty if they were not recorded.
func (t *troubled) text() string {
	var all []string
	for _, d := range t.Differ {
		if d.Gone && t.Age > 0 {
			d.Text += " (not in the API for at least " + roughly(t.Age) + ")"
		}
		all = append(all, d.Text)
	}
	return andMore(all, t.More)
}

// roughly is a duration in seconds, of more than a day in hours, rounded down.
func roughly(d checkup.Duration) string {
	to := time.Second
	if time.Duration(d) > 24*time.Hour {
		to = time.Hour
	}
	return time.Duration(d).Truncate(to).String()
}

// extra judges rules of Services that do not exist. They may be of Services that were made while the rules were read.
func (j *judging) extra(seen *found, f checkup.IPFamily) (checkup.Verdict, checkup.Cause) {
	excused := func(service string) bool { return j.changed[keyOf(service, f)] }
	switch {
	case j.unknown != nil:
		return checkup.Unmeasured, *j.unknown
	case seen.Extra.Unnamed && len(j.changed) > 0:
		return checkup.Unmeasured, meanwhile("Services changed during the run, and the rules may be of one of them")
	case !seen.Extra.Unnamed && !slices.ContainsFunc(seen.Extra.Services, func(s string) bool { return !excused(s) }):
		return checkup.Unmeasured, meanwhile("the Services of these rules changed during the run")
	}
	return checkup.Fail, checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonExtra, Message: seen.Extra.Text}
}

// meanwhile is the cause of a unit whose objects changed.
func meanwhile(message string) checkup.Cause {
	return checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonChanged, Message: message}
}

func (j *judging) unit(o *outcome) checkup.Unit {
	cause := o.cause
	u := checkup.Unit{
		Name:    fmt.Sprintf("%s %s %s", j.node(o), j.service(o), j.family(o)),
		Labels:  map[string]string{checkup.UnitSourceNode: j.node(o)},
		Verdict: o.verdict, Cause: &cause,
	}
	if o.service != others {
		u.Labels["service"] = j.service(o)
	}
	return u
}

func (j *judging) node(o *outcome) string { return j.w.Sources[o.source].Node }

func (j *judging) family(o *outcome) checkup.IPFamily { return j.w.IPFamilies[o.family] }

// service is namespace/name, or what the unit of others is called.
func (j *judging) service(o *outcome) string {
	if o.service == others {
		return "no other Service"
	}
	return j.sheet.Services[o.service].Name
}

// nodes is the table of nodes. Those with trouble are the first.
func (j *judging) nodes() *checkup.Table {
	type row struct {
		node      string
		proxies   []string
		frontends int
		counts    checkup.Counts
	}
	rows := make([]row, len(j.w.Sources))
	for i := range j.outcomes {
		o := &j.outcomes[i]
		rows[o.source].counts = judge.Sum(rows[o.source].counts, judge.Counted(o.verdict))
	}
	for source := range rows {
		r := &rows[source]
		r.node = j.w.Sources[source].Node
		for _, f := range j.w.IPFamilies {
			proxy := "not read"
			if seen := j.facts[unitOf(source, f)]; seen != nil {
				proxy = seen.proxy()
				r.frontends += seen.Frontends
			}
			if !slices.Contains(r.proxies, proxy) {
				r.proxies = append(r.proxies, proxy)
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.counts.Fail, a.counts.Fail), cmp.Compare(b.counts.Unmeasured, a.counts.Unmeasured))
	})
	t := &checkup.Table{Noun: "node", Columns: []checkup.Column{
		{Name: "NODE"}, {Name: "PROXY"}, {Name: "FRONTENDS", Measure: checkup.MeasureCount},
		{Name: "AS WANTED", Measure: checkup.MeasureCount}, {Name: "DIFFER", Measure: checkup.MeasureCount},
		{Name: "UNMEASURED", Measure: checkup.MeasureCount},
	}}
	for _, r := range rows[:min(len(rows), mostRows)] {
		t.Rows = append(t.Rows, []checkup.Cell{
			checkup.Text(r.node), checkup.Text(strings.Join(r.proxies, " and ")), checkup.Number(r.frontends),
			checkup.Number(r.counts.Pass), checkup.Number(r.counts.Fail), checkup.Number(r.counts.Unmeasured),
		})
	}
	return t
}

// mostRows is the most nodes in the table of a report.
const mostRows = 100

// proxy is what serves Services in the family, in words.
func (f *found) proxy() string {
	switch {
	case f.None:
		return "no rules"
	case f.Legacy:
		return string(f.Mode) + " (legacy)"
	}
	return string(f.Mode)
}

// coverage is of a sample; nil if all nodes are read. A node counts as measured if one of its rule sets does.
func (j *judging) coverage() *checkup.Coverage {
	if j.w.Rounds <= 1 {
		return nil
	}
	c := &checkup.Coverage{
		Noun: "node", Possible: j.sheet.Nodes, Round: j.w.Round, Rounds: j.w.Rounds, Seed: j.w.Seed,
	}
	measured := map[int]bool{}
	for _, o := range j.outcomes {
		if o.verdict != checkup.Unmeasured {
			measured[o.source] = true
		}
	}
	c.Measured = len(measured)
	return c
}

// notes name proxies beside kube-proxy, and nodes that the table leaves out.
func (j *judging) notes() []string {
	beside := map[string][]string{}
	var names, notes []string
	for source := range j.w.Sources {
		for _, f := range j.w.IPFamilies {
			seen := j.facts[unitOf(source, f)]
			if seen == nil || len(seen.Others) == 0 {
				continue
			}
			node, program := j.w.Sources[source].Node, strings.Join(seen.Others, " and ")
			if beside[program] == nil {
				names = append(names, program)
			}
			if !slices.Contains(beside[program], node) {
				beside[program] = append(beside[program], node)
			}
		}
	}
	for _, program := range names {
		notes = append(notes, fmt.Sprintf("%s: devices of %s beside the rules of kube-proxy, which do not apply to packets that it handles",
			checkup.SomeOf(beside[program], "node"), program))
	}
	if more := len(j.w.Sources) - mostRows; more > 0 {
		notes = append(notes, fmt.Sprintf("the table of nodes leaves out %s", checkup.Count(more, "node")))
	}
	return notes
}
