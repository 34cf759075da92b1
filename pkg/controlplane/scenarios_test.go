// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// scenario is a cluster and a plan; what becomes of them is in
// testdata/expand/<name>.txt.
type scenario struct {
	name     string
	plan     *checkup.Plan
	snapshot *cluster.Snapshot
}

func changed(s *cluster.Snapshot, changes ...func(*cluster.Snapshot)) *cluster.Snapshot {
	for _, change := range changes {
		change(s)
	}
	return s
}

func service(s *cluster.Snapshot, namespace, name string, change func(*cluster.Service)) {
	change(s.Service(namespace, name))
}

// unseen marks something that was read as not visible, with the cause.
func unseen(what, cause string) func(*cluster.Snapshot) {
	return func(s *cluster.Snapshot) {
		s.Seen = slices.DeleteFunc(s.Seen, func(seen string) bool { return seen == what })
		s.AddUnseen(what, errors.New(cause))
	}
}

func withoutPods(component string) func(*cluster.Snapshot) {
	return func(s *cluster.Snapshot) {
		s.Components = slices.DeleteFunc(s.Components, func(c cluster.Component) bool { return c.Labels["component"] == component })
	}
}

func scenarios() []scenario {
	twoPlanes := []string{"cp-1 192.0.2.11", "cp-2 192.0.2.12"}
	labels := func(key, value string) checkup.LabelSelector {
		return checkup.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
	return []scenario{
		{"kubeadm-two-control-planes", planOf(), kubeadm(twoPlanes...)},
		{"kubeadm-one-control-plane", planOf(), kubeadm("cp 192.0.2.11")},
		{"kubeadm-without-aggregated", planOf(), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) { s.APIServices = nil })},
		{"openshift", planOf(), openshift()},
		{"managed", planOf(), metricsServer(managed(3), "ip-10-0-0-1.eu-west-1.compute.internal")},
		{"kubeadm-watched", planOf(func(c *Spec) { c.For = new(checkup.Duration(60_000_000_000)) }), kubeadm(twoPlanes...)},
		{"managed-some-nodes", planOf(func(c *Spec) { c.MaxNodes = 2 }), managed(1000)},
		{"managed-nodes-that-differ", planOf(), changed(managed(5), func(s *cluster.Snapshot) {
			s.Nodes[0].Taints = []corev1.Taint{{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}}
			s.Nodes[1].Labels["kubernetes.io/os"] = "windows"
			s.Nodes[2].Ready = corev1.ConditionUnknown
			s.Nodes[2].Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}, {Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
		})},
		{"managed-infrastructure-nodes", planOf(placed("node-role.kubernetes.io/infra", "node-role.kubernetes.io/infra")), changed(managed(5), func(s *cluster.Snapshot) {
			for i := range 2 {
				s.Nodes[i].Labels["node-role.kubernetes.io/infra"] = ""
				s.Nodes[i].Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/infra", Effect: corev1.TaintEffectNoSchedule}}
			}
		})},
		{"placement-without-nodes", planOf(placed("node-role.kubernetes.io/infra", ""), pairs("kube-apiserver > etcd")), kubeadm("cp 192.0.2.11")},
		{"ipv6-only", planOf(), changed(kubeadm("cp-1 fd00::11", "cp-2 fd00::12"), func(s *cluster.Snapshot) {
			s.Nodes[0].InternalIPs = []string{"fd00::20"}
			service(s, "default", "kubernetes", func(v *cluster.Service) { v.ClusterIPs = []string{"fd01::1"} })
			service(s, "kube-system", "metrics-server", func(v *cluster.Service) {
				v.ClusterIPs = []string{"fd01::50"}
				v.Endpoints = []cluster.ServiceEndpoint{endpoint("fd02::5", 10250, "https", "worker", "kube-system/metrics-server-0")}
			})
			for i, c := range s.Components {
				if c.Name == "kube-system/metrics-server-0" {
					s.Components[i].IPs = []string{"fd02::5"}
				}
			}
		})},
		{"dual-stack", planOf(), dualStack()},
		{"dual-stack-of-one-family", planOf(func(c *Spec) { c.IPFamilies = []checkup.IPFamily{checkup.IPv6} }), dualStack()},
		{"two-ports", planOf(pairs("kube-apiserver > aggregated-apiserver", "kube-apiserver > aggregated-apiserver.service")), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			s.APIServices = append(s.APIServices, cluster.APIService{Name: "v1.more.example.com", Namespace: "kube-system", Service: "metrics-server", Port: 8443, Available: corev1.ConditionTrue})
			service(s, "kube-system", "metrics-server", func(v *cluster.Service) {
				v.Ports = append(v.Ports, cluster.ServicePort{Name: "more", Port: 8443})
				v.Endpoints = append(v.Endpoints, endpoint("10.244.1.5", 8443, "more", "worker", "kube-system/metrics-server-0"))
			})
		})},
		{"two-ports-of-which-both-lead-to-one", planOf(pairs("kube-apiserver > aggregated-apiserver", "kube-apiserver > aggregated-apiserver.service")), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			s.APIServices = append(s.APIServices, cluster.APIService{Name: "v1.more.example.com", Namespace: "kube-system", Service: "metrics-server", Port: 8443, Available: corev1.ConditionTrue})
			service(s, "kube-system", "metrics-server", func(v *cluster.Service) {
				v.Ports = append(v.Ports, cluster.ServicePort{Name: "more", Port: 8443})
				v.Endpoints = append(v.Endpoints, endpoint("10.244.1.5", 10250, "more", "worker", "kube-system/metrics-server-0"))
			})
		})},
		{"two-endpoints-on-one-node", planOf(), changed(metricsServer(changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			s.Services, s.APIServices = s.Services[:1], nil
			s.Components = s.Components[:2]
		}), "worker", "worker"), nothing)},
		{"nodes-named-by-address-and-domain", planOf(pairs("kube-apiserver > etcd", "kube-apiserver > node")), kubeadm("192.0.2.11 192.0.2.11", "cp.a.example.com 192.0.2.12", "cp.b.example.com 192.0.2.13")},
		{"etcd-outside", planOf(), changed(kubeadm("cp 192.0.2.11"), withoutPods("etcd"), func(s *cluster.Snapshot) {
			s.EtcdEndpoints = []string{"etcd-1.example.com:2379", "192.0.2.20:2379", "[fd00::3]:2379"}
		})},
		{"etcd-with-certificate", planOf(withRole("etcd", ComponentRole{TLS: true, ServerName: "etcd", ClientCertificate: "etcd-client"}), pairs("kube-apiserver > etcd")), kubeadm("cp 192.0.2.11")},
		{"etcd-not-seen", planOf(), changed(kubeadm("cp 192.0.2.11"), withoutPods("etcd"))},
		{"etcd-without-tls", planOf(pairs("kube-apiserver > etcd", "kube-apiserver > etcd.host")), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			s.Components[1].Annotations[advertisedEtcd] = "http://192.0.2.11:2379"
		})},
		{"api-server-off-its-service", planOf(), changed(kubeadm(twoPlanes...), func(s *cluster.Snapshot) {
			service(s, "default", "kubernetes", func(v *cluster.Service) { v.Endpoints = v.Endpoints[:1] })
		})},
		{"api-servers-not-readable", planOf(), changed(kubeadm(twoPlanes...), withoutPods("kube-apiserver"), unseen(kubeadmAPI, "missing the verb list on pods in namespace kube-system (a Role)"))},
		{"endpoint-not-ready", planOf(), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			service(s, "kube-system", "metrics-server", func(v *cluster.Service) { v.Endpoints[0].Ready = false })
		})},
		{"pod-on-no-node", planOf(), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			service(s, "kube-system", "metrics-server", func(v *cluster.Service) { v.Endpoints = nil })
			c := &s.Components[len(s.Components)-1]
			c.Node, c.IPs, c.Ready = "", nil, false
		})},
		{"service-without-endpoints", planOf(), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			service(s, "kube-system", "metrics-server", func(v *cluster.Service) { v.Endpoints = nil })
			s.Components = s.Components[:2]
		})},
		{"service-not-there", planOf(), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) { s.Services = s.Services[:1] })},
		{"service-with-another-port", planOf(), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) { s.APIServices[0].Port = 8443 })},
		{"service-without-selector", planOf(), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			service(s, "kube-system", "metrics-server", func(v *cluster.Service) { v.Selector = "" })
		})},
		{"service-headless", planOf(), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			service(s, "kube-system", "metrics-server", func(v *cluster.Service) { v.ClusterIPs = nil })
		})},
		{"service-of-a-name-outside", planOf(), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			service(s, "kube-system", "metrics-server", func(v *cluster.Service) {
				*v = cluster.Service{Namespace: "kube-system", Name: "metrics-server", ExternalName: "metrics.example.com"}
			})
		})},
		{"api-services-not-readable", planOf(), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) { s.APIServices = nil },
			unseen(whatAPIServices, "missing the verb list on apiservices.apiregistration.k8s.io in the whole cluster (a ClusterRole)"))},
		{"load-balancers-not-readable", planOf(), changed(kubeadm(twoPlanes...), func(s *cluster.Snapshot) { s.LoadBalancers = nil },
			unseen(whatKubeadmConfig, "missing the verb get on configmaps in namespace kube-system (a Role)"))},
		{"load-balancers-that-differ", planOf(), changed(kubeadm(twoPlanes...), func(s *cluster.Snapshot) {
			s.LoadBalancers[0].Host = "192.0.2.100"
		})},
		{"node-without-address", planOf(pairs("kube-apiserver > node", "kube-apiserver > kube-apiserver.host")), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			for i := range s.Nodes {
				s.Nodes[i].InternalIPs = nil
			}
			s.Nodes = append(s.Nodes, readyNode("seen", "192.0.2.99"))
		})},
		{"kubelet-on-another-port", planOf(pairs("kube-apiserver > node")), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) { s.Nodes[0].KubeletPort = 10999 })},
		{"roles-of-the-plan", planOf(
			withRole("dns", ComponentRole{Service: &ComponentService{Namespace: "kube-system", Name: "kube-dns"}}),
			withRole("scheduler", ComponentRole{TLS: true, Path: "/healthz", Pods: &ComponentPods{Namespace: "kube-system", Selector: labels("component", "kube-scheduler"), Port: 10259}}),
			withRole("vault", ComponentRole{TLS: true, ServerName: "vault", ClientCertificate: "vault-client", Hosts: []string{"vault.example.com:8200", "vault.example.com:8201", "[2001:db8::1]:8200", "192.0.2.20:8200"}}),
			pairs("scheduler > dns", "scheduler > dns.service", "dns > vault", "dns > scheduler", "dns > scheduler.host", "scheduler > kube-apiserver"),
		), changed(kubeadm(twoPlanes...), func(s *cluster.Snapshot) {
			scheduler := staticPod("kube-scheduler", "cp-1", "192.0.2.11")
			dns := podOf("kube-system/coredns-0", "worker", map[string]string{"k8s-app": "kube-dns"}, "10.244.1.3")
			s.Components = append(s.Components, scheduler, dns)
			s.Services = append(s.Services, cluster.Service{
				Namespace: "kube-system", Name: "kube-dns", ClusterIPs: []string{"10.96.0.10"}, Selector: "k8s-app=kube-dns",
				Ports:     []cluster.ServicePort{{Name: "dns-tcp", Port: 53}, {Name: "metrics", Port: 9153}},
				Endpoints: []cluster.ServiceEndpoint{endpoint("10.244.1.3", 53, "dns-tcp", "worker", "kube-system/coredns-0"), endpoint("10.244.1.3", 9153, "metrics", "worker", "kube-system/coredns-0")},
			})
			s.Seen = append(s.Seen, whatPods("kube-system", "component=kube-scheduler"), whatService("kube-system", "kube-dns"), whatPods("kube-system", "k8s-app=kube-dns"))
		})},
		{"roles-with-services-that-differ", planOf(
			withRole("one-port", ComponentRole{Service: &ComponentService{Namespace: "one", Name: "two-ports", Port: 9153}}),
			withRole("udp-only", ComponentRole{Service: &ComponentService{Namespace: "one", Name: "udp-only"}}),
			withRole("elsewhere", ComponentRole{Service: &ComponentService{Namespace: "one", Name: "elsewhere"}}),
			withRole("by-hand", ComponentRole{Service: &ComponentService{Namespace: "one", Name: "by-hand"}}),
			pairs("kube-apiserver > one-port", "kube-apiserver > one-port.service", "kube-apiserver > udp-only", "kube-apiserver > udp-only.service",
				"kube-apiserver > elsewhere", "kube-apiserver > elsewhere.service", "kube-apiserver > by-hand", "by-hand > kube-apiserver"),
		), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			s.Services = append(s.Services,
				cluster.Service{Namespace: "one", Name: "two-ports", ClusterIPs: []string{"10.96.0.10"}, Selector: "app=a",
					Ports:     []cluster.ServicePort{{Name: "dns-tcp", Port: 53}, {Name: "metrics", Port: 9153}},
					Endpoints: []cluster.ServiceEndpoint{endpoint("10.244.1.3", 53, "dns-tcp", "worker", "one/a"), endpoint("10.244.1.3", 9153, "metrics", "worker", "one/a")}},
				cluster.Service{Namespace: "one", Name: "udp-only", ClusterIPs: []string{"10.96.0.11"}, Selector: "app=b"},
				cluster.Service{Namespace: "one", Name: "elsewhere", ExternalName: "a.example.com"},
				cluster.Service{Namespace: "one", Name: "by-hand", ClusterIPs: []string{"10.96.0.12"}, Ports: []cluster.ServicePort{{Port: 80}},
					Endpoints: []cluster.ServiceEndpoint{endpoint("198.51.100.1", 8080, "", "", ""), endpoint("192.0.2.20", 8080, "", "", "")}},
			)
			for _, name := range []string{"two-ports", "udp-only", "elsewhere", "by-hand"} {
				s.AddSeen(whatService("one", name))
			}
		})},
		{"role-that-matches-no-pod", planOf(
			withRole("scheduler", ComponentRole{TLS: true, Pods: &ComponentPods{Namespace: "kube-system", Selector: labels("component", "kube-scheduler"), Port: 10259}}),
			pairs("scheduler > kube-apiserver", "kube-apiserver > scheduler", "kube-apiserver > scheduler.host", "kube-apiserver > etcd"),
		), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			s.Seen = append(s.Seen, whatPods("kube-system", "component=kube-scheduler"))
		})},
		{"role-whose-host-leads-nowhere", planOf(pairs("kube-apiserver > aggregated-apiserver.host", "kube-apiserver > etcd", "kube-apiserver > load-balancer-internal.host")), kubeadm(twoPlanes...)},
		{"role-of-a-preset-replaced", planOf(withRole("etcd", ComponentRole{TLS: true, Hosts: []string{"192.0.2.99:2379"}}), pairs("kube-apiserver > etcd")), kubeadm("cp 192.0.2.11")},
		{"pairs-that-the-cluster-does-not-have", planOf(preset(PresetGeneric), pairs("kube-apiserver > etcd", "node > etcd", "node > aggregated-apiserver", "aggregated-apiserver > aggregated-apiserver.service", "node > load-balancer-external", "node > kube-apiserver")), managed(1)},
		{"names-alike", planOf(
			withRole("a", ComponentRole{Pods: &ComponentPods{Namespace: "one", Selector: labels("app", "a"), Port: 1}}),
			withRole("b", ComponentRole{Pods: &ComponentPods{Namespace: "two", Selector: labels("app", "a"), Port: 1}}),
			withRole("both", ComponentRole{Pods: &ComponentPods{Namespace: "one", Selector: labels("app", "a"), Port: 1}}),
			pairs("a > b", "b > a", "both > b"),
		), changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
			app := map[string]string{"app": "a"}
			s.Components = append(s.Components, podOf("one/pod", "worker", app, "10.244.1.7"), podOf("two/pod", "worker", app, "10.244.1.8"), podOf("two/other", "worker", app, "10.244.1.9"))
			s.Seen = append(s.Seen, whatPods("one", "app=a"), whatPods("two", "app=a"))
		})},
		{"too-fast", planOf(func(c *Spec) { c.Interval = 1_000_000; c.Limits.PacketsPerSecond = 100 }), kubeadm("cp 192.0.2.11")},
	}
}

