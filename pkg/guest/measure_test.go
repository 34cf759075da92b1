// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// sink keeps what VMs reported.
type sink struct {
	mu           sync.Mutex
	observations []checkup.Observation
	sources      map[int]checkup.Source
	twice        bool
}

func (s *sink) Observation(o checkup.Observation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observations = append(s.observations, o)
}

func (s *sink) Results([]checkup.Result) { panic("VMs report observations") }

func (s *sink) Source(source checkup.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sources == nil {
		s.sources = map[int]checkup.Source{}
	}
	_, known := s.sources[source.Source]
	s.twice = s.twice || known
	s.sources[source.Source] = source
}

// bubble runs a test on a clock of its own.
func bubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// started is a world whose VMs are up.
func started(t *testing.T, pairs int) (*world, *checkup.Worksheet, *checkup.Roster) {
	t.Helper()
	w := worksheet(t, pairs)
	x := newWorld(t, w)
	t.Cleanup(x.end)
	roster := rosterOf(w)
	if err := x.Start(t.Context(), w, roster, nil); err != nil {
		t.Fatal(err)
	}
	for vm, e := range roster.Targets {
		if e.Cause != nil {
			t.Fatalf("VM %d: %s", vm, e.Cause)
		}
	}
	return x, w, roster
}

// TestMeasure: the target asks for connectivity first, then the source measures for
// the whole duration.
func TestMeasure(t *testing.T) { synctest.Test(t, testMeasure) }

func testMeasure(t *testing.T) {
	x, w, roster := started(t, 2)
	var mu sync.Mutex
	var orders []checkup.Order
	for _, g := range x.guests {
		g.run = func(o checkup.Order) []line {
			mu.Lock()
			defer mu.Unlock()
			orders = append(orders, o)
			return well(o)
		}
	}
	to := &sink{}
	var last fleet.Progress
	if err := x.Measure(t.Context(), w, roster, to, func(p fleet.Progress) { last = p }); err != nil {
		t.Fatal(err)
	}
	if want := (fleet.Progress{Started: 4, Agents: 4, Measured: 8, Pairs: 8}); last != want {
		t.Errorf("progress %+v, want %+v", last, want)
	}
	at := map[int]int{}
	for i, o := range orders {
		at[o.Source] = i
	}
	for _, o := range orders {
		vm := w.Sources[o.Source].VM
		count, deadline := w.Measurements(checkup.Pair{Source: o.Source, Target: peer(o.Source), Transport: checkup.ICMP}), time.Duration(w.AgentDeadline())
		if vm.Target {
			deadline -= time.Duration(w.Guests.Duration)
			if at[o.Source] > at[peer(o.Source)] {
				t.Errorf("VM %d measured before its target had asked for connectivity", peer(o.Source))
			}
		}
		want := checkup.Order{
			Source: o.Source, Seed: uint64(o.Source), Limits: w.Limits, IPFamilies: w.IPFamilies, Deadline: o.Deadline,
			Own: addresses(vm.Addresses), Unused: addresses(vm.Unused),
			Targets: []checkup.OrderTarget{{Target: peer(o.Source), Addresses: addresses(w.Sources[peer(o.Source)].VM.Addresses)}},
			Probes: []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{
				Sizes: []int{56}, Count: count, Interval: checkup.Duration(200 * time.Millisecond), Timeout: checkup.Duration(5 * time.Second),
			}}},
		}
		if diff := cmp.Diff(want, o); diff != "" {
			t.Errorf("order of VM %d (-want +got):\n%s", o.Source, diff)
		}
		if left := deadline - time.Duration(o.Deadline); left < 0 || left > 5*time.Second {
			t.Errorf("VM %d has %s, want about %s", o.Source, o.Deadline, deadline)
		}
	}
	if len(to.observations) != 8 || len(to.sources) != 4 || to.twice {
		t.Errorf("%d observations, %d sources (one of them twice: %v); want 8 and 4", len(to.observations), len(to.sources), to.twice)
	}
	for vm, s := range to.sources {
		if s.Cause != nil || s.End == nil || len(s.Controls) != 4 || s.Pod != "ns/"+x.nameOf(w, vm) {
			t.Errorf("VM %d: %+v, want all well", vm, s)
		}
		for _, c := range s.Controls {
			if !c.OK {
				t.Errorf("VM %d: control %+v: its order has neither its own addresses nor unused ones", vm, c)
			}
		}
	}
	if texts := x.Transcripts(); len(texts) != 4 || !strings.Contains(texts[0].Text, "checkplan!") {
		t.Errorf("transcripts %+v, want what the consoles said", texts)
	}
}

