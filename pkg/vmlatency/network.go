// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// network is the decoded config of a NetworkAttachmentDefinition.
type network struct {
	// kind is the type of the first plugin; empty if the config is on the nodes.
	kind string
	// bridge that the first plugin attaches to; empty for other plugins.
	bridge  string
	binding checkup.InterfaceBinding
	// ranges of addresses that the config assigns or routes.
	ranges []netip.Prefix
	// unfit says why a check cannot measure the network with addresses of its own; empty if it can.
	unfit string
}

// plugin is the part of a CNI network configuration that is used here.
type plugin struct {
	Type   string `json:"type"`
	Bridge string `json:"bridge"`
	// Subnets and Role are of OVN-Kubernetes, and strings there. Other plugins may use the names for other things.
	Subnets any `json:"subnets"`
	Role    any `json:"role"`
}

// ovnKubernetes is the type of the networks of OVN-Kubernetes, user-defined networks among them.
const ovnKubernetes = "ovn-k8s-cni-overlay"

// unfit says why a check cannot measure a network of the plugin; empty if it can. With subnets, OVN-Kubernetes assigns
// the addresses, and its port security drops packets from other ones: that would look like a broken network
// (OVN-Kubernetes, docs/features/multiple-networks/multi-homing.md: without subnets, port security only prevents
// MAC spoofing).
func (p plugin) unfit() string {
	switch {
	case p.Type != ovnKubernetes:
		return ""
	case p.Role == "primary":
		return "it is a primary user-defined network, to which VMs cannot be attached as to a secondary network: " +
			"measure a network with the role secondary, without subnets"
	case p.Subnets != nil && p.Subnets != "":
		return "it has subnets, from which OVN-Kubernetes assigns the addresses: its port security drops packets from " +
			"the addresses that a check assigns: measure a network without subnets"
	}
	return ""
}

// Why a network may not carry the frames of a VM that is bound by a bridge.
const (
	otherMAC = "discards frames for other MAC addresses than that of its own interface, and a VM that is bound by a " +
		"bridge has another"
	routed = "routes to the addresses that its IPAM assigned, and a check assigns other ones"
)

// unbridged says of types of networks why VMs that are bound by a bridge may have no connectivity on them, although the
// network works.
var unbridged = map[string]string{
	"macvlan": otherMAC, "ipvlan": otherMAC, "macvtap": "needs a binding of its own, and VMs are bound by a bridge",
	"ptp": routed, "calico": routed, "cilium-cni": routed, "flannel": routed,
}

// doubt says why loss between VMs may not be the network's fault; empty if nothing is known.
func doubt(kind string, binding checkup.InterfaceBinding) string {
	if why := unbridged[kind]; why != "" && binding == checkup.BindingBridge {
		return fmt.Sprintf("type %s %s", kind, why)
	}
	return ""
}

// parseNetwork decodes spec.config of a NetworkAttachmentDefinition: a CNI network configuration or configuration list
// (containernetworking/cni, SPEC.md, section 1). An empty config gives the zero value with a bridge binding.
func parseNetwork(config string) (network, error) {
	n := network{binding: checkup.BindingBridge}
	if strings.TrimSpace(config) == "" {
		return n, nil
	}
	var raw any
	if err := json.Unmarshal([]byte(config), &raw); err != nil {
		return n, fmt.Errorf("its config is not JSON: %w", err)
	}
	var list struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(config), &list); err != nil {
		return n, fmt.Errorf("its config is not a CNI configuration: %w", err)
	}
	plugins := list.Plugins
	if plugins == nil {
		plugins = []plugin{list.plugin}
	}
	if len(plugins) == 0 {
		return n, errors.New("its config is a list without plugins")
	}
	for i, p := range plugins {
		switch {
		case p.Type == "" && list.Plugins == nil:
			return n, errors.New("its config has neither type nor plugins")
		case p.Type == "":
			return n, fmt.Errorf("its config has no type at plugins[%d]", i)
		case p.Type == "sriov":
			n.binding = checkup.BindingSRIOV
		}
	}
	n.kind, n.bridge, n.unfit = plugins[0].Type, plugins[0].Bridge, plugins[0].unfit()
	n.ranges = rangesIn(raw, nil)
	return n, nil
}

// rangesIn appends every CIDR in a decoded JSON value, in any field of the IPAM plugin: subnet, range, addresses,
// subnets separated by commas, "first-last/length". Default routes are skipped.
func rangesIn(v any, ranges []netip.Prefix) []netip.Prefix {
	switch v := v.(type) {
	case map[string]any:
		for _, value := range v {
			ranges = rangesIn(value, ranges)
		}
	case []any:
		for _, value := range v {
			ranges = rangesIn(value, ranges)
		}
	case string:
		for part := range strings.SplitSeq(v, ",") {
			part = strings.TrimSpace(part)
			if _, last, ok := strings.Cut(part, "-"); ok {
				part = strings.TrimSpace(last)
			}
			if p, err := netip.ParsePrefix(part); err == nil && p.Bits() > 0 {
				ranges = append(ranges, p.Masked())
			}
		}
	}
	return ranges
}
