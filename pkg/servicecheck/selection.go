// SPDX-License-Identifier: Apache-2.0

package servicecheck

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Selection selects Services.
type Selection struct {
	// Namespaces of the Services. Empty means all.
	Namespaces []string `json:"namespaces,omitempty"`
	// Selector of their labels. A zero one means every Service.
	Selector checkup.LabelSelector `json:"selector,omitzero"`
}

// Listed are the namespaces to list; the single one "" is all of them.
func (s Selection) Listed() []string {
	if len(s.Namespaces) == 0 {
		return []string{""}
	}
	return s.Namespaces
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

// Parts adds the fields of a selection, which is a check's field services.
func (s Selection) Parts(p *kind.Parts) {
	for i, namespace := range s.Namespaces {
		p.NeededNamespaces = append(p.NeededNamespaces, kind.At(namespace, "services", "namespaces", kind.Index(i)))
	}
	if !s.Selector.IsZero() {
		p.Selectors = append(p.Selectors, kind.At(s.Selector, "services", "selector"))
	}
}

// NamespaceTwice reports namespaces that are duplicates.
func (s Selection) NamespaceTwice(report kind.Reporter) {
	kind.Duplicates(s.Namespaces, report, "services", "namespaces")
}

// Rights are those to list the Services and EndpointSlices of a selection in phases, each with its reason.
func (s Selection) Rights(why map[checkup.Phase]string) []checkup.Right {
	var rights []checkup.Right
	for _, phase := range checkup.Phases {
		if why[phase] == "" {
			continue
		}
		for _, namespace := range s.Listed() {
			for _, resource := range []struct{ group, name string }{{"", "services"}, {"discovery.k8s.io", "endpointslices"}} {
				r := checkup.Right{
					Phase: phase, Scope: checkup.ScopeNamespace, Namespace: namespace,
					Group: resource.group, Resource: resource.name, Verb: "list", Why: why[phase],
				}
				if namespace == "" {
					r.Scope = checkup.ScopeCluster
				}
				rights = append(rights, r)
			}
		}
	}
	return rights
}
