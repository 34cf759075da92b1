// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// MaxVMs is the most VMs of one check.
const MaxVMs = 100

// Spec selects the pairs of KubeVirt's VMs that the check starts on secondary networks
// to measure connectivity and round-trip delay.
type Spec struct {
	// Networks to measure over, each with VMs of its own; at least one.
	Networks []checkup.NetworkRef `json:"networks"`
	// Pairs of nodes, each measured over every network. Empty means one pair of
	// VMs on any two different nodes.
	Pairs []checkup.NodePair `json:"pairs,omitempty"`
	// IPFamilies to measure; at least one. The check assigns the addresses: the
	// families do not depend on the cluster's.
	IPFamilies []checkup.IPFamily `json:"ipFamilies"`
	// Duration of the measurement of each pair.
	Duration checkup.Duration `json:"duration"`
	// Interval between the starts of two echo requests of one pair.
	Interval checkup.Duration `json:"interval"`
	Guest    checkup.Guest    `json:"guest"`
	Expect   Expect           `json:"expect"`
	// Timeouts of the phases; Duration is added to Probe.
	Timeouts checkup.Timeouts `json:"timeouts"`
	// Kiagnose is the ConfigMap to which the outcome is written in the keys of
	// kiagnose's checkups; nil means none.
	Kiagnose *checkup.ConfigMapRef `json:"kiagnose,omitempty"`
}

// Expect is what a pair must achieve. A nil limit is not checked; its fields are
// those of checkup.Expect.
type Expect struct {
	Loss    checkup.LossLimit     `json:"loss"`
	Latency checkup.LatencyLimits `json:"latency"`
	Jitter  checkup.MaxDuration   `json:"jitter"`
	// Regression compares with earlier runs of the plan; nil compares nothing.
	Regression *checkup.Regression `json:"regression,omitempty"`
}

// Measurements is how many echo requests of each pair are sent from the source
// VM: as many as begin within Duration.
func (v *Spec) Measurements() int {
	if v.Interval <= 0 {
		return 0
	}
	return int((v.Duration + v.Interval - 1) / v.Interval)
}

// Params lists the tunables of the check.
func (v *Spec) Params() []checkup.Param {
	params := []checkup.Param{
		kind.DurationParam("duration", "How long each pair of VMs is measured, such as 5s", &v.Duration),
	}
	params = append(params, checkup.AsRare(
		kind.DurationParam("interval", "Time between two echo requests, such as 200ms", &v.Interval),
	)...)
	params = append(params,
		kind.LimitParam(
			"loss.max",
			"Highest loss of a pair, from 0% to 100%; empty: only a pair without any answer fails",
			&v.Expect.Loss.Max,
		),
	)
	params = append(params, kind.LatencyParams(&v.Expect.Latency, "round-trip")...)
	params = append(params, checkup.AsRare(kind.RegressionParams(v.Expect.Regression)...)...)
	return append(params, checkup.AsRare(
		kind.LimitParam(
			"jitter.max",
			"Highest mean difference of consecutive round-trip delays of a pair, such as 1ms; empty: no limit",
			&v.Expect.Jitter.Max,
		),
	)...)
}

// Kind is Name.
func (v *Spec) Kind() checkup.Kind { return Name }

// PhaseTimeouts are those of the plan, with the time of measuring.
func (v *Spec) PhaseTimeouts() checkup.Timeouts {
	t := v.Timeouts
	t.Probe += v.Duration
	return t
}

// Fixtures are the VMs, and the pods that test whether VMs can be scheduled.
func (v *Spec) Fixtures() []checkup.Role {
	return []checkup.Role{checkup.RolePreflight, checkup.RoleGuest}
}

// LeastInterval is the shortest interval, in whole milliseconds, at which a pair
// can be measured for a duration.
func LeastInterval(duration checkup.Duration) checkup.Duration {
	const step = checkup.MaxEchoes * checkup.Duration(time.Millisecond)
	return max(1, (duration+step-1)/step) * checkup.Duration(time.Millisecond)
}
