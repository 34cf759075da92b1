// SPDX-License-Identifier: Apache-2.0

package print

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// logLines is the most lines of each list in a group, and of warnings of a check.
const logLines = 50

// logWidth is the width of tables and wrapped texts. tasks/internal/task wraps what is wider at this width.
const logWidth = 76

// Log prints the report for the log viewer of the Tekton dashboard, which is the
// only place where it shows what a run found. It folds ::group:: and colours
// ::error:: and ::warning:: lines, as GitHub Actions does; groups do not nest.
// Everything of a check is folded into a group; what is wrong follows unfolded;
// the verdict is the last line.
func Log(w io.Writer, r *checkup.Report) error {
	p := newPrinter(w, TextOptions{Width: logWidth, Lines: logLines, Rest: logRest(r)})
	for i := range r.Checks {
		c := &r.Checks[i]
		p.command("group", "%s: %s", checkTitle(c), c.Verdict)
		p.check(c, r.Gate)
		p.command("endgroup", "")
		if c.Cause != nil {
			p.command("warning", "%s was not measured: %s", c.Name, c.Cause)
		}
		for _, f := range c.Findings {
			severity := "error"
			if f.Confirmation == checkup.Gone || f.Change != nil && c.Verdict != checkup.RunFail {
				severity = "warning"
			}
			p.command(
				severity,
				"%s: %s (%s, explains %s)",
				c.Name,
				said(f),
				f.String(),
				explained(f, nounOf(c)),
			)
			for _, s := range f.Against {
				p.command(severity, "    but %s", s)
			}
			if len(f.Alternatives) > 0 {
				p.command(severity, "    or %s", strings.Join(f.Alternatives, "; "))
			}
		}
		if c.Counts.Fail > 0 &&
			!slices.ContainsFunc(c.Findings, func(f checkup.Finding) bool {
				return f.Confirmation != checkup.Gone && f.Change == nil
			}) {
			p.command("error", "%s: %s failed", c.Name, checkup.Count(c.Counts.Fail, nounOf(c)))
		}
		if found := secondLook(c); found != "" {
			p.command("warning", "%s: second look: %s", c.Name, found)
		}
		if n := c.Counts.Undecided; n > 0 {
			p.command("warning", "%s: %s undecided", c.Name, checkup.Count(n, nounOf(c)))
		}
		for _, n := range c.Notes {
			p.command("warning", "%s: %s", c.Name, n)
		}
		groups := unmeasuredGroups(c)
		for k, g := range groups {
			if k == logLines {
				p.command(
					"warning",
					"%s: ... and %s of unmeasured %ss",
					c.Name,
					checkup.Count(len(groups)-k, "more group"),
					nounOf(c),
				)
				break
			}
			p.command("warning", "%s: unmeasured: %s", c.Name, g)
		}
	}
	for _, l := range r.Leftovers {
		p.command("warning", "left behind: %s", l)
	}
	switch r.Verdict {
	case checkup.RunFail:
		p.command("error", "%s", r.Summary)
	case checkup.RunPass:
		p.line("%s", checkup.Clean(r.Summary))
	default:
		p.command("warning", "%s", r.Summary)
	}
	p.line("verdict: %s", checkup.Clean(string(r.Verdict)))
	return p.w.Flush()
}

// logRest says where to find what is left out of a log.
func logRest(r *checkup.Report) string {
	if r.Run == "" {
		return ""
	}
	return fmt.Sprintf("all of them: planner report %s -o json", checkup.Clean(r.Run))
}

// command writes a line that the dashboard colours.
func (p *printer) command(name, format string, args ...any) {
	fmt.Fprintf(p.w, "::%s::%s\n", name, checkup.Clean(fmt.Sprintf(format, args...)))
}
