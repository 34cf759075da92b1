// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// News is something about a run that somebody should hear of once: its verdict is another one than that of the run
// before, or runs before it are missing.
type News struct {
	// Reason is the kind of news, as that of a Kubernetes Event.
	Reason Reason
	// Message is one line, not cleaned and not bounded.
	Message string
	// Warning is false if a person need not do anything.
	Warning bool
}

// Reason is a kind of news.
type Reason string

const (
	VerdictPass         Reason = "VerdictPass"         // the plan passes again
	VerdictFail         Reason = "VerdictFail"         // the plan fails, and did not before
	VerdictInconclusive Reason = "VerdictInconclusive" // too much is unmeasured, and was not before
	RunsMissing         Reason = "RunsMissing"         // runs before this one did not report
)

// NewsOf returns what is new with a run, given the runs before it; the run itself may be among them. It is pure. A
// first run is news unless it passes. A run that is like the one before is no news. Only a plan with a schedule has
// missing runs.
func (h *History) NewsOf(e *Entry, summary string) []News {
	run := e.Run
	var news []News
	runs := make([]Run, 0, len(h.Runs)+1)
	for _, r := range h.Runs {
		if r.UID != run.UID {
			runs = append(runs, r)
		}
	}
	before := "this is the first run"
	last := checkup.RunPass
	if n := len(runs); n > 0 {
		last, before = runs[n-1].Verdict, fmt.Sprintf("before %s (run %s)", runs[n-1].Verdict, runs[n-1].Name)
	}
	if run.Verdict != last {
		reason := map[checkup.RunVerdict]Reason{
			checkup.RunPass: VerdictPass, checkup.RunFail: VerdictFail, checkup.RunInconclusive: VerdictInconclusive,
		}[run.Verdict]
		if reason != "" {
			news = append(news, News{reason, fmt.Sprintf("run %s: %s; %s", run.Name, summary, before), reason != VerdictPass})
		}
	}
	due := h.Due.next(e)
	if due == nil {
		return news
	}
	gaps, _ := Gaps(append(runs, run), due)
	for _, g := range gaps {
		if g.Before.Equal(run.Started) {
			const message = "%s missing before run %s: no run that started between %s and %s has a report"
			news = append(news, News{RunsMissing, fmt.Sprintf(message, checkup.Count(g.Missed, "run"), run.Name,
				g.After.UTC().Format(time.RFC3339), g.Before.UTC().Format(time.RFC3339)), true})
		}
	}
	return news
}
