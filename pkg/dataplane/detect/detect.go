// SPDX-License-Identifier: Apache-2.0

// Package detect finds out which service proxy a node has, and reads what it programmed if this project knows how. It
// looks at what is there: tables and chains of kube-proxy, and network devices of others.
package detect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// Evidence is what is there in one family.
type Evidence struct {
	NFTables       bool     `json:"nftables,omitempty"`       // the table kube-proxy
	IPTablesNFT    bool     `json:"iptablesNFT,omitempty"`    // nat/KUBE-SERVICES, of iptables-nft
	IPTablesLegacy bool     `json:"iptablesLegacy,omitempty"` // the same of iptables-legacy
	Devices        []string `json:"devices,omitempty"`        // names of the node's network devices
}

// programs are those that may serve Services, by names of their devices; a star is for any end.
var programs = map[string]string{
	"cilium_host": "Cilium", "cilium_net": "Cilium", "cilium_vxlan": "Cilium", "ovn-k8s-mp0": "OVN-Kubernetes",
	"kube-bridge": "kube-router", "kube-dummy-if": "kube-router", "antrea-gw0": "Antrea", "bpfin.cali": "Calico eBPF",
	"bpfout.cali": "Calico eBPF", "ovn0": "Kube-OVN",
}

// ipvsDevice is where kube-proxy keeps the addresses of Services in its mode IPVS.
const ipvsDevice = "kube-ipvs0"

// Decide says what the evidence means.
func Decide(e Evidence) dataplane.Proxy {
	var p dataplane.Proxy
	for _, device := range e.Devices {
		if program := programs[device]; program != "" && !slices.Contains(p.Others, program) {
			p.Others = append(p.Others, program)
		}
	}
	slices.Sort(p.Others)
	var modes []string
	if slices.Contains(e.Devices, ipvsDevice) { // it has chains of the mode iptables, too
		p.Reason = "kube-proxy in mode ipvs: not supported"
		return p
	}
	if e.NFTables {
		p.Mode, modes = dataplane.NFTables, append(modes, "nftables")
	}
	if e.IPTablesNFT {
		p.Mode, modes = dataplane.IPTables, append(modes, "iptables-nft")
	}
	if e.IPTablesLegacy {
		p.Mode, p.Legacy, modes = dataplane.IPTables, true, append(modes, "iptables-legacy")
	}
	switch {
	case len(modes) > 1:
		p.Mode, p.Legacy = "", false
		p.Reason = fmt.Sprintf("rules of kube-proxy in several modes (%s): which of them packets meet is not known", strings.Join(modes, ", "))
	case len(modes) == 0 && len(p.Others) > 0:
		p.Reason = fmt.Sprintf("no rules of kube-proxy; seen: %s", strings.Join(p.Others, ", "))
	case len(modes) == 0:
		p.None, p.Reason = true, "no rules of kube-proxy, and no other proxy that is known"
	}
	return p
}
