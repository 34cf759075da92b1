// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/probe"
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
	pod, err := f.agent(w, 2)
	if err != nil {
		t.Fatal(err)
	}
	cms, err := ordersOf(pod, Orders(w, rosterOf(w))[2])
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "agent.yaml", pod, cms[0])

	c := connections(1)
	if pod, err = f.agent(c, 0); err != nil {
		t.Fatal(err)
	}
	if cms, err = ordersOf(pod, Orders(c, seen())[0]); err != nil {
		t.Fatal(err)
	}
	golden(t, "agent-hostnetwork.yaml", pod, cms[0])

	r := rules(1)
	if pod, err = f.agent(r, 0); err != nil {
		t.Fatal(err)
	}
	if cms, err = ordersOf(pod, Orders(r, &checkup.Roster{})[0]); err != nil {
		t.Fatal(err)
	}
	golden(t, "agent-rules.yaml", pod, cms[0])
}

// rules is a worksheet of n nodes whose rules are read.
func rules(n int) *checkup.Worksheet {
	w := worksheet(n)
	w.Kind, w.Targets, w.Assignments, w.Probes, w.Limits = "serviceRules", nil, nil, nil, checkup.Limits{}
	w.Tables = &checkup.TableSheet{Interval: checkup.Duration(10 * time.Second)}
	for i := range w.Sources {
		w.Sources[i].HostNetwork = true
	}
	return w
}

