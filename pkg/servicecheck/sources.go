// SPDX-License-Identifier: Apache-2.0

package servicecheck

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// Sources returns the nodes that a placement admits, sorted by name, the tolerations of their agents, and warnings.
func Sources(placement checkup.Placement, s *cluster.Snapshot) (
	nodes []cluster.Node, tolerations []checkup.Toleration, warnings []string, err error,
) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	tolerations = scheduling.FixtureTolerations(placement.Tolerations)
	admitted, err := scheduling.Admit(s.Nodes, placement, tolerations, field.NewPath("placement"))
	switch {
	case err != nil:
		return nil, nil, nil, err
	case len(s.Nodes) == 0:
		return nil, nil, nil, errors.New("the cluster has no nodes")
	case len(admitted.Nodes) == 0:
		return nil, nil, nil, fmt.Errorf("no node can be a source: %v", admitted)
	case !admitted.Complete():
		warn("%d of %s can be a source; left out: %v",
			len(admitted.Nodes), checkup.Count(len(s.Nodes), "node"), admitted)
	}
	nodes = slices.SortedFunc(slices.Values(admitted.Nodes), func(a, b cluster.Node) int {
		return cmp.Compare(a.Name, b.Name)
	})
	var notReady []string
	for _, n := range nodes {
		if n.Ready != corev1.ConditionTrue {
			notReady = append(notReady, n.Name)
		}
	}
	if len(notReady) > 0 {
		warn("%s not ready, and will probably be unmeasured: %s", checkup.CountAre(len(notReady), "node"), checkup.Some(notReady))
	}
	return nodes, tolerations, warnings, nil
}