// TestMeasureGoesWrong: what happens to the VMs on n1 (source) and n2 (target) is a
// cause, and never a failed or passed pair; the pair on n3 and n4 is measured.
func TestMeasureGoesWrong(t *testing.T) {
	gone := func() error { return errors.New("websocket: bad handshake") }
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, x *world, w *checkup.Worksheet, roster *checkup.Roster)
		// Causes of the two as sources, and on the roster; empty: no cause.
		source, target, rosterSource, rosterTarget string
		observations                               int // of the pair
	}{
		{
			name: "the target did not start",
			prepare: func(_ *testing.T, _ *world, _ *checkup.Worksheet, roster *checkup.Roster) {
				roster.Targets[1] = checkup.RosterEntry{Cause: setupCause("no bridge")}
			},
			source: "VM n2: no bridge", target: "no bridge", rosterTarget: "no bridge",
		}, {
			name:    "a VM is deleted after setup",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) { x.gone(t, "n1") },
			source:  "lost while measuring: it was deleted", target: "VM n1: lost while measuring: it was deleted",
		}, {
			name: "a VM is deleted while it measures",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) {
				x.guests["n1"].run = func(o checkup.Order) []line {
					return []line{well(o)[0], {do: func() { x.gone(t, "n1") }}, {do: func() { x.hangUp("n1") }}}
				}
			},
			source: "lost while measuring: it was deleted", observations: 2,
		}, {
			name: "its node is lost",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) {
				x.guests["n2"].dial = gone
				x.vmi(t, "n2", func(vmi *kubevirtv1.VirtualMachineInstance) {
					vmi.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{Type: kubevirtv1.VirtualMachineInstanceReady, Status: corev1.ConditionFalse, Message: "pod is not ready"}}
				})
				pod := &corev1.Pod{}
				pod.Name, pod.Namespace, pod.Labels = "virt-launcher-n2", "ns", x.Fleet.Labels("vms", checkup.RoleGuest)
				pod.Spec.NodeName = "n2"
				x.vmi(t, "n2", func(vmi *kubevirtv1.VirtualMachineInstance) { pod.Labels[kubevirtv1.CreatedByLabel] = string(vmi.UID) })
				if err := x.kube.Tracker().Add(pod); err != nil {
					t.Fatal(err)
				}
				x.warn(t, "Pod", "virt-launcher-n2", "NodeNotReady", "Node is not ready")
			},
			source: "VM n2: lost while measuring: it is no longer ready on node n2: NodeNotReady: Node is not ready",
			target: "lost while measuring: it is no longer ready on node n2: NodeNotReady: Node is not ready",
		}, {
			name: "the target dies while the source measures",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) {
				x.guests["n1"].run = func(o checkup.Order) []line {
					return append([]line{{do: func() {
						x.vmi(t, "n2", func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Status.Phase = kubevirtv1.Succeeded })
						x.guests["n2"].dial = gone
						x.hangUp("n2")
					}}}, reported(o, 9999)...)
				}
			},
			source: "", target: "lost while measuring: it ended on node n2; the console showed ", rosterTarget: "lost while measuring: it ended on node n2", observations: 4,
		}, {
			name: "the target restarts while the source measures",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) {
				x.guests["n1"].run = func(o checkup.Order) []line {
					return append([]line{{do: func() {
						x.mu.Lock()
						x.lines["n2"].Close()
						delete(x.lines, "n2")
						x.mu.Unlock()
						x.hangUp("n2")
					}}}, reported(o, 9999)...)
				}
			},
			target:       "lost while measuring: the guest restarted since it was ready",
			rosterTarget: "lost while measuring: the guest restarted since it was ready", observations: 4,
		}, {
			name: "the source is migrated, and everything is answered",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) {
				x.guests["n1"].run = func(o checkup.Order) []line {
					return append([]line{{do: func() { x.vmi(t, "n1", migrate(true, false)) }}}, well(o)...)
				}
			},
			source:       "KubeVirt migrated it from node n1 to node n9 during the check",
			rosterSource: "KubeVirt migrated it from node n1 to node n9 during the check", observations: 4,
		}, {
			name: "the target is migrated, and its console is lost",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) {
				x.guests["n1"].run = func(o checkup.Order) []line {
					return append([]line{{do: func() {
						x.vmi(t, "n2", migrate(true, false))
						x.guests["n2"].dial = gone
						x.hangUp("n2")
					}}}, reported(o, 9999)...)
				}
			},
			target:       "KubeVirt migrated it from node n2 to node n9 during the check",
			rosterTarget: "KubeVirt migrated it from node n2 to node n9 during the check", observations: 4,
		}, {
			name: "a migration that has not ended",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) {
				x.guests["n1"].run = func(o checkup.Order) []line {
					return append([]line{{do: func() { x.vmi(t, "n2", migrate(false, false)) }}}, reported(o, 9999)...)
				}
			},
			target:       "KubeVirt began to migrate it from node n2 to node n9 during the check",
			rosterTarget: "KubeVirt began to migrate it from node n2 to node n9 during the check", observations: 4,
		}, {
			name: "a migration that failed",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) {
				x.guests["n1"].run = func(o checkup.Order) []line {
					return append([]line{{do: func() { x.vmi(t, "n2", migrate(true, true)) }}}, reported(o, 9999)...)
				}
			},
			target:       "KubeVirt failed to migrate it from node n2 to node n9 during the check",
			rosterTarget: "KubeVirt failed to migrate it from node n2 to node n9 during the check", observations: 4,
		}, {
			name: "another node, without a migration that is known",
			prepare: func(t *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) {
				x.guests["n1"].run = func(o checkup.Order) []line {
					return append([]line{{do: func() {
						x.vmi(t, "n2", func(vmi *kubevirtv1.VirtualMachineInstance) { vmi.Status.NodeName = "n9" })
					}}}, reported(o, 9999)...)
				}
			},
			target:       "it moved from node n2 to node n9 during the check",
			rosterTarget: "it moved from node n2 to node n9 during the check", observations: 4,
		}, {
			name: "a guest that is not well",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) {
				x.guests["n1"].run = func(o checkup.Order) []line { return well(o)[:6] } // one observation, and no end
			},
			source: "the VM did not report its end", observations: 3,
		}, {
			name: "a guest that reports more than arrived",
			prepare: func(_ *testing.T, x *world, _ *checkup.Worksheet, _ *checkup.Roster) {
				x.guests["n1"].run = func(o checkup.Order) []line {
					lines := well(o)
					lines[len(lines)-1].End.Observations = 7
					return append([]line{{Message: checkup.Message{Observation: &checkup.Observation{Pair: checkup.Pair{Source: 2, Target: 3}}}}}, lines...)
				}
			},
			source: "the VM reported 7 observations, but not all of them arrived", observations: 4,
		},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			x, w, roster := started(t, 2)
			tt.prepare(t, x, w, roster)
			to := &sink{}
			if err := x.Measure(t.Context(), w, roster, to, nil); err != nil {
				t.Fatal(err)
			}
			for _, want := range []struct {
				what, want string
				cause      *checkup.Cause
			}{
				{"source", tt.source, to.sources[0].Cause}, {"target", tt.target, to.sources[1].Cause},
				{"roster's source", tt.rosterSource, roster.Targets[0].Cause}, {"roster's target", tt.rosterTarget, roster.Targets[1].Cause},
			} {
				if (want.cause != nil) != (want.want != "") || want.cause != nil && !strings.Contains(want.cause.Message, want.want) {
					t.Errorf("%s: %v, want %q", want.what, want.cause, want.want)
				}
			}
			n := 0
			for _, o := range to.observations {
				if o.Source < 2 {
					n++
				}
			}
			if n != tt.observations || len(to.observations) != n+4 {
				t.Errorf("%d observations of %d, want %d and 4 of the other pair", n, len(to.observations), tt.observations)
			}
			for _, vm := range []int{2, 3} {
				if to.sources[vm].Cause != nil || to.sources[vm].End == nil {
					t.Errorf("VM %d: %+v, want it well", vm, to.sources[vm])
				}
			}
			if to.twice {
				t.Error("a source was reported twice")
			}
		})
	}
}