func nothing(*cluster.Snapshot) {}

// dualStack is a cluster of kubeadm's with both families, IPv4 first, in which
// one of two pods of metrics-server has IPv4 only.
func dualStack() *cluster.Snapshot {
	return changed(kubeadm("cp 192.0.2.11"), func(s *cluster.Snapshot) {
		s.Nodes[0].InternalIPs, s.Nodes[1].InternalIPs = []string{"192.0.2.20", "fd00::20"}, []string{"192.0.2.11", "fd00::11"}
		s.Components[0].IPs, s.Components[1].IPs = []string{"192.0.2.11", "fd00::11"}, []string{"192.0.2.11", "fd00::11"}
		s.Components[2].IPs = []string{"10.244.1.5", "fd02::5"}
		s.Components = append(s.Components, podOf("kube-system/metrics-server-1", "worker", map[string]string{"k8s-app": "metrics-server"}, "10.244.1.6"))
		service(s, "kube-system", "metrics-server", func(v *cluster.Service) {
			v.ClusterIPs = []string{"10.96.0.50", "fd01::50"}
			v.Endpoints = append(v.Endpoints, endpoint("fd02::5", 10250, "https", "worker", "kube-system/metrics-server-0"), endpoint("10.244.1.6", 10250, "https", "worker", "kube-system/metrics-server-1"))
		})
	})
}

