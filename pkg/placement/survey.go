// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/retry"
)

// diagnosticsNamespace is that of the operator's workloads.
const diagnosticsNamespace = "openshift-network-diagnostics"

// requestedResources is the Unseen.What of Reader.Requests.
const requestedResources = "resource requests of the pods on the nodes"

// Survey adds to a snapshot with nodes what Expand needs for the placement checks of a plan: the resource requests
// on the nodes and, for a check with networkConfig, the cluster's network.config.openshift.io and
// network.operator.openshift.io, and the pods of the operator's workloads. Objects that cannot be read because a
// right or an API is missing are recorded as unseen; a malformed object, or an API server that does not answer, is
// an error.
func Survey(ctx context.Context, r cluster.Reader, p *checkup.Plan, s *cluster.Snapshot) error {
	var asked, networkConfig bool
	for _, c := range p.Checks {
		spec, ok := c.Spec.(*Spec)
		asked = asked || ok
		networkConfig = networkConfig || ok && spec.NetworkConfig
	}
	if !asked {
		return nil
	}
	var problems []error
	if err := r.Requests(ctx, s); apierrors.IsForbidden(err) {
		s.AddUnseen(requestedResources, err)
	} else if err != nil {
		problems = append(problems, err)
	}
	if networkConfig {
		if err := surveyNetworkConfig(ctx, r, s); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// surveyNetworkConfig reads both objects, the second one even if the first could not be read.
func surveyNetworkConfig(ctx context.Context, r cluster.Reader, s *cluster.Snapshot) error {
	if r.Dynamic == nil {
		return fmt.Errorf("read %s: no dynamic client", configObject)
	}
	var config cluster.NetworkConfig
	var problems []error
	object, seen, err := get(ctx, r, s, configs, configObject)
	problems = append(problems, err)
	if seen {
		config.Diagnostics, config.Unknown, err = readDiagnostics(object)
		problems = append(problems, err)
	}
	if seen && err == nil {
		config.Source, config.Target, err = surveyWorkloads(ctx, r, s)
		problems = append(problems, err)
	}
	legacy, legacySeen, err := get(ctx, r, s, operators, operatorObject)
	problems = append(problems, err)
	if legacySeen {
		config.DisableNetworkDiagnostics, err = readLegacyFlag(legacy)
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	if seen {
		s.NetworkConfig = &config
	}
	return nil
}

// surveyWorkloads reads the specs of the operator's pods. An object that does not exist or may not be read is recorded
// as unseen.
func surveyWorkloads(
	ctx context.Context,
	r cluster.Reader,
	s *cluster.Snapshot,
) (source, target *corev1.PodSpec, err error) {
	var problems []error
	problem := func(side SideName, resource string, err error) bool {
		what := workloadObject(side)
		switch {
		case apierrors.IsForbidden(err):
			err = cluster.MissingRight(err, "the operator's manifest is used instead", "get", resource, "")
			s.AddUnseen(what, err)
		case apierrors.IsNotFound(err):
			s.AddUnseen(what, errors.New("it does not exist: the operator's manifest is used instead"))
		case err != nil:
			problems = append(problems, fmt.Errorf("read %s: %w", what, err))
		}
		return err != nil
	}
	apps := r.Kubernetes.AppsV1()
	deployment, err := apps.Deployments(diagnosticsNamespace).Get(ctx, workloads[SideSource].name, metav1.GetOptions{})
	if !problem(SideSource, "deployments.apps", err) {
		source = landing(deployment.Spec.Template.Spec)
	}
	daemonSet, err := apps.DaemonSets(diagnosticsNamespace).Get(ctx, workloads[SideTarget].name, metav1.GetOptions{})
	if !problem(SideTarget, "daemonsets.apps", err) {
		target = landing(daemonSet.Spec.Template.Spec)
	}
	return source, target, errors.Join(problems...)
}

// workloadObject is the Unseen.What of the operator's workload of a side.
func workloadObject(side SideName) string {
	return fmt.Sprintf("%s %s/%s", workloads[side].kind, diagnosticsNamespace, workloads[side].name)
}

// landing is the part of a pod's spec that decides where it lands, beyond what the configuration decides.
func landing(spec corev1.PodSpec) *corev1.PodSpec {
	kept := &corev1.PodSpec{PriorityClassName: spec.PriorityClassName}
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		kept.Affinity = &corev1.Affinity{NodeAffinity: spec.Affinity.NodeAffinity}
	}
	bare := func(containers []corev1.Container) (all []corev1.Container) {
		for _, c := range containers {
			all = append(all, corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy})
		}
		return all
	}
	kept.InitContainers, kept.Containers = bare(spec.InitContainers), bare(spec.Containers)
	return kept
}

// get reads one of the two objects. An object that is missing or may not be read is recorded as unseen, except a
// missing operator's object, which disables nothing.
func get(
	ctx context.Context,
	r cluster.Reader,
	s *cluster.Snapshot,
	resource schema.GroupVersionResource,
	what string,
) (object map[string]any, seen bool, err error) {
	o, err := retry.Read(ctx, func() (*unstructured.Unstructured, error) {
		return r.Dynamic.Resource(resource).Get(ctx, objectName, metav1.GetOptions{})
	})
	switch {
	case err == nil:
		return o.Object, true, nil
	case apierrors.IsForbidden(err):
		s.AddUnseen(what, cluster.MissingRight(err, "read "+what, "get", resource.GroupResource().String(), ""))
	case apierrors.IsNotFound(err) && resource == operators:
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		s.AddUnseen(what, fmt.Errorf("the cluster does not serve %s: only OpenShift does", resource.GroupVersion()))
	case apierrors.IsNotFound(err):
		s.AddUnseen(what, errors.New("the object does not exist"))
	default:
		return nil, false, fmt.Errorf("read %s: %w", what, err)
	}
	return nil, false, nil
}
