// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// at is the address of one instance of a role.
type at struct {
	host string
	port int
	node string
	pod  string // namespace/name
	// plain says that the instance does not speak TLS, although its role does.
	plain bool
}

// facet returns the targets of a pair's To.
func (x *expansion) facet(to string) *facet {
	if f, ok := x.facets[to]; ok {
		return f
	}
	role, which, _ := strings.Cut(to, ".")
	f := &facet{families: map[string][]checkup.IPFamily{}}
	x.facets[to] = f
	switch which {
	case facetService:
		f.targets = x.serviceTargets(role)
	case facetHost:
		f.targets = x.hostTargets(role)
	default:
		f.targets = x.instanceTargets(role)
	}
	if len(f.targets) == 0 {
		return f
	}
	// An address of a family that is not probed is not expected. A warning names the
	// instances that have no address of a probed family.
	var kept []*target
	for _, t := range f.targets {
		if t.Peer == nil {
			kept = append(kept, t)
		} else if x.wants(t.Peer.Family) {
			kept = append(kept, t)
			f.families[t.instance] = append(f.families[t.instance], t.Peer.Family)
		}
	}
	if len(kept) == 0 {
		kept = []*target{
			missing(
				role,
				f.targets[0].Label,
				fmt.Sprintf("no address of the plan's IP families %s", familyList(x.check.IPFamilies)),
			),
		}
	}
	f.targets = nil
	unseen := map[string]*target{}
	reasons := map[string][]string{} // by label
	for _, t := range kept {
		if t.Peer != nil {
			f.targets = append(f.targets, t)
			continue
		}
		// One target per label for all that is missing, with each reason once.
		if !slices.Contains(reasons[t.Label], t.Cause.Message) {
			reasons[t.Label] = append(reasons[t.Label], t.Cause.Message)
		}
		if unseen[t.Label] == nil {
			unseen[t.Label] = t
			f.targets = append(f.targets, t)
		}
	}
	for label, t := range unseen {
		t.Cause.Message = strings.Join(reasons[label], "; ")
	}
	for _, t := range f.targets {
		if t.Peer == nil {
			x.warn("%s: %s: its pairs are unmeasured", t.Label, t.Cause.Message)
		}
	}
	return f
}

func familyList(families []checkup.IPFamily) string {
	words := make([]string, len(families))
	for i, f := range families {
		words[i] = string(f)
	}
	return strings.Join(words, ", ")
}

// missing is a target that is expected and was not found.
func missing(role, label, cause string) *target {
	return &target{
		Endpoint: checkup.Endpoint{
			Component: role,
			Label:     label,
			Cause:     &checkup.Cause{Stage: checkup.StageSetup, Message: cause},
		},
	}
}

// target is an instance of a role as a target.
func (x *expansion) target(name, label string, a at) *target {
	r := x.roles[name]
	t := &target{Endpoint: checkup.Endpoint{Node: a.node, Pod: a.pod, Component: name, Label: label}}
	t.instance = fmt.Sprintf("%s %d", cmp.Or(a.pod, a.node, a.host), a.port)
	if x.nodes[a.node] == nil {
		t.Node = ""
	}
	family, isAddress := cluster.FamilyOf(a.host)
	if isAddress && strings.Contains(a.host, "/") || a.host == "" {
		return missing(name, label, fmt.Sprintf("%q is not an address", a.host))
	}
	t.Peer = &checkup.Peer{Host: a.host, Port: a.port, Family: family, Transport: checkup.TCP}
	if r.TLS && !a.plain {
		t.Peer.Transport = checkup.TLS
		t.Peer.ServerName, t.Peer.Path, t.Peer.ClientCertificate = r.ServerName, r.Path, r.ClientCertificate
	}
	return t
}

// lookedAt calls the function lookedAt; what the survey did not read is a problem.
func (x *expansion) lookedAt(what string) (seen bool, unseen string) {
	seen, unseen, err := lookedAt(x.s, what)
	if err != nil {
		x.problem(err)
	}
	return seen, unseen
}

