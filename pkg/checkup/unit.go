// SPDX-License-Identifier: Apache-2.0

package checkup

import "encoding/json"

// Unit is one thing that a check expects, with its verdict: a pair of a mesh, a
// connection, one direction of a pair of VMs, a workload of a placement. Counting,
// the gate, JUnit, metrics and summaries need nothing else of a check.
type Unit struct {
	// Name is unique among the units of the check, and stays the same from run to
	// run.
	Name string `json:"name"`
	// Source and Target are the unit's row and column in a matrix; empty if the unit has
	// none.
	Source string `json:"source,omitempty"`
	Target string `json:"target,omitempty"`
	// Family, Transport and Size of the packets that measure the unit; zero if no
	// packets do.
	Family    IPFamily  `json:"family,omitempty"`
	Transport Transport `json:"transport,omitempty"`
	Size      int       `json:"size,omitempty"`
	// Labels are further facts about the unit by name, such as "address", "network"
	// or "source_node". Names are valid as Prometheus label names.
	Labels map[string]string `json:"labels,omitempty"`
	// Object is the name of the PodNetworkConnectivityCheck that holds the unit's
	// history; empty if none was written.
	Object string `json:"object,omitempty"`

	Verdict Verdict `json:"verdict"`
	// Cause says why the unit failed, is undecided or was not measured; nil for one that
	// passed. Of one that is Gone, it says why the unit failed in the first look.
	Cause *Cause `json:"cause,omitempty"`
	// Breaches are the limits that a failed unit broke, or that an undecided one may have
	// broken; empty if it failed for another reason.
	Breaches []Breach `json:"breaches,omitempty"`

	// Sent and Received measurements, Duplicates and Reordered answers, as in
	// Observation; 0 for units that were not measured by packets.
	Sent       int `json:"sent,omitempty"`
	Received   int `json:"received,omitempty"`
	Duplicates int `json:"duplicates,omitempty"`
	Reordered  int `json:"reordered,omitempty"`
	// Delay is the round-trip delay; nil if nothing was answered, or if delays are
	// reported by stage.
	Delay *Delay `json:"delay,omitempty"`
	// Direction in which packets were lost, if the target counted them.
	Direction Direction `json:"direction,omitempty"`
	// Failures counts the measurements that failed by stage, Delays has the delay
	// of each stage that passed, and Outages is oldest first. They are empty for
	// units that are not measured by Results.
	Failures map[Stage]int    `json:"failures,omitempty"`
	Delays   map[Stage]*Delay `json:"delays,omitempty"`
	Outages  []Outage         `json:"outages,omitempty"`
	// Confirmation says what a further look found, and After how long after the first look
	// it began. The numbers above are those of the look that decided the verdict.
	Confirmation Confirmation `json:"confirmation,omitempty"`
	After        Duration     `json:"after,omitempty"`
	// Values are statistics that have no field above.
	Values []Value `json:"values,omitempty"`
}

// Names of labels and values of units that more than one package reads.
const (
	UnitAddress    = "address"     // of the target, as host:port
	UnitNetwork    = "network"     // a NetworkAttachmentDefinition, as namespace/name
	UnitSourceNode = "source_node" // where the source ran; absent if it did not
	UnitTargetNode = "target_node" // where the target ran; absent if it did not
	UnitWay        = "way"         // WayThere or WayBack
	UnitDuration   = "measurement_duration"
)

// Ways between the first and the second side of a pair.
const (
	WayThere = "there" // from the first side to the second
	WayBack  = "back"  // from the second side to the first
)

// Limit names a limit of a plan.
type Limit string

const (
	LimitAnswer      Limit = "answer"      // at least one measurement must be answered
	LimitLoss        Limit = "loss"        // Expect.Loss
	LimitP50         Limit = "p50"         // Expect.Latency
	LimitP90         Limit = "p90"         // Expect.Latency
	LimitP95         Limit = "p95"         // Expect.Latency
	LimitP99         Limit = "p99"         // Expect.Latency
	LimitMax         Limit = "max"         // Expect.Latency
	LimitJitter      Limit = "jitter"      // Expect.Jitter
	LimitOutage      Limit = "outage"      // ConnectionSheet.MaxOutage
	LimitUnreachable Limit = "unreachable" // Expect.Unreachable: nothing may come through
	LimitFlow        Limit = "flow"        // each source port must be answered at least once
	// LimitSourceAddress is Expect.SourceAddress: the target must see the source's own address.
	LimitSourceAddress Limit = "sourceAddress"
)

// Breach is one limit that a unit broke, or may have broken.
type Breach struct {
	Limit Limit `json:"limit"`
	// Measured and Max are in Measure. Measured of LimitFlow is the number of source ports, and
	// that of LimitSourceAddress the number of measurements with another address. Max is 0 for
	// LimitAnswer, LimitFlow, LimitUnreachable and LimitSourceAddress, which have no number.
	Measured float64 `json:"measured"`
	Max      float64 `json:"max,omitempty"`
	Measure  Measure `json:"measure"`
	// Cause is the failure behind a broken limit on answers, loss or outages, and names the
	// address that the target saw; nil for other limits.
	Cause *Cause `json:"cause,omitempty"`
}

// Measure is the unit of measure of a number.
type Measure string

const (
	MeasureCount        Measure = "count"
	MeasureMicroseconds Measure = "us"
	MeasurePercent      Measure = "percent"
	MeasureBytes        Measure = "bytes"
	MeasurePerSecond    Measure = "per-second"
)

// Measures lists every Measure.
var Measures = []Measure{MeasureCount, MeasureMicroseconds, MeasurePercent, MeasureBytes, MeasurePerSecond}

// Value is a named statistic of a unit.
type Value struct {
	// Name is valid as a Prometheus label value, such as "eligible_nodes".
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Measure Measure `json:"measure"`
}

// Fact is a result that the probe task determined itself, without an agent. The check's
// kind defines its content.
type Fact struct {
	// Unit names the unit of the worksheet that the fact is about.
	Unit string `json:"unit"`
	// Content is JSON of the kind; null if there is no result. Cause then says why.
	Content json.RawMessage `json:"content,omitempty"`
	Cause   *Cause          `json:"cause,omitempty"`
}

// Units of the facts that have what the API says of the worksheet's Services, before and after measuring, and, if their
// endpoints change at a turn, after that, as a snapshot of pkg/cluster.
const (
	FactServicesBefore = "services before"
	FactServicesTurned = "services turned"
	FactServicesAfter  = "services after"
)
