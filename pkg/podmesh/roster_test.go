// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

func TestRoster(t *testing.T) {
	p := meshPlan(webPods)
	mesh := p.Checks["mesh"].Spec.(*Spec)
	s := withPods(snapshotOf(linuxNode("a"), linuxNode("b")),
		cluster.Pod{Name: "shop/dual", Node: "a", IPs: []string{"fd00::1", "10.0.0.1", "10.0.0.2"}, Ready: true},
		cluster.Pod{Name: "shop/single", Node: "a", IPs: []string{"10.0.0.3"}, Ready: true},
		cluster.Pod{Name: "shop/unready", Node: "b", IPs: []string{"10.0.0.4"}},
		cluster.Pod{Name: "shop/starting", Node: "b"},
		cluster.Pod{Name: "shop/waiting"},
	)
	w, _, err := Expand(p, "mesh", s, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.Targets = append(w.Targets, checkup.Endpoint{Node: "b", Pod: "shop/gone"}, checkup.Endpoint{Node: "b"})
	ports := map[checkup.Transport]int{checkup.TCP: 80, checkup.HTTP: 80}
	cause := func(message string) *checkup.Cause {
		return &checkup.Cause{Stage: checkup.StageSetup, Message: message}
	}
	want := []checkup.RosterEntry{
		{Pod: "shop/waiting", Cause: cause("the pod is not scheduled to a known node")},
		{Pod: "shop/dual", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.1", checkup.IPv6: "fd00::1"}, Ports: ports},
		{Pod: "shop/single", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.3"}, Ports: ports},
		{Pod: "shop/starting", Cause: cause("the pod has no address yet")},
		{Pod: "shop/unready", Cause: cause("the pod is not ready")},
		{Pod: "shop/gone", Cause: cause("the pod was not found")},
		{}, // a fixture
	}
	if diff := cmp.Diff(want, Roster(mesh, w, s).Targets); diff != "" {
		t.Errorf("roster (-want +got):\n%s", diff)
	}

	w, _, err = Expand(meshPlan(), "mesh", s, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]checkup.RosterEntry{{}, {}}, Roster(meshPlan().Checks["mesh"].Spec.(*Spec), w, s).Targets); diff != "" {
		t.Errorf("roster of fixtures (-want +got):\n%s", diff)
	}
}