// migrate gives a VM a migration to n9.
func migrate(ended, failed bool) func(*kubevirtv1.VirtualMachineInstance) {
	return func(vmi *kubevirtv1.VirtualMachineInstance) {
		now := metav1.Now()
		vmi.Status.MigrationState = &kubevirtv1.VirtualMachineInstanceMigrationState{
			StartTimestamp: &now, SourceNode: vmi.Status.NodeName, TargetNode: "n9", Completed: ended, Failed: failed,
		}
		if ended && !failed {
			vmi.Status.NodeName = "n9"
		}
	}
}

// TestMigrated: pairs of a VM that was migrated are unmeasured, whatever was lost.
func TestMigrated(t *testing.T) { synctest.Test(t, testMigrated) }

func testMigrated(t *testing.T) {
	x, w, roster := started(t, 1)
	x.guests["n1"].run = func(o checkup.Order) []line {
		return append([]line{{do: func() { x.vmi(t, "n2", migrate(true, false)) }}}, reported(o, 9999)...)
	}
	to := &sink{}
	if err := x.Measure(t.Context(), w, roster, to, nil); err != nil {
		t.Fatal(err)
	}
	record := &checkup.Record{Observations: to.observations, Sources: []checkup.Source{to.sources[0], to.sources[1]}}
	r := vmlatency.Judge(w, roster, record, checkup.Gate{Require: checkup.RequirePass})
	if r.Counts.Fail > 0 || r.Counts.Unmeasured != r.Counts.Expected {
		t.Errorf("%+v; want all unmeasured", r.Counts)
	}
	for _, u := range r.Units {
		if u.Cause == nil || !strings.Contains(u.Cause.Message, "KubeVirt migrated it from node n2 to node n9") {
			t.Errorf("%s to %s: %v", u.Source, u.Target, u.Cause)
		}
	}
}

