// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecodeSnapshot(t *testing.T) {
	const head = `"apiVersion": "checkplan.dev/v1alpha1", "kind": "Snapshot"`
	tests := []struct{ name, data, err string }{
		{"nothing", ``, `read snapshot: not a JSON object of a snapshot: unexpected end of JSON input`},
		{"not JSON", `nodes: []`, `read snapshot: not a JSON object of a snapshot: invalid character 'o' in literal null (expecting 'u')`},
		{"not an object", `[]`, `read snapshot: not a JSON object of a snapshot: json: cannot unmarshal array into Go value of type struct { APIVersion string "json:\"apiVersion\""; Kind string "json:\"kind\"" }`},
		{"another kind", `{"apiVersion": "v1", "kind": "NodeList"}`, `read snapshot: kind is "NodeList", want "Snapshot": record a snapshot with planner explain --record`},
		{"another version", `{"apiVersion": "checkplan.dev/v2", "kind": "Snapshot", "zones": []}`, `read snapshot: apiVersion is "checkplan.dev/v2", want "checkplan.dev/v1alpha1": record it again with planner explain --record`},
		{"a wrong type", `{` + head + `, "nodes": {}}`, `read snapshot: json: cannot unmarshal object into Go struct field Snapshot.nodes of type []cluster.Node`},
		{"trailing data", `{` + head + `} {}`, `read snapshot: not a JSON object of a snapshot: invalid character '{' after top-level value`},
		{"quantities that take hours to parse", `{` + head + `, "nodes": [{"name": "a", "ready": "True", "labels": {"commit": "12e34567"}, "allocatable": {"cpu": "1e-999999999", "pods": "110"}, "requested": {"memory": 1e999999999, "cpu": "1e3"}}],
			"nodes": [{"name": "b", "ready": "True", "requested": {"cpu": "1\u0065-999999999"}}]}`, `read snapshot: nodes.allocatable.cpu: 1e-999999999: exponent is out of range
nodes.requested.memory: 1e999999999: exponent is out of range
nodes.requested.cpu: 1e-999999999: exponent is out of range`},
		{"a quantity of a pod that takes hours to parse", `{` + head + `, "nodes": [], "networkConfig": {
			"diagnostics": {"sourcePlacement": {"nodeSelector": {"commit": "12e34567"}}}, "target": {"priorityClassName": "a-1e345"},
			"source": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1e-999999999"}}}]}}}`, `read snapshot: ` +
			`networkConfig.source.containers.[].resources.requests.cpu: 1e-999999999: exponent is out of range`},
		{"every problem at once", `{` + head + `, "Nodes": [], "nodes": [
			{"name": "a", "ready": "True", "ready": "True", "memory": 3}, {"ready": "True"}, {"name": "a", "ready": "True"}, {"name": "b", "ready": "yes"}],
			"selections": [
				{"selector": "app=x", "pods": [{"name": "n/p", "node": "z"}, {"name": "n/p"}, {}]},
				{"selector": "app=x"}],
			"networks": [{"namespace": "default", "name": "br10"}, {"name": "br10"}, {"namespace": "default"}, {"namespace": "default", "name": "br10"}],
			"ranges": ["10.0.0.0/8", ""],
			"rounds": [{"plan": "p", "check": "c", "round": -1, "created": "2026-01-01T00:00:00Z"}]}`, `read snapshot: unknown field "Nodes"
duplicate field "nodes[0].ready"
unknown field "nodes[0].memory"
nodes[1].name: missing
nodes[2].name: "a": duplicate of nodes[0]
nodes[3].ready: "yes" is not one of True, False, Unknown
selections[0].pods[0].node: node "z" does not exist
selections[0].pods[1].name: "n/p": duplicate of pods[0]
selections[0].pods[2].name: missing
selections[1]: namespace and selector: duplicate of selections[0]
networks[2].name: missing
networks[3]: namespace and name: duplicate of networks[0]
ranges[1]: missing
rounds[0].round: -1: want 0 or more`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := DecodeSnapshot([]byte(test.data))
			if err == nil || err.Error() != test.err {
				t.Errorf("error:\n%v\nwant:\n%s", err, test.err)
			}
		})
	}
}

// TestSnapshotRoundTrip: decoding and encoding the file in testdata gives the same bytes.
func TestSnapshotRoundTrip(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "snapshot.json"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := DecodeSnapshot(data)
	if err != nil {
		t.Fatal(err)
	}
	again, err := EncodeSnapshot(s)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(data), string(again)); diff != "" {
		t.Errorf("encoded again (-file +encoded):\n%s", diff)
	}
}

// FuzzDecodeSnapshot: no input panics, and an accepted snapshot survives encoding and decoding.
func FuzzDecodeSnapshot(f *testing.F) {
	data, err := os.ReadFile(filepath.Join("testdata", "snapshot.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(strings.ReplaceAll(string(data), "worker-1", "worker-2")))
	f.Add([]byte(strings.ReplaceAll(string(data), `"110"`, `"1e-9999"`)))
	f.Add([]byte(`{"apiVersion": "checkplan.dev/v1alpha1", "kind": "Snapshot", "nodes": [{"name": "a", "ready": "True", "podCIDRs": ["x"]}]}`))
	f.Add([]byte(`{"apiVersion": "checkplan.dev/v1alpha1", "kind": "Snapshot", "networkConfig": {"source": {"overhead": {"cpu": "1e-9999"}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := DecodeSnapshot(data)
		if err != nil {
			return
		}
		first, err := EncodeSnapshot(s)
		if err != nil {
			t.Fatalf("accepted, but cannot be encoded: %v", err)
		}
		again, err := DecodeSnapshot(first)
		if err != nil {
			t.Fatalf("accepted and encoded, but cannot be decoded: %v", err)
		}
		second, err := EncodeSnapshot(again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("encoded twice with different bytes (%v):\n%s\n%s", err, first, second)
		}
	})
}
