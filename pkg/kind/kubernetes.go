// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Parts are the Kubernetes values in the parameters of a check, each with its path.
type Parts struct {
	Placements []Part[checkup.Placement]
	Spreads    []Part[[]checkup.TopologySpreadConstraint]
	Selectors  []Part[checkup.LabelSelector]
	// Namespaces that are the run's own where they are empty, and those that must be
	// given.
	Namespaces, NeededNamespaces []Part[string]
	// Names of objects of other kinds, such as Secrets; an empty one names none.
	Names     []Part[string]
	Resources []Part[checkup.Resources]
	// Memories of guests.
	Memories []Part[string]
}

// Part is a value at a path.
type Part[T any] struct {
	Value T
	Path  []string
}

// At is a part at a path.
func At[T any](value T, path ...string) Part[T] { return Part[T]{value, path} }

// KubernetesRules are the rules that Kubernetes' own libraries check, for the parts
// of the parameters of a kind.
func KubernetesRules[S checkup.Spec](parts func(S) Parts) []Rule {
	rule := func(name string, check func(Parts, Reporter)) Rule {
		return RuleOf(name, func(s S, report Reporter) { check(parts(s), report) })
	}
	return []Rule{
		rule("node-selector", nodeSelector),
		rule("toleration", toleration),
		rule("affinity", affinity),
		rule("topology-key", topologyKey),
		rule("pod-selector", podSelector),
		rule("pod-namespace", podNamespace),
		rule("object-name", objectName),
		rule("resources", resources),
		rule("guest-memory", guestMemory),
	}
}

// join appends elements to a copy of a path.
func join(path []string, more ...string) []string { return slices.Concat(path, more) }

// refused reports what Kubernetes' validation of one string says, without its
// examples and regular expressions.
func refused(messages []string, path []string, what string, r Reporter) {
	for _, message := range messages {
		r(path, "%s: %s", what, checkup.NoExamples(message))
	}
}

// labels reports keys and values that cannot be labels.
func labels(set map[string]string, path []string, r Reporter) {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		refused(validation.IsQualifiedName(key), join(path, key), fmt.Sprintf("label key %q", key), r)
		refused(validation.IsValidLabelValue(set[key]), join(path, key), fmt.Sprintf("label value %q", set[key]), r)
	}
}

func nodeSelector(p Parts, r Reporter) {
	for _, placement := range p.Placements {
		labels(placement.Value.NodeSelector, join(placement.Path, "nodeSelector"), r)
	}
}

// toleration follows ValidateTolerations of Kubernetes' pkg/apis/core/validation,
// which no library exports. The schema checks operators and effects.
func toleration(p Parts, r Reporter) {
	for _, placement := range p.Placements {
		for i, t := range placement.Value.Tolerations {
			at := join(placement.Path, "tolerations", Index(i))
			exists := t.Operator == string(corev1.TolerationOpExists)
			if t.Key != "" {
				refused(validation.IsQualifiedName(t.Key), join(at, "key"), fmt.Sprintf("taint key %q", t.Key), r)
			} else if !exists {
				r(at, "a toleration without a key tolerates every taint: want operator Exists")
			}
			if exists && t.Value != "" {
				r(join(at, "value"), "operator Exists compares no value: want none, or operator Equal")
			}
			refused(validation.IsValidLabelValue(t.Value), join(at, "value"), fmt.Sprintf("taint value %q", t.Value), r)
			if t.TolerationSeconds != nil && t.Effect != string(corev1.TaintEffectNoExecute) {
				r(
					join(at, "tolerationSeconds"),
					"only taints of effect NoExecute are tolerated for a time: want effect NoExecute",
				)
			}
			if t.TolerationSeconds != nil && *t.TolerationSeconds < 0 {
				r(
					join(at, "tolerationSeconds"),
					"%d is less than 0, which Kubernetes treats as 0: the pod is evicted at once",
					*t.TolerationSeconds,
				)
			}
		}
	}
}

func affinity(p Parts, r Reporter) {
	for _, placement := range p.Placements {
		if len(placement.Value.Affinity) == 0 {
			continue
		}
		var a corev1.NodeAffinity
		at := join(placement.Path, "affinity")
		if err := json.Unmarshal(placement.Value.Affinity, &a); err != nil {
			r(at, "%v", err)
			continue
		}
		required := a.RequiredDuringSchedulingIgnoredDuringExecution
		if required == nil {
			continue
		}
		at = join(at, "requiredDuringSchedulingIgnoredDuringExecution")
		if len(required.NodeSelectorTerms) == 0 {
			r(join(at, "nodeSelectorTerms"), "empty, which matches no node: want at least one term")
		}
		for i, term := range required.NodeSelectorTerms {
			if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
				r(
					join(at, "nodeSelectorTerms", Index(i)),
					"an empty term matches no node: want matchExpressions or matchFields",
				)
			}
			for j, f := range term.MatchFields {
				if f.Key != metav1.ObjectNameField || len(f.Values) != 1 ||
					f.Operator != corev1.NodeSelectorOpIn && f.Operator != corev1.NodeSelectorOpNotIn {
					r(
						join(at, "nodeSelectorTerms", Index(i), "matchFields", Index(j)),
						"Kubernetes knows the field metadata.name only, with operator In or NotIn and one value",
					)
				}
			}
		}
		_, err := nodeaffinity.NewNodeSelector(required)
		fields(err, at, r)
	}
}

