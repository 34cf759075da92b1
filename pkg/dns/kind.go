// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Name of the kind.
const Name checkup.Kind = "dns"

// Kind asks DNS servers from each node for the names of Services, and compares their answers with the API's.
var Kind = kind.Kind{
	Name: Name, New: func() checkup.Spec { return &Spec{} }, Rules: rules(),
	Survey: Survey, Expand: kind.Due(func(s *Spec) (int, bool) { return s.Sample.Round, s.Sample.Rotate }, Expand),
	Roster: kind.ExistingTargets, Rights: Rights,
	Explain: Explain, Judge: Judge, Again: Again, AskAfter: AskAfter, Nodes: true, Tests: true,
}
