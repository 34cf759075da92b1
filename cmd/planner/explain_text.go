// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// What explain prints follows these rules.
//
// Lines have at most 80 columns, but for words that are longer alone. What is
// longer goes on below itself. Of many things few are named, and it is said how
// many more there are: all of them are in --output json.

const (
	columns  = 80
	manyRows = 20 // of a table
	manyText = 5  // in a sentence
)

// page prints paragraphs and tables.
type page struct {
	w   io.Writer
	err error // the first one
}

func (p *page) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// text prints words, and goes on below with as much indent more as hang says.
func (p *page) text(indent, hang int, format string, args ...any) {
	for i, line := range wrap(fmt.Sprintf(format, args...), columns-indent-hang) {
		if i == 1 {
			indent += hang
		}
		p.line("%s%s", strings.Repeat(" ", indent), line)
	}
}

// field prints a name and, beside it, its text.
func (p *page) field(name, format string, args ...any) {
	const indent = 16
	for _, line := range wrap(fmt.Sprintf(format, args...), columns-indent) {
		p.line("  %-*s%s", indent-2, name, line)
		name = ""
	}
}

// table prints rows with aligned columns. The last column goes on below itself.
func (p *page) table(rows [][]string) {
	const between = 2
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	const least = 24 // for the last column
	for _, row := range rows {
		var line strings.Builder
		line.WriteString("  ")
		last := len(row) - 1
		for i, cell := range row[:last] {
			fmt.Fprintf(&line, "%-*s", widths[i]+between, cell)
		}
		indent := len([]rune(line.String()))
		for i, text := range wrap(row[last], max(least, columns-indent)) {
			if i > 0 {
				line.Reset()
				line.WriteString(strings.Repeat(" ", indent))
			}
			p.line("%s", strings.TrimRight(line.String()+text, " "))
		}
	}
}

// wrap cuts text at spaces into lines of at most width runes, if it can.
func wrap(text string, width int) []string {
	var lines []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		line := ""
		for _, word := range strings.Fields(paragraph) {
			if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
				lines = append(lines, line)
				line = ""
			}
			if line != "" {
				line += " "
			}
			line += word
		}
		lines = append(lines, line)
	}
	return lines
}

// some names the first few of many.
func some(names []string) string {
	if len(names) <= manyText {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:manyText], ", "), len(names)-manyText)
}

// plural counts things: "1 node", "2 nodes".
func plural(n int, thing string) string {
	return checkup.Count(n, thing)
}

// print shows the explanation.
func (x *explanation) print(w io.Writer) error {
	p := &page{w: w}
	p.line("plan %s in namespace %s, at most %s", x.Plan, x.Namespace, x.Longest)
	for _, change := range x.WhatIf {
		p.field("what if", "%s", change)
	}
	for _, u := range x.Unseen {
		p.field("not seen", "%s: %s", u.What, u.Cause)
	}
	for i := range x.Checks {
		p.check(&x.Checks[i])
	}
	for _, a := range x.Accounts {
		p.line("\nSERVICE ACCOUNT %s", a.Account)
		where := ""
		for _, g := range grants(a.Rights, x.Namespace) {
			if g.where != where {
				p.text(2, 2, "%s", g.where)
				where = g.where
			}
			p.text(4, 2, "%s: %s", g.resource, strings.Join(g.verbs, " "))
		}
	}
	p.line("\n(%s have no token)", x.tokenless())
	p.line("\nIMAGE")
	for _, image := range x.Images {
		p.line("  %s", image)
	}
	return p.err
}

func (p *page) check(c *checkExplained) {
	p.line("\ncheck %s (%s)", c.Check, c.Kind)
	switch {
	case c.Placement != nil:
		p.placement(c.Placement)
	case c.Connections != nil:
		p.connections(c)
	case c.Guests != nil:
		p.guests(c)
	default:
		p.field("sample", "round %d of %d, degree %d, seed %d", c.Round, c.Rounds, c.Degree, c.Seed)
		p.field("pairs", "%d", c.Pairs)
		p.field("packets", "%d, about %s both ways", c.Packets, bytesText(c.Bytes))
	}
	if c.Agents+c.Responders > 0 {
		p.field("peak rate", "%d packets/s from a node, %d packets/s to a node", c.PeakSent, c.PeakReceived)
		p.field("duration", "about %s of probing, at most %s with setup", c.ExpectedProbe, c.Longest)
		p.field("pods", "%d agents and %d responders, at most %d on a node", c.Agents, c.Responders, c.PodsPerNode)
	}
	p.landing(c.Landing)
	if c.Agents+c.Responders > 0 {
		p.field("capabilities", "%s", orNone(c.Capabilities))
	}
	p.widened(c.Connections)
	for _, warning := range c.Warnings {
		p.field("warning", "%s", warning)
	}
	if c.Connections != nil {
		p.pairs(c.Connections)
	}
	switch {
	case c.Guests != nil:
		p.vms(c)
	case c.Placement == nil:
		p.nodes(c)
	}
	rows := [][]string{{"OBJECTS", "ROLE", "COUNT", "LEFT BEHIND", "UNTIL"}}
	for _, o := range c.Objects {
		count := fmt.Sprint(o.Count)
		if o.AtLeast {
			count += " or more"
		}
		rows = append(rows, []string{o.Kind, string(o.Role), count, yesNo(o.LeftBehind), o.Until})
	}
	p.line("")
	p.table(rows)
}

