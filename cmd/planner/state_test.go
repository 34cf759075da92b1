// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/nodestate"
)

// newServices returns the state of node-a in all namespaces, and what it prints.
func newServices(t *testing.T, o stateOptions) (s *services, stdout *bytes.Buffer) {
	t.Helper()
	objects, err := nodestate.New(nodestate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stdout = &bytes.Buffer{}
	o.node = "node-a"
	return &services{
		env:     &environment{stdout: stdout, stderr: &bytes.Buffer{}, getenv: os.Getenv},
		options: o, objects: objects, changed: make(chan struct{}, 1),
	}, stdout
}

// shop is a Service with one endpoint on a node, and that node.
func shop(address, node string) []runtime.Object {
	return []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Ports:      []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
			},
		},
		slice(address, node),
	}
}

func slice(address, node string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, NodeName: &node}},
	}
}

// TestStateFollows: what changes for the node is printed when it changes, and nothing else is.
func TestStateFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset(shop("10.0.0.1", "node-b")...)
		s, stdout := newServices(t, stateOptions{watch: true})
		interrupts := make(chan os.Signal, 1)
		s.env.interrupts = interrupts
		ctx, stop := s.env.interruptible(t.Context())
		defer stop()
		ended := make(chan error)
		go func() { ended <- s.follow(ctx, client) }()
		printed := func() string {
			time.Sleep(time.Second) // informers poll whether they are synced
			synctest.Wait()
			defer stdout.Reset()
			return stdout.String()
		}
		if got := printed(); !strings.Contains(got, "80/TCP: 10.0.0.1:8080\n") {
			t.Errorf("at first:\n%s", got)
		}

		endpoints, services := client.DiscoveryV1().EndpointSlices("shop"), client.CoreV1().Services("shop")
		if _, err := endpoints.Update(ctx, slice("10.0.0.2", "node-a"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := printed(); !strings.Contains(got, "changed: 1, gone: 0") || !strings.Contains(got, "80/TCP: 10.0.0.2:8080*\n") {
			t.Errorf("after the endpoint has changed:\n%s", got)
		}

		noted := shop("", "")[1].(*corev1.Service)
		noted.Annotations = map[string]string{"note": "changes nothing"}
		if _, err := services.Update(ctx, noted, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := printed(); got != "" {
			t.Errorf("after a change that no proxy serves:\n%s", got)
		}

		if err := services.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := printed(); !strings.Contains(got, "changed: 0, gone: 1 shop/web\n") {
			t.Errorf("after the Service is gone:\n%s", got)
		}
		interrupts <- os.Interrupt
		if err := <-ended; !errors.Is(err, errInterrupted) {
			t.Errorf("ended with %v", err)
		}
	})
}

// TestStateFits: lists of many endpoints go on below themselves, within 80 columns.
func TestStateFits(t *testing.T) {
	port := nodestate.Port{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080, Internal: nodestate.Forward, External: nodestate.Forward}
	for i := range 30 {
		port.Endpoints = append(port.Endpoints, nodestate.Endpoint{
			Address: fmt.Sprintf("fd00:10:244:%x::%x", i, i), Port: 8080, Internal: true, External: i%2 == 0, Local: i == 3,
		})
	}
	dns := nodestate.Port{Name: "dns", Protocol: "UDP", Port: 53, Internal: nodestate.Drop,
		Established: []nodestate.Endpoint{{Address: "fd00::1", Port: 53}, {Address: "fd00::2", Port: 53, Local: true}}}
	var b bytes.Buffer
	family := nodestate.Family{Family: "IPv6", ClusterIP: "fd00:96::a", Ports: []nodestate.Port{port, dns}}
	for i := range 10 {
		family.LoadBalancerIPs = append(family.LoadBalancerIPs, fmt.Sprintf("2001:db8::%x", i))
	}
	if err := stateText(&b, []*nodestate.ServiceEndpoints{{Namespace: "shop", Name: "web", Type: "LoadBalancer", Families: []nodestate.Family{family}}}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if len(line) > 81 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	for _, want := range []string{
		"\n      to the cluster IP:       [fd00:10:244:0::0]:8080 [fd00:10:244:1::1]:8080\n" + strings.Repeat(" ", 31) + "[fd00:10:244:2::2]:8080",
		"[fd00:10:244:3::3]:8080*", "and 10 more\n", "\n      from outside: ",
		"\n    53/UDP dns: drop\n      established only:  [fd00::1]:53 [fd00::2]:53*\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("want %q in\n%s", want, b.String())
		}
	}
}

// TestStateUnread: a state that is not wholly there is not printed. The error says what could not be read.
func TestStateUnread(t *testing.T) {
	for _, resource := range []string{"nodes", "services", "endpointslices"} {
		t.Run(resource, func(t *testing.T) {
			client := fake.NewSimpleClientset(shop("10.0.0.1", "node-b")...)
			client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(corev1.Resource(resource), "", errors.New("no such right"))
			})
			s, stdout := newServices(t, stateOptions{})
			err := s.follow(t.Context(), client)
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), "list and watch "+resource) || !apierrors.IsForbidden(err) {
				t.Errorf("error %v", err)
			}
			if stdout.Len() > 0 {
				t.Errorf("printed:\n%s", stdout)
			}
		})
	}
}

// FuzzStateFile: whatever a file holds, it is refused or printed, and what is printed has no control characters.
func FuzzStateFile(f *testing.F) {
	f.Add([]byte("items: []"))
	f.Add([]byte(`{"items": [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}]}`))
	f.Add([]byte(`items:
- {apiVersion: v1, kind: Node, metadata: {name: node-a}}
- apiVersion: v1
  kind: Service
  metadata: {namespace: "\e[1m", name: web}
  spec: {type: "\n", clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], ports: [{name: "\e", port: 80}]}
`))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := nodestate.New(nodestate.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var stdout bytes.Buffer
		s := &services{
			env:     &environment{stdout: &stdout, stderr: &bytes.Buffer{}, getenv: os.Getenv},
			options: stateOptions{node: "node-a"}, objects: objects, changed: make(chan struct{}, 1),
		}
		if s.parse(data) != nil {
			return
		}
		s.view = objects.View("node-a")
		_ = s.print()
		for _, r := range stdout.String() {
			if r != '\n' && unicode.IsControl(r) {
				t.Fatalf("printed %q", stdout.String())
			}
		}
	})
}
