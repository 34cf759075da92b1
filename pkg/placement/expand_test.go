// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// nothing is requested on a node; the node was surveyed.
var nothing = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}

func linuxLabels(more ...string) map[string]string {
	labels := map[string]string{"kubernetes.io/os": "linux"}
	for i := 0; i < len(more); i += 2 {
		labels[more[i]] = more[i+1]
	}
	return labels
}

func planOf(c *Spec) *checkup.Plan {
	return &checkup.Plan{Name: "plan", Checks: map[string]checkup.Check{"placement": {Spec: c}}}
}

// node is one that takes 110 pods, has 4 cpus and 8 GiB, and nothing on it.
func node(name string, labels map[string]string, taints ...corev1.Taint) cluster.Node {
	return cluster.Node{
		Name: name, Labels: labels, Taints: taints, Ready: corev1.ConditionTrue, Requested: nothing,
		Allocatable: corev1.ResourceList{
			corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
		},
	}
}

func taint(key string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Effect: effect}
}

// openshift is a cluster with a control plane, infrastructure nodes and workers
// in two zones.
func openshift() *cluster.Snapshot {
	const control, infra, worker = "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/infra", "node-role.kubernetes.io/worker"
	zone := func(i int) string { return []string{"zone-a", "zone-b"}[i%2] }
	s := &cluster.Snapshot{APIVersion: checkup.APIVersion, Kind: cluster.SnapshotKind}
	for i := range 3 {
		s.Nodes = append(s.Nodes, node(fmt.Sprintf("master-%d", i), linuxLabels(control, "", corev1.LabelTopologyZone, zone(i)), taint(control, corev1.TaintEffectNoSchedule)))
	}
	for i := range 2 {
		s.Nodes = append(s.Nodes, node(fmt.Sprintf("infra-%d", i), linuxLabels(infra, "", corev1.LabelTopologyZone, zone(i)), taint(infra, corev1.TaintEffectNoSchedule)))
	}
	for i := range 4 {
		s.Nodes = append(s.Nodes, node(fmt.Sprintf("worker-%d", i), linuxLabels(worker, "", corev1.LabelTopologyZone, zone(i))))
	}
	s.Nodes = append(s.Nodes, node("windows-0", map[string]string{corev1.LabelOSStable: "windows", worker: "", corev1.LabelTopologyZone: "zone-b"}))
	s.Normalize()
	return s
}

// golden compares with a file, or writes it where UPDATE is set.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; UPDATE=1 writes it):\n%s", path, diff)
	}
}

// TestWorksheet is a worksheet in full, the pods included.
func TestWorksheet(t *testing.T) {
	s := openshift()
	for i := range s.Nodes {
		switch n := &s.Nodes[i]; n.Name {
		case "worker-0":
			n.Requested = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("12"), corev1.ResourceCPU: resource.MustParse("3900m")}
		case "worker-1":
			n.HostPorts = []cluster.HostPort{{Port: 9100, Protocol: corev1.ProtocolTCP}}
		case "worker-2":
			n.Taints = []corev1.Taint{{Key: "example.com/leaving", Value: "soon", Effect: corev1.TaintEffectNoExecute}}
		case "worker-3":
			n.Unschedulable = true
			n.Taints = []corev1.Taint{taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)}
		}
	}
	c := &Spec{
		SourcePlacement: &PodPlacement{
			NodeSelector: linuxLabels("node-role.kubernetes.io/worker", ""),
			Tolerations:  []checkup.Toleration{{Key: "example.com/leaving", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(60))}},
			Affinity:     json.RawMessage(`{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"topology.kubernetes.io/zone","operator":"In","values":["zone-a","zone-b"]}]}]}}`),
			TopologySpreadConstraints: []checkup.TopologySpreadConstraint{
				{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: "DoNotSchedule"},
			},
			Resources:         checkup.Resources{Requests: map[string]string{"cpu": "0.5"}, Limits: map[string]string{"memory": "64Mi"}},
			PriorityClassName: "openshift-user-critical",
			HostPorts:         []int{9100},
		},
		Expect:   Expect{MinSources: new(2)},
		Timeouts: checkup.Timeouts{Setup: checkup.Duration(1e9), Probe: checkup.Duration(2e9)},
	}
	w, warnings, err := Expand(planOf(c), "placement", s)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"source: 2 nodes have no room for the pod: it would evict pods of a lower priority than that of openshift-user-critical, which the prediction ignores"}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	raw, err := json.MarshalIndent(w, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "worksheet.json", append(raw, '\n'))
	again, _, err := Expand(planOf(c), "placement", s)
	if err != nil {
		t.Fatal(err)
	}
	if twice, err := json.MarshalIndent(again, "", " "); err != nil || !bytes.Equal(raw, twice) {
		t.Errorf("the same plan and snapshot gave other bytes: %v", err)
	}
}

