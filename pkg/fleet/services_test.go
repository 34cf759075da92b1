// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
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

// canary is a worksheet of three nodes: responders on n0 and n1, of which the latter is never ready, a Service over
// both, a node port of n0, and a Service that selects the agents.
func canary() *checkup.Worksheet {
	w := worksheet(3)
	w.Kind, w.Check = "serviceCanary", "canary"
	w.IPFamilies = checkup.IPFamilies
	w.Services = []checkup.ServiceFixture{{Name: "all"}, {Name: "port", NodePort: true}, {Name: "hairpin", InternalLocal: true}}
	w.Targets = []checkup.Endpoint{
		{Node: "n0", Label: "endpoint on n0", In: []string{"all", "port"}},
		{Node: "n1", Label: "endpoint on n1", In: []string{"all"}, NeverReady: true},
		{Label: "all", OfService: "all"},
		{Node: "n0", Label: "port at n0", OfService: "port", Hosts: map[checkup.IPFamily]string{checkup.IPv4: "192.0.2.1"}},
		{Label: "hairpin", OfService: "hairpin"},
	}
	w.Assignments = [][]int{{0, 1, 2, 3, 4}, {0, 1, 2, 4}, {0, 1, 2, 4}}
	for i := range w.Sources {
		w.Sources[i].In = []string{"hairpin"}
	}
	return w
}

// proxied is a cluster whose controllers give Services addresses and endpoints.
func proxied(t *testing.T, objects ...runtime.Object) *cluster {
	c := newCluster(objects...)
	never := running(7)
	never.Conditions[1].Status = corev1.ConditionFalse
	never.ContainerStatuses[0].Started = new(true)
	c.becomes["n1"] = never
	n := 0
	c.PrependReactor("create", "services", func(a k8stesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		n++
		s := a.(k8stesting.CreateAction).GetObject().(*corev1.Service)
		s.UID = types.UID(s.Name)
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		s.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", n), fmt.Sprintf("fd00:96::%d", n)}
		for i := range s.Spec.Ports {
			if s.Spec.Type == corev1.ServiceTypeNodePort {
				s.Spec.Ports[i].NodePort = int32(30001 + i)
			}
		}
		pods, err := c.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "ns")
		if err != nil {
			t.Error(err)
		}
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("%s-%d", s.Name, n), Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
		}}
		for _, pod := range pods.(*corev1.PodList).Items {
			if labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
				for _, ip := range pod.Status.PodIPs {
					slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip.IP}})
				}
			}
		}
		if err := c.Tracker().Create(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), slice, "ns"); err != nil {
			t.Error(err)
		}
		return false, nil, nil
	})
	return c
}

