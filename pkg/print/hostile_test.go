// SPDX-License-Identifier: Apache-2.0

package print

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/checkup/hostile"
)

// TestHostileTexts: whatever the texts of a report hold, no printer writes a character that does not print, and no line
// that a log viewer takes for a command.
func TestHostileTexts(t *testing.T) {
	all := maps.Clone(printers)
	all["json"] = JSON
	all["results"] = func(w io.Writer, r *checkup.Report) error {
		for _, name := range slices.Sorted(maps.Keys(Results(r, ""))) {
			fmt.Fprintln(w, name, Results(r, hostile.Text)[name])
		}
		return nil
	}
	for name, r := range scenarios(t) {
		for _, enums := range []bool{false, true} {
			var b bytes.Buffer
			if err := JSON(&b, &r); err != nil { // a copy
				t.Fatal(err)
			}
			filled, err := Read(&b)
			if err != nil {
				t.Fatal(err)
			}
			hostile.Fill(filled, enums)
			for printer, print := range all {
				var out bytes.Buffer
				if err := print(&out, filled); err != nil {
					t.Errorf("%s: %v", printer, err)
				}
				hostile.Check(t, fmt.Sprintf("%s with %s, enums %v", name, printer, enums), out.String())
			}
		}
	}
}
