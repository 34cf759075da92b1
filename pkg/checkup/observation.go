// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"slices"
	"time"
)

// Cause says why something failed or was not measured: the stage at which it stopped,
// and what happened there.
type Cause struct {
	Stage Stage `json:"stage"`
	// Reason is for decisions in code; empty if no code depends on it.
	Reason Reason `json:"reason,omitempty"`
	// Message is one line for people, without the names of source and target. Code
	// must not read it.
	Message string `json:"message"`
}

// String prints "stage: message".
func (c Cause) String() string { return string(c.Stage) + ": " + c.Message }

// Stage is a step on the way to a measurement.
type Stage string

const (
	StageSetup     Stage = "setup"     // the target's fixture or pod was missing or not ready
	StageSchedule  Stage = "schedule"  // the agent's pod was not scheduled
	StageStart     Stage = "start"     // the agent's pod did not start (image, sandbox, crash)
	StageControl   Stage = "control"   // a control pair of the agent had the wrong outcome: the agent is not trusted
	StageCollect   Stage = "collect"   // the agent's report did not arrive, or is incomplete
	StageSelf      Stage = "self"      // a delay of the agent itself spoiled the samples
	StageSocket    Stage = "socket"    // the agent could not open its socket (a fault of the source, not of the path)
	StageResolve   Stage = "resolve"   // the target's DNS name has no address
	StageConnect   Stage = "connect"   // no connection: refused, timed out, no route
	StageHandshake Stage = "handshake" // connected, but the TLS handshake failed: silent, closed, refused
	StageEcho      Stage = "echo"      // connected, or sent, but no answer or a wrong one
	StageResponse  Stage = "response"  // no HTTP response, or an unsuccessful one
	StageRules     Stage = "rules"     // the node's rules could not be read, or are not what they have to be
)

// Stages lists every Stage in the order of a measurement.
var Stages = []Stage{
	StageSetup, StageSchedule, StageStart, StageControl, StageCollect, StageSelf,
	StageSocket, StageResolve, StageConnect, StageHandshake, StageEcho, StageResponse, StageRules,
}

// Reason is a typed reason of a Cause.
type Reason string

const (
	ReasonSilent      Reason = "Silent"      // the peer accepted the connection and sent nothing
	ReasonOtherVM     Reason = "OtherVM"     // the cause concerns the other VM of the pair
	ReasonUnrequested Reason = "Unrequested" // the source reported unrequested pairs
	ReasonConflict    Reason = "Conflict"    // the source reported one pair twice, with different values
	ReasonRefused     Reason = "Refused"     // the connection, or the datagram, was refused: ECONNREFUSED
	ReasonTimedOut    Reason = "TimedOut"    // nothing answered the connection attempt, or the datagram, in time
	ReasonNoRoute     Reason = "NoRoute"     // a host or router reported that it has no way: EHOSTUNREACH, ENETUNREACH
	ReasonReached     Reason = "Reached"     // the target must not be reachable, and was
	ReasonChanged     Reason = "Changed"     // what the pair expects changed while it was measured
	ReasonUnreached   Reason = "Unreached"   // an endpoint of a Service is never reached through it
	ReasonShare       Reason = "Share"       // an endpoint's share of a Service's connections is not what it must be

	ReasonRepeated  Reason = "Repeated"  // a DNS question was answered only when it was repeated
	ReasonCode      Reason = "Code"      // a DNS server answered with another code than NOERROR or NXDOMAIN
	ReasonWrong     Reason = "Wrong"     // a DNS server answered something else than it must
	ReasonMalformed Reason = "Malformed" // what a DNS server answered cannot be read, or answers another question
)

// Reasons lists every Reason. A Cause without one has the empty string, which is not among them.
var Reasons = []Reason{
	ReasonForbidden, ReasonOtherProxy, ReasonUnknownRule, ReasonNoRules, ReasonMissing, ReasonDiffers, ReasonExtra,
	ReasonSilent, ReasonOtherVM, ReasonUnrequested, ReasonConflict, ReasonRefused, ReasonTimedOut, ReasonNoRoute,
	ReasonReached, ReasonChanged, ReasonUnreached, ReasonShare, ReasonRepeated, ReasonCode, ReasonWrong, ReasonMalformed,
}

