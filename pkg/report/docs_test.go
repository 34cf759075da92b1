// SPDX-License-Identifier: Apache-2.0

package report

import (
	"os"
	"strings"
	"testing"
)

// TestDocs checks that docs/report.md names every reason of the condition.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/report.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{reasonAsExpected, reasonNoSources, reasonNoTargets, reasonNotComplete} {
		if !strings.Contains(string(b), "`"+reason+"`") {
			t.Errorf("docs/report.md does not name the reason %s", reason)
		}
	}
}
