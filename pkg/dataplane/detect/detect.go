// SPDX-License-Identifier: Apache-2.0

// Package detect finds out which service proxy a node has, and reads what it programmed if this project knows how. It
// looks at what is there: tables and chains of kube-proxy and of this project's service-proxy, and network devices of
// others.
package detect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// Evidence is what is there in one family: whose rules, by where they are.
type Evidence struct {
	NFTables       []dataplane.Program `json:"nftables,omitempty"`       // a table of theirs
	IPTablesNFT    []dataplane.Program `json:"iptablesNFT,omitempty"`    // a chain SERVICES of theirs in nat, of iptables-nft
	IPTablesLegacy []dataplane.Program `json:"iptablesLegacy,omitempty"` // the same of iptables-legacy
	IPVS           []dataplane.Program `json:"ipvs,omitempty"`           // an interface of theirs with addresses of Services
	Devices        []string            `json:"devices,omitempty"`        // names of the node's network devices
}

// programs are those that may serve Services, by names of their devices; a star is for any end.
var programs = map[string]string{
	"cilium_host": "Cilium", "cilium_net": "Cilium", "cilium_vxlan": "Cilium", "ovn-k8s-mp0": "OVN-Kubernetes",
	"kube-bridge": "kube-router", "kube-dummy-if": "kube-router", "antrea-gw0": "Antrea", "bpfin.cali": "Calico eBPF",
	"bpfout.cali": "Calico eBPF", "ovn0": "Kube-OVN", dataplane.UserspaceDevice: "service-proxy in mode userspace",
}

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
	owned := map[dataplane.Program]bool{}
	for _, place := range []struct {
		programs []dataplane.Program
		name     string
		mode     dataplane.Mode
	}{
		{e.NFTables, "nftables", dataplane.NFTables}, {e.IPTablesNFT, "iptables-nft", dataplane.IPTables},
		{e.IPTablesLegacy, "iptables-legacy", dataplane.IPTables}, {e.IPVS, "ipvs", dataplane.IPVS},
	} {
		for _, program := range place.programs {
			p.Mode, p.Legacy, p.Program = place.mode, place.name == "iptables-legacy", program
			modes, owned[program] = append(modes, string(program)+" "+place.name), true
		}
	}
	if p.Program == dataplane.KubeProxy {
		p.Program = ""
	}
	switch {
	case len(modes) > 1:
		p.Mode, p.Legacy, p.Program = "", false, ""
		what := "rules of several proxies"
		if len(owned) == 1 {
			what = "rules of one proxy in several modes"
		}
		p.Reason = fmt.Sprintf("%s (%s): cannot tell which of them apply to packets", what, strings.Join(modes, ", "))
	case len(modes) == 0 && len(p.Others) > 0:
		p.Reason = fmt.Sprintf("no rules of kube-proxy; seen: %s", strings.Join(p.Others, ", "))
	case len(modes) == 0:
		p.None, p.Reason = true, "no rules of kube-proxy, and no other known proxy"
	}
	return p
}