// problem records, once, why no worksheet can be made.
func (x *expansion) problem(err error) {
	if !slices.ContainsFunc(x.problems, func(have error) bool { return have.Error() == err.Error() }) {
		x.problems = append(x.problems, err)
	}
}

// components are the pods of a role that selects pods. The cause says why there
// are none.
func (x *expansion) components(name string) (found []cluster.Component, cause string) {
	where := x.roles[name].Pods
	selector, err := cluster.Selector(where.Selector)
	if err != nil {
		x.problem(fmt.Errorf("roles.%s.pods.selector: %w", name, err))
		return nil, err.Error()
	}
	return x.selected(where.Namespace, selector)
}

// selected are the pods in a namespace that match a selector. The cause says why
// there are none.
func (x *expansion) selected(namespace, selector string) (found []cluster.Component, cause string) {
	what := whatPods(namespace, selector)
	if _, unseen := x.lookedAt(what); unseen != "" {
		return nil, unseen
	}
	found, err := selected(x.s, namespace, selector)
	if err != nil {
		x.problem(err)
		return nil, err.Error()
	}
	if len(found) == 0 {
		cause = "no " + what
	}
	return found, cause
}

// selected are the components of a snapshot in a namespace that match a selector,
// sorted by name.
func selected(s *cluster.Snapshot, namespace, selector string) ([]cluster.Component, error) {
	parsed, err := labels.Parse(selector)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", whatPods(namespace, selector), err)
	}
	var found []cluster.Component
	for _, c := range s.Components {
		if in, _, _ := strings.Cut(c.Name, "/"); in == namespace && parsed.Matches(labels.Set(c.Labels)) {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b cluster.Component) int { return cmp.Compare(a.Name, b.Name) })
	return found, nil
}

// served is a Service of a role.
type served struct {
	*cluster.Service // nil if it does not exist or could not be read
	namespace, name  string
	// ports of it to probe; empty means all.
	ports []int
	// prefixes of the labels of its sources, endpoints and addresses.
	source, endpoint, cluster string
	// first says that the first address has no number in its label.
	first bool
	cause string // why it is nil
}