// Reasons of the stage StageRules.
const (
	ReasonForbidden   Reason = "Forbidden"   // the agent has no right to read the rules of its node
	ReasonOtherProxy  Reason = "OtherProxy"  // the node's service proxy is one whose rules cannot be read
	ReasonUnknownRule Reason = "UnknownRule" // packets may meet a rule that was not understood
	ReasonNoRules     Reason = "NoRules"     // the node has no rules of its service proxy
	ReasonMissing     Reason = "Missing"     // the node has no rules for the Service
	ReasonDiffers     Reason = "Differs"     // the node's rules for the Service are not what they have to be
	ReasonExtra       Reason = "Extra"       // the node has rules for a Service that does not exist
)

// Observation is the measurement of one pair by its source. The numbers and Failure
// describe what the network did. If Unmeasured is set, no measurement could be made,
// and the numbers mean nothing.
type Observation struct {
	Pair
	// Sent is the number of valid measurements, Received the number of those that were
	// answered in time (first answers only). Spoiled measurements are repeated; Sent is
	// thus the probe's Count. It is less if too many measurements were spoiled, the
	// agent's deadline passed, or a further look ended at one of its Stops.
	Sent     int `json:"sent,omitempty"`
	Received int `json:"received,omitempty"`
	// Duplicates counts further answers to an answered measurement (RFC 5560).
	// Reordered counts answers that arrived after the answer to a later measurement
	// (RFC 4737 type-P-reordered).
	Duplicates int `json:"duplicates,omitempty"`
	Reordered  int `json:"reordered,omitempty"`
	// Spoiled is the number of discarded measurements: the agent itself was delayed
	// while it made them, or its socket buffer had no room for the answers. Sent and
	// Received do not include them. It may be larger than the probe's Count.
	Spoiled int `json:"spoiled,omitempty"`
	// Witnessed is the number of answered measurements of which the target reported the source
	// address that it saw. Rewritten is the number of those with another address than the
	// agent's own, and SeenAs the last such address; empty without one. All are 0 for icmp, for
	// targets that are not responders, and if the order does not ask for them.
	Witnessed int    `json:"witnessed,omitempty"`
	Rewritten int    `json:"rewritten,omitempty"`
	SeenAs    string `json:"seenAs,omitempty"`
	// Answerers are the responders that answered, by their own addresses, sorted; empty if the order does not ask for
	// them. Their counts add up to Received: what is answered by somebody else counts as not answered.
	Answerers []Answerer `json:"answerers,omitempty"`
	// Unturned says of a target with OrderTarget.Turn that the same responder answered until the end of that time.
	Unturned bool `json:"unturned,omitempty"`
	// Later are the responders that answered once more after OrderTarget.Idle each, in the order of time; those further
	// measurements are not in Sent.
	Later []string `json:"later,omitempty"`
	// Repeated is the number of DNS questions without an answer in time whose repetition was answered: they are not in
	// Received. Truncated is the number of those that TCP had to answer, because the answer did not fit in a datagram.
	Repeated  int `json:"repeated,omitempty"`
	Truncated int `json:"truncated,omitempty"`
	// RTTs are the round-trip delays of the answered measurements in
	// microseconds, in the order in which they were sent.
	RTTs []int64 `json:"rtts,omitempty"`
	// Connects are the parts of RTTs, in microseconds and in the same order, that the TCP connect took; only of dns-tcp.
	Connects []int64 `json:"connects,omitempty"`
	// Kernel says that all RTTs come from kernel timestamps. They then exclude the time
	// that the agent spent and, for udp, the time that the responder spent (RFC 5357,
	// section 4.2.1). It is never true for http, nor for tcp with a size.
	Kernel bool `json:"kernel,omitempty"`
	// Flows are the measurements by source port, in the order of the first use of the port.
	// They add up to Sent and Received: spoiled measurements are not among them. Empty for
	// icmp, for pairs that were reported as Results, if more than MaxFlows ports were used,
	// and, because it would add nothing, if all measurements or none were answered.
	Flows []Flow `json:"flows,omitempty"`
	// Stages holds the delays of each stage, in microseconds, for pairs that were
	// reported as Results. Judge computes it; agents do not report it. RTTs are then the
	// delays of the TCP connect.
	Stages map[Stage][]int64 `json:"-"`
	// Outages, oldest first. Judge computes them like Stages.
	Outages []Outage `json:"-"`
	// Failure says how an unanswered measurement failed; nil if all were answered. Of
	// several, it is the last one with an error from the network (refused, no route, a
	// wrong answer, ...), otherwise the last one. The reason: hosts and routers limit
	// the rate of their ICMP errors (RFC 1812, section 4.3.2.8), therefore most packets
	// of a rejected pair are lost without an error.
	Failure *Cause `json:"failure,omitempty"`
	// Unmeasured says why the pair was not measured; nil if it was measured.
	Unmeasured *Cause `json:"unmeasured,omitempty"`
}

