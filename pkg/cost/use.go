// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"fmt"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Use is one limit of a plan, and how much of it a run would use.
type Use struct {
	Name  string `json:"name"`
	Used  int    `json:"used"`
	Limit int    `json:"limit"`
}

// Uses lists the limits of a plan on numbers, with what its checks together would use; nil if it has none.
func Uses(l *checkup.PlanLimits, checks ...Cost) []Use {
	if l == nil {
		return nil
	}
	var pods, packets, privileged int
	for _, c := range checks {
		pods += c.Agents + c.Responders + c.Inside + c.VMs + c.Preflights
		packets += c.Packets
		privileged += c.HostNetwork
	}
	var uses []Use
	add := func(name string, used int, limit *int) {
		if limit != nil {
			uses = append(uses, Use{name, used, *limit})
		}
	}
	add("pods", pods, l.Pods)
	add("packets", packets, l.Packets)
	add("privileged pods", privileged, l.PrivilegedPods)
	return uses
}

// String is the use in words, such as "pods 12 of 20".
func (u Use) String() string {
	s := fmt.Sprintf("%s %d of %d", u.Name, u.Used, u.Limit)
	if u.Used > u.Limit {
		s += " (refused)"
	}
	return s
}

// Within returns an error that names each limit that a plan would exceed.
func Within(plan string, uses []Use) error {
	var beyond []string
	for _, u := range uses {
		if u.Used > u.Limit {
			beyond = append(beyond, fmt.Sprintf("%s %d, at most %d", u.Name, u.Used, u.Limit))
		}
	}
	if beyond == nil {
		return nil
	}
	return fmt.Errorf("plan %s would exceed its limits: %s; nothing is created: make it smaller, or raise its limits",
		plan, strings.Join(beyond, "; "))
}
