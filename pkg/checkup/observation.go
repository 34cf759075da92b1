// SPDX-License-Identifier: Apache-2.0

package checkup

// Cause is why something was not measured, or failed: the stage at which it
// stopped and what was seen there.
type Cause struct {
	Stage Stage `json:"stage"`
	// Reason is what code decides by; empty where nothing depends on it.
	Reason Reason `json:"reason,omitempty"`
	// Message is one line for people, without the names of source and target. No code
	// decides by it.
	Message string `json:"message"`
}

// String prints "stage: message".
func (c Cause) String() string { return string(c.Stage) + ": " + c.Message }

// Stage is a step on the way to a measurement.
type Stage string

const (
	StageSetup     Stage = "setup"     // the target's fixture or pod was not there
	StageSchedule  Stage = "schedule"  // the agent's pod was not scheduled
	StageStart     Stage = "start"     // the agent's pod did not start (image, sandbox, crash)
	StageControl   Stage = "control"   // the agent got a control pair wrong: it is not trusted
	StageCollect   Stage = "collect"   // the agent's answers did not arrive, or not all of them
	StageSelf      Stage = "self"      // the agent's own delay spoiled the samples
	StageSocket    Stage = "socket"    // the local socket could not be had (a fault of the source, not of the path)
	StageResolve   Stage = "resolve"   // the target's DNS name has no address
	StageConnect   Stage = "connect"   // no connection: refused, timed out, no route
	StageHandshake Stage = "handshake" // connected, but no TLS handshake: silent, closed, refused
	StageEcho      Stage = "echo"      // connected, or sent, but no or a wrong answer
	StageResponse  Stage = "response"  // no HTTP response, or one that is not a success
)

// Stages lists every Stage in the order of a measurement.
var Stages = []Stage{StageSetup, StageSchedule, StageStart, StageControl, StageCollect, StageSelf, StageSocket, StageResolve, StageConnect, StageHandshake, StageEcho, StageResponse}

// Reason is a typed reason of a Cause.
type Reason string

const (
	ReasonSilent      Reason = "Silent"      // the peer accepted the connection and sent nothing
	ReasonOtherVM     Reason = "OtherVM"     // what the cause is about happened to the other VM of the pair
	ReasonUnrequested Reason = "Unrequested" // the source reported pairs that it was not asked to measure
	ReasonConflict    Reason = "Conflict"    // the source reported one pair twice, and differently
)

// Observation is what a source measured for one pair. What the network did is
// told in numbers and in Failure; Unmeasured is set when no measurement could
// be made, and then the numbers mean nothing.
type Observation struct {
	Pair
	// Sent is how many measurements were made and count, Received how many of them
	// were answered in time (first answers only). Spoiled measurements are repeated
	// and so Sent is the probe's Count, unless the agent was held up all the time or
	// its time was over: then it is less.
	Sent     int `json:"sent,omitempty"`
	Received int `json:"received,omitempty"`
	// Duplicates are answers to a measurement that was answered before (RFC
	// 5560); Reordered are answers that came after the answer of a later one (RFC
	// 4737 type-P-reordered).
	Duplicates int `json:"duplicates,omitempty"`
	Reordered  int `json:"reordered,omitempty"`
	// Spoiled measurements were made as well, but thrown away and are not counted
	// in Sent or Received, because the agent itself was held up while it made them,
	// or its socket had no room for their answers. They may be more than the probe's Count.
	Spoiled int `json:"spoiled,omitempty"`
	// RTTs are the round-trip delays of the answered measurements in
	// microseconds, in the order in which they were sent.
	RTTs []int64 `json:"rtts,omitempty"`
	// Kernel says that all RTTs were taken with kernel timestamps and hold no time
	// of the agent's, nor, for udp, of the responder's (RFC 5357, section 4.2.1). It
	// is never true of http and of tcp with a size.
	Kernel bool `json:"kernel,omitempty"`
	// Stages holds the delays of each stage, in microseconds, of pairs that were
	// told as Results: made by Judge, not told by agents. RTTs are then those of the
	// TCP connect.
	Stages map[Stage][]int64 `json:"-"`
	// Outages likewise, oldest first.
	Outages []Outage `json:"-"`
	// Failure tells how an unanswered measurement failed: the last of those that
	// the network explained (refused, no route, a wrong answer, ...), or, if it
	// explained none, the last. Hosts and routers limit the rate of their ICMP
	// errors (RFC 1812, section 4.3.2.8), so that of the packets of one rejected
	// pair most seem to be lost without a word. nil if all were answered.
	Failure *Cause `json:"failure,omitempty"`
	// Unmeasured says why there is no measurement; nil means there is one.
	Unmeasured *Cause `json:"unmeasured,omitempty"`
}

