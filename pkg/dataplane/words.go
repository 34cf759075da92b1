// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"strings"
)

// MaxWords is the longest text about one difference, in bytes, and maxValue that of one value in it: rules, and names
// in them, may be as long as somebody wants.
const (
	MaxWords = 400
	maxValue = 150
)

// Words says what differs, and where, in at most MaxWords bytes and some dots. exists says that the Service of the
// difference does. What rules say is not cleaned.
func (d *Difference) Words(exists bool) string {
	endpoint, have, want := d.Endpoint.String(), clip(d.Have, maxValue), clip(d.Want, maxValue)
	var text string
	switch d.Kind {
	case Missing:
		text = "no rule takes connections"
	case Extra:
		why := "no Service has this address"
		if exists {
			why = "the Service has no such address"
		} else if d.Service != "" {
			why = fmt.Sprintf("Service %s does not exist", clip(d.Service, maxValue))
		}
		return clip(fmt.Sprintf("a rule takes connections to %s (%s): %s", places(d.At), have, why), MaxWords)
	case WrongAction:
		text = fmt.Sprintf("%s instead of %s", have, want)
	case WrongService:
		text = "routes to Service " + have
	case EndpointMissing:
		text = "no connection goes to endpoint " + endpoint
	case EndpointExtra:
		text = fmt.Sprintf("connections go to %s, which is no endpoint for this node", endpoint)
	case WrongPort:
		text = fmt.Sprintf("connections go to endpoint %s at port %s", endpoint, have)
	case Lost:
		text = "some connections go nowhere"
	case WrongAffinity:
		text = fmt.Sprintf("session affinity %s instead of %s", have, want)
	case WrongSources:
		text = fmt.Sprintf("sources: %s instead of %s", have, want)
	case WrongMasquerade:
		text = fmt.Sprintf("source address %s instead of %s", have, want)
	case NoHairpin:
		text = fmt.Sprintf("endpoint %s does not reach itself: its source is not rewritten", endpoint)
	case Unmeasured:
		text = "a rule was not understood: " + have
	default:
		text = string(d.Kind)
	}
	return clip(text+" at "+places(d.At), MaxWords)
}

// places names the first frontend of a difference, from where it is so if not from everywhere, and how many more there
// are.
func places(at []Place) string {
	if len(at) == 0 {
		return "nowhere"
	}
	text := at[0].String()
	if len(at[0].From) < len(Origins) {
		var from []string
		for _, o := range at[0].From {
			from = append(from, map[Origin]string{
				Outside: "outside", Pod: "pods of the node", Node: "the node itself",
			}[o])
		}
		text += " from " + strings.Join(from, " and ")
	}
	if more := len(at) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// clip cuts a text.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}
