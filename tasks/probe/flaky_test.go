// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/flaky"
)

// TestEachRequestFailsOnce: whichever request of probe fails once, and in whatever way, the only pair has failed.
func TestEachRequestFailsOnce(t *testing.T) {
	measure := func(requests *flaky.Requests) string {
		outcome := ""
		synctest.Test(t, func(t *testing.T) { outcome = measureOnce(t, requests) })
		return outcome
	}
	flaky.EachOnce(t, flaky.InEveryWay, measure)
}

// measureOnce is the probe task with an agent whose only packet was not answered. It returns what the judge makes of
// it.
func measureOnce(t *testing.T, requests *flaky.Requests) string {
	tk, client := newTask(t, 0)
	log := &bytes.Buffer{}
	tk.Stdout = log
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		a.(k8stesting.CreateAction).GetObject().(*corev1.Pod).Status = corev1.PodStatus{
			Phase:             corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		}
		return true, a.(k8stesting.CreateAction).GetObject(), client.Tracker().Create(a.GetResource(), a.(k8stesting.CreateAction).GetObject(), "ns")
	})
	requests.Of(&client.Fake)
	pair := checkup.Pair{Source: 0, Target: 0, Family: checkup.IPv4, Transport: checkup.TCP}
	failure := &checkup.Cause{Stage: checkup.StageConnect, Message: "connect: timed out"}
	o := &checkup.Observation{Pair: pair, Sent: 1, Failure: failure}
	agent := checkup.ObjectName("uid-1", "mesh", checkup.RoleAgent, "n0")
	f := tk.Fleet("day-2")
	f.OpenLog = func(_ context.Context, pod string, _ *corev1.PodLogOptions) (io.ReadCloser, error) {
		if requests.Request("get the log of " + pod) {
			return nil, requests.With.Err
		}
		var log bytes.Buffer
		if pod == agent {
			for _, m := range append(controls(), checkup.Message{Observation: o}, checkup.Message{End: &checkup.AgentEnd{Observations: 1}}) {
				if err := json.NewEncoder(&log).Encode(m); err != nil {
					t.Error(err)
				}
			}
		}
		return io.NopCloser(&log), nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var frozen record.Frozen
	if err := tk.Store("").Load(ctx, record.Worksheet("mesh"), &frozen); err != nil {
		t.Errorf("%v; log:\n%s", err, log)
	}
	if err := probe(ctx, tk, f, &frozen); err != nil {
		t.Errorf("%v; log:\n%s", err, log)
	}
	requests.Stop()
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{"mesh": {Spec: &podmesh.Spec{}}}}
	r, err := tk.Report(t.Context(), plan, time.Now())
	if err != nil {
		t.Error(err)
	}
	return fmt.Sprint(r.Verdict, r.Counts, r.Summary)
}

// TestEachRequestOfWatchFailsOnce: so are the record and the object of a pair of a check of the control plane.
func TestEachRequestOfWatchFailsOnce(t *testing.T) {
	watch := func(requests *flaky.Requests) string {
		outcome := ""
		synctest.Test(t, func(t *testing.T) {
			w, roster := connections()
			o := newObjects(nil)
			var log strings.Builder
			for n := range 3 {
				r := result(n)
				r.At = time.Now().Add(time.Duration(n) * time.Second)
				log.WriteString(line(t, checkup.Message{Results: []checkup.Result{r}}))
			}
			log.WriteString(line(t, checkup.Message{End: &checkup.AgentEnd{Results: 3}}))
			tk, f := newWatch(t, o, func(context.Context, <-chan struct{}) io.ReadCloser {
				time.Sleep(3 * time.Second)
				return io.NopCloser(strings.NewReader(log.String()))
			})
			requests.Of(&tk.Kubernetes.(*fake.Clientset).Fake, &o.Fake)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			err := probe(ctx, tk, f, &record.Frozen{Worksheet: *w, Roster: *roster})
			requests.Stop()
			r, problem := tk.Store("").LoadRecord(t.Context(), "api")
			if problem != nil {
				outcome = fmt.Sprint(err, problem)
				return
			}
			status := o.status(checkup.ConnectivityName(w.Sources[0], w.Targets[0]))
			outcome = fmt.Sprint(err, len(r.Results), strings.Contains(status, `"False"`), strings.Contains(status, "connection refused"))
			for _, s := range r.Sources {
				outcome += fmt.Sprint(s.Cause)
			}
		})
		return outcome
	}
	// Without denials, which are final for pods: the order of requests differs, so that any may be that of the pod.
	ways := func(int) []flaky.Trouble {
		return slices.DeleteFunc(flaky.Troubles(), func(trouble flaky.Trouble) bool { return trouble.Denied })
	}
	flaky.EachOnce(t, ways, watch)
}
