// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup/hostile"
	"github.com/checkplan/checkplan/pkg/load"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// TestHostileTexts: names of files and objects, and texts of plans and clusters, are harmless in what planner prints.
func TestHostileTexts(t *testing.T) {
	for name, show := range map[string]func(out *bytes.Buffer){
		"error": func(out *bytes.Buffer) {
			env := &environment{stdin: out, stdout: out, stderr: out, dir: t.TempDir(), getenv: func(string) string { return "" }}
			if code := planner(t.Context(), env, []string{"vet", "absent" + "\x1b\u202e\n::error::forged.cue"}); code == 0 {
				t.Error("want that the file does not exist")
			}
		},
		"screen": func(out *bytes.Buffer) {
			s := newScreen(out, terminal{})
			s.show("%s", hostile.Text)
			s.say("task %s", hostile.Text)
		},
		"explain": func(out *bytes.Buffer) {
			x := explained(t)
			hostile.Fill(x, true)
			if err := x.print(out, true); err != nil {
				t.Error(err)
			}
		},
		"explain --output json": func(out *bytes.Buffer) {
			x := explained(t)
			hostile.Fill(x, true)
			if err := print.Encode(out, x); err != nil {
				t.Error(err)
			}
		},
		"vet --output json": func(out *bytes.Buffer) {
			problem := load.Problem{File: "a", Message: "b"}
			hostile.Fill(&problem, true)
			if err := print.Encode(out, problem); err != nil {
				t.Error(err)
			}
		},
		"state": func(out *bytes.Buffer) {
			if err := stateText(out, hostileServices()); err != nil {
				t.Error(err)
			}
		},
		"state --watch": func(out *bytes.Buffer) {
			s, stdout := newServices(t, stateOptions{})
			s.view = s.objects.View("node-a")
			s.printed = map[string]*nodestate.ServiceEndpoints{"shop/web" + hostile.Text: nil}
			s.known, s.rev = true, s.view.Rev()+1
			if err := s.print(); err != nil {
				t.Error(err)
			}
			out.Write(stdout.Bytes())
		},
		"state --output json": func(out *bytes.Buffer) {
			for _, watch := range []bool{false, true} {
				s, stdout := newServices(t, stateOptions{watch: watch})
				if err := s.printJSON(hostileServices()); err != nil {
					t.Error(err)
				}
				out.Write(stdout.Bytes())
			}
		},
		"compile": func(out *bytes.Buffer) {
			plan := planOf(t, largePlan)
			plan.Description += "\u202e\u2066\ufeff forged" // YAML refuses control characters itself
			compiled, err := tekton.Compile(plan, tekton.Options{Namespace: "ns"})
			if err != nil {
				t.Fatal(err)
			}
			text, err := tekton.Encode(compiled.Applied()...)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(text)
		},
	} {
		var out bytes.Buffer
		show(&out)
		hostile.Check(t, name, out.String())
	}
}

// explained is what explain has of a plan and a cluster.
func explained(t *testing.T) *explanation {
	t.Helper()
	x, err := explain(planOf(t, largePlan), largeCluster(50), tekton.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// hostileServices are what state prints of a Service with all that it may have.
func hostileServices() []*nodestate.ServiceEndpoints {
	address := []string{"192.0.2.1"}
	s := &nodestate.ServiceEndpoints{
		Namespace: "shop", Name: "web", Type: "LoadBalancer", AffinitySeconds: 1, HealthCheckNodePort: 30000, Families: []nodestate.Family{{
			Family: "IPv4", ClusterIP: "10.96.0.1", ExternalIPs: address, LoadBalancerIPs: address, LoadBalancerSources: address, NodePortPrefixes: address,
			Ports: []nodestate.Port{{
				Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080, Internal: nodestate.Forward, External: nodestate.Forward,
				Endpoints:   []nodestate.Endpoint{{Address: "10.0.0.1", Port: 8080, Internal: true, External: true}},
				Established: []nodestate.Endpoint{{Address: "10.0.0.2", Port: 8080}},
			}},
		}},
	}
	hostile.Fill(s, true)
	return []*nodestate.ServiceEndpoints{s}
}