func servicesOf(t *testing.T, c *cluster) []corev1.Service {
	t.Helper()
	list, err := c.CoreV1().Services("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// TestStartServices: Services select the responders that are theirs, belong to them, and are on the roster; so is a
// responder that is never ready. Teardown deletes them all.
func TestStartServices(t *testing.T) {
	w, c := canary(), proxied(t)
	f, _ := newFleet(t, c)
	f.Services = true
	roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
	if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
		t.Fatal(err)
	}
	var got []checkup.RosterEntry
	for _, e := range roster.Targets[2:4] {
		e.Pod, e.UID = "", ""
		got = append(got, e)
	}
	all, port := f.ServiceName("canary", "all"), f.ServiceName("canary", "port")
	ips := map[string][]string{}
	for _, s := range servicesOf(t, c) {
		ips[s.Name] = s.Spec.ClusterIPs
		if len(s.OwnerReferences) != 2 || s.OwnerReferences[0].Kind != "Pod" || s.OwnerReferences[0].UID != "uid-of-pod" {
			t.Errorf("%s belongs to %v, want the two responders", s.Name, s.OwnerReferences)
		}
		if want := labels.Set(s.Spec.Selector).String(); !strings.Contains(want, "checkplan.dev/run=run-uid") || !strings.Contains(want, "in.checkplan.dev/") {
			t.Errorf("%s selects %s", s.Name, want)
		}
		if s.Labels[checkup.LabelRole] != string(checkup.RoleService) || s.Annotations[AnnotationExpires] == "" {
			t.Errorf("%s has labels %v and annotations %v", s.Name, s.Labels, s.Annotations)
		}
	}
	ports := map[checkup.Transport]int{checkup.TCP: ServicePort, checkup.UDP: ServicePort}
	want := []checkup.RosterEntry{
		{Addresses: map[checkup.IPFamily]string{checkup.IPv4: ips[all][0], checkup.IPv6: ips[all][1]}, Ports: ports},
		{Addresses: map[checkup.IPFamily]string{checkup.IPv4: "192.0.2.1"},
			Ports: map[checkup.Transport]int{checkup.TCP: 30001, checkup.UDP: 30002}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("roster (-want +got):\n%s", diff)
	}
	if roster.Targets[3].Pod != "ns/"+port {
		t.Errorf("target 3 is %s, want %s", roster.Targets[3].Pod, port)
	}
	for i, e := range roster.Targets {
		if e.Cause != nil {
			t.Errorf("%s: %s", w.Targets[i].Name(), e.Cause)
		}
	}
	orders := Orders(w, roster)
	if len(orders) != 3 || !orders[0].Respond || len(orders[0].Targets) != 5 {
		t.Fatalf("%d orders, the first %+v; want that agents answer, too", len(orders), orders[0])
	}
	for _, o := range orders[0].Targets {
		if !o.Identify || (o.Settle > 0) != (o.Target == 4) {
			t.Errorf("target %d: identify %v, settles %s; want all identified, and time for the hairpin", o.Target, o.Identify, o.Settle)
		}
	}
	if left, err := f.Left(t.Context()); err != nil || len(left) != 5 {
		t.Errorf("%q, %v; want two responders and three Services", left, err)
	}
	// Both pods of the fake API server have one UID.
	if err := c.CoreV1().Pods("ns").Delete(t.Context(), checkup.ObjectName("run-uid", "canary", checkup.RoleResponder, "endpoint on n0"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if left, err := f.Remove(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	if left := servicesOf(t, c); len(left) > 0 {
		t.Errorf("%d Services are left", len(left))
	}
}

// TestSlowResponder: a responder that is not ready in time costs no other its Services.
func TestSlowResponder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c := canary(), proxied(t)
		w.Targets[1].NeverReady = false
		c.becomes["n1"] = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}}
		f, _ := newFleet(t, c)
		f.Patience = time.Hour // it waits for the setup timeout
		began := time.Now()
		c.PrependReactor("create", "services", func(k8stesting.Action) (bool, runtime.Object, error) {
			if time.Since(began) >= time.Duration(w.Timeouts.Setup) {
				return true, nil, context.DeadlineExceeded // as a real client, which the fake one does not ask
			}
			return false, nil, nil
		})
		roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
		if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
			t.Fatal(err)
		}
		for i, e := range roster.Targets {
			if slow := w.Targets[i].Label == "endpoint on n1"; (e.Cause != nil) != slow {
				t.Errorf("target %s: %v", w.Targets[i].Name(), e.Cause)
			}
		}
	})
}

// TestStartServicesAgain: a second try of the task replaces the Services of the first.
func TestStartServicesAgain(t *testing.T) {
	w, c := canary(), proxied(t)
	f, _ := newFleet(t, c)
	for range 2 {
		roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
		if err := f.StartResponders(t.Context(), w, roster, nil); err != nil {
			t.Fatal(err)
		}
		if cause := roster.Targets[2].Cause; cause != nil {
			t.Error(cause)
		}
	}
	if n := len(servicesOf(t, c)); n != 3 {
		t.Errorf("%d Services, want 3", n)
	}
}

