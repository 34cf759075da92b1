// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// TestHomeOf: a kiagnose checkup runs in the namespace of its ConfigMap, unless that is one of Kubernetes.
func TestHomeOf(t *testing.T) {
	checkupIn := func(namespace string) checkup.Check {
		return checkup.Check{Spec: &vmlatency.Spec{Kiagnose: &checkup.ConfigMapRef{Namespace: namespace, Name: "coredns"}}}
	}
	for name, tt := range map[string]struct {
		checks map[string]checkup.Check
		want   string
	}{
		"a checkup":                 {map[string]checkup.Check{"latency": checkupIn("vms")}, "vms"},
		"a namespace of Kubernetes": {map[string]checkup.Check{"latency": checkupIn("kube-system")}, ""},
		"without a namespace":       {map[string]checkup.Check{"latency": checkupIn("")}, ""},
		"VMs, but no checkup":       {map[string]checkup.Check{"latency": {Spec: &vmlatency.Spec{}}}, ""},
		"another kind":              {map[string]checkup.Check{"mesh": {Spec: &podmesh.Spec{}}}, ""},
		"two checks":                {map[string]checkup.Check{"latency": checkupIn("vms"), "mesh": {Spec: &podmesh.Spec{}}}, ""},
	} {
		if got := homeOf(&checkup.Plan{Checks: tt.checks}); got != tt.want {
			t.Errorf("%s: got namespace %q, want %q", name, got, tt.want)
		}
	}
}

// TestBrokenTasks: a failed task is printed with its exit code, unless it is the one that a verdict makes fail.
func TestBrokenTasks(t *testing.T) {
	got := brokenTasks(run.Progress{Tasks: []run.TaskProgress{
		{Name: "setup-mesh", Done: true, Failed: true, Message: `"step-setup" exited with code 5: Error`},
		{Name: "probe-mesh", Done: true},
		{Name: "conclude", Done: true, Failed: true, Message: `"step-report" exited with code 4: Error`},
	}})
	want := []string{`task setup-mesh failed: "step-setup" exited with code 5: Error`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
