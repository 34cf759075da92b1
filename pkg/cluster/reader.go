// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/retry"
)

// Reader reads a cluster. Lists are paged. Each request is tried until the deadline of its context (package retry);
// without a deadline, once. An error names the request and the missing right, if it is one. It wraps the
// API server's error: apierrors.IsForbidden and IsNotFound work on it.
type Reader struct {
	Kubernetes kubernetes.Interface
	// Metadata reads annotations without the rest of the objects. Only Rounds needs it; otherwise it may be nil.
	Metadata metadata.Interface
	// Dynamic reads APIs that a cluster may lack. It may be nil if no kind of the plan's checks needs them.
	Dynamic dynamic.Interface
	// Namespace of the run: of its reports, and of pods and networks that are named without a namespace.
	Namespace string
	// Run is the UID of the run; empty outside a run.
	Run string
}

// Survey reads what every kind needs: the API server's version and the nodes. It needs the verb list on nodes. If only
// the nodes cannot be read, it returns a snapshot besides the error: the caller can then read on and report all
// missing rights together.
func Survey(ctx context.Context, r Reader) (*Snapshot, error) {
	s := &Snapshot{APIVersion: checkup.APIVersion, Kind: SnapshotKind, Run: r.Run}
	version, err := retry.Read(ctx, r.Kubernetes.Discovery().ServerVersion)
	switch {
	case err == nil:
		s.ServerVersion = version.GitVersion
	case !apierrors.IsForbidden(err):
		return nil, fmt.Errorf("read the API server's version: %w", err)
	}
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return r.Kubernetes.CoreV1().Nodes().List(ctx, options)
	}
	err = Pager(list).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		s.Nodes = append(s.Nodes, NodeOf(o.(*corev1.Node)))
		return nil
	})
	if err != nil {
		return s, MissingRight(err, "list nodes", "list", "nodes", "")
	}
	return s, nil
}

// Pager returns a pager of a list, whose requests are tried until the deadline of their context.
func Pager(list pager.ListPageFunc) *pager.ListPager {
	return pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return retry.Read(ctx, func() (runtime.Object, error) { return list(ctx, options) })
	})
}

// NodeOf converts a node to the snapshot's form.
func NodeOf(n *corev1.Node) Node {
	node := Node{
		Name:          n.Name,
		UID:           string(n.UID),
		Labels:        n.Labels,
		Unschedulable: n.Spec.Unschedulable,
		Ready:         corev1.ConditionUnknown,
		PodCIDRs:      n.Spec.PodCIDRs,
		Allocatable:   n.Status.Allocatable,
		KubeletPort:   int(n.Status.DaemonEndpoints.KubeletEndpoint.Port),
	}
	if len(node.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		node.PodCIDRs = []string{n.Spec.PodCIDR}
	}
	for _, t := range n.Spec.Taints {
		node.Taints = append(node.Taints, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			node.Ready = condition.Status
		}
	}
	for _, address := range n.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			node.InternalIPs = append(node.InternalIPs, address.Address)
		}
	}
	return node
}

// Requests sets Requested and HostPorts of the snapshot's nodes from all pods of the cluster that are scheduled and
// have not ended. It needs the verb list on pods in every namespace. With an error it sets nothing.
func (r Reader) Requests(ctx context.Context, s *Snapshot) error {
	requested := map[string]map[corev1.ResourceName]int64{} // cpu in thousandths
	ports := map[string][]HostPort{}
	for i := range s.Nodes {
		requested[s.Nodes[i].Name] = map[corev1.ResourceName]int64{corev1.ResourcePods: 0}
	}
	err := r.eachPod(ctx, metav1.NamespaceAll, metav1.ListOptions{FieldSelector: "spec.nodeName!="}, func(p *corev1.Pod) {
		sum, ok := requested[p.Spec.NodeName]
		if !ok {
			return
		}
		sum[corev1.ResourcePods]++
		options := resourcehelper.PodResourcesOptions{UseStatusResources: true}
		for name, quantity := range resourcehelper.PodRequests(p, options) {
			if name == corev1.ResourceCPU {
				sum[name] += quantity.MilliValue()
			} else {
				sum[name] += quantity.Value()
			}
		}
		ports[p.Spec.NodeName] = append(ports[p.Spec.NodeName], HostPorts(&p.Spec)...)
	})
	if err != nil {
		return MissingRight(err, "list the pods of all namespaces", "list", "pods", "")
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		n.Requested = corev1.ResourceList{}
		for name, sum := range requested[n.Name] {
			switch name {
			case corev1.ResourceCPU:
				n.Requested[name] = *resource.NewMilliQuantity(sum, resource.DecimalSI)
			case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
				n.Requested[name] = *resource.NewQuantity(sum, resource.BinarySI)
			default:
				n.Requested[name] = *resource.NewQuantity(sum, resource.DecimalSI)
			}
		}
		n.HostPorts = ports[n.Name]
		slices.SortFunc(n.HostPorts, compareHostPorts)
	}
	return nil
}

