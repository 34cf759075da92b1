// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Names that are made to be mistaken for one another.
var (
	nodeNames    = []string{"a", "b", "a-to-b", "to-b", "a-ipv6", "a.example.com", "a.example.org", "192.0.2.11", "192-0-2-11", "a-10250", "a-443", "fd00--1"}
	podNames     = []string{"a", "a-to", "a-to-b", "one-a", "two-a", "node-a", "kube-apiserver", "metrics-server"}
	serviceNames = []string{"a", "api", "a-endpoint", "a-service-cluster", "to-a", "etcd-server", "kubernetes-apiserver"}
	roleNames    = []string{"a", "to-a", "node", "etcd-server", "a-endpoint", "kubernetes-apiserver-endpoint"}
	namespaces   = []string{"one", "two"}
	ports        = []int{443, 2379, 10250}
)

// randomCluster is a cluster, and a plan with roles and pairs for it, in which
// whatever can be alike often is.
func randomCluster(r *rand.Rand) (*checkup.Plan, *cluster.Snapshot) {
	pick := func(names []string) string { return names[r.IntN(len(names))] }
	addresses := func(v4, v6 string) []string {
		n := r.IntN(3) + 1
		var all []string
		if n != 2 {
			all = append(all, fmt.Sprintf("%s%d", v4, r.IntN(250)+1))
		}
		if n != 1 {
			all = append(all, fmt.Sprintf("%s%x", v6, r.IntN(250)+1))
		}
		return all
	}
	s := &cluster.Snapshot{APIVersion: checkup.APIVersion, Kind: cluster.SnapshotKind, Platform: []cluster.Platform{"", cluster.Kubeadm, cluster.OpenShift}[r.IntN(3)]}
	s.Seen = []string{whatPlatform, kubeadmAPI, kubeadmEtcd, whatAPIServices, whatKubeadmConfig, whatClusterInfo, whatInfrastructure, whatService("default", "kubernetes"),
		"pods with the labels app=openshift-kube-apiserver in namespace openshift-kube-apiserver", "pods with the labels app=etcd in namespace openshift-etcd"}
	for _, i := range r.Perm(len(nodeNames))[:1+r.IntN(5)] {
		n := readyNode(nodeNames[i], addresses("192.0.2.", "fd00::")...)
		if r.IntN(4) == 0 {
			n.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
		}
		if r.IntN(6) == 0 {
			n.InternalIPs = nil
		}
		s.Nodes = append(s.Nodes, n)
	}
	node := func() cluster.Node { return s.Nodes[r.IntN(len(s.Nodes))] }
	known := map[string]bool{}
	pod := func(namespace, name string, labels map[string]string) *cluster.Component {
		if known[namespace+"/"+name] {
			return nil
		}
		known[namespace+"/"+name] = true
		n := node()
		c := podOf(namespace+"/"+name, n.Name, labels, addresses("10.244.0.", "fd02::")...)
		switch r.IntN(6) {
		case 0, 1:
			c.HostNetwork, c.IPs = true, n.InternalIPs
		case 2:
			c.Node, c.IPs = "", nil
		}
		s.Components = append(s.Components, c)
		return &s.Components[len(s.Components)-1]
	}
	addService := func(namespace, name string, seen bool) {
		if slices.Contains(s.Seen, whatService(namespace, name)) && (namespace != "default" || s.Service(namespace, name) != nil) {
			return
		}
		s.AddSeen(whatService(namespace, name))
		s.AddSeen(whatPods(namespace, "svc="+name))
		if !seen {
			return
		}
		v := cluster.Service{Namespace: namespace, Name: name, ClusterIPs: addresses("10.96.0.", "fd01::"), Selector: "svc=" + name}
		for i, p := range ports[:1+r.IntN(2)] {
			v.Ports = append(v.Ports, cluster.ServicePort{Name: fmt.Sprint("port", i), Port: p})
		}
		switch r.IntN(8) {
		case 0:
			v.ClusterIPs = nil
		case 1:
			v.ClusterIPs, v.ExternalName, v.Selector = nil, "a.example.com", ""
		case 2:
			v.Selector = ""
		}
		for range r.IntN(4) {
			c := pod(namespace, pick(podNames), map[string]string{"svc": name})
			if c == nil {
				continue
			}
			for _, ip := range c.IPs {
				for _, p := range v.Ports {
					e := endpoint(ip, ports[r.IntN(len(ports))], p.Name, c.Node, c.Name)
					e.Ready = r.IntN(3) > 0
					v.Endpoints = append(v.Endpoints, e)
				}
			}
		}
		s.Services = append(s.Services, v)
	}
	addService("default", "kubernetes", r.IntN(5) > 0)
	if v := s.Service("default", "kubernetes"); v != nil {
		v.Selector = ""
		for _, n := range s.Nodes {
			for _, ip := range n.InternalIPs[:min(len(n.InternalIPs), r.IntN(2))] {
				v.Endpoints = append(v.Endpoints, endpoint(ip, 6443, "port0", "", ""))
			}
		}
	}
	for range r.IntN(4) {
		n := node()
		for _, component := range []string{"kube-apiserver", "etcd"} {
			if name := component + "-" + n.Name; len(n.InternalIPs) > 0 && !known["kube-system/"+name] {
				known["kube-system/"+name] = true
				s.Components = append(s.Components, staticPod(component, n.Name, n.InternalIPs[0]))
			}
		}
		pod("openshift-kube-apiserver", pick(podNames), map[string]string{"app": "openshift-kube-apiserver"})
		pod("openshift-etcd", pick(podNames), map[string]string{"app": "etcd"})
	}
	for i := range r.IntN(4) {
		a := cluster.APIService{Name: fmt.Sprint("v", i), Namespace: pick(namespaces), Service: pick(serviceNames), Port: ports[r.IntN(2)], Available: corev1.ConditionTrue}
		s.APIServices = append(s.APIServices, a)
		addService(a.Namespace, a.Service, r.IntN(4) > 0)
	}
	for _, side := range cluster.Sides {
		if r.IntN(2) == 0 {
			s.LoadBalancers = append(s.LoadBalancers, cluster.LoadBalancer{Side: side, Host: pick([]string{"lb.example.com", "192.0.2.100", "fd00::100"}), Port: 6443, Origin: "test"})
		}
	}
	for range r.IntN(3) {
		member := pick([]string{"etcd.example.com:2379", "etcd.example.com:2380", "192.0.2.100:2379", "[fd00::100]:2379"})
		if !slices.Contains(s.EtcdEndpoints, member) {
			s.EtcdEndpoints = append(s.EtcdEndpoints, member)
		}
	}
	if r.IntN(4) == 0 {
		unseen([]string{kubeadmAPI, kubeadmEtcd, whatAPIServices, whatKubeadmConfig}[r.IntN(4)], "no such right")(s)
	}

	p := planOf()
	c := p.Checks["api"].Spec.(*Spec)
	c.MaxNodes = 1 + r.IntN(4)
	if r.IntN(4) == 0 {
		c.IPFamilies = []checkup.IPFamily{checkup.IPFamilies[r.IntN(2)]}
	}
	c.Roles = map[string]ComponentRole{}
	for _, name := range roleNames {
		namespace, labels := pick(namespaces), map[string]string{"role": pick([]string{"x", "y"})}
		switch r.IntN(4) {
		case 0:
			for range r.IntN(3) {
				pod(namespace, pick(podNames), labels)
			}
			s.AddSeen(whatPods(namespace, "role="+labels["role"]))
			c.Roles[name] = ComponentRole{TLS: true, Pods: &ComponentPods{Namespace: namespace, Selector: checkup.LabelSelector{MatchLabels: labels}, Port: ports[r.IntN(len(ports))]}}
		case 1:
			service := pick(serviceNames)
			addService(namespace, service, true)
			c.Roles[name] = ComponentRole{Service: &ComponentService{Namespace: namespace, Name: service}}
		case 2:
			hosts := []string{"a.example.com:443", "a.example.com:2379", "192.0.2.11:443", "[fd00::1]:443", "A.example.com:443"}
			r.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
			c.Roles[name] = ComponentRole{TLS: true, ClientCertificate: "certificate", Hosts: hosts[:1+r.IntN(4)]}
		}
	}
	if r.IntN(3) > 0 {
		from := []string{"kube-apiserver", "aggregated-apiserver", "etcd"}
		to := []string{"kube-apiserver", "kube-apiserver.service", "kube-apiserver.host", "aggregated-apiserver", "aggregated-apiserver.service", "aggregated-apiserver.host", "etcd", "etcd.host", "load-balancer-internal", "load-balancer-external"}
		for _, name := range roleNames {
			role, own := c.Roles[name]
			switch {
			case !own && name == "node":
				from, to = append(from, name), append(to, name, name+".host")
			case own && role.Service != nil:
				from, to = append(from, name), append(to, name, name+".service", name+".host")
			case own && role.Pods != nil:
				from, to = append(from, name), append(to, name, name+".host")
			case own:
				to = append(to, name)
			}
		}
		for range 1 + r.IntN(12) {
			pair := ComponentPair{From: pick(from), To: pick(to)}
			if !slices.Contains(c.Pairs, pair) {
				c.Pairs = append(c.Pairs, pair)
			}
		}
	}
	return p, s
}

