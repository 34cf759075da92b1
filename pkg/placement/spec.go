// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/json"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Spec is a dry run of the placement of network diagnostics: sources, a Deployment of
// one replica, and targets, a DaemonSet. It starts nothing. Fields, defaults and rules
// are those of network.config.openshift.io, spec.networkDiagnostics.
type Spec struct {
	// Mode switches the diagnostics.
	Mode cluster.DiagnosticsMode `json:"mode"`
	// NetworkConfig takes mode and placements from the cluster's own object
	// network.config.openshift.io/cluster instead of from the plan.
	NetworkConfig bool `json:"networkConfig"`
	// SourcePlacement; nil means SourceDefaults.
	SourcePlacement *PodPlacement `json:"sourcePlacement,omitempty"`
	// TargetPlacement; nil means TargetDefaults.
	TargetPlacement *PodPlacement    `json:"targetPlacement,omitempty"`
	Expect          Expect           `json:"expect"`
	Timeouts        checkup.Timeouts `json:"timeouts"`
}

// PodPlacement is the part of a pod's spec that decides where it lands.
type PodPlacement struct {
	NodeSelector map[string]string    `json:"nodeSelector,omitempty"`
	Tolerations  []checkup.Toleration `json:"tolerations,omitempty"`
	// Affinity is a corev1.NodeAffinity, as in Placement.
	Affinity json.RawMessage `json:"affinity,omitempty"`
	// TopologySpreadConstraints as in a pod's spec.
	TopologySpreadConstraints []checkup.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
	Resources                 checkup.Resources                  `json:"resources"`
	// PriorityClassName of the pods; empty means the cluster's default.
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// HostPorts (TCP) that the pods take on their nodes.
	HostPorts []int `json:"hostPorts,omitempty"`
}

// linux is the default node selector of both placements.
func linux() map[string]string { return map[string]string{"kubernetes.io/os": "linux"} }

// SourceDefaults is the placement of sources if the plan has none: Linux nodes,
// no toleration.
func SourceDefaults() PodPlacement { return PodPlacement{NodeSelector: linux()} }

// TargetDefaults is the placement of targets if the plan has none: Linux nodes,
// whatever their taints.
func TargetDefaults() PodPlacement {
	return PodPlacement{NodeSelector: linux(), Tolerations: []checkup.Toleration{{Operator: "Exists"}}}
}

// Expect is what the plan demands of the dry run. nil is no demand: the outcome is
// reported, and fails nothing.
type Expect struct {
	// MinSources and MinTargets are the least numbers of nodes that must be able to
	// take a source, and a target.
	MinSources *int `json:"minSources,omitempty"`
	MinTargets *int `json:"minTargets,omitempty"`
}

// Params lists the tunables of the check.
func (c *Spec) Params() []checkup.Param {
	return []checkup.Param{
		checkup.EnumParam(
			"mode",
			"Mode of the network diagnostics; empty is the platform's choice, which is All",
			&c.Mode,
			cluster.DiagnosticsModes,
		),
		checkup.BoolParam(
			"networkConfig",
			"Whether mode and placements are those of the cluster's network.config.openshift.io",
			&c.NetworkConfig,
		),
	}
}

// Kind is Name.
func (c *Spec) Kind() checkup.Kind { return Name }

// PhaseTimeouts are those of the plan.
func (c *Spec) PhaseTimeouts() checkup.Timeouts { return c.Timeouts }

// Fixtures is empty: a dry run starts nothing.
func (c *Spec) Fixtures() []checkup.Role { return nil }