// HostPorts returns the host ports of a pod: those of its containers and sidecars, as the scheduler counts them.
func HostPorts(spec *corev1.PodSpec) []HostPort {
	var ports []HostPort
	take := func(c corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			port := HostPort{Port: p.HostPort, Protocol: p.Protocol, HostIP: p.HostIP}
			if port.Protocol == "" {
				port.Protocol = corev1.ProtocolTCP
			}
			if port.HostIP == "0.0.0.0" {
				port.HostIP = ""
			}
			ports = append(ports, port)
		}
	}
	for _, c := range spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			take(c)
		}
	}
	for _, c := range spec.Containers {
		take(c)
	}
	return ports
}

// Selector formats a label selector as for kubectl's --selector. An empty selector, which would match everything, is an
// error.
func Selector(s checkup.LabelSelector) (string, error) {
	selector := &metav1.LabelSelector{MatchLabels: s.MatchLabels}
	for _, r := range s.MatchExpressions {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator), Values: r.Values,
		})
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return "", err
	}
	if parsed.Empty() {
		return "", errors.New("is empty and would select every pod: set the labels of the pods")
	}
	return parsed.String(), nil
}

// Pods lists the pods of a namespace (empty: the run's) that match a selector and have not ended. It needs the verb
// list on pods there.
func (r Reader) Pods(ctx context.Context, namespace, selector string) ([]Pod, error) {
	var pods []Pod
	err := r.selectedPods(ctx, namespace, selector, func(p *corev1.Pod) { pods = append(pods, podOf(p)) })
	return pods, err
}

// Pod returns the pod of that name in a namespace (empty: the run's); nothing if it does not exist or has ended. It
// needs the verb get on the pod.
func (r Reader) Pod(ctx context.Context, namespace, name string) ([]Pod, error) {
	if namespace == "" {
		namespace = r.Namespace
	}
	p, err := retry.Read(ctx, func() (*corev1.Pod, error) {
		return r.Kubernetes.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, MissingRight(err, fmt.Sprintf("read pod %s/%s", namespace, name), "get", "pods", namespace)
	case p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return nil, nil
	}
	return []Pod{podOf(p)}, nil
}

// Components lists pods as Pods does, with the additional fields of Component. Only the named annotations are kept.
func (r Reader) Components(
	ctx context.Context,
	namespace, selector string,
	annotations ...string,
) ([]Component, error) {
	var components []Component
	err := r.selectedPods(ctx, namespace, selector, func(p *corev1.Pod) {
		c := Component{Pod: podOf(p), Labels: p.Labels}
		for _, key := range annotations {
			if value, ok := p.Annotations[key]; ok {
				if c.Annotations == nil {
					c.Annotations = map[string]string{}
				}
				c.Annotations[key] = value
			}
		}
		for _, t := range p.Spec.Tolerations {
			c.Tolerations = append(c.Tolerations, checkup.Toleration{
				Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect),
				TolerationSeconds: t.TolerationSeconds,
			})
		}
		components = append(components, c)
	})
	return components, err
}

func (r Reader) selectedPods(ctx context.Context, namespace, selector string, yield func(*corev1.Pod)) error {
	if namespace == "" {
		namespace = r.Namespace
	}
	err := r.eachPod(ctx, namespace, metav1.ListOptions{LabelSelector: selector}, func(p *corev1.Pod) {
		if p.DeletionTimestamp == nil {
			yield(p)
		}
	})
	if err != nil {
		attempt := fmt.Sprintf("list pods with labels %s in namespace %s", selector, namespace)
		return MissingRight(err, attempt, "list", "pods", namespace)
	}
	return nil
}

// eachPod yields the pods that have not ended.
func (r Reader) eachPod(
	ctx context.Context,
	namespace string,
	options metav1.ListOptions,
	yield func(*corev1.Pod),
) error {
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return r.Kubernetes.CoreV1().Pods(namespace).List(ctx, options)
	}
	return Pager(list).EachListItem(ctx, options, func(o runtime.Object) error {
		if p := o.(*corev1.Pod); p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			yield(p)
		}
		return nil
	})
}

func podOf(p *corev1.Pod) Pod {
	pod := Pod{
		Name: p.Namespace + "/" + p.Name, UID: string(p.UID), Node: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork,
	}
	for _, ip := range p.Status.PodIPs {
		pod.IPs = append(pod.IPs, ip.IP)
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady {
			pod.Ready = condition.Status == corev1.ConditionTrue
		}
	}
	return pod
}

