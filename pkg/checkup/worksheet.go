// SPDX-License-Identifier: Apache-2.0

package checkup

import "iter"

// Worksheet is the frozen list of expected pairs of a check, written before
// anything is measured. It is compact: pairs are spelled out by Pairs.
type Worksheet struct {
	Plan  string `json:"plan"`
	Check string `json:"check"`
	Kind  Kind   `json:"kind"`
	// Seed and Round of the sample, and Rounds, the number of rounds after which
	// every possible pair was measured.
	Seed   uint64 `json:"seed"`
	Round  int    `json:"round"`
	Rounds int    `json:"rounds"`
	// Degree that was sampled; lower than the plan's where the budget or the
	// number of nodes made it so.
	Degree int `json:"degree"`
	// Possible is the number of ordered (source, target) pairs that the full mesh
	// would have.
	Possible int `json:"possible"`
	// Sources and Targets, each sorted by node and name. A pair names them by
	// index.
	Sources []Endpoint `json:"sources"`
	Targets []Endpoint `json:"targets"`
	// Assignments holds for each source, by its index, the indexes of its targets
	// in ascending order.
	Assignments [][]int `json:"assignments"`
	// IPFamilies, Probes: every assignment is measured in each of them.
	IPFamilies []IPFamily       `json:"ipFamilies"`
	Probes     []TransportProbe `json:"probes"`
	Expect     Expect           `json:"expect"`
	Limits     Limits           `json:"limits"`
	Resources  Resources        `json:"resources"`
	Timeouts   Timeouts         `json:"timeouts"`
}

// TransportProbe is a Probe with its transport. Worksheets hold them in the
// order of Transports.
type TransportProbe struct {
	Transport Transport `json:"transport"`
	Probe
}

// Endpoint is a source or a target: a pod, ours or an existing one.
type Endpoint struct {
	// Node that the pod is on, or is to be pinned to.
	Node string `json:"node"`
	// Zone of the node (label topology.kubernetes.io/zone), or empty.
	Zone string `json:"zone,omitempty"`
	// Pod names an existing pod, as namespace/name. Empty means a fixture.
	Pod string `json:"pod,omitempty"`
	// Tolerations that the fixture needs to stand on its node.
	Tolerations []Toleration `json:"tolerations,omitempty"`
}

// Name returns the pod, if there is one, else the node: what people call it.
func (e Endpoint) Name() string {
	if e.Pod != "" {
		return e.Pod
	}
	return e.Node
}

// Pair is the unit that is measured: one source, one target, one transport, one
// IP family, one payload size. Source and Target are indexes in the worksheet.
type Pair struct {
	Source    int       `json:"s"`
	Target    int       `json:"t"`
	Family    IPFamily  `json:"f"`
	Transport Transport `json:"p"`
	Size      int       `json:"z"`
}

// Pairs yields every expected pair, source by source, target by target, family,
// transport, size: always in the same order.
func (w *Worksheet) Pairs() iter.Seq[Pair] {
	return func(yield func(Pair) bool) {
		for s := range w.Assignments {
			for p := range w.PairsOf(s) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// PairsOf yields the expected pairs of one source, in the order of Pairs.
func (w *Worksheet) PairsOf(source int) iter.Seq[Pair] {
	return func(yield func(Pair) bool) {
		for _, t := range w.Assignments[source] {
			for _, f := range w.IPFamilies {
				for _, p := range w.Probes {
					for _, z := range p.Sizes {
						if !yield(Pair{source, t, f, p.Transport, z}) {
							return
						}
					}
				}
			}
		}
	}
}

// PairsPerAssignment is how many pairs one assignment stands for.
func (w *Worksheet) PairsPerAssignment() int {
	n := 0
	for _, p := range w.Probes {
		n += len(p.Sizes)
	}
	return n * len(w.IPFamilies)
}

// CountPairs is the number of expected pairs.
func (w *Worksheet) CountPairs() int {
	n := 0
	for _, targets := range w.Assignments {
		n += len(targets)
	}
	return n * w.PairsPerAssignment()
}

// Probe returns how a transport is measured, and whether it is at all.
func (w *Worksheet) Probe(t Transport) (Probe, bool) {
	for _, p := range w.Probes {
		if p.Transport == t {
			return p.Probe, true
		}
	}
	return Probe{}, false
}

// Roster says where the targets of a worksheet can be reached, after the
// fixtures were started: one entry per target, by index.
type Roster struct {
	Targets []RosterEntry `json:"targets"`
}

// RosterEntry is one target as it was when the worksheet was frozen.
type RosterEntry struct {
	// Pod is namespace/name of the responder or existing pod; empty if none came up.
	Pod string `json:"pod,omitempty"`
	// Addresses by family. A family that is missing cannot be measured.
	Addresses map[IPFamily]string `json:"addresses,omitempty"`
	// Ports by transport (tcp, udp, http).
	Ports map[Transport]int `json:"ports,omitempty"`
	// Cause says why the target cannot be measured at all; empty means it can.
	Cause *Cause `json:"cause,omitempty"`
}

// Order is what one agent is told to do: one source's share of a worksheet with
// the addresses of its targets. It is the agent's whole input.
type Order struct {
	// Source is the index of the source in the worksheet.
	Source int `json:"source"`
	// Seed of the agent's own random choices (start jitter, order of pairs).
	Seed    uint64           `json:"seed"`
	Limits  Limits           `json:"limits"`
	Probes  []TransportProbe `json:"probes"`
	Targets []OrderTarget    `json:"targets"`
	// Families whose control pairs must be measured.
	IPFamilies []IPFamily `json:"ipFamilies"`
	// Deadline is how long the agent may run, from its start; what is not
	// measured by then is told as unmeasured.
	Deadline Duration `json:"deadline"`
	// Unreachable is Expect.Unreachable: nothing may be retried or waited for
	// longer because of it; it is told only so that logs read right.
	Unreachable bool `json:"unreachable,omitempty"`
}

// OrderTarget is a target with the addresses that the agent must probe.
type OrderTarget struct {
	Target    int                 `json:"target"`
	Addresses map[IPFamily]string `json:"addresses"`
	Ports     map[Transport]int   `json:"ports"`
}
