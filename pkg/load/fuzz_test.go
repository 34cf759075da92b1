// SPDX-License-Identifier: Apache-2.0

package load

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// Whatever a file holds, loading it comes to plans or to problems, and every
// problem has a message and a place in the file or none.

func FuzzCUE(f *testing.F)  { fuzz(f, ".cue") }
func FuzzYAML(f *testing.F) { fuzz(f, ".yaml") }
func FuzzJSON(f *testing.F) { fuzz(f, ".json") }

// everySeed is how many of the archives go test takes as seeds, one in so many:
// TestBroken and TestGood check the same of all of them. go test -fuzz takes all,
// and so does go test with CHECKPLAN_LONG set.
const everySeed = 6

func fuzz(f *testing.F, ext string) {
	f.Setenv("CUE_REGISTRY", "none")
	every := everySeed
	if flag.Lookup("test.fuzz").Value.String() != "" || os.Getenv("CHECKPLAN_LONG") != "" {
		every = 1
	}
	for _, dir := range []string{"broken", "good"} {
		names, err := filepath.Glob(filepath.Join("testdata", dir, "*.txtar"))
		if err != nil || len(names) == 0 {
			f.Fatal("no seeds")
		}
		for i, name := range names {
			if i%every != 0 {
				continue
			}
			archive, err := txtar.ParseFile(name)
			if err != nil {
				f.Fatal(err)
			}
			for _, file := range archive.Files {
				if filepath.Ext(file.Name) == ext && len(file.Data) < 2000 && !strings.Contains(string(file.Data), "list.Range") {
					f.Add(file.Data)
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "plan"+ext), data, 0o666); err != nil {
			t.Fatal(err)
		}
		plans, _, problems := Plans(t.Context(), dir, []string{"plan" + ext})
		if (len(plans) == 0) == (len(problems) == 0) {
			t.Errorf("%d plans and %d problems", len(plans), len(problems))
		}
		text := string(data)
		if ext == ".yaml" { // in YAML, a carriage return alone ends a line, too (YAML 1.2.2, 5.4)
			text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
		}
		lines := strings.Count(text, "\n") + 1
		for _, p := range problems {
			if p.Message == "" || strings.Contains(p.Message, "\n") || p.File != "plan"+ext || p.Line > lines {
				t.Errorf("problem %#v", p)
			}
		}
	})
}
