// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Explain shows what a run reads, and what its agents may do.
func Explain(e kind.Explained) kind.Explanation {
	w := e.Worksheet
	var x kind.Explanation
	sheet, err := SheetOf(w)
	if err != nil {
		x.Field("services", err.Error())
		return x
	}
	x.Field("services", fmt.Sprintf("%s, on %s: %s", checkup.Count(len(sheet.Services), "Service"),
		checkup.Count(len(w.Sources), "node"), checkup.Count(sheet.units(w), noun)))
	if w.Rounds > 1 {
		x.Field("sample", fmt.Sprintf("%d of %d nodes, round %d of %d, seed %d", len(w.Sources), sheet.Nodes, w.Round, w.Rounds, w.Seed))
	}
	x.Field("reads", fmt.Sprintf("the rules that each node's service proxy has written (nftables, iptables), twice, %s apart, "+
		"from the kernel; writes none, and sends nothing to Services", w.Tables.Interval))
	x.Field("pod security", fmt.Sprintf("%s on the host network, as root with no capability but NET_ADMIN: the kernel shows rules to "+
		"nobody else. The root file system is read-only, privileges cannot grow, seccomp is RuntimeDefault, there is no token. "+
		"The namespace of the run must admit that (label %s: privileged). If it does not, this check is unmeasured, and other "+
		"checks of the plan go on", checkup.Count(len(w.Sources), "agent"), checkup.LabelPodSecurity))
	x.Field("changes", "Services are listed before the first look and after the last one: what differs and has changed is unmeasured")
	for _, a := range sheet.Expect.allowances() {
		if *a.max > 0 {
			x.Field("unmeasured", fmt.Sprintf("rules that are %s less than %s after their Service changed", a.dimension, *a.max))
		}
	}
	if len(sheet.Expect.Allow) > 0 {
		x.Field("allowed", fmt.Sprintf("differences that do not fail a rule set: %q", sheet.Expect.Allow))
	}
	return x
}
