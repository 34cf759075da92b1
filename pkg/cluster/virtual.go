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
	"github.com/checkplan/checkplan/pkg/retry"
)

var (
	kubeVirts = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "kubevirts"}
	networks  = schema.GroupVersionResource{
		Group:    "k8s.cni.cncf.io",
		Version:  "v1",
		Resource: "network-attachment-definitions",
	}
)

// networkResource is the annotation of a NetworkAttachmentDefinition that names the resource its pods need (Network
// Plumbing Working Group, Multi-Network Specification, section 3.3).
const networkResource = "k8s.v1.cni.cncf.io/resourceName"

// served returns the resources of an API; false if the cluster does not serve it. Every authenticated user may read
// that (ClusterRole system:discovery).
func (r Reader) served(ctx context.Context, api schema.GroupVersion) ([]metav1.APIResource, bool, error) {
	list, err := retry.Read(ctx, func() (*metav1.APIResourceList, error) {
		return r.Kubernetes.Discovery().ServerResourcesForGroupVersion(api.String())
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("discover the API %s: %w", api, err)
	}
	return list.APIResources, true, nil
}

// KubeVirt reads the state of the cluster's KubeVirt. It needs the verb list on kubevirts in every namespace, which
// KubeVirt grants to every authenticated user (ClusterRole kubevirt.io:default). If the right is missing, the result's
// Unread names it.
func (r Reader) KubeVirt(ctx context.Context) (*KubeVirt, error) {
	resources, has, err := r.served(ctx, kubeVirts.GroupVersion())
	if err != nil || !has {
		return &KubeVirt{}, err
	}
	k := &KubeVirt{Served: slices.ContainsFunc(resources, func(a metav1.APIResource) bool {
		return a.Name == "virtualmachineinstances"
	})}
	if r.Dynamic == nil {
		return nil, errors.New("list kubevirts: no dynamic client")
	}
	list, err := retry.Read(ctx, func() (*unstructured.UnstructuredList, error) {
		return r.Dynamic.Resource(kubeVirts).List(ctx, metav1.ListOptions{})
	})
	switch {
	case apierrors.IsForbidden(err):
		k.Unread = MissingRight(err, "list kubevirts", "list", kubeVirts.GroupResource().String(), "").Error()
		return k, nil
	case err != nil:
		return nil, fmt.Errorf("list kubevirts: %w", err)
	case len(list.Items) == 0:
		k.Message = "its operator is installed, but there is no KubeVirt object: create one"
		return k, nil
	}
	// KubeVirt itself rejects a second object.
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	k.fill(list.Items[0])
	return k, nil
}

// fill copies from the object the fields of the snapshot. A field of a wrong type counts as missing.
func (k *KubeVirt) fill(o unstructured.Unstructured) {
	k.Object = o.GetNamespace() + "/" + o.GetName()
	k.Version, _, _ = unstructured.NestedString(o.Object, "status", "observedKubeVirtVersion")
	k.Phase, _, _ = unstructured.NestedString(o.Object, "status", "phase")
	k.Emulation, _, _ = unstructured.NestedBool(
		o.Object,
		"spec",
		"configuration",
		"developerConfiguration",
		"useEmulation",
	)
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
			trouble := fmt.Sprintf("%s is %s: %s: %s", kind, status, text("reason"), text("message"))
			troubles = append(troubles, strings.TrimRight(trouble, ": "))
		}
	}
	switch k.Ready = k.Phase == "Deployed" && available && o.GetDeletionTimestamp() == nil; {
	case k.Ready:
	case o.GetDeletionTimestamp() != nil:
		k.Message = "it is being deleted"
	case len(troubles) > 0:
		k.Message = strings.Join(troubles, "; ")
	case !available:
		k.Message = "it does not report that it is available"
	}
}

// MultusServed reports whether the cluster serves the API of secondary networks.
func (r Reader) MultusServed(ctx context.Context) (bool, error) {
	_, has, err := r.served(ctx, networks.GroupVersion())
	return has, err
}

// Network reads a NetworkAttachmentDefinition; an empty namespace is the run's. It needs the verb get on the object. If
// the object does not exist or may not be read, the result's Unread says so.
func (r Reader) Network(ctx context.Context, ref checkup.NetworkRef) (Network, error) {
	n := Network{NetworkRef: ref}
	namespace := cmp.Or(ref.Namespace, r.Namespace)
	attempt := fmt.Sprintf("read NetworkAttachmentDefinition %s/%s", namespace, ref.Name)
	if r.Dynamic == nil {
		return n, fmt.Errorf("%s: no dynamic client", attempt)
	}
	o, err := retry.Read(ctx, func() (*unstructured.Unstructured, error) {
		return r.Dynamic.Resource(networks).Namespace(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	})
	switch {
	case apierrors.IsNotFound(err):
		n.Unread = fmt.Sprintf("NetworkAttachmentDefinition %s does not exist in namespace %s", ref.Name, namespace)
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

// AddressRanges returns the address ranges of pods, Services and API servers. It uses what needs no additional right:
// the API server's address, which inside the cluster is a Service's, and the addresses of the pods of the run's
// namespace and of their nodes. With the right to read it, it also uses the Service default/kubernetes.
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

// The prefix lengths of RangeOf: Kubernetes accepts no wider range for IPv4 Services, and an IPv6 site is a /48 (RFC
// 6177).
const (
	widestIPv4 = 12
	widestIPv6 = 48
)

// RangeOf returns the range that an address or CIDR belongs to: the CIDR itself, widened to at least a /12 (IPv4) or a
// /48 (IPv6), because the real end of the range is unknown. It returns false if the text is neither.
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
