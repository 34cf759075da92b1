// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// vms prints the pairs of VMs, the worst first, each with why it did not pass and a
// table of its families.
func (p *printer) vms(list []checkup.VMReport) {
	if len(list) == 0 {
		return
	}
	shown := make([]*checkup.VMReport, len(list))
	for i := range list {
		shown[i] = &list[i]
	}
	slices.SortStableFunc(shown, func(a, b *checkup.VMReport) int {
		rank := func(v *checkup.VMReport) int {
			return slices.Index([]checkup.Verdict{checkup.Fail, checkup.Unmeasured, checkup.Pass}, worstVerdict(v))
		}
		return cmp.Compare(rank(a), rank(b))
	})
	p.heading(fmt.Sprintf("Pairs of VMs (%d)", len(list)))
	limit := len(shown)
	if p.o.Lines > 0 {
		limit = min(limit, p.o.Lines)
	}
	for _, v := range shown[:limit] {
		p.vm(v)
	}
	if more := len(shown) - limit; more > 0 {
		p.line("    ... and %s of VMs", count(more, "more pair"))
	}
}

func (p *printer) vm(v *checkup.VMReport) {
	p.line("    %s %s", p.verdict(string(worstVerdict(v))), clean(vmWay(v)))
	for _, verdict := range []checkup.Verdict{checkup.Fail, checkup.Unmeasured} {
		for _, s := range vmCauses(v, verdict) {
			p.line("      %s", clean(s))
		}
	}
	if !slices.ContainsFunc(v.Families, func(f checkup.VMFamilyReport) bool {
		return f.Sent > 0 || f.Verdict == checkup.Fail || f.Back == checkup.Pass || f.Back == checkup.Fail
	}) {
		return
	}
	table := [][]string{{"family", "verdict", "back", "sent", "loss", "dup", "reord", "min", "avg", "p50", "p99", "max", "stddev"}}
	for _, f := range v.Families {
		row := []string{string(f.Family), string(f.Verdict), string(f.Back), "-", "-", "-", "-"}
		if f.Sent > 0 {
			row = append(row[:3], fmt.Sprint(f.Sent), f.Loss.String(), fmt.Sprint(f.Duplicates), fmt.Sprint(f.Reordered))
		}
		for i := range table[0][len(row):] {
			s := "-"
			if d := f.Delay; d != nil {
				s = micros([]int64{d.Min, d.Mean, d.P50, d.P99, d.Max, d.StdDev}[i])
			}
			row = append(row, s)
		}
		table = append(table, row)
	}
	p.table("    ", 3, table)
}