// Service reads a Service and its endpoints. It needs the verb get on services and list on endpointslices in its
// namespace.
func (r Reader) Service(ctx context.Context, namespace, name string) (*Service, error) {
	object, err := retry.Read(ctx, func() (*corev1.Service, error) {
		return r.Kubernetes.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	})
	if err != nil {
		return nil, MissingRight(err, fmt.Sprintf("read service %s/%s", namespace, name), "get", "services", namespace)
	}
	s := &Service{Namespace: namespace, Name: name}
	if len(object.Spec.Selector) > 0 {
		s.Selector = labels.Set(object.Spec.Selector).String()
	}
	if object.Spec.Type == corev1.ServiceTypeExternalName {
		s.ExternalName = object.Spec.ExternalName
	}
	for _, ip := range object.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone && ip != "" {
			s.ClusterIPs = append(s.ClusterIPs, ip)
		}
	}
	for _, p := range object.Spec.Ports {
		if p.Protocol == corev1.ProtocolTCP || p.Protocol == "" {
			s.Ports = append(s.Ports, ServicePort{Name: p.Name, Port: int(p.Port)})
		}
	}
	selector := labels.Set{discoveryv1.LabelServiceName: name}.String()
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return r.Kubernetes.DiscoveryV1().EndpointSlices(namespace).List(ctx, options)
	}
	err = Pager(list).EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(o runtime.Object) error {
		for _, e := range endpointsOf(o.(*discoveryv1.EndpointSlice)) {
			// An endpoint that moves from one slice to another can be in both for a moment.
			if !slices.Contains(s.Endpoints, e) {
				s.Endpoints = append(s.Endpoints, e)
			}
		}
		return nil
	})
	if err != nil {
		return nil, MissingRight(
			err,
			fmt.Sprintf("list the endpoint slices of service %s/%s", namespace, name),
			"list",
			"endpointslices",
			namespace,
		)
	}
	return s, nil
}

// ServiceObjects adds to a snapshot the Services of a namespace that match a selector, and all EndpointSlices of the
// namespace. An empty namespace is the whole cluster, an empty selector every Service. What the snapshot has already is
// skipped. It needs the verb list on services and endpointslices there. With an error, the snapshot is unchanged.
func (r Reader) ServiceObjects(ctx context.Context, s *Snapshot, namespace, selector string) error {
	where := "in namespace " + namespace
	if namespace == "" {
		where = "in all namespaces"
	}
	type name struct{ namespace, name string }
	known := map[name]bool{}
	for i := range s.ServiceObjects {
		known[name{s.ServiceObjects[i].Namespace, s.ServiceObjects[i].Name}] = true
	}
	var services []corev1.Service
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return r.Kubernetes.CoreV1().Services(namespace).List(ctx, options)
	}
	err := Pager(list).EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(o runtime.Object) error {
		if object := o.(*corev1.Service); !known[name{object.Namespace, object.Name}] {
			services = append(services, corev1.Service{
				ObjectMeta: identity(object.ObjectMeta), Spec: object.Spec,
				Status: corev1.ServiceStatus{LoadBalancer: object.Status.LoadBalancer},
			})
		}
		return nil
	})
	if err != nil {
		return MissingRight(err, "list the services "+where, "list", "services", namespace)
	}
	clear(known)
	for i := range s.EndpointSlices {
		known[name{s.EndpointSlices[i].Namespace, s.EndpointSlices[i].Name}] = true
	}
	var endpoints []discoveryv1.EndpointSlice
	list = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return r.Kubernetes.DiscoveryV1().EndpointSlices(namespace).List(ctx, options)
	}
	err = Pager(list).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		if object := o.(*discoveryv1.EndpointSlice); !known[name{object.Namespace, object.Name}] {
			kept := *object
			kept.TypeMeta, kept.ObjectMeta = metav1.TypeMeta{}, identity(object.ObjectMeta)
			endpoints = append(endpoints, kept)
		}
		return nil
	})
	if err != nil {
		return MissingRight(err, "list the endpoint slices "+where, "list", "endpointslices", namespace)
	}
	s.ServiceObjects, s.EndpointSlices = append(s.ServiceObjects, services...), append(s.EndpointSlices, endpoints...)
	return nil
}

// identity returns the part of an object's metadata that says which object it is, its labels, the generation of its
// content, and for WrittenAt when it was written last.
func identity(m metav1.ObjectMeta) metav1.ObjectMeta {
	kept := metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, Generation: m.Generation, Labels: m.Labels}
	if at := WrittenAt(m); !at.IsZero() {
		kept.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: at}}}
	}
	return kept
}

