// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/podmesh"
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
