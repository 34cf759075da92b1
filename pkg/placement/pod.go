// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

const (
	// image replaces that of the diagnostics: it is never pulled, but image policies check it.
	image = "ghcr.io/checkplan/checkplan/agent:dry-run"
	// appLabel names a workload; topology spread counts its pods by it.
	appLabel = "app.kubernetes.io/name"
)

// workloads are the names and kinds of both workloads, as in OpenShift.
var workloads = map[SideName]struct{ name, kind string }{
	SideSource: {"network-check-source", "Deployment"},
	SideTarget: {"network-check-target", "DaemonSet"},
}

// podOf returns a pod of one side's workload as its controller would create it. The errors list the fields of the
// placement that the API server would reject or that are invalid, each with its path under at.
func podOf(plan, check string, side SideName, p PodPlacement, at *field.Path) (*corev1.Pod, error) {
	var b builder
	labels := map[string]string{
		appLabel:               workloads[side].name,
		checkup.LabelPlan:      plan,
		checkup.LabelCheck:     check,
		checkup.LabelManagedBy: checkup.ManagedBy,
	}
	requests := b.quantities(p.Resources.Requests, at.Child("resources", "requests"))
	limits := b.quantities(p.Resources.Limits, at.Child("resources", "limits"))
	// The API server's defaults, because a dry run must not report them as changes by admission (SetDefaults_Pod in
	// k8s.io/kubernetes pkg/apis/core/v1).
	for name, limit := range limits {
		if _, ok := requests[name]; !ok {
			if requests == nil {
				requests = corev1.ResourceList{}
			}
			requests[name] = limit
		}
	}
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:   checkup.ObjectName("", check, checkup.Role(side), plan),
			Labels: labels,
		},
		Spec: corev1.PodSpec{
			NodeSelector:              b.nodeSelector(p.NodeSelector, at.Child("nodeSelector")),
			Tolerations:               b.tolerations(p.Tolerations, at.Child("tolerations")),
			Affinity:                  b.affinity(p.Affinity, at.Child("affinity")),
			TopologySpreadConstraints: b.spread(p.TopologySpreadConstraints, labels, at.Child("topologySpreadConstraints")),
			PriorityClassName:         b.priorityClass(p.PriorityClassName, at.Child("priorityClassName")),
			Containers: []corev1.Container{{
				Name:            string(side),
				Image:           image,
				ImagePullPolicy: corev1.PullIfNotPresent,
				Ports:           b.hostPorts(p.HostPorts, at.Child("hostPorts")),
				Resources:       corev1.ResourceRequirements{Requests: requests, Limits: limits},
			}},
		},
	}
	scheduling.Restrict(&pod.Spec)
	if workloads[side].kind == "DaemonSet" {
		pod = scheduling.DaemonSetPod(pod)
	}
	return pod, errors.Join(b.problems...)
}

// builder builds the parts of a pod and records their problems.
type builder struct {
	problems []error
}

func (b *builder) add(problems ...*field.Error) {
	// Problems of a map have no order.
	slices.SortStableFunc(problems, func(x, y *field.Error) int { return strings.Compare(x.Error(), y.Error()) })
	for _, p := range problems {
		b.problems = append(b.problems, p)
	}
}

func (b *builder) invalid(at *field.Path, value any, why ...string) {
	b.add(field.Invalid(at, value, strings.Join(why, "; ")))
}

func (b *builder) nodeSelector(selector map[string]string, at *field.Path) map[string]string {
	b.add(metav1validation.ValidateLabels(selector, at)...)
	return selector
}

