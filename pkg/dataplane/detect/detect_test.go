// SPDX-License-Identifier: Apache-2.0

package detect_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/detect"
)

func TestDecide(t *testing.T) {
	for _, row := range []struct {
		name     string
		evidence detect.Evidence
		want     dataplane.Proxy
	}{
		{"nftables", detect.Evidence{NFTables: true, Devices: []string{"lo", "eth0"}}, dataplane.Proxy{Mode: dataplane.NFTables}},
		{"iptables-nft", detect.Evidence{IPTablesNFT: true}, dataplane.Proxy{Mode: dataplane.IPTables}},
		{"iptables-legacy", detect.Evidence{IPTablesLegacy: true}, dataplane.Proxy{Mode: dataplane.IPTables, Legacy: true}},
		{"IPVS, which has chains, too", detect.Evidence{IPTablesNFT: true, Devices: []string{"kube-ipvs0"}},
			dataplane.Proxy{Reason: "kube-proxy in mode ipvs: not supported"}},
		{"two modes", detect.Evidence{NFTables: true, IPTablesLegacy: true},
			dataplane.Proxy{Reason: "rules of kube-proxy in several modes (nftables, iptables-legacy): which of them packets meet is not known"}},
		{"Cilium instead", detect.Evidence{Devices: []string{"cilium_net", "cilium_host", "lxc1"}},
			dataplane.Proxy{Others: []string{"Cilium"}, Reason: "no rules of kube-proxy; seen: Cilium"}},
		{"Cilium beside", detect.Evidence{IPTablesNFT: true, Devices: []string{"cilium_host"}},
			dataplane.Proxy{Mode: dataplane.IPTables, Others: []string{"Cilium"}}},
		{"OVN", detect.Evidence{Devices: []string{"ovn-k8s-mp0"}},
			dataplane.Proxy{Others: []string{"OVN-Kubernetes"}, Reason: "no rules of kube-proxy; seen: OVN-Kubernetes"}},
		{"kube-router", detect.Evidence{Devices: []string{"kube-dummy-if", "kube-bridge"}},
			dataplane.Proxy{Others: []string{"kube-router"}, Reason: "no rules of kube-proxy; seen: kube-router"}},
		{"nothing", detect.Evidence{Devices: []string{"lo"}},
			dataplane.Proxy{None: true, Reason: "no rules of kube-proxy, and no other proxy that is known"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if diff := cmp.Diff(row.want, detect.Decide(row.evidence)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
