// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// decoded is JSON as the dynamic client decodes an object.
func decoded(t testing.TB, text string) map[string]any {
	t.Helper()
	var object map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	return object
}

func TestReadDiagnostics(t *testing.T) {
	for name, tt := range map[string]struct {
		object  string
		want    *cluster.NetworkDiagnostics
		unknown []string
		err     []string // all of its lines
	}{
		"no spec":      {object: `{}`},
		"no field":     {object: `{"spec":{"clusterNetwork":[]}}`},
		"a null":       {object: `{"spec":{"networkDiagnostics":null}}`},
		"empty":        {object: `{"spec":{"networkDiagnostics":{}}}`, want: &cluster.NetworkDiagnostics{}},
		"what Go says": {object: `{"spec":{"networkDiagnostics":{"mode":"","sourcePlacement":{"nodeSelector":null,"tolerations":null}}}}`, want: &cluster.NetworkDiagnostics{SourcePlacement: &cluster.DiagnosticsPlacement{}}},
		"the document's example": {
			object: `{"spec":{"networkDiagnostics":{"mode":"All",
				"sourcePlacement":{"nodeSelector":{"kubernetes.io/os":"linux","node-role.kubernetes.io/infra":""}},
				"targetPlacement":{"nodeSelector":{"kubernetes.io/os":"linux"},"tolerations":[{"operator":"Exists"}]}}}}`,
			want: &cluster.NetworkDiagnostics{
				Mode:            cluster.DiagnosticsAll,
				SourcePlacement: &cluster.DiagnosticsPlacement{NodeSelector: map[string]string{"kubernetes.io/os": "linux", "node-role.kubernetes.io/infra": ""}},
				TargetPlacement: &cluster.DiagnosticsPlacement{NodeSelector: map[string]string{"kubernetes.io/os": "linux"}, Tolerations: []checkup.Toleration{{Operator: "Exists"}}},
			},
		},
		"every field of a toleration": {
			object: `{"spec":{"networkDiagnostics":{"targetPlacement":{"nodeSelector":{},"tolerations":[{"key":"k","operator":"Equal","value":"v","effect":"NoExecute","tolerationSeconds":300}]}}}}`,
			want: &cluster.NetworkDiagnostics{TargetPlacement: &cluster.DiagnosticsPlacement{
				NodeSelector: map[string]string{},
				Tolerations:  []checkup.Toleration{{Key: "k", Operator: "Equal", Value: "v", Effect: "NoExecute", TolerationSeconds: new(int64(300))}},
			}},
		},
		"an empty list is not left out": {
			object: `{"spec":{"networkDiagnostics":{"targetPlacement":{"tolerations":[]}}}}`,
			want:   &cluster.NetworkDiagnostics{TargetPlacement: &cluster.DiagnosticsPlacement{Tolerations: []checkup.Toleration{}}},
		},
		"fields of a later version": {
			object: `{"spec":{"networkDiagnostics":{"mode":"All","interval":"1m","sourcePlacement":{"affinity":{}},"targetPlacement":{"tolerations":[{"operator":"Exists","until":"noon"}]}}}}`,
			want: &cluster.NetworkDiagnostics{Mode: cluster.DiagnosticsAll, SourcePlacement: &cluster.DiagnosticsPlacement{},
				TargetPlacement: &cluster.DiagnosticsPlacement{Tolerations: []checkup.Toleration{{Operator: "Exists"}}}},
			unknown: []string{"spec.networkDiagnostics.interval", "spec.networkDiagnostics.sourcePlacement.affinity", "spec.networkDiagnostics.targetPlacement.tolerations[0].until"},
		},
		"an unknown mode": {
			object: `{"spec":{"networkDiagnostics":{"mode":"Some"}}}`,
			err:    []string{`network.config.openshift.io/cluster: spec.networkDiagnostics.mode: Unsupported value: "Some": supported values: "", "All", "Disabled"`},
		},
		"a quoted number": {
			object: `{"spec":{"networkDiagnostics":{"targetPlacement":{"tolerations":[{"operator":"Exists"},{"effect":"NoExecute","tolerationSeconds":"300"}]}}}}`,
			err:    []string{`network.config.openshift.io/cluster: spec.networkDiagnostics.targetPlacement.tolerations[1].tolerationSeconds: Invalid value: "300": must be a whole number`},
		},
		"spec is no object":               {object: `{"spec":[]}`, err: []string{`network.config.openshift.io/cluster: spec: Invalid value: []: must be an object`}},
		"networkDiagnostics is no object": {object: `{"spec":{"networkDiagnostics":"All"}}`, err: []string{`network.config.openshift.io/cluster: spec.networkDiagnostics: Invalid value: "All": must be an object`}},
		"everything is wrong": {
			object: `{"spec":{"networkDiagnostics":{"mode":7,"sourcePlacement":"infra","targetPlacement":{"nodeSelector":{"a":1,"b":null},"tolerations":[null,3,{"key":1.5,"operator":true,"value":[],"effect":{},"tolerationSeconds":1.5}]}}}}`,
			err: []string{
				`spec.networkDiagnostics.mode: Invalid value: 7: must be a string`,
				`spec.networkDiagnostics.sourcePlacement: Invalid value: "infra": must be an object`,
				`spec.networkDiagnostics.targetPlacement.nodeSelector[a]: Invalid value: 1: must be a string`,
				`spec.networkDiagnostics.targetPlacement.nodeSelector[b]: Invalid value: null: must be a string`,
				`spec.networkDiagnostics.targetPlacement.tolerations[0]: Invalid value: null: must be an object`,
				`spec.networkDiagnostics.targetPlacement.tolerations[1]: Invalid value: 3: must be an object`,
				`spec.networkDiagnostics.targetPlacement.tolerations[2].key: Invalid value: 1.5: must be a string`,
				`spec.networkDiagnostics.targetPlacement.tolerations[2].operator: Invalid value: true: must be a string`,
				`spec.networkDiagnostics.targetPlacement.tolerations[2].value: Invalid value: []: must be a string`,
				`spec.networkDiagnostics.targetPlacement.tolerations[2].effect: Invalid value: {}: must be a string`,
				`spec.networkDiagnostics.targetPlacement.tolerations[2].tolerationSeconds: Invalid value: 1.5: must be a whole number`,
			},
		},
		"tolerations are no list": {
			object: `{"spec":{"networkDiagnostics":{"sourcePlacement":{"tolerations":{"operator":"Exists"}}}}}`,
			err:    []string{`spec.networkDiagnostics.sourcePlacement.tolerations: Invalid value: {"operator":"Exists"}: must be a list`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, unknown, err := readDiagnostics(decoded(t, tt.object))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("diagnostics (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.unknown, unknown); diff != "" {
				t.Errorf("unknown fields (-want +got):\n%s", diff)
			}
			if (err == nil) != (tt.err == nil) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			for _, line := range tt.err {
				if !strings.Contains(err.Error(), line) {
					t.Errorf("error %v\nlacks %s", err, line)
				}
			}
			if err != nil && strings.Count(err.Error(), "spec") != len(tt.err) {
				t.Errorf("error %v\nhas not %d problems", err, len(tt.err))
			}
		})
	}
}

