// SPDX-License-Identifier: Apache-2.0

package print

import (
	"strings"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
)

// TestCumulative: what all runs have covered, in words.
func TestCumulative(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	for _, tt := range []struct {
		name string
		c    *checkup.Cumulative
		want []string
	}{
		{"no history", nil, nil},
		{"nothing measured", &checkup.Cumulative{Possible: 90}, []string{"no pair was measured in any run of this plan"}},
		{
			"on the way",
			&checkup.Cumulative{Since: since, Runs: 2, Measured: 30, Possible: 90, Failing: 1, Oldest: "a -> b", RunsLeft: new(4), FailingUpperBound: new(0.14895)},
			[]string{
				"33.333% of all pairs measured since 2026-01-02 03:04 UTC, by 2 runs: 30 of 90 pairs, 1 of which failed when measured last",
				"4 more runs until all pairs are measured, at this rate; not measured yet: a -> b",
				"with 95% confidence at most 14.9% of all pairs fail, if nothing changed since",
			},
		},
		{
			"standing still",
			&checkup.Cumulative{Since: since, Runs: 1, Measured: 30, Possible: 90, Oldest: "a -> b"},
			[]string{
				"33.333% of all pairs measured since 2026-01-02 03:04 UTC, by 1 run: 30 of 90 pairs, 0 of which failed when measured last",
				"the newest run added no pair; not measured yet: a -> b",
			},
		},
		{
			"complete",
			&checkup.Cumulative{Since: since, Runs: 3, Measured: 90, Possible: 90, Oldest: "a -> b", OldestAt: since, RunsLeft: new(0), FailingUpperBound: new(0.0)},
			[]string{
				"100% of all pairs measured since 2026-01-02 03:04 UTC, by 3 runs: 90 of 90 pairs, 0 of which failed when measured last",
				"not measured for longest: a -> b, since 2026-01-02 03:04 UTC",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			p := newPrinter(&b, TextOptions{})
			p.cumulative(tt.c)
			if err := p.w.Flush(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(b.String()) {
				got = append(got, strings.TrimSpace(line))
			}
			if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
				t.Errorf("printed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// TestOpenGap: the next run is overdue: the last line of the runs says so, in text and on the page.
func TestOpenGap(t *testing.T) {
	h := overview()
	newest := h.Runs[len(h.Runs)-1].Started
	h.Gaps = append(h.Gaps, history.Gap{After: newest, Before: newest.Add(4 * time.Hour), Missed: 3})
	var text, page strings.Builder
	if err := History(&text, h, TextOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := HTMLHistory(&page, h, "", "", Links{}); err != nil {
		t.Fatal(err)
	}
	const tally = "2 gaps without a run, in which 5 runs did not report"
	for name, want := range map[string][]string{
		text.String(): {tally, "day-2-run-7     4     0           0\n  gap: no report for 4h0m0s, 3 runs missing\n\nFindings"},
		page.String(): {
			tally, `<li><span class="gap" title="gap: no report for 4h0m0s, 3 runs missing">3 missing</span></li>` + "\n</ul>",
			"<tbody>\n" + `<tr><td class="stamp">after 2026-01-02 12:04 UTC</td><td colspan="3" class="inconclusive">gap: no report for 4h0m0s, 3 runs missing</td></tr>`,
		},
	} {
		for _, want := range want {
			if !strings.Contains(name, want) {
				t.Errorf("does not have %q:\n%s", want, name)
			}
		}
	}
}

// TestTrend: the newest runs, lowest to highest, and a space where there is no delay.
func TestTrend(t *testing.T) {
	long := make([]int64, trendMax)
	for i := range long {
		long[i] = 100
	}
	for _, tt := range []struct {
		name    string
		values  []int64
		unicode bool
		want    string
	}{
		{"rising", []int64{100, 0, 450, 800}, true, "  p  |▁ ▅█|  100µs to 800µs\n"},
		{"in ASCII", []int64{100, 0, 450, 800}, false, "  p  |_ +@|  100µs to 800µs\n"},
		{"flat", []int64{100, 100}, true, "  p  |▁▁|  100µs to 100µs\n"},
		{"nothing", []int64{0, 0}, true, ""},
		{"too many for the page", long, false, "  p  |" + strings.Repeat("_", 57) + "|  100µs to 100µs\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			p := newPrinter(&b, TextOptions{Unicode: tt.unicode})
			p.trend("p", tt.values, 0)
			if err := p.w.Flush(); err != nil {
				t.Fatal(err)
			}
			if b.String() != tt.want {
				t.Errorf("%q, want %q", b.String(), tt.want)
			}
		})
	}
}

// TestDaily: the delays by day, of as many days a character as it takes to show all of them.
func TestDaily(t *testing.T) {
	year := make([]int64, 365)
	for i := range year {
		year[i] = int64(200 + i)
	}
	for _, tt := range []struct {
		name     string
		p50, p99 []int64
		want     string
	}{
		{"a few days", []int64{100, 0, 450, 800}, []int64{900, 0, 900, 900}, `
Round trips by day since 2026-01-01, 1 day a character, medians of the runs
  mesh udp p50  |_ +@|  100µs to 800µs
  mesh udp p99  |_ __|  900µs to 900µs
`},
		{"no 99th percentile", []int64{100, 450, 800}, []int64{0, 0, 0}, `
Round trips by day since 2026-01-01, 1 day a character, medians of the runs
  mesh udp p50  |_+@|  100µs to 800µs
`},
		{"a year", year, year, `
Round trips by day since 2026-01-01, 8 days a character, medians of the runs
  mesh udp p50  |____......-------======+++++++******######@@@@|  202µs to 560µs
  mesh udp p99  |____......-------======+++++++******######@@@@|  202µs to 560µs
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			p := newPrinter(&b, TextOptions{})
			p.daily([]history.Trend{
				{Check: "mesh", Probe: "udp", Daily: &history.Daily{First: "2026-01-01", P50: tt.p50, P99: tt.p99}},
				{Check: "mesh", Probe: "on one day only"},
			})
			if err := p.w.Flush(); err != nil {
				t.Fatal(err)
			}
			if b.String() != tt.want {
				t.Errorf("printed\n%s\nwant\n%s", b.String(), tt.want)
			}
		})
	}
}
