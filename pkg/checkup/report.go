// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Verdict of a unit. The zero value is not a verdict: a unit that was not judged must
// not read as passed.
type Verdict string

const (
	Pass       Verdict = "pass"       // measured, and every expectation was met
	Fail       Verdict = "fail"       // measured, and an expectation was not met
	Unmeasured Verdict = "unmeasured" // expected, but not measured; the cause says why
	// Undecided: measured, and the sample neither shows that a limit is exceeded nor is
	// consistent with it. A pair that is not answered at all is never undecided.
	Undecided Verdict = "undecided"
)

// Verdicts lists every Verdict.
var Verdicts = []Verdict{Pass, Fail, Undecided, Unmeasured}

// RunVerdict is the verdict of a check or a run.
type RunVerdict string

const (
	RunPass         RunVerdict = "pass"
	RunFail         RunVerdict = "fail"
	RunInconclusive RunVerdict = "inconclusive" // no failure, but too many units were not measured
)

// VerdictError is the value of LabelVerdict for a run that did not fail, but whose tool did: a task or step ended with
// an error, so the network was not measured as planned. The report's own verdict of such a run is pass or inconclusive.
const VerdictError = "error"

// RunVerdicts lists every RunVerdict, worst first.
var RunVerdicts = []RunVerdict{RunFail, RunInconclusive, RunPass}

// ReportKind is the kind of a report in YAML and JSON.
const ReportKind = "Report"

// Report is the outcome of a run. Several printers print this one value.
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
	// Summary is one line for people. It begins with the verdict.
	Summary string `json:"summary"`
	// Gate of the plan. Passed says that the verdict passes it.
	Gate   Gate   `json:"gate"`
	Passed bool   `json:"passed"`
	Counts Counts `json:"counts"`
	// Checks in the order of Plan.CheckNames.
	Checks []CheckReport `json:"checks"`
	// Leftovers names the fixtures that teardown could not remove, as kind/name.
	Leftovers []string `json:"leftovers,omitempty"`
	// Notes are about the run as a whole, such as history that could not be read, one line each.
	Notes []string `json:"notes,omitempty"`
}

// Summarize sets Summary: the verdict, and what there is to say of it.
func (r *Report) Summarize(text string) { r.Summary = fmt.Sprintf("%s: %s", r.Verdict, text) }

// AfterVerdict is the part of Summary that follows the verdict, for printers that show a verdict in their own way.
func (r *Report) AfterVerdict() string { return strings.TrimPrefix(r.Summary, string(r.Verdict)) }

// Counts of units by verdict. Expected is their sum.
type Counts struct {
	Expected   int `json:"expected"`
	Pass       int `json:"pass"`
	Fail       int `json:"fail"`
	Undecided  int `json:"undecided"`
	Unmeasured int `json:"unmeasured"`
}

// CheckReport is the outcome of one check.
type CheckReport struct {
	Name    string     `json:"name"`
	Kind    Kind       `json:"kind"`
	Verdict RunVerdict `json:"verdict"`
	// Cause says why the check as a whole was not measured (its setup failed or did not
	// run); nil otherwise.
	Cause  *Cause `json:"cause,omitempty"`
	Counts Counts `json:"counts"`
	// Noun names a unit of the check, in the singular: "pair", "placement".
	Noun string `json:"noun,omitempty"`
	// Units that failed, are undecided or were not measured, in the order of the worksheet.
	// Units that failed in the first look and passed in the second (Gone) are listed, too. If
	// Complete is set, all units that passed are.
	Units []Unit `json:"units,omitempty"`
	// Complete says that Units lists all units.
	Complete bool `json:"complete,omitempty"`
	// Conditions in the form of the Kubernetes API, as an operator would set them.
	Conditions []Condition `json:"conditions,omitempty"`
	// Blocks are further parts of the report, which the check's kind adds. They are in
	// the order in which they are printed.
	Blocks []Block `json:"blocks,omitempty"`
	// BlocksListUnits says that Blocks name each unit that did not pass, with its cause.
	// Printers of text then do not list these units again.
	BlocksListUnits bool `json:"blocksListUnits,omitempty"`
	// Said are the clauses that the kind adds to the summary of the run.
	Said []string `json:"said,omitempty"`
	// Reporter names what measured, in the singular: "agent" (also if empty), "guest".
	Reporter string `json:"reporter,omitempty"`
	// Sent is the number of measurements that were made for all pairs. planner explain
	// calls them packets.
	Sent     int       `json:"sent"`
	Coverage *Coverage `json:"coverage,omitempty"`
	// Cumulative is the coverage of this run and those before it; nil if the plan has no history of the check.
	Cumulative *Cumulative `json:"cumulative,omitempty"`
	// Delays has one row per transport, family and size, in the order of the worksheet.
	Delays   []DelayRow `json:"delays,omitempty"`
	Findings []Finding  `json:"findings,omitempty"`
	// Compared says with how many earlier runs this one was compared; nil if the plan does not ask for it.
	Compared *Compared `json:"compared,omitempty"`
	// Background is what no finding explains, one for each limit that single measurements
	// exceed.
	Background []Background `json:"background,omitempty"`
	// Matrix is the source-by-target summary for the heat map; nil for VMs.
	Matrix *Matrix `json:"matrix,omitempty"`
	// Notes are warnings of setup, and losses between VMs that broke no limit, one line
	// each.
	Notes []string `json:"notes,omitempty"`
	// Agents are notes about single agents: a wrong control pair, a late timer,
	// throttling. Agents without such an event have no note.
	Agents []AgentNote `json:"agents,omitempty"`
}

