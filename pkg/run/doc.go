// SPDX-License-Identifier: Apache-2.0

// Package run takes a compiled plan to a cluster: it connects, asks beforehand
// what would stand in the way (Preflight), applies the objects by server-side
// apply (Apply), creates the PipelineRun (Start), follows it (Follow), cancels
// it so that its finally task still runs (Cancel), and says what is left
// (Remaining). It judges nothing: the report is the one that the run itself
// wrote.
package run
