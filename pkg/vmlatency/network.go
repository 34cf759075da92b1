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
}

// plugin is the part of a CNI network configuration that is used here.
type plugin struct {
	Type   string `json:"type"`
	Bridge string `json:"bridge"`
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
	n.kind, n.bridge = plugins[0].Type, plugins[0].Bridge
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
