// SPDX-License-Identifier: Apache-2.0

// Package load reads plans from CUE, YAML and JSON files. It is the only
// importer of cuelang.org/go.
//
// Shape and defaults are the schema's, in CUE; rules that span fields are here,
// in Go. Both find problems at the place where the user wrote what is wrong,
// all of them at once.
package load