// servicesOf returns the Services of a role: one, or those of every APIService.
func (x *expansion) servicesOf(name string) []served {
	r := x.roles[name]
	var all []served
	add := func(v served) {
		seen, unseen := x.lookedAt(whatService(v.namespace, v.name))
		switch v.Service = x.s.Service(v.namespace, v.name); {
		case unseen != "":
			v.cause = unseen
		case seen && v.Service == nil:
			v.cause = whatService(v.namespace, v.name) + " not found"
		}
		all = append(all, v)
	}
	switch {
	case r.Service != nil:
		v := served{
			namespace: r.Service.Namespace,
			name:      r.Service.Name,
			source:    name,
			endpoint:  name,
			cluster:   name + "-service-cluster",
		}
		if r.Service.Port != 0 {
			v.ports = []int{r.Service.Port}
		}
		if !r.own {
			v.endpoint, v.cluster = "kubernetes-apiserver-endpoint", "kubernetes-default-service-cluster"
		}
		add(v)
	case name == componentAggregatedAPIServer && !r.own:
		if _, unseen := x.lookedAt(whatAPIServices); unseen != "" {
			return []served{{source: name, endpoint: name, cluster: name + "-service-cluster", cause: unseen}}
		}
		ports := map[[2]string][]int{}
		var keys [][2]string
		for _, a := range x.s.APIServices {
			key := [2]string{a.Namespace, a.Service}
			if _, ok := ports[key]; !ok {
				keys = append(keys, key)
			}
			if !slices.Contains(ports[key], a.Port) {
				ports[key] = append(ports[key], a.Port)
			}
		}
		slices.SortFunc(keys, func(a, b [2]string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
		for _, key := range keys {
			// OpenShift's aggregated API servers each have a Service "api": their labels
			// have the name of its namespace.
			base, first := key[1], false
			if base == "api" {
				base, first = key[0], true
			}
			slices.Sort(ports[key])
			add(
				served{
					namespace: key[0],
					name:      key[1],
					ports:     ports[key],
					source:    base,
					endpoint:  base + "-endpoint",
					cluster:   base + "-service-cluster",
					first:     first,
				},
			)
		}
		if len(keys) == 0 && !x.chosen {
			x.warn("no APIService has a Service: no aggregated API server to probe")
		}
	}
	return all
}

// usedPorts are the ports of a Service to probe. The causes name the ports that
// the plan or an APIService names and the Service does not have.
func (v served) usedPorts() (used []cluster.ServicePort, causes []string) {
	for _, p := range v.Ports {
		if len(v.ports) == 0 || slices.Contains(v.ports, p.Port) {
			used = append(used, p)
		}
	}
	for _, port := range v.ports {
		if !slices.ContainsFunc(used, func(p cluster.ServicePort) bool { return p.Port == port }) {
			causes = append(causes, fmt.Sprintf("service %s/%s has no TCP port %d", v.namespace, v.name, port))
		}
	}
	if len(used)+len(causes) == 0 {
		causes = []string{fmt.Sprintf("service %s/%s has no TCP port", v.namespace, v.name)}
	}
	return used, causes
}

// key identifies a port of a role's Service in one family.
func (v served) key(role, port string, family checkup.IPFamily) string {
	return strings.Join([]string{role, v.namespace + "/" + v.name, port, string(family)}, " ")
}

// instanceTargets are the instances of a role.
func (x *expansion) instanceTargets(name string) []*target {
	r := x.roles[name]
	switch {
	case len(r.Hosts) > 0:
		var targets []*target
		for _, h := range r.Hosts {
			host, port, err := hostPort(h, 0)
			if err != nil || port == 0 {
				x.problem(fmt.Errorf("roles.%s.hosts: %q is not host:port", name, h))
				continue
			}
			targets = append(targets, x.outside(name, name, host, port))
		}
		return targets
	case r.own && r.Pods != nil:
		return x.podTargets(name, name)
	case r.Service != nil:
		targets := x.endpointTargets(name)
		if !r.own {
			targets = x.withUnlisted(name, targets)
		}
		return targets
	}
	switch name {
	case componentAggregatedAPIServer:
		targets := x.endpointTargets(name)
		if len(targets) == 0 && x.chosen && len(x.s.APIServices) == 0 {
			return []*target{missing(name, name, "no APIService has a Service")}
		}
		return targets
	case componentEtcd:
		return x.etcdTargets(name)
	case componentNode:
		return x.nodeTargets(name)
	case componentLoadBalancerIn:
		return x.balancerTargets(name, cluster.Internal, "load-balancer-api-internal")
	case componentLoadBalancerOut:
		return x.balancerTargets(name, cluster.External, "load-balancer-api-external")
	}
	x.problem(fmt.Errorf("unknown role %q", name))
	return nil
}

// outside is an instance that is known only by its address. It is an instance of
// its own even if others run on its node.
func (x *expansion) outside(name, label, host string, port int) *target {
	t := x.target(name, label+"-"+dashed(host), at{host: host, port: port, node: x.nodeOf(host)})
	t.instance = fmt.Sprintf("%s %d", host, port)
	return t
}

// podTargets are the pods of a role, at each of their addresses.
func (x *expansion) podTargets(name, label string) []*target {
	found, cause := x.components(name)
	if len(found) == 0 {
		return []*target{missing(name, label, cause)}
	}
	var targets []*target
	for _, c := range found {
		base := label + "-" + cmp.Or(c.Node, podName(c.Name))
		instances := x.listening(name, c)
		for _, a := range instances {
			targets = append(targets, x.target(name, base, a))
		}
		if len(instances) == 0 {
			t := missing(name, base, "the pod has no address yet")
			t.Node, t.Pod = c.Node, c.Name
			targets = append(targets, t)
		}
	}
	return targets
}

// listening returns the addresses at which a pod of a role is probed: those that it
// advertises, or its own addresses with the port of the role. A pod of a preset's
// role is probed at one address, of the family that it uses itself.
func (x *expansion) listening(name string, c cluster.Component) []at {
	r := x.roles[name]
	var all []at
	add := func(host string, port int, plain bool) {
		all = append(all, at{host: host, port: port, node: c.Node, pod: c.Name, plain: plain})
	}
	if !r.own {
		for _, u := range strings.Split(c.Annotations[advertisedEtcd], ",") {
			if host, port, err := urlHostPort(strings.TrimSpace(u), etcdPort); err == nil && name == componentEtcd {
				add(host, port, strings.HasPrefix(strings.TrimSpace(u), "http:"))
			}
		}
		if host, port, err := hostPort(
			c.Annotations[advertisedAPIServer],
			apiServerPort,
		); err == nil &&
			name == componentKubeAPIServer {
			add(host, port, false)
		}
		ips := c.IPs
		if n := x.nodes[c.Node]; len(ips) == 0 && c.HostNetwork && n != nil { // it has not started
			ips = n.InternalIPs
		}
		if len(all) == 0 && len(ips) > 0 {
			add(ips[0], r.Pods.Port, false)
		}
		return all
	}
	for _, ip := range c.IPs {
		add(ip, r.Pods.Port, false)
	}
	return all
}

// endpointTargets are the endpoints of the Services of a role, those that are not
// ready, too.
func (x *expansion) endpointTargets(name string) []*target {
	var targets []*target
	for _, v := range x.servicesOf(name) {
		if v.Service == nil {
			targets = append(targets, missing(name, v.endpoint, v.cause))
			continue
		}
		if v.ExternalName != "" {
			cause := fmt.Sprintf("service %s/%s refers to %s and has no endpoints", v.namespace, v.name, v.ExternalName)
			if x.chosen {
				targets = append(targets, missing(name, v.endpoint, cause))
			} else {
				x.warn("%s: %s: only that name is probed", name, cause)
			}
			continue
		}
		used, causes := v.usedPorts()
		var notReady []string
		byAddress := map[at]*target{}
		endpoints := slices.SortedFunc(slices.Values(v.Endpoints), func(a, b cluster.ServiceEndpoint) int {
			return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Pod, b.Pod))
		})
		for _, p := range used {
			some := false
			for _, e := range endpoints {
				if e.PortName != p.Name {
					continue
				}
				some = true
				a := at{host: e.Address, port: e.Port, node: cmp.Or(e.Node, x.nodeOf(e.Address)), pod: e.Pod}
				t := byAddress[a]
				if t == nil {
					t = x.target(name, v.endpoint+"-"+cmp.Or(a.node, dashed(a.host)), a)
					byAddress[a] = t
					targets = append(targets, t)
					if !e.Ready {
						notReady = append(notReady, t.Label)
					}
				}
				if key := v.key(name, p.Name, e.Family); !slices.Contains(t.behind, key) {
					t.behind = append(t.behind, key)
				}
			}
			if !some {
				targets = append(
					targets,
					missing(
						name,
						v.endpoint,
						fmt.Sprintf("service %s/%s has no endpoints for its port %d", v.namespace, v.name, p.Port),
					),
				)
			}
		}
		for _, cause := range causes {
			targets = append(targets, missing(name, v.endpoint, cause))
		}
		if len(notReady) > 0 {
			slices.Sort(notReady)
			x.warn(
				"service %s/%s: %s not ready, and will probably fail: %s",
				v.namespace,
				v.name,
				checkup.CountAre(len(notReady), "endpoint"),
				checkup.Some(notReady),
			)
		}
	}
	return targets
}