// Coverage says how many of the possible pairs were measured. It can be recomputed from
// worksheet and observations.
type Coverage struct {
	// Noun is what the check takes a sample of; empty means (source, target) pairs. Of anything else, only Measured,
	// Possible, Round, Rounds and Seed are set.
	Noun string `json:"noun,omitempty"`
	// Measured is the number of measured ordered (source, target) pairs, of Possible. A
	// (source, target) pair counts as measured if all its expected pairs (family,
	// transport, size) were measured (undecided ones are), or if one of them failed. Partial counts those of
	// which some were measured, some were not, and none failed.
	Measured int `json:"measured"`
	Partial  int `json:"partial,omitempty"`
	Possible int `json:"possible"`
	// Round of the sample, counted from 0; Rounds is the number of rounds. Seed of the
	// sample.
	Round  int    `json:"round"`
	Rounds int    `json:"rounds"`
	Seed   uint64 `json:"seed"`
	// Lowest and highest measured out-degree of all sources, and in-degree of all
	// targets.
	OutDegreeMin int `json:"outDegreeMin"`
	OutDegreeMax int `json:"outDegreeMax"`
	InDegreeMin  int `json:"inDegreeMin"`
	InDegreeMax  int `json:"inDegreeMax"`
	// ZonePairsHit is the number of measured ordered zone pairs, of ZonePairsPossible.
	// Both are 0 if nodes have no zone.
	ZonePairsHit      int `json:"zonePairsHit"`
	ZonePairsPossible int `json:"zonePairsPossible"`
	// FailingUpperBound is the one-sided 95% upper confidence bound on the share of the
	// possible (source, target) pairs that fail, from 0 to 1. It assumes that the
	// measured ones are a random sample without replacement. It is nil if nothing was
	// measured or sampled.
	FailingUpperBound *float64 `json:"failingUpperBound,omitempty"`
}

// Cumulative says how many of the possible (source, target) pairs were measured by all runs of the plan together, each
// by its last result. A node that left and came back, or changed its zone, begins again; the others go on.
type Cumulative struct {
	// Since is the start of the oldest run that a counted result is of, and Runs the number of runs that they are of.
	// Since is zero if nothing was measured.
	Since time.Time `json:"since,omitzero"`
	Runs  int       `json:"runs"`
	// Measured pairs of Possible; Failing is the number of those that failed when they were measured last.
	Measured int `json:"measured"`
	Possible int `json:"possible"`
	Failing  int `json:"failing"`
	// Oldest is the pair that was not measured for longest, as "a -> b", and OldestAt the end of the run that measured
	// it. OldestAt is zero if no run did.
	Oldest   string    `json:"oldest,omitempty"`
	OldestAt time.Time `json:"oldestAt,omitzero"`
	// RunsLeft is the number of further runs to full coverage if each adds as many pairs as the newest one; nil if that
	// added none.
	RunsLeft *int `json:"runsLeft,omitempty"`
	// FailingUpperBound is the one-sided 95% upper confidence bound on the share of failing pairs, from 0 to 1 (Clopper
	// and Pearson), if the measured pairs are a random sample and nothing changed since they were measured. It is exact
	// if all pairs were measured, and nil if none was.
	FailingUpperBound *float64 `json:"failingUpperBound,omitempty"`
}

// DelayRow summarises the round-trip delays of all measured pairs of one
// transport, family and size. Percentiles are in microseconds.
type DelayRow struct {
	Transport Transport `json:"transport"`
	// Stage that the delays belong to, for pairs that were reported as Results. Sent is
	// then the number of measurements that reached the stage. Empty for other pairs,
	// whose delays are round trips.
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
	// StdDev is the population standard deviation, as ping's mdev. Older reports do not
	// have it; there it is 0.
	StdDev int64 `json:"stdDev,omitempty"`
}

