// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/retry"
)

// pipelineRuns are Tekton's runs. Their structs are not needed for a label.
var pipelineRuns = schema.GroupVersionResource{Group: "tekton.dev", Version: "v1", Resource: "pipelineruns"}

const (
	// markTime is the longest time for writing or removing a label of the run.
	markTime = 15 * time.Second
	// settled is how often, a second apart, a removed label must be absent to stay so.
	settled = 3
)

// Mark writes checkup.LabelVerdict of the PipelineRun. It changes nothing else, and no other run. Best effort: an error
// is logged as a warning.
func (t *Task) Mark(ctx context.Context, verdict string) {
	ctx, cancel := context.WithTimeout(ctx, markTime)
	defer cancel()
	err := t.patchRun(ctx, types.MergePatchType, map[string]any{"metadata": map[string]any{
		"uid": t.RunUID, "labels": map[string]any{checkup.LabelVerdict: verdict},
	}})
	if err != nil {
		t.Logf("::warning::the run has no label with its verdict: %v", err)
	}
}

// Unmark removes checkup.LabelVerdict of the PipelineRun: that of the run that this one repeats. It is one request if
// there is no such label. A Tekton controller that processes the run at this time writes back the labels it has read
// (1.15.1, pkg/reconciler/pipelinerun updateLabelsAndAnnotations: the union of both), so the label is removed until it
// stays away. Else the controller could also write it over the verdict of this run. Best effort, as Mark is.
func (t *Task) Unmark(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, markTime)
	defer cancel()
	remove := []map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": t.RunUID},
		{"op": "remove", "path": "/metadata/labels/" + strings.ReplaceAll(checkup.LabelVerdict, "/", "~1")},
	}
	for absent, found := 0, false; absent < settled; {
		switch err := t.patchRun(ctx, types.JSONPatchType, remove); {
		case err == nil:
			absent, found = 0, true
		case !apierrors.IsInvalid(err): // which it is if there is nothing to remove
			t.Logf("::warning::the run may have a label with the verdict of an earlier run: %v", err)
			return
		case !found:
			return
		default:
			absent++
		}
		if !fleet.Sleep(ctx, time.Second) {
			return
		}
	}
}

func (t *Task) patchRun(ctx context.Context, kind types.PatchType, patch any) error {
	if t.Dynamic == nil {
		return errors.New("not connected")
	}
	b, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("patch the run: %w", err)
	}
	runs := t.Dynamic.Resource(pipelineRuns).Namespace(t.Namespace)
	return retry.Until(ctx, func() error {
		_, err := runs.Patch(ctx, t.RunName, kind, b, metav1.PatchOptions{})
		return err
	})
}

// CheckAccount checks whether the step's account has a right that every step needs. If not, the log names the account
// to choose, and the error is ErrAccount. The usual cause: the dashboard's form, and `tkn pipeline start`, use the
// account default, which has no rights, if nobody chooses one. The plan's own accounts have their rights from its RBAC
// and are not checked, nor is an account whose name is not known.
func (t *Task) CheckAccount(ctx context.Context, plan string) error {
	known := []string{"", plan}
	for _, phase := range checkup.Phases {
		known = append(known, checkup.AccountName(plan, phase))
	}
	if slices.Contains(known, t.Account) {
		return nil
	}
	// Each phase may create ConfigMaps, and each account may ask what it may do (ClusterRole system:basic-user).
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: t.Namespace, Verb: "create", Resource: "configmaps",
		},
	}}
	err := retry.Until(ctx, func() error { // as long as an API server that has just started denies everything
		answer, err := t.Kubernetes.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = apierrors.NewForbidden(corev1.Resource("configmaps"), "", errors.New("denied"))
		}
		return err
	})
	switch {
	case apierrors.IsForbidden(err):
		t.Logf("::error::choose the service account %s: account %s has no rights", plan, t.Account)
		t.Logf("::error::in the form, below the params; with tkn, by --serviceaccount %s", plan)
		return ErrAccount
	case err != nil:
		return fmt.Errorf("review the rights of account %s: %w", t.Account, err)
	}
	return nil
}
