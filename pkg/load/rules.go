// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"cuelang.org/go/cue"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// check finds what the rules of the plan itself and those of Kubernetes refuse.
func check(p *checkup.Plan) []finding {
	var found []finding
	for _, problem := range p.Problems() {
		found = append(found, finding{
			path: selectors(problem.Path), message: problem.Message, rule: problem.Rule,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		mesh := p.Checks[name].PodMesh
		if mesh == nil {
			continue
		}
		for _, r := range kubernetesRules {
			r.check(mesh, func(path []string, message string) {
				at := append([]string{"checks", name, string(checkup.KindPodMesh)}, path...)
				found = append(found, finding{path: selectors(at), message: message, rule: r.name})
			})
		}
	}
	return found
}

// selectors spells a path of pkg/checkup as CUE does.
func selectors(path []string) []cue.Selector {
	var sels []cue.Selector
	for _, elem := range path {
		if in, ok := strings.CutPrefix(elem, "["); ok {
			if i, err := strconv.Atoi(strings.TrimSuffix(in, "]")); err == nil && i >= 0 {
				sels = append(sels, cue.Index(i))
				continue
			}
		}
		sels = append(sels, cue.Str(elem))
	}
	return sels
}

// kubernetesRules are the rules for which Kubernetes' own libraries are asked,
// with paths that begin in the podMesh check.
var kubernetesRules = []struct {
	name  string
	check func(m *checkup.PodMesh, report func(path []string, message string))
}{
	{"node-selector", nodeSelector},
	{"toleration", toleration},
	{"affinity", affinity},
	{"pod-selector", podSelector},
	{"pod-namespace", podNamespace},
	{"resources", resources},
}

type report = func(path []string, message string)

// eachPlacement yields both placements of a check, with their paths.
func eachPlacement(m *checkup.PodMesh, yield func(p checkup.Placement, path []string)) {
	yield(m.Sources.Placement, []string{"sources", "placement"})
	yield(m.Targets.Placement, []string{"targets", "placement"})
}

// join is a path with more elements behind it.
func join(path []string, more ...string) []string { return slices.Concat(path, more) }

func index(i int) string { return fmt.Sprintf("[%d]", i) }

// refused reports what Kubernetes' validation of one string says, without its
// examples and regular expressions.
func refused(messages []string, path []string, what string, r report) {
	for _, message := range messages {
		message, _, _ = strings.Cut(message, " (e.g. ")
		r(path, what+": "+message)
	}
}

// labels reports keys and values that cannot be labels.
func labels(set map[string]string, path []string, r report) {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		refused(validation.IsQualifiedName(key), join(path, key), fmt.Sprintf("label key %q", key), r)
		refused(validation.IsValidLabelValue(set[key]), join(path, key), fmt.Sprintf("label value %q", set[key]), r)
	}
}

func nodeSelector(m *checkup.PodMesh, r report) {
	eachPlacement(m, func(p checkup.Placement, path []string) {
		labels(p.NodeSelector, join(path, "nodeSelector"), r)
	})
}

// toleration follows ValidateTolerations of Kubernetes' pkg/apis/core/validation,
// which no library holds. Operators and effects are the schema's to check.
func toleration(m *checkup.PodMesh, r report) {
	eachPlacement(m, func(p checkup.Placement, path []string) {
		for i, t := range p.Tolerations {
			at := join(path, "tolerations", index(i))
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
				r(join(at, "tolerationSeconds"), "only taints of effect NoExecute are tolerated for a time: want effect NoExecute")
			}
		}
	})
}

