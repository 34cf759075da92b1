// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Survey adds to a snapshot the Services that the services checks of a plan select, the EndpointSlices of their
// namespaces, and the rounds that reports record. A failed request is an error: an unread cluster must not look empty.
func Survey(ctx context.Context, r cluster.Reader, p *checkup.Plan, s *cluster.Snapshot) error {
	var problems []error
	rotates := false
	for _, name := range p.CheckNames() {
		spec, ok := p.Checks[name].Spec.(*Spec)
		if !ok {
			continue
		}
		rotates = rotates || spec.Sample.Rotate
		listings, err := spec.Services.Listings()
		if err == nil {
			err = List(ctx, r, s, listings)
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

// Listing is a list of Services, with all EndpointSlices of their namespace.
type Listing struct {
	// Namespace of the Services; empty for all.
	Namespace string `json:"namespace"`
	// Selector of their labels in kubectl's form; empty for every Service.
	Selector string `json:"selector,omitempty"`
}

// Listings are those that a selection needs.
func (s Selection) Listings() ([]Listing, error) {
	selector, err := s.LabelText()
	if err != nil {
		return nil, err
	}
	var all []Listing
	for _, namespace := range s.Listed() {
		all = append(all, Listing{namespace, selector})
	}
	return all, nil
}

// List adds what the listings have to a snapshot, and notes there that they were made.
func List(ctx context.Context, r cluster.Reader, s *cluster.Snapshot, listings []Listing) error {
	var problems []error
	for _, l := range listings {
		if err := r.ServiceObjects(ctx, s, l.Namespace, l.Selector); err != nil {
			problems = append(problems, err)
			continue
		}
		s.AddSeen(Seen(l.Namespace, l.Selector))
	}
	return errors.Join(problems...)
}

// CheckListings reports a listing that was not made for the snapshot.
func CheckListings(s *cluster.Snapshot, listings []Listing) error {
	for _, l := range listings {
		if !slices.Contains(s.Seen, Seen(l.Namespace, l.Selector)) {
			return fmt.Errorf("the snapshot does not list the %s: it was recorded for another plan: record it again",
				Seen(l.Namespace, l.Selector))
		}
	}
	return nil
}

// Choose returns a snapshot with only those Services of another that are selected, the EndpointSlices of their
// namespaces, and the nodes. It fails if the other was recorded for another plan.
func (s Selection) Choose(from *cluster.Snapshot) (*cluster.Snapshot, error) {
	listings, err := s.Listings()
	if err == nil {
		err = CheckListings(from, listings)
	}
	if err != nil {
		return nil, err
	}
	matches, err := s.Matcher()
	if err != nil {
		return nil, err
	}
	chosen := &cluster.Snapshot{Nodes: from.Nodes}
	for i := range from.ServiceObjects {
		if matches(&from.ServiceObjects[i]) {
			chosen.ServiceObjects = append(chosen.ServiceObjects, from.ServiceObjects[i])
		}
	}
	for i := range from.EndpointSlices {
		if len(s.Namespaces) == 0 || slices.Contains(s.Namespaces, from.EndpointSlices[i].Namespace) {
			chosen.EndpointSlices = append(chosen.EndpointSlices, from.EndpointSlices[i])
		}
	}
	return chosen, nil
}

// LabelText is the selector of labels in kubectl's form; empty for every Service.
func (s Selection) LabelText() (string, error) {
	if s.Selector.IsZero() {
		return "", nil
	}
	selector, err := cluster.Selector(s.Selector)
	if err != nil {
		return "", fmt.Errorf("services.selector: %w", err)
	}
	return selector, nil
}

// Matcher returns a function that reports whether a Service is selected.
func (s Selection) Matcher() (func(*corev1.Service) bool, error) {
	text, err := s.LabelText()
	if err != nil {
		return nil, err
	}
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("services.selector: %w", err)
	}
	return func(service *corev1.Service) bool {
		return (len(s.Namespaces) == 0 || slices.Contains(s.Namespaces, service.Namespace)) &&
			selector.Matches(labels.Set(service.Labels))
	}, nil
}

// Seen names a list of Services in Snapshot.Seen.
func Seen(namespace, selector string) string {
	what := "services of all namespaces"
	if namespace != "" {
		what = "services of namespace " + namespace
	}
	if selector != "" {
		what += " with " + selector
	}
	return what
}