// Background is what exceeds a limit in single measurements, everywhere and without a cause
// that stands out: Failed of Sent.
type Background struct {
	Limit  Limit `json:"limit"`
	Failed int   `json:"failed"`
	Sent   int   `json:"sent"`
	// Rate is Failed of Sent, and Upper the one-sided 95% upper confidence bound on the rate
	// of all measurements that might have been made (Clopper and Pearson).
	Rate  Percent `json:"rate"`
	Upper Percent `json:"upper"`
}

// Confirmation says what a further look found about something that failed or was
// undecided in the look before.
type Confirmation string

const (
	NotLookedAt  Confirmation = ""            // the kind does not look again, or there was no reason to
	Confirmed    Confirmation = "confirmed"   // it failed again
	Gone         Confirmation = "gone"        // it did not fail again
	NotConfirmed Confirmation = "undecided"   // the further look did not decide it
	NotMadeAgain Confirmation = "notMeasured" // only one look measured it, or only the further one saw it fail
)

// Confirmations lists every Confirmation.
var Confirmations = []Confirmation{NotLookedAt, Confirmed, Gone, NotConfirmed, NotMadeAgain}

// Direction of a loss on a round trip.
type Direction string

const (
	DirectionUnknown Direction = ""        // the target did not count requests
	DirectionForward Direction = "forward" // requests did not arrive at the target
	DirectionReturn  Direction = "return"  // requests arrived, answers did not
	DirectionBoth    Direction = "both"    // both kinds of loss
)

// Finding is one cause that explains several failed pairs.
type Finding struct {
	// Cause is the kind of explanation.
	Cause FindingCause `json:"cause"`
	// Subject is the thing that the cause concerns: a node, "a -> b", a zone pair, a
	// family, a transport, a size in bytes, a NetworkAttachmentDefinition. Empty means
	// the whole pod network.
	Subject string `json:"subject"`
	// Nodes are those that the finding concerns: the nodes of its subject and of its alternatives, each once. Nil if
	// there are none, if they are too many to be named, and in reports of older versions.
	Nodes []string `json:"nodes,omitempty"`
	// Family, Transport and FromSize narrow the cause to one family, one transport, or
	// payloads of at least that many bytes. At most one of them is set. Empty and 0 mean
	// no restriction.
	Family    IPFamily  `json:"family,omitempty"`
	Transport Transport `json:"transport,omitempty"`
	FromSize  int       `json:"fromSize,omitempty"`
	// Message is one line for people.
	Message string `json:"message"`
	// Confirmation says what a further look found.
	Confirmation Confirmation `json:"confirmation,omitempty"`
	// Change says how much worse the pairs are than in earlier runs; nil for a finding about failures. The pairs of a
	// finding with a Change need not have failed, and no failed one is among them.
	Change *Change `json:"change,omitempty"`
	// Explains is the number of failed (with a Change: changed) pairs that this finding explains. OnlyThis is the
	// number of those that no other finding explains.
	Explains int `json:"explains"`
	OnlyThis int `json:"onlyThis"`
	// For and Against are the evidence, one line each. Against names pairs that passed
	// although the finding predicts that they fail.
	For     []string `json:"for,omitempty"`
	Against []string `json:"against,omitempty"`
	// Alternatives are other causes that explain the same pairs equally well: this
	// sample cannot distinguish them. The form is "<cause> <subject>", with a
	// restriction in parentheses after it.
	Alternatives []string `json:"alternatives,omitempty"`
	// Rest names the findings that this one counts ("18 more findings"), at most MaxRest, in the form of Alternatives.
	// Nil for a finding that counts no others, and in reports of older versions.
	Rest []string `json:"rest,omitempty"`
}

// MaxRest is how many findings a finding that counts others names, so that a report stays small.
const MaxRest = 1000

// Compared is the comparison with earlier runs. The findings with a Change are its result.
type Compared struct {
	// Runs is the number of earlier runs, and Needed the least number of them: with fewer, nothing was compared.
	Runs   int `json:"runs"`
	Needed int `json:"needed"`
}

// Change is the difference to earlier runs of the plan.
type Change struct {
	// Limit is what became worse: LimitP50 (the median delay), LimitP90, or LimitLoss.
	Limit Limit `json:"limit"`
	// Usual and Now are medians over the pairs that the finding explains, in Measure: microseconds or percent. Usual is
	// the value in earlier runs or, of a drift, that at its begin.
	Usual   float64 `json:"usual"`
	Now     float64 `json:"now"`
	Measure Measure `json:"measure"`
	// Runs is the number of earlier runs that were compared.
	Runs int `json:"runs"`
	// Days is the time over which the value grew, for a slow drift; 0 if this run differs from the runs before.
	Days int `json:"days,omitempty"`
}

