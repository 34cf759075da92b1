// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/retry"
)

// Resources that are read without types of their own.
var (
	apiServices     = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	infrastructures = schema.GroupVersionResource{Group: "config.openshift.io", Version: "v1", Resource: "infrastructures"}
)

// Survey adds to a snapshot what Expand needs for the controlPlane checks of a
// plan: components' pods, Services with their endpoints, APIServices, load
// balancers. It reads only what the pairs of the checks need; Rights lists the
// verbs.
//
// What it has no right to read, or cannot parse, goes to the snapshot's Unseen,
// which Expand evaluates. Any other failure to read is an error.
func Survey(ctx context.Context, r cluster.Reader, p *checkup.Plan, s *cluster.Snapshot) error {
	v := survey{Reader: r, s: s}
	for _, name := range p.CheckNames() {
		c, ok := p.Checks[name].Spec.(*Spec)
		if !ok {
			continue
		}
		if err := v.check(ctx, c); err != nil {
			v.problems = append(v.problems, fmt.Errorf("check %q: %w", name, err))
		}
	}
	s.Normalize()
	return errors.Join(v.problems...)
}

// survey is the state of Survey.
type survey struct {
	cluster.Reader
	s *cluster.Snapshot
	// kubeadm says that kubeadm's configuration exists.
	kubeadm  bool
	problems []error
}

// check reads what one check needs.
func (v *survey) check(ctx context.Context, c *Spec) error {
	if c.Preset == PresetAuto {
		v.once(whatPlatform, func() error { return v.platform(ctx) })
		if _, unseen, err := lookedAt(v.s, whatPlatform); err != nil || unseen != "" {
			return nil // a failure is in problems; Expand reports what is unseen
		}
	}
	preset, err := decide(c.Preset, v.s)
	if err != nil {
		return err
	}
	look, err := layoutOf(c, preset).lookups()
	if err != nil {
		return err
	}
	for _, l := range look.pods {
		v.pods(ctx, l)
	}
	for _, name := range slices.Sorted(maps.Keys(look.services)) {
		namespace, name, _ := strings.Cut(name, "/")
		v.service(ctx, namespace, name, look.services[namespace+"/"+name])
	}
	if look.aggregated {
		v.once(whatAPIServices, func() error { return v.apiServices(ctx) })
		for _, a := range v.s.APIServices {
			v.service(ctx, a.Namespace, a.Service, look.aggregatedPods)
		}
	}
	if look.kubeadmConfig {
		v.once(whatKubeadmConfig, func() error { return v.kubeadmConfig(ctx) })
	}
	if look.clusterInfo {
		v.once(whatClusterInfo, func() error { return v.clusterInfo(ctx) })
	}
	if look.infrastructure {
		v.once(whatInfrastructure, func() error { return v.infrastructure(ctx) })
	}
	return nil
}

// errUnseen is the error of an object that was read and could not be understood,
// such as malformed YAML.
type errUnseen struct{ error }

func (e errUnseen) Unwrap() error { return e.error }

// once reads something, unless it was read before. What does not exist counts as
// seen; what is forbidden, or cannot be parsed, as unseen.
func (v *survey) once(what string, look func() error) {
	if _, _, err := lookedAt(v.s, what); err == nil {
		return
	}
	var unseen errUnseen
	switch err := look(); {
	case err == nil, apierrors.IsNotFound(err):
		v.s.AddSeen(what)
	case apierrors.IsForbidden(err), errors.As(err, &unseen):
		v.s.AddUnseen(what, err)
	default:
		v.problems = append(v.problems, err)
		v.s.AddUnseen(what, err) // do not read it again
	}
}