// withUnlisted adds the API servers that have a pod but are not among the endpoints
// of their Service: an API server that goes down removes its endpoint.
func (x *expansion) withUnlisted(name string, targets []*target) []*target {
	r := x.roles[name]
	if r.Pods == nil {
		return targets
	}
	found, cause := x.components(name)
	if len(found) == 0 {
		x.warn("%s: %s: only the endpoints of its Service are known", name, cause)
		return targets
	}
	for _, c := range found {
		for _, a := range x.listening(name, c) {
			i := slices.IndexFunc(
				targets,
				func(t *target) bool { return t.Peer != nil && t.Peer.Host == a.host && t.Peer.Port == a.port },
			)
			if i < 0 {
				targets = append(targets, x.target(name, "kubernetes-apiserver-endpoint-"+cmp.Or(a.node, dashed(a.host)), a))
			} else if targets[i].Pod == "" {
				targets[i].Pod = a.pod
			}
		}
	}
	return targets
}

// serviceTargets are the addresses of the Services of a role.
func (x *expansion) serviceTargets(name string) []*target {
	var targets []*target
	services := x.servicesOf(name)
	for _, v := range services {
		if v.Service == nil {
			targets = append(targets, missing(name, v.cluster, v.cause))
			continue
		}
		used, causes := v.usedPorts()
		if v.ExternalName != "" { // its own ports have no effect: use those that are configured
			ports := slices.Clone(v.ports)
			for _, p := range v.Ports {
				if len(v.ports) == 0 {
					ports = append(ports, p.Port)
				}
			}
			for _, port := range ports {
				targets = append(targets, x.target(name, v.cluster, at{host: v.ExternalName, port: port}))
			}
			if len(ports) == 0 {
				targets = append(
					targets,
					missing(name, v.cluster, fmt.Sprintf("service %s/%s has no port: set port", v.namespace, v.name)),
				)
			}
			continue
		}
		for _, cause := range causes {
			targets = append(targets, missing(name, v.cluster, cause))
		}
		if len(v.ClusterIPs) == 0 {
			targets = append(
				targets,
				missing(name, v.cluster, fmt.Sprintf("service %s/%s has no cluster IP", v.namespace, v.name)),
			)
			continue
		}
		for i, ip := range v.ClusterIPs {
			label := v.cluster + "-" + strconv.Itoa(i)
			if v.first && i == 0 {
				label = v.cluster
			}
			for _, p := range used {
				t := x.target(name, label, at{host: ip, port: p.Port})
				t.instance = v.key(name, p.Name, "")
				if t.Peer != nil {
					t.fronts = v.key(name, p.Name, t.Peer.Family)
				}
				targets = append(targets, t)
			}
		}
	}
	if len(services) == 0 && x.chosen {
		return []*target{missing(name, name+"-service-cluster", "it has no Service")}
	}
	return targets
}

