// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func TestParseNetwork(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		kind, bridge string
		binding      checkup.InterfaceBinding
		ranges       string
		unfit        bool
		err          string
	}{
		{name: "none", binding: checkup.BindingBridge},
		{name: "spaces", config: " \n", binding: checkup.BindingBridge},
		{name: "bridge", config: `{"cniVersion": "0.3.1", "name": "br10", "type": "bridge", "bridge": "br10", "ipam": {}}`, kind: "bridge", bridge: "br10", binding: checkup.BindingBridge},
		{name: "bridge in a list", config: `{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "cnv-bridge", "bridge": "br1"}, {"type": "tuning"}]}`, kind: "cnv-bridge", bridge: "br1", binding: checkup.BindingBridge},
		{name: "macvlan", config: `{"type": "macvlan", "master": "eth1"}`, kind: "macvlan", binding: checkup.BindingBridge},
		{name: "sriov", config: `{"type": "sriov", "vlan": 0}`, kind: "sriov", binding: checkup.BindingSRIOV},
		{name: "sriov in a list", config: `{"plugins": [{"type": "sriov"}, {"type": "tuning"}]}`, kind: "sriov", binding: checkup.BindingSRIOV},
		{name: "sriov behind another", config: `{"plugins": [{"type": "tuning"}, {"type": "sriov"}]}`, kind: "tuning", binding: checkup.BindingSRIOV},
		{name: "a name like it", config: `{"type": "bridge", "name": "sriov", "bridge": "sriov"}`, kind: "bridge", bridge: "sriov", binding: checkup.BindingBridge},
		{
			name: "host-local", binding: checkup.BindingBridge, kind: "bridge", ranges: "10.1.0.0/16 10.2.0.0/24 fd00:1::/64",
			config: `{"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.0.0/16", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
				"ranges": [[{"subnet": "10.2.0.0/24", "rangeStart": "10.2.0.10"}], [{"subnet": "fd00:1::/64"}]]}}`,
		},
		{
			name: "whereabouts, static and OVN", binding: checkup.BindingBridge, kind: "ovn-k8s-cni-overlay", unfit: true, ranges: "10.100.0.0/24 10.5.0.0/28 10.6.0.0/24 2001:db8::/64 10.7.0.0/24",
			config: `{"type": "ovn-k8s-cni-overlay", "subnets": "10.100.0.0/24, 2001:db8::/64", "ipam": {"range": "10.5.0.1-10.5.0.9/28", "ipRanges": [{"range": "10.6.0.0/24"}], "addresses": [{"address": "10.7.0.5/24"}]}}`,
		},
		{name: "OVN without subnets", config: `{"type": "ovn-k8s-cni-overlay", "topology": "localnet", "subnets": ""}`, kind: "ovn-k8s-cni-overlay", binding: checkup.BindingBridge},
		{name: "OVN, layer 3", config: `{"plugins": [{"type": "ovn-k8s-cni-overlay", "topology": "layer3", "subnets": "10.128.0.0/16/24"}]}`, kind: "ovn-k8s-cni-overlay", binding: checkup.BindingBridge, unfit: true},
		{name: "a primary network", config: `{"type": "ovn-k8s-cni-overlay", "topology": "layer2", "role": "primary"}`, kind: "ovn-k8s-cni-overlay", binding: checkup.BindingBridge, unfit: true},
		{name: "another plugin's subnets", config: `{"type": "bridge", "subnets": ["x"], "role": 3}`, kind: "bridge", binding: checkup.BindingBridge},
		{name: "no JSON", config: `{"type": bridge}`, err: "its config is not JSON: invalid character 'b' looking for beginning of value"},
		{name: "something behind it", config: `{} {}`, err: "its config is not JSON: invalid character '{' after top-level value"},
		{name: "another JSON", config: `["bridge"]`, err: "its config is not a CNI configuration: json: cannot unmarshal array into Go value of type struct"},
		{name: "another type", config: `{"type": 3}`, err: "its config is not a CNI configuration: json: cannot unmarshal number into Go struct field"},
		{name: "no plugin", config: `{"name": "x"}`, err: "its config has neither type nor plugins"},
		{name: "an empty list", config: `{"plugins": []}`, err: "its config is a list without plugins"},
		{name: "no type in a list", config: `{"plugins": [{"type": "bridge"}, {}]}`, err: "its config has no type at plugins[1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := parseNetwork(tt.config)
			if tt.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			ranges, want := strings.Fields(strings.Trim(fmt.Sprint(n.ranges), "[]")), strings.Fields(tt.ranges)
			slices.Sort(ranges)
			slices.Sort(want)
			if n.kind != tt.kind || n.bridge != tt.bridge || n.binding != tt.binding || (n.unfit != "") != tt.unfit || !slices.Equal(ranges, want) {
				t.Errorf("%+v, want %+v", n, tt)
			}
		})
	}
}

// FuzzParseNetwork: no config panics, and every one has a binding or an error.
func FuzzParseNetwork(f *testing.F) {
	for _, seed := range []string{``, `{"type": "bridge", "bridge": "br10", "ipam": {"subnet": "10.0.0.0/8"}}`, `{"plugins": [{"type": "sriov"}]}`, `[[["1-2/3"]]]`, `null`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, config string) {
		n, err := parseNetwork(config)
		if err == nil && n.binding != checkup.BindingBridge && n.binding != checkup.BindingSRIOV {
			t.Errorf("%q: binding %q", config, n.binding)
		}
		for _, r := range n.ranges {
			if !r.IsValid() || r.Bits() == 0 {
				t.Errorf("%q: range %v", config, r)
			}
		}
	})
}