// tolerations applies the API server's rules for tolerations (ValidateTolerations in k8s.io/kubernetes
// pkg/apis/core/validation), and rejects negative TolerationSeconds, which the API server treats as 0.
func (b *builder) tolerations(of []checkup.Toleration, at *field.Path) []corev1.Toleration {
	for i, t := range of {
		at := at.Index(i)
		if t.Key != "" {
			b.add(metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
		} else if t.Operator != string(corev1.TolerationOpExists) {
			b.invalid(
				at.Child("operator"),
				t.Operator,
				"operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
			)
		}
		switch t.Operator {
		case "", string(corev1.TolerationOpEqual):
			if why := validation.IsValidLabelValue(t.Value); len(why) > 0 {
				b.invalid(at.Child("value"), t.Value, why...)
			}
		case string(corev1.TolerationOpExists):
			if t.Value != "" {
				b.invalid(at.Child("value"), t.Value, "value must be empty when `operator` is 'Exists'")
			}
		default:
			b.add(field.NotSupported(at.Child("operator"), t.Operator, []string{"Equal", "Exists"}))
		}
		effects := []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}
		if t.Effect != "" && !slices.Contains(effects, t.Effect) {
			b.add(field.NotSupported(at.Child("effect"), t.Effect, effects))
		}
		if seconds := t.TolerationSeconds; seconds != nil {
			if t.Effect != string(corev1.TaintEffectNoExecute) {
				b.invalid(at.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
			}
			if *seconds < 0 {
				b.invalid(at.Child("tolerationSeconds"), *seconds, "is less than 0")
			}
		}
	}
	return scheduling.Tolerations(of)
}

func (b *builder) affinity(raw []byte, at *field.Path) *corev1.Affinity {
	affinity, err := scheduling.Affinity(raw, at)
	if err != nil {
		b.problems = append(b.problems, err)
	}
	if affinity == nil {
		return nil
	}
	return &corev1.Affinity{NodeAffinity: affinity}
}

func (b *builder) spread(
	of []checkup.TopologySpreadConstraint,
	labels map[string]string,
	at *field.Path,
) []corev1.TopologySpreadConstraint {
	var all []corev1.TopologySpreadConstraint
	for i, c := range of {
		at := at.Index(i)
		if c.MaxSkew < 1 {
			b.invalid(at.Child("maxSkew"), c.MaxSkew, "must be greater than zero")
		}
		if c.TopologyKey == "" {
			b.add(field.Required(at.Child("topologyKey"), "can not be empty"))
		} else {
			b.add(metav1validation.ValidateLabelName(c.TopologyKey, at.Child("topologyKey"))...)
		}
		when := []string{string(corev1.DoNotSchedule), string(corev1.ScheduleAnyway)}
		if !slices.Contains(when, c.WhenUnsatisfiable) {
			b.add(field.NotSupported(at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, when))
		}
		all = append(all, corev1.TopologySpreadConstraint{
			MaxSkew: int32(min(max(c.MaxSkew, 1), 1<<30)), TopologyKey: c.TopologyKey,
			WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(c.WhenUnsatisfiable),
			LabelSelector:     &metav1.LabelSelector{MatchLabels: maps.Clone(labels)},
		})
	}
	return all
}

func (b *builder) priorityClass(name string, at *field.Path) string {
	if why := validation.IsDNS1123Subdomain(name); name != "" && len(why) > 0 {
		b.invalid(at, name, why...)
	}
	return name
}

func (b *builder) hostPorts(ports []int, at *field.Path) []corev1.ContainerPort {
	var all []corev1.ContainerPort
	for i, port := range ports {
		if why := validation.IsValidPortNum(port); len(why) > 0 {
			b.invalid(at.Index(i), port, why...)
			continue
		}
		if slices.Contains(ports[:i], port) {
			b.add(field.Duplicate(at.Index(i), port))
			continue
		}
		all = append(
			all,
			corev1.ContainerPort{ContainerPort: int32(port), HostPort: int32(port), Protocol: corev1.ProtocolTCP},
		)
	}
	return all
}

func (b *builder) quantities(of map[string]string, at *field.Path) corev1.ResourceList {
	var list corev1.ResourceList
	for _, name := range slices.Sorted(maps.Keys(of)) {
		q, err := resource.ParseQuantity(of[name])
		switch {
		case err != nil:
			b.invalid(at.Key(name), of[name], "not a quantity: "+err.Error())
			continue
		case q.Sign() < 0:
			b.invalid(at.Key(name), of[name], "must be greater than or equal to 0")
			continue
		}
		if list == nil {
			list = corev1.ResourceList{}
		}
		list[corev1.ResourceName(name)] = q
	}
	return list
}
