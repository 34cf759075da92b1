// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// part is a message about the table of IPv4.
func part(look, number int, last bool, data string) checkup.TablePart {
	return checkup.TablePart{Look: look, Family: checkup.IPv4, Part: number, Last: last, Data: []byte(data)}
}

// TestTables: what is handed on of the parts that an agent reports, in any order, twice, or made up.
func TestTables(t *testing.T) {
	cause := &checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonForbidden, Message: "no right"}
	huge := strings.Repeat("x", MaxTable)
	for _, tt := range []struct {
		name  string
		parts []checkup.TablePart
		end   int // tables that the agent says it reported
		// want is what is handed on, and whether everything arrived.
		want string
	}{
		{"two looks in parts", []checkup.TablePart{part(0, 0, false, "a"), part(0, 1, true, "b"), part(1, 0, true, "c")}, 2, "ab c complete"},
		{"the same again", []checkup.TablePart{part(0, 0, true, "a"), {Look: 1, Family: checkup.IPv4, Last: true, Same: true}}, 2, "a a complete"},
		{"a log that is read twice", []checkup.TablePart{
			part(0, 0, false, "a"), part(0, 0, false, "a"), part(0, 1, true, "b"), part(0, 0, false, "a"), part(0, 1, true, "b"),
			part(1, 0, true, "c"), part(0, 0, false, "a"), part(1, 0, true, "c"),
		}, 2, "ab c complete"},
		{"a part is lost", []checkup.TablePart{part(0, 0, false, "a"), part(0, 2, true, "c"), part(1, 0, true, "c")}, 2, "incomplete"},
		{"the second look is lost", []checkup.TablePart{part(0, 0, true, "a")}, 2, "incomplete"},
		{"an agent that claims less", []checkup.TablePart{part(0, 0, true, "a")}, 0, "complete"},
		{"not read", []checkup.TablePart{
			{Look: 0, Family: checkup.IPv4, Last: true, Unmeasured: cause}, {Look: 1, Family: checkup.IPv4, Last: true, Unmeasured: cause},
		}, 2, "rules: no right rules: no right complete"},
		{"the same as nothing", []checkup.TablePart{
			{Look: 0, Family: checkup.IPv4, Last: true, Unmeasured: cause}, {Look: 1, Family: checkup.IPv4, Last: true, Same: true},
		}, 2, "rules: no right rules: no right complete"},
		{"two different first looks", []checkup.TablePart{part(0, 0, true, "a"), part(0, 0, true, "b"), part(1, 0, true, "a")}, 2,
			"collect: the agent reported a table twice with different values a complete"},
		{"different after everything was handed on", []checkup.TablePart{part(0, 0, true, "a"), part(1, 0, true, "a"), part(0, 0, true, "b")}, 2,
			"a a complete"},
		{"too large", []checkup.TablePart{part(0, 0, false, huge), part(0, 1, false, "x"), part(0, 2, true, "x"), part(1, 0, true, "a")}, 2,
			fmt.Sprintf("collect: the agent reported a table of more than %d bytes: more than any cluster has a complete", MaxTable)},
		{"nothing, again and again", []checkup.TablePart{part(0, 0, false, ""), part(0, 1, false, ""), part(0, 0, true, "a"), part(1, 0, true, "a")}, 2,
			"garbage garbage a a complete"},
		{"a third look", []checkup.TablePart{part(2, 0, true, "a")}, 0, "garbage complete"},
		{"a look before the first", []checkup.TablePart{part(-1, 0, true, "a")}, 0, "garbage complete"},
		{"a negative part", []checkup.TablePart{part(0, -1, true, "a")}, 0, "garbage complete"},
		{"a first look like the one before", []checkup.TablePart{{Family: checkup.IPv4, Same: true}}, 0, "garbage complete"},
		{"a family that was not ordered", []checkup.TablePart{{Family: checkup.IPv6, Last: true}}, 0, "garbage complete"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := NewSource(&checkup.Worksheet{
				Tables: &checkup.TableSheet{Interval: 1}, Sources: []checkup.Endpoint{{Node: "n0"}}, IPFamilies: []checkup.IPFamily{checkup.IPv4},
			}, 0)
			var got []string
			for _, p := range tt.parts {
				p.Data = bytes.Clone(p.Data)
				fresh, ok := s.Take(checkup.Message{Table: &p})
				if !ok {
					got = append(got, "garbage")
				}
				if fresh.Table == nil {
					continue
				}
				for _, look := range fresh.Table.Looks {
					text := string(look.Data)
					if look.Unmeasured != nil {
						text += look.Unmeasured.String()
					}
					got = append(got, text)
				}
			}
			if s.Take(checkup.Message{End: &checkup.AgentEnd{Tables: tt.end}}); s.Complete() {
				got = append(got, "complete")
			} else {
				got = append(got, "incomplete")
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestTablesOfOthers: a table is garbage from an agent that is to measure pairs.
func TestTablesOfOthers(t *testing.T) {
	s := NewSource(&checkup.Worksheet{Sources: []checkup.Endpoint{{Node: "n0"}}, Assignments: [][]int{{}}}, 0)
	p := part(0, 0, true, "a")
	if _, ok := s.Take(checkup.Message{Table: &p}); ok {
		t.Error("the table was taken")
	}
}
