// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Names of the component roles in the presets. All aggregated API servers together are one role. componentNode has one
// instance per node: as source it is a pod in the pod network, as target it is the kubelet.
const (
	componentKubeAPIServer       = "kube-apiserver"
	componentAggregatedAPIServer = "aggregated-apiserver"
	componentEtcd                = "etcd"
	componentNode                = "node"
	componentLoadBalancerIn      = "load-balancer-internal"
	componentLoadBalancerOut     = "load-balancer-external"
)

// Default ports of components, if neither they nor the cluster name one.
const (
	// kubeadm's and OpenShift's; https://kubernetes.io/docs/reference/networking/ports-and-protocols/
	apiServerPort = 6443
	etcdPort      = 2379  // etcd's client port
	kubeletPort   = 10250 // the kubelet's API
	// of a URL without one, and of an APIService's Service (apiregistration.k8s.io/v1 ServiceReference)
	httpsPort = 443
)

// Annotations in which kubeadm's static pods advertise their addresses, and the one
// with which a kubelet marks the mirror pod of a static pod.
const (
	advertisedEtcd      = "kubeadm.kubernetes.io/etcd.advertise-client-urls"
	advertisedAPIServer = "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint"
	mirror              = "kubernetes.io/config.mirror"
)

// annotations of a component's pod that the snapshot keeps.
var annotations = []string{advertisedEtcd, advertisedAPIServer, mirror}

// Parts of a role that a pair's To may name: its instances, the addresses of its
// Service, or those of the nodes that its instances run on.
const (
	facetInstances = ""
	facetService   = "service"
	facetHost      = "host"
)

// layout is what a check with a decided preset probes: the roles, and their pairs.
type layout struct {
	preset Preset // never auto
	roles  map[string]role
	pairs  []ComponentPair
	// chosen says that the plan names the pairs, not the preset: then a role that the
	// cluster does not have is a target or source that is missing.
	chosen bool
}

// role is a component of the control plane.
type role struct {
	ComponentRole
	// own says that the plan selects the role's instances.
	own bool
}

// layoutOf returns the layout of a check with a decided preset.
func layoutOf(c *Spec, preset Preset) layout {
	l := layout{preset: preset, roles: map[string]role{}, pairs: c.Pairs, chosen: len(c.Pairs) > 0}
	for name, r := range presetRoles(preset) {
		l.roles[name] = role{ComponentRole: r}
	}
	for name, r := range c.Roles {
		preset, refines := l.roles[name]
		if own := r.Pods != nil || r.Service != nil || len(r.Hosts) > 0; own || !refines {
			l.roles[name] = role{r, true}
			continue
		}
		r.Pods, r.Service = preset.Pods, preset.Service
		l.roles[name] = role{ComponentRole: r}
	}
	if !l.chosen {
		l.pairs = presetPairs(preset, c.For != nil)
	}
	return l
}

// presetRoles are the roles of a preset. Those without pods and Service are found by
// other means.
func presetRoles(preset Preset) map[string]ComponentRole {
	pods := func(namespace string, port int, labels ...string) *ComponentPods {
		match := map[string]string{}
		for i := 0; i < len(labels); i += 2 {
			match[labels[i]] = labels[i+1]
		}
		return &ComponentPods{Namespace: namespace, Selector: checkup.LabelSelector{MatchLabels: match}, Port: port}
	}
	apiServer := ComponentRole{TLS: true, Service: &ComponentService{Namespace: "default", Name: "kubernetes"}}
	etcd := ComponentRole{TLS: true}
	switch preset {
	case PresetKubeadm:
		apiServer.Pods = pods("kube-system", apiServerPort, "component", "kube-apiserver", "tier", "control-plane")
		etcd.Pods = pods("kube-system", etcdPort, "component", "etcd", "tier", "control-plane")
	case PresetOpenShift:
		apiServer.Pods = pods("openshift-kube-apiserver", apiServerPort, "app", "openshift-kube-apiserver")
		etcd.Pods = pods("openshift-etcd", etcdPort, "app", "etcd")
	}
	tls := ComponentRole{TLS: true}
	return map[string]ComponentRole{
		componentKubeAPIServer:       apiServer,
		componentAggregatedAPIServer: tls,
		componentEtcd:                etcd,
		componentNode:                tls,
		componentLoadBalancerIn:      tls,
		componentLoadBalancerOut:     tls,
	}
}

// presetPairs are the pairs of a preset, in the order of the report. A check that watches leaves the kubelets out: each
// measurement is kept, and in a large cluster most of them would be of kubelets.
func presetPairs(preset Preset, watches bool) []ComponentPair {
	const (
		api        = componentKubeAPIServer
		aggregated = componentAggregatedAPIServer
		service    = "." + facetService
		host       = "." + facetHost
	)
	if preset == PresetGeneric {
		var pairs []ComponentPair
		for _, to := range []string{api, api + service, aggregated, aggregated + service,
			componentLoadBalancerIn, componentLoadBalancerOut} {
			pairs = append(pairs, ComponentPair{From: componentNode, To: to})
		}
		return pairs
	}
	pairs := []ComponentPair{
		{From: api, To: aggregated},
		{From: api, To: aggregated + service},
		{From: api, To: componentEtcd},
		{From: aggregated, To: api + host},
		{From: aggregated, To: api},
		{From: aggregated, To: componentEtcd},
		{From: api, To: api}, // separates failures of the Service's address from those of its endpoints
		{From: api, To: api + service},
		{From: aggregated, To: api + service},
		{From: api, To: componentLoadBalancerIn},
		{From: api, To: componentLoadBalancerOut},
		{From: aggregated, To: componentLoadBalancerIn},
		{From: aggregated, To: componentLoadBalancerOut},
	}
	if !watches {
		pairs = append(pairs, ComponentPair{From: api, To: componentNode})
	}
	return pairs
}

