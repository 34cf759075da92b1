// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var (
	kubeVirts = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "kubevirts"}
	networks  = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
)

// networkResource is the annotation by which a NetworkAttachmentDefinition says
// which resource its pods need (Network Plumbing Working Group, Multi-Network
// Specification, section 3.3).
const networkResource = "k8s.v1.cni.cncf.io/resourceName"

// served returns the resources of an API; none if the cluster does not have it.
// Every authenticated user may ask that (ClusterRole system:discovery).
func (r Reader) served(api schema.GroupVersion) ([]metav1.APIResource, bool, error) {
	list, err := r.Kubernetes.Discovery().ServerResourcesForGroupVersion(api.String())
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("ask whether the cluster has the API %s: %w", api, err)
	}
	return list.APIResources, true, nil
}

// KubeVirt reads what the cluster tells of its KubeVirt. It needs the verb list
// on kubevirts in every namespace, which KubeVirt gives to every authenticated
// user (ClusterRole kubevirt.io:default); where it is missing, the answer says so.
func (r Reader) KubeVirt(ctx context.Context) (*KubeVirt, error) {
	resources, has, err := r.served(kubeVirts.GroupVersion())
	if err != nil || !has {
		return &KubeVirt{}, err
	}
	k := &KubeVirt{Served: slices.ContainsFunc(resources, func(a metav1.APIResource) bool { return a.Name == "virtualmachineinstances" })}
	if r.Dynamic == nil {
		return nil, errors.New("list kubevirts: no dynamic client")
	}
	list, err := r.Dynamic.Resource(kubeVirts).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		k.Unread = MissingRight(err, "list kubevirts", "list", kubeVirts.GroupResource().String(), "").Error()
		return k, nil
	case err != nil:
		return nil, fmt.Errorf("list kubevirts: %w", err)
	case len(list.Items) == 0:
		k.Message = "its operator is there, but no KubeVirt object, which says what to install"
		return k, nil
	}
	// KubeVirt itself refuses a second one.
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	k.fill(list.Items[0])
	return k, nil
}

// fill takes from the object what the snapshot has. A field of another type than
// kubevirt.io/v1 gives it counts as one that is not there.
func (k *KubeVirt) fill(o unstructured.Unstructured) {
	k.Object = o.GetNamespace() + "/" + o.GetName()
	k.Version, _, _ = unstructured.NestedString(o.Object, "status", "observedKubeVirtVersion")
	k.Phase, _, _ = unstructured.NestedString(o.Object, "status", "phase")
	k.Emulation, _, _ = unstructured.NestedBool(o.Object, "spec", "configuration", "developerConfiguration", "useEmulation")
	available := false
	var troubles []string
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		text := func(key string) string { s, _ := condition[key].(string); return s }
		kind, status := text("type"), text("status")
		good := map[string]string{"Available": "True", "Progressing": "False", "Degraded": "False"}[kind]
		switch {
		case kind == "Available" && status == "True":
			available = true
		case good != "" && status != good:
			troubles = append(troubles, strings.TrimRight(fmt.Sprintf("%s is %s: %s: %s", kind, status, text("reason"), text("message")), ": "))
		}
	}
	switch k.Ready = k.Phase == "Deployed" && available && o.GetDeletionTimestamp() == nil; {
	case k.Ready:
	case o.GetDeletionTimestamp() != nil:
		k.Message = "it is being deleted"
	case len(troubles) > 0:
		k.Message = strings.Join(troubles, "; ")
	case !available:
		k.Message = "it does not tell that it is available"
	}
}

// MultusServed reports whether the cluster has the API of secondary networks.
func (r Reader) MultusServed() (bool, error) {
	_, has, err := r.served(networks.GroupVersion())
	return has, err
}

// Network reads a NetworkAttachmentDefinition (without a namespace: of the run's).
// It needs the verb get on it. One that is not there, or not to be seen, says so.
func (r Reader) Network(ctx context.Context, ref checkup.NetworkRef) (Network, error) {
	n := Network{NetworkRef: ref}
	namespace := cmp.Or(ref.Namespace, r.Namespace)
	attempt := fmt.Sprintf("read NetworkAttachmentDefinition %s/%s", namespace, ref.Name)
	if r.Dynamic == nil {
		return n, fmt.Errorf("%s: no dynamic client", attempt)
	}
	o, err := r.Dynamic.Resource(networks).Namespace(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		n.Unread = fmt.Sprintf("there is no NetworkAttachmentDefinition %s in namespace %s", ref.Name, namespace)
		return n, nil
	case apierrors.IsForbidden(err):
		n.Unread = MissingRight(err, attempt, "get", networks.GroupResource().String(), namespace).Error()
		return n, nil
	case err != nil:
		return n, fmt.Errorf("%s: %w", attempt, err)
	}
	if n.Config, _, err = unstructured.NestedString(o.Object, "spec", "config"); err != nil {
		n.Unread = fmt.Sprintf("%s: %v", attempt, err)
	}
	n.Resource = o.GetAnnotations()[networkResource]
	return n, nil
}

// AddressRanges tells which ranges pods, Services and API servers have their
// addresses of, by what can be asked without a right of its own: the API server's
// address, which inside of the cluster is a Service's, and the pods of the run's
// namespace with their nodes' addresses; and, where there is the right, the
// Service default/kubernetes.
func (r Reader) AddressRanges(ctx context.Context) ([]netip.Prefix, error) {
	var ranges []netip.Prefix
	add := func(address string) {
		if p, ok := RangeOf(address); ok && !p.Addr().IsLoopback() && !slices.Contains(ranges, p) {
			ranges = append(ranges, p)
		}
	}
	if client, ok := r.Kubernetes.Discovery().RESTClient().(*rest.RESTClient); ok && client != nil {
		if u, err := url.Parse(client.Get().URL().String()); err == nil {
			add(u.Hostname())
		}
	}
	err := r.eachPod(ctx, r.Namespace, metav1.ListOptions{}, func(p *corev1.Pod) {
		for _, ip := range p.Status.PodIPs {
			add(ip.IP)
		}
		add(p.Status.HostIP)
		for _, ip := range p.Status.HostIPs {
			add(ip.IP)
		}
	})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("list the pods of namespace %s: %w", r.Namespace, err)
	}
	service, err := r.Service(ctx, metav1.NamespaceDefault, "kubernetes")
	switch {
	case err == nil:
		for _, ip := range service.ClusterIPs {
			add(ip)
		}
		for _, e := range service.Endpoints {
			add(e.Address)
		}
	case !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err):
		return nil, err
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return ranges, nil
}

// The prefix lengths of RangeOf: Kubernetes takes no wider range for IPv4
// Services, and an IPv6 site is a /48 (RFC 6177).
const (
	widestIPv4 = 12
	widestIPv6 = 48
)

// RangeOf tells the range that an address, or a part of a range, is of: itself,
// but a /12 or, of IPv6, a /48 at the least, as nothing tells where it ends. It
// reports false for what is neither.
func RangeOf(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, false
		}
		a = a.Unmap().WithZone("")
		p = netip.PrefixFrom(a, a.BitLen())
	}
	widest := widestIPv4
	if p.Addr().Is6() {
		widest = widestIPv6
	}
	return netip.PrefixFrom(p.Addr(), min(p.Bits(), widest)).Masked(), true
}