// hostTargets are the nodes on whose host network instances of a role run, at each
// of the nodes' addresses.
func (x *expansion) hostTargets(name string) []*target {
	r := x.roles[name]
	label := name + "-host"
	if name == componentKubeAPIServer && !r.own {
		label = "kubernetes-apiserver-host"
	}
	if name == componentNode && !r.own {
		return x.nodeTargets(name)
	}
	var all []at
	cause := ""
	if r.Pods != nil {
		var found []cluster.Component
		found, cause = x.components(name)
		for _, c := range found {
			switch instances := x.listening(name, c); {
			case !c.HostNetwork:
				cause = "its pods are not on the host network: unreachable by node address"
			case x.nodes[c.Node] == nil || len(instances) == 0:
				cause = "its pods are not scheduled"
			default:
				for _, a := range instances {
					all = append(all, at{port: a.port, node: c.Node, pod: c.Name, plain: a.plain})
				}
			}
		}
	}
	for _, t := range x.facetOf(name).targets {
		if t.Peer == nil {
			cause = cmp.Or(cause, t.Cause.Message)
			continue
		}
		if node := x.nodeOf(t.Peer.Host); node != "" { // in its node's network
			all = append(
				all,
				at{port: t.Peer.Port, node: node, pod: t.Pod, plain: x.roles[name].TLS && t.Peer.Transport == checkup.TCP},
			)
		} else {
			cause = cmp.Or(cause, "none of its addresses is a node's")
		}
	}
	slices.SortFunc(all, func(a, b at) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.port, b.port), cmp.Compare(a.pod, b.pod))
	})
	var targets []*target
	known := map[string]*target{}
	for _, a := range all {
		base := label + "-" + a.node
		addresses := x.nodes[a.node].InternalIPs
		if len(addresses) == 0 && known[base] == nil {
			known[base] = missing(name, base, "its node has no internal address")
			known[base].Node, known[base].Pod = a.node, a.pod
			targets = append(targets, known[base])
		}
		for _, ip := range addresses {
			key := net.JoinHostPort(ip, strconv.Itoa(a.port))
			if have := known[key]; have != nil {
				have.Pod = cmp.Or(have.Pod, a.pod)
				continue
			}
			a.host = ip
			known[key] = x.target(name, base, a)
			targets = append(targets, known[key])
		}
	}
	if len(targets) == 0 {
		return []*target{missing(name, label, cmp.Or(cause, "none of its instances runs on a node"))}
	}
	return targets
}

