// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func TestRights(t *testing.T) {
	right := func(scope checkup.Scope, namespace string) []checkup.Right {
		return []checkup.Right{{Phase: checkup.PhaseSetup, Scope: scope, Namespace: namespace, Resource: "pods", Verb: "list", Why: "pkg/podmesh Survey: pods that are targets"}}
	}
	for _, test := range []struct {
		name  string
		check checkup.Check
		want  []checkup.Right
	}{
		{"responders", meshPlan().Checks["mesh"], nil},
		{"existing pods of another namespace", meshPlan(webPods).Checks["mesh"], right(checkup.ScopeNamespace, "shop")},
		{"existing pods of the run's namespace", meshPlan(webPods, func(m *Spec) { m.Targets.Pods.Namespace = "" }).Checks["mesh"], right(checkup.ScopeRun, "")},
		{"another kind", checkup.Check{}, nil},
	} {
		if diff := cmp.Diff(test.want, Rights(test.check)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}
