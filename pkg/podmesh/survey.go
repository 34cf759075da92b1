// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"context"
	"errors"
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Survey adds to a snapshot what Expand needs for the podMesh checks of a plan: the existing pods that are targets, and
// the rounds that reports record. It needs the verb list on pods in the namespaces of targets.pods and, if a sample
// rotates, on configmaps in the run's namespace. A failed request is an error: an unread cluster must not look empty.
func Survey(ctx context.Context, r cluster.Reader, p *checkup.Plan, s *cluster.Snapshot) error {
	var problems []error
	problem := func(err error) {
		if err != nil {
			problems = append(problems, err)
		}
	}
	var rotates bool
	for _, name := range p.CheckNames() {
		mesh, ok := p.Checks[name].Spec.(*Spec)
		if !ok {
			continue
		}
		rotates = rotates || mesh.Sample.Rotate
		if mesh.Targets.Pods == nil {
			continue
		}
		selection, err := selectionOf(*mesh.Targets.Pods)
		if err != nil {
			problem(fmt.Errorf("check %q: %w", name, err))
			continue
		}
		if _, ok := s.Selection(selection.Namespace, selection.Selector); ok {
			continue
		}
		selection.Pods, err = r.Pods(ctx, selection.Namespace, selection.Selector)
		problem(err)
		s.Selections = append(s.Selections, selection)
	}
	if rotates {
		var err error
		s.Rounds, err = r.Rounds(ctx, p.Name)
		problem(err)
	}
	return errors.Join(problems...)
}

// selectionOf returns the selection of a check's targets, without pods.
func selectionOf(t PodTargets) (cluster.Selection, error) {
	selector, err := cluster.Selector(t.Selector)
	if err != nil {
		return cluster.Selection{}, fmt.Errorf("targets.pods.selector: %w", err)
	}
	return cluster.Selection{Namespace: t.Namespace, Selector: selector}, nil
}
