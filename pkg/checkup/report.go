// SPDX-License-Identifier: Apache-2.0

package checkup

import "time"

// Verdict of a pair. The zero value is not a verdict: a pair that nobody judged
// does not read as passed.
type Verdict string

const (
	Pass       Verdict = "pass"       // measured, and every expectation held
	Fail       Verdict = "fail"       // measured, and an expectation did not hold
	Unmeasured Verdict = "unmeasured" // expected, but not measured; the cause says why
)

// Verdicts lists every Verdict.
var Verdicts = []Verdict{Pass, Fail, Unmeasured}

// RunVerdict is the verdict of a check or a run.
type RunVerdict string

const (
	RunPass         RunVerdict = "pass"
	RunFail         RunVerdict = "fail"
	RunInconclusive RunVerdict = "inconclusive" // no failure seen, but too much was not measured
)

// RunVerdicts lists every RunVerdict, worst first.
var RunVerdicts = []RunVerdict{RunFail, RunInconclusive, RunPass}

// ReportKind is the kind of a report in YAML and JSON.
const ReportKind = "Report"

// Report is the outcome of a run: one value, several printers.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Plan       string `json:"plan"`
	Namespace  string `json:"namespace,omitempty"`
	// Run is the name of the PipelineRun, RunUID its UID.
	Run      string    `json:"run,omitempty"`
	RunUID   string    `json:"runUID,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`

	Verdict RunVerdict `json:"verdict"`
	// Summary is one line.
	Summary string `json:"summary"`
	// Gate of the plan, and whether this verdict passes it.
	Gate   Gate   `json:"gate"`
	Passed bool   `json:"passed"`
	Counts Counts `json:"counts"`
	// Checks in the order of Plan.CheckNames.
	Checks []CheckReport `json:"checks"`
	// Leftovers names the fixtures that teardown could not remove, as kind/name.
	Leftovers []string `json:"leftovers,omitempty"`
}

// Counts of pairs by verdict. Expected is their sum.
type Counts struct {
	Expected   int `json:"expected"`
	Pass       int `json:"pass"`
	Fail       int `json:"fail"`
	Unmeasured int `json:"unmeasured"`
}

// CheckReport is the outcome of one check.
type CheckReport struct {
	Name    string     `json:"name"`
	Kind    Kind       `json:"kind"`
	Verdict RunVerdict `json:"verdict"`
	// Cause says why the check as a whole was not measured (its setup failed, or
	// never ran); nil otherwise.
	Cause  *Cause `json:"cause,omitempty"`
	Counts Counts `json:"counts"`
	// Noun is what the check counts, in the singular: "pair", "placement".
	Noun string `json:"noun,omitempty"`
	// Units that failed or were not measured, in the order of the worksheet; all
	// units if Complete.
	Units []Unit `json:"units,omitempty"`
	// Complete says that Units lists the units that passed, too.
	Complete bool `json:"complete,omitempty"`
	// Conditions in the form of Kubernetes' API, such as the one that an operator
	// would set.
	Conditions []Condition `json:"conditions,omitempty"`
	// Blocks are what the check's kind shows beyond this, in the order in which they
	// are printed.
	Blocks []Block `json:"blocks,omitempty"`
	// BlocksListUnits says that Blocks name each unit that did not pass, with its
	// cause: printers of text do not list them again.
	BlocksListUnits bool `json:"blocksListUnits,omitempty"`
	// Said is what the kind adds to the summary of the run, a clause each.
	Said []string `json:"said,omitempty"`
	// Reporter is who measured, in the singular: "agent" (also if empty), "guest".
	Reporter string `json:"reporter,omitempty"`
	// Sent is the number of measurements that were made for all pairs: what the
	// plan's explain calls packets.
	Sent     int       `json:"sent"`
	Coverage *Coverage `json:"coverage,omitempty"`
	// Delays holds one row per transport, family and size, in the order of the
	// worksheet.
	Delays   []DelayRow `json:"delays,omitempty"`
	Findings []Finding  `json:"findings,omitempty"`
	// Matrix is the source-by-target summary from which the heat map is drawn; nil
	// where there are more than MatrixMax sources or targets, and for VMs.
	Matrix *Matrix `json:"matrix,omitempty"`
	// Notes are what setup warned of, and losses that broke no limit between VMs, one
	// line each.
	Notes []string `json:"notes,omitempty"`
	// Agents tells what each source said of itself, for those that said something
	// worth reading: a wrong control pair, a late timer, throttling.
	Agents []AgentNote `json:"agents,omitempty"`
}

// Coverage says how much of what could be measured was measured, so that anyone
// can check it again from worksheet and observations.
type Coverage struct {
	// Measured of Possible ordered (source, target) pairs. One counts as measured
	// if each of its expected pairs (family, transport, size) was, or if one of
	// them failed; Partial counts those of which some were measured, none failed,
	// and some were not measured.
	Measured int `json:"measured"`
	Partial  int `json:"partial,omitempty"`
	Possible int `json:"possible"`
	// Round of Rounds, both counted from 0 in Round, and the Seed.
	Round  int    `json:"round"`
	Rounds int    `json:"rounds"`
	Seed   uint64 `json:"seed"`
	// Out- and in-degree actually measured, lowest and highest of any node.
	OutDegreeMin int `json:"outDegreeMin"`
	OutDegreeMax int `json:"outDegreeMax"`
	InDegreeMin  int `json:"inDegreeMin"`
	InDegreeMax  int `json:"inDegreeMax"`
	// ZonePairs hit of possible ordered zone pairs; both 0 where nodes have no zone.
	ZonePairsHit      int `json:"zonePairsHit"`
	ZonePairsPossible int `json:"zonePairsPossible"`
	// FailingUpperBound is the one-sided 95% upper confidence bound on the share
	// of the possible (source, target) pairs that fail, if the measured ones were
	// a random sample of them without replacement: from 0 to 1, and nil where
	// nothing was measured, or nothing was sampled.
	FailingUpperBound *float64 `json:"failingUpperBound,omitempty"`
}

