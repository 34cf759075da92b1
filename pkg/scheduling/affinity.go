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

// Affinity decodes the JSON of a NodeAffinity. The error lists every required term that Kubernetes would reject.
// It returns nil for empty data and for null. The path is the field's path in the plan.
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
	terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution
	if _, err := nodeaffinity.NewNodeSelector(terms, field.WithPath(required)); err != nil {
		return nil, err
	}
	return affinity, nil
}
