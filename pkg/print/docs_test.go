// SPDX-License-Identifier: Apache-2.0

package print

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestDocs checks that docs/report.md names all that a report may say, and that
// what it shows of reports is from testdata: of simulated networks, and, in testdata/real, of runs of end-to-end tests.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/report.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	want := func(what, name string) {
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("docs/report.md does not name the %s %s", what, name)
		}
	}
	for _, v := range checkup.Verdicts {
		want("verdict", string(v))
	}
	for _, v := range checkup.RunVerdicts {
		want("verdict", string(v))
	}
	for _, s := range checkup.Stages {
		want("stage", string(s))
		if !strings.Contains(text, "| `"+string(s)+"` |") {
			t.Errorf("docs/report.md has no row for the stage %s", s)
		}
	}
	for _, c := range checkup.FindingCauses {
		want("cause", string(c))
	}
	for _, name := range ResultNames {
		want("result", name)
	}
	names := regexp.MustCompile(`(?m)^# TYPE (\S+)`)
	for _, r := range scenarios(t) {
		var metrics bytes.Buffer
		if err := OpenMetrics(&metrics, &r); err != nil {
			t.Fatal(err)
		}
		for _, name := range names.FindAllStringSubmatch(metrics.String(), -1) {
			want("metric", name[1])
		}
	}

	var goldens strings.Builder
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		goldens.Write(b)
	}
	paths, err = filepath.Glob("testdata/real/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatal("no reports of real runs:", err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Read(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := Text(&goldens, r, TextOptions{Rest: "all of them: --output json"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"docs/report.md", "docs/dns.md", "docs/service-canary.md", "docs/services.md"} {
		b, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```text\n(.*?)```").FindAllStringSubmatch(string(b), -1)
		if len(blocks) == 0 {
			t.Errorf("%s shows nothing of a report", name)
		}
		for _, block := range blocks {
			if !strings.Contains(goldens.String(), block[1]) {
				t.Errorf("%s shows what no golden says:\n%s", name, block[1])
			}
		}
	}
}

// TestServiceRulesDocs: the report in docs/service-rules.md is one of testdata.
func TestServiceRulesDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/service-rules.md")
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("testdata/service-rules-nodes.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, report, _ := strings.Cut(string(golden), "\n\n")
	report, _, ok := strings.Cut(report, "  Failed rule sets")
	if !ok || !strings.Contains(string(doc), report) {
		t.Errorf("docs/service-rules.md does not show\n%s", report)
	}
}