// nodes prints what each node has of a check.
func (p *page) nodes(c *checkExplained) {
	rows := [][]string{{"NODE", "AGENTS", "RESPONDERS", "SENDS UP TO", "RECEIVES UP TO"}}
	for _, n := range c.Nodes {
		rows = append(rows, []string{n.Node, fmt.Sprint(n.Agents), fmt.Sprint(n.Responders), fmt.Sprintf("%d/s", n.PeakSent), fmt.Sprintf("%d/s", n.PeakReceived)})
	}
	p.few(rows, "node")
}

// few prints a table of many things, of which few are named.
func (p *page) few(rows [][]string, thing string) {
	more := len(rows) - 1 - manyRows
	p.line("")
	p.table(rows[:min(len(rows), manyRows+1)])
	if more > 0 {
		p.line("  and %d more %ss (all of them: --output json)", more, thing)
	}
}

// landing says which pods would be scheduled.
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
		p.field("pending", "%s of %s: %s", plural(len(g.Nodes), string(g.Role)), some(g.Nodes), because(g.Reasons))
	}
	for _, g := range l.Later {
		p.field("evicted", "%s of %s: %s", plural(len(g.Nodes), string(g.Role)), some(g.Nodes), because(g.Reasons))
	}
	for _, u := range l.Unknown {
		p.field("unknown", "%s", u)
	}
}

// because joins the messages of reasons.
func because(reasons []checkup.NodeReason) string {
	messages := make([]string, len(reasons))
	for i, r := range reasons {
		messages[i] = r.Message
	}
	return strings.Join(messages, "; ")
}

// connections says how pairs of components are measured.
func (p *page) connections(c *checkExplained) {
	x := c.Connections
	p.field("pairs", "%d, from %s to %s", c.Pairs, plural(len(x.Sources), "source"), plural(len(x.Targets), "target"))
	if x.Sheet.For > 0 {
		p.field("measured", "each every %s for %s: %d times", x.Interval, x.Sheet.For, x.Count)
	} else {
		p.field("measured", "each %d times, every %s", x.Count, x.Interval)
	}
	d := x.Sheet.Deadlines
	p.field("deadlines", "resolve %s, connect %s, handshake %s, response %s", d.Resolve, d.Connect, d.Handshake, d.Response)
	p.field("connections", "%d, about %s both ways", c.Packets, bytesText(c.Bytes))
	if x.Unmeasured > 0 {
		p.field("unmeasured", "%s already now:", plural(x.Unmeasured, "pair"))
		for _, s := range x.Sources {
			if s.Cause != nil {
				p.field("", "from %s: %s", s.Name(), s.Cause.Message)
			}
		}
		for _, t := range x.Targets {
			if t.Cause != nil {
				p.field("", "to %s: %s", t.Name(), t.Cause.Message)
			}
		}
	}
}

// widened says what a check has beyond the rights and the pod security that all
// checks have, and what it writes beyond their objects.
func (p *page) widened(x *connections) {
	if x == nil {
		return
	}
	var host []string
	for _, s := range x.Sources {
		if s.HostNetwork && s.Pairs > 0 && s.Node != "" {
			host = append(host, s.Name())
		}
	}
	if len(host) > 0 {
		p.field("widened", "%s in the host's network, where the components are that they stand for: %s. The namespace of the run must admit that (pod security level privileged)", plural(len(host), "agent"), some(host))
	}
	if len(x.Secrets) > 0 {
		p.field("secrets", "client certificates that agents mount, where they are there: %s", some(x.Secrets))
	}
	checks := x.Sheet.Checks
	switch {
	case !checks.Write:
		p.field("objects", "no PodNetworkConnectivityCheck is written (connectivityChecks.write)")
	case checks.InstallCRD:
		p.field("objects", "one PodNetworkConnectivityCheck per pair, kept for %s when the pair is gone; their CustomResourceDefinition is installed if there is none", checks.Retention)
	default:
		p.field("objects", "one PodNetworkConnectivityCheck per pair, kept for %s when the pair is gone, if the cluster has their CustomResourceDefinition", checks.Retention)
	}
}