// platform detects the platform of the control plane. OpenShift is recognised by
// its API, unless its control plane runs outside the cluster, where it is not
// visible; kubeadm by its static pods or its configuration.
func (v *survey) platform(ctx context.Context) error {
	openshift, err := v.servesInfrastructures(ctx)
	if err != nil {
		return err
	}
	if openshift {
		object, err := v.cluster(ctx)
		switch {
		case err == nil:
			if topology, _, _ := unstructured.NestedString(
				object.Object,
				"status",
				"controlPlaneTopology",
			); topology != "External" {
				v.s.Platform = cluster.OpenShift
			}
			return nil
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	roles := presetRoles(PresetKubeadm)
	there := false
	var causes []string
	look := func(what string) {
		if _, unseen, _ := lookedAt(v.s, what); unseen != "" {
			causes = append(causes, unseen)
		}
	}
	for _, name := range []string{componentKubeAPIServer, componentEtcd} {
		where := roles[name].Pods
		selector, err := cluster.Selector(where.Selector)
		if err != nil {
			return err
		}
		v.pods(ctx, podLookup{where.Namespace, selector})
		look(whatPods(where.Namespace, selector))
		found, err := selected(v.s, where.Namespace, selector)
		if err != nil {
			return err
		}
		there = there || len(found) > 0
	}
	v.once(whatKubeadmConfig, func() error { return v.kubeadmConfig(ctx) })
	look(whatKubeadmConfig)
	switch {
	case there, v.kubeadm:
		v.s.Platform = cluster.Kubeadm
	case len(causes) > 0:
		return errUnseen{errors.New(strings.Join(causes, "; "))}
	}
	return nil
}

// servesInfrastructures reports whether the API server serves OpenShift's API.
func (v *survey) servesInfrastructures(ctx context.Context) (bool, error) {
	resources, err := retry.Read(ctx, func() (*metav1.APIResourceList, error) {
		return v.Kubernetes.Discovery().ServerResourcesForGroupVersion(infrastructures.GroupVersion().String())
	})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("discover the API %s: %w", infrastructures.GroupVersion(), err)
	}
	return slices.ContainsFunc(
		resources.APIResources,
		func(r metav1.APIResource) bool { return r.Name == infrastructures.Resource },
	), nil
}

// cluster reads OpenShift's only Infrastructure object.
func (v *survey) cluster(ctx context.Context) (*unstructured.Unstructured, error) {
	if v.Dynamic == nil {
		return nil, fmt.Errorf("read %s: no dynamic client", whatInfrastructure)
	}
	object, err := retry.Read(ctx, func() (*unstructured.Unstructured, error) {
		return v.Dynamic.Resource(infrastructures).Get(ctx, "cluster", metav1.GetOptions{})
	})
	if err != nil {
		return nil, cluster.MissingRight(err, "read "+whatInfrastructure, "get", "infrastructures.config.openshift.io", "")
	}
	return object, nil
}

// pods adds the pods of a component.
func (v *survey) pods(ctx context.Context, l podLookup) {
	v.once(whatPods(l.namespace, l.selector), func() error {
		found, err := v.Components(ctx, l.namespace, l.selector, annotations...)
		for _, c := range found {
			if !slices.ContainsFunc(v.s.Components, func(have cluster.Component) bool { return have.Name == c.Name }) {
				v.s.Components = append(v.s.Components, c)
			}
		}
		return err
	})
}

// service adds a Service and, if pods is true, its pods.
func (v *survey) service(ctx context.Context, namespace, name string, pods bool) {
	v.once(whatService(namespace, name), func() error {
		service, err := v.Service(ctx, namespace, name)
		if err == nil {
			v.s.Services = append(v.s.Services, *service)
		}
		return err
	})
	if service := v.s.Service(namespace, name); pods && service != nil && service.Selector != "" {
		v.pods(ctx, podLookup{namespace, service.Selector})
	}
}

// apiServices adds the APIServices that have a Service.
func (v *survey) apiServices(ctx context.Context) error {
	if v.Dynamic == nil {
		return errors.New("list apiservices: no dynamic client")
	}
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return v.Dynamic.Resource(apiServices).List(ctx, options)
	}
	err := cluster.Pager(list).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		object := o.(*unstructured.Unstructured)
		text := func(fields ...string) string {
			value, _, _ := unstructured.NestedString(object.Object, fields...)
			return value
		}
		a := cluster.APIService{
			Name: object.GetName(), Namespace: text("spec", "service", "namespace"), Service: text("spec", "service", "name"),
			Port: httpsPort, Available: corev1.ConditionUnknown,
		}
		if a.Namespace == "" || a.Service == "" {
			return nil
		}
		if port, ok, _ := unstructured.NestedInt64(object.Object, "spec", "service", "port"); ok {
			a.Port = int(port)
		}
		conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		for _, c := range conditions {
			condition, _ := c.(map[string]any)
			if status, _ := condition["status"].(string); condition["type"] == "Available" && status != "" {
				a.Available = corev1.ConditionStatus(status)
			}
		}
		v.s.APIServices = append(v.s.APIServices, a)
		return nil
	})
	if err != nil {
		return cluster.MissingRight(err, "list apiservices", "list", "apiservices.apiregistration.k8s.io", "")
	}
	return nil
}