// TestMeasureLoss: a loss counts if its target still runs although it did not answer.
func TestMeasureLoss(t *testing.T) { synctest.Test(t, testMeasureLoss) }

func testMeasureLoss(t *testing.T) {
	x, w, roster := started(t, 1)
	x.guests["n1"].run = func(o checkup.Order) []line { return reported(o, 9999) }
	to := &sink{}
	if err := x.Measure(t.Context(), w, roster, to, nil); err != nil {
		t.Fatal(err)
	}
	for vm := range w.Sources {
		if to.sources[vm].Cause != nil || roster.Targets[vm].Cause != nil {
			t.Errorf("VM %d: %v, %v; want nothing against it", vm, to.sources[vm].Cause, roster.Targets[vm].Cause)
		}
	}
}

// TestLostConsole: a console that was disconnected is connected again, and nothing is
// lost.
func TestLostConsole(t *testing.T) { synctest.Test(t, testLostConsole) }

func testLostConsole(t *testing.T) {
	x, w, roster := started(t, 1)
	x.guests["n1"].run = func(o checkup.Order) []line {
		lines := well(o)
		return append(append(lines[:3:3], line{do: func() { x.hangUp("n1") }}), lines[3:]...)
	}
	to := &sink{}
	if err := x.Measure(t.Context(), w, roster, to, nil); err != nil {
		t.Fatal(err)
	}
	if to.sources[0].Cause != nil || len(to.observations) != 4 {
		t.Errorf("%+v, %d observations; want all of them", to.sources[0], len(to.observations))
	}
}

// TestMeasureStopped: what was reported until then is kept, and the rest says why.
func TestMeasureStopped(t *testing.T) { synctest.Test(t, testMeasureStopped) }

func testMeasureStopped(t *testing.T) {
	x, w, roster := started(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	x.guests["n1"].run = func(o checkup.Order) []line { return append(well(o)[:1], line{do: cancel}) }
	to := &sink{}
	if err := x.Measure(ctx, w, roster, to, nil); err != nil {
		t.Fatal(err)
	}
	if c := to.sources[0].Cause; c == nil || c.Message != "the probe task was stopped before the VM ended" {
		t.Errorf("cause %v, want that it was stopped", c)
	}
	if to.sources[1].Cause != nil || len(to.observations) != 2 || roster.Targets[1].Cause != nil {
		t.Errorf("%+v, %d observations; want what the target reported", to.sources[1], len(to.observations))
	}
}

// TestMeasureDenied: a right that is missing for all is an error, not a fact about a VM.
func TestMeasureDenied(t *testing.T) { synctest.Test(t, testMeasureDenied) }

func testMeasureDenied(t *testing.T) {
	x, w, roster := started(t, 1)
	for _, g := range x.guests {
		g.dial = refused
	}
	to := &sink{}
	if err := x.Measure(t.Context(), w, roster, to, nil); err == nil || !strings.Contains(err.Error(), "cannot connect to any console of 2 VMs") || !strings.Contains(err.Error(), "no right to the console") {
		t.Errorf("%v, want that there is no right", err)
	}
	if len(to.sources) != 2 || to.sources[0].Cause == nil {
		t.Errorf("sources %+v, want both with a cause", to.sources)
	}
}

// TestTranscript: only the end is kept.
func TestTranscript(t *testing.T) {
	kept := &transcript{most: 10}
	for range 100 {
		if _, err := kept.Write([]byte("0123456")); err != nil {
			t.Fatal(err)
		}
	}
	if text := kept.text(); text != "4560123456" {
		t.Errorf("%q, want the last ten", text)
	}
}
