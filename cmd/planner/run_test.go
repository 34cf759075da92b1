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

// TestFailedTasks: a failed task is printed with its exit code, but not the one that a verdict makes fail.
func TestFailedTasks(t *testing.T) {
	last := run.Progress{Tasks: []run.TaskProgress{
		{Name: "setup-mesh", Done: true, Failed: true, Reason: "Failed", Message: `"step-setup" exited with code 5: Error`},
		{Name: "probe-mesh", Done: true},
		{Name: "conclude", Done: true, Failed: true, Reason: "Failed", Message: `"step-report" exited with code 4: Error`},
	}}
	setup := `task setup-mesh failed (Failed): "step-setup" exited with code 5: Error`
	conclude := `task conclude failed (Failed): "step-report" exited with code 4: Error`
	if got, want := failedTasks(last, checkup.PhaseConclude), []string{setup}; !slices.Equal(got, want) {
		t.Errorf("with a report: got %q, want %q", got, want)
	}
	if got, want := failedTasks(last, ""), []string{setup, conclude}; !slices.Equal(got, want) {
		t.Errorf("without a report: got %q, want %q", got, want)
	}
}