// TestStartServicesFails: what keeps a Service from being measured is the cause of its targets; what keeps them all is
// an error.
func TestStartServicesFails(t *testing.T) {
	quota := apierrors.NewForbidden(corev1.Resource("services"), "x", errors.New("exceeded quota: small"))
	named := func(name string) func(runtime.Object) bool {
		return func(o runtime.Object) bool {
			return strings.Contains(labels.Set(o.(*corev1.Service).Spec.Selector).String(), checkup.LabelIn+name)
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func(*cluster)
		causes  map[string]string // by target; part of the message
		err     string
	}{
		{"one is over quota", func(c *cluster) { c.refuse("create", "services", quota, named("port")) },
			map[string]string{"port at n0": "the Service was not created: create service canary-service-"}, ""},
		{"no right to create", func(c *cluster) { c.refuse("create", "services", quota, nil) }, nil, "none of 3 Services could be created"},
		{"no endpoints", func(c *cluster) {
			c.PrependReactor("list", "endpointslices", func(k8stesting.Action) (bool, runtime.Object, error) {
				return true, &discoveryv1.EndpointSliceList{}, nil
			})
		}, map[string]string{"all": "its EndpointSlices do not have endpoint 198.18.0.", "port at n0": "is kube-controller-manager up?"}, ""},
		{"no right to list endpoints", func(c *cluster) {
			c.refuse("list", "endpointslices", apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "", errors.New("no")), nil)
		}, nil, "list the endpoint slices of the run's Services"},
		{"the API server fails", func(c *cluster) {
			c.refuse("list", "endpointslices", apierrors.NewInternalError(errors.New("etcd")), nil)
		}, map[string]string{"all": "its EndpointSlices cannot be read", "port at n0": "cannot be read", "hairpin": "cannot be read"}, ""},
		{"no responder", func(c *cluster) {
			c.becomes["n0"], c.becomes["n1"] = waiting("ErrImagePull", "unknown"), waiting("ErrImagePull", "unknown")
		}, map[string]string{"endpoint on n0": "ErrImagePull", "endpoint on n1": "ErrImagePull", "all": "no responder is ready",
			"port at n0": "no responder is ready", "hairpin": "no responder is ready"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, c := canary(), proxied(t)
			tt.prepare(c)
			f, _ := newFleet(t, c)
			roster := &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
			err := f.StartResponders(t.Context(), w, roster, nil)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%v, want an error with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, e := range roster.Targets {
				want, bad := tt.causes[w.Targets[i].Name()]
				if bad != (e.Cause != nil) || bad && !strings.Contains(e.Cause.Message, want) {
					t.Errorf("%s: cause %v, want %q", w.Targets[i].Name(), e.Cause, want)
				}
			}
		})
	}
}

// TestServiceObjects: each field of a worksheet's Service is in its object.
func TestServiceObjects(t *testing.T) {
	f, _ := newFleet(t, newCluster())
	w := canary()
	for _, tt := range []struct {
		fixture checkup.ServiceFixture
		has     func(corev1.ServiceSpec) bool
	}{
		{checkup.ServiceFixture{Headless: true}, func(s corev1.ServiceSpec) bool { return s.ClusterIP == corev1.ClusterIPNone }},
		{checkup.ServiceFixture{NodePort: true}, func(s corev1.ServiceSpec) bool { return s.Type == corev1.ServiceTypeNodePort }},
		{checkup.ServiceFixture{InternalLocal: true}, func(s corev1.ServiceSpec) bool {
			return s.InternalTrafficPolicy != nil && *s.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
		}},
		{checkup.ServiceFixture{ExternalLocal: true}, func(s corev1.ServiceSpec) bool {
			return s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
		}},
		{checkup.ServiceFixture{ClientIP: 10}, func(s corev1.ServiceSpec) bool {
			return s.SessionAffinity == corev1.ServiceAffinityClientIP && *s.SessionAffinityConfig.ClientIP.TimeoutSeconds == 10
		}},
		{checkup.ServiceFixture{PublishNotReady: true}, func(s corev1.ServiceSpec) bool { return s.PublishNotReadyAddresses }},
		{checkup.ServiceFixture{Distribution: "PreferClose"}, func(s corev1.ServiceSpec) bool {
			return s.TrafficDistribution != nil && *s.TrafficDistribution == "PreferClose"
		}},
	} {
		if s := f.service(w, tt.fixture, nil); !tt.has(s.Spec) || tt.has(f.service(w, checkup.ServiceFixture{}, nil).Spec) {
			t.Errorf("%+v: %+v", tt.fixture, s.Spec)
		}
	}
	w.IPFamilies = []checkup.IPFamily{checkup.IPv6}
	if s := f.service(w, w.Services[0], nil).Spec; *s.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack || !slices.Equal(s.IPFamilies, []corev1.IPFamily{corev1.IPv6Protocol}) {
		t.Errorf("one family: %+v", s)
	}
}

// TestSweepServices: Services of an earlier run are removed, if there is a right to.
func TestSweepServices(t *testing.T) {
	stale := &corev1.Service{ObjectMeta: meta("stale", "run-2", checkup.RoleService, "2026-01-02T03:04:04Z")}
	c := newCluster(stale)
	f, _ := newFleet(t, c)
	for _, tt := range []struct {
		may  bool
		want int
	}{{false, 0}, {true, 1}} {
		f.Services = tt.may
		if n, err := f.Sweep(t.Context()); err != nil || n != tt.want {
			t.Errorf("may: %v: %d removed, %v; want %d", tt.may, n, err, tt.want)
		}
	}
}