// TestDisabled: nothing is placed, and a demand on what is not placed cannot be met.
func TestDisabled(t *testing.T) {
	c := &Spec{NetworkConfig: true, Expect: Expect{MinTargets: new(0)}}
	s := openshift()
	s.NetworkConfig = &cluster.NetworkConfig{Diagnostics: &cluster.NetworkDiagnostics{Mode: cluster.DiagnosticsDisabled}}
	w, warnings, err := Expand(planOf(c), "placement", s)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	want := &Sheet{Origin: "network.config.openshift.io/cluster", Mode: cluster.DiagnosticsDisabled, Nodes: len(s.Nodes)}
	if got, err := SheetOf(w); err != nil || !cmp.Equal(want, got) || w.Units != nil {
		t.Errorf("units %q, error %v, sheet (-want +got):\n%s", w.Units, err, cmp.Diff(want, got))
	}
	if n := w.CountPairs(); n != 0 {
		t.Errorf("the worksheet has %d pairs", n)
	}
	c.Expect.MinSources = new(2)
	_, _, err = Expand(planOf(c), "placement", s)
	if words := "source: the plan demands 2 nodes that can take one, but network.config.openshift.io/cluster disables the diagnostics"; err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("%v, want %q", err, words)
	}
}

// TestWarnings are what a reader should know beyond the sheet.
func TestWarnings(t *testing.T) {
	zones := json.RawMessage(`{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"topology.kubernetes.io/zone","operator":"Exists"}]}]}}`)
	for name, tt := range map[string]struct {
		check  Spec
		change func(*cluster.Snapshot)
		want   []string
	}{
		"nothing to say": {},
		"demands that leave out no node": {
			check: Spec{SourcePlacement: &PodPlacement{NodeSelector: linuxLabels("all", "alike"), Affinity: zones}},
			change: func(s *cluster.Snapshot) {
				for i := range s.Nodes {
					s.Nodes[i].Labels["all"] = "alike"
				}
			},
			want: []string{"source: its pod can run on any of 4 nodes: nodeSelector all=alike excludes no node", "source: its pod can run on any of 4 nodes: affinity excludes no node"},
		},
		"resource requests cannot be read": {
			change: func(s *cluster.Snapshot) {
				s.AddUnseen(requestedResources, errorText("missing the verb list on pods"))
				for i := range s.Nodes {
					s.Nodes[i].Requested = nil
				}
			},
			want: []string{
				"source: cannot read resource requests of the pods on the nodes: missing the verb list on pods",
				"target: cannot read resource requests of the pods on the nodes: missing the verb list on pods",
			},
		},
		"what is requested does not matter": {
			check: Spec{
				SourcePlacement: &PodPlacement{NodeSelector: map[string]string{"no": "where"}}, TargetPlacement: &PodPlacement{NodeSelector: map[string]string{"no": "where"}},
			},
			change: func(s *cluster.Snapshot) {
				s.AddUnseen(requestedResources, errorText("missing the verb list on pods"))
				for i := range s.Nodes {
					s.Nodes[i].Requested = nil
				}
			},
		},
		"a field of a later version": {
			check: Spec{NetworkConfig: true},
			change: func(s *cluster.Snapshot) {
				s.NetworkConfig = &cluster.NetworkConfig{
					Diagnostics: &cluster.NetworkDiagnostics{Mode: "All"}, Unknown: []string{"spec.networkDiagnostics.interval"},
				}
				s.AddUnseen("something of another check", errorText("missing a right"))
			},
			want: []string{"network.config.openshift.io/cluster: spec.networkDiagnostics.interval: unknown field: ignored"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openshift()
			if tt.change != nil {
				tt.change(s)
			}
			w, warnings, err := Expand(planOf(&tt.check), "placement", s)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, warnings); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			sheet, err := SheetOf(w)
			if err != nil {
				t.Fatal(err)
			}
			for _, side := range sheet.Sides {
				if unknown := len(side.Unknown) > 0; unknown != (unseen(s, requestedResources) != "" && len(side.Eligible) > 0) {
					t.Errorf("%s: unknown is %q", side.Side, side.Unknown)
				}
			}
		})
	}
}

