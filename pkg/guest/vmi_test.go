// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// worksheetOf is that of a check on a cluster with one network of that config.
func worksheetOf(t *testing.T, config string, change func(*vmlatency.Spec)) *checkup.Worksheet {
	t.Helper()
	second := checkup.Duration(time.Second)
	net := checkup.NetworkRef{Namespace: "default", Name: "net"}
	v := &vmlatency.Spec{
		Networks: []checkup.NetworkRef{net}, IPFamilies: checkup.IPFamilies, Duration: 5 * second, Interval: second / 5,
		Guest: checkup.Guest{Memory: "128Mi"}, Timeouts: checkup.Timeouts{Setup: 300 * second, Probe: 120 * second},
	}
	if change != nil {
		change(v)
	}
	s := &cluster.Snapshot{
		Unseen:   []cluster.Unseen{{What: cluster.Nodes, Cause: "no right to"}},
		KubeVirt: &cluster.KubeVirt{Served: true, Object: "kubevirt/kubevirt", Phase: "Deployed", Ready: true},
		Multus:   true, Networks: []cluster.Network{{NetworkRef: net, Config: config, Resource: "example.com/net"}}, Run: "run-uid",
	}
	w, _, err := vmlatency.Expand(&checkup.Plan{Name: "vm-latency", Checks: map[string]checkup.Check{"vms": {Spec: v}}}, "vms", s)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range w.Sources {
		if e.Cause != nil {
			t.Fatalf("%s: %s", e.Name(), e.Cause)
		}
	}
	return w
}

const bridgeConfig = `{"cniVersion": "0.3.1", "name": "net", "type": "bridge", "bridge": "br10", "ipam": {}}`

// TestVMI: what would be created, from the config of the network on. UPDATE=1 writes
// the golden files anew.
func TestVMI(t *testing.T) {
	nodes := func(v *vmlatency.Spec) { v.Pairs = []checkup.NodePair{{Source: "n1", Target: "n2"}} }
	g := &Guests{
		Fleet: &fleet.Fleet{Namespace: "ns", Plan: "vm-latency", RunUID: "run-uid", Now: func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }},
		Image: "registry.example/guest:v1",
	}
	for _, tt := range []struct {
		name, config string
		change       func(*vmlatency.Spec)
	}{
		{"bridge-nodes", bridgeConfig, nodes},
		{"bridge", bridgeConfig, nil},
		{"image", bridgeConfig, func(v *vmlatency.Spec) {
			nodes(v)
			v.Guest = checkup.Guest{Memory: "1Gi", Image: "registry.example/debian:12", Login: &checkup.GuestLogin{User: "debian", Password: "it's: \"yaml\""}}
		}},
		{"sriov", `{"cniVersion": "0.3.1", "name": "net", "type": "sriov", "vlan": 100, "ipam": {}}`, nodes},
		{"sriov-chained", `{"cniVersion": "0.4.0", "name": "net", "plugins": [{"type": "sriov", "vlan": 100, "ipam": {}}, {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}}]}`, nodes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := worksheetOf(t, tt.config, tt.change)
			var got []byte
			for vm := range w.Sources {
				vmi, err := g.VMI(w, vm)
				if err != nil {
					t.Fatal(err)
				}
				b, err := yaml.Marshal(vmi)
				if err != nil {
					t.Fatal(err)
				}
				got = append(append(got, "---\n"...), b...)
			}
			golden(t, filepath.Join("testdata", tt.name+".yaml"), got)
		})
	}
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if os.Getenv("UPDATE") == "1" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got), UPDATE=1 writes it anew:\n%s", path, diff)
	}
}

// TestVMIDiffers: the VMs of two runs have nothing in common that could collide, and
// a chain with sriov in it is plugged in as sriov alone is.
func TestVMIDiffers(t *testing.T) {
	w := worksheetOf(t, bridgeConfig, nil)
	names := map[string]bool{}
	for _, run := range []string{"run-1", "run-2"} {
		g := &Guests{Fleet: &fleet.Fleet{Namespace: "ns", Plan: "p", RunUID: run}}
		for vm := range w.Sources {
			vmi, err := g.VMI(w, vm)
			if err != nil {
				t.Fatal(err)
			}
			names[vmi.Name] = true
			if len(vmi.Name) > 63 {
				t.Errorf("%s is no DNS label", vmi.Name)
			}
		}
	}
	if len(names) != 4 {
		t.Errorf("names %v, want 4", names)
	}
	w.Guests.Guest.Memory = "much"
	if _, err := (&Guests{Fleet: &fleet.Fleet{}}).VMI(w, 0); err == nil || !strings.Contains(err.Error(), `guest.memory: "much" is not a quantity`) {
		t.Errorf("%v, want that the memory is invalid", err)
	}
	if !slices.Equal(w.Assignments[0], []int{1}) {
		t.Errorf("assignments %v", w.Assignments)
	}
}
