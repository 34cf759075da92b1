// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

// client calls the sandbox's API server from the host.
type client struct {
	typed   *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
}

func newClient(kubeconfig string) (*client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	config.QPS, config.Burst = 200, 400
	config.Timeout = 20 * time.Second
	config.WarningHandler = nil
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	return &client{typed, dyn}, nil
}

func (c *client) readyz(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return c.typed.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// appliedAnnotation is a hash of the object as last applied.
const appliedAnnotation = "sandbox.checkplan.dev/applied"

// apply applies the objects in their order with server-side apply. It skips objects that it applied
// before and that still exist. If a webhook or the API server does not answer yet, it retries for
// some time and reports this to detail.
func (c *client) apply(ctx context.Context, objects []*unstructured.Unstructured, detail func(string)) error {
	var mapper meta.RESTMapper
	ask := func() error {
		groups, err := restmapper.GetAPIGroupResources(discovery.NewDiscoveryClient(c.typed.Discovery().RESTClient()))
		mapper = restmapper.NewDiscoveryRESTMapper(groups)
		return err
	}
	if err := poll(ctx, 30*time.Second, ask); err != nil {
		return fmt.Errorf("discover the API of the API server: %w", err)
	}
	for _, o := range objects {
		gvk := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) { // its CustomResourceDefinition may be one of the objects
			err = poll(ctx, 30*time.Second, func() error {
				if err := ask(); err != nil {
					return err
				}
				mapping, err = mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		var resource dynamic.ResourceInterface = c.dynamic.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			resource = c.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace())
		}
		content, err := o.MarshalJSON() // keys are sorted
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		hash := fmt.Sprintf("%x", sha256.Sum256(content))
		marked := o.DeepCopy()
		annotations := marked.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[appliedAnnotation] = hash
		marked.SetAnnotations(annotations)

		var final error
		err = poll(ctx, time.Minute, func() error {
			existing, err := resource.Get(ctx, o.GetName(), metav1.GetOptions{})
			if err == nil && existing.GetAnnotations()[appliedAnnotation] == hash {
				return nil
			}
			_, err = resource.Apply(ctx, o.GetName(), marked, metav1.ApplyOptions{FieldManager: "sandbox", Force: true})
			if err != nil && !passing(err) {
				final = err
				return nil
			}
			if err != nil {
				detail(fmt.Sprintf("%s %s: %v", o.GetKind(), o.GetName(), err))
			}
			return err
		})
		if err := errors.Join(final, err); err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// passing reports whether it makes sense to retry after an error of a starting API server, or of a
// webhook whose pod does not run yet.
func passing(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || // no answer
		apierrors.IsInternalError(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsNotFound(err) // the system namespaces appear shortly after the API server is ready
}

// nodeReady returns nil if the node is Ready and has reported at or after since, otherwise the
// reason.
func (c *client) nodeReady(ctx context.Context, name string, since time.Time) error {
	n, err := c.typed.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		if condition.LastHeartbeatTime.Time.Before(since.Truncate(time.Second)) { // API times are whole seconds
			return errors.New("the kubelet has not reported since it started")
		}
		if condition.Status == corev1.ConditionTrue {
			return nil
		}
		return fmt.Errorf("%s: %s", condition.Reason, condition.Message)
	}
	return errors.New("the kubelet has not reported")
}

// deploymentReady returns nil if the newest pods of a Deployment are available, otherwise the state
// of its pods.
func (c *client) deploymentReady(ctx context.Context, namespace, name string) error {
	d, err := c.typed.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	s := d.Status
	if s.ObservedGeneration >= d.Generation &&
		s.UpdatedReplicas == *d.Spec.Replicas && s.AvailableReplicas >= *d.Spec.Replicas {
		return nil
	}
	pods, err := c.typed.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector),
	})
	if err != nil {
		return err
	}
	var states []string
	for _, p := range pods.Items {
		states = append(states, podState(p))
	}
	if len(states) == 0 {
		states = append(states, "no pods yet")
	}
	return fmt.Errorf("Deployment %s/%s is not available: %s", namespace, name, strings.Join(states, "; "))
}

// podReady returns nil if a pod is Ready, otherwise its state.
func (c *client) podReady(ctx context.Context, namespace, name string) error {
	p, err := c.typed.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return errors.New(podState(*p))
}

// endpointOfService returns nil if the Service kubernetes routes to the API server at an address.
// Each API server writes its own endpoint. If two write at the same time, one endpoint is missing
// until the next write, ten seconds later.
func (c *client) endpointOfService(ctx context.Context, ip netip.Addr) error {
	slice, err := c.typed.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, e := range slice.Endpoints {
		if slices.Contains(e.Addresses, ip.String()) {
			return nil
		}
	}
	return fmt.Errorf("the Service kubernetes has no endpoint %s yet", ip)
}

// podsReady returns nil if all pods of a namespace are Ready, otherwise the state of the others.
func (c *client) podsReady(ctx context.Context, namespace string) error {
	pods, err := c.typed.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range pods.Items {
		ready := slices.ContainsFunc(p.Status.Conditions, func(condition corev1.PodCondition) bool {
			return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
		})
		if !ready {
			errs = append(errs, errors.New(podState(p)))
		}
	}
	return errors.Join(errs...)
}

// podState describes in a few words why a pod is not ready.
func podState(p corev1.Pod) string {
	var words []string
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status != corev1.ConditionTrue {
			words = append(words, condition.Message)
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		switch {
		case s.State.Waiting != nil:
			words = append(words, s.Name+" is waiting: "+s.State.Waiting.Reason+" "+s.State.Waiting.Message)
		case s.State.Terminated != nil:
			words = append(words,
				fmt.Sprintf("%s exited with %d: %s", s.Name, s.State.Terminated.ExitCode, s.State.Terminated.Reason))
		case !s.Ready:
			words = append(words, s.Name+" is running but not ready")
		}
		if s.RestartCount > 0 {
			words = append(words, fmt.Sprintf("restarted %d times", s.RestartCount))
		}
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s: %s", p.Name, p.Status.Phase, strings.Join(words, ", ")))
}

// tektonAnswers creates a Task with dry run: this calls Tekton's webhook.
func (c *client) tektonAnswers(ctx context.Context) error {
	var task unstructured.Unstructured
	err := json.Unmarshal([]byte(`{
		"apiVersion": "tekton.dev/v1", "kind": "Task", "metadata": {"name": "sandbox-up"},
		"spec": {"steps": [{"name": "one", "image": "sandbox.invalid/none", "command": ["none"]}]}
	}`), &task.Object)
	if err != nil {
		return err
	}
	tasks := schema.GroupVersionResource{Group: "tekton.dev", Version: "v1", Resource: "tasks"}
	_, err = c.dynamic.Resource(tasks).Namespace("default").
		Create(ctx, &task, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}
