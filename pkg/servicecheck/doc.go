// SPDX-License-Identifier: Apache-2.0

// Package servicecheck has what the kinds of check about Services have in common. It is no kind of check.
//
//	selection.go  Selection: which Services, and the lists of the API that this needs
//	sources.go    Sources: which nodes
//	sample.go     SampleOf: which of the pairs of a node and an address a round measures
//	probe.go      Probe: how a pair is measured; MustNotConnect: how connections must fail
//	again.go      LookAgain: the pairs that are measured a second time; Merge: what both looks show
//	changed.go    Digests, AskAgain, Excuse: what changed while it was measured is no failure
//	why.go        Why: which policies and hints decide
package servicecheck
