// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/vmlatency"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// vmTask is a teardown of a run of one check of VMs, which left a VM and its owner,
// and an agent of another check. Of the VMs nothing was measured.
func vmTask(t *testing.T, teardown checkup.Teardown) (*task.Task, *kubevirtfake.Clientset, *strings.Builder) {
	t.Helper()
	tk, client, log := newTask(t, teardown)
	second := checkup.Duration(time.Second)
	plan, err := json.Marshal(checkup.Plan{
		Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass}, Teardown: teardown, Retention: checkup.Retention{Reports: 1},
		Checks: map[string]checkup.Check{"vms": {Spec: &vmlatency.Spec{
			Networks: []checkup.NetworkRef{{Name: "br10"}}, IPFamilies: checkup.IPFamilies, Duration: 5 * second, Interval: second / 5,
			Guest: checkup.Guest{Memory: "128Mi"}, Timeouts: checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	tk.PlanJSON = string(plan)
	meta := metav1.ObjectMeta{Name: "vm", Namespace: "ns", UID: "uid-of-vm", Labels: map[string]string{checkup.LabelRun: "uid-1", checkup.LabelRole: "guest", checkup.LabelCheck: "vms"}}
	virt := kubevirtfake.NewSimpleClientset(&kubevirtv1.VirtualMachineInstance{ObjectMeta: meta})
	tk.KubeVirt = virt.KubevirtV1()
	meta.Name = "anchor"
	if err := client.Tracker().Add(&corev1.ConfigMap{ObjectMeta: meta}); err != nil {
		t.Fatal(err)
	}
	return tk, virt, log
}

// TestTeardownOfVMs: they are removed with everything else, and there is evidence of
// those of a check that did not pass.
func TestTeardownOfVMs(t *testing.T) {
	for when, want := range map[checkup.Teardown][]string{
		checkup.TeardownAlways: {},
		checkup.TeardownOnPass: {"virtualmachineinstance/vm", "configmap/anchor", "pod/agent"},
		checkup.TeardownNever:  {"virtualmachineinstance/vm", "configmap/anchor", "pod/agent"},
	} {
		t.Run(string(when), func(t *testing.T) {
			tk, _, log := vmTask(t, when)
			if err := run(t.Context(), tk); err != nil {
				t.Fatal(err, log)
			}
			plan, err := tk.Plan()
			if err != nil {
				t.Fatal(err)
			}
			if left, err := tk.Left(t.Context(), plan); err != nil || !slices.Equal(left, want) {
				t.Errorf("left %v, %v; want %v; log:\n%s", left, err, want, log)
			}
			var kept []checkup.VMEvidence
			if err := tk.Store("").Load(t.Context(), record.EvidenceVMs(), &kept); err != nil || len(kept) != 1 || kept[0].VM != "vm" {
				t.Errorf("evidence %+v, %v; want that of the VM", kept, err)
			}
			if printed := strings.Contains(log.String(), "delete virtualmachineinstances -l checkplan.dev/run=uid-1"); printed != (len(want) > 0) {
				t.Errorf("log %s", log)
			}
		})
	}
}

// TestTeardownOfVMsFails: what could not be removed is named, VMs and pods.
func TestTeardownOfVMsFails(t *testing.T) { synctest.Test(t, testTeardownOfVMsFails) }

func testTeardownOfVMsFails(t *testing.T) {
	tk, virt, _ := vmTask(t, checkup.TeardownAlways)
	virt.PrependReactor("delete", "virtualmachineinstances", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(kubevirtv1.Resource("virtualmachineinstances"), "vm", errors.New("no"))
	})
	err := run(t.Context(), tk)
	if err == nil || !strings.Contains(err.Error(), "left behind: virtualmachineinstance/vm configmap/anchor") || !strings.Contains(err.Error(), "delete virtualmachineinstance/vm") {
		t.Errorf("%v, want what is left and why", err)
	}
	if pods(t, tk.Kubernetes.(*fake.Clientset)) != 0 {
		t.Error("the agent is left, too")
	}
}
