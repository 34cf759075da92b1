// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// maxUnits is the most units of a check: a report lists those that did not pass, with 200 bytes or so each.
const maxUnits = 200_000

// Sheet is what the worksheet's Details have.
type Sheet struct {
	// Namespaces that are listed; [""] is all of them. All of their Services are listed, whatever the plan selects:
	// rules of a Service that exists are no rules that nobody wants.
	Namespaces []string `json:"namespaces"`
	// Services of which units are expected, sorted by name.
	Services []Service `json:"services"`
	// Nodes is the number of nodes of which the sources are a sample, or all.
	Nodes int `json:"nodes"`
	// Addresses are the internal addresses of each source's node: an address in the source ranges of a load balancer
	// makes the node a source.
	Addresses [][]string `json:"addresses"`
	// Expect is the plan's.
	Expect Expect `json:"expect"`
}

// Service is a Service that nodes have to serve.
type Service struct {
	Name string `json:"name"` // namespace/name
	// Families that are read.
	Families []checkup.IPFamily `json:"families"`
	// Protocols of its ports, each once, sorted.
	Protocols []nodestate.Protocol `json:"protocols"`
}

// SheetOf decodes the Details of a worksheet. It fails if they do not fit the worksheet.
func SheetOf(w *checkup.Worksheet) (*Sheet, error) {
	var s Sheet
	if err := json.Unmarshal(w.Details, &s); err != nil {
		return nil, fmt.Errorf("read the details of the worksheet: %w", err)
	}
	if len(s.Addresses) != len(w.Sources) {
		return nil, fmt.Errorf("read the details of the worksheet: they are of another worksheet: %d nodes of %d",
			len(s.Addresses), len(w.Sources))
	}
	return &s, nil
}

