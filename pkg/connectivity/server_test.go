// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/openshift/api/operatorcontrolplane/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/crd"
)

const testNamespace = "checks"

// server is a fake API server with what this package uses: server-side apply with field managers is apimachinery's. In
// addition, a patch of the main resource does not change the status, a patch of the subresource changes only the
// status, and objects have a UID, a creation time and a resourceVersion.
type server struct {
	*dynamicfake.FakeDynamicClient
	events *fake.Clientset

	mu      sync.Mutex // guards following
	tracker clienttesting.ObjectTracker
	version int
	trouble error // of every request, while it is set
	refuse  func(verb, resource, subresource, name string) error
	writes  []string // "apply NAME", "status NAME", "delete NAME"
	// plain holds the objects if there are many and only a Book writes them; nil means that the tracker holds them.
	plain map[string]*unstructured.Unstructured
}

func newServer(t *testing.T) *server {
	t.Helper()
	scheme := runtime.NewScheme()
	for kind, resource := range map[string]schema.GroupVersionResource{Kind: Resource, "CustomResourceDefinition": crd.Resource} {
		scheme.AddKnownTypeWithName(resource.GroupVersion().WithKind(kind), &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(resource.GroupVersion().WithKind(kind+"List"), &unstructured.UnstructuredList{})
	}
	s := &server{
		FakeDynamicClient: dynamicfake.NewSimpleDynamicClient(scheme),
		events:            fake.NewSimpleClientset(),
		tracker: clienttesting.NewFieldManagedObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder(),
			managedfields.NewDeducedTypeConverter()),
	}
	s.PrependReactor("*", "*", s.react)
	s.events.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		err := s.check(action, "")
		return err != nil, nil, err
	})
	return s
}

// check returns the error that the test has set for a request. s.mu is held.
func (s *server) check(action clienttesting.Action, name string) error {
	if s.trouble != nil {
		return s.trouble
	}
	if s.refuse != nil {
		return s.refuse(action.GetVerb(), action.GetResource().Resource, action.GetSubresource(), name)
	}
	return nil
}

func (s *server) react(action clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := ""
	if named, ok := action.(interface{ GetName() string }); ok {
		name = named.GetName()
	}
	if err := s.check(action, name); err != nil {
		return true, nil, err
	}
	resource, namespace := action.GetResource(), action.GetNamespace()
	if patch, ok := action.(clienttesting.PatchActionImpl); ok && s.plain != nil {
		object, err := s.applyPlain(patch)
		return true, object, err
	}
	switch action := action.(type) {
	case clienttesting.PatchActionImpl:
		object, err := s.apply(action)
		return true, object, err
	case clienttesting.DeleteActionImpl:
		object, err := s.tracker.Get(resource, namespace, name)
		if err != nil {
			return true, nil, err
		}
		live := object.(*unstructured.Unstructured)
		if p := action.DeleteOptions.Preconditions; p != nil && (*p.UID != live.GetUID() || *p.ResourceVersion != live.GetResourceVersion()) {
			return true, nil, apierrors.NewConflict(resource.GroupResource(), name, fmt.Errorf("precondition failed"))
		}
		s.writes = append(s.writes, "delete "+name)
		return true, nil, s.tracker.Delete(resource, namespace, name)
	case clienttesting.GetActionImpl:
		object, err := s.tracker.Get(resource, namespace, name)
		return true, object, err
	case clienttesting.ListActionImpl:
		list, err := s.tracker.List(resource, action.GetKind(), namespace)
		return true, list, err
	}
	return true, nil, fmt.Errorf("unexpected request: %s %s", action.GetVerb(), resource)
}

func (s *server) apply(action clienttesting.PatchActionImpl) (runtime.Object, error) {
	resource, name := action.GetResource(), action.GetName()
	patch := &unstructured.Unstructured{}
	if err := json.Unmarshal(action.Patch, &patch.Object); err != nil {
		return nil, err
	}
	live, err := s.tracker.Get(resource, action.GetNamespace(), name)
	exists := err == nil
	options := action.PatchOptions
	what := "apply "
	if action.GetSubresource() == "status" {
		what = "status "
		if !exists {
			return nil, err
		}
		if v := patch.GetResourceVersion(); v != "" && v != live.(*unstructured.Unstructured).GetResourceVersion() {
			return nil, apierrors.NewConflict(resource.GroupResource(), name, fmt.Errorf("the object has been modified"))
		}
		delete(patch.Object, "spec")
		patch.SetLabels(nil)
		patch.SetResourceVersion("")
		options.FieldManager += "/status" // fields of a subresource have a separate manager
	} else {
		delete(patch.Object, "status")
	}
	if err := s.tracker.Apply(resource, patch, action.GetNamespace(), options); err != nil {
		return nil, err
	}
	s.writes = append(s.writes, what+name)
	applied, err := s.tracker.Get(resource, action.GetNamespace(), name)
	if err != nil {
		return nil, err
	}
	object := applied.(*unstructured.Unstructured)
	s.version++
	object.SetResourceVersion(strconv.Itoa(s.version))
	if !exists {
		object.SetUID(types.UID("uid-" + strconv.Itoa(s.version)))
		object.SetCreationTimestamp(metav1.Now())
		object.SetNamespace(action.GetNamespace())
	}
	return object, s.tracker.Update(resource, object, action.GetNamespace())
}

