// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// golden compares with testdata/name, which UPDATE=1 writes anew.
func golden(t *testing.T, name string, objects ...any) {
	t.Helper()
	var got []byte
	for _, o := range objects {
		b, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		got = append(append(got, "---\n"...), b...)
	}
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") == "1" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got), UPDATE=1 writes it anew:\n%s", path, diff)
	}
}

func TestPods(t *testing.T) {
	f, _ := newFleet(t, newCluster())
	w := worksheet(3)
	responder, err := f.responder(w, 1)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "responder.yaml", responder)

	w.Probes = append(w.Probes, checkup.TransportProbe{Transport: checkup.ICMP, Probe: w.Probes[0].Probe})
	pod, cm, err := f.agent(w, Orders(w, rosterOf(w))[2])
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "agent.yaml", pod, cm)
}

// TestPodsAgreeOnNames: a pod is found again by what it is for, and by nothing
// else.
func TestPodsAgreeOnNames(t *testing.T) {
	f, _ := newFleet(t, newCluster())
	w := worksheet(3)
	names := map[string]bool{}
	for i := range w.Targets {
		again := *f
		for _, fleet := range []*Fleet{f, &again} {
			r, err := fleet.responder(w, i)
			if err != nil {
				t.Fatal(err)
			}
			a, cm, err := fleet.agent(w, Orders(w, rosterOf(w))[i])
			if err != nil {
				t.Fatal(err)
			}
			if cm.Name != a.Name {
				t.Errorf("agent %s, order %s: want one name", a.Name, cm.Name)
			}
			names[r.Name], names[a.Name] = true, true
		}
	}
	if len(names) != 6 {
		t.Errorf("%d names for 6 pods: %v", len(names), names)
	}
}

func TestBadResources(t *testing.T) {
	f, _ := newFleet(t, newCluster())
	w := worksheet(3)
	w.Resources.Limits["memory"] = "lots"
	_, err := f.responder(w, 0)
	if err == nil || !strings.Contains(err.Error(), `resources.limits: memory: "lots" is not a quantity`) {
		t.Errorf("%v, want an error that says which quantity", err)
	}
}

func TestOrders(t *testing.T) {
	w := worksheet(4)
	w.IPFamilies = checkup.IPFamilies
	roster := rosterOf(w)
	roster.Targets[1].Cause = setupCause("not up")
	roster.Targets[2].Addresses = map[checkup.IPFamily]string{checkup.IPv6: "fd00::3"}
	roster.Targets[3].Addresses = map[checkup.IPFamily]string{}
	// n0 measures 1 and 2, n1 measures 2 and 3, n2 measures 0 and 3, n3 measures 0 and 1.
	want := map[int][]int{0: {2}, 1: {2}, 2: {0}, 3: {0}}
	got := map[int][]int{}
	seeds := map[uint64]bool{}
	for _, o := range Orders(w, roster) {
		for _, target := range o.Targets {
			got[o.Source] = append(got[o.Source], target.Target)
		}
		seeds[o.Seed] = true
		if o.Deadline >= w.Timeouts.Probe || o.Deadline <= 0 {
			t.Errorf("deadline %s, want less than %s, in which the agent must also be started and read", o.Deadline, w.Timeouts.Probe)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("targets by source (-want +got):\n%s", diff)
	}
	if len(seeds) != 4 {
		t.Errorf("%d seeds for 4 agents: they would do the same at the same time", len(seeds))
	}
	roster.Targets[0].Cause, roster.Targets[2].Cause = setupCause("not up"), setupCause("not up")
	if orders := Orders(w, roster); len(orders) != 0 {
		t.Errorf("orders %v although nothing is up, want none", orders)
	}
}

func TestEntry(t *testing.T) {
	for _, tt := range []struct {
		name string
		ips  []string
		want map[checkup.IPFamily]string
	}{
		{"IPv4", []string{"198.18.0.1"}, map[checkup.IPFamily]string{checkup.IPv4: "198.18.0.1"}},
		{"IPv6", []string{"fd00::1"}, map[checkup.IPFamily]string{checkup.IPv6: "fd00::1"}},
		{"both", []string{"fd00::1", "198.18.0.1"}, map[checkup.IPFamily]string{checkup.IPv4: "198.18.0.1", checkup.IPv6: "fd00::1"}},
		{"none", nil, map[checkup.IPFamily]string{}},
		{"nonsense", []string{"here"}, map[checkup.IPFamily]string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{}
			for _, ip := range tt.ips {
				pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
			}
			e := entry(pod)
			if diff := cmp.Diff(tt.want, e.Addresses); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if (e.Cause != nil) != (len(tt.want) == 0) {
				t.Errorf("cause %v with addresses %v", e.Cause, tt.want)
			}
		})
	}
}
