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
	inside := func(namespace, verb string, names ...string) []checkup.Right {
		rights := []checkup.Right{
			{Phase: checkup.PhaseSetup, Resource: "pods", Verb: verb, Why: "pkg/podmesh Survey: pods that are sources"},
			{Phase: checkup.PhaseProbe, Resource: "pods", Verb: "get", Why: "pkg/fleet Measure: the state of a source pod, and of its agent"},
			{Phase: checkup.PhaseProbe, Resource: "pods/ephemeralcontainers", Verb: "patch", Why: "pkg/fleet Measure: start an agent in a source pod"},
			{Phase: checkup.PhaseProbe, Resource: "pods/log", Verb: "get", Why: "pkg/fleet Measure: what the agent in a source pod reports"},
		}
		for i := range rights {
			rights[i].Scope, rights[i].Namespace, rights[i].Names = checkup.ScopeNamespace, namespace, names
		}
		return rights
	}
	for _, test := range []struct {
		name  string
		check checkup.Check
		want  []checkup.Right
	}{
		{"responders", meshPlan().Checks["mesh"], nil},
		{"existing pods of another namespace", meshPlan(webPods).Checks["mesh"], right(checkup.ScopeNamespace, "shop")},
		{"existing pods of the run's namespace", meshPlan(webPods, func(m *Spec) { m.Targets.Pods.Namespace = "" }).Checks["mesh"], right(checkup.ScopeRun, "")},
		{"inside existing pods", meshPlan(insideWebPods).Checks["mesh"], inside("shop", "list")},
		{"inside one pod", meshPlan(insideWebPods, func(m *Spec) { m.Sources.Pods = &PodSources{Namespace: "shop", Name: "web-1"} }).Checks["mesh"],
			inside("shop", "get", "web-1")},
		{"another kind", checkup.Check{}, nil},
	} {
		if diff := cmp.Diff(test.want, Rights(test.check)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}
