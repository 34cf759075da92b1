// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"context"
	"errors"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Survey adds to a snapshot what Expand needs for the vmLatency checks of a plan: KubeVirt, Multus, the networks, and
// the address ranges of the cluster. The snapshot records what does not exist and what may not be read; if the API
// server does not answer, that is an error.
func Survey(ctx context.Context, r cluster.Reader, p *checkup.Plan, s *cluster.Snapshot) error {
	var refs []checkup.NetworkRef
	asked := false
	for _, name := range p.CheckNames() {
		if v, ok := p.Checks[name].Spec.(*Spec); ok {
			asked = true
			refs = append(refs, v.Networks...)
		}
	}
	if !asked {
		return nil
	}
	var problems []error
	problem := func(err error) bool {
		if err != nil {
			problems = append(problems, err)
		}
		return err == nil
	}
	if k, err := r.KubeVirt(ctx); problem(err) {
		s.KubeVirt = k
	}
	served, err := r.MultusServed(ctx)
	if problem(err) && served {
		s.Multus = true
		for _, ref := range refs {
			if s.Network(ref) != nil {
				continue
			}
			if n, err := r.Network(ctx, ref); problem(err) {
				s.Networks = append(s.Networks, n)
			}
		}
	}
	if ranges, err := r.AddressRanges(ctx); problem(err) {
		s.Ranges = ranges
	}
	return errors.Join(problems...)
}
