// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var pods = corev1.Resource("pods")

// refuse makes the API server refuse a verb, for the objects that which names.
func (c *cluster) refuse(verb, resource string, err error, which func(runtime.Object) bool) {
	c.PrependReactor(verb, resource, func(a k8stesting.Action) (bool, runtime.Object, error) {
		if create, ok := a.(k8stesting.CreateAction); ok && which != nil && !which(create.GetObject()) {
			return false, nil, nil
		}
		return true, nil, err
	})
}

func watchRefused(err error) k8stesting.WatchReactionFunc {
	return func(k8stesting.Action) (bool, watch.Interface, error) { return true, nil, err }
}

func onNode(node string) func(runtime.Object) bool {
	return func(o runtime.Object) bool { return pinned(o.(*corev1.Pod)) == node }
}

func TestStartResponders(t *testing.T) {
	w := worksheet(4)
	quota := apierrors.NewForbidden(pods, "x", errors.New("exceeded quota: small"))
	for _, tt := range []struct {
		name    string
		prepare func(*cluster)
		causes  map[string]string // by node; part of the message
		err     string
	}{
		{"all ready", func(*cluster) {}, nil, ""},
		{"one is not scheduled", func(c *cluster) { c.becomes["n1"] = unschedulable("0/4 nodes are available") },
			map[string]string{"n1": "its responder is not ready: not scheduled: 0/4 nodes are available"}, ""},
		{"one has no image", func(c *cluster) { c.becomes["n2"] = waiting("ErrImagePull", "manifest unknown") },
			map[string]string{"n2": "ErrImagePull: manifest unknown"}, ""},
		{"one crashes", func(c *cluster) { c.becomes["n2"] = ended(1, "Error", "address in use") },
			map[string]string{"n2": "the container ended with exit code 1: address in use"}, ""},
		{"none ready", func(c *cluster) {
			for _, n := range []string{"n0", "n1", "n2", "n3"} {
				c.becomes[n] = waiting("ImagePullBackOff", "unauthorized")
			}
		}, map[string]string{"n0": "unauthorized", "n1": "unauthorized", "n2": "unauthorized", "n3": "unauthorized"}, ""},
		{"one on a dead node", func(c *cluster) {
			c.becomes["n2"] = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}}
		}, map[string]string{"n2": "the kubelet of the node has not accepted the pod"}, ""},
		{"one without an address", func(c *cluster) {
			s := running(0)
			s.PodIPs = nil
			c.becomes["n3"] = s
		}, map[string]string{"n3": "has no IP address"}, ""},
		{"one is over quota", func(c *cluster) { c.refuse("create", "pods", quota, onNode("n1")) },
			map[string]string{"n1": "exceeded quota: small"}, ""},
		{"no right to create", func(c *cluster) {
			c.refuse("create", "pods", apierrors.NewForbidden(pods, "x", errors.New("cannot create resource")), nil)
		}, nil, "none of 4 responders could be created: create pod mesh-responder-"},
		{"pod security refuses all", func(c *cluster) {
			c.refuse("create", "pods", apierrors.NewForbidden(pods, "x", errors.New(`violates PodSecurity "restricted:latest"`)), nil)
		}, nil, `violates PodSecurity "restricted:latest"`},
		{"no right to watch", func(c *cluster) {
			c.refuse("list", "pods", apierrors.NewForbidden(pods, "", errors.New("cannot list resource")), nil)
		}, nil, "watch pods in namespace ns"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster()
			tt.prepare(c)
			f, _ := newFleet(t, c)
			roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
			last := -1
			err := f.StartResponders(t.Context(), w, roster, func(ready, of int) { last = ready })
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("%v, want an error with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			up := 0
			for i, e := range roster.Targets {
				want, bad := tt.causes[w.Targets[i].Node]
				switch {
				case !bad && (e.Cause != nil || e.Pod == "" || len(e.Addresses) != 2 || len(e.Ports) != 3):
					t.Errorf("%s: %+v, want it up with both addresses and three ports", w.Targets[i].Node, e)
				case bad && (e.Cause == nil || e.Cause.Stage != checkup.StageSetup || !strings.Contains(e.Cause.Message, want)):
					t.Errorf("%s: cause %v, want stage setup and %q", w.Targets[i].Node, e.Cause, want)
				}
				if e.Pod != "" {
					up++
				}
			}
			if last != up {
				t.Errorf("progress ended at %d ready, want %d", last, up)
			}
		})
	}
}

