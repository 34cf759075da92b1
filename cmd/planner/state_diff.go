// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/print"
)

// machine is where --diff reads rules: the one on which planner runs.
type machine struct {
	addresses func() ([]net.Addr, error)
	rules     func(dataplane.Family) (dataplane.Proxy, *dataplane.Table, error)
}

// settle is the time between two looks at rules that differ: a service proxy writes rules about a second after a
// change.
const settle = 3 * time.Second

// rulesDiff is how the rules of one family differ from the state.
type rulesDiff struct {
	Family dataplane.Family `json:"family"`
	Proxy  dataplane.Proxy  `json:"proxy"`
	// Frontends is how many were compared: an address and port of a Service, from one origin.
	Frontends   int                    `json:"frontends"`
	Differences []dataplane.Difference `json:"differences"`

	exists map[string]bool // Services that the node serves in the family
}

// diff prints how the rules of this machine differ from the state of the node. A second look leaves out what is under
// way.
func (s *services) diff(ctx context.Context) error {
	if err := s.isNode(); err != nil {
		return err
	}
	var found [2]rulesDiff
	var state []*nodestate.ServiceEndpoints
	for look := range 2 {
		if look > 0 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(settle):
			}
		}
		s.mu.Lock()
		state = s.view.State()
		s.mu.Unlock()
		same := true
		for i, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			now, err := s.compare(state, family)
			if err != nil {
				return err
			}
			if look > 0 {
				now.Differences = lasting(found[i].Differences, now.Differences)
			}
			found[i], same = now, same && len(now.Differences) == 0
		}
		if same {
			break
		}
	}
	s.warnUnserved(state)
	return s.printDiff(found[:])
}

// lasting returns the differences that are in both looks, sorted by Service and never nil. Rules that one look did not
// understand leave open what is in both: of their Services, it returns those of the second look.
func lasting(first, second []dataplane.Difference) []dataplane.Difference {
	unread := map[string]bool{}
	for _, d := range slices.Concat(first, second) {
		unread[d.Service] = unread[d.Service] || d.Kind == dataplane.Unmeasured
	}
	all := []dataplane.Difference{}
	for _, d := range second {
		if unread[d.Service] {
			all = append(all, d)
		}
	}
	for _, d := range dataplane.Both(first, second) {
		if !unread[d.Service] {
			all = append(all, d)
		}
	}
	slices.SortStableFunc(all, func(a, b dataplane.Difference) int { return cmp.Compare(a.Service, b.Service) })
	return all
}

// isNode returns an error if the node does not exist, or if this machine is another one: its rules would say nothing.
func (s *services) isNode() error {
	s.mu.Lock()
	known, of := s.known, s.addresses
	s.mu.Unlock()
	if !known {
		return fmt.Errorf("node %s does not exist", s.options.node)
	}
	here, err := s.machine.addresses()
	if err != nil {
		return fmt.Errorf("list the addresses of this machine: %w", err)
	}
	for _, a := range here {
		if prefix, ok := a.(*net.IPNet); ok && slices.Contains(of, prefix.IP.String()) {
			return nil
		}
	}
	return usage("--diff reads the rules of the machine on which planner runs, and this one has no address of node %s (%s): "+
		"run it in the network of the node", s.options.node, strings.Join(of, ", "))
}

// compare reads the rules of one family and compares them with the state. Only differences of the Services that the
// command line selects are left.
func (s *services) compare(state []*nodestate.ServiceEndpoints, family dataplane.Family) (rulesDiff, error) {
	proxy, have, err := s.machine.rules(family)
	switch {
	case err != nil:
		return rulesDiff{}, fmt.Errorf("read the %s rules of this machine: %w", family, err)
	case proxy.None:
		have = &dataplane.Table{Family: family}
	case have == nil:
		return rulesDiff{}, fmt.Errorf("read the %s rules of this machine: %s", family, proxy.Reason)
	}
	wanted := want.Table(state, family, cmp.Or(proxy.Decides(), dataplane.NFTables))
	d := rulesDiff{Family: family, Proxy: proxy, Differences: []dataplane.Difference{}, exists: map[string]bool{}}
	for i := range wanted.Frontends {
		service := wanted.Frontends[i].Service
		d.exists[service] = true
		if s.selects(service) {
			d.Frontends++
		}
	}
	for _, difference := range dataplane.Compare(wanted, *have) {
		if s.selects(difference.Service) {
			d.Differences = append(d.Differences, difference)
		}
	}
	return d, nil
}

// selects reports whether the command line selects a Service, namespace/name. One without a name belongs to all.
func (s *services) selects(service string) bool {
	namespace, name, _ := strings.Cut(service, "/")
	return (s.namespace == metav1.NamespaceAll || s.namespace == namespace) &&
		(len(s.names) == 0 || slices.Contains(s.names, name))
}

// proxy names what wrote the rules.
func (d *rulesDiff) proxy() string {
	switch {
	case d.Proxy.None:
		return "no rules"
	case d.Proxy.Legacy:
		return string(d.Proxy.Mode) + " (legacy)"
	}
	return string(d.Proxy.Mode)
}

// printDiff prints the differences. Its error has the exit code: 3 for a difference, 1 if only rules are left that were
// not understood, or if nothing was compared.
func (s *services) printDiff(found []rulesDiff) error {
	if s.options.output == "json" {
		err := print.Encode(s.env.stdout, struct {
			Node     string      `json:"node"`
			Families []rulesDiff `json:"families"`
		}{s.options.node, found})
		if err != nil {
			return err
		}
	} else if err := s.diffText(found); err != nil {
		return err
	}
	frontends, unmeasured := 0, false
	for i := range found {
		frontends += found[i].Frontends
		for _, d := range found[i].Differences {
			if d.Kind != dataplane.Unmeasured {
				return exit{code: exitFailed}
			}
			unmeasured = true
		}
	}
	if unmeasured {
		return errors.New("not all rules were understood")
	}
	if frontends == 0 {
		return fmt.Errorf("nothing was compared: the proxy of node %s serves none of these Services: the same command with "+
			"--all-namespaces, without --diff and names, lists those that it serves", s.options.node)
	}
	return nil
}

func (s *services) diffText(found []rulesDiff) error {
	p := &page{w: s.env.stdout}
	items := map[string][]checkup.Item{}
	var proxies []string
	frontends, differences := 0, 0
	for i := range found {
		of := &found[i]
		proxies = append(proxies, fmt.Sprintf("%s %s", of.Family, of.proxy()))
		frontends, differences = frontends+of.Frontends, differences+len(of.Differences)
		if of.Proxy.None { // each Service differs, in the same way
			continue
		}
		for _, d := range of.Differences {
			items[d.Service] = append(items[d.Service],
				checkup.Item{Text: fmt.Sprintf("%s: %s", of.Family, d.Words(of.exists[d.Service]))})
		}
	}
	p.line("%s: %s; compared: %s", s.options.node, strings.Join(proxies, ", "), checkup.Count(frontends, "frontend"))
	if others := found[0].Proxy.Others; len(others) > 0 {
		p.line("also seen: %s: packets that it takes never meet these rules", strings.Join(others, ", "))
	}
	for _, service := range slices.Sorted(maps.Keys(items)) {
		p.line("%s", cmp.Or(service, "no Service"))
		p.show(-1, []checkup.Block{{List: &checkup.List{Items: items[service]}}})
	}
	switch {
	case differences == 0 && frontends == 0: // the error says so
	case differences == 0:
		p.line("no difference")
	default:
		p.line("%s", checkup.Count(differences, "difference"))
	}
	return p.err
}