func TestExpand(t *testing.T) {
	known := map[string]bool{}
	for _, tt := range scenarios() {
		known[tt.name+".txt"] = true
		t.Run(tt.name, func(t *testing.T) {
			encoded, err := cluster.EncodeSnapshot(tt.snapshot)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := cluster.DecodeSnapshot(encoded); err != nil {
				t.Fatalf("no such cluster could be recorded: %v", err)
			}
			w, warnings, err := Expand(tt.plan, "api", tt.snapshot)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "expand/"+tt.name+".txt", []byte(readable(w, warnings)))
			if again, err := cluster.EncodeSnapshot(tt.snapshot); err != nil || string(again) != string(encoded) {
				t.Errorf("the snapshot was changed: %v", err)
			}
		})
	}
	files, err := os.ReadDir("testdata/expand")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !known[f.Name()] {
			t.Errorf("testdata/expand/%s belongs to no scenario", f.Name())
		}
	}
}

// readable is a worksheet as people read it, with its warnings.
func readable(w *checkup.Worksheet, warnings []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d pairs, families %v\n\n%s", w.CountPairs(), w.IPFamilies, print(w))
	for _, e := range slices.Concat(w.Sources, w.Targets) {
		if e.Cause != nil {
			fmt.Fprintf(&b, "\n%s: %s\n", e.Label, e.Cause)
		}
	}
	for _, warning := range warnings {
		fmt.Fprintf(&b, "\nwarning: %s\n", warning)
	}
	return b.String()
}