// TestPodsAreThoseOfARun: what Pods foretells is what a run makes.
func TestPodsAreThoseOfARun(t *testing.T) {
	mesh := worksheet(4)
	mesh.Sources[1].Node = ""
	mesh.Targets[2] = checkup.Endpoint{Node: "n2", Pod: "other/server"}
	mesh.Assignments[3] = nil
	control := connections(3)
	control.Sources[2].HostNetwork = false
	for _, tt := range []struct {
		w                 *checkup.Worksheet
		roster            *checkup.Roster
		agents, responder []int // indexes of those that there are
	}{
		{mesh, rosterOf(mesh), []int{0, 2}, []int{0, 1, 3}},
		{control, seen(), []int{0, 1, 2}, nil},
		{rules(3), &checkup.Roster{}, []int{0, 1, 2}, nil},
	} {
		t.Run(string(tt.w.Kind), func(t *testing.T) {
			agents, responders, err := Pods(tt.w, "ns", "registry.example/agent:v1")
			if err != nil {
				t.Fatal(err)
			}
			c := newCluster()
			var made []corev1.PodSpec
			c.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
				c.mu.Lock()
				defer c.mu.Unlock()
				made = append(made, a.(k8stesting.CreateAction).GetObject().(*corev1.Pod).DeepCopy().Spec)
				return false, nil, nil
			})
			f, _ := newFleet(t, c)
			f.OpenLog = func(context.Context, string, *corev1.PodLogOptions) (io.ReadCloser, error) {
				return nil, apierrors.NewInternalError(io.EOF)
			}
			if err := f.StartResponders(t.Context(), tt.w, tt.roster, nil); err != nil {
				t.Fatal(err)
			}
			tt.w.Timeouts.Probe, tt.w.Connections = 1, nil // nobody answers
			if err := f.Measure(t.Context(), tt.w, tt.roster, newSink(), nil); err != nil {
				t.Fatal(err)
			}
			var foretold []corev1.PodSpec
			indexes := func(pods []*corev1.Pod) (there []int) {
				for i, pod := range pods {
					if pod == nil {
						continue
					}
					there = append(there, i)
					if pod.Namespace != "ns" || pod.Labels[checkup.LabelCheck] != tt.w.Check || pod.OwnerReferences != nil {
						t.Errorf("%+v, want namespace and labels, and no owner", pod.ObjectMeta)
					}
					foretold = append(foretold, pod.Spec)
				}
				return there
			}
			if diff := cmp.Diff(tt.agents, indexes(agents)); diff != "" {
				t.Errorf("agents (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.responder, indexes(responders)); diff != "" {
				t.Errorf("responders (-want +got):\n%s", diff)
			}
			without := func(specs []corev1.PodSpec) []string { // what depends on the run's UID and its timeouts
				var all []string
				for _, spec := range specs {
					spec.ActiveDeadlineSeconds = nil
					for i := range spec.Volumes {
						spec.Volumes[i].ConfigMap = nil
					}
					b, err := json.Marshal(spec)
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, string(b))
				}
				slices.Sort(all)
				return all
			}
			if diff := cmp.Diff(without(made), without(foretold)); diff != "" {
				t.Errorf("(-made +foretold):\n%s", diff)
			}
		})
	}
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
			a, err := fleet.agent(w, i)
			if err != nil {
				t.Fatal(err)
			}
			cms, err := ordersOf(a, Orders(w, rosterOf(w))[i])
			if err != nil {
				t.Fatal(err)
			}
			if cms[0].Name != a.Name {
				t.Errorf("agent %s, order %s: want one name", a.Name, cms[0].Name)
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

// TestOrdersOfAFurtherLook: only sources with pairs of the look have an order, whose agent is another
// pod than the one of the first look. Responders are those of the first look.
func TestOrdersOfAFurtherLook(t *testing.T) {
	first := worksheet(4)
	w := *first
	pair := checkup.Pair{Source: 1, Target: 2, Family: checkup.IPv4, Transport: checkup.UDP, Size: 64}
	w.Look, w.Again = 1, []checkup.Again{{Pair: pair, Count: 100, Ports: []int{40001}}}
	orders := Orders(&w, rosterOf(&w))
	if len(orders) != 1 || orders[0].Source != 1 || orders[0].Look != 1 {
		t.Fatalf("orders %+v, want one for source 1", orders)
	}
	if diff := cmp.Diff(w.Again, orders[0].Again); diff != "" {
		t.Errorf("pairs (-want +got):\n%s", diff)
	}
	f, _ := newFleet(t, newCluster())
	names := map[string]bool{}
	for _, w := range []*checkup.Worksheet{first, &w} {
		agent, err := f.agent(w, 1)
		if err != nil {
			t.Fatal(err)
		}
		responder, err := f.responder(w, 1)
		if err != nil {
			t.Fatal(err)
		}
		names[agent.Name], names[responder.Name] = true, true
		if agent.Labels[checkup.LabelRole] != string(checkup.RoleAgent) || agent.Labels[checkup.LabelCheck] != w.Check {
			t.Errorf("labels %v, want those that teardown selects", agent.Labels)
		}
	}
	if len(names) != 3 {
		t.Errorf("%d names, want one of the responder and two of the agents: %v", len(names), names)
	}
}

// TestOrdersOfConnections: what exists already is described by its Peer; what was not
// visible, and sources that are not scheduled, have no part.
func TestOrdersOfConnections(t *testing.T) {
	w := connections(2)
	w.Sources[0].Node = ""
	w.Connections.For = checkup.Duration(time.Hour)
	orders := Orders(w, seen())
	if len(orders) != 1 || orders[0].Source != 1 {
		t.Fatalf("orders %+v, want one, of the source that is on a node", orders)
	}
	o := orders[0]
	want := []checkup.OrderTarget{{Target: 0, Peer: w.Targets[0].Peer}, {Target: 1, Peer: w.Targets[1].Peer}}
	if diff := cmp.Diff(want, o.Targets); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	if o.Connections != w.Connections {
		t.Error("the order does not say that each measurement is to be reported")
	}
	if watched := time.Duration(w.Connections.For); time.Duration(o.Deadline) <= watched || o.Deadline >= w.ProbeTimeout() {
		t.Errorf("deadline %s, want more than %s and less than %s", o.Deadline, watched, w.ProbeTimeout())
	}
	if pod, err := (&Fleet{}).agent(w, 1); err != nil || *pod.Spec.ActiveDeadlineSeconds < int64(w.ProbeTimeout()/checkup.Duration(time.Second)) {
		t.Errorf("%v, %v: want a pod that may live as long as it is to watch", pod, err)
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

// TestLargeOrders: no order makes a ConfigMap that the API server refuses, and the parts that an agent finds in its
// directory are the order.
func TestLargeOrders(t *testing.T) {
	for _, tt := range []struct {
		name    string
		targets int
		again   bool // with source ports for every pair
		parts   int
	}{
		{"of 10,000 targets", 10_000, false, 1},
		{"of the second look at 20,000 pairs, with 20 ports each", 2_000, true, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 1))
			order := checkup.Order{
				Limits: checkup.Limits{PacketsPerSecond: 1, Concurrency: 1}, Deadline: 1, IPFamilies: checkup.IPFamilies,
				Probes: []checkup.TransportProbe{{Transport: checkup.UDP, Probe: checkup.Probe{
					Sizes: []int{64, 256, 512, 1024, 1400}, Count: 100, Timeout: 1,
				}}},
			}
			for i := range tt.targets {
				order.Targets = append(order.Targets, checkup.OrderTarget{
					Target: i, Ports: map[checkup.Transport]int{checkup.TCP: EchoPort, checkup.UDP: EchoPort, checkup.HTTP: HTTPPort},
					Addresses: map[checkup.IPFamily]string{
						checkup.IPv4: netip.AddrFrom4([4]byte{10, byte(random.IntN(256)), byte(i >> 8), byte(i)}).String(),
						checkup.IPv6: fmt.Sprintf("fd00:%x:%x::%x", random.IntN(1<<16), random.IntN(1<<16), i),
					},
				})
				for _, family := range checkup.IPFamilies {
					for _, size := range order.Probes[0].Sizes {
						if !tt.again {
							continue
						}
						a := checkup.Again{Count: 100, Pair: checkup.Pair{Target: i, Family: family, Transport: checkup.UDP, Size: size}}
						for range 20 {
							a.Ports = append(a.Ports, 1+random.IntN(65535))
						}
						order.Again = append(order.Again, a)
					}
				}
			}
			f, _ := newFleet(t, newCluster())
			pod, err := f.agent(worksheet(3), 0)
			if err != nil {
				t.Fatal(err)
			}
			cms, err := ordersOf(pod, order)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			mounted := map[string]bool{}
			if projected := pod.Spec.Volumes[0].Projected; projected != nil {
				for _, source := range projected.Sources {
					mounted[source.ConfigMap.Name] = true
				}
			} else {
				mounted[pod.Spec.Volumes[0].ConfigMap.Name] = true
			}
			for _, cm := range cms {
				b, err := json.Marshal(cm)
				if err != nil {
					t.Fatal(err)
				}
				if len(b) > 1<<20 {
					t.Errorf("ConfigMap %s has %d bytes as JSON: more than 1 MiB", cm.Name, len(b))
				}
				if !mounted[cm.Name] {
					t.Errorf("the agent does not mount ConfigMap %s", cm.Name)
				}
				for name, part := range cm.BinaryData {
					if err := os.WriteFile(filepath.Join(dir, name), part, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(cms) < tt.parts || tt.parts == 1 && len(cms) != 1 || len(mounted) != len(cms) {
				t.Errorf("%d ConfigMaps, %d mounted, want at least %d", len(cms), len(mounted), tt.parts)
			}
			got, err := probe.ReadOrderFile(filepath.Join(dir, orderFile))
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Targets) != len(order.Targets) || !slices.EqualFunc(got.Again, order.Again, func(a, b checkup.Again) bool {
				return a.Pair == b.Pair && slices.Equal(a.Ports, b.Ports)
			}) {
				t.Errorf("the agent reads %d targets and %d pairs, which differ from what was ordered", len(got.Targets), len(got.Again))
			}
		})
	}
}