func topologyKey(p Parts, r Reporter) {
	for _, spread := range p.Spreads {
		for i, c := range spread.Value {
			at := join(spread.Path, Index(i), "topologyKey")
			refused(validation.IsQualifiedName(c.TopologyKey), at, fmt.Sprintf("label key %q", c.TopologyKey), r)
			if slices.ContainsFunc(spread.Value[:i], func(before checkup.TopologySpreadConstraint) bool {
				return before.TopologyKey == c.TopologyKey && before.WhenUnsatisfiable == c.WhenUnsatisfiable
			}) {
				r(at, "duplicate: %q with %s", c.TopologyKey, c.WhenUnsatisfiable)
			}
		}
	}
}

func podSelector(p Parts, r Reporter) {
	for _, part := range p.Selectors {
		at, given := part.Path, part.Value
		if len(given.MatchLabels)+len(given.MatchExpressions) == 0 {
			r(at, "an empty selector takes every pod of the namespace: want matchLabels or matchExpressions")
			continue
		}
		labels(given.MatchLabels, join(at, "matchLabels"), r)
		selector := &metav1.LabelSelector{}
		for _, e := range given.MatchExpressions {
			selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values,
			})
		}
		fields(
			metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, nil).
				ToAggregate(),
			at,
			r,
		)
	}
}

func podNamespace(p Parts, r Reporter) {
	for _, namespace := range p.Namespaces {
		if namespace.Value != "" {
			refused(
				validation.IsDNS1123Label(namespace.Value),
				namespace.Path,
				fmt.Sprintf("namespace %q", namespace.Value),
				r,
			)
		}
	}
	for _, namespace := range p.NeededNamespaces {
		refused(
			validation.IsDNS1123Label(namespace.Value),
			namespace.Path,
			fmt.Sprintf("namespace %q", namespace.Value),
			r,
		)
	}
}

func objectName(p Parts, r Reporter) {
	for _, name := range p.Names {
		if name.Value != "" {
			refused(validation.IsDNS1123Subdomain(name.Value), name.Path, fmt.Sprintf("name %q", name.Value), r)
		}
	}
}

func resources(p Parts, r Reporter) {
	for _, part := range p.Resources {
		at, given := part.Path, part.Value
		limits := map[string]resource.Quantity{}
		parse := func(set map[string]string, name string, take func(string, resource.Quantity)) {
			for _, key := range slices.Sorted(maps.Keys(set)) {
				refused(validation.IsQualifiedName(key), join(at, name, key), fmt.Sprintf("resource %q", key), r)
				if native := []string{"cpu", "memory", "ephemeral-storage"}; !strings.Contains(key, "/") &&
					!slices.Contains(native, key) &&
					!strings.HasPrefix(key, corev1.ResourceHugePagesPrefix) {
					r(
						join(at, name, key),
						"resource %q: want %s, or a name with a domain before a slash",
						key,
						strings.Join(native, ", "),
					)
				}
				q, err := resource.ParseQuantity(set[key])
				if err != nil {
					r(join(at, name, key), "quantity %q: %v", set[key], err)
					continue
				}
				take(key, q)
			}
		}
		parse(given.Limits, "limits", func(key string, q resource.Quantity) { limits[key] = q })
		parse(given.Requests, "requests", func(key string, q resource.Quantity) {
			if limit, ok := limits[key]; ok && q.Cmp(limit) > 0 {
				r(
					join(at, "requests", key),
					"%s is more than limits.%s, %s",
					given.Requests[key],
					key,
					given.Limits[key],
				)
			}
		})
	}
}

// leastGuestMemory is below what any kernel with an initial RAM disk needs to boot.
var leastGuestMemory = resource.MustParse("32Mi")

func guestMemory(p Parts, r Reporter) {
	for _, memory := range p.Memories {
		switch q, err := resource.ParseQuantity(memory.Value); {
		case err != nil:
			r(memory.Path, "quantity %q: %v", memory.Value, err)
		case q.Cmp(leastGuestMemory) < 0:
			r(memory.Path, "%s is less than %s: no guest boots in that", memory.Value, leastGuestMemory.String())
		}
	}
}

// fields reports the errors of Kubernetes' validation of what is at path.
func fields(err error, path []string, r Reporter) {
	if err == nil {
		return
	}
	list := []error{err}
	if agg := utilerrors.Aggregate(nil); errors.As(err, &agg) {
		list = utilerrors.Flatten(agg).Errors()
	}
	for _, err := range list {
		fe := (*field.Error)(nil)
		if !errors.As(err, &fe) {
			r(path, "%v", err)
			continue
		}
		at := slices.Clone(path)
		if fe.Field != "" && fe.Field != "<nil>" {
			at = append(
				at,
				strings.FieldsFunc(strings.ReplaceAll(fe.Field, "[", ".["), func(c rune) bool { return c == '.' })...)
		}
		r(at, "%s", strings.Join(strings.Fields(fe.ErrorBody()), " "))
	}
}
