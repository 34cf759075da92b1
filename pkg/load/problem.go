// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a plan, or that the user should know.
type Problem struct {
	// File is relative to the working directory, with slashes; empty if the
	// problem is in no file.
	File string `json:"file,omitempty"`
	// Line and Column count from 1; 0 if the problem is the file as a whole. Columns
	// count bytes.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Path of the field in CUE's spelling, such as plan."day-2".checks.mesh; empty
	// if the problem is not in a field.
	Path string `json:"path,omitempty"`
	// Message is one line.
	Message string `json:"message"`
	// Warning says that the plan is valid nevertheless.
	Warning bool `json:"warning,omitempty"`

	rule string // name of the rule in rules that found it, for tests
}

// String prints the problem as file:line:col: path: message, without the parts
// that it does not have, and a warning with that word before its path.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
		}
		b.WriteString(": ")
	}
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems are all that is wrong, sorted by position.
type Problems []Problem

// String prints a problem per line.
func (ps Problems) String() string {
	var b strings.Builder
	for _, p := range ps {
		b.WriteString(p.String() + "\n")
	}
	return b.String()
}

// tidy sorts problems by position and drops repetitions.
func (ps Problems) tidy() Problems {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message))
	})
	return slices.CompactFunc(ps, func(a, b Problem) bool { return a.String() == b.String() })
}
