// SPDX-License-Identifier: Apache-2.0

// Package nodestate computes what the service proxy of one node has to serve: Services, EndpointSlices and Nodes in,
// one ServiceEndpoints per Service out. It makes every decision that kube-proxy 1.35 makes before it writes a rule, so
// that who reads the result (a proxy, a check that compares it with a node's rules) needs no knowledge of Kubernetes.
// The message is the one of KEP-2094, "node-local state".
//
//	cluster, err := nodestate.New(nodestate.Options{})
//	cluster.SetNode(node)          // and SetService, SetSlice: in any order, one object at a time
//	state := cluster.State("node") // the state of a node, from scratch
//	view := cluster.View("node")   // the same, kept up to date: view.State(), view.Rev()
//
// A View has a revision, which grows only when the node's result changes. An object changes often without that: a
// node's heartbeat, an endpoint in another zone, an annotation.
//
// What decides, with the code of kube-proxy 1.35 that this package follows (k8s.io/kubernetes 1.35.6):
//
//	which Services      not headless, not ExternalName, with a cluster IP of the family; none with the label
//	                    service.kubernetes.io/service-proxy-name or service.kubernetes.io/headless:
//	                    cmd/kube-proxy/app/server.go, pkg/proxy/util/utils.go ShouldSkipService
//	which slices        addressType IPv4 or IPv6, with the label kubernetes.io/service-name, without the two above
//	ports               matched by name and protocol, never by target port: one Service port may have endpoints
//	                    with different ports: pkg/proxy/endpointslicecache.go
//	one address twice   the first of the slices in order of their names; a local one replaces one that is not
//	families            independent: cluster IP, other addresses, source ranges, endpoints, health
//	endpoints           ready; without any, serving and terminating; for the policies Cluster and Local separately
//	hints               of nodes, else of zones; only if every ready endpoint has one, and one matches; never for
//	                    Local: pkg/proxy/topology.go
//	established         of UDP, what else serves: it keeps its connections, whatever policies and hints say:
//	                    pkg/proxy/conntrack/cleanup.go
//	external addresses  external IPs, load balancer IPs (not of ipMode Proxy), node ports:
//	                    pkg/proxy/serviceport.go
//	no endpoints        reject if no endpoint of the cluster is usable, drop if only the policy Local has none:
//	                    pkg/proxy/nftables/proxier.go
//
// A test in the sandbox's module (test/e2e/sandbox/kubeproxy) compares with kube-proxy's own code. docs/node-state.md
// lists what differs, and why.
//
// Nothing here is safe for concurrent use, except that what State returns is never changed afterwards.
package nodestate
