// SPDX-License-Identifier: Apache-2.0

package detect_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
)

// sound checks what holds for each table, whatever the rules were.
func sound(t *testing.T, have dataplane.Table) {
	t.Helper()
	if len(have.Unknown) > dataplane.MaxUnknown {
		t.Errorf("%d rules not understood, want %d at most", len(have.Unknown), dataplane.MaxUnknown)
	}
	if len(have.Frontends)%len(dataplane.Origins) != 0 {
		t.Errorf("%d frontends: not each from all origins", len(have.Frontends))
	}
	for _, f := range have.Frontends {
		if (f.Action == dataplane.Forward) != (len(f.Endpoints) > 0) && len(f.Unknown) == 0 && f.AffinitySeconds == 0 {
			t.Errorf("%s from %s: %s to %d endpoints", f.Key, f.From, f.Action, len(f.Endpoints))
		}
		if len(f.Unknown) > dataplane.MaxUnknown {
			t.Errorf("%s from %s: %d rules not understood", f.Key, f.From, len(f.Unknown))
		}
	}
	for _, d := range dataplane.Compare(have, have) {
		if d.Kind != dataplane.Unmeasured && d.Kind != dataplane.Lost && d.Kind != dataplane.WrongSources {
			t.Errorf("a table differs from itself: %+v", d)
		}
	}
}

func FuzzSave(f *testing.F) {
	f.Add("*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n" +
		"-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -m comment --comment \"ns/web:http cluster IP\" -j KUBE-SVC-A\n" +
		"-A KUBE-SVC-A ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ\n-A KUBE-SVC-A -m statistic --mode random --probability 0.5 -j KUBE-SEP-A\n" +
		"-A KUBE-SEP-A -p tcp -m recent --set --name KUBE-SEP-A --mask 255.255.255.255 --rsource -j DNAT --to-destination 10.0.0.1:80\nCOMMIT\n")
	f.Add("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j KUBE-SERVICES\n[1:2] -A KUBE-NODEPORTS -p udp --dport 1 -g KUBE-SERVICES\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			have, _ := iptables.ParseSave(text, family)
			sound(t, have)
		}
	})
}

// FuzzDump takes a dump that was read, after the decoding of netlink messages.
func FuzzDump(f *testing.F) {
	for _, kind := range []string{`{"chains":[{"table":"kube-proxy","name":"services","hook":"prerouting"}],"sets":[{"table":"kube-proxy","name":"m","keyLen":12,
"elements":[{"key":"CmAAAQYAAAAAUAAA","verdict":{"code":-4,"chain":"service-A-ns/web/tcp/http"}}]}],"rules":[{"table":"kube-proxy","chain":"services","exprs":[
{"name":"payload","data":"CAABAAAAAAEIAAIAAAAAAQgAAwAAAAAQCAAEAAAAAAQ="},{"name":"meta","data":"CAACAAAAABAIAAEAAAAACQ=="},{"name":"lookup","data":"BgABAG0AAAAIAAIAAAAAAQgAAwAAAAAA"}]}]}`} {
		f.Add([]byte(kind))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var d netfilter.Dump
		if json.Unmarshal(text, &d) != nil || len(d.Rules) > 1000 {
			return
		}
		have, _ := nftables.Parse(&d)
		sound(t, have)
		have, _ = iptables.Parse(&d)
		sound(t, have)
	})
}

func FuzzLegacy(f *testing.F) {
	f.Add(slices.Concat(make([]byte, 88), []byte{112, 0, 152, 0}, make([]byte, 60)), false)
	f.Fuzz(func(t *testing.T, entries []byte, ipv6 bool) {
		family := dataplane.IPv4
		if ipv6 {
			family = dataplane.IPv6
		}
		have, _, err := iptables.ParseLegacy([]netfilter.LegacyTable{{Name: "nat", Hooks: [5]int{0, -1, -1, 152, -1}, Entries: entries}}, family)
		if err == nil {
			sound(t, have)
		}
	})
}

// FuzzIPVS takes what was read of the mode ipvs, after the decoding of netlink messages.
func FuzzIPVS(f *testing.F) {
	f.Add([]byte(`{"program":"kube-proxy","device":["10.96.0.1"],"node":["192.0.2.1"],"servers":[
{"protocol":"TCP","address":"10.96.0.1","port":80,"scheduler":"rr","affinitySeconds":60,"destinations":[{"address":"10.0.0.1:80","weight":1},{"address":"10.0.0.2:80","weight":0}]},
{"protocol":"UDP","address":"192.0.2.1","port":30053,"scheduler":"rr"},{"mark":16384,"scheduler":"fo"}],
"rules":{"chains":[{"table":"nat","name":"PREROUTING"},{"table":"nat","name":"KUBE-SERVICES"}],"ipsets":[{"index":1,"name":"KUBE-CLUSTER-IP","type":"hash:ip,port",
"entries":[{"address":"10.96.0.1/32","protocol":"TCP","port":80}]}],"rules":[{"table":"nat","chain":"KUBE-SERVICES","exprs":[
{"name":"match","data":"CAABAHNldAAIAAIAAAAAARQAAwABAAIAAAAAAAAAAAAAAAAAAAA="}]}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var k ipvs.Kernel
		if json.Unmarshal(text, &k) != nil || k.Rules == nil || len(k.Rules.Rules) > 1000 || len(k.Servers) > 100 || len(k.Node) > 10 {
			return
		}
		if have, err := ipvs.Parse(&k); err == nil {
			sound(t, have)
		}
	})
}