func TestReadLegacyFlag(t *testing.T) {
	for object, want := range map[string]*bool{
		`{}`:            nil,
		`{"spec":{}}`:   nil,
		`{"spec":null}`: nil,
		`{"spec":{"disableNetworkDiagnostics":null}}`:  nil,
		`{"spec":{"disableNetworkDiagnostics":true}}`:  new(true),
		`{"spec":{"disableNetworkDiagnostics":false}}`: new(false),
	} {
		got, err := readLegacyFlag(decoded(t, object))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", object, err, diff)
		}
	}
	_, err := readLegacyFlag(decoded(t, `{"spec":{"disableNetworkDiagnostics":"true"}}`))
	if want := `network.operator.openshift.io/cluster: spec.disableNetworkDiagnostics: Invalid value: "true": must be a boolean`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// FuzzReadDiagnostics: whatever an object holds, reading it does not panic; what
// is read without an error says the same when it is written and read again, and
// Expand makes either a worksheet or an error of it.
func FuzzReadDiagnostics(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"spec":null}`, `{"spec":{"networkDiagnostics":{"mode":"Disabled","sourcePlacement":{}}}}`,
		`{"spec":{"networkDiagnostics":{"mode":"All","sourcePlacement":{"nodeSelector":{"a":""},"tolerations":[{"key":"k","operator":"Exists","effect":"NoExecute","tolerationSeconds":-1}]}}}}`,
		`{"spec":{"networkDiagnostics":{"targetPlacement":{"tolerations":[null,{"operator":"Near"}]}}}}`,
		`{"spec":{"networkDiagnostics":[1e400,"\u0000"]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var object map[string]any
		if kjson.UnmarshalCaseSensitivePreserveInts(data, &object) != nil {
			return
		}
		d, _, err := readDiagnostics(object)
		if err != nil {
			if d != nil || !strings.HasPrefix(err.Error(), configObject+": ") {
				t.Fatalf("%+v, error %v", d, err)
			}
			return
		}
		raw, err := json.Marshal(map[string]any{"spec": map[string]any{"networkDiagnostics": d}})
		if err != nil {
			t.Fatal(err)
		}
		again, unknown, err := readDiagnostics(decoded(t, string(raw)))
		if err != nil || len(unknown) > 0 {
			t.Fatalf("read again: %v, unknown %v", err, unknown)
		}
		if diff := cmp.Diff(d, again); diff != "" {
			t.Fatalf("read again (-first +second):\n%s", diff)
		}
		s := &cluster.Snapshot{Nodes: []cluster.Node{{Name: "n", Labels: linuxLabels(), Requested: nothing}}, NetworkConfig: &cluster.NetworkConfig{Diagnostics: d}}
		w, _, err := Expand(planOf(&Spec{NetworkConfig: true}), "placement", s)
		if (w == nil) == (err == nil) {
			t.Fatalf("worksheet %v, error %v", w, err)
		}
	})
}

