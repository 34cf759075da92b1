// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/networkhealth"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// What explain prints follows these rules.
//
// Lines have at most 80 columns; longer text is wrapped, and only a longer word exceeds
// them, outside of tables. Long lists are cut, and end with the number of omitted rows:
// --output json has all of them.

const (
	columns   = 80
	manyRows  = 20 // of a table
	allInJSON = "all of them: --output json"
)

// page prints lines, and between them blocks.
type page struct {
	w      io.Writer
	blocks []checkup.Block // not printed yet
	err    error           // the first one
}

// line prints a line, or as many as its format and texts have.
func (p *page) line(format string, args ...any) {
	p.flush()
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, checkup.NoCommand(checkup.CleanLines(fmt.Sprintf(format, args...))))
	}
}

// flush prints the blocks that were collected.
func (p *page) flush() {
	p.show(manyRows, p.blocks)
	p.blocks = nil
}

// show prints blocks, with at most so many rows of each table.
func (p *page) show(lines int, blocks []checkup.Block) {
	if p.err == nil {
		p.err = print.Blocks(
			p.w,
			blocks,
			print.BlockOptions{Indent: 2, Width: columns, Lines: lines, Rest: allInJSON},
		)
	}
}

// field prints a name and, beside it, its text.
func (p *page) field(name, format string, args ...any) {
	p.item(checkup.Item{Name: name, Text: fmt.Sprintf(format, args...)})
}

// item prints a field.
func (p *page) item(item checkup.Item) {
	if n := len(p.blocks); n == 0 || p.blocks[n-1].List == nil {
		p.blocks = append(p.blocks, checkup.Block{List: &checkup.List{}})
	}
	list := p.blocks[len(p.blocks)-1].List
	list.Items = append(list.Items, item)
}

// table prints rows. The rest of a long table is cut.
func (p *page) table(noun string, columns []checkup.Column, rows [][]string) {
	t := &checkup.Table{Noun: noun, Columns: columns}
	for _, row := range rows {
		cells := make([]checkup.Cell, len(row))
		for i, text := range row {
			cells[i] = checkup.Text(text)
		}
		t.Rows = append(t.Rows, cells)
	}
	p.blocks = append(p.blocks, checkup.Block{Table: t})
}

// print shows the explanation, and on demand the power of its checks.
func (x *explanation) print(w io.Writer, power bool) error {
	p := &page{w: w}
	p.line("plan %s in namespace %s, at most %s", x.Plan, x.Namespace, x.Longest)
	for _, change := range x.WhatIf {
		p.field("what if", "%s", change)
	}
	for _, u := range x.Unseen {
		p.field("not visible", "%s: %s", u.What, u.Cause)
	}
	for _, use := range x.Limits {
		p.field("limit", "%s", use)
	}
	p.schedule(x)
	p.health(x)
	for i := range x.Checks {
		p.check(&x.Checks[i], power)
	}
	for _, a := range x.Accounts {
		p.line("\nSERVICE ACCOUNT %s", a.Account)
		rights := &checkup.List{}
		where := ""
		for _, g := range grants(a.Rights, x.Namespace) {
			if g.where != where {
				rights.Items = append(rights.Items, checkup.Item{Text: g.where})
				where = g.where
			}
			place := &rights.Items[len(rights.Items)-1]
			place.Items = append(place.Items, checkup.Item{Text: g.resource + ": " + strings.Join(g.verbs, " ")})
		}
		p.show(-1, []checkup.Block{{List: rights}})
	}
	p.line("\n(%s have no token)", x.tokenless())
	p.line("\nIMAGE")
	for _, image := range x.Images {
		p.line("  %s", image)
	}
	p.flush()
	return p.err
}