// TestProblems: everything that is wrong with a placement is reported at once, with
// its path.
func TestProblems(t *testing.T) {
	bad := PodPlacement{
		NodeSelector: map[string]string{"no label": "x", "a": "b c"},
		Tolerations: []checkup.Toleration{
			{}, {Key: "a b", Operator: "Exists", Value: "v"}, {Key: "k", Value: "b c"}, {Key: "k", Operator: "Near"},
			{Key: "k", Effect: "Soon"}, {Key: "k", Effect: "NoSchedule", TolerationSeconds: new(int64(1))},
			{Key: "k", Effect: "NoExecute", TolerationSeconds: new(int64(-1))},
		},
		Affinity: json.RawMessage(`{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Gt","values":["x"]}]}]}}`),
		TopologySpreadConstraints: []checkup.TopologySpreadConstraint{
			{TopologyKey: "", WhenUnsatisfiable: "Never"}, {MaxSkew: 1, TopologyKey: "a b", WhenUnsatisfiable: "DoNotSchedule"},
		},
		Resources:         checkup.Resources{Requests: map[string]string{"cpu": "much", "memory": "-1"}, Limits: map[string]string{"cpu": "more"}},
		PriorityClassName: "Very High",
		HostPorts:         []int{0, 80, 80, 65536},
	}
	paths := []string{
		"nodeSelector: Invalid value: \"no label\"", "nodeSelector: Invalid value: \"b c\"",
		"tolerations[0].operator: Invalid value", "tolerations[1].key: Invalid value", "tolerations[1].value: Invalid value",
		"tolerations[2].value: Invalid value", "tolerations[3].operator: Unsupported value: \"Near\"", "tolerations[4].effect: Unsupported value: \"Soon\"",
		"tolerations[5].effect: Invalid value", "tolerations[6].tolerationSeconds: Invalid value: -1: is less than 0",
		"affinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]",
		"topologySpreadConstraints[0].maxSkew: Invalid value: 0", "topologySpreadConstraints[0].topologyKey: Required value",
		"topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"Never\"", "topologySpreadConstraints[1].topologyKey: Invalid value: \"a b\"",
		"resources.requests[cpu]: Invalid value: \"much\"", "resources.requests[memory]: Invalid value: \"-1\"", "resources.limits[cpu]: Invalid value: \"more\"",
		"priorityClassName: Invalid value: \"Very High\"", "hostPorts[0]: Invalid value: 0", "hostPorts[2]: Duplicate value: 80", "hostPorts[3]: Invalid value: 65536",
	}
	_, _, err := Expand(planOf(&Spec{SourcePlacement: &bad, TargetPlacement: &bad}), "placement", openshift())
	if err == nil {
		t.Fatal("no error")
	}
	for _, path := range paths {
		for _, side := range []string{"sourcePlacement.", "targetPlacement."} {
			if !strings.Contains(err.Error(), side+path) {
				t.Errorf("no line with %s%s", side, path)
			}
		}
	}
	if got := strings.Count(err.Error(), "\n") + 1; got != 2*len(paths) || t.Failed() {
		t.Errorf("%d problems, want %d:\n%v", got, 2*len(paths), err)
	}

	s := openshift()
	s.NetworkConfig = &cluster.NetworkConfig{Diagnostics: &cluster.NetworkDiagnostics{TargetPlacement: &cluster.DiagnosticsPlacement{Tolerations: []checkup.Toleration{{Key: "k", Operator: "Near"}}}}}
	_, _, err = Expand(planOf(&Spec{NetworkConfig: true}), "placement", s)
	if want := `check "placement": network.config.openshift.io/cluster: spec.networkDiagnostics.targetPlacement.tolerations[0].operator: Unsupported value: "Near": supported values: "Equal", "Exists"`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}

	for want, call := range map[string]func() error{
		`check "mesh": plan plan has no placement check of that name`: func() error {
			_, _, err := Expand(planOf(&Spec{}), "mesh", openshift())
			return err
		},
		`check "placement": the cluster has no nodes`: func() error {
			_, _, err := Expand(planOf(&Spec{}), "placement", &cluster.Snapshot{})
			return err
		},
	} {
		if err := call(); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// randomSnapshot and randomPlacement make the inputs of the property tests.
func randomSnapshot(random *rand.Rand) *cluster.Snapshot {
	s := &cluster.Snapshot{}
	for i := range 1 + random.IntN(12) {
		n := node(fmt.Sprintf("n%02d", i), linuxLabels())
		if random.IntN(2) == 0 {
			n.Labels["disk"] = pick(random, "ssd", "hdd")
		}
		if random.IntN(2) == 0 {
			n.Labels["gen"] = pick(random, "1", "2", "3")
		}
		for range random.IntN(3) {
			n.Taints = append(n.Taints, corev1.Taint{
				Key: pick(random, "dedicated", "gpu"), Value: pick(random, "", "a", "b"),
				Effect: pick(random, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule),
			})
		}
		if random.IntN(6) == 0 {
			n.Unschedulable = true
			n.Taints = append(n.Taints, taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule))
		}
		switch random.IntN(4) {
		case 0:
			n.Requested = nil
		case 1:
			n.Requested = corev1.ResourceList{corev1.ResourcePods: resource.MustParse(pick(random, "3", "110")), corev1.ResourceCPU: resource.MustParse(pick(random, "1", "3500m", "4"))}
			n.HostPorts = []cluster.HostPort{{Port: 80, Protocol: corev1.ProtocolTCP}}
		}
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

func randomToleration(random *rand.Rand) checkup.Toleration {
	t := checkup.Toleration{Key: pick(random, "dedicated", "gpu", corev1.TaintNodeUnschedulable), Effect: pick(random, "", "NoSchedule", "NoExecute")}
	if random.IntN(2) == 0 {
		t.Operator = "Exists"
	} else {
		t.Value = pick(random, "", "a", "b")
	}
	if t.Effect == "NoExecute" && random.IntN(2) == 0 {
		t.TolerationSeconds = new(int64(random.IntN(100)))
	}
	return t
}

func randomPlacement(random *rand.Rand) *PodPlacement {
	p := &PodPlacement{}
	if random.IntN(2) == 0 {
		p.NodeSelector = map[string]string{"disk": pick(random, "ssd", "hdd", "tape")}
	}
	for range random.IntN(4) {
		p.Tolerations = append(p.Tolerations, randomToleration(random))
	}
	if random.IntN(2) == 0 {
		p.Affinity = json.RawMessage(fmt.Sprintf(`{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"gen","operator":%q,"values":["2"]}]},{"matchFields":[{"key":"metadata.name","operator":"In","values":["n03"]}]}]}}`,
			pick(random, "In", "NotIn", "Gt", "Lt")))
	}
	if random.IntN(3) == 0 {
		p.Resources.Requests = map[string]string{"cpu": pick(random, "1", "4", "9")}
	}
	if random.IntN(3) == 0 {
		p.HostPorts = []int{80}
	}
	return p
}

func sides(t *testing.T, source, target *PodPlacement, s *cluster.Snapshot) []Side {
	t.Helper()
	w, _, err := Expand(planOf(&Spec{SourcePlacement: source, TargetPlacement: target}), "placement", s)
	if err != nil {
		t.Fatal(err)
	}
	sheet, err := SheetOf(w)
	if err != nil {
		t.Fatal(err)
	}
	if units := []string{"source", "target"}; !slices.Equal(w.Units, units) {
		t.Errorf("units %q, want %q", w.Units, units)
	}
	return sheet.Sides
}

// TestProperties holds for every cluster and placement.
func TestProperties(t *testing.T) {
	for seed := range uint64(150) {
		random := rand.New(rand.NewPCG(seed, 1))
		s, source, target := randomSnapshot(random), randomPlacement(random), randomPlacement(random)
		got := sides(t, source, target, s)
		for _, side := range got {
			// Every node is in exactly one of eligible and rejected, and later are some
			// of the eligible ones.
			var names []string
			for _, group := range side.Rejected {
				if len(group.Reasons) == 0 || len(group.Nodes) == 0 {
					t.Fatalf("seed %d: %s: %+v", seed, side.Side, group)
				}
				names = append(names, group.Nodes...)
			}
			names = append(names, side.Eligible...)
			slices.Sort(names)
			var all []string
			for _, n := range s.Nodes {
				all = append(all, n.Name)
			}
			if diff := cmp.Diff(all, names); diff != "" {
				t.Fatalf("seed %d: %s: nodes (-all +reported):\n%s", seed, side.Side, diff)
			}
			for _, group := range side.Later {
				for _, n := range group.Nodes {
					if !slices.Contains(side.Eligible, n) {
						t.Fatalf("seed %d: %s: %s is evicted later, but is not eligible", seed, side.Side, n)
					}
				}
			}
			if !slices.IsSorted(side.Eligible) {
				t.Fatalf("seed %d: %s: eligible nodes are not sorted: %q", seed, side.Side, side.Eligible)
			}
		}

		// The order of the nodes changes nothing.
		shuffled := *s
		shuffled.Nodes = slices.Clone(s.Nodes)
		random.Shuffle(len(shuffled.Nodes), func(i, j int) {
			shuffled.Nodes[i], shuffled.Nodes[j] = shuffled.Nodes[j], shuffled.Nodes[i]
		})
		if diff := cmp.Diff(got, sides(t, source, target, &shuffled)); diff != "" {
			t.Fatalf("seed %d: nodes in another order (-first +second):\n%s", seed, diff)
		}

		// One more toleration takes no node away.
		more := *source
		more.Tolerations = append(slices.Clone(source.Tolerations), randomToleration(random))
		after := sides(t, &more, target, s)[0]
		for _, n := range got[0].Eligible {
			if !slices.Contains(after.Eligible, n) {
				t.Fatalf("seed %d: with toleration %+v more, %s is not eligible any more: %+v", seed, more.Tolerations[len(source.Tolerations)], n, after.Rejected)
			}
		}
	}
}

// BenchmarkExpand is a dry run of both sides on a cluster of nodes of which a
// third has taints, and of which each has labels of its own.
func BenchmarkExpand(b *testing.B) {
	for _, nodes := range []int{5_000, 10_000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			s := &cluster.Snapshot{}
			for i := range nodes {
				n := node(fmt.Sprintf("node-%05d", i), linuxLabels(corev1.LabelHostname, fmt.Sprintf("node-%05d", i), corev1.LabelTopologyZone, fmt.Sprintf("zone-%d", i%3), "disk", []string{"ssd", "hdd"}[i%2]))
				if i%3 == 0 {
					n.Taints = []corev1.Taint{{Key: "dedicated", Value: fmt.Sprint(i % 5), Effect: corev1.TaintEffectNoSchedule}}
				}
				n.Requested = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("30"), corev1.ResourceCPU: *resource.NewMilliQuantity(int64(i%4096), resource.DecimalSI)}
				s.Nodes = append(s.Nodes, n)
			}
			plan := planOf(&Spec{
				SourcePlacement: &PodPlacement{
					NodeSelector: linuxLabels("disk", "ssd"),
					Affinity:     json.RawMessage(`{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"topology.kubernetes.io/zone","operator":"NotIn","values":["zone-2"]}]}]}}`),
					Resources:    checkup.Resources{Requests: map[string]string{"cpu": "1"}},
				},
			})
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Expand(plan, "placement", s); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(nodes), "ns/node")
		})
	}
}
