// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	kjson "sigs.k8s.io/json"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
)

// SnapshotKind is the kind of a recorded snapshot; its apiVersion is
// checkup.APIVersion.
const SnapshotKind = "Snapshot"

// Snapshot holds what kinds of check need to know about a cluster, and no more. Its slices are sorted (Normalize): the
// same cluster gives the same bytes. Fields that no kind requested are empty.
type Snapshot struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// ServerVersion of the API server, such as v1.35.0. Empty without the right to read it; nothing depends on it.
	ServerVersion string `json:"serverVersion,omitempty"`
	// Platform is the detected kind of control plane: openshift or kubeadm. Empty if it is neither, or if no kind
	// requested it.
	Platform Platform `json:"platform,omitempty"`
	// Nodes by name: every node of the cluster.
	Nodes []Node `json:"nodes"`
	// Selections of existing pods, one for each targets.pods of the surveyed plan. A missing selection was not looked
	// up; a selection without pods matched none.
	Selections []Selection `json:"selections,omitempty"`
	// Rounds that the reports in the cluster record, oldest first. Empty if no check of the plan rotates.
	Rounds []history.Round `json:"rounds,omitempty"`
	// Components are pods of the control plane, by name.
	Components []Component `json:"components,omitempty"`
	// Services with their endpoints, by namespace and name.
	Services []Service `json:"services,omitempty"`
	// ServiceObjects and EndpointSlices are what node states are computed from (pkg/nodestate), by namespace and name,
	// without all that neither a state nor a selector depends on. Empty if no kind requested them.
	ServiceObjects []corev1.Service            `json:"serviceObjects,omitempty"`
	EndpointSlices []discoveryv1.EndpointSlice `json:"endpointSlices,omitempty"`
	// APIServices that are backed by a Service, by name.
	APIServices []APIService `json:"apiServices,omitempty"`
	// LoadBalancers in front of the API servers, by side and host.
	LoadBalancers []LoadBalancer `json:"loadBalancers,omitempty"`
	// EtcdEndpoints are those of etcd members outside the cluster, as host:port, in their object's order.
	EtcdEndpoints []string `json:"etcdEndpoints,omitempty"`
	// NetworkConfig is the configuration of the network diagnostics in OpenShift's objects; nil if no kind requested
	// it.
	NetworkConfig *NetworkConfig `json:"networkConfig,omitempty"`
	// Run is the UID of the run that the snapshot was taken for; empty outside a run.
	Run string `json:"run,omitempty"`
	// KubeVirt is the state of the cluster's KubeVirt; nil if no kind requested it.
	KubeVirt *KubeVirt `json:"kubeVirt,omitempty"`
	// Multus reports that the cluster serves the API of secondary networks, k8s.cni.cncf.io/v1; false also if no kind
	// requested it.
	Multus bool `json:"multus,omitempty"`
	// Networks are the requested NetworkAttachmentDefinitions, by namespace and name. Empty if the cluster does not
	// serve their API.
	Networks []Network `json:"networks,omitempty"`
	// Ranges of the addresses of pods, Services and API servers, sorted, as far as they are known. The addresses of
	// nodes are in Nodes.
	Ranges []netip.Prefix `json:"ranges,omitempty"`
	// Seen lists what was looked up for a control plane, found or not, in the words of Unseen.What, sorted.
	Seen []string `json:"seen,omitempty"`
	// Unseen lists what could not be looked up, and why, in the order of the survey.
	Unseen []Unseen `json:"unseen,omitempty"`
}

// Platform is a tool or distribution that sets up control planes.
type Platform string

const (
	OpenShift Platform = "openshift"
	Kubeadm   Platform = "kubeadm"
)

// Platforms lists every Platform.
var Platforms = []Platform{OpenShift, Kubeadm}

