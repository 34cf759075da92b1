// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// planOf is a plan with one controlPlane check, "api", as a loaded plan is: with
// the schema's defaults. Each change is made to the check.
func planOf(changes ...func(*Spec)) *checkup.Plan {
	second := checkup.Duration(time.Second)
	c := &Spec{
		Preset: PresetAuto, MaxNodes: 100, Interval: second,
		Placement:          checkup.Placement{NodeSelector: map[string]string{"kubernetes.io/os": "linux"}},
		Probe:              ConnectionProbe{Count: 5, Deadlines: checkup.StageDeadlines{Resolve: 5 * second, Connect: 5 * second, Handshake: 5 * second, Response: 5 * second}},
		Expect:             ConnectionExpect{Loss: checkup.LossLimit{Max: new(checkup.Percent)}},
		ConnectivityChecks: checkup.ConnectivityChecks{Write: true, Retention: 7200 * second, StaleAfter: 600 * second},
		Limits:             checkup.Limits{PacketsPerSecond: 200, Concurrency: 16, StartJitter: second / 2},
		Timeouts:           checkup.Timeouts{Setup: 120 * second, Probe: 300 * second},
	}
	for _, change := range changes {
		change(c)
	}
	return &checkup.Plan{Name: "plan", Checks: map[string]checkup.Check{"api": {Spec: c}}}
}

func preset(p Preset) func(*Spec) {
	return func(c *Spec) { c.Preset = p }
}

// placed gives the sources of the role node a label without a value, and a toleration of the taint of that name.
func placed(label, taint string) func(*Spec) {
	return func(c *Spec) {
		c.Placement.NodeSelector[label] = ""
		c.Placement.Tolerations = append(c.Placement.Tolerations, checkup.Toleration{Key: taint, Operator: "Exists"})
	}
}

// pairs are written "from > to".
func pairs(pairs ...string) func(*Spec) {
	return func(c *Spec) {
		for _, p := range pairs {
			from, to, _ := strings.Cut(p, " > ")
			c.Pairs = append(c.Pairs, ComponentPair{From: from, To: to})
		}
	}
}

func withRole(name string, r ComponentRole) func(*Spec) {
	return func(c *Spec) {
		if c.Roles == nil {
			c.Roles = map[string]ComponentRole{}
		}
		c.Roles[name] = r
	}
}

// print writes a worksheet as people read it: each source with its targets.
func print(w *checkup.Worksheet) string {
	var b strings.Builder
	for i, s := range w.Sources {
		fmt.Fprintf(&b, "%s (%s on %q", s.Label, s.Component, s.Node)
		if s.HostNetwork {
			fmt.Fprint(&b, ", host network")
		}
		fmt.Fprintln(&b, ")")
		for _, t := range w.Assignments[i] {
			target := w.Targets[t]
			if target.Peer == nil {
				fmt.Fprintf(&b, "  %s: none\n", target.Label)
				continue
			}
			fmt.Fprintf(&b, "  %s: %s %s:%d", target.Label, target.Peer.Transport, target.Peer.Host, target.Peer.Port)
			if len(target.Peer.Backends) > 0 {
				var backends []string
				for _, b := range target.Peer.Backends {
					backends = append(backends, w.Targets[b].Label)
				}
				slices.Sort(backends)
				fmt.Fprintf(&b, " -> %s", strings.Join(backends, " "))
			}
			fmt.Fprintln(&b)
		}
	}
	return b.String()
}

func readyNode(name string, ips ...string) cluster.Node {
	return cluster.Node{
		Name: name, Ready: corev1.ConditionTrue, InternalIPs: ips,
		Labels: map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": name},
	}
}

func controlPlaneNode(name string, ips ...string) cluster.Node {
	n := readyNode(name, ips...)
	n.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	return n
}

// staticPod is a component as kubeadm makes it.
func staticPod(component, node, ip string) cluster.Component {
	c := cluster.Component{
		Pod:         cluster.Pod{Name: "kube-system/" + component + "-" + node, Node: node, IPs: []string{ip}, Ready: true, HostNetwork: true},
		Labels:      map[string]string{"component": component, "tier": "control-plane"},
		Annotations: map[string]string{mirror: "0123456789abcdef"},
		Tolerations: []checkup.Toleration{{Operator: "Exists", Effect: "NoExecute"}},
	}
	host := ip
	if strings.Contains(ip, ":") {
		host = "[" + ip + "]"
	}
	switch component {
	case "etcd":
		c.Annotations[advertisedEtcd] = "https://" + host + ":2379"
	case "kube-apiserver":
		c.Annotations[advertisedAPIServer] = host + ":6443"
	}
	return c
}

