// SPDX-License-Identifier: Apache-2.0

package checkup

import "testing"

// TestMeasurable: probing is skipped only if every pair already has a cause that prevents
// its measurement.
func TestMeasurable(t *testing.T) {
	cause := &Cause{Stage: StageSetup, Message: "not there"}
	down, up := RosterEntry{Cause: cause}, RosterEntry{Addresses: map[IPFamily]string{IPv4: "198.18.0.1"}}
	vms := func(first, second *Cause) *Worksheet {
		ends := []Endpoint{{VM: &VM{}, Cause: first}, {VM: &VM{Target: true}, Cause: second}}
		return &Worksheet{Guests: &GuestSheet{}, Sources: ends, Targets: ends, Assignments: [][]int{{1}, {0}}}
	}
	watched := &Worksheet{
		Connections: &ConnectionSheet{}, Sources: make([]Endpoint, 1), Targets: make([]Endpoint, 1),
		Assignments: [][]int{{0}},
	}
	mesh := &Worksheet{Sources: make([]Endpoint, 2), Targets: make([]Endpoint, 2), Assignments: [][]int{{1}, {0}}}
	for name, tt := range map[string]struct {
		w    *Worksheet
		r    Roster
		want bool
	}{
		"all up":                           {mesh, Roster{Targets: []RosterEntry{up, up}}, true},
		"one target down":                  {mesh, Roster{Targets: []RosterEntry{up, down}}, true},
		"all targets down":                 {mesh, Roster{Targets: []RosterEntry{down, down}}, false},
		"nothing expected":                 {&Worksheet{}, Roster{}, true},
		"VMs up":                           {vms(nil, nil), Roster{Targets: []RosterEntry{up, up}}, true},
		"a VM down":                        {vms(nil, nil), Roster{Targets: []RosterEntry{up, down}}, false},
		"a node missing":                   {vms(nil, cause), Roster{Targets: []RosterEntry{up, up}}, false},
		"measurements reported one by one": {watched, Roster{Targets: []RosterEntry{down}}, true},
		"units that are not pairs":         {&Worksheet{Units: []string{"source"}}, Roster{}, true},
	} {
		if got := tt.w.Measurable(&tt.r); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