// pairs prints who probes whom.
func (p *page) pairs(x *connections) {
	rows := [][]string{{"FROM", "TO", "PAIRS"}}
	for _, pair := range x.Pairs {
		rows = append(rows, []string{cmp.Or(pair.From, "-"), cmp.Or(pair.To, "-"), fmt.Sprint(pair.Pairs)})
	}
	p.few(rows, "pair of components")
	rows = [][]string{{"SOURCE", "NODE", "NETWORK", "PAIRS"}}
	for _, s := range x.Sources {
		network := "pod"
		if s.HostNetwork {
			network = "host"
		}
		rows = append(rows, []string{s.Name(), cmp.Or(s.Node, "none"), network, fmt.Sprint(s.Pairs)})
	}
	p.few(rows, "source")
	rows = [][]string{{"TARGET", "PAIRS", "ADDRESS"}}
	for _, t := range x.Targets {
		rows = append(rows, []string{t.Name(), fmt.Sprint(t.Pairs), peerText(t.Peer)})
	}
	p.few(rows, "target")
}

// peerText is how a target is spoken to.
func peerText(peer *checkup.Peer) string {
	if peer == nil {
		return "none"
	}
	text := fmt.Sprintf("%s %s%s", peer.Transport, peer.Address(), peer.Path)
	if n := len(peer.Backends); n > 0 {
		text += ", " + plural(n, "endpoint") + " behind it"
	}
	return text
}

// guests says which VMs are started, and how they are measured.
func (p *page) guests(c *checkExplained) {
	x := c.Guests
	p.field("pairs", "%d, of %s", c.Pairs, plural(len(x.VMs), "VM"))
	back, _ := checkup.VMConnectivity(x.Count, x.Interval)
	p.field("measured", "each from its source %d times, every %s; back from its target %d times", x.Count, x.Interval, back)
	p.field("packets", "%d, about %s both ways", c.Packets, bytesText(c.Bytes))
	if c.VMs == 0 {
		p.field("VMs", "none can be started")
	} else {
		memory := c.GuestMemory
		if q, err := resource.ParseQuantity(c.GuestMemory); err == nil {
			q.Mul(int64(c.VMs))
			memory += " each, " + q.String() + " in all, and what KubeVirt adds"
		}
		guest := "checkplan's own guest, which needs no login"
		if login := x.Sheet.Guest.Login; login != nil {
			guest = "logged in to on its console as " + login.User
		}
		p.field("VMs", "%d with a memory of %s; %s", c.VMs, memory, guest)
		if c.Preflights > 0 {
			p.field("before", "%s on the networks of the VMs, to see that they can be attached", plural(c.Preflights, "short pod"))
		}
		p.field("duration", "about %s of probing, at most %s with setup", c.ExpectedProbe, c.Longest)
	}
	var seen []checkup.NetworkRef
	for _, e := range x.VMs {
		if vm := e.VM; !slices.Contains(seen, vm.Network) {
			seen = append(seen, vm.Network)
			p.field("network", "%s%s", vm.Network, networkText(vm))
		}
	}
	if c.VMs > 0 {
		p.field("addresses", "those below are examples: each run has its own, of no range that is known of the cluster or the network")
	}
	if x.Unmeasured > 0 {
		p.field("unmeasured", "%s already now:", plural(x.Unmeasured, "pair"))
		p.causes(x.VMs)
	}
	if x.Kiagnose != nil {
		where := x.Kiagnose.Name
		if x.Kiagnose.Namespace != "" {
			where = x.Kiagnose.Namespace + "/" + where
		}
		p.field("outcome", "written to ConfigMap %s, too, in kiagnose's keys", where)
	}
}

