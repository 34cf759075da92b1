// SPDX-License-Identifier: Apache-2.0

// Package run runs a compiled plan on a cluster: it connects, checks for obstacles
// (Preflight), applies the objects by server-side apply (Apply), creates the PipelineRun
// (Start), follows it (Follow), cancels it with its finally task (Cancel), and lists the
// fixtures that are left (Remaining). It does not judge: the run itself writes the report.
package run
