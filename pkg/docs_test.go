// SPDX-License-Identifier: Apache-2.0

package pkg_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// A line of the documentation has at most 120 columns (docs/style.md), except in tables and code.
func TestColumns(t *testing.T) {
	files := 0
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../test/*/*.md", "../test/*/*/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			files++
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			code := false
			for i, line := range strings.Split(string(text), "\n") {
				trimmed := strings.TrimSpace(line)
				if strings.HasPrefix(trimmed, "```") {
					code = !code
				}
				exempt := code || strings.HasPrefix(trimmed, "|") || strings.HasPrefix(line, "    ")
				if n := utf8.RuneCountInString(line); n > 120 && !exempt {
					t.Errorf("%s:%d: %d columns", name, i+1, n)
				}
			}
		}
	}
	if files < 20 {
		t.Errorf("%d files, want all documentation", files)
	}
}
