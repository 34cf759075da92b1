// SPDX-License-Identifier: Apache-2.0

package pkg_test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rooms are the kinds of check: the package of each, what its name looks like in code
// and comments, and the production files outside the package that contain it, each
// with the reason. A new file is either a mistake or needs a reason here.
var rooms = []struct {
	room  string
	name  *regexp.Regexp
	files map[string]string
}{
	{"pkg/podmesh/", regexp.MustCompile(`\b[pP]odMesh|pkg/podmesh|podmesh\.`), map[string]string{
		"pkg/kinds/kinds.go": "the map of kinds",
		"pkg/kind/kind.go":   "an example of a name",
		"cmd/planner/ask.go": "the plan of one question",
	}},
	{"pkg/controlplane/", regexp.MustCompile(`\bcontrolPlane\b|pkg/controlplane|controlplane\.[A-Z]`), map[string]string{
		"pkg/kinds/kinds.go":  "the map of kinds",
		"pkg/localise/doc.go": "why kinds explain failures by procedures of their own",
	}},
	// "placement" alone is where pods may run: a field of other kinds, too.
	{"pkg/placement/", regexp.MustCompile(`pkg/placement|placement\.(Kind|Name|Spec|Sheet|Side|Judge|Expand)|"placement"[^,)` + "`" + `]|CausePlacement`), map[string]string{
		"pkg/kinds/kinds.go":    "the map of kinds",
		"pkg/checkup/report.go": "the cause of its findings",
	}},
	// "services" alone is the resource.
	{"pkg/services/", regexp.MustCompile(`pkg/services|services\.[A-Z]`), map[string]string{
		"pkg/kinds/kinds.go":      "the map of kinds",
		"pkg/servicerules/doc.go": "why it is a kind of its own",
	}},
	{"pkg/servicerules/", regexp.MustCompile(`\bserviceRules\b|pkg/servicerules|servicerules\.`), map[string]string{
		"pkg/kinds/kinds.go": "the map of kinds",
	}},
	{"pkg/servicecanary/", regexp.MustCompile(`\bserviceCanary\b|pkg/servicecanary|servicecanary\.`), map[string]string{
		"pkg/kinds/kinds.go": "the map of kinds",
	}},
	// "dns" alone is the protocol.
	{"pkg/dns/", regexp.MustCompile(`pkg/dns|\bdns\.(Kind|Name|Spec|Sheet|Judge|Expand)`), map[string]string{
		"pkg/kinds/kinds.go": "the map of kinds",
	}},
	{"pkg/vmlatency/", regexp.MustCompile(`\b[vV][mM]Latency|pkg/vmlatency|vmlatency\.`), map[string]string{
		"pkg/kinds/kinds.go":      "the map of kinds",
		"pkg/localise/doc.go":     "why kinds explain failures by procedures of their own",
		"pkg/kiagnose/params.go":  "a kiagnose checkup is a check of this kind",
		"tasks/probe/kiagnose.go": "the probe image as a plain Job runs one check of this kind",
	}},
}

// TestRooms: who knows a kind by its name.
func TestRooms(t *testing.T) {
	out, err := exec.Command("git", "-C", "..", "ls-files", "pkg", "tasks", "cmd").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	sources := map[string][]byte{}
	for file := range strings.FieldsSeq(string(out)) {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || strings.Contains(file, "test/") {
			continue
		}
		if sources[file], err = os.ReadFile("../" + file); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range rooms {
		found := map[string]bool{}
		name := []byte(path.Base(r.room)) // every match contains it, in small letters or not
		for file, content := range sources {
			if strings.HasPrefix(file, r.room) {
				continue
			}
			for line := range bytes.Lines(content) {
				// Much faster than the expression alone.
				if bytes.Contains(bytes.ToLower(line), name) && r.name.Match(line) {
					found[file] = true
					if r.files[file] == "" {
						t.Errorf("%s knows %s: %s", file, r.room, bytes.TrimSpace(line))
					}
				}
			}
		}
		for _, file := range slices.Sorted(maps.Keys(r.files)) {
			if !found[file] {
				t.Errorf("%s does not know %s: remove it from the list", file, r.room)
			}
		}
	}
}
