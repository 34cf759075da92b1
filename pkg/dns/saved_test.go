// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// TestSaved keeps the reports that the tests of pkg/print print.
func TestSaved(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := judge.Run{
		Namespace: "checks", Name: "day-2-run-1767323045", UID: "6d1c1f0e", Started: start, Finished: start.Add(62 * time.Second),
	}
	town := townOf(3, 2, corev1.IPv4Protocol)
	town.service("shop", "web", 2, nil)
	w := expanded(t, specOf(), town)
	reportOf := func(network func(asked) answer) checkup.Report {
		plan := planOf(specOf())
		return judge.Join(plan, run, []checkup.CheckReport{judged(t, w, network)}, nil)
	}
	judgetest.Saved(t, map[string]checkup.Report{
		"dns-pass": reportOf(func(asked) answer { return right }),
		// One of two servers does not answer, and the pods' resolvers are sent to it every second time.
		"dns-silent": reportOf(func(a asked) answer {
			switch {
			case a.server == "10.244.1.2":
				return silent
			case a.server == ResolverName && a.transport == UDP:
				return lossy
			}
			return right
		}),
	})
}
