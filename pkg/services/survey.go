// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/servicecheck"
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
