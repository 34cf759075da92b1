// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// networkHealth checks that the feature gate and the settings of the objects go together, and that the ages do.
func networkHealth(p *checkup.Plan, report kind.Reporter) {
	h := p.PodNetworkHealth
	switch {
	case h == nil && p.Features.PodNetworkHealth:
		report([]string{"features", "PodNetworkHealth"}, "the plan has no podNetworkHealth")
		return
	case h == nil:
		return
	case !p.Features.PodNetworkHealth:
		report([]string{"podNetworkHealth"}, "an alpha feature that is off: set features.PodNetworkHealth to true")
	}
	field := func(name string) []string { return []string{"podNetworkHealth", name} }
	if h.MaxObjects < 1 || h.MaxObjects > 1000 {
		report(field("maxObjects"), "%d: want 1 to 1000", h.MaxObjects)
	}
	if h.StaleAfter <= 0 {
		report(field("staleAfter"), "%s is not more than 0s", h.StaleAfter)
	}
	if h.ExpireAfter < h.StaleAfter {
		report(field("expireAfter"), "%s is less than staleAfter (%s): an object must become Unknown before it is deleted",
			h.ExpireAfter, h.StaleAfter)
	}
	if h.PodGoneGrace < 0 {
		report(field("podGoneGrace"), "%s is less than 0s", h.PodGoneGrace)
	}
}
