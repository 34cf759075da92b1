// SPDX-License-Identifier: Apache-2.0

//go:build !race

// The race detector makes this test take eight times as long: it runs without it. FuzzCUE loads one in six of these
// archives with the detector.

package load

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/kinds"
)

func TestBroken(t *testing.T) {
	offline(t)
	broken := map[string]bool{}
	n := 0
	total := eachArchive(t, "testdata/broken", "problems", func(t *testing.T, dir string, args []string) string {
		n++
		plans, _, problems := Plans(t.Context(), dir, args)
		if len(problems) == 0 || plans != nil {
			t.Errorf("got %d problems and %d plans", len(problems), len(plans))
		}
		for _, p := range problems {
			broken[p.rule] = true
			if p.Message == "" || strings.Contains(p.Message, "\n") {
				t.Errorf("message: %#v", p)
			}
			if p.Line > 0 && p.Column < 1 || strings.Contains(p.File, "builtin") || filepath.IsAbs(p.File) || p.Line > linesOf(t, dir, p.File) {
				t.Errorf("position: %v", p)
			}
		}
		return problems.String()
	})
	if n < total {
		return // go test -run chose some of them
	}
	for _, name := range kinds.RuleNames() {
		if !broken[name] {
			t.Errorf("no plan breaks rule %s", name)
		}
	}
}

// linesOf is how many lines a file has; 0 of a directory or where there is none.
func linesOf(t *testing.T, dir, name string) int {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
		return 0
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "\n") + 1
}
