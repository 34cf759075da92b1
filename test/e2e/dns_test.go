// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/dns"
)

// dnsNamespace has the Services and DNS servers of TestDNS; the plan "dns" names it.
const dnsNamespace = "e2e-dns"

// TestDNS: two DNS servers of the test's own, and the cluster's through the pods' resolver, answer what the API says of
// Services of all sorts. When one server gets no packet from other nodes, and when a third one answers NXDOMAIN, these
// are found.
func TestDNS(t *testing.T) {
	parallel(t)
	serveDNS(t)

	r := runPlan(t, "dns", 0)
	c := r.Checks[0]
	if c.Counts.Pass != c.Counts.Expected || c.Counts.Expected == 0 || len(c.Findings) > 0 {
		t.Errorf("want that all pass:\n%s", describe(t, r))
	}
	text := describe(t, r)
	for _, server := range append(dnsServers(t, "first"), dns.ResolverName) {
		if !strings.Contains(text, server) {
			t.Errorf("server %s was not asked:\n%s", server, text)
		}
	}
	checkResults(t, r)

	// Pods of the server's own node reach it still.
	victim := dnsServers(t, "first")[0]
	id, _ := faultID(t, "drop", "--dst", victim)
	silent := runPlan(t, "dns", 3)
	if found := silent.Checks[0].Findings; len(found) != 1 || found[0].Cause != checkup.CauseTarget || found[0].Subject != victim ||
		!strings.Contains(found[0].Message, "no answer") || found[0].Confirmation != checkup.Confirmed {
		t.Errorf("want one finding, that %s is silent:\n%s", victim, describe(t, silent))
	}
	clearFault(t, id)

	// This one knows the names of another namespace only.
	deployDNS(t, "liar", "kubernetes cluster.local {\n        namespaces kube-public\n    }")
	liars := dnsServers(t, "liar")
	wrong := runPlan(t, "dns", 3)
	var subjects []string
	for _, f := range wrong.Checks[0].Findings {
		subjects = append(subjects, f.Subject)
		if f.Cause != checkup.CauseTarget || !strings.Contains(f.Message, "wrong answers from every node") {
			t.Errorf("finding %s", f.Message)
		}
	}
	slices.Sort(subjects)
	slices.Sort(liars)
	if !slices.Equal(subjects, liars) {
		t.Errorf("findings about %v, want %v, which answer wrongly:\n%s", subjects, liars, describe(t, wrong))
	}
	nothingLeft(t, r.RunUID, silent.RunUID, wrong.RunUID)
}

// serveDNS makes the namespace with its Services and two DNS servers.
func serveDNS(t *testing.T) {
	t.Helper()
	client, ctx := cluster(t).Kube, t.Context()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: dnsNamespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: dnsNamespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:coredns"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "coredns", Namespace: dnsNamespace}},
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sandbox(t, "kubectl", "delete", "--wait=false", "namespace/"+dnsNamespace, "clusterrolebinding/"+dnsNamespace)
	})
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "coredns"}}
	if _, err := client.CoreV1().ServiceAccounts(dnsNamespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	tcp := []corev1.ServicePort{{Name: "http", Port: 80}}
	for name, spec := range map[string]corev1.ServiceSpec{
		"dns": {Selector: map[string]string{"app": "dns"}, Ports: []corev1.ServicePort{
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP},
		}},
		"web":     {Ports: tcp},
		"single":  {Ports: tcp, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
		"peers":   {Ports: tcp, ClusterIP: corev1.ClusterIPNone},
		"nobody":  {Ports: tcp, ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "none"}},
		"outside": {Type: corev1.ServiceTypeExternalName, ExternalName: "www.example.com"},
	} {
		if spec.IPFamilyPolicy == nil && spec.Type == "" {
			spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
		}
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		if _, err := client.CoreV1().Services(dnsNamespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// Endpoints that need no pods: more than fit in a datagram of 512 bytes, one with a hostname, one not ready.
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "peers-ipv4", Labels: map[string]string{discoveryv1.LabelServiceName: "peers"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for i := range 40 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("192.0.2.%d", i+1)}, Conditions: discoveryv1.EndpointConditions{Ready: new(i != 7)},
		})
	}
	slice.Endpoints[0].Hostname = new("first")
	if _, err := client.DiscoveryV1().EndpointSlices(dnsNamespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deployDNS(t, "first", "kubernetes cluster.local")
	deployDNS(t, "second", "kubernetes cluster.local")
}

// deployDNS starts a DNS server as the cluster's own, which is on the first control plane, where its image is. It waits
// until the server is an endpoint. plugin is the part of its configuration that answers.
func deployDNS(t *testing.T, name, plugin string) {
	t.Helper()
	client, ctx := cluster(t).Kube, t.Context()
	own, err := client.AppsV1().Deployments("kube-system").Get(ctx, "coredns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Data:       map[string]string{"Corefile": ".:53 {\n    errors\n    health\n    ready\n    " + plugin + "\n}\n"},
	}
	if _, err := client.CoreV1().ConfigMaps(dnsNamespace).Create(ctx, config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "dns", "server": name}
	spec := own.Spec.Template.Spec.DeepCopy()
	spec.PriorityClassName, spec.Priority = "", nil
	spec.Volumes[0].ConfigMap.Name = name
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: *spec},
		},
	}
	if _, err := client.AppsV1().Deployments(dnsNamespace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 90*time.Second, func() error {
		addresses := dnsServers(t, name)
		list, err := client.DiscoveryV1().EndpointSlices(dnsNamespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=dns"})
		if err != nil {
			return err
		}
		ready := 0
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if slices.Contains(addresses, e.Addresses[0]) && e.Conditions.Ready != nil && *e.Conditions.Ready {
					ready++
				}
			}
		}
		if len(addresses) == 0 || ready < len(addresses) {
			return fmt.Errorf("%d of %d addresses of the DNS server %s are ready endpoints", ready, len(addresses), name)
		}
		return nil
	})
}

// dnsServers returns the addresses of a DNS server, IPv4 first.
func dnsServers(t *testing.T, name string) []string {
	t.Helper()
	pods, err := cluster(t).Kube.CoreV1().Pods(dnsNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "server=" + name})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, pod := range pods.Items {
		for _, ip := range pod.Status.PodIPs {
			all = append(all, ip.IP)
		}
	}
	return all
}
