// SPDX-License-Identifier: Apache-2.0

// Package schema is the CUE schema of plans, embedded. Its files are the ones
// that plans import as github.com/checkplan/checkplan/schema.
package schema

import "embed"

// FS holds the CUE files of the package, at its root.
//
//go:embed *.cue
var FS embed.FS
