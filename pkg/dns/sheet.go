// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"encoding/json"
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Sheet is what the worksheet's Details have.
type Sheet struct {
	// Listings that were made.
	Listings []servicecheck.Listing `json:"listings"`
	// DNSService is namespace/name.
	DNSService string `json:"dnsService"`
	// Targets are those of the worksheet, by index.
	Targets []Target `json:"targets"`
}

// Target is what a target of the worksheet is. The question itself is in its Peer.
type Target struct {
	// Server is ResolverName or an address.
	Server string `json:"server"`
	// Question names the question, Service the Service that it is about, as namespace/name; empty for others.
	Question string `json:"question"`
	Service  string `json:"service,omitempty"`
	// ServiceState and ServerState are digests of what the answer depends on, and of the DNS Service of an endpoint, as
	// setup read them.
	ServiceState string `json:"serviceState,omitempty"`
	ServerState  string `json:"serverState,omitempty"`
}

// SheetOf decodes the Details of a worksheet. It fails if they do not fit the worksheet.
func SheetOf(w *checkup.Worksheet) (*Sheet, error) {
	var s Sheet
	if err := json.Unmarshal(w.Details, &s); err != nil {
		return nil, fmt.Errorf("read the details of the worksheet: %w", err)
	}
	if len(s.Targets) != len(w.Targets) {
		return nil, fmt.Errorf("read the details of the worksheet: they are of another worksheet: %d targets, of %d",
			len(s.Targets), len(w.Targets))
	}
	for _, t := range w.Targets {
		if t.Peer == nil || t.Peer.Question == nil {
			return nil, fmt.Errorf("read the worksheet: target %s has no question", t.Name())
		}
	}
	return &s, nil
}