// TestStartRespondersEvent: what only an event reports is in the cause.
func TestStartRespondersEvent(t *testing.T) {
	w := worksheet(3)
	name := checkup.ObjectName("run-uid", "mesh", checkup.RoleResponder, "n1")
	event := func(object string, minute int, reason string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: reason, Namespace: "ns"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: object},
			LastTimestamp:  metav1.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC),
			Type:           corev1.EventTypeWarning, Reason: reason, Message: "network: no route",
		}
	}
	c := newCluster(event(name, 5, "Late"), event(name, 1, "Early"), event("other", 9, "Other"))
	c.becomes["n1"] = waiting("CreateContainerError", "")
	f, _ := newFleet(t, c)
	roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
	if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
		t.Fatal(err)
	}
	if cause := roster.Targets[1].Cause; cause == nil || !strings.Contains(cause.Message, "Late: network: no route") {
		t.Errorf("cause %v, want what the last event says", cause)
	}
}

// TestStartRespondersOnlyWhereNeeded: existing pods, and targets that nobody
// measures, have no responder.
func TestStartRespondersOnlyWhereNeeded(t *testing.T) {
	w := worksheet(4)
	w.Targets[0].Pod = "shop/web"
	w.Assignments = [][]int{{1}, {0}, {0, 1}, {1}} // nobody measures 2 and 3
	roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, 4)}
	existing := checkup.RosterEntry{Pod: "shop/web", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "198.18.9.9"}}
	roster.Targets[0] = existing
	c := newCluster()
	f, _ := newFleet(t, c)
	if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
		t.Fatal(err)
	}
	if len(c.created) != 1 {
		t.Errorf("%d pods were created, want one", len(c.created))
	}
	if diff := cmp.Diff(existing, roster.Targets[0]); diff != "" {
		t.Errorf("entry of the existing pod (-want +got):\n%s", diff)
	}
	for _, i := range []int{2, 3} {
		if roster.Targets[i].Cause == nil {
			t.Errorf("target %d has no cause although it is not there", i)
		}
	}
}

// TestRetry: a second try of the task goes on with the pods of the first, and
// only replaces the one that failed.
func TestRetry(t *testing.T) {
	w := worksheet(3)
	c := newCluster()
	c.becomes["n1"] = ended(1, "Error", "")
	f, _ := newFleet(t, c)
	for try, want := range []int{0, 1} {
		f.Owner = fmt.Sprintf("setup-pod-%d", try)
		roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, 3)}
		if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
			t.Fatal(err)
		}
		deleted := 0
		for _, a := range c.Actions() {
			if a.Matches("delete", "pods") {
				deleted++
			}
		}
		if deleted != want {
			t.Errorf("after try %d, %d pods were replaced, want %d", try, deleted, want)
		}
		delete(c.becomes, "n1")
		list, err := c.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 3 {
			t.Errorf("after try %d there are %d pods, want 3", try, len(list.Items))
		}
		for _, pod := range list.Items {
			if len(pod.OwnerReferences) != 1 || pod.OwnerReferences[0].Name != f.Owner {
				t.Errorf("owners of %s: %v, want %s alone", pod.Name, pod.OwnerReferences, f.Owner)
			}
		}
	}
}

// TestNotOurs: a pod that has the name of one of ours is left alone.
func TestNotOurs(t *testing.T) {
	w := worksheet(3)
	name := checkup.ObjectName("run-uid", "mesh", checkup.RoleResponder, "n1")
	c := newCluster(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}})
	f, _ := newFleet(t, c)
	roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, 3)}
	if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
		t.Fatal(err)
	}
	if cause := roster.Targets[1].Cause; cause == nil || !strings.Contains(cause.Message, "belongs to another run; delete it") {
		t.Errorf("cause %v, want that somebody else has the name", cause)
	}
}

// TestPassingErrors: an API server that stumbles does not cost a target.
func TestPassingErrors(t *testing.T) {
	w := worksheet(3)
	c := newCluster()
	stumbles := 4
	c.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if stumbles > 0 && pinned(a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)) == "n1" {
			stumbles--
			return true, nil, apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
		}
		return false, nil, nil
	})
	f, _ := newFleet(t, c)
	roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, 3)}
	if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
		t.Fatal(err)
	}
	if cause := roster.Targets[1].Cause; cause != nil {
		t.Errorf("cause %v after %d errors that passed, want none", cause, 4)
	}
}

func TestStartRespondersStopped(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("SIGTERM"))
	w := worksheet(3)
	f, _ := newFleet(t, newCluster())
	err := f.StartResponders(ctx, w, &checkup.Roster{Targets: make([]checkup.RosterEntry, 3)}, nil)
	if err == nil || !strings.Contains(err.Error(), "SIGTERM") {
		t.Errorf("%v, want that it was stopped, and by what", err)
	}
}

