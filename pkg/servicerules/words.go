// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"fmt"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// maxWords is the longest text about one difference, in bytes, and maxValue that of one value in it: rules, and names
// in them, may be as long as somebody wants.
const (
	maxWords = 400
	maxValue = 150
)

// words says what differs, and where. exists says that the Service of the difference does.
func words(d *dataplane.Difference, exists bool) string {
	endpoint, have, want := d.Endpoint.String(), clip(d.Have, maxValue), clip(d.Want, maxValue)
	var text string
	switch d.Kind {
	case dataplane.Missing:
		text = "no rule takes connections"
	case dataplane.Extra:
		why := "no Service has this address"
		if exists {
			why = "the Service has no such address"
		} else if d.Service != "" {
			why = fmt.Sprintf("Service %s does not exist", clip(d.Service, maxValue))
		}
		return clip(fmt.Sprintf("a rule takes connections to %s (%s): %s", places(d.At), have, why), maxWords)
	case dataplane.WrongAction:
		text = fmt.Sprintf("%s instead of %s", have, want)
	case dataplane.WrongService:
		text = "leads to Service " + have
	case dataplane.EndpointMissing:
		text = "no connection goes to endpoint " + endpoint
	case dataplane.EndpointExtra:
		text = fmt.Sprintf("connections go to %s, which is no endpoint", endpoint)
	case dataplane.WrongPort:
		text = fmt.Sprintf("connections go to endpoint %s at port %s", endpoint, have)
	case dataplane.Lost:
		text = "some connections go nowhere"
	case dataplane.WrongAffinity:
		text = fmt.Sprintf("session affinity %s instead of %s", have, want)
	case dataplane.WrongSources:
		text = fmt.Sprintf("sources: %s instead of %s", have, want)
	case dataplane.WrongMasquerade:
		text = fmt.Sprintf("source address %s instead of %s", have, want)
	case dataplane.NoHairpin:
		text = fmt.Sprintf("endpoint %s does not reach itself: its source is not rewritten", endpoint)
	case dataplane.Unmeasured:
		text = "a rule was not understood: " + have
	default:
		text = string(d.Kind)
	}
	return clip(text+" at "+places(d.At), maxWords)
}

// places names the first frontend of a difference, from where it is so if not from everywhere, and how many more there
// are.
func places(at []dataplane.Place) string {
	if len(at) == 0 {
		return "nowhere"
	}
	text := at[0].String()
	if len(at[0].From) < len(dataplane.Origins) {
		var from []string
		for _, o := range at[0].From {
			from = append(from, map[dataplane.Origin]string{
				dataplane.Outside: "outside", dataplane.Pod: "pods of the node", dataplane.Node: "the node itself",
			}[o])
		}
		text += " from " + strings.Join(from, " and ")
	}
	if more := len(at) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// several is the first two of several texts, and how many more there are.
func several(texts []string) string {
	const most = 2
	if len(texts) <= most {
		return strings.Join(texts, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(texts[:most], "; "), len(texts)-most)
}

// clip cuts a text.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}
