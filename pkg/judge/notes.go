// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// An agent whose timers were this late gets a note, in microseconds.
const (
	lateP99 = 1_000
	lateMax = 50_000
)

// agentNotes returns notes about agents that were delayed, or whose reports are wrong.
func (j *Judgement) agentNotes() []checkup.AgentNote {
	var notes []checkup.AgentNote
	for i, s := range j.evidence.sources {
		add := func(format string, args ...any) {
			notes = append(notes, checkup.AgentNote{Source: Name(j.Worksheet.Sources, i), Note: fmt.Sprintf(format, args...)})
		}
		for _, c := range s.controls {
			if !c.OK {
				add("control pair %q (%s) wrong: %s", c.Name, c.Family, cmp.Or(c.Message, "it gave no details"))
			}
		}
		if n := s.unrequested(); n > 0 {
			add("reported %s", checkup.Count(n, "unrequested pair"))
		}
		if s.conflicts > 0 {
			add("reported %s twice, with different results", checkup.Count(s.conflicts, "pair"))
		}
		if s.uncounted > 0 {
			add("reported more answers to %s than the targets counted requests", checkup.Count(s.uncounted, "pair"))
		}
		for _, end := range s.ends {
			// If the collector left out reports, the agent's count cannot be compared.
			whole := s.discarded+s.conflicts == 0
			if whole && end.Observations != s.observed {
				add("counted %s in its report; %d arrived", checkup.Count(end.Observations, "pair"), s.observed)
			}
			if whole && end.Results != s.results {
				add("counted %s in its report; %d arrived", checkup.Count(end.Results, "measurement"), s.results)
			}
			if d := end.SelfDoubt; d.SchedulingDelayP99 >= lateP99 || d.SchedulingDelayMax >= lateMax {
				add("was held up: its timers were up to %s late (p99 %s)",
					Micros(d.SchedulingDelayMax), Micros(d.SchedulingDelayP99))
			}
			if t := end.SelfDoubt.ThrottledMicros; t != nil && *t > 0 {
				add("was throttled for %s by its CPU limit", Micros(*t))
			}
		}
	}
	if n := j.evidence.strays; n > 0 {
		notes = append(notes, checkup.AgentNote{
			Source: "unknown", Note: checkup.Count(n, "observation") + " of sources that are not in the worksheet",
		})
	}
	if n := j.evidence.strayResults; n > 0 {
		notes = append(notes, checkup.AgentNote{
			Source: "unknown", Note: checkup.Count(n, "measurement") + " of sources that are not in the worksheet",
		})
	}
	return notes
}
