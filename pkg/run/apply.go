// SPDX-License-Identifier: Apache-2.0

package run

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// FieldManager owns the fields that Apply sets.
const FieldManager = "planner"

// target is where an object is applied.
type target struct {
	resource   schema.GroupVersionResource
	namespaced bool
}

// targetOf names the resource of an object. A plan compiles to these kinds only,
// therefore no discovery is needed.
func targetOf(object runtime.Object) (target, error) {
	switch object.(type) {
	case *corev1.ServiceAccount:
		return target{corev1.SchemeGroupVersion.WithResource("serviceaccounts"), true}, nil
	case *rbacv1.Role:
		return target{rbacv1.SchemeGroupVersion.WithResource("roles"), true}, nil
	case *rbacv1.RoleBinding:
		return target{rbacv1.SchemeGroupVersion.WithResource("rolebindings"), true}, nil
	case *rbacv1.ClusterRole:
		return target{rbacv1.SchemeGroupVersion.WithResource("clusterroles"), false}, nil
	case *rbacv1.ClusterRoleBinding:
		return target{rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), false}, nil
	case *pipelinev1.Task:
		return target{pipelinev1.SchemeGroupVersion.WithResource("tasks"), true}, nil
	case *pipelinev1.Pipeline:
		return target{pipelinev1.SchemeGroupVersion.WithResource("pipelines"), true}, nil
	}
	return target{}, fmt.Errorf("apply %T: unsupported kind of object", object)
}

// Apply applies the objects by server-side apply, in their order. Fields that a user
// added are kept; fields that a user changed are reset.
func (c *Cluster) Apply(ctx context.Context, objects []runtime.Object) error {
	for _, object := range objects {
		if err := c.apply(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) apply(ctx context.Context, object runtime.Object) error {
	target, err := targetOf(object)
	if err != nil {
		return err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return fmt.Errorf("apply %T: %w", object, err)
	}
	body, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", target.resource.Resource, accessor.GetName(), err)
	}
	client := c.clientOf(target, accessor)
	force := true
	_, err = client.Patch(
		ctx,
		accessor.GetName(),
		types.ApplyPatchType,
		body,
		metav1.PatchOptions{FieldManager: FieldManager, Force: &force},
	)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w%s", target.resource.Resource, accessor.GetName(), err, hint(err))
	}
	return nil
}

// clientOf is the client for an object.
func (c *Cluster) clientOf(target target, object metav1.Object) dynamic.ResourceInterface {
	if !target.namespaced {
		return c.Dynamic.Resource(target.resource)
	}
	return c.Dynamic.Resource(target.resource).Namespace(cmp.Or(object.GetNamespace(), c.Namespace))
}

// Withdraw deletes the runs of a plan, its reports and history, and these of its objects. The error lists what could
// not be deleted.
func (c *Cluster) Withdraw(ctx context.Context, plan string, objects []runtime.Object) error {
	var left []string
	deleted := func(what string, err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			left = append(left, fmt.Sprintf("%s (%v%s)", what, err, hint(err)))
		}
	}
	ofPlan := metav1.ListOptions{LabelSelector: labels.Set{checkup.LabelPlan: plan}.String()}
	all := c.Tekton.TektonV1().PipelineRuns(c.Namespace)
	runs, err := all.List(ctx, ofPlan)
	deleted("PipelineRuns", err)
	if err == nil {
		for _, run := range runs.Items {
			deleted("PipelineRun "+run.Name, all.Delete(ctx, run.Name, metav1.DeleteOptions{}))
		}
	}
	maps, err := c.Kube.CoreV1().ConfigMaps(c.Namespace).List(ctx, ofPlan)
	deleted("ConfigMaps", err)
	if err == nil {
		for _, cm := range maps.Items {
			deleted("ConfigMap "+cm.Name, c.Kube.CoreV1().ConfigMaps(c.Namespace).Delete(ctx, cm.Name, metav1.DeleteOptions{}))
		}
	}
	for _, object := range objects {
		target, err := targetOf(object)
		if err != nil {
			return err
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			return fmt.Errorf("delete %T: %w", object, err)
		}
		err = c.clientOf(target, accessor).Delete(ctx, accessor.GetName(), metav1.DeleteOptions{})
		deleted(target.resource.Resource+" "+accessor.GetName(), err)
	}
	if len(left) > 0 {
		return fmt.Errorf("cannot delete all of plan %s; left: %s", plan, strings.Join(left, "; "))
	}
	return nil
}

// hint returns what the user can do about an error of the API server.
func hint(err error) string {
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "attempting to grant RBAC permissions not currently held"):
		return "; Kubernetes does not let you grant rights that you do not have: " +
			"ask a cluster administrator to apply the RBAC objects once (planner compile -o DIR)"
	case apierrors.IsForbidden(err):
		return "; ask a cluster administrator for this right"
	case strings.Contains(err.Error(), "failed calling webhook"):
		return "; Tekton's webhook does not answer: is its pod in namespace " + tektonNamespace + " ready?"
	}
	return ""
}

// Start creates the run.
func (c *Cluster) Start(ctx context.Context, run *pipelinev1.PipelineRun) (*pipelinev1.PipelineRun, error) {
	created, err := c.Tekton.TektonV1().
		PipelineRuns(c.Namespace).
		Create(ctx, run, metav1.CreateOptions{FieldManager: FieldManager})
	if err != nil {
		return nil, fmt.Errorf("create a PipelineRun of %s: %w%s", run.Spec.PipelineRef.Name, err, hint(err))
	}
	return created, nil
}

// Cancel asks Tekton to stop the run's tasks and still run its finally task, which
// removes the fixtures.
func (c *Cluster) Cancel(ctx context.Context, name string) error {
	patch := []byte(`{"spec":{"status":"` + pipelinev1.PipelineRunSpecStatusCancelledRunFinally + `"}}`)
	_, err := c.Tekton.TektonV1().
		PipelineRuns(c.Namespace).
		Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil {
		return fmt.Errorf("cancel PipelineRun %s: %w%s", name, err, hint(err))
	}
	return nil
}
