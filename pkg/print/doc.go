// SPDX-License-Identifier: Apache-2.0

// Package print writes reports and explanations. It knows no kind of check and
// never judges: each printer needs the checkup.Report alone, so a saved report
// prints as the live one did.
//
//	Text, HTML, Log, JSON, JUnit                print a checkup.Report
//	OpenMetrics, Prometheus                     print its metrics
//	Metrics                                     the metrics of several reports
//	History, HistoryJSON, HTMLHistory           print what runs have found over time
//	HTMLPlans, HTMLNodes, HTMLNode              list plans, nodes, and what plans found out about a node
//	Valid                                       says whether a report from outside can be printed
//	Results                                     short form of a report, for Tekton
//	Read                                        reads back what JSON wrote
//	Blocks                                      prints tables, lists, grids and notes alone
//
// Printers are pure: no clock, no cluster; the same report gives the same bytes.
// Nothing that came from the cluster reaches the output with control characters
// in it.
package print