// TestRequest: what is placed, by the plan and by the cluster's objects,
// their precedence included.
func TestRequest(t *testing.T) {
	const linux, infra = "kubernetes.io/os", "node-role.kubernetes.io/infra"
	everything := []checkup.Toleration{{Operator: "Exists"}}
	source, target := SourceDefaults(), TargetDefaults()
	onInfra := map[string]string{infra: ""}
	// by is a side as the operator creates it: its manifests, with these fields.
	by := func(side SideName, selector map[string]string, tolerations []checkup.Toleration) PodPlacement {
		p := PodPlacement{NodeSelector: selector, Tolerations: tolerations, PriorityClassName: "openshift-user-critical"}
		p.Resources.Requests = map[string]string{"cpu": "10m", "memory": "40Mi"}
		if side == SideTarget {
			p.Resources.Requests["memory"] = "15Mi"
			p.Affinity = json.RawMessage(`{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[` +
				`{"key":"network.operator.openshift.io/dpu-host","operator":"DoesNotExist"},{"key":"network.operator.openshift.io/dpu","operator":"DoesNotExist"}]}]}}`)
		}
		return p
	}
	onLinux := map[string]string{linux: "linux"}
	theirSource, theirTarget := by(SideSource, onLinux, nil), by(SideTarget, onLinux, everything)
	forbidden := func(s *cluster.Snapshot, what string) { s.AddUnseen(what, errorText("missing a right")) }

	for name, tt := range map[string]struct {
		check   Spec
		config  *cluster.NetworkConfig
		unseen  string
		origin  string
		mode    cluster.DiagnosticsMode
		source  PodPlacement
		target  PodPlacement
		notes   []string
		problem string
	}{
		"the plan's defaults": {origin: "plan", mode: "All", source: source, target: target},
		"the plan's own": {
			check: Spec{Mode: "All", SourcePlacement: &PodPlacement{NodeSelector: onInfra, PriorityClassName: "p"}, TargetPlacement: &PodPlacement{NodeSelector: onInfra}},
			// The schema has filled in the default tolerations where they are left out.
			origin: "plan", mode: "All", source: PodPlacement{NodeSelector: onInfra, PriorityClassName: "p"}, target: PodPlacement{NodeSelector: onInfra},
		},
		"an empty selector in the plan": {
			check:  Spec{SourcePlacement: &PodPlacement{NodeSelector: map[string]string{}}, TargetPlacement: &PodPlacement{Tolerations: everything}},
			origin: "plan", mode: "All", source: source, target: target,
		},
		"disabled by the plan": {check: Spec{Mode: "Disabled"}, origin: "plan", mode: "Disabled", source: source, target: target},
		"disabled with placements": {
			check:   Spec{Mode: "Disabled", TargetPlacement: &PodPlacement{}},
			problem: "cannot set networkDiagnostics.sourcePlacement and networkDiagnostics.targetPlacement when networkDiagnostics.mode is Disabled",
		},
		"the cluster's": {
			check:  Spec{NetworkConfig: true},
			config: &cluster.NetworkConfig{Diagnostics: &cluster.NetworkDiagnostics{Mode: "All", SourcePlacement: &cluster.DiagnosticsPlacement{NodeSelector: onInfra}}},
			origin: configObject, mode: "All", source: by(SideSource, onInfra, nil), target: theirTarget,
		},
		"the operator's live workloads": {
			check: Spec{NetworkConfig: true},
			config: &cluster.NetworkConfig{
				Diagnostics: &cluster.NetworkDiagnostics{Mode: "All", TargetPlacement: &cluster.DiagnosticsPlacement{NodeSelector: onInfra}},
				Source:      &corev1.PodSpec{PriorityClassName: "later"},
				Target: &corev1.PodSpec{
					Containers: []corev1.Container{
						{Name: "a", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("20m")}}},
						{Name: "b", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("30m")}}},
					},
					Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
						NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "dpu", Operator: "DoesNotExist"}}}},
					}}},
				},
			},
			origin: configObject, mode: "All",
			source: PodPlacement{NodeSelector: onLinux, PriorityClassName: "later"},
			target: PodPlacement{
				NodeSelector: onInfra, Tolerations: everything, Resources: checkup.Resources{Requests: map[string]string{"cpu": "50m"}},
				Affinity: json.RawMessage(`{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"dpu","operator":"DoesNotExist"}]}]}}`),
			},
		},
		"a toleration for a time": {
			check: Spec{NetworkConfig: true},
			config: &cluster.NetworkConfig{Diagnostics: &cluster.NetworkDiagnostics{SourcePlacement: &cluster.DiagnosticsPlacement{
				Tolerations: []checkup.Toleration{{Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(60))}},
			}}},
			origin: configObject, mode: "All", target: theirTarget,
			source: by(SideSource, onLinux, []checkup.Toleration{{Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(60))}}),
			notes:  []string{"spec.networkDiagnostics.sourcePlacement.tolerations[0].tolerationSeconds: the operator writes it as a string, which the API server may refuse"},
		},
		"what the cluster leaves out": {
			check: Spec{NetworkConfig: true},
			config: &cluster.NetworkConfig{Diagnostics: &cluster.NetworkDiagnostics{
				SourcePlacement: &cluster.DiagnosticsPlacement{NodeSelector: map[string]string{}, Tolerations: everything},
				TargetPlacement: &cluster.DiagnosticsPlacement{NodeSelector: onInfra},
			}},
			origin: configObject, mode: "All",
			source: by(SideSource, map[string]string{}, everything),
			target: by(SideTarget, onInfra, everything),
			notes:  []string{"spec.networkDiagnostics.sourcePlacement.nodeSelector: the operator sets the empty selector literally: the pods of network-check-source are not restricted to Linux nodes"},
		},
		"no toleration is not a left out one": {
			check:  Spec{NetworkConfig: true},
			config: &cluster.NetworkConfig{Diagnostics: &cluster.NetworkDiagnostics{TargetPlacement: &cluster.DiagnosticsPlacement{Tolerations: []checkup.Toleration{}}}, DisableNetworkDiagnostics: new(true)},
			origin: configObject, mode: "All", source: theirSource,
			target: by(SideTarget, onLinux, []checkup.Toleration{}),
			notes:  []string{"spec.disableNetworkDiagnostics of network.operator.openshift.io/cluster has no effect, because spec.networkDiagnostics of network.config.openshift.io/cluster takes precedence"},
		},
		"nothing in the cluster": {
			check: Spec{NetworkConfig: true}, config: &cluster.NetworkConfig{},
			origin: configObject, mode: "All", source: theirSource, target: theirTarget,
			notes: []string{"spec.networkDiagnostics of network.config.openshift.io/cluster is empty: the defaults apply"},
		},
		"the legacy flag, false": {
			check: Spec{NetworkConfig: true}, config: &cluster.NetworkConfig{DisableNetworkDiagnostics: new(false)},
			origin: configObject, mode: "All", source: theirSource, target: theirTarget,
			notes: []string{"spec.networkDiagnostics of network.config.openshift.io/cluster is empty: the defaults apply"},
		},
		"the legacy flag": {
			check: Spec{NetworkConfig: true}, config: &cluster.NetworkConfig{DisableNetworkDiagnostics: new(true)},
			origin: operatorObject, mode: "Disabled", source: source, target: target,
			notes: []string{"disabled by spec.disableNetworkDiagnostics of network.operator.openshift.io/cluster, because spec.networkDiagnostics of network.config.openshift.io/cluster is empty"},
		},
		"the legacy flag, and what is deeply empty": {
			check: Spec{NetworkConfig: true},
			config: &cluster.NetworkConfig{
				Diagnostics: &cluster.NetworkDiagnostics{
					SourcePlacement: &cluster.DiagnosticsPlacement{}, TargetPlacement: &cluster.DiagnosticsPlacement{},
				},
				DisableNetworkDiagnostics: new(true),
			},
			origin: operatorObject, mode: "Disabled", source: source, target: target,
			notes: []string{"disabled by spec.disableNetworkDiagnostics of network.operator.openshift.io/cluster, because spec.networkDiagnostics of network.config.openshift.io/cluster is empty"},
		},
		"the legacy flag, and an empty selector": {
			check: Spec{NetworkConfig: true},
			config: &cluster.NetworkConfig{
				Diagnostics:               &cluster.NetworkDiagnostics{TargetPlacement: &cluster.DiagnosticsPlacement{NodeSelector: map[string]string{}}},
				DisableNetworkDiagnostics: new(true),
			},
			origin: configObject, mode: "All", source: theirSource, target: by(SideTarget, map[string]string{}, everything),
			notes: []string{
				"spec.disableNetworkDiagnostics of network.operator.openshift.io/cluster has no effect, because spec.networkDiagnostics of network.config.openshift.io/cluster takes precedence",
				"spec.networkDiagnostics.targetPlacement.nodeSelector: the operator sets the empty selector literally: the pods of network-check-target are not restricted to Linux nodes",
			},
		},
		"the legacy flag, and a mode": {
			check: Spec{NetworkConfig: true}, config: &cluster.NetworkConfig{Diagnostics: &cluster.NetworkDiagnostics{Mode: "All"}, DisableNetworkDiagnostics: new(true)},
			origin: configObject, mode: "All", source: theirSource, target: theirTarget,
			notes: []string{"spec.disableNetworkDiagnostics of network.operator.openshift.io/cluster has no effect, because spec.networkDiagnostics of network.config.openshift.io/cluster takes precedence"},
		},
		"disabled by the cluster": {
			check: Spec{NetworkConfig: true}, config: &cluster.NetworkConfig{Diagnostics: &cluster.NetworkDiagnostics{Mode: "Disabled"}, DisableNetworkDiagnostics: new(true)},
			origin: configObject, mode: "Disabled", source: source, target: target,
		},
		"disabled by the cluster, with placements": {
			check: Spec{NetworkConfig: true}, config: &cluster.NetworkConfig{Diagnostics: &cluster.NetworkDiagnostics{Mode: "Disabled", SourcePlacement: &cluster.DiagnosticsPlacement{}}},
			problem: "network.config.openshift.io/cluster: spec.networkDiagnostics: cannot set networkDiagnostics.sourcePlacement and networkDiagnostics.targetPlacement when networkDiagnostics.mode is Disabled",
		},
		"the cluster's object is not visible": {
			check: Spec{NetworkConfig: true}, unseen: configObject,
			problem: "networkConfig: cannot read the placements from network.config.openshift.io/cluster: missing a right; or set them in the plan",
		},
		"a snapshot for another plan": {
			check:   Spec{NetworkConfig: true},
			problem: "networkConfig: the snapshot does not contain network.config.openshift.io/cluster, because it was recorded for another plan: record it again",
		},
		"the legacy flag is not visible, and decides": {
			check: Spec{NetworkConfig: true}, config: &cluster.NetworkConfig{}, unseen: operatorObject,
			problem: "networkConfig: network.config.openshift.io/cluster leaves spec.networkDiagnostics empty, and cannot read whether disableNetworkDiagnostics of network.operator.openshift.io/cluster disables the diagnostics: missing a right",
		},
		"the legacy flag is not visible, and does not matter": {
			check: Spec{NetworkConfig: true}, config: &cluster.NetworkConfig{Diagnostics: &cluster.NetworkDiagnostics{Mode: "All"}}, unseen: operatorObject,
			origin: configObject, mode: "All", source: theirSource, target: theirTarget,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &cluster.Snapshot{NetworkConfig: tt.config}
			if tt.unseen != "" {
				forbidden(s, tt.unseen)
			}
			r, err := requestOf(&tt.check, s)
			if tt.problem != "" {
				if err == nil || err.Error() != tt.problem {
					t.Fatalf("error %v, want %s", err, tt.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := &request{origin: tt.origin, mode: tt.mode, notes: tt.notes, sides: map[SideName]PodPlacement{SideSource: tt.source, SideTarget: tt.target}}
			at := r.at
			r.at = nil
			if diff := cmp.Diff(want, r, cmp.AllowUnexported(request{}), cmp.Comparer(func(a, b *field.Path) bool { return a.String() == b.String() })); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			path := "targetPlacement"
			if tt.check.NetworkConfig {
				path = "spec.networkDiagnostics.targetPlacement"
			}
			if got := at[SideTarget].String(); got != path {
				t.Errorf("targets are reported at %s, want %s", got, path)
			}
		})
	}
}
