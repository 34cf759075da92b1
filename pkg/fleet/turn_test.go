// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// turning is a worksheet of two nodes: the responder "old" leaves the Service left, terminates, and is measured by
// nobody; "new" joins left and ending.
func turning() *checkup.Worksheet {
	w := worksheet(2)
	w.Kind, w.Check = "serviceCanary", "canary"
	w.Services = []checkup.ServiceFixture{{Name: "left"}, {Name: "ending"}, {Name: "all"}}
	w.Targets = []checkup.Endpoint{
		{Node: "n0", Label: "new", In: []string{"all"}, Joins: []string{"left", "ending"}},
		{Node: "n0", Label: "old", In: []string{"left", "ending"}, Leaves: []string{"left"}, Ends: true},
		{Label: "left", OfService: "left"}, {Label: "ending", OfService: "ending"}, {Label: "all", OfService: "all"},
	}
	w.Assignments = [][]int{{0, 2, 3, 4}, {0, 2, 3, 4}}
	return w
}

// controlled is a cluster whose controllers write EndpointSlices by the pods that there are, and whose deleted pods
// terminate. It counts what is deleted, and lists each state of the EndpointSlices, as "SERVICE: ADDRESS ..., ..." with
// ready addresses only. late delays what controllers write of the Service ending, by up to so many lists.
func controlled(t *testing.T, late int) (c *cluster, graces *[]int64, states *[]string) {
	c, graces, states = newCluster(), new([]int64), new([]string)
	n := 0
	c.PrependReactor("create", "services", func(a k8stesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		n++
		s := a.(k8stesting.CreateAction).GetObject().(*corev1.Service)
		s.UID, s.Spec.IPFamilies = types.UID(s.Name), []corev1.IPFamily{corev1.IPv4Protocol}
		s.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", n)}
		return false, nil, nil
	})
	pods, kind := corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod")
	c.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		d := a.(k8stesting.DeleteAction)
		o, err := c.Tracker().Get(pods, "ns", d.GetName())
		if err != nil {
			return true, nil, err
		}
		pod := o.(*corev1.Pod).DeepCopy()
		pod.DeletionTimestamp = new(metav1.Now())
		*graces = append(*graces, *d.GetDeleteOptions().GracePeriodSeconds)
		return true, nil, c.Tracker().Update(pods, pod, "ns")
	})
	old := map[string]discoveryv1.EndpointSlice{} // what controllers wrote last, by Service
	lists := 0
	c.PrependReactor("list", "endpointslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		services, err := c.Tracker().List(corev1.SchemeGroupVersion.WithResource("services"), corev1.SchemeGroupVersion.WithKind("Service"), "ns")
		if err != nil {
			return true, nil, err
		}
		all, err := c.Tracker().List(pods, kind, "ns")
		if err != nil {
			return true, nil, err
		}
		var items []discoveryv1.EndpointSlice
		var words []string
		lists++
		for _, s := range services.(*corev1.ServiceList).Items {
			var service string // on the worksheet
			for key := range s.Spec.Selector {
				if name, of := strings.CutPrefix(key, checkup.LabelIn); of {
					service = name
				}
			}
			slice := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}}}
			for _, pod := range all.(*corev1.PodList).Items {
				if labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
					slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
						Addresses:  []string{pod.Status.PodIPs[0].IP},
						Conditions: discoveryv1.EndpointConditions{Ready: new(pod.DeletionTimestamp == nil)},
					})
				}
			}
			if last, written := old[service]; written && service == "ending" && late > 0 && lists%(late+1) != 0 {
				slice = last
			}
			old[service], items = slice, append(items, slice)
			for _, e := range slice.Endpoints {
				if *e.Conditions.Ready {
					words = append(words, service+": "+e.Addresses[0])
				}
			}
		}
		slices.Sort(words)
		if state := strings.Join(words, ", "); len(*states) == 0 || (*states)[len(*states)-1] != state {
			*states = append(*states, state)
		}
		return true, &discoveryv1.EndpointSliceList{Items: items}, nil
	})
	return c, graces, states
}

