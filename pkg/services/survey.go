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
		selector, err := spec.Services.LabelText()
		if err != nil {
			problems = append(problems, fmt.Errorf("check %q: %w", name, err))
			continue
		}
		for _, namespace := range spec.Services.Listed() {
			if err := r.ServiceObjects(ctx, s, namespace, selector); err != nil {
				problems = append(problems, fmt.Errorf("check %q: %w", name, err))
				continue
			}
			s.AddSeen(Seen(namespace, selector))
		}
	}
	if rotates {
		var err error
		s.Rounds, err = r.Rounds(ctx, p.Name)
		problems = append(problems, err)
	}
	return errors.Join(problems...)
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