// DelayRow summarises the round-trip delays of all measured pairs of one
// transport, family and size. Percentiles are in microseconds.
type DelayRow struct {
	Transport Transport `json:"transport"`
	// Stage of which the delays are, of pairs that were told as Results, whose Sent
	// is how many measurements came to that stage; empty for others, whose delays
	// are round trips.
	Stage      Stage    `json:"stage,omitempty"`
	Family     IPFamily `json:"family"`
	Size       int      `json:"size"`
	Pairs      int      `json:"pairs"`
	Sent       int      `json:"sent"`
	Received   int      `json:"received"`
	Duplicates int      `json:"duplicates"`
	Reordered  int      `json:"reordered"`
	// Loss in percent of Sent.
	Loss Percent `json:"loss"`
	// Delay is nil if nothing was received.
	Delay *Delay `json:"delay,omitempty"`
}

// Delay is the distribution of round-trip delays, in microseconds.
type Delay struct {
	Min    int64 `json:"min"`
	Mean   int64 `json:"mean"`
	P50    int64 `json:"p50"`
	P90    int64 `json:"p90"`
	P95    int64 `json:"p95"`
	P99    int64 `json:"p99"`
	Max    int64 `json:"max"`
	Jitter int64 `json:"jitter"`
	// StdDev is the population standard deviation, as ping's mdev; 0 also in reports
	// that were made before it was worked out.
	StdDev int64 `json:"stdDev,omitempty"`
}

// Direction of a loss on a round trip.
type Direction string

const (
	DirectionUnknown Direction = ""        // nobody counted at the target
	DirectionForward Direction = "forward" // requests did not arrive at the target
	DirectionReturn  Direction = "return"  // requests arrived, answers did not come back
	DirectionBoth    Direction = "both"    // some of each
)

// Finding is one cause that explains several failed pairs.
type Finding struct {
	// Cause is the kind of explanation.
	Cause FindingCause `json:"cause"`
	// Subject is what the cause is about: a node, "a -> b", a zone pair, a
	// family, a transport, a size in bytes, a NetworkAttachmentDefinition; empty for
	// the whole network of pods.
	Subject string `json:"subject"`
	// Family, Transport and FromSize narrow the cause to one family, one
	// transport, or payloads of that many bytes and more; at most one of them is
	// set. Empty and 0 mean that it is not narrowed.
	Family    IPFamily  `json:"family,omitempty"`
	Transport Transport `json:"transport,omitempty"`
	FromSize  int       `json:"fromSize,omitempty"`
	// Message is one line for people.
	Message string `json:"message"`
	// Explains is the number of failed pairs that this finding explains, OnlyThis
	// how many of them no other finding explains.
	Explains int `json:"explains"`
	OnlyThis int `json:"onlyThis"`
	// For and Against are the evidence, a line each: Against names what passed
	// although the finding would have it fail.
	For     []string `json:"for,omitempty"`
	Against []string `json:"against,omitempty"`
	// Alternatives are other causes that explain the same pairs as well: what
	// this sample cannot tell apart. Each is "<cause> <subject>", and behind it in
	// brackets what narrows it.
	Alternatives []string `json:"alternatives,omitempty"`
}

// FindingCause is a kind of explanation.
type FindingCause string

const (
	CauseNodeIngress FindingCause = "nodeIngress" // what goes to one node's pods
	CauseNodeEgress  FindingCause = "nodeEgress"  // what comes from one node's pods
	CauseNode        FindingCause = "node"        // one node, both ways
	CausePair        FindingCause = "pair"        // one ordered pair of nodes
	CauseZones       FindingCause = "zones"       // one ordered pair of zones
	CauseFamily      FindingCause = "family"      // one IP family
	CauseTransport   FindingCause = "transport"   // one transport
	CauseSize        FindingCause = "size"        // payloads from one size up
	CauseSource      FindingCause = "source"      // the source itself
	CauseTarget      FindingCause = "target"      // the target itself
	CauseNetwork     FindingCause = "network"     // everything: no narrower cause explains it
	CauseService     FindingCause = "service"     // the way to a Service's address, not the endpoints behind it
	CausePlacement   FindingCause = "placement"   // too few nodes that take a pod, or pods that are not admitted
)

// FindingCauses lists every FindingCause.
var FindingCauses = []FindingCause{CauseNodeIngress, CauseNodeEgress, CauseNode, CausePair, CauseZones, CauseFamily, CauseTransport, CauseSize, CauseSource, CauseTarget, CauseNetwork, CauseService, CausePlacement}

// MatrixMax is the most sources, and the most targets, for which a report holds
// a Matrix: nobody reads a larger one, and its size grows with the square.
const MatrixMax = 100

// Matrix is the source-by-target summary of a check.
type Matrix struct {
	Sources []string `json:"sources"`
	Targets []string `json:"targets"`
	// Cells holds one row per source, one character per target: '.' passed,
	// 'x' all failed, '/' some failed, '?' unmeasured, ' ' not in the sample. The
	// worst of the pairs of the cell counts, fail before unmeasured.
	Cells []string `json:"cells"`
}

// AgentNote is what one agent said of itself.
type AgentNote struct {
	Source string `json:"source"`
	Note   string `json:"note"`
}

// Condition is metav1.Condition without its times.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"` // True, False or Unknown
	Reason  string `json:"reason"`
	Message string `json:"message"`
}