// Reception is what a responder received of one source's measurements. With it
// a lost request can be told from a lost answer.
type Reception struct {
	Pair
	// Packets is the number of distinct requests of the pair that arrived.
	Packets int `json:"packets"`
	// Dropped is how many requests of the pair's family, of whatever pairs, had
	// reached the responder when this was told, but were dropped because its socket
	// had no room: the responder was too busy, and the network lost none of them.
	// The highest number that is told of a target and family is the last.
	Dropped int `json:"dropped,omitempty"`
}

// Control is an agent's measurement of a pair whose outcome is known: its own
// responder (must answer) and a closed port (must not).
type Control struct {
	Family IPFamily `json:"family"`
	// Name is "self" or "closed".
	Name string `json:"name"`
	// OK says that the outcome was the known one.
	OK bool `json:"ok"`
	// Message tells what was seen, in one line.
	Message string `json:"message,omitempty"`
}

// SelfDoubt is what an agent measured of itself.
type SelfDoubt struct {
	// SchedulingDelayMax and P99, in microseconds: how late a timer of the agent
	// woke while it was probing.
	SchedulingDelayMax int64 `json:"schedulingDelayMax"`
	SchedulingDelayP99 int64 `json:"schedulingDelayP99"`
	// ThrottledMicros is the time in microseconds for which the cgroup was
	// throttled while the agent was probing; nil if the cgroup does not tell.
	ThrottledMicros *int64 `json:"throttledMicros,omitempty"`
}

// Message is one line of an agent's or responder's standard output, as JSON.
// Exactly one field is set.
type Message struct {
	// Start is the agent's first line.
	Start *AgentStart `json:"start,omitempty"`
	// Observation of one pair. Each pair of the order is told exactly once.
	Observation *Observation `json:"observation,omitempty"`
	// Results of pairs that are told measurement by measurement; within one pair in
	// the order of their times.
	Results []Result `json:"results,omitempty"`
	// Control of one control pair. They are told before any observation.
	Control *Control `json:"control,omitempty"`
	// Reception is told by responders. A later line for the same pair replaces an
	// earlier one.
	Reception *Reception `json:"reception,omitempty"`
	// End is the last line of an agent that came to its end. Without it the
	// answers are not complete.
	End *AgentEnd `json:"end,omitempty"`
}

// AgentStart says who speaks.
type AgentStart struct {
	Source  int    `json:"source"`
	Version string `json:"version"`
	// Pairs is how many observations will follow, or of how many pairs results.
	Pairs int `json:"pairs"`
}

// AgentEnd says that the agent told all that it had.
type AgentEnd struct {
	Observations int `json:"observations"`
	// Results is how many results it told.
	Results   int       `json:"results,omitempty"`
	SelfDoubt SelfDoubt `json:"selfDoubt"`
}

// Source is what became of one source of the worksheet.
type Source struct {
	Source int `json:"source"`
	// Pod of the agent, namespace/name; empty if it was never made.
	Pod      string    `json:"pod,omitempty"`
	Controls []Control `json:"controls,omitempty"`
	// End is nil if the agent did not come to its end.
	End *AgentEnd `json:"end,omitempty"`
	// Cause says why pairs of this source without an observation have none; nil
	// when the agent came to its end.
	Cause *Cause `json:"cause,omitempty"`
	// Unrequested is the number of distinct pairs that the source reported and was
	// not asked to measure, those of other sources included; counted up to a limit.
	Unrequested int `json:"unrequested,omitempty"`
	// Conflicts are the source's own pairs that it reported twice and differently,
	// sorted. A report that was repeated is none.
	Conflicts []Pair `json:"conflicts,omitempty"`
}

// Record is all that was measured for one worksheet.
type Record struct {
	Sources      []Source      `json:"sources"`
	Observations []Observation `json:"observations"`
	// Results of pairs that are told measurement by measurement; Judge makes their
	// observations.
	Results    []Result    `json:"results,omitempty"`
	Receptions []Reception `json:"receptions,omitempty"`
	// Counted are the indexes of the targets whose responder's log was read after
	// its sources had ended. A pair of a counted target without a Reception is one
	// of which nothing arrived; of other targets nothing is known.
	Counted []int `json:"counted,omitempty"`
	// Facts that the probe task found out itself.
	Facts []Fact `json:"facts,omitempty"`
}
