// SPDX-License-Identifier: Apache-2.0

package task

import (
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup/hostile"
)

// TestHostileLog: an argument of a log line is harmless, and only the format makes a command.
func TestHostileLog(t *testing.T) {
	var log strings.Builder
	tk := &Task{Stdout: &log}
	tk.Logf("::warning::NAD %s", hostile.Text)
	tk.Logf("%s", "::error::forged"+hostile.Text)
	tk.Logf("%s: %d", hostile.Text, 1)
	tk.Logf("--- console of %s\n%s", "vm", "\n::error::forged"+hostile.Text)
	hostile.Check(t, "log", log.String())
	if lines := strings.Split(log.String(), "\n"); !strings.HasPrefix(lines[0], "::warning::NAD ") || len(lines) != 9 {
		t.Errorf("%d lines, want one for each line, five for the console:\n%s", len(lines), log.String())
	}
}
