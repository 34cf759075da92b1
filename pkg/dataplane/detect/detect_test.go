// SPDX-License-Identifier: Apache-2.0

package detect_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/detect"
)

func TestDecide(t *testing.T) {
	kube, own := []dataplane.Program{dataplane.KubeProxy}, []dataplane.Program{dataplane.ServiceProxy}
	for _, row := range []struct {
		name     string
		evidence detect.Evidence
		want     dataplane.Proxy
	}{
		{"nftables", detect.Evidence{NFTables: kube, Devices: []string{"lo", "eth0"}}, dataplane.Proxy{Mode: dataplane.NFTables}},
		{"iptables-nft", detect.Evidence{IPTablesNFT: kube}, dataplane.Proxy{Mode: dataplane.IPTables}},
		{"iptables-legacy", detect.Evidence{IPTablesLegacy: kube}, dataplane.Proxy{Mode: dataplane.IPTables, Legacy: true}},
		{"IPVS", detect.Evidence{IPVS: kube, Devices: []string{"kube-ipvs0"}}, dataplane.Proxy{Mode: dataplane.IPVS}},
		{"IPVS, and rules of the mode iptables that serve", detect.Evidence{IPTablesNFT: kube, IPVS: kube},
			dataplane.Proxy{Reason: "rules of one proxy in several modes (kube-proxy iptables-nft, kube-proxy ipvs): cannot tell which of them apply to packets"}},
		{"IPVS, with rules in both places", detect.Evidence{IPVS: []dataplane.Program{dataplane.KubeProxy, dataplane.KubeProxy}},
			dataplane.Proxy{Reason: "rules of one proxy in several modes (kube-proxy ipvs, kube-proxy ipvs): cannot tell which of them apply to packets"}},
		{"service-proxy in mode ipvs", detect.Evidence{IPVS: own}, dataplane.Proxy{Mode: dataplane.IPVS, Program: dataplane.ServiceProxy}},
		{"two modes", detect.Evidence{NFTables: kube, IPTablesLegacy: kube},
			dataplane.Proxy{Reason: "rules of one proxy in several modes (kube-proxy nftables, kube-proxy iptables-legacy): cannot tell which of them apply to packets"}},
		{"service-proxy in mode nftables", detect.Evidence{NFTables: own}, dataplane.Proxy{Mode: dataplane.NFTables, Program: dataplane.ServiceProxy}},
		{"service-proxy in mode iptables", detect.Evidence{IPTablesNFT: own}, dataplane.Proxy{Mode: dataplane.IPTables, Program: dataplane.ServiceProxy}},
		{"service-proxy in mode iptables, legacy", detect.Evidence{IPTablesLegacy: own},
			dataplane.Proxy{Mode: dataplane.IPTables, Legacy: true, Program: dataplane.ServiceProxy}},
		{"both, in one mode", detect.Evidence{NFTables: []dataplane.Program{dataplane.KubeProxy, dataplane.ServiceProxy}},
			dataplane.Proxy{Reason: "rules of several proxies (kube-proxy nftables, service-proxy nftables): cannot tell which of them apply to packets"}},
		{"both, in two modes", detect.Evidence{NFTables: own, IPTablesNFT: kube},
			dataplane.Proxy{Reason: "rules of several proxies (service-proxy nftables, kube-proxy iptables-nft): cannot tell which of them apply to packets"}},
		{"service-proxy in mode userspace, which has no rules", detect.Evidence{Devices: []string{"cplan-userspace"}},
			dataplane.Proxy{Others: []string{"service-proxy in mode userspace"}, Reason: "no rules of kube-proxy; seen: service-proxy in mode userspace"}},
		{"Cilium instead", detect.Evidence{Devices: []string{"cilium_net", "cilium_host", "lxc1"}},
			dataplane.Proxy{Others: []string{"Cilium"}, Reason: "no rules of kube-proxy; seen: Cilium"}},
		{"Cilium beside", detect.Evidence{IPTablesNFT: kube, Devices: []string{"cilium_host"}},
			dataplane.Proxy{Mode: dataplane.IPTables, Others: []string{"Cilium"}}},
		{"OVN", detect.Evidence{Devices: []string{"ovn-k8s-mp0"}},
			dataplane.Proxy{Others: []string{"OVN-Kubernetes"}, Reason: "no rules of kube-proxy; seen: OVN-Kubernetes"}},
		{"kube-router", detect.Evidence{Devices: []string{"kube-dummy-if", "kube-bridge"}},
			dataplane.Proxy{Others: []string{"kube-router"}, Reason: "no rules of kube-proxy; seen: kube-router"}},
		{"nothing", detect.Evidence{Devices: []string{"lo"}},
			dataplane.Proxy{None: true, Reason: "no rules of kube-proxy, and no other known proxy"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if diff := cmp.Diff(row.want, detect.Decide(row.evidence)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
