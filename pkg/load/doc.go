// SPDX-License-Identifier: Apache-2.0

// Package load reads plans from CUE, YAML and JSON files. It is the only
// importer of cuelang.org/go.
//
// The CUE schema checks the shape and sets defaults; the Go rules of pkg/kinds check
// what spans fields. Load reports all problems at once, each at its position in the
// user's file.
package load