// applyPlain applies the patch of the only field manager.
func (s *server) applyPlain(action clienttesting.PatchActionImpl) (runtime.Object, error) {
	patch := &unstructured.Unstructured{}
	if err := json.Unmarshal(action.Patch, &patch.Object); err != nil {
		return nil, err
	}
	name := action.GetName()
	if action.GetSubresource() != "status" {
		s.plain[name] = patch
		s.writes = append(s.writes, "apply "+name)
		return patch, nil
	}
	s.writes = append(s.writes, "status "+name)
	// A new object: clients may still be reading the old one.
	object := &unstructured.Unstructured{Object: maps.Clone(s.plain[name].Object)}
	object.Object["status"] = patch.Object["status"]
	s.plain[name] = object
	return object, nil
}

// setTrouble makes every request fail with err; nil ends that.
func (s *server) setTrouble(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = err
}

// take returns the writes since its last call.
func (s *server) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.writes = nil }()
	return s.writes
}

// object returns the current object; nil if it does not exist.
func (s *server) object(name string) *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plain != nil {
		return s.plain[name]
	}
	object, err := s.tracker.Get(Resource, testNamespace, name)
	if err != nil {
		return nil
	}
	return object.(*unstructured.Unstructured)
}

// status returns the status of an object that must exist.
func (s *server) status(t *testing.T, name string) v1alpha1.PodNetworkConnectivityCheckStatus {
	t.Helper()
	object := s.object(name)
	if object == nil {
		t.Fatalf("object %s does not exist", name)
	}
	status, err := statusOf(object)
	if err != nil {
		t.Fatal(err)
	}
	return status
}

// reachable prints the condition of an object: "True TCPConnectSuccess".
func (s *server) reachable(t *testing.T, name string) string {
	t.Helper()
	status := s.status(t, name)
	c := reachable(&status)
	return string(c.Status) + " " + c.Reason
}

// recorded returns "TYPE REASON NODE: MESSAGE" of every event, sorted.
func (s *server) recorded(t *testing.T) []string {
	t.Helper()
	list, err := s.events.CoreV1().Events(corev1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		out = append(out, fmt.Sprintf("%s %s %s: %s", e.Type, e.Reason, e.InvolvedObject.Name, e.Message))
	}
	slices.Sort(out)
	return out
}

// worksheet has two API servers that connect to two etcd members, one of them
// also to a Service by its name.
func worksheet() *checkup.Worksheet {
	peer := func(host string, port int) *checkup.Peer {
		return &checkup.Peer{Host: host, Port: port, Family: checkup.IPv4, Transport: checkup.TLS, ClientCertificate: "etcd-client"}
	}
	return &checkup.Worksheet{
		Plan: "day-2", Check: "api", Kind: "controlPlane",
		Sources: []checkup.Endpoint{{Node: "a", Label: "kube-apiserver-a"}, {Node: "b", Label: "kube-apiserver-b"}},
		Targets: []checkup.Endpoint{
			{Node: "a", Label: "etcd-server-a", Component: "etcd", Peer: peer("10.0.0.1", 2379)},
			{Node: "b", Label: "etcd-server-b", Component: "etcd", Peer: peer("10.0.0.2", 2379)},
			{Label: "load-balancer-api-external", Peer: &checkup.Peer{Host: "api.example.com", Port: 6443, Transport: checkup.TLS}},
			{Label: "aggregated-apiserver", Component: "aggregated-apiserver"}, // not visible: no Peer
		},
		Assignments: [][]int{{0, 1, 2, 3}, {0, 1}},
		IPFamilies:  []checkup.IPFamily{checkup.IPv4},
		Probes: []checkup.TransportProbe{{Transport: checkup.TLS, Probe: checkup.Probe{
			Sizes: []int{0}, Count: 1800, Interval: checkup.Duration(time.Second), Timeout: checkup.Duration(20 * time.Second),
		}}},
		Connections: &checkup.ConnectionSheet{
			For:       checkup.Duration(30 * time.Minute),
			Deadlines: checkup.StageDeadlines{Resolve: checkup.Duration(5 * time.Second), Connect: checkup.Duration(5 * time.Second), Handshake: checkup.Duration(5 * time.Second), Response: checkup.Duration(5 * time.Second)},
			Checks:    checkup.ConnectivityChecks{Write: true, Retention: checkup.Duration(2 * time.Hour), StaleAfter: checkup.Duration(10 * time.Minute)},
		},
	}
}

// Names of the worksheet's objects, by source and target.
const (
	nameAA = "kube-apiserver-a-to-etcd-server-a-2379"
	nameAB = "kube-apiserver-a-to-etcd-server-b-2379"
	nameAL = "kube-apiserver-a-to-load-balancer-api-external-6443"
	nameBA = "kube-apiserver-b-to-etcd-server-a-2379"
	nameBB = "kube-apiserver-b-to-etcd-server-b-2379"
)

var allNames = []string{nameAA, nameAB, nameAL, nameBA, nameBB}

// of sets the time of a result to now.
func of(source, target int, r checkup.Result) checkup.Result {
	r.Pair = checkup.Pair{Source: source, Target: target, Family: checkup.IPv4, Transport: checkup.TLS}
	r.At = time.Now()
	return r
}

// names returns the names of the existing objects.
func (s *server) names(t *testing.T) []string {
	t.Helper()
	list, err := s.Resource(Resource).Namespace(testNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, u := range list.Items {
		names[u.GetName()] = true
	}
	return slices.Sorted(maps.Keys(names))
}
