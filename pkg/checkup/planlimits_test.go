// SPDX-License-Identifier: Apache-2.0

package checkup

import "testing"

// A right is admitted in its own words, or in those of the same right on all objects of the resource.
func TestPlanLimitsAdmit(t *testing.T) {
	config := Right{Verb: "get", Resource: "configmaps", Names: []string{"kubeadm-config"}, Namespace: "kube-system"}
	log := Right{Verb: "get", Group: "subresources.kubevirt.io", Resource: "virtualmachineinstances/console"}
	for _, tt := range []struct {
		name   string
		limits *PlanLimits
		right  Right
		want   bool
	}{
		{"no limits", nil, config, true},
		{"no limit on rights", &PlanLimits{}, config, true},
		{"no right at all", &PlanLimits{Rights: []string{}}, config, false},
		{"the object", &PlanLimits{Rights: []string{"get configmaps kubeadm-config in kube-system"}}, config, true},
		{"all objects", &PlanLimits{Rights: []string{"get configmaps in kube-system"}}, config, true},
		{"another object", &PlanLimits{Rights: []string{"get configmaps x in kube-system"}}, config, false},
		{"another namespace", &PlanLimits{Rights: []string{"get configmaps in default"}}, config, false},
		{"the whole cluster", &PlanLimits{Rights: []string{"get configmaps"}}, config, false},
		{"another verb", &PlanLimits{Rights: []string{"list configmaps in kube-system"}}, config, false},
		{"a subresource", &PlanLimits{Rights: []string{"get virtualmachineinstances.subresources.kubevirt.io/console"}}, log, true},
	} {
		if got := tt.limits.Admits(tt.right); got != tt.want {
			t.Errorf("%s: %q is admitted: %v, want %v", tt.name, tt.right.Words(), got, tt.want)
		}
	}
}