func affinity(m *checkup.PodMesh, r report) {
	eachPlacement(m, func(p checkup.Placement, path []string) {
		if len(p.Affinity) == 0 {
			return
		}
		var a corev1.NodeAffinity
		at := join(path, "affinity")
		if err := json.Unmarshal(p.Affinity, &a); err != nil {
			r(at, err.Error())
			return
		}
		required := a.RequiredDuringSchedulingIgnoredDuringExecution
		if required == nil {
			return
		}
		at = join(at, "requiredDuringSchedulingIgnoredDuringExecution")
		if len(required.NodeSelectorTerms) == 0 {
			r(join(at, "nodeSelectorTerms"), "no term, and so no node: want at least one")
		}
		for i, term := range required.NodeSelectorTerms {
			if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
				r(join(at, "nodeSelectorTerms", index(i)), "an empty term matches no node: want matchExpressions or matchFields")
			}
			for j, f := range term.MatchFields {
				if f.Key != metav1.ObjectNameField || len(f.Values) != 1 || f.Operator != corev1.NodeSelectorOpIn && f.Operator != corev1.NodeSelectorOpNotIn {
					r(join(at, "nodeSelectorTerms", index(i), "matchFields", index(j)), "Kubernetes knows the field metadata.name only, with operator In or NotIn and one value")
				}
			}
		}
		_, err := nodeaffinity.NewNodeSelector(required)
		fields(err, at, r)
	})
}

func podSelector(m *checkup.PodMesh, r report) {
	pods := m.Targets.Pods
	if pods == nil {
		return
	}
	at := []string{"targets", "pods", "selector"}
	if len(pods.Selector.MatchLabels)+len(pods.Selector.MatchExpressions) == 0 {
		r(at, "an empty selector takes every pod of the namespace: want matchLabels or matchExpressions")
		return
	}
	labels(pods.Selector.MatchLabels, join(at, "matchLabels"), r)
	selector := &metav1.LabelSelector{}
	for _, e := range pods.Selector.MatchExpressions {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values,
		})
	}
	fields(metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, nil).ToAggregate(), at, r)
}

func podNamespace(m *checkup.PodMesh, r report) {
	if pods := m.Targets.Pods; pods != nil && pods.Namespace != "" {
		refused(validation.IsDNS1123Label(pods.Namespace), []string{"targets", "pods", "namespace"}, fmt.Sprintf("namespace %q", pods.Namespace), r)
	}
}

func resources(m *checkup.PodMesh, r report) {
	at := []string{"resources"}
	limits := map[string]resource.Quantity{}
	parse := func(set map[string]string, name string, take func(string, resource.Quantity)) {
		for _, key := range slices.Sorted(maps.Keys(set)) {
			refused(validation.IsQualifiedName(key), join(at, name, key), fmt.Sprintf("resource %q", key), r)
			if native := []string{"cpu", "memory", "ephemeral-storage"}; !strings.Contains(key, "/") && !slices.Contains(native, key) && !strings.HasPrefix(key, corev1.ResourceHugePagesPrefix) {
				r(join(at, name, key), fmt.Sprintf("resource %q: want %s, or a name with a domain before a slash", key, strings.Join(native, ", ")))
			}
			q, err := resource.ParseQuantity(set[key])
			if err != nil {
				r(join(at, name, key), fmt.Sprintf("quantity %q: %v", set[key], err))
				continue
			}
			take(key, q)
		}
	}
	parse(m.Resources.Limits, "limits", func(key string, q resource.Quantity) { limits[key] = q })
	parse(m.Resources.Requests, "requests", func(key string, q resource.Quantity) {
		if limit, ok := limits[key]; ok && q.Cmp(limit) > 0 {
			r(join(at, "requests", key), fmt.Sprintf("%s is more than limits.%s, %s", m.Resources.Requests[key], key, m.Resources.Limits[key]))
		}
	})
}

// fields reports the errors of Kubernetes' validation of what is at path.
func fields(err error, path []string, r report) {
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
			r(path, err.Error())
			continue
		}
		at := slices.Clone(path)
		if fe.Field != "" && fe.Field != "<nil>" {
			at = append(at, strings.FieldsFunc(strings.ReplaceAll(fe.Field, "[", ".["), func(c rune) bool { return c == '.' })...)
		}
		r(at, oneLine(fe.ErrorBody()))
	}
}
