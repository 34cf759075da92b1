// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Sources of placements: the plan, or the cluster's two objects, both named cluster.
const (
	originPlan     = "plan"
	objectName     = "cluster"
	configObject   = "network.config.openshift.io/cluster"
	operatorObject = "network.operator.openshift.io/cluster"
)

var (
	configs   = schema.GroupVersionResource{Group: "config.openshift.io", Version: "v1", Resource: "networks"}
	operators = schema.GroupVersionResource{Group: "operator.openshift.io", Version: "v1", Resource: "networks"}
)

// readDiagnostics reads spec.networkDiagnostics of a network.config.openshift.io, as decoded by the dynamic client; nil
// if it is not set. Unknown fields are listed by their paths. The error lists all fields with a wrong type, with their
// paths. Values are not checked.
func readDiagnostics(object map[string]any) (d *cluster.NetworkDiagnostics, unknown []string, err error) {
	var r reader
	spec := r.object(object["spec"], field.NewPath("spec"))
	at := field.NewPath("spec", "networkDiagnostics")
	diagnostics := r.object(spec["networkDiagnostics"], at, "mode", "sourcePlacement", "targetPlacement")
	if diagnostics != nil {
		d = &cluster.NetworkDiagnostics{
			Mode:            cluster.DiagnosticsMode(r.text(diagnostics["mode"], at.Child("mode"))),
			SourcePlacement: r.placement(diagnostics["sourcePlacement"], at.Child("sourcePlacement")),
			TargetPlacement: r.placement(diagnostics["targetPlacement"], at.Child("targetPlacement")),
		}
		if !slices.Contains(cluster.DiagnosticsModes, d.Mode) {
			r.problems = append(r.problems, field.NotSupported(at.Child("mode"), d.Mode, cluster.DiagnosticsModes))
		}
	}
	if err := r.problems.ToAggregate(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", configObject, err)
	}
	return d, r.unknown, nil
}

// readLegacyFlag reads spec.disableNetworkDiagnostics of a network.operator.openshift.io; nil if it is not set.
func readLegacyFlag(object map[string]any) (*bool, error) {
	var r reader
	spec := r.object(object["spec"], field.NewPath("spec"))
	flag := r.boolean(spec["disableNetworkDiagnostics"], field.NewPath("spec", "disableNetworkDiagnostics"))
	if err := r.problems.ToAggregate(); err != nil {
		return nil, fmt.Errorf("%s: %w", operatorObject, err)
	}
	return flag, nil
}

// reader reads decoded JSON and records fields of a wrong type. A null counts as a missing field: Go encodes an unset
// field as null.
type reader struct {
	problems field.ErrorList
	unknown  []string
}

func (r *reader) wrong(at *field.Path, v any, want string) {
	r.problems = append(r.problems, field.TypeInvalid(at, v, "must be "+want))
}

// object returns nil for a missing object. Without known fields, all fields are known.
func (r *reader) object(v any, at *field.Path, known ...string) map[string]any {
	m, ok := v.(map[string]any)
	if !ok {
		if v != nil {
			r.wrong(at, v, "an object")
		}
		return nil
	}
	if len(known) > 0 {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !slices.Contains(known, key) {
				r.unknown = append(r.unknown, at.Child(key).String())
			}
		}
	}
	return m
}

func (r *reader) text(v any, at *field.Path) string {
	s, ok := v.(string)
	if !ok && v != nil {
		r.wrong(at, v, "a string")
	}
	return s
}

func (r *reader) boolean(v any, at *field.Path) *bool {
	b, ok := v.(bool)
	if !ok {
		if v != nil {
			r.wrong(at, v, "a boolean")
		}
		return nil
	}
	return &b
}

// integer accepts the types to which Kubernetes decodes a whole number.
func (r *reader) integer(v any, at *field.Path) *int64 {
	n, ok := v.(int64)
	if !ok {
		if v != nil {
			r.wrong(at, v, "a whole number")
		}
		return nil
	}
	return &n
}

func (r *reader) placement(v any, at *field.Path) *cluster.DiagnosticsPlacement {
	m := r.object(v, at, "nodeSelector", "tolerations")
	if m == nil {
		return nil
	}
	p := &cluster.DiagnosticsPlacement{}
	selectorAt := at.Child("nodeSelector")
	if selector := r.object(m["nodeSelector"], selectorAt); selector != nil {
		p.NodeSelector = map[string]string{}
		for _, key := range slices.Sorted(maps.Keys(selector)) {
			value, ok := selector[key].(string)
			if !ok {
				r.wrong(selectorAt.Key(key), selector[key], "a string")
			}
			p.NodeSelector[key] = value
		}
	}
	tolerationsAt := at.Child("tolerations")
	switch tolerations := m["tolerations"].(type) {
	case nil:
	case []any:
		p.Tolerations = make([]checkup.Toleration, len(tolerations))
		for i, v := range tolerations {
			p.Tolerations[i] = r.toleration(v, tolerationsAt.Index(i))
		}
	default:
		r.wrong(tolerationsAt, tolerations, "a list")
	}
	return p
}

