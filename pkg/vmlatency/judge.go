// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// teller is what measures, for people.
func (j *judge) teller() string {
	if j.w.Guests != nil {
		return "guest"
	}
	return "agent"
}

// back reports whether a pair is from the target VM to the source VM: of such only
// connectivity is measured.
func (j *judge) back(p checkup.Pair) bool {
	vm := vmAt(j.w.Sources, p.Source)
	return vm != nil && vm.Target
}

// vmAt is the VM of an endpoint; nil if it is none, or not there.
func vmAt(of []checkup.Endpoint, i int) *checkup.VM {
	if i < 0 || i >= len(of) {
		return nil
	}
	return of[i].VM
}

// absentVM says why one of two VMs could not be had, by worksheet and roster: the same
// for both ways.
func (j *judge) absentVM(p checkup.Pair) *checkup.Cause {
	vms := [2]int{min(p.Source, p.Target), max(p.Source, p.Target)}
	var causes [2]*checkup.Cause
	for i, vm := range vms {
		if vm >= len(j.w.Sources) || vm >= len(j.w.Targets) {
			return &checkup.Cause{Stage: checkup.StageSetup, Message: "the worksheet has no such VM"}
		}
		if cause := j.w.Sources[vm].Cause; cause != nil {
			return cause // of both, and it names what it is about
		}
		switch entry := j.entry(vm); {
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
	case a == nil, b != nil && strings.HasSuffix(a.Message, b.Message): // which is there because of the other
		about = 1
	}
	return &checkup.Cause{Stage: causes[about].Stage, Message: fmt.Sprintf("VM %s: %s", j.vmName(vms[about]), causes[about].Message)}
}

// entry of a VM on the roster; nil if there is none.
func (j *judge) entry(vm int) *checkup.RosterEntry {
	if j.roster == nil || vm < 0 || vm >= len(j.roster.Targets) {
		return nil
	}
	return &j.roster.Targets[vm]
}

// nodeOf is where a VM really ran; empty if it did not.
func (j *judge) nodeOf(vm int) string {
	if e := j.entry(vm); e != nil {
		return e.Node
	}
	return ""
}

// vms reports every pair of VMs of a worksheet with Guests.
func (j *judge) vms(outcomes []outcome) []checkup.VMReport {
	var list []checkup.VMReport
	for span, end := range j.spans[1:] {
		from := j.spans[span]
		if from == end || j.back(j.pairs[from]) {
			continue
		}
		p := j.pairs[from]
		v := checkup.VMReport{
			Source: name(j.w.Sources, p.Source), Target: name(j.w.Targets, p.Target),
			SourceNode: j.nodeOf(p.Source), TargetNode: j.nodeOf(p.Target),
		}
		if vm := vmAt(j.w.Sources, p.Source); vm != nil {
			v.Network = vm.Network
		}
		for i := from; i < end; i++ {
			v.Families = append(v.Families, j.family(outcomes, i))
		}
		list = append(list, v)
	}
	return list
}

// family reports one family of a pair of VMs.
func (j *judge) family(outcomes []outcome, at int) checkup.VMFamilyReport {
	o := &outcomes[at]
	f := checkup.VMFamilyReport{
		Family: o.pair.Family, Verdict: o.verdict, Cause: o.why(),
		Sent: o.sent, Received: o.received, Duplicates: o.duplicates, Reordered: o.reordered,
		Loss: percent(o.sent-o.received, o.sent), Delay: delay([][]int64{o.rtts}),
	}
	if probe, ok := j.w.Probe(o.pair.Transport); ok {
		f.Duration = checkup.Duration(o.sent) * probe.Interval
	}
	p := o.pair
	p.Source, p.Target = p.Target, p.Source
	if k, ok := j.position(p); ok {
		f.Back, f.BackCause = outcomes[k].verdict, outcomes[k].why()
	} else {
		f.Back = checkup.Unmeasured
		f.BackCause = &checkup.Cause{Stage: checkup.StageSetup, Message: "the worksheet has no pair from target to source"}
	}
	return f
}

// lossNotes tells of each pair that lost a part of its echo requests, and did not
// fail for it.
func (j *judge) lossNotes(outcomes []outcome) []string {
	var notes []string
	for i := range outcomes {
		o := &outcomes[i]
		if o.received == 0 || o.received == o.sent {
			continue
		}
		loss, limit := percent(o.sent-o.received, o.sent), "the plan sets no limit"
		if j.back(o.pair) {
			limit = "connectivity needs one"
		}
		if most := j.w.ExpectOf(o.pair).Loss.Max; most != nil {
			if loss > *most {
				continue // told as its cause
			}
			limit = "the limit is " + most.String()
		}
		notes = append(notes, fmt.Sprintf("%s over %s, %s: %d of %d echo requests were not answered (%s); %s",
			strings.Replace(j.way(o.pair), " -> ", " to ", 1), j.network(o.pair), o.pair.Family, o.sent-o.received, o.sent, loss, limit))
	}
	return notes
}

// network that a pair of VMs is on.
func (j *judge) network(p checkup.Pair) checkup.NetworkRef {
	if vm := vmAt(j.w.Sources, p.Source); vm != nil {
		return vm.Network
	}
	return checkup.NetworkRef{}
}

// way is "<source> -> <target>" of a pair of VMs.
func (j *judge) way(p checkup.Pair) string {
	return j.vmName(p.Source) + " -> " + j.vmName(p.Target)
}

func (j *judge) vmName(vm int) string {
	return vmName(name(j.w.Sources, vm), j.nodeOf(vm), j.network(checkup.Pair{Source: vm}))
}

// vmName names a VM where its network is told beside it: by its label, which is that
// of its node if the plan names one, and else with the node that it ran on.
func vmName(label, node string, network checkup.NetworkRef) string {
	label = strings.Replace(label, " on "+network.String(), "", 1)
	if node == "" || label == node || strings.HasPrefix(label, node+" ") {
		return label
	}
	return fmt.Sprintf("%s (%s)", label, node)
}

// vmWay is "<source> -> <target> over <network>".
func vmWay(v *checkup.VMReport) string {
	return fmt.Sprintf("%s -> %s over %s", vmName(v.Source, v.SourceNode, v.Network), vmName(v.Target, v.TargetNode, v.Network), or(v.Network.String(), "no network"))
}

// worstVerdict of a pair of VMs; one that nobody judged is unmeasured.
func worstVerdict(v *checkup.VMReport) checkup.Verdict {
	worst := checkup.Pass
	if len(v.Families) == 0 {
		worst = checkup.Unmeasured
	}
	for i := range v.Families {
		for _, of := range []checkup.Verdict{v.Families[i].Verdict, v.Families[i].Back} {
			switch {
			case of == checkup.Fail:
				worst = checkup.Fail
			case of != checkup.Pass && worst == checkup.Pass:
				worst = checkup.Unmeasured
			}
		}
	}
	return worst
}

// vmCauses says why a pair of VMs did not pass with a verdict, a line for each
// cause: alone if it is everybody's, else with what it is of.
func vmCauses(v *checkup.VMReport, verdict checkup.Verdict) []string {
	var causes []string
	of := map[string][]string{}
	add := func(got checkup.Verdict, cause *checkup.Cause, what string) {
		if cause == nil || got != verdict {
			return
		}
		s := cause.String()
		if of[s] == nil {
			causes = append(causes, s)
		}
		of[s] = append(of[s], what)
	}
	for i := range v.Families {
		f := &v.Families[i]
		add(f.Verdict, f.Cause, string(f.Family))
		add(f.Back, f.BackCause, string(f.Family)+" back")
	}
	lines := make([]string, 0, len(causes))
	for _, s := range causes {
		if len(of[s]) < 2*len(v.Families) {
			s = strings.Join(of[s], ", ") + ": " + s
		}
		lines = append(lines, s)
	}
	return lines
}

// measuredVMs tells the delays of the first pair of VMs of which there are some, and
// how many more there are; empty if there is none.
func measuredVMs(r *checkup.Report) string {
	said, more := "", 0
	for i := range r.Checks {
		for k := range r.Checks[i].VMs {
			v := &r.Checks[i].VMs[k]
			var families []string
			for _, f := range v.Families {
				if d := f.Delay; d != nil {
					s := fmt.Sprintf("%s min/avg/max %s/%s/%s", f.Family, micros(d.Min), micros(d.Mean), micros(d.Max))
					if f.Received < f.Sent {
						s += fmt.Sprintf(", %s lost", f.Loss)
					}
					families = append(families, s)
				}
			}
			switch {
			case len(families) == 0:
			case said == "":
				said = strings.Replace(vmWay(v), " -> ", " to ", 1) + ": " + strings.Join(families, ", ")
			default:
				more++
			}
		}
	}
	if more > 0 {
		said += fmt.Sprintf(" (and %s of VMs)", count(more, "more pair"))
	}
	return said
}