// Survey adds to a snapshot all Services and EndpointSlices of the namespaces that the checks of this kind name, and
// the rounds that reports record. A failed request is an error: an unread cluster must not look empty.
func Survey(ctx context.Context, r cluster.Reader, p *checkup.Plan, s *cluster.Snapshot) error {
	var problems []error
	rotates := false
	for _, name := range p.CheckNames() {
		spec, ok := p.Checks[name].Spec.(*Spec)
		if !ok {
			continue
		}
		rotates = rotates || spec.Sample.Rotate
		for _, namespace := range spec.Services.Listed() {
			if err := r.ServiceObjects(ctx, s, namespace, ""); err != nil {
				problems = append(problems, fmt.Errorf("check %q: %w", name, err))
				continue
			}
			s.AddSeen(servicecheck.Seen(namespace, ""))
		}
	}
	if rotates {
		var err error
		s.Rounds, err = r.Rounds(ctx, p.Name)
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// Expand returns the worksheet of a check for the cluster of the snapshot, and warnings, one line each. It is pure. The
// round counts from 0 and is taken modulo the number of rounds.
//
// An error says that nothing can be read, or that plan and snapshot do not match.
func Expand(p *checkup.Plan, check string, s *cluster.Snapshot, round int) (*checkup.Worksheet, []string, error) {
	w, warnings, err := expand(p, check, s, round)
	if err != nil {
		return nil, nil, fmt.Errorf("check %q: %w", check, err)
	}
	return w, warnings, nil
}

func expand(p *checkup.Plan, check string, s *cluster.Snapshot, round int) (*checkup.Worksheet, []string, error) {
	spec, ok := p.Checks[check].Spec.(*Spec)
	if !ok {
		return nil, nil, fmt.Errorf("plan %s has no check of the kind %s of that name", p.Name, Name)
	}
	if spec.Sample.Nodes < 0 || round < 0 {
		return nil, nil, errors.New("sample.nodes and sample.round must be at least 0")
	}
	nodes, tolerations, warnings, err := servicecheck.Sources(spec.Placement, s)
	if err != nil {
		return nil, nil, err
	}
	sheet := Sheet{Namespaces: spec.Services.Listed(), Expect: spec.Expect}
	for _, namespace := range sheet.Namespaces {
		if !slices.Contains(s.Seen, servicecheck.Seen(namespace, "")) {
			return nil, nil, fmt.Errorf("the snapshot does not list the %s: it was recorded for another plan: record it again",
				servicecheck.Seen(namespace, ""))
		}
	}
	selected, err := spec.Services.Matcher()
	if err != nil {
		return nil, nil, err
	}
	state, err := nodestate.New(nodestate.Options{})
	if err != nil {
		return nil, nil, err
	}
	for i := range s.ServiceObjects {
		if selected(&s.ServiceObjects[i]) {
			state.SetService(&s.ServiceObjects[i])
		}
	}
	w := &checkup.Worksheet{
		Plan: p.Name, Check: check, Kind: Name, Seed: kind.Seed(p.Name, check),
		Tables:    &checkup.TableSheet{Interval: spec.Interval},
		Resources: spec.Resources, Timeouts: spec.Timeouts,
	}
	if spec.Sample.Seed != nil {
		w.Seed = *spec.Sample.Seed
	}
	// One reader of rules takes blocks of nodes from a ring, as one node of the kind services takes addresses.
	sampled := servicecheck.SampleOf(w.Seed, round, spec.Sample.Nodes, len(nodes), 1, len(nodes))
	w.Round, w.Rounds, sheet.Nodes = sampled.Round, sampled.Rounds, len(nodes)
	for _, m := range state.State("") {
		service := Service{Name: m.Namespace + "/" + m.Name}
		for _, p := range m.Families[0].Ports {
			service.Protocols = append(service.Protocols, p.Protocol)
		}
		slices.Sort(service.Protocols)
		service.Protocols = slices.Compact(service.Protocols)
		for i := range m.Families {
			if f := checkup.IPFamily(m.Families[i].Family); spec.wants(f) {
				service.Families = append(service.Families, f)
			}
		}
		if len(service.Families) > 0 {
			sheet.Services = append(sheet.Services, service)
		}
	}
	if len(sheet.Services) == 0 {
		return nil, nil, errors.New("no Service is selected that nodes serve in the families of the plan: see services and ipFamilies")
	}
	for _, f := range checkup.IPFamilies {
		if slices.ContainsFunc(sheet.Services, func(s Service) bool { return slices.Contains(s.Families, f) }) {
			w.IPFamilies = append(w.IPFamilies, f)
		}
	}
	for _, i := range sampled.Assignments[0] {
		n := nodes[i]
		w.Sources = append(w.Sources, checkup.Endpoint{
			Node: n.Name, Zone: n.Labels[corev1.LabelTopologyZone], Tolerations: tolerations, HostNetwork: true,
		})
		sheet.Addresses = append(sheet.Addresses, n.InternalIPs)
	}
	if units := sheet.units(w); units > maxUnits {
		return nil, nil, fmt.Errorf("%s on %s are %d units: at most %d fit a report: select fewer by services, placement or sample.nodes",
			checkup.Count(len(sheet.Services), "Service"), checkup.Count(len(w.Sources), "node"), units, maxUnits)
	}
	w.Details, err = json.Marshal(sheet)
	return w, warnings, err
}

// units is the number of expected units.
func (s *Sheet) units(w *checkup.Worksheet) int {
	perNode := len(w.IPFamilies)
	for _, service := range s.Services {
		perNode += len(service.Families)
	}
	return perNode * len(w.Sources)
}

// summarize says in one line what will be read.
func summarize(w *checkup.Worksheet) []string {
	sheet, err := SheetOf(w)
	if err != nil {
		return []string{err.Error()}
	}
	nodes := checkup.Count(len(w.Sources), "node")
	if w.Rounds > 1 {
		nodes = fmt.Sprintf("%d of %s (round %d of %d)", len(w.Sources), checkup.Count(sheet.Nodes, "node"), w.Round, w.Rounds)
	}
	return []string{fmt.Sprintf("the rules of %s for %s: %s", nodes,
		checkup.Count(len(sheet.Services), "Service"), checkup.Count(sheet.units(w), noun))}
}