// causes says which pairs of VMs cannot be started and why.
func (p *page) causes(vms []checkup.Endpoint) {
	pairs := map[string][]string{}
	var causes []string
	for i := 0; i+1 < len(vms); i += 2 {
		if cause := vms[i].Cause; cause != nil {
			if pairs[cause.Message] == nil {
				causes = append(causes, cause.Message)
			}
			pairs[cause.Message] = append(pairs[cause.Message], vms[i].Name()+" to "+vms[i+1].Name())
		}
	}
	for _, cause := range causes[:min(len(causes), manyRows)] {
		p.field("", "%s: %s", some(pairs[cause]), cause)
	}
	if more := len(causes) - manyRows; more > 0 {
		p.field("", "and for %d more sets of reasons (all of them: --output json)", more)
	}
}

// networkText says how VMs are plugged into a network.
func networkText(vm *checkup.VM) string {
	if vm.NetworkType == "" {
		return ""
	}
	text := ": type " + vm.NetworkType
	if vm.Bridge != "" {
		text += ", bridge " + vm.Bridge
	}
	text += ", VMs bound by " + string(vm.Binding)
	if vm.Resource != "" {
		text += ", each takes one " + vm.Resource
	}
	return text
}

// vms prints what is started where.
func (p *page) vms(c *checkExplained) {
	rows := [][]string{{"VM", "NODE", "MAC", "ADDRESSES"}}
	for _, e := range c.Guests.VMs {
		if e.Cause != nil {
			continue
		}
		var addresses []string
		for _, family := range checkup.IPFamilies {
			if a, ok := e.VM.Addresses[family]; ok {
				addresses = append(addresses, a)
			}
		}
		rows = append(rows, []string{e.Name(), cmp.Or(e.Node, "any"), e.VM.MAC, strings.Join(addresses, " ")})
	}
	if len(rows) > 1 {
		p.few(rows, "VM")
	}
}

// tokenless names what has no token of the API server.
func (x *explanation) tokenless() string {
	pods := slices.ContainsFunc(x.Checks, func(c checkExplained) bool { return c.Guests == nil })
	vms := slices.ContainsFunc(x.Checks, func(c checkExplained) bool { return c.Guests != nil })
	switch {
	case pods && vms:
		return "agents, responders and VMs"
	case vms:
		return "VMs, and pods on their networks,"
	}
	return "agents and responders"
}

// placement says where the pods of a network diagnostics would land.
func (p *page) placement(r *checkup.PlacementReport) {
	mode := cmp.Or(string(r.Mode), `"", which means All`)
	if r.Mode == checkup.DiagnosticsDisabled {
		mode += ": nothing is placed"
	}
	p.field("mode", "%s, from %s", mode, r.Origin)
	for _, side := range r.Sides {
		p.side(side, r.Nodes)
	}
	if c := r.Condition; c != nil {
		text := fmt.Sprintf("%s would be %s, reason %s", c.Type, c.Status, c.Reason)
		if c.Message != "" {
			text += " (" + c.Message + ")"
		}
		if c.Status == "True" {
			text += ", if the API server admits the pods: a run asks it"
		}
		p.field("condition", "%s", text)
	}
}

func (p *page) side(s checkup.PlacementSide, nodes int) {
	what := "a " + s.Workload
	n := len(s.Eligible)
	switch {
	case n == 0 && s.Workload == "DaemonSet":
		p.field(string(s.Side), "%s: no pod, as none of %s is eligible", what, plural(nodes, "node"))
	case n == 0:
		p.field(string(s.Side), "%s of one replica: its pod stays pending, as none of %s is eligible", what, plural(nodes, "node"))
	case s.Workload == "DaemonSet":
		p.field(string(s.Side), "%s: a pod on each of %d of %s: %s", what, n, plural(nodes, "node"), some(s.Eligible))
	default:
		p.field(string(s.Side), "%s of one replica: its pod lands on one of %d of %s: %s", what, n, plural(nodes, "node"), some(s.Eligible))
	}
	if s.Min != nil {
		p.field("", "the plan demands at least %s", plural(*s.Min, "eligible node"))
	}
	for _, g := range s.Rejected[:min(len(s.Rejected), manyRows)] {
		p.field("", "not on %s: %s", some(g.Nodes), because(g.Reasons))
	}
	if more := len(s.Rejected) - manyRows; more > 0 {
		p.field("", "and for %d more sets of reasons (all of them: --output json)", more)
	}
	for _, g := range s.Later {
		p.field("", "evicted from %s: %s", some(g.Nodes), because(g.Reasons))
	}
	for _, c := range s.Contradictions {
		p.field("", "contradiction: %s", c)
	}
	for _, u := range s.Unknown {
		p.field("", "unknown: %s", u)
	}
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

func orNone(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// bytesText prints a number of bytes in the binary units of Kubernetes
// quantities.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
