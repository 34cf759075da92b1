// SPDX-License-Identifier: Apache-2.0

package checkup

import "encoding/json"

// DiagnosticsMode is NetworkDiagnosticsMode of config.openshift.io/v1.
type DiagnosticsMode string

const (
	DiagnosticsNoOpinion DiagnosticsMode = ""         // the platform's choice: All
	DiagnosticsAll       DiagnosticsMode = "All"      // all diagnostics
	DiagnosticsDisabled  DiagnosticsMode = "Disabled" // none: nothing is placed
)

// DiagnosticsModes lists every DiagnosticsMode.
var DiagnosticsModes = []DiagnosticsMode{DiagnosticsNoOpinion, DiagnosticsAll, DiagnosticsDisabled}

// TopologySpreadConstraint is corev1.TopologySpreadConstraint; the pods that are
// counted are those of the workload itself.
type TopologySpreadConstraint struct {
	MaxSkew           int    `json:"maxSkew"`
	TopologyKey       string `json:"topologyKey"`
	WhenUnsatisfiable string `json:"whenUnsatisfiable"` // DoNotSchedule or ScheduleAnyway
}

// PlacementSheet is a dry run as it was worked out from a snapshot.
type PlacementSheet struct {
	// Origin says where the placements come from: "plan", or the object's name.
	Origin string          `json:"origin"`
	Mode   DiagnosticsMode `json:"mode"`
	// Sides are source and target; none where Mode is Disabled.
	Sides []PlacementSide `json:"sides,omitempty"`
	// Nodes is how many nodes were looked at.
	Nodes int `json:"nodes"`
}

// PlacementSide is one of the two workloads.
type PlacementSide struct {
	Side PlacementSideName `json:"side"`
	// Workload is "Deployment" (of one replica) or "DaemonSet".
	Workload string `json:"workload"`
	// Pod that would be created, as JSON of a corev1.Pod.
	Pod json.RawMessage `json:"pod"`
	// Min is the fewest eligible nodes that the plan demands; nil is no demand.
	Min *int `json:"min,omitempty"`
	// Eligible nodes, sorted. The Deployment's pod lands on one of them, the
	// DaemonSet has one on each.
	Eligible []string `json:"eligible,omitempty"`
	// Rejected nodes, grouped by their reasons; the largest group first.
	Rejected []NodeGroup `json:"rejected,omitempty"`
	// Later are eligible nodes that pods will be evicted from again, by NoExecute
	// taints that are tolerated for a time.
	Later []NodeGroup `json:"later,omitempty"`
	// Contradictions of the placement in itself or with the cluster, one line each.
	Contradictions []string `json:"contradictions,omitempty"`
	// Unknown are predicates that could not be evaluated, one line each.
	Unknown []string `json:"unknown,omitempty"`
}

// PlacementSideName is source or target.
type PlacementSideName string

const (
	SideSource PlacementSideName = "source"
	SideTarget PlacementSideName = "target"
)

// PlacementSides lists both.
var PlacementSides = []PlacementSideName{SideSource, SideTarget}

// NodeGroup is nodes that share their reasons.
type NodeGroup struct {
	// Reasons are one line each, every one of them true of each node.
	Reasons []NodeReason `json:"reasons"`
	Nodes   []string     `json:"nodes"`
}

// NodeReason is one reason why a node does not take a pod.
type NodeReason struct {
	// Predicate is the name of the scheduler's plugin that rejects: NodeAffinity,
	// TaintToleration, NodeUnschedulable, NodeResourcesFit, NodePorts,
	// PodTopologySpread, NodeName.
	Predicate string `json:"predicate"`
	// Scheduler is what the scheduler would say in the pod's condition PodScheduled,
	// such as "Insufficient cpu".
	Scheduler string `json:"scheduler"`
	// Message says it in full: which key, which taint, how much is missing.
	Message string `json:"message"`
}

// Admission is what the API server said of a pod that it was asked to create in
// a dry run (dryRun=All), and so did not create.
type Admission struct {
	Side    PlacementSideName `json:"side"`
	Allowed bool              `json:"allowed"`
	// Message says why not, or is empty.
	Message string `json:"message,omitempty"`
	// Warnings that came with the answer.
	Warnings []string `json:"warnings,omitempty"`
	// Changed lists what admission changed in the pod that bears on where it
	// lands: tolerations, priority, node selector; one line each.
	Changed []string `json:"changed,omitempty"`
	// Cause says why the API server was not asked, or did not decide; nil if it did.
	Cause *Cause `json:"cause,omitempty"`
}

// PlacementReport is the outcome of a placement dry run.
type PlacementReport struct {
	PlacementSheet
	Admissions []Admission `json:"admissions,omitempty"`
	// Condition NetworkDiagnosticsAvailable as it would be; nil where the
	// diagnostics are disabled, or where it could not be worked out.
	Condition *Condition `json:"condition,omitempty"`
}

// Condition is metav1.Condition without its times.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"` // True, False or Unknown
	Reason  string `json:"reason"`
	Message string `json:"message"`
}
