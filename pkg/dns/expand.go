// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Expand returns the worksheet of a dns check for the cluster of the snapshot, and warnings, one line each. It is pure:
// the same plan, snapshot and round give the same worksheet. The round counts from 0 and is taken modulo the number of
// rounds.
//
// An error says that nothing can be measured, or that plan and snapshot do not match.
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
		return nil, nil, fmt.Errorf("plan %s has no dns check of that name", p.Name)
	}
	if spec.Probe.Count < 1 || spec.Sample.Budget < 1 || spec.Sample.Degree < 0 || round < 0 {
		return nil, nil, errors.New("probe.count and sample.budget must be at least 1, sample.degree and sample.round at least 0")
	}
	nodes, tolerations, warnings, err := servicecheck.Sources(spec.Placement, s)
	if err != nil {
		return nil, nil, err
	}
	sheet := Sheet{DNSService: spec.DNSService.String()}
	if sheet.Listings, err = spec.listings(); err != nil {
		return nil, nil, err
	}
	if err := servicecheck.CheckListings(s, sheet.Listings); err != nil {
		return nil, nil, err
	}
	chosen, err := spec.Services.Choose(s)
	if err != nil {
		return nil, nil, err
	}
	if len(chosen.ServiceObjects) == 0 {
		return nil, nil, errors.New("no Service is selected: see services")
	}
	questions, unasked := questionsOf(spec, chosen)
	servers, odd, err := serversOf(spec, s)
	if err != nil {
		return nil, nil, err
	}
	warnings = append(append(warnings, unasked...), odd...)

	w := &checkup.Worksheet{
		Plan: p.Name, Check: check, Kind: Name, Seed: kind.Seed(p.Name, check), Budget: spec.Sample.Budget,
		IPFamilies: families(servers, dnsService(spec, s)),
		Expect:     checkup.Expect{Loss: spec.Expect.Loss, Latency: spec.Expect.Latency},
		Limits:     spec.Limits, Resources: spec.Resources, Timeouts: spec.Timeouts,
	}
	for _, t := range Transports {
		if slices.Contains(spec.Transports, t) {
			w.Probes = append(w.Probes, checkup.TransportProbe{Transport: t.of(), Probe: checkup.Probe{
				Sizes: []int{0}, Count: spec.Probe.Count, Interval: spec.Probe.Interval, Timeout: spec.Probe.Timeout,
			}})
		}
	}
	if spec.Sample.Seed != nil {
		w.Seed = *spec.Sample.Seed
	}
	if len(nodes) > spec.Sample.Budget {
		return nil, nil, fmt.Errorf("sample.budget: %s is not enough for one question from each of %s: "+
			"raise it, or admit fewer nodes by placement", checkup.Count(spec.Sample.Budget, "pair"), checkup.Count(len(nodes), "node"))
	}
	all := len(questions) * len(servers)
	sampled := servicecheck.SampleOf(w.Seed, round, spec.Sample.Degree, spec.Sample.Budget, len(nodes), all)
	w.Degree, w.Round, w.Rounds, w.Possible = sampled.Degree, sampled.Round, sampled.Rounds, len(nodes)*all
	if want := spec.Sample.Degree; sampled.Degree < all && (want == 0 || want > sampled.Degree) {
		warnings = append(warnings, fmt.Sprintf("sample.budget (%s) allows %d of %d questions from each of %s: raise it, or "+
			"rotate the sample", checkup.Count(spec.Sample.Budget, "pair"), sampled.Degree, all, checkup.Count(len(nodes), "node")))
	}
	write(w, &sheet, nodes, tolerations, questions, servers, sampled.Assignments,
		servicecheck.Digests(s.ServiceObjects, s.EndpointSlices))
	if w.Details, err = json.Marshal(sheet); err != nil {
		return nil, nil, err
	}
	if expected := cost.ExpectedProbe(w); expected > w.AgentDeadline() {
		warnings = append(warnings, fmt.Sprintf("asking takes about %v, but agents have %v of timeouts.probe (%v): later pairs are "+
			"unmeasured: raise it or limits.packetsPerSecond, or lower sample.degree",
			time.Duration(expected).Round(time.Second), w.AgentDeadline(), w.Timeouts.Probe))
	}
	return w, warnings, nil
}

// write fills in sources, targets and assignments of the worksheet, and what the sheet has of them. A target is a
// question at a server. sampled has their indexes for each node: that of the question times the number of servers, plus
// that of the server.
func write(
	w *checkup.Worksheet, sheet *Sheet, nodes []cluster.Node, tolerations []checkup.Toleration, questions []question,
	servers []server, sampled [][]int, states servicecheck.States,
) {
	var used []int
	for i, n := range nodes {
		w.Sources = append(w.Sources, checkup.Endpoint{
			Node: n.Name, NodeUID: n.UID, Zone: n.Labels[corev1.LabelTopologyZone], Tolerations: tolerations,
		})
		used = append(used, sampled[i]...)
	}
	slices.Sort(used)
	used = slices.Compact(used)
	type target struct {
		checkup.Endpoint
		Target
		index int
	}
	targets := make([]target, len(used))
	for i, index := range used {
		q, s := questions[index/len(servers)], servers[index%len(servers)]
		peer := &checkup.Peer{
			Host: s.host, Port: s.port, Family: s.family, Transport: s.transport.of(),
			Question: &checkup.Question{
				Resolver: s.host == "", Name: q.absolute, Type: q.kind, Answer: q.answer, Records: q.records,
			},
		}
		at := s.name
		if s.host != "" {
			at = peer.Address()
		} else if q.relative != "" {
			peer.Question.Name = q.relative
		}
		targets[i] = target{
			checkup.Endpoint{Label: fmt.Sprintf("%s at %s/%s", q.label, at, s.transport), Peer: peer},
			Target{
				Server: s.name, Question: q.label, Service: q.service,
				ServiceState: serviceState(states, q.service, peer.Question),
				ServerState:  serverState(states, sheet.DNSService, *peer),
			},
			index,
		}
	}
	slices.SortFunc(targets, func(a, b target) int { return cmp.Compare(a.Label, b.Label) })
	order := make(map[int]int, len(targets))
	for i, t := range targets {
		order[t.index] = i
		w.Targets, sheet.Targets = append(w.Targets, t.Endpoint), append(sheet.Targets, t.Target)
	}
	for i := range nodes {
		assignment := make([]int, len(sampled[i]))
		for k, index := range sampled[i] {
			assignment[k] = order[index]
		}
		slices.Sort(assignment)
		w.Assignments = append(w.Assignments, assignment)
	}
}
