// SPDX-License-Identifier: Apache-2.0

package networkhealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/crd"
)

// server is a fake API server: server-side apply is apimachinery's, and validation that of apiextensions.
type server struct {
	*dynamicfake.FakeDynamicClient
	api *api
	t   *testing.T

	mu      sync.Mutex // guards following
	tracker clienttesting.ObjectTracker
	version int
	refuse  func(verb, subresource, name string) error
	writes  []string // "apply NAME", "status NAME", "delete NAME"
}

func newServer(t *testing.T) *server {
	scheme := runtime.NewScheme()
	for kind, resource := range map[string]schema.GroupVersionResource{Kind: Resource, "CustomResourceDefinition": crd.Resource} {
		scheme.AddKnownTypeWithName(resource.GroupVersion().WithKind(kind), &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(resource.GroupVersion().WithKind(kind+"List"), &unstructured.UnstructuredList{})
	}
	s := &server{
		FakeDynamicClient: dynamicfake.NewSimpleDynamicClient(scheme), api: newAPI(t), t: t,
		tracker: clienttesting.NewFieldManagedObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder(),
			managedfields.NewDeducedTypeConverter()),
	}
	s.PrependReactor("*", "*", s.react)
	return s
}

func (s *server) react(action clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := ""
	if named, ok := action.(interface{ GetName() string }); ok {
		name = named.GetName()
	}
	if s.refuse != nil {
		if err := s.refuse(action.GetVerb(), action.GetSubresource(), name); err != nil {
			return true, nil, err
		}
	}
	switch action := action.(type) {
	case clienttesting.PatchActionImpl:
		object, err := s.apply(action)
		return true, object, err
	case clienttesting.DeleteActionImpl:
		object, err := s.tracker.Get(Resource, "ns", name)
		if err != nil {
			return true, nil, err
		}
		live := object.(*unstructured.Unstructured)
		if p := action.DeleteOptions.Preconditions; p == nil || *p.UID != live.GetUID() || *p.ResourceVersion != live.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(Resource.GroupResource(), name, errors.New("precondition failed"))
		}
		s.writes = append(s.writes, "delete "+name)
		return true, nil, s.tracker.Delete(Resource, "ns", name)
	case clienttesting.GetActionImpl:
		object, err := s.tracker.Get(action.GetResource(), action.GetNamespace(), name)
		return true, object, err
	case clienttesting.ListActionImpl:
		list, err := s.tracker.List(Resource, action.GetKind(), "ns")
		return true, list, err
	}
	return true, nil, fmt.Errorf("unexpected request: %s %s", action.GetVerb(), action.GetResource())
}

func (s *server) apply(action clienttesting.PatchActionImpl) (runtime.Object, error) {
	name, options := action.GetName(), action.PatchOptions
	patch := &unstructured.Unstructured{}
	if err := json.Unmarshal(action.Patch, &patch.Object); err != nil {
		return nil, err
	}
	if options.FieldManager != checkup.ManagedBy || action.GetPatchType() != types.ApplyPatchType {
		s.t.Errorf("%s of %s by %s", action.GetPatchType(), name, options.FieldManager)
	}
	if action.GetResource() != Resource {
		return patch, s.tracker.Apply(action.GetResource(), patch, "", options)
	}
	live, err := s.tracker.Get(Resource, "ns", name)
	exists := err == nil
	what := "apply "
	if action.GetSubresource() == "status" {
		what = "status "
		if !exists {
			return nil, err
		}
		if v := patch.GetResourceVersion(); v != "" && v != live.(*unstructured.Unstructured).GetResourceVersion() {
			return nil, apierrors.NewConflict(Resource.GroupResource(), name, errors.New("the object has been modified"))
		}
		patch.SetResourceVersion("")
		options.FieldManager += "/status" // fields of a subresource have a separate manager
	}
	if err := s.tracker.Apply(Resource, patch, "ns", options); err != nil {
		return nil, err
	}
	applied, err := s.tracker.Get(Resource, "ns", name)
	if err != nil {
		return nil, err
	}
	object := applied.(*unstructured.Unstructured)
	if refused := s.api.refuses(whole(s.t, object), nil); refused != "" {
		s.t.Errorf("%s is not valid: %s", name, refused)
	}
	s.writes = append(s.writes, what+name)
	s.version++
	object.SetResourceVersion(strconv.Itoa(s.version))
	if !exists {
		object.SetUID(types.UID("uid-" + strconv.Itoa(s.version)))
		object.SetCreationTimestamp(metav1.NewTime(start))
		object.SetNamespace("ns")
	}
	return object, s.tracker.Update(Resource, object, "ns")
}

