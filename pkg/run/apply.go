// SPDX-License-Identifier: Apache-2.0

package run

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	case *batchv1.CronJob:
		return target{batchv1.SchemeGroupVersion.WithResource("cronjobs"), true}, nil
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
		if _, err := c.apply(ctx, object, metav1.PatchOptions{FieldManager: FieldManager}); err != nil {
			return err
		}
	}
	return nil
}

// apply applies an object, and returns what the API server makes of it.
func (c *Cluster) apply(ctx context.Context, object runtime.Object, opts metav1.PatchOptions) (
	*unstructured.Unstructured, error) {
	client, resource, name, err := c.clientOf(object)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("apply %s %s: %w", resource, name, err)
	}
	force := true
	opts.Force = &force
	after, err := client.Patch(ctx, name, types.ApplyPatchType, body, opts)
	if err != nil {
		return nil, fmt.Errorf("apply %s %s: %w%s", resource, name, err, hint(err))
	}
	return after, nil
}

// Preview returns what the API server has of an object, nil if nothing, and what it would make of it if manager applied
// it. It changes nothing: the API server only tries. What differs without being set by anybody (managed fields,
// resource version, status, ...) is left out of both.
func (c *Cluster) Preview(ctx context.Context, object runtime.Object, manager string) (
	before, after map[string]any, err error) {
	client, resource, name, err := c.clientOf(object)
	if err != nil {
		return nil, nil, err
	}
	have, err := client.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		before = settled(have.Object)
	case !apierrors.IsNotFound(err):
		return nil, nil, fmt.Errorf("read %s %s: %w%s", resource, name, err, hint(err))
	}
	would, err := c.apply(ctx, object, metav1.PatchOptions{FieldManager: manager, DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return nil, nil, err
	}
	return before, settled(would.Object), nil
}

// settled removes what the API server and controllers write by themselves.
func settled(object map[string]any) map[string]any {
	delete(object, "status")
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(object, "metadata", field)
	}
	unstructured.RemoveNestedField(object, "metadata", "annotations", corev1.LastAppliedConfigAnnotation)
	return object
}

// clientOf is the client for an object, with the object's resource and name.
func (c *Cluster) clientOf(object runtime.Object) (client dynamic.ResourceInterface, resource, name string, err error) {
	target, err := targetOf(object)
	if err != nil {
		return nil, "", "", err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, "", "", fmt.Errorf("apply %T: %w", object, err)
	}
	client = c.Dynamic.Resource(target.resource)
	if target.namespaced {
		client = c.Dynamic.Resource(target.resource).Namespace(cmp.Or(accessor.GetNamespace(), c.Namespace))
	}
	return client, target.resource.Resource, accessor.GetName(), nil
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
		client, resource, name, err := c.clientOf(object)
		if err != nil {
			return err
		}
		deleted(resource+" "+name, client.Delete(ctx, name, metav1.DeleteOptions{}))
	}
	if len(left) > 0 {
		return fmt.Errorf("cannot delete all of plan %s; left: %s", plan, strings.Join(left, "; "))
	}
	return nil
}

// hint returns what the user can do about an error of the API server.
func hint(err error) string {
	switch {
	case apierrors.IsForbidden(err) &&
		strings.Contains(err.Error(), "attempting to grant RBAC permissions not currently held"):
		return "; Kubernetes does not let you grant rights that you do not have: " +
			"ask a cluster administrator to apply the RBAC objects once (planner compile --output-dir DIR)"
	case apierrors.IsForbidden(err):
		return "; ask a cluster administrator for this right"
	case strings.Contains(err.Error(), "failed calling webhook"):
		return "; Tekton's webhook does not answer: is its pod in namespace " + tektonNamespace + " ready?"
	}
	return ""
}

// Pipeline reads a Pipeline that a plan was compiled to. If there is none, the error lists those that there are.
func (c *Cluster) Pipeline(ctx context.Context, name string) (*pipelinev1.Pipeline, error) {
	pipelines := c.Tekton.TektonV1().Pipelines(c.Namespace)
	found, err := pipelines.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		names, _ := c.Pipelines(ctx) // without the right to list, the name is all that can be said
		return nil, fmt.Errorf("no Pipeline %s in namespace %s; it has: %s", name, c.Namespace,
			cmp.Or(strings.Join(names, ", "), "none of planner"))
	}
	if err != nil {
		return nil, fmt.Errorf("read Pipeline %s: %w%s", name, err, hint(err))
	}
	return found, nil
}

// Pipelines are the names of the Pipelines that planner compiled.
func (c *Cluster) Pipelines(ctx context.Context) ([]string, error) {
	all, err := c.Tekton.TektonV1().Pipelines(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: checkup.LabelPlan})
	if err != nil {
		return nil, fmt.Errorf("list Pipelines in namespace %s: %w%s", c.Namespace, err, hint(err))
	}
	var names []string
	for i := range all.Items {
		names = append(names, all.Items[i].Name)
	}
	return names, nil
}

// Start creates the run.
func (c *Cluster) Start(ctx context.Context, run *pipelinev1.PipelineRun) (*pipelinev1.PipelineRun, error) {
	created, err := c.Tekton.TektonV1().
		PipelineRuns(c.Namespace).
		Create(ctx, run, metav1.CreateOptions{FieldManager: FieldManager})
	if err != nil {
		return nil, fmt.Errorf("create a PipelineRun of %s: %w%s", strings.TrimSuffix(run.GenerateName, "-"), err, hint(err))
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
