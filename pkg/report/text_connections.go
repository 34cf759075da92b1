// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// outageLines is the most outages that are printed of one connection.
const outageLines = 5

// connections prints the connections that failed or had an outage, the worst
// first, and how many there are of the others. Unmeasured ones are grouped by
// their causes elsewhere.
func (p *printer) connections(list []checkup.ConnectionReport) {
	if len(list) == 0 {
		return
	}
	verdicts := map[checkup.Verdict]int{}
	passedWith := 0
	var shown []*checkup.ConnectionReport
	for i := range list {
		c := &list[i]
		verdicts[c.Verdict]++
		if c.Verdict == checkup.Fail || len(c.Outages) > 0 {
			shown = append(shown, c)
		}
		if c.Verdict == checkup.Pass && len(c.Outages) > 0 {
			passedWith++
		}
	}
	slices.SortStableFunc(shown, worstFirst)
	p.heading(fmt.Sprintf("Connections (%d)", len(list)))
	limit := len(shown)
	if p.o.Lines > 0 {
		limit = min(limit, p.o.Lines)
	}
	for _, c := range shown[:limit] {
		p.connection(c)
	}
	if more := len(shown) - limit; more > 0 {
		p.line("    ... and %s", count(more, "more connection"))
	}
	s := fmt.Sprintf("%d of %d pass", verdicts[checkup.Pass], len(list))
	if passedWith > 0 {
		s += fmt.Sprintf(", %d of them with outages", passedWith)
	}
	p.line("    %s; %d fail, %d unmeasured", s, verdicts[checkup.Fail], verdicts[checkup.Unmeasured])
}

// worstFirst orders connections: those that failed, then by the share of
// measurements that failed, then by their longest outage.
func worstFirst(a, b *checkup.ConnectionReport) int {
	rank := func(c *checkup.ConnectionReport) int {
		return slices.Index([]checkup.Verdict{checkup.Fail, checkup.Unmeasured, checkup.Pass}, c.Verdict)
	}
	share := func(c *checkup.ConnectionReport) float64 {
		if c.Sent == 0 {
			return 0
		}
		return float64(c.Sent-c.Received) / float64(c.Sent)
	}
	length := func(c *checkup.ConnectionReport) int64 {
		if o := longest(c.Outages); o != nil {
			return int64(o.Duration())
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(share(b), share(a)), cmp.Compare(length(b), length(a)))
}

func (p *printer) connection(c *checkup.ConnectionReport) {
	at := ""
	if c.Address != "" {
		at = " (" + c.Address + ")"
	}
	p.line("    %s %s", p.verdict(string(c.Verdict)), clean(fmt.Sprintf("%s -> %s%s", c.Source, c.Target, at)))
	if c.Cause != nil {
		p.line("      %s", clean(c.Cause.String()))
	}
	s := fmt.Sprintf("%d of %s passed", c.Received, count(c.Sent, "measurement"))
	if failed := failures(c); failed != "" {
		s += "; failed: " + failed
	}
	if d := c.Delays[checkup.StageConnect]; d != nil {
		s += "; connect p50 " + micros(d.P50)
	}
	p.line("      %s", clean(s))
	for i, o := range c.Outages {
		if i == outageLines {
			p.line("      ... and %s", count(len(c.Outages)-i, "more outage"))
			break
		}
		p.line("      outage %s, %s, %d failed", strings.TrimPrefix(during(o), "from "), lasted(o), o.Failures)
	}
}

// failures of a connection by stage.
func failures(c *checkup.ConnectionReport) string {
	var parts []string
	for _, s := range checkup.Stages {
		if n := c.Failures[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", s, n))
		}
	}
	return strings.Join(parts, ", ")
}
