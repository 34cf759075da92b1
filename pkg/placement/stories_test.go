// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/load"
	"github.com/checkplan/checkplan/pkg/placement"
)

// TestStories: the three user stories of the document, by the plans that are
// shipped for them, to the verdict.
func TestStories(t *testing.T) {
	plans, _, problems := load.Plans(t.Context(), "../..", []string{"plans"})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	available := &checkup.Condition{Type: "NetworkDiagnosticsAvailable", Status: "True", Reason: "AsExpected"}
	noSources := &checkup.Condition{Type: "NetworkDiagnosticsAvailable", Status: "False", Reason: "NoSources", Message: "No source pods available"}
	everyLinux := []string{"infra-0", "infra-1", "master-0", "master-1", "master-2", "worker-0", "worker-1", "worker-2", "worker-3"}
	for name, tt := range map[string]struct {
		plan      string
		whatIf    []string
		sources   []string
		targets   []string
		verdict   checkup.RunVerdict
		condition *checkup.Condition
	}{
		"only on infrastructure nodes": {
			plan:    "placement-infra",
			sources: []string{"infra-0", "infra-1"}, targets: everyLinux,
			verdict: checkup.RunPass, condition: available,
		},
		"only on infrastructure nodes, of which none is left": {
			plan:    "placement-infra",
			whatIf:  []string{"cordon infra-0", "taint nodes infra-1 maintenance=yes:NoExecute"},
			targets: everyLinux,
			verdict: checkup.RunFail, condition: noSources,
		},
		"the set of nodes of both": {
			plan:    "placement-nodes",
			sources: []string{"worker-0", "worker-2"}, targets: []string{"worker-0", "worker-2"},
			verdict: checkup.RunPass, condition: available,
		},
		"workers": {
			plan:    "placement-scale-down",
			sources: []string{"worker-0", "worker-1", "worker-2", "worker-3"}, targets: everyLinux,
			verdict: checkup.RunPass, condition: available,
		},
		"workers scaled to zero": {
			plan:    "placement-scale-down",
			whatIf:  []string{"delete node -l node-role.kubernetes.io/worker"},
			targets: everyLinux[:5],
			verdict: checkup.RunPass, condition: noSources,
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := slices.IndexFunc(plans, func(p *checkup.Plan) bool { return p.Name == tt.plan })
			if i < 0 {
				t.Fatalf("no plan %s", tt.plan)
			}
			plan := plans[i]
			s := placement.OpenShift()
			for _, change := range tt.whatIf {
				if err := s.Change(change); err != nil {
					t.Fatal(err)
				}
			}
			w, warnings, err := placement.Expand(plan, plan.CheckNames()[0], s)
			if err != nil || len(warnings) > 0 {
				t.Fatalf("warnings %q, error %v", warnings, err)
			}
			sheet, err := placement.SheetOf(w)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string][]string{"source": tt.sources, "target": tt.targets}, map[string][]string{
				string(sheet.Sides[0].Side): sheet.Sides[0].Eligible, string(sheet.Sides[1].Side): sheet.Sides[1].Eligible,
			}); diff != "" {
				t.Errorf("eligible nodes (-want +got):\n%s", diff)
			}
			if got := len(sheet.Sides[0].Contradictions) > 0; got != (len(tt.sources) == 0) {
				t.Errorf("contradictions of sources are %q", sheet.Sides[0].Contradictions)
			}
			record := &checkup.Record{}
			for _, side := range sheet.Sides {
				record.Facts = append(record.Facts, placement.Admitted(side.Side))
			}
			got := placement.Judge(w, placement.Roster(plan, w, s), record, plan.Gate)
			if got.Verdict != tt.verdict {
				t.Errorf("verdict %s, want %s: %+v", got.Verdict, tt.verdict, got)
			}
			if diff := cmp.Diff([]checkup.Condition{*tt.condition}, got.Conditions); diff != "" {
				t.Errorf("condition (-want +got):\n%s", diff)
			}
		})
	}
}
