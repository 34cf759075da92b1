// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Every archive in testdata/broken is one way to be invalid, with the exact
// problems; every one in testdata/good a plan with what it comes to. They are
// loaded from a directory outside this repository. UPDATE=1 writes what is
// found into the last file.

func TestBroken(t *testing.T) {
	offline(t)
	broken := map[string]bool{}
	n := 0
	eachArchive(t, "testdata/broken", "problems", func(t *testing.T, dir string, args []string) string {
		n++
		plans, problems := Plans(dir, args)
		if len(problems) == 0 || plans != nil {
			t.Errorf("got %d problems and %d plans", len(problems), len(plans))
		}
		for _, p := range problems {
			broken[p.rule] = true
			if p.Line > 0 && p.Column < 1 || strings.Contains(p.File, "builtin") || filepath.IsAbs(p.File) {
				t.Errorf("position: %v", p)
			}
		}
		return problems.String()
	})
	if n < 40 {
		t.Errorf("%d archives", n)
	}
	for _, name := range checkup.RuleNames() {
		if !broken[name] {
			t.Errorf("no plan breaks rule %s", name)
		}
	}
	for _, r := range kubernetesRules {
		if !broken[r.name] {
			t.Errorf("no plan breaks rule %s", r.name)
		}
	}
}

func TestGood(t *testing.T) {
	offline(t)
	eachArchive(t, "testdata/good", "plans.json", func(t *testing.T, dir string, args []string) string {
		plans, problems := Plans(dir, args)
		if len(problems) > 0 {
			t.Fatalf("problems:\n%v", problems)
		}
		b, err := json.MarshalIndent(plans, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		return string(b) + "\n"
	})
}

// offline makes sure that no network and no cache is used, as on a machine with
// nothing but this program.
func offline(t testing.TB) {
	t.Setenv("CUE_REGISTRY", "none")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("CUE_CACHE_DIR", "")
}

// eachArchive unpacks every archive in dir, and compares what got gives with the
// file of the name golden in it. got is given the arguments in the line of the
// archive's comment that begins with "args: ", or else the files.
func eachArchive(t *testing.T, dir, golden string, got func(t *testing.T, dir string, args []string) string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(names) == 0 {
		t.Fatalf("archives in %s: %v, %v", dir, names, err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			last := &archive.Files[len(archive.Files)-1]
			if last.Name != golden {
				t.Fatalf("the last file is %s, want %s", last.Name, golden)
			}
			var args []string
			tmp := t.TempDir()
			for _, f := range archive.Files[:len(archive.Files)-1] {
				args = append(args, f.Name)
				path := filepath.Join(tmp, filepath.FromSlash(f.Name))
				if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, f.Data, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			for line := range strings.Lines(string(archive.Comment)) {
				if rest, ok := strings.CutPrefix(line, "args: "); ok {
					args = strings.Fields(rest)
				}
			}
			have := got(t, tmp, args)
			if os.Getenv("UPDATE") == "1" && !t.Failed() {
				last.Data = []byte(have)
				if err := os.WriteFile(name, txtar.Format(archive), 0o666); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(last.Data), have); diff != "" {
				t.Errorf("(-want +got; UPDATE=1 writes it)\n%s", diff)
			}
		})
	}
}
