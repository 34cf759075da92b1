// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/nodestate/nodestatetest"
)

// entry is a file of the table: a comment with the reason, the case, and the state after its changes. kube-proxy's own
// code gives the same states: test/e2e/sandbox/kubeproxy.
type entry struct {
	Case nodestatetest.Case  `json:"case"`
	Want []*ServiceEndpoints `json:"want"`
}

// apply makes the cluster of a case, and a view of its node from before the changes.
func apply(c nodestatetest.Case) (*Cluster, *View, error) {
	cluster, err := New(Options{NodePortAddresses: c.NodePortAddresses})
	if err != nil {
		return nil, nil, err
	}
	if c.Node != nil {
		cluster.SetNode(c.Node)
	}
	for i := range c.Services {
		cluster.SetService(&c.Services[i])
	}
	for i := range c.Slices {
		cluster.SetSlice(&c.Slices[i])
	}
	view := cluster.View(c.NodeName)
	for _, change := range c.Changes {
		switch {
		case change.SetService != nil:
			cluster.SetService(change.SetService)
		case change.SetSlice != nil:
			cluster.SetSlice(change.SetSlice)
		case change.DeleteService != "":
			cluster.DeleteService(nodestatetest.Namespace, change.DeleteService)
		case change.DeleteSlice != "":
			cluster.DeleteSlice(nodestatetest.Namespace, change.DeleteSlice)
		}
	}
	return cluster, view, nil
}

// TestState: the table. UPDATE=1 writes what the state is.
func TestState(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var e entry
			if err := yaml.UnmarshalStrict(data, &e); err != nil {
				t.Fatal(err)
			}
			_, view, err := apply(e.Case)
			if err != nil {
				t.Fatal(err)
			}
			state := view.State()
			if os.Getenv("UPDATE") != "" {
				want, err := yaml.Marshal(struct {
					Want []*ServiceEndpoints `json:"want"`
				}{state})
				if err != nil {
					t.Fatal(err)
				}
				before, _, _ := strings.Cut(string(data), "\nwant:")
				if err := os.WriteFile(file, []byte(before+"\n"+string(want)), 0o644); err != nil {
					t.Fatal(err)
				}
				e.Want = state
			}
			if len(e.Want)+len(state) > 0 {
				if diff := cmp.Diff(e.Want, state); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			}
			note(reflect.ValueOf(state), "", seen)
		})
	}

	// The table is complete: each field has a value in some entry, and each action is one.
	for _, message := range []any{ServiceEndpoints{}, Family{}, Port{}, Endpoint{}} {
		for field := range reflect.TypeOf(message).Fields() {
			if name := reflect.TypeOf(message).Name() + "." + field.Name; !seen[name] {
				t.Errorf("no entry of the table has a %s", name)
			}
		}
	}
	for _, value := range []any{Forward, Reject, Drop, TCP, UDP, SCTP, IPv4, IPv6} {
		if !seen[fmt.Sprint(value)] {
			t.Errorf("no entry of the table has %s", value)
		}
	}
}

// note collects the names of fields that are not zero, and all strings.
func note(v reflect.Value, name string, seen map[string]bool) {
	if !v.IsValid() || v.IsZero() {
		return
	}
	seen[name] = true
	switch v.Kind() {
	case reflect.Pointer:
		note(v.Elem(), name, seen)
	case reflect.Slice:
		for i := range v.Len() {
			note(v.Index(i), name, seen)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			note(v.Field(i), v.Type().Name()+"."+v.Type().Field(i).Name, seen)
		}
	case reflect.String:
		seen[v.String()] = true
	}
}

// TestChanges: a view after any changes has the state from scratch, and a new revision exactly for each change that
// altered it. The order in which objects arrive does not matter.
func TestChanges(t *testing.T) {
	for seed := range uint64(2000) {
		c := nodestatetest.Generate(seed)
		changes := c.Changes
		c.Changes = nil
		cluster, view, err := apply(c)
		if err != nil {
			t.Fatal(err)
		}
		for i, change := range changes {
			before, rev := view.State(), view.Rev()
			texts := marshal(t, before)
			switch {
			case change.SetService != nil:
				cluster.SetService(change.SetService)
			case change.SetSlice != nil:
				cluster.SetSlice(change.SetSlice)
			case change.DeleteService != "":
				cluster.DeleteService(nodestatetest.Namespace, change.DeleteService)
			case change.DeleteSlice != "":
				cluster.DeleteSlice(nodestatetest.Namespace, change.DeleteSlice)
			}
			after := view.State()
			if diff := cmp.Diff(cluster.State(c.NodeName), after); diff != "" {
				t.Fatalf("seed %d, change %d: - from scratch + view:\n%s", seed, i, diff)
			}
			if changed := marshal(t, after) != texts; changed != (view.Rev() == rev+1) || !changed && view.Rev() != rev {
				t.Fatalf("seed %d, change %d: changed %t, revision %d after %d", seed, i, changed, view.Rev(), rev)
			}
			if marshal(t, before) != texts {
				t.Fatalf("seed %d, change %d: messages that were handed out changed", seed, i)
			}
		}
		if len(changes) == 0 { // the other order
			other, err := New(Options{NodePortAddresses: c.NodePortAddresses})
			if err != nil {
				t.Fatal(err)
			}
			late := other.View(c.NodeName)
			for i := range slices.Backward(c.Slices) {
				other.SetSlice(&c.Slices[i])
			}
			for i := range slices.Backward(c.Services) {
				other.SetService(&c.Services[i])
			}
			if c.Node != nil {
				other.SetNode(c.Node)
			}
			if diff := cmp.Diff(view.State(), late.State()); diff != "" {
				t.Fatalf("seed %d: - in order + in another order:\n%s", seed, diff)
			}
		}
	}
}