// Answerer is a responder behind a Service.
type Answerer struct {
	// Address of the responder at which the requests arrived.
	Address string `json:"a"`
	// Count of the measurements that it answered.
	Count int `json:"n"`
}

// Flow is what was measured from one source port: parallel paths are chosen by ports
// (RFC 2992).
type Flow struct {
	Port     int `json:"port"`
	Sent     int `json:"sent"`
	Received int `json:"received"`
	// Unmeasured says why the agent could not use the port, which was demanded by
	// Again.Ports; nil if it could.
	Unmeasured *Cause `json:"unmeasured,omitempty"`
}

// SilentFlow reports whether one of the flows was never answered in several measurements, although others were.
func SilentFlow(flows []Flow) bool {
	answered := func(f Flow) bool { return f.Received > 0 }
	silent := func(f Flow) bool { return f.Sent > 1 && f.Received == 0 }
	return slices.ContainsFunc(flows, answered) && slices.ContainsFunc(flows, silent)
}

// Reception counts the requests of one pair that a responder received in one look. It
// distinguishes a lost request from a lost answer.
type Reception struct {
	Pair
	// Look of the worksheet whose agent sent the requests.
	Look int `json:"look,omitempty"`
	// Packets is the number of distinct requests of the pair that arrived.
	Packets int `json:"packets"`
	// Dropped is the number of requests of the pair's family, from all pairs, that
	// reached the responder in this look up to this report and were dropped because its
	// socket buffer had no room. The responder was too busy; the network did not lose
	// them. The number only grows: the highest number of a target and family is the last.
	Dropped int `json:"dropped,omitempty"`
	// Incomplete says that the responder did not count some requests, of any pair: its memory
	// for counts was full.
	Incomplete bool `json:"incomplete,omitempty"`
}

// Control is an agent's measurement of a pair with a known outcome: its own responder,
// which must answer, or a closed port, which must not.
type Control struct {
	Family IPFamily `json:"family"`
	// Name is "self" or "closed".
	Name string `json:"name"`
	// OK says that the outcome was the expected one.
	OK bool `json:"ok"`
	// Message describes the outcome, in one line.
	Message string `json:"message,omitempty"`
}

// SelfDoubt holds the delays that an agent measured of itself. Such delays can spoil
// its measurements.
type SelfDoubt struct {
	// SchedulingDelayMax and SchedulingDelayP99 say how late a timer of the agent fired
	// while it was probing, in microseconds.
	SchedulingDelayMax int64 `json:"schedulingDelayMax"`
	SchedulingDelayP99 int64 `json:"schedulingDelayP99"`
	// ThrottledMicros is the time in microseconds for which the cgroup was throttled
	// while the agent was probing; nil if the cgroup has no such statistic.
	ThrottledMicros *int64 `json:"throttledMicros,omitempty"`
}