// Node is one node of the cluster, in the words of corev1.Node.
type Node struct {
	Name string `json:"name"`
	// UID is empty in snapshots of older programs.
	UID           string            `json:"uid,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	Taints        []corev1.Taint    `json:"taints,omitempty"` // without timeAdded
	Unschedulable bool              `json:"unschedulable,omitempty"`
	// Ready is the status of the condition Ready: True, False or Unknown. Unknown also if the condition is missing.
	Ready       corev1.ConditionStatus `json:"ready"`
	PodCIDRs    []string               `json:"podCIDRs,omitempty"`
	InternalIPs []string               `json:"internalIPs,omitempty"`
	// KubeletPort is status.daemonEndpoints.kubeletEndpoint.port; 0 if the node does not report it.
	KubeletPort int `json:"kubeletPort,omitempty"`
	// Allocatable is status.allocatable: the resources for pods, and the maximum number of pods ("pods"). Empty if
	// the node does not report it.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// Requested are the sums of the requests of the node's pods, as the scheduler counts them, and the number of pods
	// ("pods"). Nil if Reader.Requests was not called: free resources and used ports are then unknown.
	Requested corev1.ResourceList `json:"requested,omitempty"`
	// HostPorts that pods on the node use, sorted; only if Requested is set.
	HostPorts []HostPort `json:"hostPorts,omitempty"`
}

// HostPort is a port of a node that a pod uses.
type HostPort struct {
	Port     int32           `json:"port"`
	Protocol corev1.Protocol `json:"protocol"`
	// HostIP is the node's address on which the port is used; empty is all addresses.
	HostIP string `json:"hostIP,omitempty"`
}

// Selection holds the pods that a sources.pods or targets.pods of the plan matched. Namespace and Selector are as in
// the plan: an empty namespace is the run's.
type Selection struct {
	Namespace string `json:"namespace,omitempty"`
	// Selector as for kubectl's --selector; empty if Name is set.
	Selector string `json:"selector,omitempty"`
	// Name of the only pod; empty if Selector is set.
	Name string `json:"name,omitempty"`
	// Pods by namespace/name, without pods that have ended.
	Pods []Pod `json:"pods,omitempty"`
}

// key is what a selection selects.
func (s Selection) key() [3]string { return [3]string{s.Namespace, s.Selector, s.Name} }

// Pod is an existing pod.
type Pod struct {
	Name string `json:"name"` // namespace/name
	// UID is empty in snapshots of older programs.
	UID string `json:"uid,omitempty"`
	// Node is empty if the pod is not scheduled, or if its node is not in the snapshot.
	Node  string   `json:"node,omitempty"`
	IPs   []string `json:"ips,omitempty"`
	Ready bool     `json:"ready,omitempty"`
	// HostNetwork says that the pod uses its node's network.
	HostNetwork bool `json:"hostNetwork,omitempty"`
}

// Component is a pod of the control plane.
type Component struct {
	Pod
	// Labels of the pod.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations with addresses of the component, such as kubeadm.kubernetes.io/etcd.advertise-client-urls; no others.
	Annotations map[string]string    `json:"annotations,omitempty"`
	Tolerations []checkup.Toleration `json:"tolerations,omitempty"`
}

// Service is a Service with its endpoints.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// ClusterIPs is empty for a headless Service and for one of type ExternalName.
	ClusterIPs []string      `json:"clusterIPs,omitempty"`
	Ports      []ServicePort `json:"ports,omitempty"`
	// ExternalName is the DNS name that a Service of that type refers to.
	ExternalName string `json:"externalName,omitempty"`
	// Selector of its pods as for kubectl's --selector; empty if the Service has none.
	Selector string `json:"selector,omitempty"`
	// Endpoints of all EndpointSlices of the Service, including those that are not ready; one entry for each address
	// and port.
	Endpoints []ServiceEndpoint `json:"endpoints,omitempty"`
}

// ServicePort is a TCP port of a Service.
type ServicePort struct {
	Name string `json:"name,omitempty"`
	Port int    `json:"port"`
}

// ServiceEndpoint is an address and a TCP port behind a Service.
type ServiceEndpoint struct {
	Address string           `json:"address"`
	Family  checkup.IPFamily `json:"family"`
	Port    int              `json:"port"`
	// PortName is the name of the Service's port that routes to it.
	PortName string `json:"portName,omitempty"`
	// Node that it runs on, and its pod as namespace/name; empty if the EndpointSlice does not name them.
	Node string `json:"node,omitempty"`
	Pod  string `json:"pod,omitempty"`
	// Ready is the endpoint's condition; true if the condition is missing.
	Ready bool `json:"ready,omitempty"`
}

// APIService is an aggregated API, by the Service that serves it.
type APIService struct {
	Name string `json:"name"`
	// Namespace, Service and Port that serve it.
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Port      int    `json:"port"`
	// Available is the status of the condition Available: True, False or Unknown. Unknown also if it is missing.
	Available corev1.ConditionStatus `json:"available"`
}

// LoadBalancer is an address at which clients outside the cluster's network reach the API servers.
type LoadBalancer struct {
	Side Side   `json:"side"`
	Host string `json:"host"`
	Port int    `json:"port"`
	// Origin names the object and field that it was read from.
	Origin string `json:"origin"`
}

// Side is the kind of clients that a load balancer serves.
type Side string

const (
	Internal Side = "internal" // nodes
	External Side = "external" // users
)

// Sides lists every Side.
var Sides = []Side{Internal, External}

// NetworkConfig is the configuration of the network diagnostics in OpenShift's objects.
type NetworkConfig struct {
	// Diagnostics is spec.networkDiagnostics of network.config.openshift.io/cluster. Nil if the object or the field
	// does not exist.
	Diagnostics *NetworkDiagnostics `json:"diagnostics,omitempty"`
	// Unknown are the paths of fields of spec.networkDiagnostics that are not known, and ignored.
	Unknown []string `json:"unknown,omitempty"`
	// DisableNetworkDiagnostics is spec.disableNetworkDiagnostics of network.operator.openshift.io/cluster. Nil if the
	// object or the field does not exist.
	DisableNetworkDiagnostics *bool `json:"disableNetworkDiagnostics,omitempty"`
	// Source and Target are the pods' specs of the operator's Deployment and DaemonSet, without what does not decide
	// where they land. Nil if the object does not exist or could not be read.
	Source *corev1.PodSpec `json:"source,omitempty"`
	Target *corev1.PodSpec `json:"target,omitempty"`
}

// NetworkDiagnostics is config.openshift.io/v1 NetworkDiagnostics.
type NetworkDiagnostics struct {
	Mode DiagnosticsMode `json:"mode,omitempty"`
	// SourcePlacement and TargetPlacement; nil if the object does not set them.
	SourcePlacement *DiagnosticsPlacement `json:"sourcePlacement,omitempty"`
	TargetPlacement *DiagnosticsPlacement `json:"targetPlacement,omitempty"`
}

// DiagnosticsPlacement is NetworkDiagnosticsSourcePlacement and
// NetworkDiagnosticsTargetPlacement, which have the same fields.
type DiagnosticsPlacement struct {
	// NodeSelector; nil if the object does not set it. An empty one is different: the operator sets it literally.
	NodeSelector map[string]string `json:"nodeSelector,omitzero"`
	// Tolerations; nil if the object does not set them. An empty list is different: it tolerates nothing.
	Tolerations []checkup.Toleration `json:"tolerations,omitzero"`
}

// KubeVirt is the state of a cluster's KubeVirt.
type KubeVirt struct {
	// Served reports that the cluster serves VirtualMachineInstances of kubevirt.io/v1.
	Served bool `json:"served,omitempty"`
	// Object is namespace/name of the KubeVirt object; empty if it does not exist or could not be read.
	Object string `json:"object,omitempty"`
	// Unread is the reason why the object could not be read. Only Served is known then.
	Unread string `json:"unread,omitempty"`
	// Version and Phase are status.observedKubeVirtVersion and status.phase.
	Version string `json:"version,omitempty"`
	Phase   string `json:"phase,omitempty"`
	// Ready reports that it is deployed and available.
	Ready bool `json:"ready,omitempty"`
	// Message is the reason why it is not ready, from its conditions; empty if it is ready.
	Message string `json:"message,omitempty"`
	// Emulation reports that VMs run in software on nodes without hardware virtualization (useEmulation).
	Emulation bool `json:"emulation,omitempty"`
}

// Network is a NetworkAttachmentDefinition.
type Network struct {
	// Namespace and name as in the plan: an empty namespace is the run's.
	checkup.NetworkRef
	// Config is spec.config: a CNI configuration or configuration list, as JSON. Empty if the object has none: the
	// configuration is then in a file on the nodes.
	Config string `json:"config,omitempty"`
	// Resource is the annotation k8s.v1.cni.cncf.io/resourceName: the resource that pods on the network need. Empty
	// without the annotation.
	Resource string `json:"resource,omitempty"`
	// Unread is the reason why the object could not be read, for example that it does not exist; empty if it was read.
	Unread string `json:"unread,omitempty"`
}

// Unseen is something that could not be read.
type Unseen struct {
	// What was looked up, such as "pods with labels component=etcd in namespace kube-system".
	What string `json:"what"`
	// Cause is the reason: a missing right, or an API that the cluster does not serve.
	Cause string `json:"cause"`
}

// Nodes is the Unseen.What of the nodes, for kinds that continue without them.
const Nodes = "nodes"

// AddUnseen records that something could not be read. Repeated entries are skipped.
func (s *Snapshot) AddUnseen(what string, err error) {
	u := Unseen{What: what, Cause: err.Error()}
	if !slices.Contains(s.Unseen, u) {
		s.Unseen = append(s.Unseen, u)
	}
}

// AddSeen records that something was looked up. Repeated entries are skipped.
func (s *Snapshot) AddSeen(what string) {
	if !slices.Contains(s.Seen, what) {
		s.Seen = append(s.Seen, what)
	}
}

// Node returns the node of that name, or nil.
func (s *Snapshot) Node(name string) *Node {
	if i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == name }); i >= 0 {
		return &s.Nodes[i]
	}
	return nil
}

// Selection returns a selection with its pods, and whether it was looked up.
func (s *Snapshot) Selection(of Selection) (Selection, bool) {
	for _, have := range s.Selections {
		if have.key() == of.key() {
			return have, true
		}
	}
	return Selection{}, false
}

// Service returns the Service of that name, or nil.
func (s *Snapshot) Service(namespace, name string) *Service {
	is := func(x Service) bool { return x.Namespace == namespace && x.Name == name }
	if i := slices.IndexFunc(s.Services, is); i >= 0 {
		return &s.Services[i]
	}
	return nil
}

// Network returns the network of that name, or nil.
func (s *Snapshot) Network(ref checkup.NetworkRef) *Network {
	if i := slices.IndexFunc(s.Networks, func(n Network) bool { return n.NetworkRef == ref }); i >= 0 {
		return &s.Networks[i]
	}
	return nil
}

// NodesUnseen reports whether the nodes could not be read: an empty Nodes then means nothing.
func (s *Snapshot) NodesUnseen() bool {
	return slices.ContainsFunc(s.Unseen, func(u Unseen) bool { return u.What == Nodes })
}

// FamilyOf returns the IP family of an address or CIDR; false if the text is neither.
func FamilyOf(s string) (checkup.IPFamily, bool) {
	address, _, _ := strings.Cut(s, "/")
	a, err := netip.ParseAddr(address)
	switch {
	case err != nil:
		return "", false
	case a.Is4():
		return checkup.IPv4, true
	}
	return checkup.IPv6, true
}

// EncodeSnapshot encodes a snapshot as indented JSON: the same bytes for the same snapshot.
func EncodeSnapshot(s *Snapshot) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(s); err != nil {
		return nil, fmt.Errorf("write snapshot: %w", err)
	}
	return b.Bytes(), nil
}

// DecodeSnapshot decodes what EncodeSnapshot wrote. It is strict: the error lists every unknown, misspelled or
// duplicate field and every invalid value.
func DecodeSnapshot(data []byte) (*Snapshot, error) {
	const attempt = "read snapshot"
	// Check the version first: unknown fields of another version are not the problem to report.
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		return nil, fmt.Errorf("%s: not a JSON object of a snapshot: %w", attempt, err)
	}
	if head.Kind != SnapshotKind {
		return nil, fmt.Errorf("%s: kind is %q, want %q: record a snapshot with planner explain --record",
			attempt, head.Kind, SnapshotKind)
	}
	if head.APIVersion != checkup.APIVersion {
		return nil, fmt.Errorf("%s: apiVersion is %q, want %q: record it again with planner explain --record",
			attempt, head.APIVersion, checkup.APIVersion)
	}
	if problems := hugeQuantities(data); len(problems) > 0 {
		return nil, fmt.Errorf("%s: %w", attempt, errors.Join(problems...))
	}
	var s Snapshot
	problems, err := kjson.UnmarshalStrict(data, &s, kjson.DisallowUnknownFields, kjson.DisallowDuplicateFields)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", attempt, err)
	}
	problems = append(problems, s.problems()...)
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s: %w", attempt, errors.Join(problems...))
	}
	s.Normalize()
	return &s, nil
}

// hugeExponent matches the end of a quantity whose exponent has more digits than any real one.
var hugeExponent = regexp.MustCompile(`[0-9.][eE][+-]?[0-9]{3,}`)

// hugeQuantity matches such a quantity as a whole. Names and values of labels may contain one.
var hugeQuantity = regexp.MustCompile(`^\s*[+-]?[0-9.]+[eE][+-]?[0-9]{3,}\s*$`)

// hugeQuantities returns an error for each quantity such as 1e-999999999. They must be found before they are decoded:
// resource.ParseQuantity writes the number out and would take hours. The data must be valid JSON.
func hugeQuantities(data []byte) []error {
	if !hugeExponent.Match(data) && !bytes.Contains(data, []byte(`\u`)) {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var problems []error
	// value reads one value. It also visits duplicate fields.
	var value func(path []string)
	value = func(path []string) {
		token, err := decoder.Token()
		if err != nil {
			return
		}
		switch token {
		case json.Delim('{'):
			for decoder.More() {
				key, err := decoder.Token()
				if err != nil {
					return
				}
				value(append(path, fmt.Sprint(key)))
			}
			_, _ = decoder.Token() // the closing brace: the data are valid
		case json.Delim('['):
			for decoder.More() {
				value(append(path, "[]"))
			}
			_, _ = decoder.Token()
		default:
			ofNode := len(path) == 4 && path[0] == "nodes" && (path[2] == "allocatable" || path[2] == "requested")
			text := fmt.Sprint(token)
			switch ofPod := len(path) > 1 && path[0] == "networkConfig" && (path[1] == "source" || path[1] == "target"); {
			case !hugeQuantity.MatchString(text):
			case ofNode:
				problems = append(problems, fmt.Errorf("nodes.%s.%s: %s: exponent is out of range", path[2], path[3], text))
			case ofPod: // some field of its PodSpecs
				problems = append(problems, fmt.Errorf("%s: %s: exponent is out of range", strings.Join(path, "."), text))
			}
		}
	}
	value(nil)
	return problems
}

// problems returns all invalid values of the snapshot.
func (s *Snapshot) problems() []error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	status := func(at string, status corev1.ConditionStatus) {
		switch status {
		case corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown:
		default:
			add("%s: %q is not one of True, False, Unknown", at, status)
		}
	}
	port := func(at string, port int) {
		if port < 1 || port > 65535 {
			add("%s: %d is not a port: want 1 to 65535", at, port)
		}
	}
	// unique reports missing and duplicate names.
	unique := func(list string, i int, name string, seen map[string]int) {
		if first, ok := seen[name]; name == "" {
			add("%s[%d].name: missing", list, i)
		} else if ok {
			add("%s[%d].name: %q: duplicate of %s[%d]", list, i, name, list[strings.LastIndex(list, ".")+1:], first)
		} else {
			seen[name] = i
		}
	}
	nodes := map[string]int{}
	for i, n := range s.Nodes {
		unique("nodes", i, n.Name, nodes)
		status(fmt.Sprintf("nodes[%d].ready", i), n.Ready)
	}
	onNode := func(at, node string) {
		if _, ok := nodes[node]; node != "" && !ok {
			add("%s.node: node %q does not exist", at, node)
		}
	}
	if s.Platform != "" && !slices.Contains(Platforms, s.Platform) {
		add("platform: %q is not one of %q", s.Platform, Platforms)
	}
	selections := map[[3]string]int{}
	for i, sel := range s.Selections {
		if first, ok := selections[sel.key()]; ok {
			add("selections[%d]: namespace and selector: duplicate of selections[%d]", i, first)
		}
		selections[sel.key()] = i
		pods := map[string]int{}
		for j, p := range sel.Pods {
			unique(fmt.Sprintf("selections[%d].pods", i), j, p.Name, pods)
			onNode(fmt.Sprintf("selections[%d].pods[%d]", i, j), p.Node)
		}
	}
	components := map[string]int{}
	for i, c := range s.Components {
		unique("components", i, c.Name, components)
		onNode(fmt.Sprintf("components[%d]", i), c.Node)
	}
	services := map[string]int{}
	for i, service := range s.Services {
		at := fmt.Sprintf("services[%d]", i)
		name := service.Namespace + "/" + service.Name
		if service.Namespace == "" || service.Name == "" {
			name = ""
		}
		unique("services", i, name, services)
		for j, p := range service.Ports {
			port(fmt.Sprintf("%s.ports[%d].port", at, j), p.Port)
		}
		for j, e := range service.Endpoints {
			at := fmt.Sprintf("%s.endpoints[%d]", at, j)
			port(at+".port", e.Port)
			onNode(at, e.Node)
			if family, ok := FamilyOf(e.Address); !ok || family != e.Family {
				add("%s.address: %q is not an address of the family %q", at, e.Address, e.Family)
			}
		}
	}
	objects := map[string]int{}
	for i := range s.ServiceObjects {
		unique("serviceObjects", i, s.ServiceObjects[i].Namespace+"/"+s.ServiceObjects[i].Name, objects)
	}
	endpointSlices := map[string]int{}
	for i := range s.EndpointSlices {
		unique("endpointSlices", i, s.EndpointSlices[i].Namespace+"/"+s.EndpointSlices[i].Name, endpointSlices)
	}
	apis := map[string]int{}
	for i, a := range s.APIServices {
		at := fmt.Sprintf("apiServices[%d]", i)
		unique("apiServices", i, a.Name, apis)
		port(at+".port", a.Port)
		status(at+".available", a.Available)
		if a.Namespace == "" || a.Service == "" {
			add("%s: namespace or service is missing", at)
		}
	}
	for i, b := range s.LoadBalancers {
		at := fmt.Sprintf("loadBalancers[%d]", i)
		port(at+".port", b.Port)
		if b.Host == "" {
			add("%s.host: missing", at)
		}
		if !slices.Contains(Sides, b.Side) {
			add("%s.side: %q is not one of %q", at, b.Side, Sides)
		}
	}
	if s.NetworkConfig != nil && s.NetworkConfig.Diagnostics != nil {
		if mode := s.NetworkConfig.Diagnostics.Mode; !slices.Contains(DiagnosticsModes, mode) {
			add("networkConfig.diagnostics.mode: %q is not one of %q", mode, DiagnosticsModes)
		}
	}
	networks := map[checkup.NetworkRef]int{}
	for i, n := range s.Networks {
		at := fmt.Sprintf("networks[%d]", i)
		if first, ok := networks[n.NetworkRef]; n.Name == "" {
			add("%s.name: missing", at)
		} else if ok {
			add("%s: namespace and name: duplicate of networks[%d]", at, first)
		} else {
			networks[n.NetworkRef] = i
		}
	}
	for i, r := range s.Ranges {
		if !r.IsValid() {
			add("ranges[%d]: missing", i)
		}
	}
	for i, r := range s.Rounds {
		if r.Round < 0 {
			add("rounds[%d].round: %d: want 0 or more", i, r.Round)
		}
	}
	return problems
}

// Normalize sorts the snapshot's slices. It clears the node of pods whose node is not in the snapshot, which happens if
// the node was created or deleted between two lists.
func (s *Snapshot) Normalize() {
	slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	known := map[string]bool{}
	for i := range s.Nodes {
		known[s.Nodes[i].Name] = true
		slices.SortFunc(s.Nodes[i].HostPorts, compareHostPorts)
	}
	forget := func(node *string) {
		if !known[*node] {
			*node = ""
		}
	}
	byName := func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(s.Selections, func(a, b Selection) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Selector, b.Selector), cmp.Compare(a.Name, b.Name))
	})
	for _, sel := range s.Selections {
		slices.SortFunc(sel.Pods, byName)
		for i := range sel.Pods {
			forget(&sel.Pods[i].Node)
		}
	}
	s.Rounds = history.SortRounds(s.Rounds)
	slices.Sort(s.Seen)
	slices.SortFunc(s.Components, func(a, b Component) int { return byName(a.Pod, b.Pod) })
	for i := range s.Components {
		forget(&s.Components[i].Node)
	}
	slices.SortFunc(s.Services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, service := range s.Services {
		for i := range service.Endpoints {
			forget(&service.Endpoints[i].Node)
		}
		slices.SortFunc(service.Endpoints, func(a, b ServiceEndpoint) int {
			return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port),
				cmp.Compare(a.PortName, b.PortName), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Node, b.Node))
		})
	}
	slices.SortFunc(s.ServiceObjects, func(a, b corev1.Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(s.EndpointSlices, func(a, b discoveryv1.EndpointSlice) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(s.APIServices, func(a, b APIService) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Networks, func(a, b Network) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(s.Ranges, netip.Prefix.Compare)
	s.Ranges = slices.Compact(s.Ranges)
	slices.SortFunc(s.LoadBalancers, func(a, b LoadBalancer) int {
		return cmp.Or(
			-cmp.Compare(a.Side, b.Side),
			cmp.Compare(a.Host, b.Host),
			cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Origin, b.Origin),
		)
	})
}

func compareHostPorts(a, b HostPort) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.HostIP, b.HostIP))
}

// DiagnosticsMode is NetworkDiagnosticsMode of config.openshift.io/v1.
type DiagnosticsMode string

const (
	DiagnosticsNoOpinion DiagnosticsMode = ""         // the platform's choice: All
	DiagnosticsAll       DiagnosticsMode = "All"      // all diagnostics
	DiagnosticsDisabled  DiagnosticsMode = "Disabled" // none: nothing is placed
)

// DiagnosticsModes lists every DiagnosticsMode.
var DiagnosticsModes = []DiagnosticsMode{DiagnosticsNoOpinion, DiagnosticsAll, DiagnosticsDisabled}