func marshal(t *testing.T, state []*ServiceEndpoints) string {
	t.Helper()
	data, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestNodes: what of a Node alters the state of its own node, and of no other.
func TestNodes(t *testing.T) {
	data, err := os.ReadFile("testdata/hints-of-zones.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var e entry
	if err := yaml.UnmarshalStrict(data, &e); err != nil {
		t.Fatal(err)
	}
	cluster, view, err := apply(e.Case)
	if err != nil {
		t.Fatal(err)
	}
	other, closed := cluster.View("node-z"), cluster.View("node-a")
	closed.Close()
	for _, step := range []struct {
		what   string
		change func()
		rev    uint64
	}{
		{"a heartbeat", func() {
			n := e.Case.Node.DeepCopy()
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
			cluster.SetNode(n)
		}, 1},
		{"another zone", func() {
			n := e.Case.Node.DeepCopy()
			n.Labels[corev1.LabelTopologyZone] = "zone-y"
			cluster.SetNode(n)
		}, 2},
		{"another zone once more", func() {
			n := e.Case.Node.DeepCopy()
			n.Labels[corev1.LabelTopologyZone] = "zone-y"
			cluster.SetNode(n)
		}, 2},
		{"deleted: no zone, so hints do not count", func() { cluster.DeleteNode("node-a") }, 3},
		{"back", func() { cluster.SetNode(e.Case.Node) }, 4},
		{"deleted again", func() { cluster.DeleteNode("node-a") }, 5},
		{"a Service that nobody has", func() { cluster.DeleteService("ns", "none") }, 5},
		{"a slice that nobody has", func() { cluster.DeleteSlice("ns", "none") }, 5},
	} {
		step.change()
		if view.Rev() != step.rev {
			t.Errorf("%s: revision %d, want %d", step.what, view.Rev(), step.rev)
		}
		if diff := cmp.Diff(cluster.State("node-a"), view.State()); diff != "" {
			t.Errorf("%s: - from scratch + view:\n%s", step.what, diff)
		}
	}
	if other.Rev() != 1 || closed.Rev() != 1 {
		t.Errorf("revision of another node %d, of a closed view %d, want 1 and 1", other.Rev(), closed.Rev())
	}
}

// TestMovedSlice: a slice that names another Service leaves the first.
func TestMovedSlice(t *testing.T) {
	cluster, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := nodestatetest.Case{}
	if err := yaml.Unmarshal([]byte(`
services:
  - {metadata: {name: a, namespace: ns}, spec: {type: ClusterIP, clusterIP: 10.96.0.1, ports: [{port: 80, protocol: TCP}]}}
  - {metadata: {name: b, namespace: ns}, spec: {type: ClusterIP, clusterIP: 10.96.0.2, ports: [{port: 80, protocol: TCP}]}}
slices:
  - metadata: {name: s, namespace: ns, labels: {kubernetes.io/service-name: a}}
    addressType: IPv4
    ports: [{name: "", port: 8080, protocol: TCP}]
    endpoints: [{addresses: [10.0.0.1], conditions: {}}]`), &c); err != nil {
		t.Fatal(err)
	}
	for i := range c.Services {
		cluster.SetService(&c.Services[i])
	}
	actions := func() string {
		var all []string
		for _, s := range cluster.State("node") {
			all = append(all, s.Name+" "+string(s.Families[0].Ports[0].Internal))
		}
		return strings.Join(all, ", ")
	}
	for _, step := range []struct{ service, want string }{
		{"a", "a forward, b reject"},
		{"b", "a reject, b forward"},
		{"", "a reject, b reject"},
	} {
		c.Slices[0].Labels["kubernetes.io/service-name"] = step.service
		cluster.SetSlice(&c.Slices[0])
		if got := actions(); got != step.want {
			t.Errorf("the slice is of %q: %s, want %s", step.service, got, step.want)
		}
	}
	cluster.DeleteService("ns", "a")
	cluster.DeleteService("ns", "b")
	if len(cluster.services) != 0 || len(cluster.slices) != 0 {
		t.Errorf("%d services and %d slices are left of an empty cluster", len(cluster.services), len(cluster.slices))
	}
}

// TestManySlices: of many slices that name one address, the first in the order of names counts.
func TestManySlices(t *testing.T) {
	for _, first := range []string{"slice-00", "slice-49"} {
		cluster, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		cluster.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}}})
		for i := range 50 {
			name := fmt.Sprintf("slice-%02d", i)
			cluster.SetSlice(&discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080))}},
				Endpoints: []discoveryv1.Endpoint{
					{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(name == first), Serving: new(false)}},
					{Addresses: []string{fmt.Sprintf("10.0.1.%d", i*37%50)}, Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}},
				},
			})
		}
		want := map[string]Action{"slice-00": Forward, "slice-49": Reject}[first]
		if got := cluster.State("node")[0].Families[0].Ports[0].Internal; got != want {
			t.Errorf("%s of 50 slices has the endpoint ready: %s, want %s", first, got, want)
		}
	}
}

