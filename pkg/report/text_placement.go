// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// namesShown is the most nodes that a line of a placement names.
const namesShown = 8

// placement prints what a dry run of a placement came to.
func (p *printer) placement(r *checkup.PlacementReport) {
	if r == nil {
		return
	}
	mode := string(r.Mode)
	if r.Mode == checkup.DiagnosticsNoOpinion {
		mode = "not set, which is " + string(checkup.DiagnosticsAll)
	}
	p.heading("Placement")
	p.line("    from %s; mode %s; %s looked at", clean(cmp.Or(r.Origin, "nowhere")), clean(mode), count(r.Nodes, "node"))
	for i := range r.Sides {
		p.side(r, &r.Sides[i])
	}
	if c := r.Condition; c != nil {
		s := fmt.Sprintf("%s %s, reason %s", c.Type, c.Status, c.Reason)
		if c.Message != "" {
			s += ": " + c.Message
		}
		p.line("    condition %s", clean(s))
	}
}

func (p *printer) side(r *checkup.PlacementReport, s *checkup.PlacementSide) {
	v, cause := judgeSide(r, s)
	demand := ""
	if s.Min != nil {
		demand = fmt.Sprintf(", at least %d demanded", *s.Min)
	}
	p.line("    %s %s: %d of %s eligible%s", p.verdict(string(v)), clean(string(s.Side)), len(s.Eligible), count(r.Nodes, "node"), demand)
	if v != checkup.Pass {
		p.line("      %s", clean(cause.String()))
	}
	line := func(format string, args ...any) { p.line("      %s", clean(fmt.Sprintf(format, args...))) }
	line("%s", lands(s))
	for i, g := range s.Rejected {
		if p.o.Lines > 0 && i == p.o.Lines {
			line("... and %s of nodes", count(len(s.Rejected)-i, "more group"))
			break
		}
		line("not on %s: %s", several(g.Nodes), strings.Join(reasons(g), "; "))
	}
	for _, g := range s.Later {
		line("evicted later from %s: %s", several(g.Nodes), strings.Join(reasons(g), "; "))
	}
	for _, c := range s.Contradictions {
		line("contradiction: %s", c)
	}
	for _, u := range s.Unknown {
		line("unknown: %s", u)
	}
	for _, a := range r.Admissions {
		if a.Side != s.Side {
			continue
		}
		switch {
		case a.Cause != nil:
			line("the API server was not asked, or did not say: %s", a.Cause)
		case a.Allowed:
			line("the API server admits the pod")
		default:
			line("the API server does not admit the pod: %s", or(a.Message, "it did not say why"))
		}
		for _, w := range a.Warnings {
			line("it warns: %s", w)
		}
		for _, c := range a.Changed {
			line("it changes the pod: %s", c)
		}
	}
}

// lands says where the pods of a side come to be.
func lands(s *checkup.PlacementSide) string {
	workload := cmp.Or(s.Workload, "workload")
	switch {
	case len(s.Eligible) == 0:
		return fmt.Sprintf("the pods of the %s have nowhere to go", workload)
	case s.Workload == "Deployment" && len(s.Eligible) > 1:
		return fmt.Sprintf("the pod of the %s lands on one of %s", workload, several(s.Eligible))
	case s.Workload == "Deployment":
		return fmt.Sprintf("the pod of the %s lands on %s", workload, s.Eligible[0])
	default:
		return fmt.Sprintf("the %s has a pod on %s", workload, several(s.Eligible))
	}
}

// several names nodes, or the first of them and how many there are.
func several(nodes []string) string {
	if len(nodes) <= namesShown {
		return strings.Join(nodes, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(nodes[:namesShown-1], ", "), len(nodes)-namesShown+1)
}
