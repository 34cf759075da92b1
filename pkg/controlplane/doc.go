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
// A role is a component. What a pair's `to` asks of it is
//
//	<role>          its instances, at the addresses at which they are spoken to
//	<role>.service  the cluster IPs of its Services
//	<role>.host     the addresses of the nodes in whose network its instances stand
//
// and what `from` asks of it are its pods, or for node the nodes. Every source of
// a pair probes every target, itself not excepted. Roles are found so:
//
//	kube-apiserver          pods: kubeadm's or OpenShift's static pods; instances: the endpoints of
//	                        the Service default/kubernetes, and static pods that are not among them
//	aggregated-apiserver    every Service that an APIService names (apiregistration.k8s.io), at the
//	                        ports that are named: its endpoints, and the pods that it selects. Several
//	                        APIServices of one Service are one aggregated API server
//	etcd                    static pods, where they say that clients find them (kubeadm's annotation)
//	                        or at their first address and port 2379; with kubeadm also etcd.external.endpoints
//	                        of the ConfigMap kube-system/kubeadm-config
//	node                    as target the kubelet of a node, at each of its internal addresses; as source
//	                        an agent in the pod network, on Linux nodes without taints (those of a broken
//	                        node aside). Of each at most maxNodes, chosen by a hash of their names
//	load-balancer-internal  what kubelets use: controlPlaneEndpoint of kubeadm-config, or
//	                        status.apiServerInternalURI of OpenShift's Infrastructure
//	load-balancer-external  what users use: the server of the ConfigMap kube-public/cluster-info, or
//	                        status.apiServerURL of OpenShift's Infrastructure
//
// A load balancer that is an endpoint of default/kubernetes is none: kubeadm names
// an API server itself where there is no other. Where both sides have one address,
// they are one target, load-balancer-internal.
//
// A role of the plan has pods, a Service (its endpoints are its instances, the pods
// that it selects its sources) or hosts, which are never sources. One of a preset's
// name that has none of these changes how the preset's instances are spoken to. So
// etcd gets a client certificate:
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
// and beyond them what OpenShift's operators check, and whatever it takes to tell
// what a failing default Service fails of:
//
//	both                  to  kube-apiserver.service, load-balancer-internal, load-balancer-external
//	kube-apiserver        to  kube-apiserver, node
//
// An aggregated API server that has no business with etcd, such as metrics-server,
// may be kept from it by a firewall: then the plan has to say its pairs itself.
//
// generic is for a control plane of which only the API is to be seen, as its
// operator runs it elsewhere:
//
//	node                  to  kube-apiserver, kube-apiserver.service, aggregated-apiserver,
//	                          aggregated-apiserver.service, load-balancer-internal, load-balancer-external
//
// auto is openshift where the API of Infrastructures is served, unless their
// controlPlaneTopology is External; kubeadm where its static pods or its
// configuration are there; else generic. Where there is no right to find out, it
// is an error, and the plan has to say which.
//
// # Where an agent stands
//
// An agent stands in for a pod: on its node, in the node's network if the pod is,
// with its tolerations and those for a node that has broken since. One pod of
// several roles has one agent. Not the same are namespace and labels, by which a
// NetworkPolicy may tell the two apart, and the user.
//
// Of a component that has addresses in several families, a source probes those
// of the families that it has an address of itself; where it has none of any of
// them, all, as it is then that it cannot reach it. ipFamilies leaves the other
// family out. A DNS name is probed in whichever family connects first.
//
// # Names
//
// A source has the name of the pod that it stands in for, if that is static or one
// of a StatefulSet. Others, whose pods have another name after each rollout, are
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
// The node is its whole name, or the address where no node has it. OpenShift's
// aggregated API servers are all behind a Service "api": they have its namespace's
// name instead, and no number on the first cluster IP. Labels are unique in a
// worksheet, and so are the names of the pairs' objects: two families, two ports
// and two pods on one node get what tells them apart behind them (label.go).
//
// # What cannot be seen
//
// Expected is what the survey shows, not what answered. An endpoint that is not
// ready is probed as any other. What a pair needs and the cluster does not show is
// on the worksheet as well, as a target without a Peer or a source without a node,
// with the cause, and its pairs are unmeasured:
//
//	no right to look (Snapshot.Unseen names the verb)     all that depends on it
//	no pods of a role; an APIService whose Service is      the role, or the Service, as target
//	not there, has no such port, no endpoints              and as source
//	a pod on no node, or without an address                the pod
//	a Service without a cluster IP                         it, as .service
//	a node without an internal address                     the node
//	no static pod of etcd, in a cluster of kubeadm's or    etcd
//	OpenShift's
//	none of its addresses of the plan's ipFamilies         the role
//	a role in the plan's own pairs that is not there       the role
//
// Not expected, but told in a warning, are aggregated API servers and load
// balancers where a preset's pairs name them and the cluster was seen to have none;
// the pods of a Service without a selector, which are not known, as sources; and
// the endpoints of a Service of type ExternalName, which is probed by its name.
// Where nothing at all can be measured, Expand fails.
//
// # How a control plane is judged
//
// Each pair is one connection, measured by Results: pkg/judge has the rules. Each
// connection is a unit, with the name of its PodNetworkConnectivityCheck.
//
// Failures are explained from the widest cause to the narrowest (see findings); every
// failed pair gets at least one. pkg/localise says why this is a procedure of its own:
//
//  1. Nothing passes at all, from several sources to several targets: network.
//  2. A target that fails from every source that measured it, in an overlapping
//     time: target. With one source only it cannot be told from the way, unless the
//     connection was accepted: then the target causes what does not come over it.
//     Several addresses of one pod, or names of one address, are one finding. Last
//     of all, so is a target that fails from more sources than not, if they are on
//     more than one node; what passes speaks against it.
//  3. A source from which everything else fails: source; all the sources of a node
//     that has several: nodeEgress. Its pairs say nothing about targets then.
//  4. A Service's address, of which the endpoints behind it were measured too. If
//     all of these failed in an overlapping time, the address is explained by what
//     explains them. If some did, so too, as long as it does not fail more often
//     than by chance, if each connection leads to one of them (its failures have a
//     probability of 1% or more). Else the way there is to blame: service;
//     the ways from one node to several addresses, if they fail together, are one.
//     An outage counts by its failures; what has more of them decides.
//  5. What is left: pair. Sources of one node to one target are one finding, and so
//     are all pairs from one node to another if they all fail.
//
// Outages overlap if they share a moment, give or take one interval between
// measurements. Pairs that fail because they are slow have no time: whether the
// endpoints are slow too decides. Where a source did not measure the endpoints
// behind an address, what others measured is used, and the finding says so;
// endpoints that nobody measured are evidence neither for nor against. What this
// cannot do:
//
//   - Tell the service rules of a node from anything else on its way to a Service's
//     address that is not on the way to the endpoints.
//   - Tell one source that connects to one target from that target, if no
//     connection stands.
//   - Tell two components that fail at one time from what both depend on.
package controlplane
