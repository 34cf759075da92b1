// SPDX-License-Identifier: Apache-2.0

package ecosystem

import (
	"strings"
	"testing"
)

// TestSet: a row replaces that of its tool in its section, or is added to the table.
func TestSet(t *testing.T) {
	const text = "# Title\n\n## One\n\n| tool | version |\n|---|---|\n| a | 1 |\n\nText.\n\n## Two\n\n| tool | version |\n|---|---|\n| a | 1 |\n"
	for _, tt := range []struct{ name, section, tool, row, want string }{
		{"same", "One", "a", "| a | 1 |", text},
		{"replaced", "Two", "a", "| a | 2 |", strings.TrimSuffix(text, "| a | 1 |\n") + "| a | 2 |\n"},
		{"added", "One", "b", "| b | 1 |", strings.Replace(text, "| a | 1 |\n", "| a | 1 |\n| b | 1 |\n", 1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := set(text, tt.section, tt.tool, tt.row); err != nil || got != tt.want {
				t.Errorf("%v, got\n%s", err, got)
			}
		})
	}
	if _, err := set(text, "Three", "a", "| a |"); err == nil || !strings.Contains(err.Error(), "## Three") {
		t.Errorf("a missing section: %v", err)
	}
}
