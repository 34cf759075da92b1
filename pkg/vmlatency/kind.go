// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Name of the kind.
const Name checkup.Kind = "vmLatency"

// Kind measures connectivity and delay between VMs of KubeVirt on secondary networks.
var Kind = kind.Kind{
	Name: Name, New: func() checkup.Spec { return &Spec{} }, Rules: rules(),
	Survey: Survey, Expand: Expand, Roster: Roster, Rights: Rights,
	Explain: Explain, Judge: Judge, Compare: Compare, Tests: true,
	Outcome: func(spec checkup.Spec) *checkup.ConfigMapRef {
		if v, ok := spec.(*Spec); ok {
			return v.Kiagnose
		}
		return nil
	},
}