// Message is one line of an agent's or responder's standard output, as JSON.
// Exactly one field is set.
type Message struct {
	// Start is the first line of an agent and of a responder.
	Start *AgentStart `json:"start,omitempty"`
	// Observation of one pair. The agent reports each pair of its order exactly once.
	Observation *Observation `json:"observation,omitempty"`
	// Results of pairs whose measurements are reported one by one. The results of one
	// pair are in the order of their times.
	Results []Result `json:"results,omitempty"`
	// Control of one control pair. The agent reports all of them before any observation.
	Control *Control `json:"control,omitempty"`
	// Reception is reported by responders. A later line for the same pair replaces an
	// earlier one.
	Reception *Reception `json:"reception,omitempty"`
	// Table is a part of what an agent read of its node's service proxy. The parts of a table are in their order.
	Table *TablePart `json:"table,omitempty"`
	// End is the last line of an agent. If it is missing, the agent's report is
	// incomplete.
	End *AgentEnd `json:"end,omitempty"`
}

// AgentStart identifies the agent.
type AgentStart struct {
	// Source is -1 for a responder.
	Source  int    `json:"source"`
	Version string `json:"version"`
	// Pairs is the number of pairs that the agent will report.
	Pairs int `json:"pairs"`
}

// AgentEnd says that the agent's report is complete.
type AgentEnd struct {
	Observations int `json:"observations"`
	// Results is the number of results that the agent reported, and Observations the
	// number of observations.
	Results int `json:"results,omitempty"`
	// Tables is the number of tables that the agent reported: one for each look and family.
	Tables    int       `json:"tables,omitempty"`
	SelfDoubt SelfDoubt `json:"selfDoubt"`
}

// Source is the outcome of one source of the worksheet.
type Source struct {
	Source int `json:"source"`
	// Pod of the agent, namespace/name; empty if it was not created.
	Pod string `json:"pod,omitempty"`
	// UID and Addresses of the agent's pod; empty if unknown, and for VMs.
	UID       string              `json:"uid,omitempty"`
	Addresses map[IPFamily]string `json:"addresses,omitempty"`
	// Began is when the task saw that the agent had started, and Ended when the task had received its report, by the
	// clock of the task. Zero if it did not start, and for VMs.
	Began    time.Time `json:"began,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`
	Controls []Control `json:"controls,omitempty"`
	// End is nil if the agent's report is incomplete.
	End *AgentEnd `json:"end,omitempty"`
	// Cause says why pairs of this source have no observation; nil if the agent's report
	// is complete.
	Cause *Cause `json:"cause,omitempty"`
	// Unrequested is the number of distinct pairs that the source reported and that its
	// order does not contain, pairs of other sources included. It is counted up to a
	// limit.
	Unrequested int `json:"unrequested,omitempty"`
	// Conflicts are the source's own pairs that it reported twice with different values,
	// sorted. Two equal reports are no conflict.
	Conflicts []Pair `json:"conflicts,omitempty"`
}

// Record holds all measurements of one worksheet.
type Record struct {
	Sources      []Source      `json:"sources"`
	Observations []Observation `json:"observations"`
	// Results of pairs whose measurements are reported one by one. Judge computes their
	// observations.
	Results    []Result    `json:"results,omitempty"`
	Receptions []Reception `json:"receptions,omitempty"`
	// Counted are the indexes of the targets whose responder's log was read after all
	// their sources had ended. If a pair of a counted target has no Reception, none of
	// its requests arrived. For other targets this is unknown.
	Counted []int `json:"counted,omitempty"`
	// Facts that the probe task determined itself, without agents.
	Facts []Fact `json:"facts,omitempty"`
	// Looks are the further looks that were made, in their order; empty if there was none.
	Looks []Look `json:"looks,omitempty"`
}

// Look is a further look at some pairs of a worksheet: what was asked, and what was
// measured; nothing, if there was no time for it.
type Look struct {
	Worksheet Worksheet `json:"worksheet"`
	// After is how long after the first look it began.
	After  Duration `json:"after"`
	Record Record   `json:"record"`
}
