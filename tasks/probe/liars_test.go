// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/console"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/vmlatency"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// echo is a pair of the mesh of liars, answered so many times of five.
func echo(source, target, received int) checkup.Message {
	return checkup.Message{Observation: &checkup.Observation{
		Pair: checkup.Pair{Source: source, Target: target, Family: checkup.IPv4, Transport: checkup.UDP, Size: 64},
		Sent: 5, Received: received, RTTs: slices.Repeat([]int64{100}, received),
	}}
}

// controls are what an agent reports that gets its control pairs right.
func controls() []checkup.Message {
	return []checkup.Message{
		{Control: &checkup.Control{Family: checkup.IPv4, Name: "self", OK: true}},
		{Control: &checkup.Control{Family: checkup.IPv4, Name: "closed", OK: true}},
	}
}

// outcomes are the verdicts of a check's pairs that did not pass, with stage and
// reason, by source and target.
func outcomes(t *testing.T, tk *task.Task, plan *checkup.Plan) map[string]string {
	t.Helper()
	r, err := tk.Report(t.Context(), plan, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, p := range r.Checks[0].Units {
		if p.Verdict == checkup.Pass {
			continue
		}
		got[p.Source+" to "+p.Target] = strings.TrimRight(fmt.Sprintf("%s %s %s %s", p.Verdict, p.Cause.Stage, p.Cause.Reason, p.Direction), " ")
	}
	return got
}

// TestLyingAgents: an agent that reports unrequested pairs costs all of its own pairs,
// one that reports a pair twice and differently costs that pair, and nothing of what
// they or a lying responder make up changes the pairs of others.
func TestLyingAgents(t *testing.T) {
	second := checkup.Duration(time.Second)
	frozen := record.Frozen{Worksheet: checkup.Worksheet{
		Plan: "day-2", Check: "mesh", Kind: podmesh.Name, Assignments: [][]int{{1, 2}, {0, 2}, {0, 1}},
		IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes:     []checkup.TransportProbe{{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 5}}},
		Timeouts:   checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
	}}
	client := fake.NewSimpleClientset()
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		a.(k8stesting.CreateAction).GetObject().(*corev1.Pod).Status = corev1.PodStatus{
			Phase:             corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		}
		return false, nil, nil
	})
	honest := append(controls(), echo(0, 1, 5), echo(0, 2, 0), checkup.Message{End: &checkup.AgentEnd{Observations: 2}})
	logs := map[string][]checkup.Message{}
	for i, messages := range [][]checkup.Message{
		honest,
		// It claims that n0 reaches nothing, and that there is another node.
		append(controls(), echo(0, 1, 0), echo(0, 2, 5), echo(1, 0, 5), echo(1, 2, 5), echo(1, 9, 5), checkup.Message{End: &checkup.AgentEnd{Observations: 5}}),
		append(controls(), echo(2, 0, 5), echo(2, 1, 0), echo(2, 1, 5), checkup.Message{End: &checkup.AgentEnd{Observations: 2}}),
	} {
		node := fmt.Sprintf("n%d", i)
		frozen.Worksheet.Sources = append(frozen.Worksheet.Sources, checkup.Endpoint{Node: node})
		responder := checkup.ObjectName("uid-1", "mesh", checkup.RoleResponder, node)
		frozen.Roster.Targets = append(frozen.Roster.Targets, checkup.RosterEntry{
			Pod: "ns/" + responder, Addresses: map[checkup.IPFamily]string{checkup.IPv4: "198.18.0.1"},
		})
		if err := client.Tracker().Add(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: responder, Namespace: "ns", Labels: map[string]string{
				checkup.LabelRun: "uid-1", checkup.LabelCheck: "mesh", checkup.LabelRole: "responder",
			}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}); err != nil {
			t.Fatal(err)
		}
		logs[checkup.ObjectName("uid-1", "mesh", checkup.RoleAgent, node)] = messages
		// Each responder counts what arrives, and also claims that n2 received what n0 sent to it.
		logs[responder] = []checkup.Message{{Start: &checkup.AgentStart{Source: -1}}}
		for source := range 3 {
			if i < 2 && source != i {
				logs[responder] = append(logs[responder],
					checkup.Message{Reception: &checkup.Reception{Pair: echo(source, i, 0).Observation.Pair, Packets: 5}},
					checkup.Message{Reception: &checkup.Reception{Pair: echo(0, 2, 0).Observation.Pair, Packets: 5}})
			}
		}
	}
	frozen.Worksheet.Targets = frozen.Worksheet.Sources

	tk := &task.Task{Kubernetes: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", PodName: "probe-pod", PodUID: "uid-3", Check: "mesh", Stdout: io.Discard}
	if err := tk.Store("day-2").Save(t.Context(), record.Worksheet("mesh"), frozen); err != nil {
		t.Fatal(err)
	}
	f := tk.Fleet("day-2")
	f.Retry = time.Millisecond
	f.OpenLog = func(_ context.Context, pod string, _ *corev1.PodLogOptions) (io.ReadCloser, error) {
		var log strings.Builder
		for _, m := range logs[pod] {
			log.WriteString(line(t, m))
		}
		return io.NopCloser(strings.NewReader(log.String())), nil
	}
	if err := probe(t.Context(), tk, f, &frozen); err != nil {
		t.Fatal(err)
	}

	r, err := tk.Store("day-2").LoadRecord(t.Context(), "mesh")
	if err != nil {
		t.Fatal(err)
	}
	type distrust struct {
		Unrequested int
		Conflicts   []checkup.Pair
	}
	var got []distrust
	for _, s := range r.Sources {
		got = append(got, distrust{s.Unrequested, s.Conflicts})
	}
	if diff := cmp.Diff([]distrust{{}, {Unrequested: 3}, {Conflicts: []checkup.Pair{echo(2, 1, 0).Observation.Pair}}}, got); diff != "" {
		t.Errorf("distrust of the sources (-want +got):\n%s", diff)
	}
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{"mesh": {Spec: &podmesh.Spec{}}}}
	if diff := cmp.Diff(map[string]string{
		"n0 to n2": "fail echo  " + string(checkup.DirectionForward),
		"n1 to n0": "unmeasured collect " + string(checkup.ReasonUnrequested),
		"n1 to n2": "unmeasured collect " + string(checkup.ReasonUnrequested),
		"n2 to n1": "unmeasured collect " + string(checkup.ReasonConflict),
	}, outcomes(t, tk, plan)); diff != "" {
		t.Errorf("pairs that did not pass (-want +got):\n%s", diff)
	}
}