// WrittenAt returns when an object was written last, in UTC, to the second: the latest of the times that the API server
// notes in its managed fields, and of the change that made the endpoints controller write it. It is zero if the object
// has no such time. Who may write the object may also write these times.
func WrittenAt(m metav1.ObjectMeta) time.Time {
	var last time.Time
	for _, entry := range m.ManagedFields {
		if entry.Time != nil && entry.Time.After(last) {
			last = entry.Time.Time
		}
	}
	at, err := time.Parse(time.RFC3339Nano, m.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err == nil && at.After(last) {
		last = at
	}
	return last.UTC()
}

// Now returns the time of the API server's clock in UTC, to the second: the Date of its answer to a request for its
// version. Whether the answer grants the request does not matter. It is an error if the client is a fake one.
func (r Reader) Now(ctx context.Context) (time.Time, error) {
	const attempt = "read the API server's time"
	client, ok := r.Kubernetes.Discovery().RESTClient().(*rest.RESTClient)
	if !ok || client == nil || client.Client == nil {
		return time.Time{}, errors.New(attempt + ": the client has no connection")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, client.Get().AbsPath("/version").URL().String(), nil)
	if err != nil {
		return time.Time{}, fmt.Errorf(attempt+": %w", err)
	}
	answer, err := client.Client.Do(request)
	if err != nil {
		return time.Time{}, fmt.Errorf(attempt+": %w", err)
	}
	answer.Body.Close()
	at, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return time.Time{}, fmt.Errorf(attempt+": %w", err)
	}
	return at.UTC(), nil
}

// endpointsOf returns the endpoints of a slice that have an IP address and a TCP port.
func endpointsOf(slice *discoveryv1.EndpointSlice) []ServiceEndpoint {
	var endpoints []ServiceEndpoint
	for _, e := range slice.Endpoints {
		for _, p := range slice.Ports {
			if p.Port == nil || p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
				continue
			}
			for _, address := range e.Addresses {
				family, ok := FamilyOf(address)
				if !ok {
					continue
				}
				endpoint := ServiceEndpoint{
					Address: address,
					Family:  family,
					Port:    int(*p.Port),
					Ready:   e.Conditions.Ready == nil || *e.Conditions.Ready,
				}
				if p.Name != nil {
					endpoint.PortName = *p.Name
				}
				if e.NodeName != nil {
					endpoint.Node = *e.NodeName
				}
				if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
					endpoint.Pod = e.TargetRef.Namespace + "/" + e.TargetRef.Name
				}
				endpoints = append(endpoints, endpoint)
			}
		}
	}
	return endpoints
}

// ConfigMap reads the data of a ConfigMap. It needs the verb get on it.
func (r Reader) ConfigMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	object, err := retry.Read(ctx, func() (*corev1.ConfigMap, error) {
		return r.Kubernetes.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	})
	if err != nil {
		return nil, MissingRight(err, fmt.Sprintf("read configmap %s/%s", namespace, name), "get", "configmaps", namespace)
	}
	return object.Data, nil
}

// Rounds reads the recorded rounds from the annotations of a plan's reports. It needs the verb list on configmaps in
// the run's namespace.
func (r Reader) Rounds(ctx context.Context, plan string) ([]history.Round, error) {
	if r.Metadata == nil {
		return nil, errors.New("read the last round: no metadata client")
	}
	var rounds []history.Round
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return r.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).
			Namespace(r.Namespace).
			List(ctx, options)
	}
	selector := labels.Set{checkup.LabelRole: string(checkup.RoleReport), checkup.LabelPlan: plan}.String()
	err := Pager(list).EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(o runtime.Object) error {
		object := o.(*metav1.PartialObjectMetadata)
		rounds = append(rounds, history.RoundsOf(plan, object.Annotations, object.CreationTimestamp.Time)...)
		return nil
	})
	if err != nil {
		return nil, MissingRight(
			err,
			fmt.Sprintf("read the last round: list configmaps with labels %s in namespace %s", selector, r.Namespace),
			"list",
			"configmaps",
			r.Namespace,
		)
	}
	return history.SortRounds(rounds), nil
}

// MissingRight wraps the error of a request. If the request was forbidden, the error names the missing right. An empty
// namespace is the whole cluster.
func MissingRight(err error, attempt, verb, resource, namespace string) error {
	if !apierrors.IsForbidden(err) {
		return fmt.Errorf("%s: %w", attempt, err)
	}
	where := "in the whole cluster (a ClusterRole)"
	if namespace != "" {
		where = "in namespace " + namespace + " (a Role)"
	}
	return fmt.Errorf("%s: missing the verb %s on %s %s: %w", attempt, verb, resource, where, err)
}
