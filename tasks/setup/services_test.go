// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/servicecanary"
	"github.com/checkplan/checkplan/pkg/servicecheck"
	"github.com/checkplan/checkplan/tasks/internal/flaky"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// canaryTask is the setup of a check with Services of its own, on two nodes, whose controllers do their work.
func canaryTask(t *testing.T) (*task.Task, *fake.Clientset, *strings.Builder) {
	tk, client, log := newTask(t, "n0", "n1")
	second := checkup.Duration(time.Second)
	tk.Check, tk.PlanJSON = "canary", planOf(t, map[string]checkup.Check{"canary": {Spec: &servicecanary.Spec{
		Policies: servicecanary.Policies, Endpoints: 2, Budget: 1000, IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probe:    servicecheck.Probe{Count: 60, Interval: second / 50, Timeout: second},
		Limits:   checkup.Limits{PacketsPerSecond: 200, Concurrency: 16},
		Timeouts: checkup.Timeouts{Setup: 60 * second, Probe: 60 * second},
	}}})
	n := 0
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		n++
		pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		pod.UID = types.UID(pod.Name)
		pod.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("198.18.0.%d", n)}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}},
		}
		if pod.Spec.Containers[0].StartupProbe == nil { // those that become ready
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		return true, pod, client.Tracker().Create(a.GetResource(), pod, "ns")
	})
	client.PrependReactor("create", "services", func(a k8stesting.Action) (bool, runtime.Object, error) {
		n++
		s := a.(k8stesting.CreateAction).GetObject().(*corev1.Service)
		s.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", n)}
		return false, nil, nil
	})
	client.PrependReactor("list", "endpointslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		list := &discoveryv1.EndpointSliceList{}
		all, err := client.Tracker().List(corev1.SchemeGroupVersion.WithResource("services"), corev1.SchemeGroupVersion.WithKind("Service"), "ns")
		if err != nil {
			return true, nil, err
		}
		pods, err := client.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "ns")
		if err != nil {
			return true, nil, err
		}
		for _, s := range all.(*corev1.ServiceList).Items {
			slice := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}}}
			for _, pod := range pods.(*corev1.PodList).Items {
				if labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
					slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{pod.Status.PodIPs[0].IP}})
				}
			}
			list.Items = append(list.Items, slice)
		}
		return true, list, nil
	})
	return tk, client, log
}

// TestEachRequestForServicesFailsOnce: whichever request of setup fails once, there is one Service for each of the
// worksheet, and all of them can be measured.
func TestEachRequestForServicesFailsOnce(t *testing.T) {
	setup := func(requests *flaky.Requests) string {
		outcome := ""
		synctest.Test(t, func(t *testing.T) {
			tk, client, log := canaryTask(t)
			requests.Of(&client.Fake)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			if err := run(ctx, tk); err != nil {
				t.Errorf("%v; log:\n%s", err, log)
				return
			}
			requests.Stop()
			var frozen record.Frozen
			if err := tk.Store("day-2").Load(t.Context(), record.Worksheet("canary"), &frozen); err != nil {
				t.Error(err)
			}
			list, err := client.CoreV1().Services("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			owned := 0
			for _, s := range list.Items {
				if len(s.OwnerReferences) == 4 { // two responders, one that is never ready, and one that leaves
					owned++
				}
			}
			outcome = fmt.Sprintf("measurable %s, %d Services, %d of responders", measurableOf(t, tk), len(list.Items), owned)
			for i, e := range frozen.Roster.Targets {
				outcome += fmt.Sprintf(", %s %v %v", frozen.Worksheet.Targets[i].Name(), e.Addresses[checkup.IPv4] != "", e.Cause)
			}
		})
		return outcome
	}
	// Without denials, which are final for what is created.
	ways := slices.DeleteFunc(flaky.Troubles(), func(trouble flaky.Trouble) bool { return trouble.Denied })
	flaky.EachOnce(t, func(request int) []flaky.Trouble { return ways[request%len(ways):][:1] }, setup)
}
