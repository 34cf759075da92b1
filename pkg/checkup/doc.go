// SPDX-License-Identifier: Apache-2.0

// Package checkup holds the nouns that every other package speaks in: plan,
// worksheet, roster, observation, verdict, finding, report. It imports the
// standard library only, so that the agent, which knows no Kubernetes, speaks
// them too.
//
// The values follow one another:
//
//	Plan  --Expand(snapshot)-->  Worksheet  --fixtures-->  Roster
//	Worksheet + Roster  --agents-->  Record (observations)
//	Worksheet + Roster + Record  --Judge-->  Report
//
// Two rules hold by construction. The report walks the expected pairs of the
// worksheet, never the observations that happened to arrive, so that what was
// not measured is never a pass. And what the network did is a value (an
// Observation), never a Go error: an error means that the tool broke.
package checkup
