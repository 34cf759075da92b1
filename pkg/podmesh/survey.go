// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"context"
	"errors"
	"fmt"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Survey adds to a snapshot what Expand needs for the podMesh checks of a plan: the existing pods that are sources or
// targets, and the rounds that reports record. It needs the verb list on pods in the namespaces of sources.pods and
// targets.pods (get on a pod that is named) and, if a sample rotates, on configmaps in the run's namespace. A failed
// request is an error: an unread cluster must not look empty.
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
		for _, pods := range mesh.existing() {
			selection, err := pods.selection()
			if err != nil {
				problem(fmt.Errorf("check %q: %w", name, err))
				continue
			}
			if _, ok := s.Selection(selection); ok {
				continue
			}
			if selection.Name != "" {
				selection.Pods, err = r.Pod(ctx, selection.Namespace, selection.Name)
			} else {
				selection.Pods, err = r.Pods(ctx, selection.Namespace, selection.Selector)
			}
			problem(err)
			s.Selections = append(s.Selections, selection)
		}
	}
	if rotates {
		var err error
		s.Rounds, err = r.Rounds(ctx, p.Name)
		problem(err)
	}
	return errors.Join(problems...)
}

// existing is a choice of existing pods of a check.
type existing struct {
	PodSources
	// side is "source" or "target".
	side string
}

// existing returns what the check says about existing pods, sources first; nil if it measures fixtures only.
func (m *Spec) existing() []existing {
	var all []existing
	if m.Sources.Pods != nil {
		all = append(all, existing{*m.Sources.Pods, "source"})
	}
	if m.Targets.Pods != nil {
		all = append(all, m.Targets.Pods.existing())
	}
	return all
}

func (t PodTargets) existing() existing {
	return existing{PodSources{Namespace: t.Namespace, Name: t.Name, Selector: t.Selector}, "target"}
}

// field is the name of the field in the plan.
func (e existing) field() string { return e.side + "s.pods" }

// selection returns the selection without pods.
func (e existing) selection() (cluster.Selection, error) {
	if e.Name != "" {
		return cluster.Selection{Namespace: e.Namespace, Name: e.Name}, nil
	}
	selector, err := cluster.Selector(e.Selector)
	if err != nil {
		return cluster.Selection{}, fmt.Errorf("%s.selector: %w", e.field(), err)
	}
	return cluster.Selection{Namespace: e.Namespace, Selector: selector}, nil
}