// TestLyingGuests: what holds for agents holds for guests, which report over their
// consoles.
func TestLyingGuests(t *testing.T) {
	second := checkup.Duration(time.Second)
	frozen := record.Frozen{Worksheet: checkup.Worksheet{
		Plan: "day-2", Check: "vms", Kind: vmlatency.Name, Assignments: [][]int{{1}, {0}, {3}, {2}},
		IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes:     []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56}, Count: 25, Interval: second / 5}}},
		Timeouts:   checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
		Guests:     &checkup.GuestSheet{Guest: checkup.Guest{Memory: "128Mi"}, Duration: 5 * second},
	}}
	virt := kubevirtfake.NewSimpleClientset()
	for i := range 4 {
		node, address := fmt.Sprintf("n%d", i), fmt.Sprintf("10.1.2.%d", i+1)
		frozen.Worksheet.Sources = append(frozen.Worksheet.Sources, checkup.Endpoint{
			Node: node, VM: &checkup.VM{Addresses: map[checkup.IPFamily]string{checkup.IPv4: address + "/29"}, Target: i%2 == 1},
		})
		frozen.Roster.Targets = append(frozen.Roster.Targets, checkup.RosterEntry{
			Pod: "ns/" + node, Node: node, Addresses: map[checkup.IPFamily]string{checkup.IPv4: address},
		})
		vmi := &kubevirtv1.VirtualMachineInstance{}
		vmi.Namespace, vmi.Name = "ns", checkup.ObjectName("uid-1", "vms", checkup.RoleGuest, node)
		if err := virt.Tracker().Add(vmi); err != nil {
			t.Fatal(err)
		}
	}
	frozen.Worksheet.Targets = frozen.Worksheet.Sources
	tk := &task.Task{Kubernetes: fake.NewSimpleClientset(), KubeVirt: virt.KubevirtV1(), Namespace: "ns", RunName: "run", RunUID: "uid-1", PodName: "probe-pod", PodUID: "uid-3", Check: "vms", Stdout: io.Discard}
	if err := tk.Store("day-2").Save(t.Context(), record.Worksheet("vms"), frozen); err != nil {
		t.Fatal(err)
	}
	tk.Console = func(context.Context, string) (io.ReadWriteCloser, error) {
		host, own := net.Pipe()
		server := console.Server{State: func() console.State { return console.State{} }, Run: lie}
		go func() { _ = server.Serve(t.Context(), own) }()
		return host, nil
	}
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{"vms": {Spec: &vmlatency.Spec{}}}}
	if diff := cmp.Diff(map[string]string{
		"n0 to n1": "unmeasured collect " + string(checkup.ReasonUnrequested),
		"n3 to n2": "unmeasured collect " + string(checkup.ReasonConflict),
	}, outcomes(t, tk, plan)); diff != "" {
		t.Errorf("pairs that did not pass (-want +got):\n%s", diff)
	}
}

// lie is the agent of a guest: VM 0 reports a pair of VM 2 as lost, VM 3 reports its
// own pair twice and differently, and the others are honest.
func lie(_ context.Context, in io.Reader, out io.Writer) error {
	var o checkup.Order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return err
	}
	measured := func(source, target, received int) checkup.Message {
		return checkup.Message{Observation: &checkup.Observation{
			Pair: checkup.Pair{Source: source, Target: target, Family: checkup.IPv4, Transport: checkup.ICMP, Size: 56},
			Sent: o.Probes[0].Count, Received: received, RTTs: slices.Repeat([]int64{100}, received),
		}}
	}
	messages := append([]checkup.Message{{Start: &checkup.AgentStart{Source: o.Source, Pairs: 1}}}, controls()...)
	switch o.Source {
	case 0:
		messages = append(messages, measured(2, 3, 0))
	case 3:
		messages = append(messages, measured(3, 2, 1))
	}
	messages = append(messages, measured(o.Source, o.Targets[0].Target, o.Probes[0].Count), checkup.Message{End: &checkup.AgentEnd{Observations: 1}})
	for _, m := range messages {
		b, err := json.Marshal(m)
		if err == nil {
			_, err = out.Write(append(b, '\n'))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
