// SPDX-License-Identifier: Apache-2.0

package services

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Sheet is what the worksheet's Details have.
type Sheet struct {
	// Listings that were made.
	Listings []servicecheck.Listing `json:"listings"`
	// Targets are those of the worksheet, by index.
	Targets []Target `json:"targets"`
	// Expected has one letter for each assignment of each source, in the worksheet's order: an Expectation.
	Expected []string `json:"expected"`
	// Closed is the plan's.
	Closed servicecheck.Closed `json:"closed"`
}

// Target is what a target of the worksheet is.
type Target struct {
	// Service is namespace/name, Port the name of its port; empty if that has none.
	Service string  `json:"service"`
	Port    string  `json:"port,omitempty"`
	Address Address `json:"address"`
	// Endpoints is the number of endpoints in the cluster that may be used.
	Endpoints int `json:"endpoints"`
	// Why has what decides which of them nodes may use, of some nodes as examples; nil if nodes use all that are ready.
	Why []servicecheck.Chosen `json:"why,omitempty"`
	// State is a digest of the Service and its EndpointSlices of one family, as setup read them.
	State string `json:"state"`
}

// SheetOf decodes the Details of a worksheet. It fails if they do not fit the worksheet.
func SheetOf(w *checkup.Worksheet) (*Sheet, error) {
	var s Sheet
	if err := json.Unmarshal(w.Details, &s); err != nil {
		return nil, fmt.Errorf("read the details of the worksheet: %w", err)
	}
	fits := len(s.Targets) == len(w.Targets) && len(s.Expected) == len(w.Assignments)
	for i := 0; fits && i < len(s.Expected); i++ {
		fits = len(s.Expected[i]) == len(w.Assignments[i])
	}
	if !fits {
		return nil, fmt.Errorf("read the details of the worksheet: they are of another worksheet: %d targets and %d sources, of %d and %d",
			len(s.Targets), len(s.Expected), len(w.Targets), len(w.Assignments))
	}
	return &s, nil
}

// Expects returns what is expected of a pair of the worksheet.
func (s *Sheet) Expects(w *checkup.Worksheet, p checkup.Pair) servicecheck.Expectation {
	if p.Source < 0 || p.Source >= len(w.Assignments) {
		return servicecheck.Works
	}
	at, ok := slices.BinarySearch(w.Assignments[p.Source], p.Target)
	if !ok {
		return servicecheck.Works
	}
	return servicecheck.Expectation(s.Expected[p.Source][at])
}

// Service returns namespace/name of a target's Service; empty if there is no such target.
func (s *Sheet) Service(target int) string {
	if target < 0 || target >= len(s.Targets) {
		return ""
	}
	return s.Targets[target].Service
}