// TestOptions: what is refused.
func TestOptions(t *testing.T) {
	for _, bad := range [][]string{{"192.0.2.1"}, {"primary", "192.0.2.0/24"}, {""}, {"192.0.2.0/33"}} {
		if _, err := New(Options{NodePortAddresses: bad}); err == nil || !strings.Contains(err.Error(), "not a prefix") {
			t.Errorf("node port addresses %q: error %v, want one that says what is no prefix", bad, err)
		}
	}
}

// TestChoice: of generated clusters, the reasons that Choice gives fit what State decides, and Names knows each endpoint.
// Every reason occurs.
func TestChoice(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(2000) {
		c := nodestatetest.Generate(seed)
		cluster, _, err := apply(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range cluster.State(c.NodeName) {
			for _, f := range s.Families {
				for _, p := range f.Ports {
					is, ok := cluster.Choice(c.NodeName, s.Namespace, s.Name, f.Family, p.Name, p.Protocol)
					usable := is.Ready
					switch {
					case is.Ready == 0:
						usable = is.Terminating
					case is.Hints != NoHints:
						usable = is.Hinted
					}
					got := 0
					for _, e := range p.Endpoints {
						if e.Internal {
							got++
						}
						at := netip.AddrPortFrom(netip.MustParseAddr(e.Address), uint16(e.Port))
						if !cluster.Names(s.Namespace, s.Name, f.Family, at) {
							t.Errorf("seed %d: no slice of %s names %s", seed, s.Name, at)
						}
					}
					if !ok || is.InternalToLocal != s.InternalTrafficToLocal || is.ExternalToLocal != s.ExternalTrafficToLocal ||
						(is.Ready+is.Terminating == 0) != (p.Internal == Reject) || !s.InternalTrafficToLocal && usable != got {
						t.Errorf("seed %d: %s port %q: %+v, %v, and the state is %+v", seed, s.Name, p.Name, is, ok, p)
					}
					seen[string(is.Hints)], seen[fmt.Sprint(is.Ready == 0 && is.Terminating > 0)] = true, true
				}
			}
		}
	}
	for _, want := range []Hints{NoHints, NodeHints, ZoneHints, "true", "false"} {
		if !seen[string(want)] {
			t.Errorf("no cluster has %q", want)
		}
	}

	cluster, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if is, ok := cluster.Choice("n", "shop", "web", IPv4, "http", TCP); ok {
		t.Errorf("a Service that does not exist: %+v", is)
	}
	if cluster.Names("shop", "web", IPv4, netip.MustParseAddrPort("192.0.2.1:80")) {
		t.Error("a Service that does not exist has an endpoint")
	}
}

// FuzzState: no objects make State panic, or the state after changes differ from one from scratch.
func FuzzState(f *testing.F) {
	for seed := range uint64(20) {
		data, err := json.Marshal(nodestatetest.Generate(seed))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var c nodestatetest.Case
		if json.Unmarshal(data, &c) != nil {
			return
		}
		cluster, view, err := apply(c)
		if err != nil {
			return
		}
		if diff := cmp.Diff(cluster.State(c.NodeName), view.State()); diff != "" {
			t.Errorf("- from scratch + view:\n%s", diff)
		}
	})
}

func Example() {
	cluster, err := New(Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	cluster.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1",
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}},
	})
	view := cluster.View("node-1")
	for _, s := range view.State() {
		fmt.Println(s.Namespace, s.Name, s.Families[0].ClusterIP, s.Families[0].Ports[0].Internal)
	}
	cluster.DeleteService("default", "web")
	fmt.Println("revision", view.Rev(), "services", len(view.State()))
	// Output:
	// default web 10.96.0.1 reject
	// revision 2 services 0
}
