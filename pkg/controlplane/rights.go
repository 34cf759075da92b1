// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"maps"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Rights are the verbs that Survey uses for a check, all of them in the phase
// setup: those of the check's preset or, if that is auto, of every preset.
// The namespaces of aggregated API servers are not known before the survey: the
// rights to read them are for the whole cluster, and then not repeated for single
// namespaces.
func Rights(check checkup.Check) []checkup.Right {
	c, ok := check.Spec.(*Spec)
	if !ok {
		return nil
	}
	presets := []Preset{c.Preset}
	all := lookups{services: map[string]bool{}}
	namespaces := map[string]bool{} // in which pods are listed
	if c.Preset == PresetAuto {
		presets = []Preset{PresetOpenShift, PresetKubeadm, PresetGeneric}
		all.kubeadmConfig, all.infrastructure, namespaces["kube-system"] = true, true, true
	}
	for _, preset := range presets {
		look, err := layoutOf(c, preset).lookups()
		if err != nil {
			continue // an invalid selector, which Survey reports
		}
		for _, l := range look.pods {
			namespaces[l.namespace] = true
		}
		for service, pods := range look.services {
			all.services[service] = true
			if pods {
				namespace, _, _ := strings.Cut(service, "/")
				namespaces[namespace] = true
			}
		}
		all.aggregated = all.aggregated || look.aggregated
		all.aggregatedPods = all.aggregatedPods || look.aggregatedPods
		all.kubeadmConfig = all.kubeadmConfig || look.kubeadmConfig
		all.clusterInfo = all.clusterInfo || look.clusterInfo
		all.infrastructure = all.infrastructure || look.infrastructure
	}

	var rights []checkup.Right
	add := func(namespace, group, resource, verb, why string, names ...string) {
		r := checkup.Right{
			Phase: checkup.PhaseSetup, Scope: checkup.ScopeNamespace, Namespace: namespace,
			Group: group, Resource: resource, Verb: verb, Names: names, Why: "pkg/controlplane Survey: " + why,
		}
		if namespace == "" {
			r.Scope = checkup.ScopeCluster
		}
		rights = append(rights, r)
	}
	const (
		podsWhy     = "the pods of components"
		servicesWhy = "the addresses of components' Services"
		slicesWhy   = "the endpoints of components' Services"
	)
	if all.aggregated {
		add("", apiServices.Group, apiServices.Resource, "list", "the aggregated API servers")
		add("", "", "services", "get", servicesWhy)
		add("", "discovery.k8s.io", "endpointslices", "list", slicesWhy)
	}
	if all.aggregatedPods {
		add("", "", "pods", "list", podsWhy)
	}
	if all.infrastructure {
		add(
			"",
			infrastructures.Group,
			infrastructures.Resource,
			"get",
			"whether this is OpenShift, and its load balancers",
			"cluster",
		)
	}
	if !all.aggregatedPods {
		for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
			add(namespace, "", "pods", "list", podsWhy)
		}
	}
	if !all.aggregated {
		names := map[string][]string{}
		for _, service := range slices.Sorted(maps.Keys(all.services)) {
			namespace, name, _ := strings.Cut(service, "/")
			names[namespace] = append(names[namespace], name)
		}
		for _, namespace := range slices.Sorted(maps.Keys(names)) {
			add(namespace, "", "services", "get", servicesWhy, names[namespace]...)
			add(namespace, "discovery.k8s.io", "endpointslices", "list", slicesWhy)
		}
	}
	if all.kubeadmConfig {
		add("kube-system", "", "configmaps", "get", "kubeadm's load balancer and external etcd members", "kubeadm-config")
	}
	if all.clusterInfo {
		add("kube-public", "", "configmaps", "get", "the load balancer that joining nodes use", "cluster-info")
	}
	return rights
}