// health shows which PodNetworkHealths a run writes.
func (p *page) health(x *explanation) {
	h := x.PodNetworkHealth
	if h == nil {
		return
	}
	if len(h.Checks) == 0 {
		p.field("health", "alpha: no PodNetworkHealth: no check of this plan measures between pods")
		return
	}
	p.field("health", "alpha: at most %s in namespace %s, for %s a run of %s, the worst first; Unknown after %s, "+
		"deleted after %s; partial and best effort",
		checkup.Count(h.MaxObjects, networkhealth.Kind), x.Namespace, checkup.Count(h.Pairs, "pair"),
		strings.Join(h.Checks, ", "), h.StaleAfter, h.ExpireAfter)
	crd := "is not created: without it, no objects are written (podNetworkHealth.installCRD)"
	if h.InstallCRD {
		crd = "is created by setup if the cluster lacks it; it stays after the run"
	}
	p.field("CRD", "%s %s", networkhealth.Resource.GroupResource(), crd)
}

// schedule shows when runs start by themselves, and what happens then.
func (p *page) schedule(x *explanation) {
	s := x.Schedule
	if s == nil {
		return
	}
	when := fmt.Sprintf("%q in %s", s.Cron, s.TimeZone)
	if s.Jitter > 0 {
		when += fmt.Sprintf(", up to %s later at random", s.Jitter)
	}
	when += fmt.Sprintf("; not started if more than %ds late", s.StartingDeadlineSeconds)
	if s.Suspend {
		when += "; suspended: no run starts"
	}
	p.field("schedule", "%s", when)
	overlap := map[checkup.ConcurrencyPolicy]string{
		checkup.ConcurrencyForbid:  "a run that is due while another one of the plan has not finished does not start",
		checkup.ConcurrencyAllow:   "a run starts beside another one of the plan that has not finished",
		checkup.ConcurrencyReplace: "a run cancels another one of the plan that has not finished",
	}[s.ConcurrencyPolicy]
	p.field("overlap", "%s", overlap)
	p.field("kept", "the newest %s of the schedule; its account may create, list and delete every PipelineRun of the "+
		"namespace, because RBAC cannot limit that to one plan", checkup.Count(x.Keeps, "finished run"))
}

func (p *page) check(c *checkExplained, power bool) {
	p.line("\ncheck %s (%s)", c.Check, c.Kind)
	for _, item := range c.Fields {
		p.item(item)
	}
	if c.Packets > 0 {
		p.field("packets", "%d, about %s both ways", c.Packets, print.Bytes(float64(c.Bytes)))
	}
	if c.Agents+c.Inside+c.Responders > 0 && c.PeakSent > 0 {
		p.field("peak rate", "%d packets/s from a node, %d packets/s to a node", c.PeakSent, c.PeakReceived)
	}
	if c.Agents+c.Inside+c.Responders+c.VMs > 0 {
		p.field("duration", "about %s of probing, at most %s with setup", c.ExpectedProbe, c.Longest)
	}
	if c.Agents+c.Responders > 0 {
		p.field("pods", "%s and %s, at most %d on a node", checkup.Count(c.Agents, "agent"),
			checkup.Count(c.Responders, "responder"), c.PodsPerNode)
	}
	p.landing(c.Landing)
	for _, warning := range c.Warnings {
		p.field("warning", "%s", warning)
	}
	p.blocks = append(p.blocks, c.Blocks...)
	if c.Agents+c.Inside+c.Responders > 0 {
		p.nodes(c)
	}
	var rows [][]string
	for _, o := range c.Objects {
		count := fmt.Sprint(o.Count)
		if o.AtLeast {
			count += " or more"
		}
		rows = append(rows, []string{o.Kind, cmp.Or(string(o.Role), "-"), count, yesNo(o.LeftBehind), o.Until})
	}
	p.table("object", []checkup.Column{
		{Name: "OBJECTS"}, {Name: "ROLE"}, {Name: "COUNT"}, {Name: "LEFT BEHIND"}, {Name: "UNTIL"},
	}, rows)
	if power && c.Power != nil {
		p.blocks = append(p.blocks, checkup.Block{
			Title: "Probability that a run fails because of a loss, by where packets are lost", Table: c.Power,
		})
	}
}

