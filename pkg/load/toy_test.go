// SPDX-License-Identifier: Apache-2.0

package load

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/kinds"
)

// toy is a kind with one field.
type toy struct {
	Answer int `json:"answer"`
}

func (*toy) Kind() checkup.Kind              { return "toy" }
func (*toy) Params() []checkup.Param         { return nil }
func (*toy) PhaseTimeouts() checkup.Timeouts { return checkup.Timeouts{} }
func (*toy) Fixtures() []checkup.Role        { return nil }

// A kind in the map is in the schema, its checks are decoded, and its rules are
// applied.
func TestKindWithItsOwnSchema(t *testing.T) {
	before := slices.Clone(kinds.All)
	t.Cleanup(func() { kinds.All = before })
	kinds.All = append(kinds.All, kind.Kind{
		Name: "toy", New: func() checkup.Spec { return &toy{} },
		Schema: []byte("package schema\n\n#Check: toy?: #Toy\n\n#Toy: answer: *42 | int\n"),
		Rules: []kind.Rule{kind.RuleOf("toy-answer", func(s *toy, report kind.Reporter) {
			if s.Answer < 0 {
				report([]string{"answer"}, "%d is less than 0", s.Answer)
			}
		})},
	})
	dir := t.TempDir()
	load := func(check string) ([]*checkup.Plan, Problems) {
		text := "import \"github.com/checkplan/checkplan/schema\"\n\nplan: x: schema.#Plan & {checks: x: " + check + "}\n"
		if err := os.WriteFile(filepath.Join(dir, "plan.cue"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		plans, _, problems := Plans(t.Context(), dir, []string{"plan.cue"})
		return plans, problems
	}
	plans, problems := load("toy: {}")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if spec, ok := plans[0].Checks["x"].Spec.(*toy); !ok || spec.Answer != 42 {
		t.Errorf("the check is %+v, want the schema's default", plans[0].Checks["x"].Spec)
	}
	for check, want := range map[string]string{
		"toy: answer: -1":           "plan.x.checks.x.toy.answer: -1 is less than 0",
		"toy: anwser: 1":            "anwser",
		"toi: {}":                   "toi",
		"{toy: {}, placement: {}}":  `kinds ["placement" "toy"]: want one kind per check`,
		"{toy: {}, after: [\"y\"]}": `no check "y"`,
	} {
		if _, problems := load(check); !strings.Contains(problems.String(), want) {
			t.Errorf("%s: %s, want %q", check, problems, want)
		}
	}
}
