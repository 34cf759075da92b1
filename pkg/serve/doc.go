// SPDX-License-Identifier: Apache-2.0

// Package serve is a read-only web server over the reports and histories of a namespace: pages for people, and metrics
// of the newest run of each plan for Prometheus.
//
//	/                    the plans, with the verdict of their newest runs
//	/plans/PLAN          runs, gaps, trends, findings and coverage over time; ?source=A&target=B for one pair
//	/runs/UID            the report of a run
//	/metrics             OpenMetrics
//	/healthz             "ok": the process answers
//
// It reads ConfigMaps (get and list) and writes nothing. One request at a time reads from the cluster, and what is kept
// is bounded, so that no number of requests takes more memory than one. What is requested is looked up among what the
// cluster lists; no name from a URL becomes a name of an object.
package serve
