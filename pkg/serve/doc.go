// SPDX-License-Identifier: Apache-2.0

// Package serve is a read-only web server over the reports and histories of a namespace, or of all: pages for people,
// and metrics of the newest run of each plan for Prometheus.
//
//	/                        the plans, with the verdict of their newest runs
//	/plans/NAMESPACE/PLAN    runs, gaps, trends, findings and coverage over time; ?source=A&target=B for one pair
//	/runs/NAMESPACE/UID      the report of a run
//	/nodes, /nodes/NODE      pairs from and to each node in the newest runs of the plans
//	/metrics                 OpenMetrics for who accepts it, else Prometheus' text format
//	/healthz                 "ok": the process answers
//
// It reads ConfigMaps (get and list) and writes nothing. One request at a time reads from the cluster, and what is read
// and kept is bounded, so that no number of requests, plans or namespaces takes more memory than the limits of serve.go
// allow. What is requested is looked up among what the cluster lists; no name from a URL becomes a name of an object.
package serve
