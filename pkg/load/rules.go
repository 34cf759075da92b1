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
		parts := partsOf(p.Checks[name])
		for _, r := range kubernetesRules {
			r.check(parts, func(path []string, message string) {
				at := append([]string{"checks", name}, path...)
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
// with paths that begin in the check.
var kubernetesRules = []struct {
	name  string
	check func(p parts, report func(path []string, message string))
}{
	{"node-selector", nodeSelector},
	{"toleration", toleration},
	{"affinity", affinity},
	{"topology-key", topologyKey},
	{"pod-selector", podSelector},
	{"pod-namespace", podNamespace},
	{"object-name", objectName},
	{"resources", resources},
	{"guest-memory", guestMemory},
}

type report = func(path []string, message string)

// parts are what a check has that is Kubernetes', each with its path.
type parts struct {
	placements []part[checkup.Placement]
	spreads    []part[[]checkup.TopologySpreadConstraint]
	selectors  []part[checkup.LabelSelector]
	namespaces []part[string] // empty ones are the run's, but for a control plane
	names      []part[string] // of objects of other kinds, such as Secrets; empty ones are none
	resources  []part[checkup.Resources]
	memories   []part[string] // of guests
}

type part[T any] struct {
	value T
	path  []string
}

func partsOf(c checkup.Check) parts {
	var p parts
	if mesh := c.PodMesh; mesh != nil {
		at := func(path ...string) []string { return append([]string{string(checkup.KindPodMesh)}, path...) }
		p.placements = append(p.placements,
			part[checkup.Placement]{mesh.Sources.Placement, at("sources", "placement")},
			part[checkup.Placement]{mesh.Targets.Placement, at("targets", "placement")})
		if pods := mesh.Targets.Pods; pods != nil {
			p.selectors = append(p.selectors, part[checkup.LabelSelector]{pods.Selector, at("targets", "pods", "selector")})
			p.namespaces = append(p.namespaces, part[string]{pods.Namespace, at("targets", "pods", "namespace")})
		}
		p.resources = append(p.resources, part[checkup.Resources]{mesh.Resources, at("resources")})
	}
	if control := c.ControlPlane; control != nil {
		at := func(path ...string) []string { return append([]string{string(checkup.KindControlPlane)}, path...) }
		for _, name := range slices.Sorted(maps.Keys(control.Roles)) {
			role := control.Roles[name]
			if pods := role.Pods; pods != nil {
				p.selectors = append(p.selectors, part[checkup.LabelSelector]{pods.Selector, at("roles", name, "pods", "selector")})
				p.namespaces = append(p.namespaces, part[string]{pods.Namespace, at("roles", name, "pods", "namespace")})
			}
			if service := role.Service; service != nil {
				p.names = append(p.names, part[string]{service.Name, at("roles", name, "service", "name")})
				p.namespaces = append(p.namespaces, part[string]{service.Namespace, at("roles", name, "service", "namespace")})
			}
			p.names = append(p.names, part[string]{role.ClientCertificate, at("roles", name, "clientCertificate")})
		}
		p.resources = append(p.resources, part[checkup.Resources]{control.Resources, at("resources")})
	}
	if placement := c.Placement; placement != nil {
		for _, side := range []struct {
			name string
			pods *checkup.PodPlacement
		}{{"sourcePlacement", placement.SourcePlacement}, {"targetPlacement", placement.TargetPlacement}} {
			if side.pods == nil {
				continue
			}
			at := func(path ...string) []string {
				return append([]string{string(checkup.KindPlacement), side.name}, path...)
			}
			p.placements = append(p.placements, part[checkup.Placement]{
				checkup.Placement{NodeSelector: side.pods.NodeSelector, Tolerations: side.pods.Tolerations, Affinity: side.pods.Affinity}, at()})
			p.spreads = append(p.spreads, part[[]checkup.TopologySpreadConstraint]{side.pods.TopologySpreadConstraints, at("topologySpreadConstraints")})
			p.names = append(p.names, part[string]{side.pods.PriorityClassName, at("priorityClassName")})
			p.resources = append(p.resources, part[checkup.Resources]{side.pods.Resources, at("resources")})
		}
	}
	if vms := c.VMLatency; vms != nil {
		at := func(path ...string) []string { return append([]string{string(checkup.KindVMLatency)}, path...) }
		for i, n := range vms.Networks {
			p.names = append(p.names, part[string]{n.Name, at("networks", index(i), "name")})
			p.namespaces = append(p.namespaces, part[string]{n.Namespace, at("networks", index(i), "namespace")})
		}
		for i, pair := range vms.Pairs {
			p.names = append(p.names, part[string]{pair.Source, at("pairs", index(i), "source")}, part[string]{pair.Target, at("pairs", index(i), "target")})
		}
		if c := vms.Kiagnose; c != nil {
			p.names = append(p.names, part[string]{c.Name, at("kiagnose", "name")})
			p.namespaces = append(p.namespaces, part[string]{c.Namespace, at("kiagnose", "namespace")})
		}
		p.memories = append(p.memories, part[string]{vms.Guest.Memory, at("guest", "memory")})
	}
	return p
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

func nodeSelector(p parts, r report) {
	for _, placement := range p.placements {
		labels(placement.value.NodeSelector, join(placement.path, "nodeSelector"), r)
	}
}

// toleration follows ValidateTolerations of Kubernetes' pkg/apis/core/validation,
// which no library holds. Operators and effects are the schema's to check.
func toleration(p parts, r report) {
	for _, placement := range p.placements {
		for i, t := range placement.value.Tolerations {
			at := join(placement.path, "tolerations", index(i))
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
			if t.TolerationSeconds != nil && *t.TolerationSeconds < 0 {
				r(join(at, "tolerationSeconds"), fmt.Sprintf("%d is less than 0, which Kubernetes would take for 0: no time at all", *t.TolerationSeconds))
			}
		}
	}
}

func affinity(p parts, r report) {
	for _, placement := range p.placements {
		if len(placement.value.Affinity) == 0 {
			continue
		}
		var a corev1.NodeAffinity
		at := join(placement.path, "affinity")
		if err := json.Unmarshal(placement.value.Affinity, &a); err != nil {
			r(at, err.Error())
			continue
		}
		required := a.RequiredDuringSchedulingIgnoredDuringExecution
		if required == nil {
			continue
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
	}
}

func topologyKey(p parts, r report) {
	for _, spread := range p.spreads {
		for i, c := range spread.value {
			at := join(spread.path, index(i), "topologyKey")
			refused(validation.IsQualifiedName(c.TopologyKey), at, fmt.Sprintf("label key %q", c.TopologyKey), r)
			if slices.ContainsFunc(spread.value[:i], func(before checkup.TopologySpreadConstraint) bool {
				return before.TopologyKey == c.TopologyKey && before.WhenUnsatisfiable == c.WhenUnsatisfiable
			}) {
				r(at, fmt.Sprintf("%q with %s is there twice", c.TopologyKey, c.WhenUnsatisfiable))
			}
		}
	}
}

func podSelector(p parts, r report) {
	for _, part := range p.selectors {
		at, given := part.path, part.value
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
		fields(metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, nil).ToAggregate(), at, r)
	}
}

func podNamespace(p parts, r report) {
	for _, namespace := range p.namespaces {
		if namespace.value != "" || namespace.path[0] == string(checkup.KindControlPlane) {
			refused(validation.IsDNS1123Label(namespace.value), namespace.path, fmt.Sprintf("namespace %q", namespace.value), r)
		}
	}
}

func objectName(p parts, r report) {
	for _, name := range p.names {
		if name.value != "" {
			refused(validation.IsDNS1123Subdomain(name.value), name.path, fmt.Sprintf("name %q", name.value), r)
		}
	}
}

func resources(p parts, r report) {
	for _, part := range p.resources {
		at, given := part.path, part.value
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
		parse(given.Limits, "limits", func(key string, q resource.Quantity) { limits[key] = q })
		parse(given.Requests, "requests", func(key string, q resource.Quantity) {
			if limit, ok := limits[key]; ok && q.Cmp(limit) > 0 {
				r(join(at, "requests", key), fmt.Sprintf("%s is more than limits.%s, %s", given.Requests[key], key, given.Limits[key]))
			}
		})
	}
}

// leastGuestMemory is less than any kernel with an initial ram disk boots in.
var leastGuestMemory = resource.MustParse("32Mi")

func guestMemory(p parts, r report) {
	for _, memory := range p.memories {
		switch q, err := resource.ParseQuantity(memory.value); {
		case err != nil:
			r(memory.path, fmt.Sprintf("quantity %q: %v", memory.value, err))
		case q.Cmp(leastGuestMemory) < 0:
			r(memory.path, fmt.Sprintf("%s is less than %s: no guest boots in that", memory.value, leastGuestMemory.String()))
		}
	}
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
