// SPDX-License-Identifier: Apache-2.0

package print

import (
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func TestAnswer(t *testing.T) {
	row := checkup.DelayRow{Transport: checkup.TCP, Family: checkup.IPv4, Pairs: 1, Sent: 20, Received: 20, Delay: &checkup.Delay{P50: 412}}
	none := row
	none.Received, none.Delay = 0, nil
	unit := func(v checkup.Verdict, received int, message string) checkup.Unit {
		u := checkup.Unit{Transport: checkup.TCP, Family: checkup.IPv4, Verdict: v, Sent: 20, Received: received,
			Cause: &checkup.Cause{Stage: checkup.StageConnect, Message: message}}
		if received > 0 {
			u.Delay = &checkup.Delay{P50: 412}
		}
		return u
	}
	for _, tt := range []struct {
		name  string
		check checkup.CheckReport
		want  string
	}{
		{"yes", checkup.CheckReport{Delays: []checkup.DelayRow{row}}, "shop/web reaches db-0:80 by tcp, IPv4: 20 of 20, p50 412µs"},
		{"no", checkup.CheckReport{Units: []checkup.Unit{unit(checkup.Fail, 0, "timed out after 1s")}, Delays: []checkup.DelayRow{none}},
			"shop/web does not reach db-0:80 by tcp, IPv4: 0 of 20; connect: timed out after 1s"},
		{"with losses", checkup.CheckReport{Units: []checkup.Unit{unit(checkup.Fail, 11, "timed out after 1s")}, Delays: []checkup.DelayRow{row}},
			"shop/web reaches db-0:80 by tcp, IPv4, but not as expected: 11 of 20, p50 412µs; connect: timed out after 1s"},
		{"undecided", checkup.CheckReport{Units: []checkup.Unit{unit(checkup.Undecided, 19, "timed out after 1s")}, Delays: []checkup.DelayRow{row}},
			"shop/web reaches db-0:80 by tcp, IPv4, perhaps with losses: 19 of 20, p50 412µs; connect: timed out after 1s"},
		{"one family each", checkup.CheckReport{
			Units: []checkup.Unit{{Transport: checkup.TCP, Family: checkup.IPv6, Verdict: checkup.Unmeasured,
				Cause: &checkup.Cause{Stage: checkup.StageStart, Message: "source pod shop/web was deleted"}}},
			Delays: []checkup.DelayRow{row, {Transport: checkup.TCP, Family: checkup.IPv6}},
		}, "not known whether shop/web reaches db-0:80 by tcp, IPv6: start: source pod shop/web was deleted\n" +
			"shop/web reaches db-0:80 by tcp, IPv4: 20 of 20, p50 412µs"},
		{"no setup", checkup.CheckReport{Cause: &checkup.Cause{Stage: checkup.StageSetup, Message: "no pod\x1b[31m\n::error::"}},
			"not known whether shop/web reaches db-0:80: setup: no pod\ufffd[31m ::error::"},
		{"nothing", checkup.CheckReport{}, "not known whether shop/web reaches db-0:80: inconclusive"},
	} {
		var b strings.Builder
		r := &checkup.Report{Summary: "inconclusive", Checks: []checkup.CheckReport{tt.check}}
		if err := Answer(&b, r, "shop/web", "db-0:80"); err != nil || b.String() != tt.want+"\n" {
			t.Errorf("%s: %v\n got %q\nwant %q", tt.name, err, b.String(), tt.want+"\n")
		}
	}
}
