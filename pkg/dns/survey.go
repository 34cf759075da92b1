// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// Survey adds to a snapshot the Services that the dns checks of a plan select, their DNS Services, the EndpointSlices
// of their namespaces, and the rounds that reports record. A failed request is an error: an unread cluster must not
// look empty.
func Survey(ctx context.Context, r cluster.Reader, p *checkup.Plan, s *cluster.Snapshot) error {
	var problems []error
	rotates := false
	for _, name := range p.CheckNames() {
		spec, ok := p.Checks[name].Spec.(*Spec)
		if !ok {
			continue
		}
		rotates = rotates || spec.Sample.Rotate
		listings, err := spec.listings()
		if err == nil {
			err = servicecheck.List(ctx, r, s, listings)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("check %q: %w", name, err))
		}
	}
	if rotates {
		var err error
		s.Rounds, err = r.Rounds(ctx, p.Name)
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// listings are those of the selected Services, and that of the DNS Service's namespace, if they do not have it.
func (s *Spec) listings() ([]servicecheck.Listing, error) {
	all, err := s.Services.Listings()
	for _, l := range all {
		if l.Selector == "" && (l.Namespace == "" || l.Namespace == s.DNSService.Namespace) {
			return all, err
		}
	}
	return append(all, servicecheck.Listing{Namespace: s.DNSService.Namespace}), err
}

// Rights returns the rights that a check needs in addition to those of every run, and to listing nodes: it lists
// Services and EndpointSlices before and after measuring.
func Rights(c checkup.Check) []checkup.Right {
	spec, ok := c.Spec.(*Spec)
	if !ok {
		return nil
	}
	listings, err := spec.listings()
	if err != nil { // a rule of the plan reports the selector
		return nil
	}
	var read servicecheck.Selection
	for _, l := range listings {
		if l.Namespace == "" { // includes all others
			read.Namespaces = nil
			break
		}
		read.Namespaces = append(read.Namespaces, l.Namespace)
	}
	return read.Rights(map[checkup.Phase]string{
		checkup.PhaseSetup: "pkg/dns Survey: what DNS servers must answer",
		checkup.PhaseProbe: "pkg/dns AskAfter: what of it changed while it was measured",
	})
}

// AskAfter reads the Services again, after everything was measured: one fact, which says of each target whether the
// Service that it asks for, and the DNS Service that the server is an endpoint of, are what they were at setup.
func AskAfter(ctx context.Context, c kubernetes.Interface, w *checkup.Worksheet) []checkup.Fact {
	sheet, err := SheetOf(w)
	if err != nil {
		return servicecheck.Unknown(err)
	}
	n := len(w.Targets)
	return servicecheck.AskAgain(ctx, c, sheet.Listings, 2*n, func(now servicecheck.States, i int) bool {
		peer, t := w.Targets[i%n].Peer, sheet.Targets[i%n]
		if i < n {
			return peer == nil || peer.Question == nil || serviceState(now, t.Service, peer.Question) != t.ServiceState
		}
		return peer == nil || serverState(now, sheet.DNSService, *peer) != t.ServerState
	})
}

// serviceState is a digest of what the answer to a question about a Service depends on; empty without one. Whether a
// name without addresses of one family exists depends on both families.
func serviceState(states servicecheck.States, service string, q *checkup.Question) string {
	switch {
	case service == "":
		return ""
	case q.Type == "A" && q.Answer != checkup.AnswerNoData:
		return states.Of(service, checkup.IPv4)
	case q.Type == "AAAA" && q.Answer != checkup.AnswerNoData:
		return states.Of(service, checkup.IPv6)
	}
	return states.Of(service, checkup.IPv4) + states.Of(service, checkup.IPv6)
}

// serverState is a digest of the DNS Service if the server is one of its endpoints; empty for a resolver, which must
// answer whatever happens to the endpoints.
func serverState(states servicecheck.States, dnsService string, peer checkup.Peer) string {
	if peer.Host == "" {
		return ""
	}
	return states.Of(dnsService, peer.Family)
}
