// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// The checks of a plan use its limits together. What is not limited does not count.
func TestUses(t *testing.T) {
	checks := []Cost{
		{Agents: 1, Responders: 2, Packets: 100, HostNetwork: 1},
		{Inside: 3, VMs: 4, Preflights: 5, Packets: 11},
	}
	for _, tt := range []struct {
		name   string
		limits *checkup.PlanLimits
		uses   string
		err    string
	}{
		{"none", nil, "", ""},
		{"none of a number", &checkup.PlanLimits{Rights: []string{}}, "", ""},
		{"just enough", &checkup.PlanLimits{Pods: new(15), Packets: new(111), PrivilegedPods: new(1)},
			"pods 15 of 15, packets 111 of 111, privileged pods 1 of 1", ""},
		{"one too many", &checkup.PlanLimits{Pods: new(14), PrivilegedPods: new(0)},
			"pods 15 of 14 (refused), privileged pods 1 of 0 (refused)",
			"plan p would exceed its limits: pods 15, at most 14; privileged pods 1, at most 0; nothing is created"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			uses := Uses(tt.limits, checks...)
			var words []string
			for _, u := range uses {
				words = append(words, u.String())
			}
			if got := strings.Join(words, ", "); got != tt.uses {
				t.Errorf("uses %q, want %q", got, tt.uses)
			}
			switch err := Within("p", uses); {
			case tt.err == "" && err != nil:
				t.Error(err)
			case tt.err != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.err)):
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}