// kubeadmConfig adds what kubeadm's ClusterConfiguration names: the load balancer
// that kubelets use, and external etcd members.
func (v *survey) kubeadmConfig(ctx context.Context) error {
	data, err := v.ConfigMap(ctx, "kube-system", "kubeadm-config")
	if err != nil {
		return err
	}
	v.kubeadm = true
	var config struct {
		ControlPlaneEndpoint string `json:"controlPlaneEndpoint"`
		Etcd                 struct {
			External struct {
				Endpoints []string `json:"endpoints"`
			} `json:"external"`
		} `json:"etcd"`
	}
	malformed := func(err error) error {
		return errUnseen{fmt.Errorf("%s: ClusterConfiguration: %w", whatKubeadmConfig, err)}
	}
	read := func() error { return yaml.Unmarshal([]byte(data["ClusterConfiguration"]), &config) }
	if err := checkup.Guarded(read); err != nil {
		return malformed(err)
	}
	if config.ControlPlaneEndpoint != "" {
		host, port, err := hostPort(config.ControlPlaneEndpoint, apiServerPort)
		if err != nil {
			return malformed(fmt.Errorf("controlPlaneEndpoint: %w", err))
		}
		v.balancer(cluster.Internal, host, port, whatKubeadmConfig+", controlPlaneEndpoint")
	}
	for i, endpoint := range config.Etcd.External.Endpoints {
		host, port, err := urlHostPort(endpoint, etcdPort)
		if err != nil {
			return malformed(fmt.Errorf("etcd.external.endpoints[%d]: %w", i, err))
		}
		if member := net.JoinHostPort(host, strconv.Itoa(port)); !slices.Contains(v.s.EtcdEndpoints, member) {
			v.s.EtcdEndpoints = append(v.s.EtcdEndpoints, member)
		}
	}
	return nil
}

// clusterInfo adds the load balancer by which new nodes find the cluster.
func (v *survey) clusterInfo(ctx context.Context) error {
	data, err := v.ConfigMap(ctx, "kube-public", "cluster-info")
	if err != nil {
		return err
	}
	config, err := clientcmd.Load([]byte(data["kubeconfig"]))
	if err != nil {
		return errUnseen{fmt.Errorf("%s: kubeconfig: %w", whatClusterInfo, err)}
	}
	for _, name := range slices.Sorted(maps.Keys(config.Clusters)) {
		host, port, err := urlHostPort(config.Clusters[name].Server, httpsPort)
		if err != nil {
			return errUnseen{fmt.Errorf("%s: server of cluster %q: %w", whatClusterInfo, name, err)}
		}
		v.balancer(cluster.External, host, port, whatClusterInfo+", server")
	}
	return nil
}

// infrastructure adds the load balancers that OpenShift's Infrastructure names.
func (v *survey) infrastructure(ctx context.Context) error {
	if served, err := v.servesInfrastructures(ctx); err != nil || !served {
		return err
	}
	object, err := v.cluster(ctx)
	if err != nil {
		return err
	}
	for _, b := range []struct {
		side  cluster.Side
		field string
	}{{cluster.Internal, "apiServerInternalURI"}, {cluster.External, "apiServerURL"}} {
		address, _, _ := unstructured.NestedString(object.Object, "status", b.field)
		if address == "" {
			continue
		}
		host, port, err := urlHostPort(address, httpsPort)
		if err != nil {
			return errUnseen{fmt.Errorf("%s: status.%s: %w", whatInfrastructure, b.field, err)}
		}
		v.balancer(b.side, host, port, whatInfrastructure+", status."+b.field)
	}
	return nil
}

func (v *survey) balancer(side cluster.Side, host string, port int, origin string) {
	b := cluster.LoadBalancer{Side: side, Host: host, Port: port, Origin: origin}
	if !slices.Contains(v.s.LoadBalancers, b) {
		v.s.LoadBalancers = append(v.s.LoadBalancers, b)
	}
}

// urlHostPort reads host and port of a URL such as https://10.0.0.5:2379.
func urlHostPort(address string, otherwise int) (string, int, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", 0, err
	}
	if u.Scheme == "" || u.Host == "" {
		return "", 0, fmt.Errorf("%q is not a URL", address)
	}
	return hostPort(u.Host, otherwise)
}

// hostPort reads "host", "host:port", "[address]:port" or an IPv6 address.
func hostPort(address string, otherwise int) (string, int, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		if host = strings.Trim(
			address,
			"[]",
		); host == "" || strings.ContainsAny(host, "/ []") ||
			strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", 0, fmt.Errorf("%q is not host:port", address)
		}
		return host, otherwise, nil
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 || host == "" || strings.ContainsAny(host, "/ []") {
		return "", 0, fmt.Errorf("%q is not host:port", address)
	}
	return host, n, nil
}
