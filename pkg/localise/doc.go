// SPDX-License-Identifier: Apache-2.0

// Package localise explains the failures of a check by causes. It is pure.
//
//	model.go      Evidence: the measured outcomes by source and target; Found and List:
//	              findings, what each explains, and what no other explains
//	places.go     where a cause may be, and what may narrow it
//	rack.go       places that several nodes share
//	assess.go     what a candidate explains, and what it costs
//	cover.go      the cheapest causes that explain every failed pair
//	component.go  what a component is, which places are components, and the limits that they are tested against
//	packets.go    which packets a component has
//	share.go      how many of them fail, and how much evidence that is
//	ranking.go    the component with most evidence
//	pool.go       the components that exceed a limit, or may
//	flows.go      parallel paths, of which one is dead
//	passage.go    the flows between two endpoints, and which of them are dead
//	site.go       where dead paths may be
//	deaths.go     which of these places explains the dead flows
//	alike.go      which other losses dead paths explain
//	explain.go    Explain: all of this for a mesh
//	again.go      LookAgain: what a further look says about components and findings
//	rivals.go     Separating: pairs that separate a finding's cause from its alternatives; what they rule out
//	compare.go    Compare: the pairs that are worse than in earlier runs, for all kinds
//	changed.go    ExplainChange: their causes, of a mesh
//	words.go      a cause in words
//	rules.go      Ruled: an ordered list of rules, for kinds whose causes are few
//
// # Why there are four procedures
//
// Kinds that measure pairs share Evidence and List. What they look for in the evidence
// differs, because what they measure does:
//
//   - A mesh (Explain, here) has up to 500,000 pairs of the same type, with counts of lost
//     packets and without times. Its causes are places that many pairs share, so it is
//     a weighted set cover with statistics.
//   - A control plane (pkg/controlplane) has few components, each different, and each
//     measurement has a time. Its causes are components, Services and paths that fail at
//     the same time. They are tried from the widest to the narrowest.
//   - VMs (pkg/vmlatency) are a few pairs of nodes on each network, and each network is
//     judged separately. Its causes are the network, a node or a pair of nodes, depending
//     on which of the measured pairs fail in the same way.
//   - Other kinds measure what every node should see in the same way. Their causes are groups of
//     pairs, from all of them to one, by a list of rules that is the kind's (Ruled, here).
//
// Kinds whose units are no pairs (sets of rules, sides of a placement) have no Evidence, and make
// their findings themselves.
//
// # How failures are explained
//
// Each probe is a round trip. What is dropped on its way into node X makes the
// pairs to X fail, whose requests are dropped, and also the pairs from X, whose
// answers are. So "into X" and "out of X" fail the same pairs, and only the
// targets' own count of what arrived distinguishes them: requests that did not
// arrive were lost on the way there, requests that arrived unanswered on the way
// back. Targets count only udp pairs. The direction of a udp pair also applies to the
// other transports of the same source, target and family if all of them fail too; but a
// place that drops everything explains these others in any case.
//
// A candidate is a place (network, zone pair, node in, out or both, several nodes, the same of a
// label, node pair, source, target), whole or narrowed to one or two of family, transport and
// payloads from some size up. It explains the failed pairs whose lost packets may
// have gone through it. It affects either all packets (requests of some pairs
// and answers of others) or only new flows, as a stateful policy does. Then it does not
// affect pairs in the other direction. Of two narrowings that admit the same pairs, only the
// more specific is a candidate: a transport rather than the sizes that only it has.
//
// Its cost is 1, for being one more cause, plus a quarter for each narrowing, plus
// the evidence against it: the scope's share of failed measurements should be
// the same everywhere in it, by node pair, direction, transport, family and size,
// and for wide places by node. Each of these cells whose share differs, beyond
// chance (by the likelihood ratio), costs up to three more causes. A pair that passes
// is evidence against a cause that drops everything, but not against one that drops a
// fifth. If almost everything is dropped, the ways that pass are the exceptions, not those
// that fail. For a partial loss only datagrams are counted, if there are any, because TCP
// repairs losses.
//
// The cheapest candidate per newly explained pair is accepted, until every failed
// pair is explained: a greedy weighted set cover, within a factor of ln n of the
// fewest causes (Chvatal, Mathematics of Operations Research 4, 1979). After each, the others
// are assessed again without the failures that it explains: these are neither evidence for
// another cause nor against it. Only places that share ways with the accepted one change, and
// they are assessed when they come to the top of the queue; until then a lower bound of their
// cost holds their place. A candidate that later ones made superfluous is dropped. Losses are
// explained first; a place that loses packets also explains its slow pairs; the
// other slow pairs are explained separately, by the same rules, each pair
// counting once.
//
// One failed node pair is never named as more than that: a node, zone, source or
// target needs two, and at least 15% of the pairs in its scope.
//
// # Several nodes
//
// Nodes behind one dead uplink lose everything to and from others, and nothing among each
// other. Links (node pairs) are then dead between two sides, and alive within them. Sides that
// fit are found from two guesses, and improved node by node. At least three nodes, fewer than
// half of all, of which some measurement shows that two reach one another, are a place. They
// are named by their zone if they are all of its nodes. Nodes that no measurement connects with
// the others are among them only if the sample has about as many links among all of them as
// chance makes: of many nodes that are cut off one by one, a small sample leaves some unlinked.
//
// Nodes that share a value of a label that the plan names (Endpoint.Topology) are a place, whatever
// fails there, and so is each of its directions: what goes to them from other nodes, or from them
// to others. What goes from the nodes of one value to those of another is a place, too (groups), like a pair of zones.
// Parallel paths are not looked for there.
//
// # Flows
//
// Where packets take one of several parallel paths, a hash of addresses and ports chooses it
// (RFC 2992), and one dead path is dead for some flows and not seen by the others. Pairs with
// such flows (judge.FlowLost) are explained first, by the narrowest place that all dead flows
// go through and that explains them better than the network does; of several such places,
// the ones whose shares of dead flows stand out are named one by one. Connections, and
// pairs of icmp, of the same place that are lost as often as flows are dead belong to it. What
// else these pairs lost is explained as above, without the dead flows.
//
// # Source addresses
//
// Pairs whose targets saw another source address (judge.Rewritten) are explained for themselves: address translation is
// a rule of a node, and exact. The node through which most such pairs go out, or in, is the cause if most of its pairs
// that were compared are rewritten; then the next one is looked for. If most pairs of all nodes are, it is the network.
// Packets of such pairs arrived: they are no evidence for a loss.
//
// # Components
//
// What no single pair shows, the pairs of a node show together. A component is a place, whole or
// narrowed, tested against a limit with all packets that went through it: those that
// targets counted on the way into a node, and so on; otherwise round trips, of datagrams if there
// are any. The test is that of single pairs (judge.Test), at the level of judge.Level by the
// number of components. The dead pairs of accepted causes are left out.
//
// Of the components that exceed the limit, the one with most evidence is accepted: the
// likelihood ratio of its share against the usual one (the median of all nodes, at most the
// limit), less the evidence that its nodes do not fail alike, and less what narrowing costs. Round
// trips that no target counted are compared with the usual round trips. If a place within it has
// more evidence, such as one direction of a node, that place is named, whatever exceeds the limit.
// This is what Flock does (Harsh, Meng, Agrawal, Godfrey, PACMNET 1, CoNEXT 2023), with the places
// of above as components: one lost packet is no evidence that forces a cause. Then the others are
// tested without its packets. The pairs of a component that lost a packet, or were slow,
// fail. Then all failed pairs are explained again, by these components first.
//
// A component that does not exceed the limit at its level, but at 1%, or that loses clearly more
// than is usual, is undecided: a further look measures it again. What is left in the end is
// the background.
//
// # Alternatives
//
// Other candidates that explain the same pairs at about the same cost are the alternatives of a finding. What the whole
// sample shows against one of them, compared with the finding's own cause (the likelihood ratio of their scopes), is
// one more exception: in a mesh of three nodes, no single cell shows that a slow node is not a slow network.
//
// Where alternatives differ is in pairs that the sample does not have, or in how much each pair loses. Separating
// chooses such pairs for a further look, greedily: next is the pair that is expected to separate most causes, by the
// shares of the first look, until each two are expected to differ by three times ln 1,000 nats. Each way of a source to
// a target is chosen at most once. Of a finding that is confirmed, a cause is ruled out if another one explains what
// the further look found better by ln 1,000 nats, of which one way gives at most that much: a look at a few pairs may
// have room for one such way. If the finding's own cause is ruled out, the best of the others takes its place. This
// changes no verdict: pairs beyond the sample are no units. It does not apply to parallel paths and source addresses.
//
// # What is listed
//
// Findings are listed by the number of failed pairs that they explain, at most ten; the last one
// counts the rest. More than three single node pairs are one finding. What this cannot do:
//
//   - Delays have no direction: a round trip is the sum of both ways, whichever end begins it. So a
//     delay into a node cannot be distinguished from one out of it. Both are named as the node, "to or
//     from", with the two as alternatives.
//   - Without udp pairs, or without the targets' counts, the same is true of drops.
//   - A policy on new flows into a node cannot be distinguished from a broken responder
//     there, nor one on new flows out of it from a broken agent.
//   - A zone with a single node, or a transport with a single size, is the same as
//     that node or size.
//   - The shares are of measurements, which are assumed to be independent. A dead path of
//     several parallel ones is found only where udp pairs are measured minFlow times from
//     each source port (see pkg/judge); otherwise it is a loss.
//   - Of two faults of which one covers the other, only the larger one is named.
//   - Two groups of nodes behind different dead uplinks are one group if no measurement
//     shows that they do not reach one another.
package localise