// podOf is an ordinary pod.
func podOf(name, node string, labels map[string]string, ips ...string) cluster.Component {
	return cluster.Component{
		Pod: cluster.Pod{Name: name, Node: node, IPs: ips, Ready: true}, Labels: labels,
		Tolerations: []checkup.Toleration{
			{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(300))},
			{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(300))},
		},
	}
}

// endpoint is "address port node pod".
func endpoint(address string, port int, portName, node, pod string) cluster.ServiceEndpoint {
	family, _ := cluster.FamilyOf(address)
	return cluster.ServiceEndpoint{Address: address, Family: family, Port: port, PortName: portName, Node: node, Pod: pod, Ready: true}
}

const (
	kubeadmAPI  = "pods with the labels component=kube-apiserver,tier=control-plane in namespace kube-system"
	kubeadmEtcd = "pods with the labels component=etcd,tier=control-plane in namespace kube-system"
)

// kubeadm is a cluster of kubeadm's with as many control planes as are named,
// each with its address, and one worker. metrics-server is its aggregated API
// server, on the worker.
func kubeadm(controlPlanes ...string) *cluster.Snapshot {
	s := &cluster.Snapshot{
		APIVersion: checkup.APIVersion, Kind: cluster.SnapshotKind, Platform: cluster.Kubeadm,
		Nodes: []cluster.Node{readyNode("worker", "192.0.2.20")},
		Seen:  []string{whatPlatform, kubeadmAPI, kubeadmEtcd, whatAPIServices, whatKubeadmConfig, whatClusterInfo, whatService("default", "kubernetes")},
	}
	kubernetes := cluster.Service{Namespace: "default", Name: "kubernetes", ClusterIPs: []string{"10.96.0.1"}, Ports: []cluster.ServicePort{{Name: "https", Port: 443}}}
	for _, controlPlane := range controlPlanes {
		name, ip, _ := strings.Cut(controlPlane, " ")
		s.Nodes = append(s.Nodes, controlPlaneNode(name, ip))
		s.Components = append(s.Components, staticPod("kube-apiserver", name, ip), staticPod("etcd", name, ip))
		kubernetes.Endpoints = append(kubernetes.Endpoints, endpoint(ip, 6443, "https", "", ""))
	}
	s.Services = []cluster.Service{kubernetes}
	if len(controlPlanes) > 1 {
		s.LoadBalancers = []cluster.LoadBalancer{
			{Side: cluster.Internal, Host: "api.example.com", Port: 6443, Origin: whatKubeadmConfig},
			{Side: cluster.External, Host: "api.example.com", Port: 6443, Origin: whatClusterInfo},
		}
	} else {
		_, ip, _ := strings.Cut(controlPlanes[0], " ")
		s.LoadBalancers = []cluster.LoadBalancer{{Side: cluster.External, Host: ip, Port: 6443, Origin: whatClusterInfo}}
	}
	return metricsServer(s, "worker")
}

// metricsServer adds it, one replica on each node.
func metricsServer(s *cluster.Snapshot, nodes ...string) *cluster.Snapshot {
	s.APIServices = append(s.APIServices, cluster.APIService{Name: "v1beta1.metrics.k8s.io", Namespace: "kube-system", Service: "metrics-server", Port: 443, Available: corev1.ConditionTrue})
	service := cluster.Service{
		Namespace: "kube-system", Name: "metrics-server", ClusterIPs: []string{"10.96.0.50"}, Selector: "k8s-app=metrics-server",
		Ports: []cluster.ServicePort{{Name: "https", Port: 443}},
	}
	for i, node := range nodes {
		pod, ip := fmt.Sprintf("kube-system/metrics-server-%d", i), fmt.Sprintf("10.244.1.%d", i+5)
		s.Components = append(s.Components, podOf(pod, node, map[string]string{"k8s-app": "metrics-server"}, ip))
		service.Endpoints = append(service.Endpoints, endpoint(ip, 10250, "https", node, pod))
	}
	s.Services = append(s.Services, service)
	s.Seen = append(s.Seen, whatService("kube-system", "metrics-server"), whatPods("kube-system", "k8s-app=metrics-server"))
	return s
}

