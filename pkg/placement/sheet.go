// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// Sheet is the prediction of a dry run from a snapshot: the Details of the worksheet,
// whose Units are the names of the sides.
type Sheet struct {
	// Origin of the placements: "plan", or the object's name.
	Origin string                  `json:"origin"`
	Mode   cluster.DiagnosticsMode `json:"mode"`
	// Sides are source and target; empty if Mode is Disabled.
	Sides []Side `json:"sides,omitempty"`
	// Nodes is how many nodes were examined.
	Nodes int `json:"nodes"`
}

// Side is one of the two workloads.
type Side struct {
	Side SideName `json:"side"`
	// Workload is "Deployment" (of one replica) or "DaemonSet".
	Workload string `json:"workload"`
	// Pod that would be created, as JSON of a corev1.Pod.
	Pod json.RawMessage `json:"pod"`
	// Min is the least number of eligible nodes that the plan demands; nil: no demand.
	Min *int `json:"min,omitempty"`
	// Eligible nodes, sorted. The Deployment's pod lands on one of them, the
	// DaemonSet has one on each.
	Eligible []string `json:"eligible,omitempty"`
	// Rejected nodes, grouped by their reasons; the largest group first.
	Rejected []scheduling.NodeGroup `json:"rejected,omitempty"`
	// Later are eligible nodes from which pods will be evicted, by NoExecute taints
	// that are tolerated for a time.
	Later []scheduling.NodeGroup `json:"later,omitempty"`
	// Contradictions of the placement in itself or with the cluster, one line each.
	Contradictions []string `json:"contradictions,omitempty"`
	// Unknown are predicates that could not be evaluated, one line each.
	Unknown []string `json:"unknown,omitempty"`
}

// SideName is source or target.
type SideName string

const (
	SideSource SideName = "source"
	SideTarget SideName = "target"
)

// Sides lists both.
var Sides = []SideName{SideSource, SideTarget}

// Admission is the API server's answer to the creation of a pod as a dry run
// (dryRun=All): the Content of a Fact, whose Unit is the side.
type Admission struct {
	Allowed bool `json:"allowed"`
	// Message says why the pod is not allowed; empty if it is.
	Message string `json:"message,omitempty"`
	// Warnings of the answer.
	Warnings []string `json:"warnings,omitempty"`
	// Changed lists what admission changed in the pod that affects where it lands:
	// tolerations, priority, node selector; one line each.
	Changed []string `json:"changed,omitempty"`
}

// SheetOf reads the sheet of a worksheet.
func SheetOf(w *checkup.Worksheet) (*Sheet, error) {
	if len(w.Details) == 0 {
		return nil, errors.New("the worksheet has no details of a placement")
	}
	s := &Sheet{}
	if err := json.Unmarshal(w.Details, s); err != nil {
		return nil, fmt.Errorf("read the worksheet's details of a placement: %w", err)
	}
	return s, nil
}

// Put writes the sheet to a worksheet.
func (s *Sheet) Put(w *checkup.Worksheet) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write the worksheet's details of a placement: %w", err)
	}
	w.Details, w.Units = b, nil
	for i := range s.Sides {
		w.Units = append(w.Units, string(s.Sides[i].Side))
	}
	return nil
}

// Summarize says how many nodes are eligible for each side, one line each.
func Summarize(w *checkup.Worksheet) []string {
	sheet, err := SheetOf(w)
	if err != nil {
		return []string{err.Error()}
	}
	lines := []string{
		fmt.Sprintf("dry run by %s of %d workloads on %d nodes", sheet.Origin, len(sheet.Sides), sheet.Nodes),
	}
	for _, side := range sheet.Sides {
		lines = append(lines, fmt.Sprintf("%s (%s): %d nodes are eligible, %d are not",
			side.Side, side.Workload, len(side.Eligible), sheet.Nodes-len(side.Eligible)))
	}
	return lines
}