func (r *reader) toleration(v any, at *field.Path) checkup.Toleration {
	m := r.object(v, at, "key", "operator", "value", "effect", "tolerationSeconds")
	if m == nil && v == nil {
		r.wrong(at, v, "an object")
	}
	return checkup.Toleration{
		Key:               r.text(m["key"], at.Child("key")),
		Operator:          r.text(m["operator"], at.Child("operator")),
		Value:             r.text(m["value"], at.Child("value")),
		Effect:            r.text(m["effect"], at.Child("effect")),
		TolerationSeconds: r.integer(m["tolerationSeconds"], at.Child("tolerationSeconds")),
	}
}

// request holds the placements of a check: its own or the cluster's, with defaults.
type request struct {
	// origin is "plan", or the cluster's object.
	origin string
	mode   cluster.DiagnosticsMode // All or Disabled
	sides  map[SideName]PodPlacement
	// at holds the paths of the sides' fields, for errors.
	at map[SideName]*field.Path
	// notes explain how the request was derived.
	notes []string
}

// errDisabledPlacement is the rule of config.openshift.io/v1 Network, with its message.
var errDisabledPlacement = errors.New(
	"cannot set networkDiagnostics.sourcePlacement and networkDiagnostics.targetPlacement when networkDiagnostics.mode is Disabled",
)

// requestOf returns the request of a check. The package comment has the rules.
func requestOf(c *Spec, s *cluster.Snapshot) (*request, error) {
	if c.NetworkConfig {
		return clusterRequest(s)
	}
	r := newRequest(originPlan, c.Mode, nil)
	if c.Mode == cluster.DiagnosticsDisabled && (c.SourcePlacement != nil || c.TargetPlacement != nil) {
		return nil, errDisabledPlacement
	}
	for side, given := range map[SideName]*PodPlacement{SideSource: c.SourcePlacement, SideTarget: c.TargetPlacement} {
		if given == nil {
			continue
		}
		p := *given
		if len(p.NodeSelector) == 0 {
			p.NodeSelector = defaults(side).NodeSelector
		}
		r.sides[side] = p
	}
	return r, nil
}

func defaults(side SideName) PodPlacement {
	if side == SideSource {
		return SourceDefaults()
	}
	return TargetDefaults()
}

// newRequest returns a request with the defaults for both sides.
func newRequest(origin string, mode cluster.DiagnosticsMode, at *field.Path) *request {
	if mode == cluster.DiagnosticsNoOpinion {
		mode = cluster.DiagnosticsAll
	}
	return &request{
		origin: origin, mode: mode,
		sides: map[SideName]PodPlacement{
			SideSource: SourceDefaults(), SideTarget: TargetDefaults(),
		},
		at: map[SideName]*field.Path{
			SideSource: at.Child("sourcePlacement"), SideTarget: at.Child("targetPlacement"),
		},
	}
}