// shuffled is the same cluster, found in another order.
func shuffled(r *rand.Rand, s *cluster.Snapshot) *cluster.Snapshot {
	c := *s
	c.Nodes = shuffledSlice(r, s.Nodes)
	c.Components = shuffledSlice(r, s.Components)
	c.Services = shuffledSlice(r, s.Services)
	for i := range c.Services {
		c.Services[i].Endpoints = shuffledSlice(r, c.Services[i].Endpoints)
	}
	c.APIServices = shuffledSlice(r, s.APIServices)
	c.LoadBalancers = shuffledSlice(r, s.LoadBalancers)
	c.Seen = shuffledSlice(r, s.Seen)
	return &c
}

func shuffledSlice[T any](r *rand.Rand, s []T) []T {
	s = slices.Clone(s)
	r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
	return s
}

var subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// TestExpandProperties: whatever the cluster, a worksheet holds together, no two
// of its pairs share a name, and it does not depend on the order in which the
// cluster was found.
func TestExpandProperties(t *testing.T) {
	worksheets, unmeasured := 0, 0
	seeds := uint64(500)
	if os.Getenv("CHECKPLAN_LONG") != "" {
		seeds = 20_000
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		p, s := randomCluster(r)
		encoded, err := cluster.EncodeSnapshot(s)
		if err != nil {
			t.Fatal(err)
		}
		w, warnings, err := Expand(p, "api", s)
		again, warningsAgain, errAgain := Expand(p, "api", shuffled(r, s))
		if !reflect.DeepEqual(w, again) || !slices.Equal(warnings, warningsAgain) || fmt.Sprint(err) != fmt.Sprint(errAgain) {
			t.Fatalf("seed %d: another order of the same cluster gives another worksheet (-first +second):\n%s%s%s",
				seed, cmp.Diff(w, again), cmp.Diff(warnings, warningsAgain), cmp.Diff(fmt.Sprint(err), fmt.Sprint(errAgain)))
		}
		if after, err := cluster.EncodeSnapshot(s); err != nil || string(after) != string(encoded) {
			t.Fatalf("seed %d: the snapshot was changed: %v", seed, err)
		}
		if err != nil {
			if !strings.Contains(err.Error(), "nothing can be measured") {
				t.Fatalf("seed %d: %v", seed, err)
			}
			continue
		}
		worksheets++
		for problem := range problems(w) {
			t.Errorf("seed %d: %s\n%s", seed, problem, print(w))
		}
		for _, e := range slices.Concat(w.Sources, w.Targets) {
			if e.Cause != nil {
				unmeasured++
				if !slices.ContainsFunc(warnings, func(line string) bool { return strings.Contains(line, "unmeasured") }) {
					t.Errorf("seed %d: %s is missing, and nothing warns of it", seed, e.Label)
				}
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	if worksheets < int(seeds)/3 || unmeasured < int(seeds)/3 {
		t.Errorf("only %d worksheets, with %d endpoints that are missing: the test does not test much", worksheets, unmeasured)
	}
}

// problems yields what is wrong with a worksheet.
func problems(w *checkup.Worksheet) func(func(string) bool) {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	endpoints := func(what string, endpoints []checkup.Endpoint) {
		labels := map[string]bool{}
		for i, e := range endpoints {
			if e.Label == "" || labels[e.Label] {
				add("duplicate %s %q", what, e.Label)
			}
			labels[e.Label] = true
			if e.Component == "" {
				add("%s %s is no component", what, e.Label)
			}
			if i > 0 && (e.Node < endpoints[i-1].Node || e.Node == endpoints[i-1].Node && e.Label < endpoints[i-1].Label) {
				add("%s %s is not in its order", what, e.Label)
			}
		}
	}
	endpoints("source", w.Sources)
	endpoints("target", w.Targets)
	for _, s := range w.Sources {
		if (s.Node == "") != (s.Cause != nil) || s.Peer != nil {
			add("source %s: %+v", s.Label, s)
		}
	}
	for _, target := range w.Targets {
		if (target.Peer == nil) != (target.Cause != nil) || target.IsFixture() {
			add("target %s: %+v", target.Label, target)
		}
		if target.Peer == nil {
			continue
		}
		family, _ := cluster.FamilyOf(target.Peer.Host)
		if target.Peer.Family != family || target.Peer.Port < 1 || target.Peer.Host == "" {
			add("peer of %s: %+v", target.Label, target.Peer)
		}
		if _, ok := w.Probe(target.Peer.Transport); !ok {
			add("%s is not probed by %s", target.Label, target.Peer.Transport)
		}
		for i, b := range target.Peer.Backends {
			if b < 0 || b >= len(w.Targets) || w.Targets[b].Peer == nil || w.Targets[b].Peer.Family != family || slices.Contains(target.Peer.Backends[:i], b) {
				add("backends of %s: %v", target.Label, target.Peer.Backends)
			}
		}
	}
	names := map[string]string{}
	probed := make([]bool, len(w.Targets))
	for i, targets := range w.Assignments {
		if len(targets) == 0 || !slices.IsSorted(targets) {
			add("targets of %s: %v", w.Sources[i].Label, targets)
		}
		for j, target := range targets {
			probed[target] = true
			if j > 0 && targets[j-1] == target {
				add("%s probes %s twice", w.Sources[i].Label, w.Targets[target].Label)
			}
			name, pair := checkup.ConnectivityName(w.Sources[i], w.Targets[target]), w.Sources[i].Label+" > "+w.Targets[target].Label
			if other, ok := names[name]; ok || !subdomain.MatchString(name) || len(name) > 253 {
				add("%s is the name of %s and of %s", name, pair, other)
			}
			names[name] = pair
			if peer := w.Targets[target].Peer; peer != nil && peer.ClientCertificate != "" && !slices.Contains(w.Sources[i].ClientCertificates, peer.ClientCertificate) {
				add("%s lacks the certificate for %s", w.Sources[i].Label, w.Targets[target].Label)
			}
		}
	}
	for i, is := range probed {
		if !is {
			add("nothing probes %s", w.Targets[i].Label)
		}
	}
	if len(w.Assignments) != len(w.Sources) || len(w.IPFamilies) == 0 || len(w.Probes) == 0 || w.Connections == nil || w.CountPairs() < w.Possible {
		add("worksheet: %d assignments, %d sources, families %v, probes %v, %d pairs of %d", len(w.Assignments), len(w.Sources), w.IPFamilies, w.Probes, w.CountPairs(), w.Possible)
	}
	return slices.Values(all)
}

// TestChooseIsStable: that a node comes or goes changes little.
func TestChooseIsStable(t *testing.T) {
	s := managed(200)
	chosen := func(s *cluster.Snapshot) []string {
		w, _, err := Expand(planOf(func(c *Spec) { c.MaxNodes = 20 }), "api", s)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, source := range w.Sources {
			names = append(names, source.Node)
		}
		return names
	}
	before := chosen(s)
	gone := before[7]
	s.Nodes = slices.DeleteFunc(s.Nodes, func(n cluster.Node) bool { return n.Name == gone })
	after := chosen(s)
	kept := 0
	for _, name := range before {
		if slices.Contains(after, name) {
			kept++
		}
	}
	if len(before) != 20 || len(after) != 20 || kept != 19 {
		t.Errorf("%d of %d nodes are still among %d when one has gone", kept, len(before), len(after))
	}
}

// BenchmarkExpand is of 10,000 nodes that are probed by three API servers, and of
// as many of which 100 are sources.
func BenchmarkExpand(b *testing.B) {
	big := managed(10_000)
	for i := range 3 {
		n := &big.Nodes[i]
		big.Components = append(big.Components, staticPod("kube-apiserver", n.Name, n.InternalIPs[0]), staticPod("etcd", n.Name, n.InternalIPs[0]))
	}
	big.Seen = append(big.Seen, kubeadmAPI, kubeadmEtcd)
	for _, tt := range []struct {
		name string
		plan *checkup.Plan
	}{
		{"every-node-a-target", planOf(preset(PresetKubeadm), func(c *Spec) { c.MaxNodes = 10_000 })},
		{"some-nodes-sources", planOf()},
	} {
		b.Run(tt.name, func(b *testing.B) {
			pairs := 0
			for b.Loop() {
				w, _, err := Expand(tt.plan, "api", big)
				if err != nil {
					b.Fatal(err)
				}
				pairs = w.CountPairs()
			}
			b.ReportMetric(float64(pairs), "pairs")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10_000, "ns/node")
		})
	}
}

func FuzzHostPort(f *testing.F) {
	for _, s := range []string{"192.0.2.1", "192.0.2.1:2379", "fd00::1", "[fd00::1]", "[fd00::1]:2379", "https://api.example.com:6443", "https://[fd00::1]", "host:", ":1", "https://", "a b:1", "fd00::1%eth0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, read := range map[string]func(string, int) (string, int, error){"hostPort": hostPort, "urlHostPort": urlHostPort} {
			host, port, err := read(s, 1)
			if err == nil && (host == "" || port < 1 || port > 65535 || strings.ContainsAny(host, "/ []")) {
				t.Errorf("%s(%q) = %q, %d", name, s, host, port)
			}
		}
	})
}
