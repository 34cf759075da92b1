// SPDX-License-Identifier: Apache-2.0

package kiagnose

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func stored(data map[string]string) (ConfigMap, *fake.Clientset) {
	client := fake.NewSimpleClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "ns", Labels: map[string]string{"a": "b"}}, Data: data,
	})
	return ConfigMap{client, "ns", "cm"}, client
}

func read(t *testing.T, c ConfigMap) map[string]string {
	t.Helper()
	data, err := c.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func success() Outcome {
	return outcome(checkup.RunPass, measured(checkup.IPv4, checkup.Pass, 25, flat(1000)))
}

// TestRunTwice: a second run deletes the status keys of the first, and nothing else.
func TestRunTwice(t *testing.T) {
	spec := least("mine", "x")
	cm, _ := stored(maps.Clone(spec))
	first := Outcome{Finished: begun.Add(-1), Report: checkup.CheckReport{Verdict: checkup.RunInconclusive}}
	for _, step := range []error{cm.Start(t.Context(), begun.Add(-2)), cm.Write(t.Context(), first), cm.Start(t.Context(), begun)} {
		if step != nil {
			t.Fatal(step)
		}
	}
	want := maps.Clone(spec)
	want[KeyStartTimestamp] = "2026-01-02T02:04:05Z"
	if diff := cmp.Diff(want, read(t, cm)); diff != "" {
		t.Error(diff)
	}
	o := success()
	o.Started = begun.Add(1e9) // the worksheet's is later than that of Start
	if err := cm.Write(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	maps.Copy(want, o.Status())
	want[KeyStartTimestamp] = "2026-01-02T02:04:05Z"
	if diff := cmp.Diff(want, read(t, cm)); diff != "" {
		t.Error(diff)
	}
}

// TestStaleStart: Write discards the start time of an earlier run if Start was not called
// for this one.
func TestStaleStart(t *testing.T) {
	cm, _ := stored(least(KeyStartTimestamp, "2020-01-01T00:00:00Z", KeyCompletionTimestamp, "2020-01-01T00:00:00Z"))
	o := success()
	o.Started = begun
	if err := cm.Write(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := read(t, cm)[KeyStartTimestamp]; got != "2026-01-02T02:04:05Z" {
		t.Errorf("start %q", got)
	}
	o = Outcome{Report: o.Report, Finished: ended}
	if err := cm.Write(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got, ok := read(t, cm)[KeyStartTimestamp]; ok {
		t.Errorf("start %q, want none: Start was not called", got)
	}
}

// TestUserEdits: what a user changes between get and update is kept.
func TestUserEdits(t *testing.T) {
	cm, client := stored(nil)
	conflicts := 0
	client.PrependReactor("update", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts++; conflicts > 3 {
			return false, nil, nil
		}
		edited := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "ns"}, Data: map[string]string{"spec.param.sourceNode": "edited"}}
		if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), edited, "ns"); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "cm", nil)
	})
	if err := cm.Write(t.Context(), success()); err != nil {
		t.Fatal(err)
	}
	data := read(t, cm)
	if conflicts != 4 || data["spec.param.sourceNode"] != "edited" || data[KeySucceeded] != "true" {
		t.Errorf("after %d tries: %v", conflicts, data)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	resource := schema.GroupResource{Resource: "configmaps"}
	for _, tt := range []struct {
		name, verb string
		err        error
		want       string
	}{
		{"gone", "get", apierrors.NewNotFound(resource, "cm"), "read ConfigMap ns/cm of the checkup: configmaps \"cm\" not found; it does not exist: create it"},
		{"may not read", "get", apierrors.NewForbidden(resource, "cm", nil), "missing right: get configmaps cm in namespace ns"},
		{"may not write", "update", apierrors.NewForbidden(resource, "cm", nil), "update ConfigMap ns/cm of the checkup: configmaps \"cm\" is forbidden"},
		{"gone before the update", "update", apierrors.NewNotFound(resource, "cm"), "create it, and run the checkup again"},
		{"immutable", "update", apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "cm", nil), "if it is immutable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cm, client := stored(nil)
			client.PrependReactor(tt.verb, "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tt.err })
			for name, err := range map[string]error{"Start": cm.Start(t.Context(), begun), "Write": cm.Write(t.Context(), success())} {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: %v, want %q", name, err, tt.want)
				}
			}
		})
	}
}

func TestEnsure(t *testing.T) {
	check, _, _ := FromData(least())
	cm := ConfigMap{fake.NewSimpleClientset(), "ns", "cm"}
	for _, want := range []bool{true, false} {
		if created, err := cm.Ensure(t.Context(), Data(check)); err != nil || created != want {
			t.Fatalf("%v, %v, want %v", created, err, want)
		}
	}
	back, warnings, problems := FromData(read(t, cm))
	if diff := cmp.Diff(check, back); diff != "" || len(warnings)+len(problems) > 0 {
		t.Errorf("%s%v%v", diff, warnings, problems)
	}
	old := map[string]string{KeyTimeout: "5m", ParamPrefix + "sample_duration_seconds": "300"}
	filed := ConfigMap{fake.NewSimpleClientset(), "ns", "cm"}
	if created, err := filed.Ensure(t.Context(), old); !created || err != nil {
		t.Errorf("%v, %v", created, err)
	}
	if diff := cmp.Diff(old, read(t, filed)); diff != "" {
		t.Errorf("data differs from the file: %s", diff)
	}
	forbidden, client := stored(nil)
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "cm", nil)
	})
	if created, err := forbidden.Ensure(t.Context(), Data(check)); created || !apierrors.IsForbidden(err) {
		t.Errorf("%v, %v", created, err)
	}
}

func TestOf(t *testing.T) {
	if cm, ok := Of(nil, nil, "run"); ok {
		t.Errorf("got %s without a reference", cm)
	}
	for namespace, want := range map[string]string{"": "ConfigMap run/cm", "other": "ConfigMap other/cm"} {
		cm, ok := Of(nil, &checkup.ConfigMapRef{Namespace: namespace, Name: "cm"}, "run")
		if !ok || cm.String() != want {
			t.Errorf("%s, want %s", cm, want)
		}
	}
}
