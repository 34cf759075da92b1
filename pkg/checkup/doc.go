// SPDX-License-Identifier: Apache-2.0

// Package checkup holds the nouns that all other packages use: plan, worksheet,
// roster, observation, verdict, finding, report. It imports the standard library
// only, because agents link it and agents have no Kubernetes client.
//
// Each step of a run makes one value from the values before it:
//
//	Plan  --Expand(snapshot)-->  Worksheet  --fixtures-->  Roster
//	Worksheet + Roster  --agents-->  Record (observations)
//	Worksheet + Roster + Record  --Judge-->  Report
//
// Two rules follow from this. First, the report walks the expected pairs of the
// worksheet, not the observations that arrived; a pair that was not measured
// therefore never passes. Second, a network failure is a value (an Observation), never
// a Go error. An error means that the tool itself failed.
package checkup
