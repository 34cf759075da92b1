// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestExitCodes: the codes that Tekton writes into the message of a TaskRun never change.
func TestExitCodes(t *testing.T) {
	forbidden := apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{ErrSaid, 1},
		{ErrFailed, 3},
		{ErrInconclusive, 4},
		{ErrAccount, 5},
		{errors.Join(errors.New("x"), fmt.Errorf("list pods: %w", forbidden)), 5},
		{fmt.Errorf("%w: %w", ErrSaid, forbidden), 5},
	} {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("%v: exit code %d, want %d", tt.err, got, tt.want)
		}
	}
}

// TestCheckAccount: an account without rights is refused in a first line that the dashboard shows whole and that names
// the account to choose.
func TestCheckAccount(t *testing.T) {
	const plan = "pod-mesh"
	for _, tt := range []struct {
		account string
		denied  int // reviews, from the first one
		want    error
		reviews bool
	}{
		{account: "default", denied: 1000, want: ErrAccount, reviews: true},
		{account: "default", denied: 2, reviews: true}, // the API server has just started
		{account: "ci", reviews: true},
		{account: plan, denied: 1000},
		{account: plan + "-setup", denied: 1000},
		{account: plan + "-conclude", denied: 1000},
		{account: "", denied: 1000},
	} {
		t.Run(tt.account, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, reviews := fake.NewSimpleClientset(), 0
				client.PrependReactor("create", "selfsubjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
					reviews++
					r := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
					if of := r.Spec.ResourceAttributes; of.Namespace != "ns" || of.Verb != "create" || of.Resource != "configmaps" {
						t.Errorf("reviewed %+v", of)
					}
					r.Status.Allowed = reviews > tt.denied
					return true, r, nil
				})
				var log strings.Builder
				tk := &Task{Kubernetes: client, Namespace: "ns", Account: tt.account, Stdout: &log}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := tk.CheckAccount(ctx, plan); !errors.Is(err, tt.want) {
					t.Errorf("error %v, want %v", err, tt.want)
				}
				if (reviews > 0) != tt.reviews {
					t.Errorf("%d reviews", reviews)
				}
				if tt.want == nil {
					if log.Len() > 0 {
						t.Errorf("log: %s", &log)
					}
					return
				}
				for line := range strings.Lines(log.String()) {
					if wrap(strings.TrimSuffix(line, "\n")) != line {
						t.Errorf("the dashboard cuts this line: %s", line)
					}
				}
				if !strings.HasPrefix(log.String(), "::error::choose the service account pod-mesh") {
					t.Errorf("log: %s", &log)
				}
			})
		})
	}
}

// TestMark writes one label of this run.
func TestMark(t *testing.T) {
	client, got := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), ""
	client.PrependReactor("patch", "pipelineruns", func(a k8stesting.Action) (bool, runtime.Object, error) {
		p := a.(k8stesting.PatchAction)
		got = string(p.GetPatch())
		if p.GetNamespace() != "ns" || p.GetName() != "run" {
			t.Errorf("patched %s/%s", p.GetNamespace(), p.GetName())
		}
		return true, &unstructured.Unstructured{}, nil
	})
	var log strings.Builder
	tk := &Task{Dynamic: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", Stdout: &log}
	tk.Mark(t.Context(), "fail")
	if want := `{"metadata":{"labels":{"checkplan.dev/run-verdict":"fail"},"uid":"uid-1"}}`; got != want || log.Len() > 0 {
		t.Errorf("patch %s, want %s; log: %s", got, want, &log)
	}
	(&Task{Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), Namespace: "ns", RunName: "run", Stdout: &log}).
		Mark(t.Context(), string(checkup.RunPass))
	if !strings.HasPrefix(log.String(), "::warning::the run has no label with its verdict: ") {
		t.Errorf("log without a run: %q", log.String())
	}
}

// TestUnmark removes the label until it stays away, although a controller writes it back.
func TestUnmark(t *testing.T) {
	absent := apierrors.NewInvalid(schema.GroupKind{}, "", nil)
	denied := apierrors.NewForbidden(corev1.Resource("pipelineruns"), "run", errors.New("no"))
	for _, tt := range []struct {
		name    string
		answers []error // to the removal; the last one is that to all others
		want    int     // requests
		log     string
	}{
		{"no label", []error{absent}, 1, ""},
		{"a label", []error{nil, absent}, 4, ""},
		{"written back once", []error{nil, absent, nil, absent}, 6, ""},
		{"written back for ever", []error{nil}, 0, ""},
		{"no right", []error{denied}, 0, "::warning::the run may have a label with the verdict of an earlier run: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, requests := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), 0
				client.PrependReactor("patch", "pipelineruns", func(a k8stesting.Action) (bool, runtime.Object, error) {
					const want = `[{"op":"test","path":"/metadata/uid","value":"uid-1"},` +
						`{"op":"remove","path":"/metadata/labels/checkplan.dev~1run-verdict"}]`
					if got := string(a.(k8stesting.PatchAction).GetPatch()); got != want {
						t.Errorf("patch %s, want %s", got, want)
					}
					err := tt.answers[min(requests, len(tt.answers)-1)]
					requests++
					return true, &unstructured.Unstructured{}, err
				})
				var log strings.Builder
				(&Task{Dynamic: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", Stdout: &log}).Unmark(t.Context())
				if tt.want > 0 && requests != tt.want || requests > int(markTime/time.Second)+1 {
					t.Errorf("%d requests, want %d", requests, tt.want)
				}
				if !strings.HasPrefix(log.String(), tt.log) || tt.log == "" && log.Len() > 0 {
					t.Errorf("log: %q", log.String())
				}
			})
		})
	}
}
