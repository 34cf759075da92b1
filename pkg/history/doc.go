// SPDX-License-Identifier: Apache-2.0

// Package history holds what one run of a plan hands to the next: the rounds of samples, the runs with their verdicts,
// the last result of each pair, digests of delays and losses, and findings over time. It is pure: pkg/record keeps it
// in ConfigMaps.
//
//	EntryOf  report + worksheets + records -> Entry     what one run adds
//	Merge    History + Entry               -> History   in any order of two runs that end at once
//	Compare  History + Pairs               -> what became worse: compare.go, rows.go, drift.go
//	Encode   History                       -> Parts     at most MaxBytes, gzip'd
//	Decode   Parts                         -> History   what cannot be understood is left out, with a note
//
// # What is kept, and how it decays
//
//   - Runs: the newest 4,096 to 4,352 one by one. Older ones are counts of their day, for 800 days, with the medians of
//     the median and of the 99th percentile of the delays of each probe.
//   - Pairs: for each run, which (source, target) pairs it measured, and the verdict of each probe. They stay until
//     newer runs measured all these pairs again, at least for 64 runs. So the last result of every pair is known.
//   - Delays of single pairs: for each pair and probe the median, the longest and the loss, to 5%, for the newest 64
//     runs and for the last run of each of the 64 days before, each at most 4 MiB before compression.
//   - Values of groups: for each probe median, 90th percentile and loss of the check, of each node as source and as
//     target, and of each ordered pair of zones, for the same runs, each at most 8 MiB before compression.
//   - Digests: for each probe a sketch of all delays and the losses of the check, of each node as source and as target,
//     and of each ordered pair of zones. They hold all runs. From 65,536 measurements on, counts are halved: newer
//     measurements weigh more. A group that was not measured for 30 days is dropped.
//   - Findings: the 500 that were seen last.
//
// # Pairs that count
//
// The newest run that has pairs of a check defines its members. A member that left and came back, that is in another
// zone, or whose node was deleted and created again, is another member: older results of its pairs do not count, and
// those of other pairs do. A node that is not ready stays on the worksheet, so only a node that was deleted, or that
// the plan left out, is missing. Nodes are known by digests of their UIDs; a history that did not have them yet begins
// with those of its next run.
//
// # Digests
//
// Sketches are DDSketches of DataDog's library: a quantile has a known relative error (Accuracy), and two sketches are
// merged without loss. One takes about 60 bytes. HDR histograms were not taken, because they need a range of delays in
// advance; t-digests were not, because their error has no bound.
package history
