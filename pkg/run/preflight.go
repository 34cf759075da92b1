// SPDX-License-Identifier: Apache-2.0

package run

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kinds"
)

// OldestTekton is the oldest supported release of Tekton Pipelines. Since 1.10 the
// PipelineRun has the results of a failed finally task; 1.12 is the first long-term
// release after that (tektoncd/pipeline releases.md).
const OldestTekton = "1.12.0"

// tektonNamespace is the namespace in Tekton's installation manifests.
const tektonNamespace = "tekton-pipelines"

// Preflight checks whether the cluster can apply and run the objects of a plan. The error
// lists all obstacles. It changes nothing.
func (c *Cluster) Preflight(ctx context.Context, plan *checkup.Plan, objects []runtime.Object) error {
	if err := c.reach(ctx); err != nil {
		return err
	}
	var obstacles *multierror.Error
	obstacles = multierror.Append(obstacles, c.checkTekton(ctx))
	obstacles = multierror.Append(obstacles, c.checkNamespace(ctx, plan))
	obstacles = multierror.Append(obstacles, c.checkRights(ctx, plan, objects))
	if obstacles != nil {
		obstacles.ErrorFormat = listErrors
	}
	return obstacles.ErrorOrNil()
}

func listErrors(errs []error) string {
	lines := make([]string, len(errs))
	for i, err := range errs {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

func (c *Cluster) checkTekton(ctx context.Context) error {
	_, err := c.Kube.Discovery().ServerResourcesForGroupVersion("tekton.dev/v1")
	if apierrors.IsNotFound(err) {
		return fmt.Errorf(
			"no Tekton Pipelines at %s: the API tekton.dev/v1 is not served; install Tekton Pipelines %s or newer",
			c.Server,
			OldestTekton,
		)
	}
	if err != nil {
		return fmt.Errorf("ask %s for the API tekton.dev/v1: %w", c.Server, err)
	}
	// Tekton lets every authenticated user read this ConfigMap (config/101-podsecurity,
	// tekton-pipelines-info); an installation in another namespace has no readable version.
	info, err := c.Kube.CoreV1().ConfigMaps(tektonNamespace).Get(ctx, "pipelines-info", metav1.GetOptions{})
	if err != nil {
		return nil
	}
	have, err := version.ParseGeneric(info.Data["version"])
	if err != nil {
		return nil // a development build
	}
	if !have.AtLeast(version.MustParseGeneric(OldestTekton)) {
		return fmt.Errorf(
			"Tekton Pipelines %s is too old: its PipelineRuns drop the results of failed tasks; upgrade to %s or newer",
			info.Data["version"],
			OldestTekton,
		)
	}
	return nil
}

func (c *Cluster) checkNamespace(ctx context.Context, plan *checkup.Plan) error {
	namespace, err := c.Kube.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf(
			"namespace %s does not exist; create it (kubectl create namespace %s) or choose another with --namespace",
			c.Namespace,
			c.Namespace,
		)
	case apierrors.IsForbidden(err):
		return nil // a user without the right to read the namespace may still have rights in it
	case err != nil:
		return fmt.Errorf("read namespace %s: %w", c.Namespace, err)
	}
	enforced := namespace.Labels[checkup.LabelPodSecurity]
	var obstacles *multierror.Error
	if check := kinds.HostNetwork(ctx, c.Kube, plan); check != "" && (enforced == "baseline" || enforced == "restricted") {
		obstacles = multierror.Append(
			obstacles,
			fmt.Errorf(
				"namespace %s enforces %s pod security, but agents of check %s run on the host network; "+
					"allow it (kubectl label --overwrite namespace %s %s=privileged) or choose another with --namespace",
				c.Namespace,
				enforced,
				check,
				c.Namespace,
				checkup.LabelPodSecurity,
			),
		)
	}
	if enforced == "restricted" {
		flags, err := c.Kube.CoreV1().ConfigMaps(tektonNamespace).Get(ctx, "feature-flags", metav1.GetOptions{})
		if err == nil && flags.Data["set-security-context"] != "true" {
			obstacles = multierror.Append(
				obstacles,
				fmt.Errorf(
					"namespace %s enforces restricted pod security, and Tekton does not give its own containers a security context there; "+
						"set set-security-context: \"true\" in ConfigMap %s/feature-flags",
					c.Namespace,
					tektonNamespace,
				),
			)
		}
	}
	return obstacles.ErrorOrNil()
}

// checkRights reviews the rights for the verbs of Apply and Start, and for creating the
// ConfigMaps to which outcomes are written. If a review fails, it is ignored: Apply
// itself then reports the missing right.
func (c *Cluster) checkRights(ctx context.Context, plan *checkup.Plan, objects []runtime.Object) error {
	type right struct{ verb, group, resource, namespace, name string }
	var wanted []right
	want := func(r right) {
		if !slices.Contains(wanted, r) {
			wanted = append(wanted, r)
		}
	}
	for _, object := range objects {
		target, err := targetOf(object)
		if err != nil {
			return err
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			return fmt.Errorf("apply %T: %w", object, err)
		}
		for _, verb := range []string{"create", "patch"} {
			r := right{verb, target.resource.Group, target.resource.Resource, "", ""}
			if target.namespaced {
				r.namespace = cmp.Or(accessor.GetNamespace(), c.Namespace)
			}
			want(r)
		}
	}
	for _, verb := range []string{"create", "get", "patch"} {
		want(right{verb, "tekton.dev", "pipelineruns", c.Namespace, ""})
	}
	want(right{"list", "tekton.dev", "taskruns", c.Namespace, ""})
	want(right{"list", "", "configmaps", c.Namespace, ""})
	want(right{"get", "", "configmaps", c.Namespace, ""})
	for _, name := range plan.CheckNames() {
		outcome := kinds.Outcome(plan.Checks[name])
		if outcome == nil {
			continue
		}
		namespace := cmp.Or(outcome.Namespace, c.Namespace)
		want(right{"get", "", "configmaps", namespace, outcome.Name})
		if _, err := c.Kube.CoreV1().ConfigMaps(namespace).Get(ctx, outcome.Name, metav1.GetOptions{}); apierrors.IsNotFound(
			err,
		) {
			want(right{"create", "", "configmaps", namespace, ""})
		}
	}

	var missing *multierror.Error
	for _, r := range wanted {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb:      r.verb,
				Group:     r.group,
				Resource:  r.resource,
				Namespace: r.namespace,
				Name:      r.name,
			},
		}}
		answer, err := c.Kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil || answer.Status.Allowed {
			continue
		}
		resource, where := r.resource, "at cluster scope"
		if r.group != "" {
			resource += "." + r.group
		}
		if r.name != "" {
			resource += " " + r.name
		}
		if r.namespace != "" {
			where = "in namespace " + r.namespace
		}
		missing = multierror.Append(
			missing,
			fmt.Errorf("missing right: %s %s %s; ask a cluster administrator for it", r.verb, resource, where),
		)
	}
	return missing.ErrorOrNil()
}
