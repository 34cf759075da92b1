// SPDX-License-Identifier: Apache-2.0

// Package report turns what was measured into a verdict, and prints it. It is
// pure: no clock, no cluster, no random choice; the same worksheet, roster and
// record give the same bytes, in whatever order the observations came.
//
//	Judge     worksheet + roster + record   -> checkup.CheckReport
//	Join      plan + run + check reports    -> checkup.Report
//	Text, Log, JSON, JUnit, OpenMetrics     print a checkup.Report
//	Results   its short form, for Tekton
//	Read      reads back what JSON wrote
//
// Each printer needs the report alone, so that a saved report prints as the live
// one did.
//
// # How a pair is judged
//
// The expected pairs of the worksheet are walked, never the observations. For
// each pair, the first of these that holds decides:
//
//  1. The roster has no such target, says why the target cannot be measured, or
//     has no address of the family although the target has no Peer: unmeasured.
//  2. A control pair of the source and family came out wrong: unmeasured. An
//     agent that cannot reach itself, or reaches a closed port, is not trusted
//     with any other result, good or bad. For a pair of any family, that is
//     every family that was controlled.
//  3. There is no observation: unmeasured, with the source's cause, if it has one.
//  4. The agent reported unrequested pairs, or reported this pair twice with
//     different results: unmeasured. (The same report twice is one report.) Package
//     ingest finds both, and the record of the source has them.
//  5. The agent says that the pair is unmeasured: so it is.
//  6. The agent did not tell both control pairs of the family (of one family, for
//     a pair of any): unmeasured.
//  7. The numbers contradict each other or the order; the failure is one of the
//     agent's own (no socket); some measurements were spoiled and, although the
//     agent repeats those, less than half of what was ordered is good; or none was
//     made: unmeasured.
//  8. An expectation is broken: fail. Nothing received fails by default; then
//     loss, delay percentiles and jitter are held against their limits, and all
//     that are broken are told. If the target must be unreachable, any answer, any
//     connection and any request that its responder counted fails instead; that a
//     connection was refused does not, because nothing but the refusal came back.
//     But a loss that the responder's own full socket explains does not fail a udp
//     pair, and does not show that the target is unreachable: unmeasured.
//  9. Fewer good measurements were made than ordered: unmeasured. They may fail a
//     pair, but too few do not pass it. How many were spoiled and repeated does
//     not matter.
//  10. Else: pass.
//
// # Pairs that are told as Results
//
// Each Result is one measurement. Those of a pair are put in the order of their
// times, those that are the same counted once, and made into an observation: sent
// is how many are measurements, received how many of them passed every stage, the
// delays are those of the TCP connect, and outages are those of checkup.Outages.
// A result that is unmeasured, or fails at a stage of the agent's own, is spoiled.
// The rules above hold, and these beside them:
//
//   - Two different results of one time, a delay of a stage that was not passed, or
//     none of the connect in one that failed at no stage: unmeasured (rule 7).
//   - An outage longer than the worksheet's MaxOutage fails the pair (rule 8). An
//     outage lasts from the first failure to the first success after it, and one
//     that was not over, to its last failure.
//   - If the agent says that it told more results than arrived, or tells the pair as
//     unmeasured beside its results, the pair does not pass: it is unmeasured if it
//     does not fail (rule 9).
//
// What was told of a pair is in its ConnectionReport even where it is unmeasured
// because it is not enough; not if it is not to be believed. In DelayRows of a
// stage, sent is how many measurements came to the stage, received how many passed
// it; the delays may be fewer, because an agent that was held up tells none.
//
// # Pairs of VMs
//
// The rules above hold, with the guest in the place of the agent, and these beside
// them:
//
//   - Both VMs must have come up, or what kept either from it is the pair's cause
//     (rule 1).
//   - From the target VM connectivity alone is asked: one answer is enough there,
//     limits do not hold, and its delays are in no DelayRow (rule 8).
//   - What fails is told in the words of kiagnose's VM latency checkup: "actual max
//     latency "412ms" is greater than desired "200ms"", "no connectivity - 100%
//     packet loss".
//   - A loss that breaks no limit does not fail a pair, and is told as a note.
//
// # How a placement is judged
//
// A dry run of a placement counts its sides, not pairs. Of each, the first of these
// that holds decides:
//
//  1. The plan demands more nodes than are eligible: fail.
//  2. The API server was not asked whether it admits the pod, did not decide, or
//     answered twice and differently: unmeasured.
//  3. The plan demands a node, and the pod is not admitted: fail.
//  4. Something that decides where the pod lands could not be looked at: unmeasured.
//  5. Else: pass.
//
// So nothing fails that the plan does not demand. Without a side, because the
// diagnostics are disabled, the check passes.
//
// The condition NetworkDiagnosticsAvailable is as the enhancement "configurable
// network diagnostics pod placement" of OpenShift has it. It is False with
// NoSources if no node is eligible for the source, or its pod is not admitted: then
// there is no source pod. That there is no target does not make it False by
// itself, "since that may be intended", and the platform's endpoints are verified
// all the same; it is False with NoTargets only if the plan demands a target, and
// no node is eligible for one or its pod is not admitted. Fewer targets than
// demanded, but some, fail the check and leave the condition True: "No targets
// available" would not be so. Where rules 2 or 4 hold of a side that matters, it is
// Unknown with NotEvaluated, which the operator never says. Disabled diagnostics
// have none.
//
// Percentiles are nearest-rank: the p-th is the smallest measured delay that at
// least p percent of the answered measurements did not exceed. It is always a
// delay that was measured; with fewer than 100 answers the 99th is the largest.
// Unanswered measurements count as loss, not as delay. Jitter is the mean
// absolute difference of consecutive delays of a pair, in the order of sending.
//
// A check fails if a pair failed. Else it is inconclusive if nothing was measured
// (also if nothing was expected), if more of the expected pairs are unmeasured
// than the gate allows, or if it has no worksheet. A run has the worst verdict of
// its checks, and is inconclusive without any.
//
// # Coverage
//
// A (source, target) pair counts as measured if all its pairs were, or if one
// failed. The bound on the share of failing ones inverts the hypergeometric
// distribution (see failingUpperBound): it holds for samples drawn at random
// without replacement. The ring sample is that for a fault which does not know
// the ring's order.
//
// # How failures are explained
//
// Each probe is a round trip. What is dropped on its way into node X makes the
// pairs to X fail, whose requests are dropped, and also the pairs from X, whose
// answers are. So "into X" and "out of X" fail the same pairs, and only the
// targets' own count of what arrived can tell them apart: requests that did not
// arrive were lost on the way there, requests that arrived unanswered on the way
// back. Only udp pairs are counted; what they tell holds for the other transports
// of the same source, target and family if all of them fail too.
//
// A candidate is a place (network, zone pair, node in, out or both, node pair,
// source, target), whole or narrowed to one or two of family, transport and
// payloads from some size up. It explains the failed pairs whose lost packets may
// have gone through it. It either concerns all packets, requests of some pairs
// and answers of others, or only new flows, as a stateful policy does: then pairs
// in the other direction are not concerned.
//
// Its cost is 1, for being one more cause, plus a quarter for each narrowing, plus
// what speaks against it: the scope's share of failed measurements ought to be
// the same everywhere in it, by node pair, direction, transport, family and size,
// and for wide places by node. Each of these cells whose share is another one,
// beyond chance (by the likelihood ratio), costs up to three more causes. So a
// pair that passes where everything ought to be dropped speaks against a drop, and
// one that passes where a fifth is lost does not. Where a part is lost, datagrams
// alone are counted if there are any, because TCP repairs losses.
//
// The cheapest candidate per newly explained pair is accepted, until every failed
// pair is explained (a greedy weighted set cover, within a factor of ln n of the
// fewest causes); what later ones made superfluous is dropped. Losses are
// explained first; slow pairs of a place that loses packets go to that; the other
// slow pairs are explained by themselves, by the same rules, each pair counting
// once. Unmeasured pairs are evidence neither for nor against.
//
// One failed node pair is never told as more than that: a node, zone, source or
// target needs two, and at least 15% of the pairs in its scope.
//
// Other candidates that explain the same pairs at about the same cost are told as
// Alternatives. What this cannot do:
//
//   - Delays have no direction: a delay into a node cannot be told from one out of
//     it, and both are told as the node, with the two as alternatives.
//   - Without udp pairs, or without the targets' counts, nor can drops.
//   - A policy on new flows into a node cannot be told from a broken responder
//     there, nor one on new flows out of it from a broken agent.
//   - A zone with a single node, or a transport with a single size, is the same as
//     that node or size.
//   - The shares are of measurements, which are taken as independent. A path that
//     fails for some source ports (one of several equal routes) is a loss.
//   - Two faults of which one hides in the other are told as the larger one.
//
// # How failures of connections are explained
//
// Components of a control plane are few, and so are the pairs between them, but
// each measurement has its time. So they are explained by another procedure (see
// blame), from the widest cause to the narrowest; every failed pair gets at least
// one:
//
//  1. Nothing passes at all, from several sources to several targets: network.
//  2. A target that fails from every source that measured it, in an overlapping
//     time: target. With one source only it cannot be told from the way, unless the
//     connection stands: then what does not come over it is the target's.
//     Several addresses of one pod, or names of one address, are one finding. Last
//     of all, so is a target that fails from more sources than not, if they are on
//     more than one node; what passes speaks against it.
//  3. A source from which everything else fails: source; all the sources of a node
//     that has several: nodeEgress. Its pairs say nothing about targets then.
//  4. A Service's address, of which the endpoints behind it were measured too. If
//     all of these failed in an overlapping time, the address is explained by what
//     explains them. If some did, so too, as long as it does not fail more often
//     than chance has it that leads each connection to one of them (its failures
//     have a probability of 1% or more). Else the way there is to blame: service;
//     the ways from one node to several addresses, if they fail together, are one.
//     An outage counts by its failures; what has more of them decides.
//  5. What is left: pair. Sources of one node to one target are one finding, and so
//     are all pairs from one node to another if they all fail.
//
// Outages overlap if they share a moment, give or take one interval between
// measurements. Pairs that fail because they are slow have no time: whether the
// endpoints are slow too decides. Where a source did not measure the endpoints
// behind an address, what others measured is taken, and the finding says so;
// endpoints that nobody measured are evidence neither for nor against. What this
// cannot do:
//
//   - Tell the service rules of a node from anything else on its way to a Service's
//     address that is not on the way to the endpoints.
//   - Tell one source that connects to one target from that target, if no
//     connection stands.
//   - Tell two components that fail at one time from what both depend on.
//
// # How failures between VMs are explained
//
// Each network is looked at by itself, and of what fails on it each damage by itself:
// nothing comes back; more is lost than the limit allows; it is too slow. Every failed
// pair gets one finding (see blameNetworks):
//
//  1. All pairs of nodes that were measured suffer from it, there are several, and not
//     just one node is common to them: network, by its name.
//  2. All pairs of a node that were measured suffer from it, and there are several:
//     node. If no pair of other nodes was measured, the network is its alternative.
//  3. What is left: pair. The network and the two nodes are its alternatives where
//     nothing else that was measured tells them apart.
//
// A finding is narrowed to a family if no pair of the other one fails there. That echo
// requests from one of two nodes are answered, and from the other are not, is told as
// one way: both are round trips, so that the path itself is open both ways. What this
// cannot do: tell a network from a node by a single pair of nodes, or a fault of one
// direction from one that began between the two measurements.
package report