// Concerns adds nodes to Nodes, each once. Empty names are ignored.
func (f *Finding) Concerns(nodes ...string) {
	for _, n := range nodes {
		if n != "" && !slices.Contains(f.Nodes, n) {
			f.Nodes = append(f.Nodes, n)
		}
	}
}

// Causes are the causes of the findings that the finding counts, one each; its own cause if it counts no others.
func (f *Finding) Causes() []FindingCause {
	if len(f.Rest) == 0 {
		return []FindingCause{f.Cause}
	}
	var causes []FindingCause
	for _, name := range f.Rest {
		cause, _, _ := strings.Cut(name, " ")
		if !slices.Contains(FindingCauses, FindingCause(cause)) {
			cause = string(f.Cause) // not written by this program
		}
		causes = append(causes, FindingCause(cause))
	}
	return causes
}

// String is the cause with its subject and restrictions, in the form of Alternatives.
func (f Finding) String() string {
	s := string(f.Cause)
	if f.Subject != "" {
		s += " " + f.Subject
	}
	var only []string
	if f.Family != "" {
		only = append(only, string(f.Family))
	}
	if f.Transport != "" {
		only = append(only, string(f.Transport))
	}
	if f.FromSize > 0 {
		only = append(only, fmt.Sprintf("payloads from %d bytes", f.FromSize))
	}
	if len(only) > 0 {
		s += " (" + strings.Join(only, ", ") + " only)"
	}
	switch {
	case f.Change == nil:
	case f.Change.Limit == LimitLoss:
		s += ", loses more than before"
	default:
		s += ", slower than before"
	}
	return s
}

// FindingCause is a kind of explanation.
type FindingCause string

const (
	CauseNodeIngress FindingCause = "nodeIngress" // traffic to the pods of one node
	CauseNodeEgress  FindingCause = "nodeEgress"  // traffic from the pods of one node
	CauseNode        FindingCause = "node"        // one node, both directions
	CauseNodes       FindingCause = "nodes"       // several nodes together, both directions, but not among each other
	// Traffic from other nodes to the pods of nodes that share a label of sample.topology, and back.
	CauseNodesIngress FindingCause = "nodesIngress"
	CauseNodesEgress  FindingCause = "nodesEgress"
	CausePair         FindingCause = "pair"      // one ordered pair of nodes
	CauseZones        FindingCause = "zones"     // one ordered pair of zones
	CauseGroups       FindingCause = "groups"    // one ordered pair of values of a label of sample.topology
	CauseFamily       FindingCause = "family"    // one IP family
	CauseTransport    FindingCause = "transport" // one transport
	CauseSize         FindingCause = "size"      // payloads from one size up
	CauseSource       FindingCause = "source"    // the source itself
	CauseTarget       FindingCause = "target"    // the target itself
	CausePaths        FindingCause = "paths"     // some flows only: one of several parallel paths
	CauseNetwork      FindingCause = "network"   // the whole network: no narrower cause explains it
	// CauseSourceAddress: packets arrive with another source address than their source's. The
	// subject is the node that rewrites them, or how they go.
	CauseSourceAddress FindingCause = "sourceAddress"
	CauseService       FindingCause = "service"   // the routing to a Service's address, not the endpoints behind it
	CausePlacement     FindingCause = "placement" // too few eligible nodes, or pods that are not admitted
)

// FindingCauses lists every FindingCause.
var FindingCauses = []FindingCause{
	CauseNodeIngress, CauseNodeEgress, CauseNode, CauseNodes, CauseNodesIngress, CauseNodesEgress, CausePair, CauseZones,
	CauseGroups, CauseFamily, CauseTransport, CauseSize, CauseSource, CauseTarget, CausePaths, CauseNetwork,
	CauseSourceAddress, CauseService, CausePlacement,
}

// MatrixMax is the largest number of rows, and of columns, of the Matrix of a check. Nobody reads a larger one, and its
// size grows with the square.
const MatrixMax = 100

// Matrix is the source-by-target summary of a check.
type Matrix struct {
	Sources []string `json:"sources"`
	Targets []string `json:"targets"`
	// Group is the largest number of sources or targets that one row or column has; 0 means one each. In a matrix with a
	// Group, Sources and Targets name what a row has: "zone-a: node-1 to node-9 (9)".
	Group int `json:"group,omitempty"`
	// Cells has one row per source, with one character per target: '.' passed, 'x' all
	// failed, '/' some failed, '?' unmeasured, '~' undecided, ' ' not in the sample. The
	// worst pair of the cell decides, in this order: fail, unmeasured, undecided, pass.
	Cells []string `json:"cells"`
}

// AgentNote is a note about the agent of one source.
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
