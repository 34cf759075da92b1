// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/networkhealth"
)

// Outside lists the rights of a plan that are cluster-wide or in a named namespace, each once.
func Outside(p *checkup.Plan) []checkup.Right {
	rights := networkhealth.Rights(p.NetworkHealth())
	for _, name := range p.CheckNames() {
		rights = append(rights, Rights(p.Checks[name])...)
	}
	var outside []checkup.Right
	for _, r := range rights {
		same := func(o checkup.Right) bool { return o.Phase == r.Phase && o.Words() == r.Words() }
		if r.Scope != checkup.ScopeRun && !slices.ContainsFunc(outside, same) {
			outside = append(outside, r)
		}
	}
	return outside
}

// limits checks what is known of a plan's limits without a cluster: its rights. Setup checks the rest.
func limits(p *checkup.Plan, report kind.Reporter) {
	l := p.Limits
	if l == nil {
		return
	}
	number := func(name string, limit *int) {
		if limit != nil && *limit < 0 {
			report([]string{"limits", name}, "%d is less than 0", *limit)
		}
	}
	number("pods", l.Pods)
	number("packets", l.Packets)
	number("privilegedPods", l.PrivilegedPods)
	for _, r := range Outside(p) {
		if !l.Admits(r) {
			report([]string{"limits", "rights"}, "%q is not approved; %s needs it: %s", r.Words(), r.Phase, r.Why)
		}
	}
}
