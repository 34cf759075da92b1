// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// TestSaved keeps the reports that the tests of pkg/print print.
func TestSaved(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := judge.Run{
		Namespace: "checks", Name: "day-2-run-1767323045", UID: "6d1c1f0e", Started: start, Finished: start.Add(62 * time.Second),
	}
	plan := &checkup.Plan{Name: "where", Gate: checkup.Gate{Require: checkup.RequirePass}, Checks: map[string]checkup.Check{"where": {Spec: &Spec{}}}}
	judged := func(change func(*Sheet, *answers)) checkup.Report {
		sheet, given := placed()
		change(sheet, given)
		return judge.Join(plan, run, []checkup.CheckReport{judgeSheet(t, sheet, given)}, nil)
	}
	judgetest.Saved(t, map[string]checkup.Report{
		"placement-pass": judged(func(*Sheet, *answers) {}),
		"placement-none": judged(func(s *Sheet, _ *answers) {
			none(&s.Sides[0])
			s.Sides[0].Min = ptr(1)
		}),
		"placement-unasked": judged(func(s *Sheet, r *answers) {
			s.Sides[1].Unknown = []string{"resources: no right to list pods"}
			r.Admissions[1] = asked{Side: SideSource, Cause: &checkup.Cause{Stage: checkup.StageCollect, Message: "the API server did not answer within 10s"}}
		}),
		"placement-disabled": judged(func(s *Sheet, r *answers) {
			*s = Sheet{Origin: "network.config.openshift.io/cluster", Mode: cluster.DiagnosticsDisabled, Nodes: 3}
			r.Admissions = nil
		}),
	})
}
