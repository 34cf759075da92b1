// SPDX-License-Identifier: Apache-2.0

// Package judge turns measurements into verdicts. It is pure: no clock, no
// cluster, no random choice; the same worksheet, roster and record give the same
// report, in any order of the observations. It knows no kind of check: each
// kind calls Pairs with its Rules, and adds its units, findings and blocks to the
// Report. pkg/localise explains the failures.
//
//	Pairs   worksheet + roster + record   -> Judgement: an Outcome for each pair
//	Report  Judgement + gate              -> checkup.CheckReport
//	Join    plan + run + check reports    -> checkup.Report
//
// # How a pair is judged
//
// The expected pairs of the worksheet are walked, never the observations. For
// each pair, the first of these rules that holds decides:
//
//  1. The roster has no such target, says why the target cannot be measured, or
//     has no address of the family although the target has no Peer: unmeasured.
//     (A kind may have another rule here: Rules.Absent.)
//  2. A control pair of the source and family was wrong: unmeasured. An agent that
//     cannot reach itself, or reaches a closed port, is not trusted with any other
//     result, good or bad. For a pair of any family, every family that was
//     controlled counts.
//  3. There is no observation: unmeasured, with the source's cause, if it has one.
//  4. The agent reported unrequested pairs (ReasonUnrequested), or reported this pair
//     twice with different values (ReasonConflict): unmeasured. Two equal reports count
//     once. Reports that the collector left out of the record count too
//     (Source.Unrequested, Source.Conflicts).
//  5. The agent reports the pair as unmeasured: unmeasured.
//  6. The agent did not report both control pairs of the family (of one family, for
//     a pair of any): unmeasured.
//  7. The numbers, also those by source port, contradict each other or the order, such as a delay above the
//     timeout; the agent reports more answers of a udp pair than its target, whose count is complete, counted
//     requests: one of the two is wrong, whichever; the failure is one of the
//     agent's own (no socket); some measurements were spoiled and, although the
//     agent repeats those, less than half of the ordered number remains; or none was
//     made: unmeasured.
//  8. An expectation is broken: fail. Nothing received fails by default; then
//     source ports, loss, delay percentiles and jitter are compared with their limits (see
//     below), and each one that is broken is a Breach. If the target must be unreachable, any answer,
//     any connection and any request that its responder counted fails instead; a
//     refused connection does not, because only the refusal came back. But a loss
//     that the responder's own full socket explains does not fail a udp pair, and
//     does not show that the target is unreachable: unmeasured. The same holds for an
//     undecided loss.
//  9. Fewer good measurements were made than ordered: unmeasured. Too few may fail a
//     pair, but do not pass it. A pair that ends exactly at a stopping point of its order that it is beyond
//     (checkup.Stop) fails by rule 8: that is what was ordered. The number of spoiled and repeated ones does not
//     matter. Nor does a pair pass whose target should have reported the source address that it saw, and did not
//     (Worksheet.Witnesses). A target that saw another address than the source's own fails the pair (rule 8).
//  10. The sample neither shows that a limit is exceeded nor fits a network that keeps
//     it: undecided, with a Breach for each such limit. It counts as measured, does not
//     fail the check, and is no pass.
//  11. Else: pass.
//
// # Limits
//
//  1. k of n measurements of a pair are beyond a limit: lost, or slower than the limit of
//     the q-quantile of the delay. A share p may be: the limit on loss, or 1-q.
//  2. P is the probability of k or more, exactly (binomial): above Doubt the pair passes,
//     up to the level it fails, and between the two it is undecided. If p is 0, one
//     measurement beyond the limit is proof.
//  3. The level is FalseAlarms, divided by the number of the plan's checks that test limits (Share), and by the number
//     of tests of the look (Bonferroni). A kind that tests too what pairs show together (FailTogether) spends a quarter
//     on each of the two in each of two looks, the second on fresh data only.
//  4. Hence at most one run in 1/FalseAlarms fails by its tests although all limits are
//     kept, whatever its size. A pair without any answer fails beside that.
//  5. A source port of a pair is dead (LimitFlow) if none of at least minFlow measurements is
//     answered, although other ports of the pair are, and if that is not likely when all
//     ports lose alike: as much as the answered ones lost and one measurement more, or as
//     much as the limit allows, 1% without one. The loss of the pair is then that of its
//     other ports. That a few measurements of one port prove nothing does not help a path
//     that is dead for many pairs: see deadFlow.
//  6. Jitter has no exact test. What exceeds the limit fails, but if the kind looks again,
//     only in the further look.
//  7. A further look may have stopping points (StopsOf): a group sequential test (Pocock, Biometrika 64, 1977), only
//     for failure, whose boundaries spend half of the level of single pairs, each point the same part (LevelAtStops).
//     The final tests have the other half (LevelToTheEnd). While all limits are kept, pairs are stopped at most with
//     the probability of that half, and otherwise all is measured as if there were no points: what pairs show together
//     is tested as before, at its own level, although pairs that stopped have fewer packets.
//
// Sources: Clopper and Pearson, Biometrika 26 (1934) for the binomial; David and Nagaraja,
// Order Statistics (2003), section 7.1, for quantiles; Benjamini and Hochberg, Journal of the
// Royal Statistical Society B 57 (1995), for dead flows of many pairs; Lan and DeMets, Biometrika 70 (1983),
// for spending one level over several looks; Wald, Annals of Mathematical Statistics 16 (1945), for sequential tests.
//
// # Pairs with Results
//
// Each Result is one measurement. Those of a pair are sorted by their times, equal
// ones counted once, and folded into an observation: sent is the number of
// measurements, received the number of them that passed every stage, the delays are those
// of the TCP connect, and outages are those of checkup.Outages. A result that is
// unmeasured, or fails at a stage of the agent itself, is spoiled. The rules above
// apply, and these:
//
//   - Two different results of one time (ReasonConflict), a delay of a stage that was
//     not passed, or none of the connect in one that failed at no stage: unmeasured
//     (rule 7).
//   - An outage longer than the worksheet's MaxOutage fails the pair (rule 8). An
//     outage lasts from the first failure to the next success, or to its last failure if
//     no success follows.
//   - If the agent counts more results than arrived, or reports the pair as
//     unmeasured beside its results, the pair does not pass: it is unmeasured if it
//     does not fail (rule 9).
//
// The unit of a pair has the reported values even if the pair is unmeasured because they
// are too few; it has none if they are not credible. In DelayRows of a stage, sent is the
// number of measurements that reached the stage, received the number that passed it. The
// delays may be fewer, because a delayed agent reports none.
//
// # Further looks
//
// A further look has the expected pairs that its worksheet lists (Worksheet.Again), and is
// judged like the first, by its own measurements. Merge then replaces the outcomes that it
// measured, and Confirm applies the gate: failures of which none was seen in both looks
// make a check inconclusive. The first look only selects pairs, so the level of the second
// holds for what it decides.
//
// # Numbers
//
// Percentiles are nearest-rank: the p-th is the smallest measured delay that at
// least p percent of the answered measurements did not exceed. It is always a
// delay that was measured; with fewer than 100 answers the 99th is the largest.
// Unanswered measurements count as loss, not as delay. Jitter is the mean
// absolute difference of consecutive delays of a pair, in the order of sending.
//
// A check fails if a unit failed; undecided units do not fail it. Otherwise it is inconclusive if nothing was measured
// (also if nothing was expected), if more of the expected units are unmeasured
// than the gate allows, or if it has no worksheet. A run has the worst verdict of
// its checks, and is inconclusive without any.
//
// A (source, target) pair counts as measured in the Coverage if all its pairs were,
// or if one failed. The bound on the share of failing ones inverts the
// hypergeometric distribution (see failingUpperBound): it holds for samples drawn at
// random without replacement. The ring sample is such a sample for a fault that does not
// depend on the ring's order.
package judge
