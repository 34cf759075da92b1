// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kinds/toy"
)

// TestToyKind: a kind in the map works in every verb that needs no cluster. Setup,
// judging and the printers are in the test of the same name in tasks/setup.
func TestToyKind(t *testing.T) {
	toy.Add(t)
	dir := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	plan := func(check string) string {
		return "package p\n\nimport \"github.com/checkplan/checkplan/schema\"\n\nplan: racks: schema.#Plan & {checks: rack: " + check + "}\n"
	}
	write("plan.cue", plan("toy: {}"))
	write("empty.cue", plan(`toy: label: ""`))
	write("typo.cue", plan("toy: lable: \"x\""))
	snapshot, err := cluster.EncodeSnapshot(&cluster.Snapshot{
		APIVersion: checkup.APIVersion, Kind: cluster.SnapshotKind, ServerVersion: "v1.35.0",
		Nodes: []cluster.Node{{Name: "n0", Ready: "True", Labels: map[string]string{"rack": "a"}}, {Name: "n1", Ready: "True"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	write("snapshot.json", string(snapshot))

	for _, tt := range []struct {
		args []string
		code int
		want []string // in the output, in this order
	}{
		{[]string{"vet", "plan.cue"}, exitOK, nil},
		{[]string{"vet", "empty.cue"}, exitUsage, []string{"empty.cue:5:", "checks.rack.toy.label: is empty: want the name of a label"}},
		{[]string{"vet", "typo.cue"}, exitUsage, []string{"typo.cue:5:", "lable"}},
		{[]string{"compile", "plan.cue"}, exitOK, []string{"kind: Pipeline", "name: rack.label", "setup-rack"}},
		{[]string{"explain", "--snapshot", "snapshot.json", "plan.cue"}, exitOK, []string{"check rack (toy)", "nodes         2 nodes"}},
		{[]string{"explain", "--snapshot", "snapshot.json", "--output", "json", "plan.cue"}, exitOK, []string{`"units": [`, `"n1"`}},
		{[]string{"catalog", "--plans", "plan.cue", "out"}, exitOK, nil},
		{[]string{"__complete", "run", "plan.cue", "--set", ""}, exitOK, []string{"gate=", "rack.label="}},
		{[]string{"__complete", "run", "plan.cue", "--plan", ""}, exitOK, []string{"racks"}},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			var out bytes.Buffer
			env := &environment{stdin: strings.NewReader(""), stdout: &out, stderr: &out, dir: dir, getenv: func(string) string { return "" }}
			if code := planner(t.Context(), env, tt.args); code != tt.code {
				t.Fatalf("exit code %d, want %d:\n%s", code, tt.code, out.String())
			}
			rest := out.String()
			for _, want := range tt.want {
				_, after, ok := strings.Cut(rest, want)
				if !ok {
					t.Fatalf("the output does not contain %q in its place:\n%s", want, out.String())
				}
				rest = after
			}
		})
	}
	pipeline, err := os.ReadFile(filepath.Join(dir, "out", "pipeline", "racks", "racks.yaml"))
	if err != nil || !strings.Contains(string(pipeline), "rack.label") {
		t.Errorf("the catalog has no pipeline of the plan with its tunable: %v\n%s", err, pipeline)
	}
}
