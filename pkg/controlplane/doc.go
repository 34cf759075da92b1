// SPDX-License-Identifier: Apache-2.0

// Package controlplane is the kind controlPlane: which connections of a control
// plane a check probes, from where, and by which names.
//
//	cluster  --Survey-->  cluster.Snapshot  --Expand(plan, check)-->  checkup.Worksheet
//
// Survey is the only part that reads a cluster, by the verbs that Rights states.
// Expand is a pure function of what it found.
//
// # Roles and pairs
//
// A role is a component. A pair's `to` selects
//
//	<role>          its instances, at their addresses
//	<role>.service  the cluster IPs of its Services
//	<role>.host     the addresses of the nodes on whose host network its instances run
//
// and `from` selects its pods, or for node the nodes. Every source of a pair probes
// every target, also itself. Roles are found as follows:
//
//	kube-apiserver          pods: kubeadm's or OpenShift's static pods; instances: the endpoints of
//	                        the Service default/kubernetes, and static pods that are not among them
//	aggregated-apiserver    every Service that an APIService names (apiregistration.k8s.io), at the
//	                        ports that are named: its endpoints, and the pods that it selects. Several
//	                        APIServices of one Service are one aggregated API server
//	etcd                    static pods, at the addresses that they advertise (kubeadm's annotation)
//	                        or at their first address and port 2379; with kubeadm also etcd.external.endpoints
//	                        of the ConfigMap kube-system/kubeadm-config
//	node                    as target the kubelet of a node, at each of its internal addresses; as source
//	                        an agent in the pod network, on nodes that match the plan's placement: by default Linux
//	                        nodes without taints (except those of a broken node). At most maxNodes of each, selected
//	                        by a hash of their names
//	load-balancer-internal  what kubelets use: controlPlaneEndpoint of kubeadm-config, or
//	                        status.apiServerInternalURI of OpenShift's Infrastructure
//	load-balancer-external  what users use: the server of the ConfigMap kube-public/cluster-info, or
//	                        status.apiServerURL of OpenShift's Infrastructure
//
// An endpoint of default/kubernetes is not a load balancer: kubeadm names an API
// server if the cluster has no load balancer. If both sides have the same address,
// they are one target, load-balancer-internal.
//
// A role of the plan has pods, a Service (its endpoints are its instances, the pods
// that it selects its sources) or hosts, which are never sources. A role with a
// preset's name and none of these changes how the preset's instances are probed. For
// example, etcd gets a client certificate:
//
//	roles: etcd: clientCertificate: "etcd-client"
//
// # Presets
//
// kubeadm and openshift probe the goals of the point-to-point network check,
//
//	kube-apiserver        to  aggregated-apiserver, aggregated-apiserver.service, etcd
//	aggregated-apiserver  to  kube-apiserver.host, kube-apiserver, etcd
//
// and in addition what OpenShift's operators check, and what is needed to explain a
// failing default Service:
//
//	both                  to  kube-apiserver.service, load-balancer-internal, load-balancer-external
//	kube-apiserver        to  kube-apiserver, node
//
// To etcd, a preset probes only from OpenShift's own aggregated API servers, which are
// known to use it. Others, such as metrics-server, do not, and a firewall may block
// them. A plan that names this pair itself probes from all of them.
//
// generic is for a control plane of which only the API is visible, because its
// operator runs it elsewhere:
//
//	node                  to  kube-apiserver, kube-apiserver.service, aggregated-apiserver,
//	                          aggregated-apiserver.service, load-balancer-internal, load-balancer-external
//
// auto is openshift if the API of Infrastructures is served, unless their
// controlPlaneTopology is External; kubeadm if its static pods or its configuration
// exist; else generic. Without the rights to detect it, it is an error, and the plan
// must name the preset.
//
// # Where an agent runs
//
// An agent stands in for a pod: on its node, in the node's network if the pod is,
// with its tolerations and those for a node that broke later. One pod of several
// roles has one agent. Agent and pod differ in namespace and labels, which a
// NetworkPolicy may select, and in the user.
//
// If a component has addresses of several families, a source probes those of its own
// families. If they have no family in common, it probes all, because it cannot reach
// the component. ipFamilies excludes a family. A DNS name is probed in the family that
// connects first.
//
// # Names
//
// A source has the name of the pod that it stands in for, if that is static or one
// of a StatefulSet. Others, whose pods get a new name with each rollout, are
// "<service>-<node>" ("<role>-<node>" for a role of the plan); node's are
// "node-<node>". Targets are named as OpenShift's connectivity checks are:
//
//	kubernetes-apiserver-endpoint-<node>   kube-apiserver
//	kubernetes-default-service-cluster-<i> kube-apiserver.service, i-th cluster IP
//	kubernetes-apiserver-host-<node>       kube-apiserver.host
//	<service>-endpoint-<node>              aggregated-apiserver
//	<service>-service-cluster-<i>          aggregated-apiserver.service
//	etcd-server-<node>                     etcd
//	node-<node>                            node
//	load-balancer-api-internal, load-balancer-api-external
//	<role>-<node>, <role>-<host>           a role of the plan
//	<role>-service-cluster-<i>, <role>-host-<node>
//
// <node> is the full name of the node, or the address if no node has it. OpenShift's
// aggregated API servers each have a Service "api": they have its namespace's name
// instead, and no number on the first cluster IP. Labels are unique in a worksheet,
// and so are the names of the pairs' objects: two families, two ports and two pods on
// one node get a suffix (label.go).
//
// # What is not visible
//
// The survey decides what is expected, not what answered. An endpoint that is not
// ready is probed as any other. What a pair needs and the survey did not find is also
// on the worksheet, as a target without a Peer or a source without a node, with the
// cause, and its pairs are unmeasured:
//
//	no right to read (Snapshot.Unseen names the verb)     all that depends on it
//	no pods of a role; an APIService whose Service does    the role, or the Service, as target
//	not exist, has no such port, no endpoints              and as source
//	a pod that is not scheduled, or has no address         the pod
//	a Service without a cluster IP                         it, as .service
//	a node without an internal address                     the node
//	no static pod of etcd, with kubeadm or OpenShift       etcd
//	no address of the plan's ipFamilies                    the role
//	a role in the plan's own pairs that does not exist     the role
//
// Not expected, but named in a warning, are aggregated API servers and load balancers
// that a preset's pairs name and the cluster does not have; the pods of a Service
// without a selector as sources, because they are unknown; and the endpoints of a
// Service of type ExternalName, which is probed by its name. If nothing can be
// measured, Expand fails.
//
// # How a control plane is judged
//
// Each pair is one connection, measured by Results: pkg/judge has the rules. Each
// connection is a unit, with the name of its PodNetworkConnectivityCheck.
//
// Failures are explained from the widest cause to the narrowest (see findings); every
// failed pair gets at least one. pkg/localise says why this is a procedure of its own:
//
//  1. Nothing passes, from several sources to several targets: network.
//  2. A target that fails from every source that measured it, at an overlapping
//     time: target. With only one source, target and path cannot be distinguished,
//     unless the connection was accepted: then the target causes the failure.
//     Several addresses of one pod, or names of one address, are one finding. After
//     step 4, a target that fails from most sources, on more than one node, is a
//     finding too; pairs that pass are evidence against it.
//  3. A source from which everything else fails: source; all sources of a node that
//     has several: nodeEgress. Its pairs are then no evidence about targets.
//  4. A Service's address whose endpoints were measured too. If all endpoints failed
//     at an overlapping time, their findings explain the address. If some failed,
//     their findings explain it as long as its failures are probable (1% or more)
//     with random balancing over the endpoints. Else the path explains it: service.
//     The paths from one node to several addresses, if they fail together, are one
//     finding. The explanation with more failed measurements decides.
//  5. The remaining pairs: pair. Sources of one node to one target are one finding,
//     and so are all pairs from one node to another if they all fail.
//
// Outages overlap with a tolerance of one interval between measurements. In one round,
// agents that start at different times measure one after the other: an outage that had
// not ended at a pair's last measurement may still last when another source measures.
// Pairs that fail because they are slow have no time: then it decides whether the
// endpoints are slow too. If a source did not measure the endpoints behind an address, the
// measurements of other sources are used, and the finding says so; endpoints that no
// source measured are no evidence. What this cannot distinguish:
//
//   - The service rules of a node, and anything else on its path to a Service's
//     address that is not on the path to the endpoints.
//   - One source and one target, if no connection is accepted.
//   - Two components that fail at the same time, and what both depend on.
package controlplane