// facetOf returns the instances of a role, without their warnings.
func (x *expansion) facetOf(name string) *facet {
	if f, ok := x.facets[name]; ok {
		return f
	}
	warnings := len(x.warnings)
	f := &facet{targets: x.instanceTargets(name)}
	x.warnings = x.warnings[:warnings] // of a facet that no pair names
	return f
}

// etcdTargets are the members of etcd: static pods, and those outside the cluster.
func (x *expansion) etcdTargets(name string) []*target {
	const label = "etcd-server"
	r := x.roles[name]
	var targets []*target
	if x.preset == PresetKubeadm {
		_, unseen := x.lookedAt(whatKubeadmConfig)
		for _, member := range x.s.EtcdEndpoints {
			if host, port, err := hostPort(member, etcdPort); err == nil {
				targets = append(targets, x.outside(name, label, host, port))
			}
		}
		if unseen != "" && len(targets) == 0 {
			x.warn("etcd: cannot read the members outside the cluster: %s", unseen)
		}
	}
	switch {
	case r.Pods != nil:
		found := x.podTargets(name, label)
		if len(targets) > 0 && len(found) == 1 && found[0].Peer == nil && found[0].Pod == "" {
			return targets // all members run outside the cluster
		}
		return append(targets, found...)
	default:
		return []*target{missing(name, label, "etcd is not visible with the preset generic: set roles.etcd")}
	}
}

// nodeTargets are the kubelets of as many nodes as the plan allows.
func (x *expansion) nodeTargets(name string) []*target {
	var targets []*target
	for _, n := range x.choose(x.s.Nodes, "targets") {
		label := "node-" + n.Name
		if len(n.InternalIPs) == 0 {
			t := missing(name, label, "the node has no internal address")
			t.Node = n.Name
			targets = append(targets, t)
		}
		for _, ip := range n.InternalIPs {
			targets = append(
				targets,
				x.target(name, label, at{host: ip, port: cmp.Or(n.KubeletPort, kubeletPort), node: n.Name}),
			)
		}
	}
	if len(targets) == 0 {
		return []*target{missing(name, name, "the cluster has no nodes")}
	}
	return targets
}