// golden compares with a file in testdata; UPDATE=1 writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") == "1" {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; UPDATE=1 accepts it):\n%s", path, diff)
	}
}

// TestWorksheet holds one worksheet in full.
func TestWorksheet(t *testing.T) {
	s := kubeadm("cp-1 192.0.2.11", "cp-2 192.0.2.12")
	for i := range s.Nodes {
		s.Nodes[i].Labels[corev1.LabelTopologyZone] = "zone-" + s.Nodes[i].Name
	}
	s.Components = s.Components[:4] // without the pod of metrics-server
	plan := planOf(
		withRole("etcd", ComponentRole{TLS: true, ClientCertificate: "etcd-client"}),
		withRole("kube-apiserver", ComponentRole{TLS: true, Path: "/readyz"}),
		withRole("plain", ComponentRole{Hosts: []string{"192.0.2.20:80"}}),
		func(c *Spec) {
			c.For = new(checkup.Duration(60_000_000_000))
			c.Expect.Outage.Max = new(checkup.Duration(5_000_000_000))
		},
		pairs("kube-apiserver > etcd", "kube-apiserver > kube-apiserver", "kube-apiserver > kube-apiserver.service", "kube-apiserver > plain", "aggregated-apiserver > etcd"),
	)
	w, _, err := Expand(plan, "api", s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(w, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "worksheet.json", append(got, '\n'))
}

func TestExpandErrors(t *testing.T) {
	known := kubeadm("cp 192.0.2.11")
	tests := []struct {
		name     string
		plan     *checkup.Plan
		snapshot *cluster.Snapshot
		want     string
	}{
		{"no such check", &checkup.Plan{Name: "other"}, known, `check "api": plan other has no controlPlane check of that name`},
		{"what a loaded plan never has", planOf(func(c *Spec) {
			c.Preset, c.MaxNodes, c.Interval, c.Probe.Count, c.IPFamilies = "k8s", 0, 0, 0, []checkup.IPFamily{"IPv5"}
		}), known, `check "api": preset: "k8s": want one of ["auto" "kubeadm" "openshift" "generic"]
maxNodes: 0: want 1 or more
probe.count: 0: want 1 or more
interval: 0s: want more than 0s
ipFamilies: "IPv5": want one of ["IPv4" "IPv6"]`},
		{"a role that there is not", planOf(pairs("kube-apiserver > nothing")), known, `check "api": unknown role "nothing"`},
		{"an invalid host", planOf(withRole("db", ComponentRole{Hosts: []string{"db", ":5432"}}), pairs("kube-apiserver > db")), known,
			`check "api": roles.db.hosts: "db" is not host:port
roles.db.hosts: ":5432" is not host:port`},
		{"a selector that selects everything", planOf(withRole("all", ComponentRole{Pods: &ComponentPods{Namespace: "kube-system", Port: 1}}), pairs("all > etcd", "all > kube-apiserver")), known,
			`check "api": roles.all.pods.selector: is empty and would select every pod: set the labels of the pods`},
		{"a snapshot for another plan", planOf(preset(PresetKubeadm)), &cluster.Snapshot{Nodes: known.Nodes},
			`check "api": the snapshot has no data about apiservices: it was recorded for another plan: record it again
the snapshot has no data about pods with the labels component=kube-apiserver,tier=control-plane in namespace kube-system: it was recorded for another plan: record it again
the snapshot has no data about configmap kube-system/kubeadm-config: it was recorded for another plan: record it again
the snapshot has no data about pods with the labels component=etcd,tier=control-plane in namespace kube-system: it was recorded for another plan: record it again
the snapshot has no data about service default/kubernetes: it was recorded for another plan: record it again
the snapshot has no data about configmap kube-public/cluster-info: it was recorded for another plan: record it again`},
		{"a snapshot for another plan, and a preset that is to be found out", planOf(), &cluster.Snapshot{Nodes: known.Nodes},
			`check "api": the snapshot has no data about the platform of the control plane: it was recorded for another plan: record it again`},
		{"a preset that could not be found out", planOf(), changed(kubeadm("cp 192.0.2.11"), unseen(whatPlatform, "missing the verb list on pods in namespace kube-system (a Role)")),
			`check "api": preset auto: cannot detect the platform of the control plane: set preset to kubeadm, openshift or generic: missing the verb list on pods in namespace kube-system (a Role)`},
		{"nothing to probe from", planOf(pairs("kube-apiserver > etcd")), changed(kubeadm("cp 192.0.2.11"), withoutPods("kube-apiserver")),
			`check "api": nothing can be measured (preset kubeadm): kube-apiserver: no pods with the labels component=kube-apiserver,tier=control-plane in namespace kube-system: no source: its pairs are unmeasured`},
		{"nothing to probe", planOf(pairs("kube-apiserver > etcd")), changed(kubeadm("cp 192.0.2.11"), withoutPods("etcd")),
			`check "api": nothing can be measured (preset kubeadm): etcd-server: no pods with the labels component=etcd,tier=control-plane in namespace kube-system: its pairs are unmeasured`},
		{"no node takes a pod", planOf(preset(PresetGeneric), pairs("node > kube-apiserver")), changed(managed(2), func(s *cluster.Snapshot) {
			s.Nodes[0].Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
			s.Nodes[1].Labels["kubernetes.io/os"] = "windows"
		}), `check "api": nothing can be measured (preset generic): node: none of 2 nodes matches the placement (1 node with taint dedicated:NoSchedule, which placement.tolerations does not tolerate; 1 node without label kubernetes.io/os=linux (placement.nodeSelector)): no source: its pairs are unmeasured`},
		{"no node has the label", planOf(preset(PresetGeneric), placed("example.com/diagnostics", ""), pairs("node > kube-apiserver")), managed(2),
			`check "api": nothing can be measured (preset generic): node: none of 2 nodes matches the placement (2 nodes without label example.com/diagnostics= (placement.nodeSelector)): no source: its pairs are unmeasured`},
		{"an affinity that is none", planOf(preset(PresetGeneric), func(c *Spec) { c.Placement.Affinity = []byte(`"zone-a"`) }), managed(2),
			`check "api": placement.affinity: not a Kubernetes NodeAffinity: json: cannot unmarshal string into Go value of type v1.NodeAffinity`},
		{"no nodes", planOf(preset(PresetGeneric), pairs("node > node")), &cluster.Snapshot{},
			`check "api": nothing can be measured (preset generic): node: the cluster has no nodes: its pairs are unmeasured; node: the cluster has no nodes: no source: its pairs are unmeasured`},
		{"more than can be kept", planOf(func(c *Spec) { c.MaxNodes = 10_000 }, pairs("node > node")), managed(10_000),
			`check "api": pairs x measurements of each (5) are more than the 1000000 results that a check may keep; node to node has 10000 sources and 10000 targets: lengthen interval, shorten for, lower maxNodes, or name fewer pairs`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, _, err := Expand(tt.plan, "api", tt.snapshot)
			if err == nil {
				t.Fatalf("no error, but\n%s", print(w))
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestRoster(t *testing.T) {
	w := &checkup.Worksheet{Targets: []checkup.Endpoint{
		{Label: "here", Pod: "a/b", Peer: &checkup.Peer{Host: "192.0.2.1", Port: 1}},
		{Label: "missing", Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "there is none"}},
		{Label: "neither"},
	}}
	want := &checkup.Roster{Targets: []checkup.RosterEntry{
		{Pod: "a/b"},
		{Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "there is none"}},
		{Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "the worksheet has no address for it"}},
	}}
	if diff := cmp.Diff(want, Roster(nil, w, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
