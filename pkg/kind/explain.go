// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cost"
)

// Explained is a check as it would run: what Explain gets.
type Explained struct {
	Spec      checkup.Spec
	Worksheet *checkup.Worksheet
	Roster    *checkup.Roster
	Gate      checkup.Gate
	Cost      cost.Cost
	// GuestImage is what VMs boot if the plan names no image.
	GuestImage string
}

// Explanation is what a kind shows of a check before it runs, beside its Cost. Texts
// may name only some of many: the Worksheet has all.
type Explanation struct {
	// Fields are names with texts. They are printed with the fields of all checks.
	Fields []checkup.Item `json:"fields"`
	// Blocks are printed below the fields.
	Blocks []checkup.Block `json:"blocks,omitempty"`
	// Unmeasured is the number of pairs that a run would not measure, because their
	// source or target is missing.
	Unmeasured int `json:"unmeasured,omitempty"`
	// Conditions as they would be after the run.
	Conditions []checkup.Condition `json:"conditions,omitempty"`
	// Power is the table of what a run can see, which is printed on demand; nil for kinds
	// that do not compute it.
	Power *checkup.Table `json:"power,omitempty"`
	// Images that the check needs and not every run.
	Images []string `json:"images,omitempty"`
}

// Field adds a field. Items, if any, are listed below it.
func (x *Explanation) Field(name, text string, items ...checkup.Item) {
	x.Fields = append(x.Fields, checkup.Item{Name: name, Text: text, Items: items})
}