// choose selects at most maxNodes nodes by a hash of their names, so the selection
// changes only when nodes do.
func (x *expansion) choose(nodes []cluster.Node, as string) []cluster.Node {
	byName := func(a, b cluster.Node) int { return cmp.Compare(a.Name, b.Name) }
	if len(nodes) <= x.check.MaxNodes {
		return slices.SortedFunc(slices.Values(nodes), byName)
	}
	type ranked struct {
		rank uint64
		node cluster.Node
	}
	all := make([]ranked, len(nodes))
	var seed [8]byte
	binary.BigEndian.PutUint64(seed[:], x.seed)
	for i, n := range nodes {
		sum := sha256.Sum256(append(seed[:], n.Name...))
		all[i] = ranked{binary.BigEndian.Uint64(sum[:]), n}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.node.Name, b.node.Name))
	})
	chosen := make([]cluster.Node, x.check.MaxNodes)
	for i := range chosen {
		chosen[i] = all[i].node
	}
	slices.SortFunc(chosen, byName)
	x.warn(
		"node: %d of %s are %s, chosen by a hash of their names, because of maxNodes",
		len(chosen),
		checkup.Count(len(nodes), "node"),
		as,
	)
	return chosen
}

// balancerTargets are the load balancers of a side. The address of an API server
// is not one: kubeadm names an API server if the cluster has no load balancer.
func (x *expansion) balancerTargets(name string, side cluster.Side, label string) []*target {
	var origins []string
	if x.preset != PresetOpenShift {
		origins = append(origins, whatKubeadmConfig, whatClusterInfo)
	}
	if x.preset != PresetKubeadm {
		origins = append(origins, whatInfrastructure)
	}
	var causes []string
	for _, origin := range origins {
		if _, unseen := x.lookedAt(origin); unseen != "" {
			causes = append(causes, unseen)
		}
	}
	x.lookedAt(whatService("default", "kubernetes"))
	servers := map[string]bool{}
	if s := x.s.Service("default", "kubernetes"); s != nil {
		for _, e := range s.Endpoints {
			servers[net.JoinHostPort(e.Address, strconv.Itoa(e.Port))] = true
		}
	}
	var targets []*target
	for _, b := range x.s.LoadBalancers {
		key := net.JoinHostPort(b.Host, strconv.Itoa(b.Port))
		if b.Side != side || servers[key] {
			continue
		}
		t := x.balancers[key]
		if t == nil {
			t = x.target(name, label, at{host: b.Host, port: b.Port})
			x.balancers[key] = t
		}
		if !slices.Contains(targets, t) {
			targets = append(targets, t)
		}
	}
	switch {
	case len(targets) > 0:
		return targets
	case len(causes) > 0:
		return []*target{missing(name, label, strings.Join(causes, "; "))}
	case x.chosen:
		return []*target{missing(name, label, "no object names a load balancer: all addresses are API servers")}
	}
	x.warn("no load balancer found besides the API servers: none is probed")
	return nil
}

// sourcesOf are the sources of a role: an agent for each of its pods.
func (x *expansion) sourcesOf(name string) []*source {
	if s, ok := x.sources[name]; ok {
		return s
	}
	r := x.roles[name]
	var sources []*source
	add := func(found []cluster.Component, label, cause string) {
		for _, c := range found {
			s := x.pods[c.Name]
			if s == nil {
				s = x.standIn(name, label, c)
				x.pods[c.Name] = s
			}
			if s.Node == "" {
				x.warn("%s: pod %s is not scheduled: its pairs are unmeasured", name, c.Name)
			}
			sources = append(sources, s)
		}
		if len(found) == 0 {
			sources = append(sources, x.noSource(name, label, cause))
		}
	}
	switch {
	case r.Pods != nil:
		found, cause := x.components(name)
		add(found, name, cause)
	case r.Service != nil && r.own, name == componentAggregatedAPIServer && !r.own:
		services := x.servicesOf(name)
		for _, v := range services {
			switch {
			case v.Service == nil:
				add(nil, v.source, v.cause)
			case v.Selector == "" && x.chosen && len(services) == 1:
				add(nil, v.source, fmt.Sprintf("service %s/%s has no selector: its pods are unknown", v.namespace, v.name))
			case v.Selector == "":
				x.warn(
					"%s: service %s/%s has no selector: its pods are unknown: it is a target but not a source",
					name,
					v.namespace,
					v.name,
				)
			default:
				found, cause := x.selected(v.namespace, v.Selector)
				add(found, v.source, cause)
			}
		}
		if len(services) == 0 && x.chosen {
			add(nil, name, "no APIService has a Service")
		}
	case name == componentNode && !r.own:
		sources = x.nodeSources(name)
	default:
		add(nil, name, fmt.Sprintf("it is not visible with the preset %s", x.preset))
	}
	x.sources[name] = sources
	return sources
}

