// SPDX-License-Identifier: Apache-2.0

package nodestate

import "slices"

// ServiceEndpoints is one Service as the proxy of one node has to serve it. It is KEP-2094's message of this name; the
// document leaves its fields open. Names that kpng, the document's prototype, also has mean the same as there.
//
// Every field is one that a change of rules could follow from, except Type. Lists are sorted and have no duplicates,
// so two equal states are equal bytes.
type ServiceEndpoints struct {
	// Namespace and Name are the Service's. They are the key of the message.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Type is the Service's: ClusterIP, NodePort or LoadBalancer. It is for people: all that follows from it is in
	// other fields.
	Type string `json:"type"`
	// ExternalTrafficToLocal: traffic from outside the cluster goes to endpoints of this node only, with its source
	// address preserved. If false, a proxy rewrites (masquerades) the source of external traffic.
	ExternalTrafficToLocal bool `json:"externalTrafficToLocal,omitempty"`
	// InternalTrafficToLocal: traffic to the cluster IP goes to endpoints of this node only.
	InternalTrafficToLocal bool `json:"internalTrafficToLocal,omitempty"`
	// AffinitySeconds is for how long the connections of one client address go to the same endpoint, after the last
	// one. 0: no session affinity.
	AffinitySeconds int32 `json:"affinitySeconds,omitempty"`
	// HealthCheckNodePort answers over HTTP whether this node has ready endpoints: 200, or 503 if it has none. 0: the
	// Service has no such port.
	HealthCheckNodePort int32 `json:"healthCheckNodePort,omitempty"`
	// Families has one entry for each IP family in which the Service has a cluster IP, IPv4 first. Nothing that is in
	// one depends on the other.
	Families []Family `json:"families"`
}

// Family is what a node serves of one Service in one IP family. All addresses and prefixes are in their canonical text
// form, without leading zeros.
type Family struct {
	// Family is IPv4 or IPv6.
	Family IPFamily `json:"family"`
	// ClusterIP is never empty.
	ClusterIP string `json:"clusterIP"`
	// ExternalIPs are the Service's spec.externalIPs. Invalid ones are left out, as in kube-proxy.
	ExternalIPs []string `json:"externalIPs,omitempty"`
	// LoadBalancerIPs are the load balancer's addresses that the node serves itself. Those of ipMode Proxy are left
	// out: their traffic has to go through the load balancer.
	LoadBalancerIPs []string `json:"loadBalancerIPs,omitempty"`
	// LoadBalancerSources are the prefixes from which LoadBalancerIPs may be used; packets from elsewhere are dropped.
	// Empty: all. If this node's own address is in a source range, the load balancer's addresses are here, too: a node
	// uses such an address as its source when it connects to it. External IPs and node ports have no source ranges.
	LoadBalancerSources []string `json:"loadBalancerSources,omitempty"`
	// NodePortPrefixes: node ports, and the health check node port, answer on those addresses of the node that are in
	// one of them; 0.0.0.0/0 or ::/0 is all of them. Empty if the Service has no such port. Loopback addresses are the
	// proxy's own decision (kube-proxy: --iptables-localhost-nodeports).
	NodePortPrefixes []string `json:"nodePortPrefixes,omitempty"`
	// HealthyEndpoints is what HealthCheckNodePort reports: the number of addresses of ready endpoints on this node. It
	// is 0 if the Service has no such port.
	HealthyEndpoints int32 `json:"healthyEndpoints,omitempty"`
	// Ports are the Service's, in the order of their names and protocols.
	Ports []Port `json:"ports"`
}