// started is a fleet with its responders up.
func startedFleet(t *testing.T, w *checkup.Worksheet) (*Fleet, *cluster, *checkup.Roster) {
	c := newCluster()
	f, _ := newFleet(t, c)
	f.Owner = "setup-pod"
	roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
	if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
		t.Fatal(err)
	}
	f.Owner = "probe-pod"
	return f, c, roster
}

func TestTakeOver(t *testing.T) {
	w := worksheet(3)
	f, c, roster := startedFleet(t, w)
	if err := c.CoreV1().Pods("ns").Delete(t.Context(), strings.TrimPrefix(roster.Targets[2].Pod, "ns/"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.TakeOver(t.Context(), w, roster); err != nil {
		t.Fatal(err)
	}
	list, err := c.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range list.Items {
		want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "probe-pod", UID: "probe-pod-uid"}}
		if diff := cmp.Diff(want, pod.OwnerReferences); diff != "" {
			t.Errorf("owners of %s (-want +got):\n%s", pod.Name, diff)
		}
	}
	if roster.Targets[0].Cause != nil || roster.Targets[1].Cause != nil {
		t.Errorf("causes %v, %v, want none", roster.Targets[0].Cause, roster.Targets[1].Cause)
	}
	if cause := roster.Targets[2].Cause; cause == nil || cause.Stage != checkup.StageSetup {
		t.Errorf("cause of the one that is gone: %v, want stage setup", cause)
	}

	c.refuse("patch", "pods", apierrors.NewForbidden(pods, "x", errors.New("no")), nil)
	if err := f.TakeOver(t.Context(), w, roster); !apierrors.IsForbidden(err) {
		t.Errorf("without the right: %v, want that", err)
	}
}

func TestLost(t *testing.T) {
	w := worksheet(3)
	f, c, roster := startedFleet(t, w)
	get := func(i int) *corev1.Pod {
		pod, err := c.CoreV1().Pods("ns").Get(t.Context(), strings.TrimPrefix(roster.Targets[i].Pod, "ns/"), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	dead := get(0)
	dead.Status = ended(137, "OOMKilled", "")
	if _, err := c.CoreV1().Pods("ns").UpdateStatus(t.Context(), dead, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Pods("ns").Delete(t.Context(), get(1).Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.Lost(t.Context(), w, roster); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range roster.Targets {
		if e.Cause != nil {
			got = append(got, e.Cause.String())
			continue
		}
		got = append(got, "")
	}
	want := []string{
		"setup: lost while probing: the container ended with exit code 137 (OOMKilled)",
		"setup: lost while probing: its responder was deleted",
		"",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("causes (-want +got):\n%s", diff)
	}
	c.refuse("list", "pods", errors.New("gone away"), nil)
	if err := f.Lost(t.Context(), w, roster); err == nil {
		t.Error("no error although nobody looked")
	}
}

func TestReceptions(t *testing.T) {
	w := worksheet(3)
	f, _, roster := startedFleet(t, w)
	line := func(s, target, n int) string {
		return fmt.Sprintf(`{"reception":{"s":%d,"t":%d,"f":"IPv4","p":"udp","z":64,"packets":%d}}`+"\n", s, target, n)
	}
	const start = `{"start":{"source":-1}}` + "\n"
	f.OpenLog = func(_ context.Context, pod string, options *corev1.PodLogOptions) (io.ReadCloser, error) {
		if options.Follow {
			t.Error("the log of a responder is followed: it does not end")
		}
		switch "ns/" + pod {
		case roster.Targets[0].Pod:
			return io.NopCloser(strings.NewReader(start + line(1, 0, 2) + line(2, 0, 5) + "noise\n" + line(1, 0, 4) + line(1, 2, 99))), nil
		case roster.Targets[1].Pod:
			return io.NopCloser(strings.NewReader(start)), nil
		default:
			return nil, errors.New("kubelet does not answer")
		}
	}
	got := map[int][]int{}
	f.Receptions(t.Context(), w, roster, func(target int, received []checkup.Reception) {
		got[target] = []int{}
		for _, r := range received {
			got[target] = append(got[target], r.Packets)
		}
		slices.Sort(got[target])
	})
	// Target 2 is not there: nobody knows what it received.
	if diff := cmp.Diff(map[int][]int{0: {4, 5}, 1: {}}, got); diff != "" {
		t.Errorf("packets by target (-want +got):\n%s", diff)
	}
}
