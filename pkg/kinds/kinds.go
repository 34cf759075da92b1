// SPDX-License-Identifier: Apache-2.0

// Package kinds lists all kinds of check: a new kind is one more line in All. It has
// the functions that work on all kinds of a plan.
package kinds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/controlplane"
	"github.com/checkplan/checkplan/pkg/dns"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/placement"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/servicecanary"
	"github.com/checkplan/checkplan/pkg/servicerules"
	"github.com/checkplan/checkplan/pkg/services"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// All holds every kind of check, in the order in which their rules are applied.
var All = []kind.Kind{
	podmesh.Kind,
	controlplane.Kind,
	placement.Kind,
	services.Kind,
	servicerules.Kind,
	servicecanary.Kind,
	dns.Kind,
	vmlatency.Kind,
}

// Named returns the kind of a name; false if there is none.
func Named(name checkup.Kind) (kind.Kind, bool) {
	i := slices.IndexFunc(All, func(k kind.Kind) bool { return k.Name == name })
	if i < 0 {
		return kind.Kind{}, false
	}
	return All[i], true
}

// Names are the names of all kinds, in the order of All.
func Names() []checkup.Kind {
	names := make([]checkup.Kind, len(All))
	for i, k := range All {
		names[i] = k.Name
	}
	return names
}

// Of returns the kind of a check of the plan. The error says which checks the
// plan has, if not this one.
func Of(p *checkup.Plan, check string) (kind.Kind, error) {
	c, ok := p.Checks[check]
	if !ok {
		return kind.Kind{}, fmt.Errorf("plan %s has no check %q; it has %q", p.Name, check, p.CheckNames())
	}
	k, ok := Named(c.Kind())
	if !ok {
		return kind.Kind{}, fmt.Errorf("check %q: unsupported kind %q: the task images are too old", check, c.Kind())
	}
	return k, nil
}

// Rights are the rights that a check needs in addition to those of every run.
func Rights(c checkup.Check) []checkup.Right {
	k, _ := Named(c.Kind())
	var rights []checkup.Right
	if k.Nodes {
		rights = append(rights, checkup.Right{
			Phase: checkup.PhaseSetup, Scope: checkup.ScopeCluster, Resource: "nodes", Verb: "list",
			Why: "pkg/cluster Survey: which nodes there are, their zones and taints",
		})
	}
	if k.Rights != nil {
		rights = append(rights, k.Rights(c)...)
	}
	return rights
}

// Survey reads what the named checks of a plan need of a cluster, or all of its
// checks if none is named. Each kind is called once. The error has
// everything that could not be read, unless every kind works without it.
func Survey(ctx context.Context, r cluster.Reader, p *checkup.Plan, checks ...string) (*cluster.Snapshot, error) {
	if len(checks) == 0 {
		checks = p.CheckNames()
	}
	asked := *p
	asked.Checks = map[string]checkup.Check{}
	needed := false
	asks := map[checkup.Kind]kind.Kind{}
	for _, name := range checks {
		k, err := Of(p, name)
		if err != nil {
			return nil, err
		}
		asked.Checks[name] = p.Checks[name]
		asks[k.Name] = k
		needed = needed || k.Nodes
	}
	s, err := cluster.Survey(ctx, r)
	if s == nil {
		return nil, fmt.Errorf("survey: %w", err)
	}
	if apierrors.IsForbidden(err) && !needed {
		s.AddUnseen(cluster.Nodes, err)
		err = nil
	}
	problems := []error{err}
	for _, name := range slices.Sorted(maps.Keys(asks)) {
		problems = append(problems, asks[name].Survey(ctx, r, &asked, s))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("survey: %w", err)
	}
	s.Normalize()
	return s, nil
}

// Outcome is the user's ConfigMap to which the outcome of a check is
// written; nil means none.
func Outcome(c checkup.Check) *checkup.ConfigMapRef {
	k, ok := Named(c.Kind())
	if !ok || k.Outcome == nil {
		return nil
	}
	return k.Outcome(c.Spec)
}

// HostNetwork names a check of the plan whose agents will run in their nodes'
// networks, or returns "" if none is known to. It may ask the cluster.
func HostNetwork(ctx context.Context, client kubernetes.Interface, p *checkup.Plan) string {
	for _, name := range p.CheckNames() {
		c := p.Checks[name]
		if k, ok := Named(c.Kind()); ok && k.HostNetwork != nil && k.HostNetwork(ctx, client, c.Spec) {
			return name
		}
	}
	return ""
}

// Prepare surveys the cluster and computes what one check of the plan measures there:
// its worksheet, with the warnings, and the roster with the targets that already exist.
// It creates nothing.
func Prepare(
	ctx context.Context,
	r cluster.Reader,
	p *checkup.Plan,
	check string,
) (*checkup.Worksheet, *checkup.Roster, error) {
	s, err := Survey(ctx, r, p, check)
	if err != nil {
		return nil, nil, err
	}
	return Expand(p, check, s)
}

// Expand computes what Prepare does from a snapshot of the cluster.
func Expand(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, *checkup.Roster, error) {
	k, err := Of(p, check)
	if err != nil {
		return nil, nil, err
	}
	w, warnings, err := k.Expand(p, check, s)
	if err != nil {
		return nil, nil, err
	}
	w.Warnings = warnings
	if n := countTests(p); n > 1 {
		w.Checks = n
	}
	return w, k.Roster(p, w, s), nil
}

// countTests is how many checks of the plan test limits: they share the probability of a false alarm of the run.
func countTests(p *checkup.Plan) int {
	n := 0
	for _, c := range p.Checks {
		if k, _ := Named(c.Kind()); k.Tests {
			n++
		}
	}
	return n
}
