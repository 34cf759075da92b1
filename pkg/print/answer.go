// SPDX-License-Identifier: Apache-2.0

package print

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Answer prints the report of a plan of one check from one source to one target in words: a line for each probe and
// family, "a reaches b by tcp, IPv4: 20 of 20, p50 400µs". A report of which nothing was measured is one line with the
// cause. Its error is the writer's.
func Answer(w io.Writer, r *checkup.Report, from, to string) error {
	var lines []string
	for i := range r.Checks {
		lines = append(lines, answers(&r.Checks[i], from, to)...)
	}
	if len(lines) == 0 {
		lines = []string{fmt.Sprintf("not known whether %s reaches %s: %s", from, to, r.Summary)}
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, checkup.NoCommand(checkup.Clean(line))); err != nil {
			return err
		}
	}
	return nil
}

func answers(c *checkup.CheckReport, from, to string) []string {
	if c.Cause != nil {
		return []string{fmt.Sprintf("not known whether %s reaches %s: %s", from, to, c.Cause)}
	}
	var lines []string
	how := func(t checkup.Transport, f checkup.IPFamily) string {
		return fmt.Sprintf("%s by %s, %s", to, t, cmp.Or(string(f), "any family"))
	}
	counts := func(sent, received int, delay *checkup.Delay) string {
		s := fmt.Sprintf("%d of %d", received, sent)
		if delay != nil {
			s += ", p50 " + micros(delay.P50)
		}
		return s
	}
	for _, u := range c.Units {
		over, why := how(u.Transport, u.Family), ""
		if u.Cause != nil {
			why = u.Cause.String()
		}
		var line string
		switch {
		case u.Verdict == checkup.Unmeasured:
			lines = append(lines, fmt.Sprintf("not known whether %s reaches %s: %s", from, over, cmp.Or(why, "not measured")))
			continue
		case u.Received == 0:
			line = fmt.Sprintf("%s does not reach %s: %s", from, over, counts(u.Sent, u.Received, nil))
		case u.Verdict == checkup.Fail:
			line = fmt.Sprintf("%s reaches %s, but not as expected: %s", from, over, counts(u.Sent, u.Received, u.Delay))
		default:
			line = fmt.Sprintf("%s reaches %s, perhaps with losses: %s", from, over, counts(u.Sent, u.Received, u.Delay))
		}
		if why != "" {
			line += "; " + why
		}
		lines = append(lines, line)
	}
	for _, row := range c.Delays {
		troubled := slices.ContainsFunc(c.Units, func(u checkup.Unit) bool {
			return u.Transport == row.Transport && u.Family == row.Family && u.Size == row.Size
		})
		if !troubled && row.Sent > 0 {
			lines = append(lines, fmt.Sprintf("%s reaches %s: %s",
				from, how(row.Transport, row.Family), counts(row.Sent, row.Received, row.Delay)))
		}
	}
	return lines
}