// openshift is a cluster of OpenShift's with three control planes.
func openshift() *cluster.Snapshot {
	const (
		api  = "pods with the labels app=openshift-kube-apiserver in namespace openshift-kube-apiserver"
		etcd = "pods with the labels app=etcd in namespace openshift-etcd"
	)
	s := &cluster.Snapshot{
		APIVersion: checkup.APIVersion, Kind: cluster.SnapshotKind, Platform: cluster.OpenShift,
		Seen: []string{
			whatPlatform, api, etcd, whatAPIServices, whatInfrastructure, whatService("default", "kubernetes"),
			whatService("openshift-apiserver", "api"), whatPods("openshift-apiserver", "apiserver=true"),
			whatService("openshift-oauth-apiserver", "api"), whatPods("openshift-oauth-apiserver", "apiserver=true"),
		},
		LoadBalancers: []cluster.LoadBalancer{
			{Side: cluster.Internal, Host: "api-int.ocp.example.com", Port: 6443, Origin: whatInfrastructure},
			{Side: cluster.External, Host: "api.ocp.example.com", Port: 6443, Origin: whatInfrastructure},
		},
		APIServices: []cluster.APIService{
			{Name: "v1.apps.openshift.io", Namespace: "openshift-apiserver", Service: "api", Port: 443, Available: corev1.ConditionTrue},
			{Name: "v1.build.openshift.io", Namespace: "openshift-apiserver", Service: "api", Port: 443, Available: corev1.ConditionTrue},
			{Name: "v1.user.openshift.io", Namespace: "openshift-oauth-apiserver", Service: "api", Port: 443, Available: corev1.ConditionTrue},
		},
	}
	https := []cluster.ServicePort{{Name: "https", Port: 443}}
	kubernetes := cluster.Service{Namespace: "default", Name: "kubernetes", ClusterIPs: []string{"172.30.0.1"}, Ports: https}
	services := []cluster.Service{
		{Namespace: "openshift-apiserver", Name: "api", ClusterIPs: []string{"172.30.10.1"}, Ports: append([]cluster.ServicePort{{Name: "check-endpoints", Port: 17698}}, https...), Selector: "apiserver=true"},
		{Namespace: "openshift-oauth-apiserver", Name: "api", ClusterIPs: []string{"172.30.10.2"}, Ports: https, Selector: "apiserver=true"},
	}
	for i := range 3 {
		node, ip := fmt.Sprintf("master-%d.ocp.example.com", i), fmt.Sprintf("192.0.2.1%d", i)
		s.Nodes = append(s.Nodes, controlPlaneNode(node, ip))
		for namespace, app := range map[string]string{"openshift-kube-apiserver": "openshift-kube-apiserver", "openshift-etcd": "etcd"} {
			pod := podOf(namespace+"/"+strings.TrimPrefix(app, "openshift-")+"-"+node, node, map[string]string{"app": app}, ip)
			pod.HostNetwork, pod.Annotations = true, map[string]string{mirror: "0123456789abcdef"}
			s.Components = append(s.Components, pod)
		}
		kubernetes.Endpoints = append(kubernetes.Endpoints, endpoint(ip, 6443, "https", "", ""))
		for j, namespace := range []string{"openshift-apiserver", "openshift-oauth-apiserver"} {
			pod, ip := fmt.Sprintf("%s/apiserver-%d%d", namespace, i, j), fmt.Sprintf("10.128.%d.%d", i, j+5)
			s.Components = append(s.Components, podOf(pod, node, map[string]string{"apiserver": "true"}, ip))
			services[j].Endpoints = append(services[j].Endpoints, endpoint(ip, 8443, "https", node, pod))
		}
		services[0].Endpoints = append(services[0].Endpoints, endpoint(fmt.Sprintf("10.128.%d.5", i), 17698, "check-endpoints", node, fmt.Sprintf("openshift-apiserver/apiserver-%d0", i)))
	}
	s.Nodes = append(s.Nodes, readyNode("worker-0.ocp.example.com", "192.0.2.20"))
	s.Services = append(services, kubernetes)
	return s
}

// managed is a cluster whose control plane is not visible: two addresses, and
// nodes.
func managed(nodes int) *cluster.Snapshot {
	s := &cluster.Snapshot{
		APIVersion: checkup.APIVersion, Kind: cluster.SnapshotKind,
		Seen: []string{whatPlatform, whatAPIServices, whatKubeadmConfig, whatClusterInfo, whatInfrastructure, whatService("default", "kubernetes")},
		Services: []cluster.Service{{
			Namespace: "default", Name: "kubernetes", ClusterIPs: []string{"10.100.0.1"}, Ports: []cluster.ServicePort{{Name: "https", Port: 443}},
			Endpoints: []cluster.ServiceEndpoint{endpoint("192.0.2.130", 443, "https", "", ""), endpoint("192.0.2.230", 443, "https", "", "")},
		}},
	}
	for i := range nodes {
		name := fmt.Sprintf("ip-10-0-%d-%d.eu-west-1.compute.internal", i/250, i%250+1)
		n := readyNode(name, fmt.Sprintf("10.%d.%d.%d", i/60_000, i/250%250, i%250+1))
		n.Labels[corev1.LabelTopologyZone] = []string{"eu-west-1a", "eu-west-1b"}[i%2]
		s.Nodes = append(s.Nodes, n)
	}
	return s
}
