// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/console"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/vmlatency"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// TestProbeOfVMs: what VMs report on their consoles is recorded, and the task's pod is
// then the owner of the VMs.
func TestProbeOfVMs(t *testing.T) {
	client, virt := fake.NewSimpleClientset(), kubevirtfake.NewSimpleClientset()
	var log strings.Builder
	tk := &task.Task{Kubernetes: client, KubeVirt: virt.KubevirtV1(), Namespace: "ns", RunName: "run", RunUID: "uid-1", PodName: "probe-pod", PodUID: "uid-3", Check: "vms", Stdout: &log}
	second := checkup.Duration(time.Second)
	frozen := record.Frozen{Worksheet: checkup.Worksheet{
		Plan: "day-2", Check: "vms", Kind: vmlatency.Name, Assignments: [][]int{{1}, {0}},
		IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes:     []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56}, Count: 25, Interval: second / 5}}},
		Timeouts:   checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
		Guests:     &checkup.GuestSheet{Guest: checkup.Guest{Memory: "128Mi"}, Duration: 5 * second},
	}}
	for i, node := range []string{"n0", "n1"} {
		address := "10.1.2." + string(rune('1'+i))
		frozen.Worksheet.Sources = append(frozen.Worksheet.Sources, checkup.Endpoint{Node: node, VM: &checkup.VM{Addresses: map[checkup.IPFamily]string{checkup.IPv4: address + "/29"}, Target: i == 1}})
		frozen.Roster.Targets = append(frozen.Roster.Targets, checkup.RosterEntry{Pod: "ns/" + node, Node: node, Addresses: map[checkup.IPFamily]string{checkup.IPv4: address}})
		vmi := &kubevirtv1.VirtualMachineInstance{}
		vmi.Namespace, vmi.Name = "ns", checkup.ObjectName("uid-1", "vms", checkup.RoleGuest, node)
		if err := virt.Tracker().Add(vmi); err != nil {
			t.Fatal(err)
		}
	}
	frozen.Worksheet.Targets = frozen.Worksheet.Sources
	if err := tk.Store("day-2").Save(t.Context(), record.Worksheet("vms"), frozen); err != nil {
		t.Fatal(err)
	}
	tk.Console = func(context.Context, string) (io.ReadWriteCloser, error) {
		host, own := net.Pipe()
		server := console.Server{State: func() console.State { return console.State{} }, Run: answerAll}
		go func() { _ = server.Serve(t.Context(), own) }()
		return host, nil
	}
	if err := run(t.Context(), tk); err != nil {
		t.Fatal(err, &log)
	}
	r, err := tk.Store("").LoadRecord(t.Context(), "vms")
	if err != nil || len(r.Observations) != 2 || len(r.Sources) != 2 {
		t.Fatalf("%+v, %v; want two of each; log:\n%s", r, err, &log)
	}
	for _, o := range r.Observations {
		if want := map[int]int{0: 25, 1: checkup.VMConnectivityCount}[o.Source]; o.Sent != want {
			t.Errorf("VM %d sent %d, want %d", o.Source, o.Sent, want)
		}
	}
	var roster checkup.Roster
	if err := tk.Store("").Load(t.Context(), record.Roster("vms"), &roster); err != nil || roster.Targets[1].Node != "n1" {
		t.Errorf("roster %+v, %v", roster, err)
	}
	var said []checkup.Transcript
	if err := tk.Store("").Load(t.Context(), record.Consoles("vms", "probe"), &said); err != nil || len(said) != 2 {
		t.Errorf("transcripts %+v, %v; want two", said, err)
	}
	anchor, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), checkup.ObjectName("uid-1", "vms", checkup.RoleGuest, ""), metav1.GetOptions{})
	if err != nil || anchor.OwnerReferences[0].Name != "probe-pod" {
		t.Errorf("anchor %v, %v; want it this task's pod's", anchor, err)
	}
	if p, err := tk.Store("").LoadProgress(t.Context(), "vms"); err != nil || p.String() != "2 of 2 VMs answer, 2 of 2 pairs measured" {
		t.Errorf("progress %q, %v", p, err)
	}
}

// answerAll reports that every request of an order was answered.
func answerAll(_ context.Context, in io.Reader, out io.Writer) error {
	var o checkup.Order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return err
	}
	pair := checkup.Pair{Source: o.Source, Target: o.Targets[0].Target, Family: checkup.IPv4, Transport: checkup.ICMP, Size: 56}
	for _, m := range []checkup.Message{
		{Start: &checkup.AgentStart{Source: o.Source, Pairs: 1}},
		{Observation: &checkup.Observation{Pair: pair, Sent: o.Probes[0].Count, Received: o.Probes[0].Count}},
		{End: &checkup.AgentEnd{Observations: 1}},
	} {
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