// decide returns the preset of a check: its own or, for auto, the one that the
// snapshot shows.
func decide(preset Preset, s *cluster.Snapshot) (Preset, error) {
	if preset != PresetAuto {
		return preset, nil
	}
	if _, unseen, err := lookedAt(s, whatPlatform); err != nil {
		return "", err
	} else if unseen != "" {
		return "", fmt.Errorf(
			"preset auto: cannot detect the platform of the control plane: set preset to kubeadm, openshift or generic: %s",
			unseen,
		)
	}
	switch s.Platform {
	case cluster.OpenShift:
		return PresetOpenShift, nil
	case cluster.Kubeadm:
		return PresetKubeadm, nil
	}
	return PresetGeneric, nil
}

// lookups is what a survey reads for a layout.
type lookups struct {
	pods []podLookup
	// services by namespace/name, and whether their pods are read, too.
	services map[string]bool
	// aggregated says that every APIService that has a Service is read, and
	// aggregatedPods that their pods are read.
	aggregated, aggregatedPods bool
	// Objects that name load balancers and etcd members.
	kubeadmConfig, clusterInfo, infrastructure bool
}

// podLookup is a list of pods by labels.
type podLookup struct{ namespace, selector string }

// lookups returns what a survey must read: it reads, and needs rights to, no more
// than the pairs need.
func (l layout) lookups() (lookups, error) {
	look := lookups{services: map[string]bool{}}
	service := func(namespace, name string, pods bool) {
		look.services[namespace+"/"+name] = look.services[namespace+"/"+name] || pods
	}
	for _, name := range l.used() {
		r := l.roles[name]
		needsNodes := l.needsNodes(name)
		if r.Pods != nil && l.needsPods(name) {
			selector, err := cluster.Selector(r.Pods.Selector)
			if err != nil {
				return lookups{}, fmt.Errorf("roles.%s.pods.selector: %w", name, err)
			}
			if found := (podLookup{r.Pods.Namespace, selector}); !slices.Contains(look.pods, found) {
				look.pods = append(look.pods, found)
			}
		}
		if r.Service != nil {
			service(r.Service.Namespace, r.Service.Name, needsNodes && r.Pods == nil)
		}
		if r.own {
			continue
		}
		switch name {
		case componentAggregatedAPIServer:
			look.aggregated, look.aggregatedPods = true, needsNodes
		case componentEtcd:
			look.kubeadmConfig = look.kubeadmConfig || l.preset == PresetKubeadm
		case componentLoadBalancerIn, componentLoadBalancerOut:
			look.kubeadmConfig = look.kubeadmConfig || l.preset != PresetOpenShift
			look.clusterInfo = look.clusterInfo || l.preset != PresetOpenShift
			look.infrastructure = look.infrastructure || l.preset != PresetKubeadm
			service("default", "kubernetes", false) // an API server itself is no load balancer
		}
	}
	return look, nil
}

// used are the names of the roles that the pairs name, sorted.
func (l layout) used() []string {
	names := map[string]bool{}
	for _, p := range l.pairs {
		to, _, _ := strings.Cut(p.To, ".")
		names[p.From], names[to] = true, true
	}
	return slices.Sorted(maps.Keys(names))
}

// needsNodes reports whether the nodes of a role's instances matter: because they are
// sources, or because their nodes are probed.
func (l layout) needsNodes(name string) bool {
	return slices.ContainsFunc(l.pairs, func(p ComponentPair) bool {
		return p.From == name || p.To == name+"."+facetHost
	})
}

// needsPods reports whether anything but the Service of a role is probed or a source.
func (l layout) needsPods(name string) bool {
	return l.needsNodes(name) || slices.ContainsFunc(l.pairs, func(p ComponentPair) bool { return p.To == name })
}

// What the survey reads, as Snapshot.Seen and Unseen name it.
const (
	whatPlatform       = "the platform of the control plane"
	whatAPIServices    = "apiservices"
	whatKubeadmConfig  = "configmap kube-system/kubeadm-config"
	whatClusterInfo    = "configmap kube-public/cluster-info"
	whatInfrastructure = "infrastructures.config.openshift.io cluster"
)

func whatService(namespace, name string) string { return "service " + namespace + "/" + name }

func whatPods(namespace, selector string) string {
	return "pods with the labels " + selector + " in namespace " + namespace
}

// lookedAt reports whether the survey read something. unseen says why it could not.
// It is an error if the survey did not try.
func lookedAt(s *cluster.Snapshot, what string) (seen bool, unseen string, err error) {
	for _, u := range s.Unseen {
		if u.What == what {
			return false, u.Cause, nil
		}
	}
	if slices.Contains(s.Seen, what) {
		return true, "", nil
	}
	return false, "", fmt.Errorf(
		"the snapshot has no data about %s: it was recorded for another plan: record it again",
		what,
	)
}