// TestTurn: endpoints leave and terminate first; only when the EndpointSlices have that, others join. What ends is no
// lost responder.
func TestTurn(t *testing.T) {
	for _, late := range []int{0, 3} {
		w := turning()
		c, graces, states := controlled(t, late)
		f, _ := newFleet(t, c)
		f.Patience = time.Minute
		roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
		if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
			t.Fatal(err)
		}
		if err := f.Turn(t.Context(), w, roster); err != nil {
			t.Fatal(err)
		}
		fresh, old := roster.Targets[0].Addresses[checkup.IPv4], roster.Targets[1].Addresses[checkup.IPv4]
		all := "all: " + fresh
		want := []string{
			fmt.Sprintf("%s, ending: %s, left: %s", all, old, old), all,
			fmt.Sprintf("%s, ending: %s, left: %s", all, fresh, fresh),
		}
		if late > 0 {
			want = []string{want[0], fmt.Sprintf("%s, ending: %s", all, old), want[1], fmt.Sprintf("%s, left: %s", all, fresh), want[2]}
		}
		if !slices.Equal(*states, want) {
			t.Errorf("EndpointSlices %q, want %q", *states, want)
		}
		if !slices.Equal(*graces, []int64{90}) {
			t.Errorf("deleted with grace periods %v, want one of 90 s", *graces)
		}
		if err := c.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", strings.TrimPrefix(roster.Targets[1].Pod, "ns/")); err != nil {
			t.Fatal(err)
		}
		if err := f.Lost(t.Context(), w, roster); err != nil || roster.Targets[1].Cause != nil {
			t.Errorf("%v, %v; want that the responder which ends is not lost", err, roster.Targets[1].Cause)
		}
	}
}

// TestTurnFails: who cannot change endpoints says so, and why.
func TestTurnFails(t *testing.T) {
	no := func(resource string) error {
		return apierrors.NewForbidden(corev1.Resource(resource), "", errors.New("no"))
	}
	for _, tt := range []struct {
		name, verb, resource string
		want                 string
	}{
		{"no right to patch", "patch", "pods", "change the labels of pod canary-responder-"},
		{"no right to delete", "delete", "pods", "delete pod canary-responder-"},
		{"no right to list", "list", "endpointslices", "list the endpoint slices of the run's Services"},
		{"no controller", "", "", "the EndpointSlices of Service left have not changed after"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := turning()
			c, _, _ := controlled(t, 0)
			f, _ := newFleet(t, c)
			roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
			if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
				t.Fatal(err)
			}
			if tt.verb == "" {
				list, err := c.DiscoveryV1().EndpointSlices("ns").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				c.PrependReactor("list", "endpointslices", func(k8stesting.Action) (bool, runtime.Object, error) { return true, list, nil })
			} else {
				c.refuse(tt.verb, tt.resource, no(tt.resource), nil)
			}
			if err := f.Turn(t.Context(), w, roster); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want an error with %q", err, tt.want)
			}
		})
	}
}

// TestTurningOrders: agents wait for the turn in the first look only, and keep the source port only to what leaves.
func TestTurningOrders(t *testing.T) {
	w := turning()
	w.Services[2].ClientIP = 10
	roster := rosterOf(w)
	for look, want := range []string{"left 55.5s true, ending 55.5s false", ""} {
		w.Look = look
		if look > 0 {
			w.Again = []checkup.Again{{Pair: checkup.Pair{Source: 0, Target: 4, Family: checkup.IPv4, Transport: checkup.TCP, Size: 64}, Count: 1}}
		}
		var got []string
		for _, target := range Orders(w, roster)[0].Targets {
			if want := w.Targets[target.Target].OfService == "all"; want != (target.Idle == checkup.Duration(12*time.Second)) {
				t.Errorf("look %d: %s is idle for %s", look, w.Targets[target.Target].Name(), target.Idle)
			}
			if target.Turn > 0 {
				got = append(got, fmt.Sprintf("%s %s %v", w.Targets[target.Target].Name(), target.Turn, target.Keep))
			}
		}
		if got := strings.Join(got, ", "); got != want {
			t.Errorf("look %d: %q, want %q", look, got, want)
		}
	}
	pods := func() (names []string) {
		_, responders, err := Pods(w, "ns", "image")
		if err != nil {
			t.Fatal(err)
		}
		for i, pod := range responders {
			if pod != nil {
				names = append(names, fmt.Sprintf("%s %s", w.Targets[i].Name(), strings.Join(pod.Spec.Containers[0].Args, " ")))
			}
		}
		return names
	}
	if got := pods(); !slices.Equal(got, []string{"new respond", "old respond --linger 1m30s"}) {
		t.Errorf("responders %q, want one that goes on when its pod terminates", got)
	}
}
