// SPDX-License-Identifier: Apache-2.0

package checkup

import "encoding/json"

// PlacementCheck is a dry run of where the pods of a network diagnostics would
// land: sources, a Deployment of one replica, and targets, a DaemonSet. It
// starts nothing. Fields, defaults and rules are those of
// network.config.openshift.io, spec.networkDiagnostics.
type PlacementCheck struct {
	// Mode switches the diagnostics.
	Mode DiagnosticsMode `json:"mode"`
	// NetworkConfig takes mode and placements from the cluster's own object
	// network.config.openshift.io/cluster instead of from the plan.
	NetworkConfig bool `json:"networkConfig"`
	// SourcePlacement; nil means SourceDefaults.
	SourcePlacement *PodPlacement `json:"sourcePlacement,omitempty"`
	// TargetPlacement; nil means TargetDefaults.
	TargetPlacement *PodPlacement   `json:"targetPlacement,omitempty"`
	Expect          PlacementExpect `json:"expect"`
	Timeouts        Timeouts        `json:"timeouts"`
}

// DiagnosticsMode is NetworkDiagnosticsMode of config.openshift.io/v1.
type DiagnosticsMode string

const (
	DiagnosticsNoOpinion DiagnosticsMode = ""         // the platform's choice: All
	DiagnosticsAll       DiagnosticsMode = "All"      // all diagnostics
	DiagnosticsDisabled  DiagnosticsMode = "Disabled" // none: nothing is placed
)

// DiagnosticsModes lists every DiagnosticsMode.
var DiagnosticsModes = []DiagnosticsMode{DiagnosticsNoOpinion, DiagnosticsAll, DiagnosticsDisabled}

// PodPlacement is the part of a pod's spec that decides where it lands.
type PodPlacement struct {
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	Tolerations  []Toleration      `json:"tolerations,omitempty"`
	// Affinity is a corev1.NodeAffinity, as in Placement.
	Affinity json.RawMessage `json:"affinity,omitempty"`
	// TopologySpreadConstraints as in a pod's spec.
	TopologySpreadConstraints []TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
	Resources                 Resources                  `json:"resources"`
	// PriorityClassName of the pods; empty means the cluster's default.
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// HostPorts (TCP) that the pods take on their nodes.
	HostPorts []int `json:"hostPorts,omitempty"`
}

// TopologySpreadConstraint is corev1.TopologySpreadConstraint; the pods that are
// counted are those of the workload itself.
type TopologySpreadConstraint struct {
	MaxSkew           int    `json:"maxSkew"`
	TopologyKey       string `json:"topologyKey"`
	WhenUnsatisfiable string `json:"whenUnsatisfiable"` // DoNotSchedule or ScheduleAnyway
}

// linux is the default node selector of both placements.
func linux() map[string]string { return map[string]string{"kubernetes.io/os": "linux"} }

// SourceDefaults is the placement of sources where none is given: Linux nodes,
// no toleration.
func SourceDefaults() PodPlacement { return PodPlacement{NodeSelector: linux()} }

// TargetDefaults is the placement of targets where none is given: Linux nodes,
// whatever their taints.
func TargetDefaults() PodPlacement {
	return PodPlacement{NodeSelector: linux(), Tolerations: []Toleration{{Operator: "Exists"}}}
}

// PlacementExpect turns the dry run into a demand. A nil number is none: the
// outcome is told, and fails nothing.
type PlacementExpect struct {
	// MinSources and MinTargets are the fewest nodes that must be able to take a
	// source, and a target.
	MinSources *int `json:"minSources,omitempty"`
	MinTargets *int `json:"minTargets,omitempty"`
}

func (c *PlacementCheck) params() []Param {
	return []Param{
		enumParam("mode", "Mode of the network diagnostics; empty is the platform's choice, which is All", &c.Mode, DiagnosticsModes),
		boolParam("networkConfig", "Whether mode and placements are those of the cluster's network.config.openshift.io", &c.NetworkConfig),
	}
}

func (c *PlacementCheck) phaseTimeouts() Timeouts { return c.Timeouts }

// fixtures are none: a dry run starts nothing.
func (c *PlacementCheck) fixtures() []Role { return nil }

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
