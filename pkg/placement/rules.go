// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kind"
)

// rules are those of a placement check, in the order in which their problems are
// reported.
func rules() []kind.Rule {
	return append([]kind.Rule{
		kind.RuleOf("durations", func(c *Spec, r kind.Reporter) { kind.Timeouts(c.Timeouts, r) }),
		kind.RuleOf("disabled-placement", disabledPlacement),
		kind.RuleOf("network-config", networkConfig),
	}, kind.KubernetesRules(parts)...)
}

// parts are the fields to which Kubernetes' own rules apply.
func parts(c *Spec) kind.Parts {
	var p kind.Parts
	for _, side := range []struct {
		name string
		pods *PodPlacement
	}{{"sourcePlacement", c.SourcePlacement}, {"targetPlacement", c.TargetPlacement}} {
		pods := side.pods
		if pods == nil {
			continue
		}
		nodes := checkup.Placement{
			NodeSelector: pods.NodeSelector,
			Tolerations:  pods.Tolerations,
			Affinity:     pods.Affinity,
		}
		p.Placements = append(p.Placements, kind.At(nodes, side.name))
		p.Spreads = append(p.Spreads, kind.At(pods.TopologySpreadConstraints, side.name, "topologySpreadConstraints"))
		p.Names = append(p.Names, kind.At(pods.PriorityClassName, side.name, "priorityClassName"))
		p.Resources = append(p.Resources, kind.At(pods.Resources, side.name, "resources"))
	}
	return p
}

// disabledPlacement is the rule of config.openshift.io/v1 Network, with its message,
// and the same for the plan's demands.
func disabledPlacement(c *Spec, report kind.Reporter) {
	if c.Mode == cluster.DiagnosticsDisabled && (c.SourcePlacement != nil || c.TargetPlacement != nil) {
		report(
			nil,
			"cannot set networkDiagnostics.sourcePlacement and networkDiagnostics.targetPlacement when networkDiagnostics.mode is Disabled",
		)
	}
	for _, demand := range []struct {
		name string
		min  *int
	}{{"minSources", c.Expect.MinSources}, {"minTargets", c.Expect.MinTargets}} {
		if c.Mode == cluster.DiagnosticsDisabled && demand.min != nil {
			report([]string{"expect", demand.name}, "%d: mode Disabled places nothing: remove the demand", *demand.min)
		}
	}
}

func networkConfig(c *Spec, report kind.Reporter) {
	if c.NetworkConfig &&
		(c.Mode != cluster.DiagnosticsNoOpinion || c.SourcePlacement != nil || c.TargetPlacement != nil) {
		report(
			[]string{"networkConfig"},
			"mode and placements come from the cluster's network.config.openshift.io: remove them from the plan",
		)
	}
}
