// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// cluster is a fake API server whose kubelets answer at once: what becomes of
// the pod of a node is decided when it is created.
type cluster struct {
	*fake.Clientset
	mu sync.Mutex // guards following
	// becomes is the status of each new pod, by the node that it is pinned to; a
	// pod of another node runs and is ready.
	becomes map[string]corev1.PodStatus
	created []string // names of pods, in order
	// watched is closed when somebody watches pods. The fake API server does not
	// send a watch the events from before it, as the real one does.
	watched chan struct{}
}

func newCluster(objects ...runtime.Object) *cluster {
	c := &cluster{Clientset: fake.NewSimpleClientset(objects...), becomes: map[string]corev1.PodStatus{}, watched: make(chan struct{})}
	var once sync.Once
	c.PrependWatchReactor("pods", func(a k8stesting.Action) (bool, watch.Interface, error) {
		w, err := c.Tracker().Watch(a.GetResource(), a.GetNamespace())
		once.Do(func() { close(c.watched) })
		return true, w, err
	})
	c.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		node := pinned(pod)
		pod.UID = "uid-of-pod"
		status, ok := c.becomes[node]
		if !ok {
			status = running(len(c.created))
		}
		pod.Status = status
		if condition(pod, corev1.PodScheduled).Status != corev1.ConditionFalse {
			pod.Spec.NodeName = node
		}
		c.created = append(c.created, pod.Name)
		return false, nil, nil
	})
	return c
}

// pinned is the node that a pod is pinned to.
func pinned(pod *corev1.Pod) string {
	return pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
}

func state(s corev1.ContainerState) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{State: s}}
}

// running is the status of a pod that runs and is ready, with two addresses.
func running(i int) corev1.PodStatus {
	return corev1.PodStatus{
		Phase:             corev1.PodRunning,
		Conditions:        []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		PodIPs:            []corev1.PodIP{{IP: fmt.Sprintf("198.18.0.%d", i+1)}, {IP: fmt.Sprintf("fd00::%d", i+1)}},
		ContainerStatuses: state(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}),
	}
}

// ended is the status of a pod whose container ended.
func ended(code int32, reason, message string) corev1.PodStatus {
	phase := corev1.PodSucceeded
	if code != 0 {
		phase = corev1.PodFailed
	}
	return corev1.PodStatus{
		Phase:             phase,
		Conditions:        []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionFalse}},
		ContainerStatuses: state(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}}),
	}
}

// waiting is the status of a pod whose container does not start.
func waiting(reason, message string) corev1.PodStatus {
	return corev1.PodStatus{
		Phase:             corev1.PodPending,
		Conditions:        []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}},
		ContainerStatuses: state(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}),
	}
}

// unschedulable is the status of a pod that no node takes.
func unschedulable(message string) corev1.PodStatus {
	return corev1.PodStatus{
		Phase: corev1.PodPending,
		Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message,
		}},
	}
}

// worksheet has n nodes, each of which measures the next two by tcp and udp.
func worksheet(n int) *checkup.Worksheet {
	probe := checkup.Probe{Sizes: []int{64}, Count: 5, Interval: checkup.Duration(time.Millisecond), Timeout: checkup.Duration(time.Second)}
	w := &checkup.Worksheet{
		Plan: "day-2", Check: "mesh", Kind: "podMesh", Seed: 7, Round: 1, Rounds: 3, Degree: 2,
		IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes:     []checkup.TransportProbe{{Transport: checkup.TCP, Probe: probe}, {Transport: checkup.UDP, Probe: probe}},
		Limits:     checkup.Limits{PacketsPerSecond: 100, Concurrency: 4, StartJitter: checkup.Duration(time.Second)},
		Resources:  checkup.Resources{Requests: map[string]string{"cpu": "10m", "memory": "32Mi"}, Limits: map[string]string{"memory": "64Mi"}},
		Timeouts:   checkup.Timeouts{Setup: checkup.Duration(time.Minute), Probe: checkup.Duration(2 * time.Minute)},
	}
	for i := range n {
		e := checkup.Endpoint{Node: fmt.Sprintf("n%d", i), Tolerations: []checkup.Toleration{{Operator: "Exists"}}}
		w.Sources, w.Targets = append(w.Sources, e), append(w.Targets, e)
		targets := []int{(i + 1) % n, (i + 2) % n}
		slices.Sort(targets)
		w.Assignments = append(w.Assignments, targets)
	}
	return w
}

// rosterOf is the roster of a worksheet all of whose targets are up.
func rosterOf(w *checkup.Worksheet) *checkup.Roster {
	r := &checkup.Roster{}
	for t, e := range w.Targets {
		r.Targets = append(r.Targets, checkup.RosterEntry{
			Pod:       "ns/" + checkup.ObjectName("run-uid", w.Check, checkup.RoleResponder, e.Node),
			Addresses: map[checkup.IPFamily]string{checkup.IPv4: fmt.Sprintf("198.18.0.%d", t+1)},
			Ports:     map[checkup.Transport]int{checkup.TCP: EchoPort, checkup.UDP: EchoPort, checkup.HTTP: HTTPPort},
		})
	}
	return r
}

// lineLog gathers log lines.
type lineLog struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lineLog) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.text, format+"\n", args...)
}

func (l *lineLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newFleet is a fleet without patience: what is to be waited for is there at
// once, or never.
func newFleet(t *testing.T, c *cluster) (*Fleet, *lineLog) {
	log := &lineLog{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", log)
		}
	})
	return &Fleet{
		Client: c, Namespace: "ns", Plan: "day-2", RunUID: "run-uid", Image: "registry.example/agent:v1",
		Owner: "probe-pod", OwnerUID: "probe-pod-uid", Logf: log.logf,
		Now:      func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) },
		Patience: time.Millisecond, Retry: time.Millisecond, Force: time.Millisecond, Farewell: 50 * time.Millisecond,
	}, log
}
