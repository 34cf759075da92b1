// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestConfigurationOfNetworks(t *testing.T) {
	p, err := newPlan(1, 1, 1, "dual")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	section := func(name, content string) { b.WriteString("-- " + name + " --\n" + content) }
	n := p.Nodes[1]
	conf, err := dirs{state: "/var/lib/checkplan-sandbox"}.multusConfig(n)
	if err != nil {
		t.Fatal(err)
	}
	section("00-multus.conf", string(conf))
	for _, network := range p.l2NetworksOf(n) {
		section(network.name, bridgeCommands(network.name))
		section(network.name+" to "+n.Name, network.plugCommands(n, 4711))
		section(n.Name+" to "+network.name, network.uplinkCommands())
	}
	golden(t, "networks.txt", b.String())
}

// The NetworkAttachmentDefinitions match the networks that the sandbox creates.
func TestNetworkAttachmentDefinitions(t *testing.T) {
	p, err := newPlan(1, 2, 1, "dual")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, n := range p.Nodes {
		for _, network := range p.l2NetworksOf(n) {
			got[network.name] += " " + n.Name
		}
	}
	want := map[string]string{"br10": " control-plane worker-1 worker-2", "br20": " control-plane worker-1"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("nodes of networks (-want +got):\n%s", d)
	}
	objects, err := multusAddon().objects(nil)
	if err != nil {
		t.Fatal(err)
	}
	got = map[string]string{}
	for _, o := range objects {
		if o.GetKind() != "NetworkAttachmentDefinition" {
			continue
		}
		text, _, err := unstructured.NestedString(o.Object, "spec", "config")
		if err != nil {
			t.Fatal(err)
		}
		var config struct{ Name, Type, Bridge, Master string }
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			got[o.GetName()] = "no JSON"
			continue
		}
		if config.Name != o.GetName() {
			t.Errorf("the network of %s has the name %s", o.GetName(), config.Name)
		}
		resourceName := o.GetAnnotations()["k8s.v1.cni.cncf.io/resourceName"]
		got[o.GetName()] = strings.Join([]string{config.Type, config.Bridge + config.Master, resourceName}, " ")
	}
	want = map[string]string{
		"br10":           "bridge br10 " + bridgeResource + "br10",
		"br20":           "bridge br20 " + bridgeResource + "br20",
		"missing-bridge": "bridge br-missing " + bridgeResource + "br-missing",
		"missing-master": "macvlan no-such-link ",
		"broken":         "no JSON",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("definitions (-want +got):\n%s", d)
	}
}

func TestBridgePatch(t *testing.T) {
	capacity := corev1.ResourceList{
		"cpu":                     resource.MustParse("2"),
		bridgeResource + "br10":   resource.MustParse("1k"),
		bridgeResource + "zeroed": resource.MustParse("0"),
		bridgeResource + "gone":   resource.MustParse("1000"),
	}
	want := map[string]any{bridgeResource + "zeroed": "1000", bridgeResource + "gone": nil, bridgeResource + "new": "1000"}
	if d := cmp.Diff(want, bridgePatch(capacity, []string{"br10", "zeroed", "new"})); d != "" {
		t.Errorf("patch (-want +got):\n%s", d)
	}
	delete(capacity, bridgeResource+"zeroed")
	delete(capacity, bridgeResource+"gone")
	if got := bridgePatch(capacity, []string{"br10"}); len(got) != 0 {
		t.Errorf("patch without a difference is %v, want none", got)
	}
}
