// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	kjson "sigs.k8s.io/json"
)

// Affinity reads the JSON of a NodeAffinity, and reports every part of what it
// requires that Kubernetes would refuse. Nothing, and null, are no affinity: nil.
// The path is where a plan has it.
func Affinity(data json.RawMessage, at *field.Path) (*corev1.NodeAffinity, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var affinity *corev1.NodeAffinity
	problems, err := kjson.UnmarshalStrict(data, &affinity)
	if err == nil && len(problems) > 0 {
		err = problems[0]
	}
	if err != nil {
		return nil, fmt.Errorf("%s: not a Kubernetes NodeAffinity: %w", at, err)
	}
	if affinity == nil || affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return affinity, nil
	}
	required := at.Child("requiredDuringSchedulingIgnoredDuringExecution")
	if _, err := nodeaffinity.NewNodeSelector(affinity.RequiredDuringSchedulingIgnoredDuringExecution, field.WithPath(required)); err != nil {
		return nil, err
	}
	return affinity, nil
}
