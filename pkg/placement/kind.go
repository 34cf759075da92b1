// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Name of the kind.
const Name checkup.Kind = "placement"

// Kind is a dry run of where the pods of a network diagnostics would land.
var Kind = kind.Kind{
	Name: Name, New: func() checkup.Spec { return &Spec{} }, Rules: rules(),
	Survey: Survey, Expand: Expand, Roster: Roster, Rights: Rights,
	Summarize: Summarize, Ask: Ask, Explain: Explain, Judge: Judge, Nodes: true,
}
