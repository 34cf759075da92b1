// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// The Task declares exactly the results that the report step writes. Tekton fails a
// successful run that did not write a declared result, and drops undeclared results.
func TestDeclaredResultsAreTheWrittenOnes(t *testing.T) {
	var declared []string
	for _, r := range tekton.ConcludeResults {
		declared = append(declared, r.Name)
	}
	slices.Sort(declared)
	written := slices.Sorted(maps.Keys(print.Results(&checkup.Report{}, "")))
	if diff := cmp.Diff(declared, written); diff != "" {
		t.Errorf("declared, but not written (-); written, but not declared (+):\n%s", diff)
	}
}