// whole is an object with whole numbers, as the API server decodes it.
func whole(t *testing.T, u *unstructured.Unstructured) map[string]any {
	t.Helper()
	b, err := u.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	again := &unstructured.Unstructured{}
	if err := again.UnmarshalJSON(b); err != nil {
		t.Fatal(err)
	}
	return again.Object
}

// take returns how many writes of each kind there were since its last call.
func (s *server) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.writes = nil }()
	count := map[string]int{}
	for _, w := range s.writes {
		kind, _, _ := strings.Cut(w, " ")
		count[kind]++
	}
	return fmt.Sprintf("apply %d, status %d, delete %d", count["apply"], count["status"], count["delete"])
}

func (s *server) set(refuse func(verb, subresource, name string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// objects that exist, as list prints them; those of others by name.
func (s *server) objects() (lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, err := s.tracker.List(Resource, Resource.GroupVersion().WithKind(Kind), "ns")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, u := range found.(*unstructured.UnstructuredList).Items {
		h, err := read(&u)
		if err != nil || !managed(&u) {
			lines = append(lines, u.GetName())
			continue
		}
		lines = append(lines, list([]*Health{h})...)
	}
	slices.Sort(lines)
	return lines
}

func (s *server) sync(ctx context.Context, m *mesh) (Changes, error) {
	in := m.input()
	in.Existing = nil
	changes, err := Sync(ctx, Options{Dynamic: s, Namespace: "ns", Logf: s.t.Logf}, in)
	m.run++
	m.at = m.at.Add(10 * time.Minute)
	return changes, err
}

// TestSync: two runs by server-side apply, the second with a fault, and then less room.
func TestSync(t *testing.T) {
	s, m := newServer(t), newMesh("a", "b")
	for _, step := range []struct {
		change func()
		writes string
		want   []string
	}{
		{func() {}, "apply 2, status 2, delete 0", []string{"a b Reachable Answered", "b a Reachable Answered"}},
		{func() { m.dead[[2]int{0, 1}] = true }, "apply 0, status 2, delete 0", []string{"a b Unreachable NoAnswer", "b a Reachable Answered"}},
		{func() { m.max = 1 }, "apply 0, status 1, delete 1", []string{"a b Unreachable NoAnswer"}},
		{func() { m.max, m.dead = 2, nil }, "apply 1, status 2, delete 0", []string{"a b Reachable Answered", "b a Reachable Answered"}},
	} {
		step.change()
		if _, err := s.sync(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if got := s.take(); got != step.writes {
			t.Errorf("%s, want %s", got, step.writes)
		}
		diff(t, "objects", s.objects(), step.want...)
	}
}

// TestSyncForeign: objects of others are neither changed nor deleted, whatever their names and labels.
func TestSyncForeign(t *testing.T) {
	s, m := newServer(t), newMesh("a", "b")
	foreign := func(name, observer string, labels map[string]string) {
		u := (&Write{Name: name}).object()
		u.SetNamespace("ns")
		u.SetLabels(labels)
		u.Object["spec"] = fields(Spec{Observer: Observer{Name: observer, Plan: m.plan}, Source: Endpoint{Kind: StandIn, Node: "x"}, Target: Endpoint{Kind: StandIn, Node: "y"}})
		if err := s.tracker.Create(Resource, u, "ns"); err != nil {
			t.Fatal(err)
		}
	}
	taken := Reconcile(m.input()).Write[0].Name // a -> b
	foreign(taken, "checkplan", nil)
	foreign("other-tool", "goldpinger", map[string]string{checkup.LabelManagedBy: checkup.ManagedBy})
	if _, err := s.sync(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	want := []string{taken, "b a Reachable Answered", "x y"}
	slices.Sort(want)
	diff(t, "objects", s.objects(), want...)
	if got, want := s.take(), "apply 1, status 1, delete 0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestSyncTrouble: what goes wrong costs as little as possible.
func TestSyncTrouble(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: Group, Kind: Kind}, "x", nil)
	tests := []struct {
		name    string
		refuse  func(s *server) func(verb, subresource, name string) error
		wantErr string // a part; empty for none
		objects int
	}{
		{name: "the API server is away for 20s", refuse: func(*server) func(string, string, string) error {
			until := time.Now().Add(20 * time.Second)
			return func(string, string, string) error {
				if time.Now().Before(until) {
					return errors.New("connection refused")
				}
				return nil
			}
		}, objects: 2},
		{name: "the API server is away", refuse: func(*server) func(string, string, string) error {
			return func(string, string, string) error { return errors.New("connection refused") }
		}, wantErr: "list PodNetworkHealths in namespace ns: connection refused"},
		{name: "no CRD", refuse: func(*server) func(string, string, string) error {
			return func(string, string, string) error { return apierrors.NewNotFound(Resource.GroupResource(), "") }
		}, wantErr: "not found"},
		{name: "one is refused", refuse: func(*server) func(string, string, string) error {
			return func(verb, _, name string) error {
				if verb == "patch" && strings.HasPrefix(name, "a-") {
					return invalid
				}
				return nil
			}
		}, wantErr: "1 of 2 changes of PodNetworkHealths could not be made: write PodNetworkHealth a-to-b-", objects: 1},
		{name: "no right to write", refuse: func(*server) func(string, string, string) error {
			return func(verb, _, name string) error {
				if verb == "patch" {
					return apierrors.NewForbidden(Resource.GroupResource(), name, nil)
				}
				return nil
			}
		}, wantErr: "2 of 2 changes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, m := newServer(t), newMesh("a", "b")
			synctest.Test(t, func(t *testing.T) {
				s.set(tt.refuse(s))
				ctx, cancel := context.WithTimeout(t.Context(), Deadline)
				defer cancel()
				_, err := s.sync(ctx, m)
				if (err != nil) != (tt.wantErr != "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want %q", err, tt.wantErr)
				}
			})
			s.set(nil)
			if got := s.objects(); len(got) != tt.objects {
				t.Errorf("objects %q", got)
			}
		})
	}
}

// TestSyncRaces: an object that someone deletes in between is written again, one that has aged and that someone writes
// in between is left.
func TestSyncRaces(t *testing.T) {
	s, m := newServer(t), newMesh("a", "b", "c")
	m.w.Assignments = [][]int{{1}, nil, {0}}
	if _, err := s.sync(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	m.w.Assignments[2] = nil // c -> a is not measured again, and becomes stale
	m.at = m.at.Add(2 * time.Hour)
	s.take()
	done := map[string]bool{}
	s.set(func(verb, subresource, name string) error { // s.mu is held
		if verb != "patch" || subresource != "status" || done[name] {
			return nil
		}
		done[name] = true
		if strings.HasPrefix(name, "a-") {
			return s.tracker.Delete(Resource, "ns", name)
		}
		object, err := s.tracker.Get(Resource, "ns", name)
		if err != nil {
			return err
		}
		object.(*unstructured.Unstructured).SetResourceVersion("999")
		return s.tracker.Update(Resource, object, "ns")
	})
	if _, err := s.sync(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	s.set(nil)
	diff(t, "objects", s.objects(), "a b Reachable Answered", "c a Reachable Answered")
	if got, want := s.take(), "apply 1, status 1, delete 0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestEnsureCRD: an older definition of ours gets what it lacks; one of others is not touched.
func TestEnsureCRD(t *testing.T) {
	older := func(labels map[string]string) *unstructured.Unstructured {
		u := definition.Object()
		u.SetLabels(labels)
		version := u.Object["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
		properties := version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)["properties"].(map[string]any)
		delete(properties["status"].(map[string]any)["properties"].(map[string]any), "probes")
		u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}}
		return u
	}
	ours := map[string]string{checkup.LabelManagedBy: checkup.ManagedBy}
	for _, tt := range []struct {
		name    string
		labels  map[string]string
		install bool
		want    string
	}{
		{"ours, allowed", ours, true, ""},
		{"ours, not allowed", ours, false, "is not compatible: status lacks probes"},
		{"of others", nil, true, "is not compatible: status lacks probes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t)
			if err := s.tracker.Create(crd.Resource, older(tt.labels), ""); err != nil {
				t.Fatal(err)
			}
			s.PrependReactor("patch", "customresourcedefinitions", func(action clienttesting.Action) (bool, runtime.Object, error) {
				u := definition.Object()
				u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}}
				return true, u, nil
			})
			got, err := EnsureCRD(t.Context(), s, tt.install)
			if err != nil || (got == "") != (tt.want == "") || !strings.HasSuffix(got, tt.want) {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}
