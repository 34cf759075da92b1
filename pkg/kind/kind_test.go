// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// TestEveryKindIsKnown: a field of checkup.Check is a kind, unless it says of
// which checks it comes after, and every kind can be set up.
func TestEveryKindIsKnown(t *testing.T) {
	fields := reflect.TypeFor[checkup.Check]()
	for i := range fields.NumField() {
		field := fields.Field(i)
		if field.Name == "After" {
			continue
		}
		check := reflect.New(fields).Elem()
		check.Field(i).Set(reflect.New(field.Type.Elem()))
		plan := &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"c": check.Interface().(checkup.Check)}}
		k, err := Of(plan, "c")
		if err != nil {
			t.Errorf("%s: %v", field.Name, err)
			continue
		}
		if k.Survey == nil || k.Expand == nil || k.Roster == nil {
			t.Errorf("%s: %+v lacks something", field.Name, k)
		}
	}
	if n := fields.NumField() - 1; len(Kinds) != n {
		t.Errorf("%d kinds are known, but a check can be of %d", len(Kinds), n)
	}
}

func TestOfUnknown(t *testing.T) {
	plan := &checkup.Plan{Name: "p", Checks: map[string]checkup.Check{"none": {}}}
	for _, tt := range []struct{ check, want string }{
		{"mesh", `plan p has no check "mesh"; it has ["none"]`},
		{"none", `check "none": nothing here knows how to set up its kind ""`},
	} {
		if _, err := Of(plan, tt.check); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.check, err, tt.want)
		}
	}
}

func TestPodMeshRoster(t *testing.T) {
	plan := &checkup.Plan{Checks: map[string]checkup.Check{"mesh": {PodMesh: &checkup.PodMesh{
		Targets: checkup.Targets{Pods: &checkup.PodTargets{Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Port: 8080}},
	}}}}
	w := &checkup.Worksheet{Check: "mesh", Targets: []checkup.Endpoint{
		{Node: "n0", Pod: "shop/both"}, {Node: "n1", Pod: "shop/none"}, {Node: "n2"},
	}}
	s := &cluster.Snapshot{Selections: []cluster.Selection{{Selector: "app=web", Pods: []cluster.Pod{
		{Name: "shop/both", Node: "n0", IPs: []string{"198.18.0.1", "fd00::1"}, Ready: true}, {Name: "shop/none", Node: "n1"},
	}}}}
	ports := map[checkup.Transport]int{checkup.TCP: 8080, checkup.HTTP: 8080}
	want := &checkup.Roster{Targets: []checkup.RosterEntry{
		{Pod: "shop/both", Ports: ports, Addresses: map[checkup.IPFamily]string{checkup.IPv4: "198.18.0.1", checkup.IPv6: "fd00::1"}},
		{Pod: "shop/none", Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "the pod has no address yet"}},
		{},
	}}
	if diff := cmp.Diff(want, podMeshRoster(plan, w, s)); diff != "" {
		t.Errorf("existing pods (-want +got):\n%s", diff)
	}
	plan.Checks["mesh"].PodMesh.Targets.Pods = nil
	if diff := cmp.Diff(&checkup.Roster{Targets: make([]checkup.RosterEntry, 3)}, podMeshRoster(plan, w, s)); diff != "" {
		t.Errorf("responders (-want +got):\n%s", diff)
	}
}