// standIn is an agent on the node and in the network of a component's pod. Its label
// is the name of the pod if that is stable (a static pod, a pod of a StatefulSet),
// else the component and its node: a rollout must not change the pairs.
func (x *expansion) standIn(name, component string, c cluster.Component) *source {
	s := &source{
		Endpoint: checkup.Endpoint{
			Node:        c.Node,
			Pod:         c.Name,
			Component:   name,
			Label:       podName(c.Name),
			HostNetwork: c.HostNetwork,
			Tolerations: tolerations(c),
		},
		families: familiesOf(c.IPs),
	}
	if x.nodes[c.Node] == nil {
		s.Node, s.Cause = "", &checkup.Cause{Stage: checkup.StageSetup, Message: "its pod is not scheduled"}
	}
	if c.Annotations[mirror] == "" && c.Labels[appsv1.StatefulSetPodNameLabel] == "" {
		s.fleeting, s.Label = true, component
		if s.Node != "" {
			s.Label += "-" + s.Node
		}
	}
	return s
}

// noSource is a source that is expected and was not found.
func (x *expansion) noSource(name, label, cause string) *source {
	x.warn("%s: %s: no source: its pairs are unmeasured", name, cause)
	return &source{
		Endpoint: checkup.Endpoint{
			Component: name,
			Label:     label,
			Cause:     &checkup.Cause{Stage: checkup.StageSetup, Message: cause},
		},
	}
}

// tolerations of an agent that stands in for a pod: the pod's, and those for a node
// that broke after the pod was scheduled. A static pod runs whatever the taints of
// its node.
func tolerations(c cluster.Component) []checkup.Toleration {
	if c.Annotations[mirror] != "" {
		return []checkup.Toleration{{Operator: string(corev1.TolerationOpExists)}}
	}
	return scheduling.FixtureTolerations(c.Tolerations)
}

// nodeSources are agents in the pod network, on at most maxNodes of the nodes that match the plan's placement.
func (x *expansion) nodeSources(name string) []*source {
	tolerated := scheduling.FixtureTolerations(x.check.Placement.Tolerations)
	admitted, err := scheduling.Admit(x.s.Nodes, x.check.Placement, tolerated, field.NewPath("placement"))
	if err != nil {
		x.problems = append(x.problems, err)
		return nil
	}
	var sources []*source
	for _, n := range x.choose(admitted.Nodes, "sources") {
		sources = append(sources, &source{
			Endpoint: checkup.Endpoint{Node: n.Name, Component: name, Label: "node-" + n.Name, Tolerations: tolerated},
			families: familiesOf(n.PodCIDRs),
		})
	}
	switch {
	case len(x.s.Nodes) == 0:
		return []*source{x.noSource(name, name, "the cluster has no nodes")}
	case len(sources) == 0:
		nodes := checkup.Count(len(x.s.Nodes), "node")
		return []*source{x.noSource(name, name, fmt.Sprintf("none of %s matches the placement (%v)", nodes, admitted))}
	case !admitted.Complete():
		x.warn(
			"%s: %d of %s can be sources; left out: %v",
			name,
			len(admitted.Nodes),
			checkup.Count(len(x.s.Nodes), "node"),
			admitted,
		)
	}
	return sources
}

// nodeOf returns the name of the node of an internal address, or "".
func (x *expansion) nodeOf(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	return x.addresses[a.Unmap()]
}

// podName is the name without the namespace.
func podName(name string) string {
	_, pod, _ := strings.Cut(name, "/")
	return pod
}

// dashed makes an address or a DNS name part of a label.
func dashed(host string) string { return strings.ReplaceAll(host, ":", "-") }
