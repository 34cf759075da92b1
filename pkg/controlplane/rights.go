// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Rights are the verbs that Survey uses for a check, all of them in the phase
// setup: those of the check's preset or, where that is auto, of every preset that
// it may come to. Which namespaces aggregated API servers are in is not known
// before the survey, so that what is read of these has to be readable everywhere.
func Rights(check checkup.Check) []checkup.Right {
	c := check.ControlPlane
	if c == nil {
		return nil
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
		if !slices.ContainsFunc(rights, func(have checkup.Right) bool { return reflect.DeepEqual(have, r) }) {
			rights = append(rights, r)
		}
	}
	presets := []checkup.Preset{c.Preset}
	if c.Preset == checkup.PresetAuto {
		presets = []checkup.Preset{checkup.PresetOpenShift, checkup.PresetKubeadm, checkup.PresetGeneric}
		add("kube-system", "", "pods", "list", "whether kubeadm's static pods are there")
	}
	// What is listed or read everywhere need not be so in a namespace, too.
	const (
		podsWhy     = "where components are"
		servicesWhy = "the addresses of Services that components have"
		slicesWhy   = "the endpoints of those Services"
	)
	kubeadmConfig, clusterInfo, infrastructure := c.Preset == checkup.PresetAuto, false, c.Preset == checkup.PresetAuto
	var aggregated, aggregatedPods bool
	namespaces := map[string]bool{}
	services := map[string][]string{}
	for _, preset := range presets {
		look, err := layoutOf(c, preset).lookups()
		if err != nil {
			continue // a selector that makes no sense, which Survey tells
		}
		for _, l := range look.pods {
			namespaces[l.namespace] = true
		}
		for name, pods := range look.services {
			namespace, name, _ := strings.Cut(name, "/")
			services[namespace] = append(services[namespace], name)
			if pods {
				namespaces[namespace] = true
			}
		}
		aggregated, aggregatedPods = aggregated || look.aggregated, aggregatedPods || look.aggregatedPods
		kubeadmConfig, clusterInfo, infrastructure = kubeadmConfig || look.kubeadmConfig, clusterInfo || look.clusterInfo, infrastructure || look.infrastructure
	}
	if aggregatedPods {
		rights = nil
		add("", "", "pods", "list", podsWhy)
	} else {
		for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
			add(namespace, "", "pods", "list", podsWhy)
		}
	}
	if aggregated {
		add("", "apiregistration.k8s.io", "apiservices", "list", "which aggregated API servers there are")
		add("", "", "services", "get", servicesWhy)
		add("", "discovery.k8s.io", "endpointslices", "list", slicesWhy)
	} else {
		for _, namespace := range slices.Sorted(maps.Keys(services)) {
			names := slices.Sorted(slices.Values(services[namespace]))
			add(namespace, "", "services", "get", servicesWhy, slices.Compact(names)...)
			add(namespace, "discovery.k8s.io", "endpointslices", "list", slicesWhy)
		}
	}
	if kubeadmConfig {
		add("kube-system", "", "configmaps", "get", "the load balancer and the etcd members that kubeadm knows", "kubeadm-config")
	}
	if clusterInfo {
		add("kube-public", "", "configmaps", "get", "the load balancer that users are told of", "cluster-info")
	}
	if infrastructure {
		add("", "config.openshift.io", "infrastructures", "get", "OpenShift's load balancers", "cluster")
	}
	slices.SortStableFunc(rights, func(a, b checkup.Right) int {
		return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Namespace, b.Namespace))
	})
	return rights
}