// clusterRequest returns the request from the cluster's objects.
func clusterRequest(s *cluster.Snapshot) (*request, error) {
	if s.NetworkConfig == nil {
		if cause := unseen(s, configObject); cause != "" {
			return nil, fmt.Errorf(
				"networkConfig: cannot read the placements from %s: %s; or set them in the plan",
				configObject,
				cause,
			)
		}
		return nil, fmt.Errorf(
			"networkConfig: the snapshot does not contain %s, because it was recorded for another plan: record it again",
			configObject,
		)
	}
	at := field.NewPath("spec", "networkDiagnostics")
	d := s.NetworkConfig.Diagnostics
	if deeplyEmpty(d) {
		if cause := unseen(s, operatorObject); cause != "" {
			return nil, fmt.Errorf(
				"networkConfig: %s leaves %s empty, and cannot read whether disableNetworkDiagnostics of %s disables the diagnostics: %s",
				configObject,
				at,
				operatorObject,
				cause,
			)
		}
		if flag := s.NetworkConfig.DisableNetworkDiagnostics; flag != nil && *flag {
			r := newRequest(operatorObject, cluster.DiagnosticsDisabled, at)
			r.notes = append(
				r.notes,
				fmt.Sprintf(
					"disabled by spec.disableNetworkDiagnostics of %s, because %s of %s is empty",
					operatorObject,
					at,
					configObject,
				),
			)
			return r, nil
		}
		r := newRequest(configObject, cluster.DiagnosticsNoOpinion, at)
		r.asOperator(s.NetworkConfig)
		r.notes = append(r.notes, fmt.Sprintf("%s of %s is empty: the defaults apply", at, configObject))
		return r, nil
	}
	if d.Mode == cluster.DiagnosticsDisabled && (d.SourcePlacement != nil || d.TargetPlacement != nil) {
		return nil, fmt.Errorf("%s: %s: %w", configObject, at, errDisabledPlacement)
	}
	r := newRequest(configObject, d.Mode, at)
	if r.mode != cluster.DiagnosticsDisabled {
		r.asOperator(s.NetworkConfig)
	}
	if flag := s.NetworkConfig.DisableNetworkDiagnostics; flag != nil && *flag && d.Mode != cluster.DiagnosticsDisabled {
		r.notes = append(
			r.notes,
			fmt.Sprintf(
				"spec.disableNetworkDiagnostics of %s has no effect, because %s of %s takes precedence",
				operatorObject,
				at,
				configObject,
			),
		)
	}
	placements := map[SideName]*cluster.DiagnosticsPlacement{SideSource: d.SourcePlacement, SideTarget: d.TargetPlacement}
	for _, side := range Sides {
		given := placements[side]
		if given == nil {
			continue
		}
		p := r.sides[side]
		if given.NodeSelector != nil {
			p.NodeSelector = given.NodeSelector
			if len(p.NodeSelector) == 0 {
				r.notes = append(r.notes, fmt.Sprintf("%s: the operator sets the empty selector literally: the pods of %s are "+
					"not restricted to Linux nodes", r.at[side].Child("nodeSelector"), workloads[side].name))
			}
		}
		if given.Tolerations != nil {
			p.Tolerations = given.Tolerations
		}
		for i, t := range given.Tolerations {
			if t.TolerationSeconds != nil {
				r.notes = append(r.notes, fmt.Sprintf("%s: the operator writes it as a string, which the API server may refuse",
					r.at[side].Child("tolerations").Index(i).Child("tolerationSeconds")))
			}
		}
		r.sides[side] = p
	}
	return r, nil
}

// asOperator gives the sides what the operator's workloads have beyond nodeSelector and tolerations: that of the live
// objects, or, where one is unknown, that of the operator's manifests (cluster-network-operator,
// bindata/network-diagnostics).
func (r *request) asOperator(c *cluster.NetworkConfig) {
	for side, live := range map[SideName]*corev1.PodSpec{SideSource: c.Source, SideTarget: c.Target} {
		p := r.sides[side]
		if live == nil {
			p.PriorityClassName = "openshift-user-critical"
			p.Resources.Requests = map[string]string{"cpu": "10m", "memory": "40Mi"}
			if side == SideTarget {
				p.Resources.Requests["memory"] = "15Mi"
				p.Affinity = []byte(noDPU)
			}
			r.sides[side] = p
			continue
		}
		p.PriorityClassName = live.PriorityClassName
		all := resourcehelper.PodRequests(&corev1.Pod{Spec: *live}, resourcehelper.PodResourcesOptions{})
		p.Resources.Requests = words(all)
		if live.Affinity != nil && live.Affinity.NodeAffinity != nil {
			p.Affinity, _ = json.Marshal(live.Affinity.NodeAffinity) // it was decoded from JSON
		}
		r.sides[side] = p
	}
}

// noDPU is the node affinity of the operator's targets: they do not run on DPUs and their hosts.
const noDPU = `{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[` +
	`{"key":"network.operator.openshift.io/dpu-host","operator":"DoesNotExist"},` +
	`{"key":"network.operator.openshift.io/dpu","operator":"DoesNotExist"}]}]}}`

// words are the quantities as text; nil for none.
func words(list corev1.ResourceList) map[string]string {
	if len(list) == 0 {
		return nil
	}
	return quantities(list)
}

// deeplyEmpty reports whether no field is set. An empty selector and an empty list of tolerations are set, as for the
// operator.
func deeplyEmpty(d *cluster.NetworkDiagnostics) bool {
	empty := func(p *cluster.DiagnosticsPlacement) bool {
		return p == nil || p.NodeSelector == nil && p.Tolerations == nil
	}
	return d == nil || d.Mode == cluster.DiagnosticsNoOpinion && empty(d.SourcePlacement) && empty(d.TargetPlacement)
}

// unseen returns the reason why something could not be read, or "".
func unseen(s *cluster.Snapshot, what string) string {
	for _, u := range s.Unseen {
		if u.What == what {
			return u.Cause
		}
	}
	return ""
}
