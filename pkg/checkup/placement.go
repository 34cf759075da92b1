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
