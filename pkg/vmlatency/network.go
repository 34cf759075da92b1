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

// network is what a NetworkAttachmentDefinition says of how VMs are plugged in.
type network struct {
	// kind is the type of the first plugin; empty where the config is on the nodes.
	kind string
	// bridge that the first plugin plugs into; empty for others.
	bridge  string
	binding checkup.InterfaceBinding
	// ranges that the config names, of addresses that it gives out or routes.
	ranges []netip.Prefix
}

// plugin is the part of a CNI network configuration that is of interest here.
type plugin struct {
	Type   string `json:"type"`
	Bridge string `json:"bridge"`
}

// parseNetwork reads spec.config of a NetworkAttachmentDefinition: a CNI network
// configuration, or a list of them (containernetworking/cni, SPEC.md, section 1).
// An empty one says nothing.
func parseNetwork(config string) (network, error) {
	n := network{binding: checkup.BindingBridge}
	if strings.TrimSpace(config) == "" {
		return n, nil
	}
	var raw any
	if err := json.Unmarshal([]byte(config), &raw); err != nil {
		return n, fmt.Errorf("its config is no JSON: %w", err)
	}
	var list struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(config), &list); err != nil {
		return n, fmt.Errorf("its config is no CNI configuration: %w", err)
	}
	plugins := list.Plugins
	if plugins == nil {
		plugins = []plugin{list.plugin}
	}
	if len(plugins) == 0 {
		return n, errors.New("its config is a list without a plugin")
	}
	for i, p := range plugins {
		switch {
		case p.Type == "" && list.Plugins == nil:
			return n, errors.New("its config names no plugin: it has neither type nor plugins")
		case p.Type == "":
			return n, fmt.Errorf("its config has no type in plugins[%d]", i)
		case p.Type == "sriov":
			n.binding = checkup.BindingSRIOV
		}
	}
	n.kind, n.bridge = plugins[0].Type, plugins[0].Bridge
	n.ranges = rangesIn(raw, nil)
	return n, nil
}

// rangesIn appends every CIDR in a decoded JSON value, whatever the IPAM plugin
// calls its fields: subnet, range, addresses, subnets with commas between,
// "first-last/length". Default routes are none.
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
