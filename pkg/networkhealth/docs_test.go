// SPDX-License-Identifier: Apache-2.0

package networkhealth

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestDocs: the document's object is one that the API server accepts, its columns are those of the CRD, have room in 80
// columns of a terminal, and it explains each reason.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/pod-network-health.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	_, example, _ := strings.Cut(text, "```yaml\n")
	example, _, ok := strings.Cut(example, "```\n")
	if !ok {
		t.Fatal("the document has no object")
	}
	h := &Health{}
	if err := yaml.UnmarshalStrict([]byte(example), h); err != nil {
		t.Fatal(err)
	}
	object := fields(h)
	if refused := newAPI(t).refuses(object, nil); refused != "" {
		t.Error(refused)
	}
	if want := NameOf(h.Spec); h.Name != want || strings.Count(text, want) != 2 {
		t.Errorf("the object is named %s, want %s, in the list, too", h.Name, want)
	}
	var columns []string
	for _, c := range crdOf(t).Spec.AdditionalPrinterColumns {
		if c.Priority == 0 {
			columns = append(columns, strings.ToUpper(c.Name))
		}
	}
	if len(columns) == 0 {
		for _, c := range crdOf(t).Spec.Versions[0].AdditionalPrinterColumns {
			if c.Priority == 0 {
				columns = append(columns, strings.ToUpper(c.Name))
			}
		}
	}
	values := map[string]string{"REACHABILITY": "Unreachable", "LOSS": "100%", "OBSERVED": "23h", "COVERAGE": Partial}
	width := 36 // of NAME, by the document
	for _, c := range columns {
		if values[c] == "" {
			t.Errorf("column %s: no value to know its width by", c)
		}
		width += len("   ") + max(len(c), len(values[c]))
	}
	if width > 80 {
		t.Errorf("kubectl get is %d columns wide, want at most 80", width)
	}
	for line := range strings.Lines(text) {
		if head, ok := strings.CutPrefix(line, "NAME "); ok {
			if got, want := strings.Join(strings.Fields(head), " "), strings.Join(columns, " "); got != want {
				t.Errorf("columns %s, want %s", got, want)
			}
		}
	}
	for _, reason := range Reasons {
		if !strings.Contains(text, "`"+reason+"`") {
			t.Errorf("no word of the reason %s", reason)
		}
	}
}