// nodes prints the pods and packet rates of a check by node.
func (p *page) nodes(c *checkExplained) {
	var rows [][]string
	for _, n := range c.Nodes {
		rows = append(
			rows,
			[]string{
				n.Node,
				fmt.Sprint(n.Agents),
				fmt.Sprint(n.Responders),
				fmt.Sprintf("%d/s", n.PeakSent),
				fmt.Sprintf("%d/s", n.PeakReceived),
			},
		)
	}
	p.table("node", []checkup.Column{
		{Name: "NODE"}, {Name: "AGENTS", Priority: 2}, {Name: "RESPONDERS", Priority: 1}, {Name: "SENDS UP TO"},
		{Name: "RECEIVES UP TO"},
	}, rows)
}

// landing prints which pods would be scheduled.
func (p *page) landing(l *scheduling.Landing) {
	if l == nil {
		return
	}
	pending := 0
	for _, g := range l.Pending {
		pending += len(g.Nodes)
	}
	switch {
	case pending == 0 && len(l.Unknown) == 0:
		p.field("scheduled", "all of them")
	case pending == 0:
		p.field("scheduled", "all of them, as far as is known")
	default:
		p.field("scheduled", "%d of them; %d would stay pending", l.Scheduled, pending)
	}
	for _, g := range l.Pending {
		p.field(
			"pending",
			"%s of %s: %s",
			checkup.Count(len(g.Nodes), string(g.Role)),
			checkup.Some(g.Nodes),
			because(g.Reasons),
		)
	}
	for _, g := range l.Later {
		p.field(
			"evicted",
			"%s of %s: %s",
			checkup.Count(len(g.Nodes), string(g.Role)),
			checkup.Some(g.Nodes),
			because(g.Reasons),
		)
	}
	for _, u := range l.Unknown {
		p.field("unknown", "%s", u)
	}
}

// because joins the messages of reasons.
func because(reasons []scheduling.NodeReason) string {
	messages := make([]string, len(reasons))
	for i, r := range reasons {
		messages[i] = r.Message
	}
	return strings.Join(messages, "; ")
}

// tokenless names what has no token of the API server.
func (x *explanation) tokenless() string {
	vms := slices.ContainsFunc(x.Checks, func(c checkExplained) bool { return c.VMs > 0 })
	pods := slices.ContainsFunc(x.Checks, func(c checkExplained) bool { return c.VMs == 0 })
	switch {
	case pods && vms:
		return "agents, responders and VMs"
	case vms:
		return "VMs, and pods on their networks,"
	}
	return "agents and responders"
}

// grant is the verbs of one account on one resource.
type grant struct {
	where, resource string
	verbs           []string
}

// grants joins rights, place by place.
func grants(rights []checkup.Right, runNamespace string) []grant {
	var lines []grant
	var places []string
	for _, r := range rights {
		where := "in the cluster"
		switch r.Scope {
		case checkup.ScopeRun:
			where = "in namespace " + runNamespace
		case checkup.ScopeNamespace:
			where = "in namespace " + r.Namespace
		}
		if !slices.Contains(places, where) {
			places = append(places, where)
		}
		resource := resourceText(r)
		i := slices.IndexFunc(lines, func(g grant) bool { return g.where == where && g.resource == resource })
		if i < 0 {
			i = len(lines)
			lines = append(lines, grant{where: where, resource: resource})
		}
		lines[i].verbs = append(lines[i].verbs, r.Verb)
	}
	slices.SortStableFunc(lines, func(a, b grant) int {
		return cmp.Compare(slices.Index(places, a.where), slices.Index(places, b.where))
	})
	return lines
}

// resourceText spells a resource as kubectl does: pods/log,
// networks.config.openshift.io; with the names that it is confined to.
func resourceText(r checkup.Right) string {
	resource, sub, _ := strings.Cut(r.Resource, "/")
	if r.Group != "" {
		resource += "." + r.Group
	}
	if sub != "" {
		resource += "/" + sub
	}
	if len(r.Names) > 0 {
		resource += " named " + strings.Join(r.Names, ", ")
	}
	return resource
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