// Port is one port of a Service in one IP family, with the endpoints that this node may send its traffic to.
type Port struct {
	// Name is empty if the Service has one port without a name. Name and Protocol are the key in a family.
	Name     string   `json:"name,omitempty"`
	Protocol Protocol `json:"protocol"`
	// Port is where the cluster IP, external IPs and load balancer IPs take traffic.
	Port int32 `json:"port"`
	// NodePort is where addresses of the node take traffic. 0: none.
	NodePort int32 `json:"nodePort,omitempty"`
	// Internal is what happens to traffic to the cluster IP, whoever sends it.
	Internal Action `json:"internal"`
	// External is what happens to traffic to external IPs, load balancer IPs and the node port that comes from outside
	// the cluster. Empty if the port has none of the three.
	External Action `json:"external,omitempty"`
	// Inside is what happens to traffic to the same addresses that comes from pods of this node, or from the node
	// itself. With ExternalTrafficToLocal it may use endpoints that External may not, as if it had left the cluster and
	// come back in. (kube-proxy does so for pods only if it can recognise them: --detect-local-mode.)
	Inside Action `json:"inside,omitempty"`
	// Endpoints are those of which at least one kind of traffic may use one, in the order of address and port.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// Established are the other endpoints of a UDP port that serve, in the same order: those that terminate, and those
	// that a policy or hints exclude. No rule leads to them, so no kind of traffic is marked. But a client that sent to
	// one of them before is sent there again by the kernel, and a proxy must not make it forget that. Empty for TCP and
	// SCTP, whose connections a proxy never cuts.
	Established []Endpoint `json:"established,omitempty"`
}

// Endpoint is one address and port behind a Service port.
type Endpoint struct {
	Address string `json:"address"`
	// Port may differ between the endpoints of one Service port, because a target port can be a name.
	Port int32 `json:"port"`
	// Local: the endpoint is on this node.
	Local bool `json:"local,omitempty"`
	// Internal, External and Inside say which of the three kinds of traffic may use this endpoint; Port explains them.
	// Each is true for at least one of Port.Endpoints if the action of that kind is Forward, and for none otherwise.
	Internal bool `json:"internal,omitempty"`
	External bool `json:"external,omitempty"`
	Inside   bool `json:"inside,omitempty"`
}

// IPFamily is an IP family, with the names of the Kubernetes API.
type IPFamily string

// The two families.
const (
	IPv4 IPFamily = "IPv4"
	IPv6 IPFamily = "IPv6"
)

// Protocol is a transport protocol, with the names of the Kubernetes API.
type Protocol string

// The protocols that a Service port can have.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

// Action is what a node does with new connections of one kind to one port.
type Action string

const (
	// Forward: to one of the endpoints, each as likely as the others.
	Forward Action = "forward"
	// Reject: refused at once, by an ICMP message, because the cluster has no usable endpoint.
	Reject Action = "reject"
	// Drop: discarded without an answer, because a policy wants an endpoint of this node, and only other nodes have
	// one. A load balancer is to notice and to send its clients there.
	Drop Action = "drop"
)

// Equal reports whether a node would serve both alike.
func (s *ServiceEndpoints) Equal(t *ServiceEndpoints) bool {
	return s.Namespace == t.Namespace && s.Name == t.Name && s.Type == t.Type &&
		s.ExternalTrafficToLocal == t.ExternalTrafficToLocal && s.InternalTrafficToLocal == t.InternalTrafficToLocal &&
		s.AffinitySeconds == t.AffinitySeconds && s.HealthCheckNodePort == t.HealthCheckNodePort &&
		slices.EqualFunc(s.Families, t.Families, equalFamilies)
}

func equalFamilies(f, g Family) bool {
	return f.Family == g.Family && f.ClusterIP == g.ClusterIP && slices.Equal(f.ExternalIPs, g.ExternalIPs) &&
		slices.Equal(f.LoadBalancerIPs, g.LoadBalancerIPs) &&
		slices.Equal(f.LoadBalancerSources, g.LoadBalancerSources) &&
		slices.Equal(f.NodePortPrefixes, g.NodePortPrefixes) && f.HealthyEndpoints == g.HealthyEndpoints &&
		slices.EqualFunc(f.Ports, g.Ports, equalPorts)
}

func equalPorts(p, q Port) bool {
	return p.Name == q.Name && p.Protocol == q.Protocol && p.Port == q.Port && p.NodePort == q.NodePort &&
		p.Internal == q.Internal && p.External == q.External && p.Inside == q.Inside &&
		slices.Equal(p.Endpoints, q.Endpoints) && slices.Equal(p.Established, q.Established)
}
