// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// changeable is a cluster with one control plane node and three workers.
func changeable() *Snapshot {
	node := func(name, pool string, taints ...corev1.Taint) Node {
		return Node{
			Name: name, Labels: map[string]string{"pool": pool, "kubernetes.io/hostname": name}, Taints: taints, Ready: corev1.ConditionTrue,
			Allocatable: corev1.ResourceList{"pods": resource.MustParse("110")},
		}
	}
	s := &Snapshot{APIVersion: checkup.APIVersion, Kind: SnapshotKind, Nodes: []Node{
		node("cp", "", corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}),
		node("w1", "web"), node("w2", "web", corev1.Taint{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoExecute}),
		node("w3", "db"),
	}}
	s.Nodes[0].Labels["node-role.kubernetes.io/control-plane"] = ""
	s.Selections = []Selection{{Selector: "app=web", Pods: []Pod{{Name: "n/a", Node: "w1"}, {Name: "n/b", Node: "w3"}, {Name: "n/c"}}}}
	s.Components = []Component{{Pod: Pod{Name: "kube-system/etcd-cp", Node: "cp"}}}
	s.Services = []Service{{Namespace: "n", Name: "web", Endpoints: []ServiceEndpoint{
		{Address: "10.0.0.1", Family: checkup.IPv4, Port: 80, Node: "w1"}, {Address: "10.0.0.2", Family: checkup.IPv4, Port: 80}, {Address: "192.0.2.1", Family: checkup.IPv4, Port: 6443},
	}}}
	s.Nodes[0].InternalIPs = []string{"192.0.2.1"}
	return s
}

// describeNode returns one line with everything that Change can change.
func describeNode(n Node) string {
	line := n.Name
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		if key != "kubernetes.io/hostname" {
			line += fmt.Sprintf(" %s=%s", key, n.Labels[key])
		}
	}
	for _, t := range n.Taints {
		line += " " + t.ToString()
	}
	if n.Unschedulable {
		line += " cordoned"
	}
	return line
}

func TestChange(t *testing.T) {
	const (
		cp = "cp node-role.kubernetes.io/control-plane= pool= node-role.kubernetes.io/control-plane:NoSchedule"
		w1 = "w1 pool=web"
		w2 = "w2 pool=web dedicated=db:NoSchedule dedicated=db:NoExecute"
		w3 = "w3 pool=db"
	)
	tests := []struct {
		changes []string
		want    []string
	}{
		{[]string{"delete node w1"}, []string{cp, w2, w3}},
		{[]string{"delete nodes w1 w3 w1"}, []string{cp, w2}},
		{[]string{"delete node -l '!node-role.kubernetes.io/control-plane'"}, []string{cp}},
		{[]string{`delete node -l "pool in (web, db)"`}, []string{cp}},
		{[]string{"delete node --all"}, nil},
		{[]string{"taint nodes w1 dedicated=ml:NoSchedule gone:NoExecute"}, []string{cp, "w1 pool=web dedicated=ml:NoSchedule gone:NoExecute", w2, w3}},
		{[]string{"taint node w2 dedicated=ml:NoSchedule"}, []string{cp, w1, "w2 pool=web dedicated=ml:NoSchedule dedicated=db:NoExecute", w3}},
		{[]string{"taint nodes w2 dedicated-"}, []string{cp, w1, "w2 pool=web", w3}},
		{[]string{"taint nodes w2 dedicated:NoExecute-"}, []string{cp, w1, "w2 pool=web dedicated=db:NoSchedule", w3}},
		{[]string{"taint nodes --all dedicated=db:NoSchedule-"}, []string{cp, w1, "w2 pool=web dedicated=db:NoExecute", w3}},
		{[]string{"label nodes -l pool=web pool- zone=b"}, []string{cp, "w1 zone=b", "w2 zone=b dedicated=db:NoSchedule dedicated=db:NoExecute", w3}},
		{[]string{"label node w1 pool=db example.com/x="}, []string{cp, "w1 example.com/x= pool=db", w2, w3}},
		{[]string{"  cordon \t w1 "}, []string{cp, "w1 pool=web node.kubernetes.io/unschedulable:NoSchedule cordoned", w2, w3}},
		{[]string{"cordon w1", "cordon --all", "uncordon -l pool=web", "uncordon cp w3"}, []string{cp, w1, w2, w3}},
		{[]string{"label nodes w3 pool=web", "delete node -l pool=web"}, []string{cp}},
	}
	for _, test := range tests {
		t.Run(strings.Join(test.changes, "; "), func(t *testing.T) {
			s, before := changeable(), changeable()
			original := *s // shares everything that Change could write to
			for _, change := range test.changes {
				if err := s.Change(change); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for _, n := range s.Nodes {
				got = append(got, describeNode(n))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
			if err := s.problems(); len(err) > 0 {
				t.Errorf("the changed snapshot has problems: %v", err)
			}
			if len(test.changes) == 1 && strings.HasPrefix(test.changes[0], "delete") {
				if diff := cmp.Diff(before, &original); diff != "" {
					t.Errorf("a copy made before changed too (-before +after):\n%s", diff)
				}
			}
		})
	}
}

// TestChangeDeletesPodsOfNode: pods, components and endpoints are deleted with their node.
func TestChangeDeletesPodsOfNode(t *testing.T) {
	s := changeable()
	if err := s.Change("delete node cp w1"); err != nil {
		t.Fatal(err)
	}
	want := changeable()
	want.Nodes = want.Nodes[2:]
	want.Selections[0].Pods = want.Selections[0].Pods[1:]
	want.Components = []Component{}
	want.Services[0].Endpoints = want.Services[0].Endpoints[1:2]
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

func TestChangeErrors(t *testing.T) {
	forms := ": " + changeForms
	tests := []struct{ change, want string }{
		{"", "is empty" + forms},
		{"  ''", `unknown verb ""` + forms},
		{"drain w1", `unknown verb "drain"` + forms},
		{"delete", "delete: only nodes can be changed" + forms},
		{"delete pod x", "delete: only nodes can be changed" + forms},
		{"taint --selector=pool=web nodes x:NoSchedule", "taint: only nodes can be changed" + forms},
		{"delete node", "no nodes selected, or in two ways: want names, or -l SELECTOR, or --all"},
		{"cordon w1 -l pool=web", "no nodes selected, or in two ways: want names, or -l SELECTOR, or --all"},
		{"delete node x y", "node \"x\" does not exist; nodes are: cp, w1, w2, w3\nnode \"y\" does not exist; nodes are: cp, w1, w2, w3"},
		{"delete node -l pool=none", "no node matches pool=none; nodes are: cp, w1, w2, w3"},
		{"delete node -l", "-l: missing selector\nno nodes selected, or in two ways: want names, or -l SELECTOR, or --all"},
		{"delete node -l ''", "selector is empty: use --all to select every node"},
		{"delete node -l pool=(", `selector "pool=(": unable to parse requirement: found '(', expected: identifier`},
		{"delete node -l a=b -l c=d", "two selectors, \"a=b\" and \"c=d\": join them with a comma\nno node matches a=b; nodes are: cp, w1, w2, w3"},
		{"delete node w1 --force", `unknown flag "--force": want -l SELECTOR or --all`},
		{"delete node 'w1", "unclosed quote '"},
		{"taint nodes w1", "missing taint: want KEY=VALUE:EFFECT, or KEY- to remove it"},
		{"taint nodes w1 a=b", `taint "a=b" has no effect: want KEY=VALUE:EFFECT with an effect of ["NoSchedule" "PreferNoSchedule" "NoExecute"]`},
		{"taint nodes w1 a=b-", `taint "a=b-" has no effect: want KEY=VALUE:EFFECT with an effect of ["NoSchedule" "PreferNoSchedule" "NoExecute"]`},
		{"taint nodes w1 a=b:Never", `taint "a=b:Never": effect "Never" is not one of ["NoSchedule" "PreferNoSchedule" "NoExecute"]`},
		{"taint nodes w1 =b:NoSchedule", `taint "=b:NoSchedule": key "": name part must be non-empty` + "\n" + `taint "=b:NoSchedule": key "": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`},
		{"taint nodes w1 gone-", "nothing to remove: none of the nodes has gone-"},
		{"taint nodes a=b:NoSchedule", "no nodes selected, or in two ways: want names, or -l SELECTOR, or --all"},
		{"taint nodes a=b:NoSchedule w1", "\"w1\": want KEY=VALUE:EFFECT for a taint, KEY=VALUE for a label, or one of them with a trailing -; names of nodes come first\nno nodes selected, or in two ways: want names, or -l SELECTOR, or --all"},
		{"label nodes w1", "missing label: want KEY=VALUE, or KEY- to remove it"},
		{"label nodes w1 a:b", `label "a:b": want KEY=VALUE, or KEY- to remove it`},
		{"label nodes w1 a=b!", `label "a=b!": value "b!": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')`},
		{"label nodes -l pool=web gone-", "nothing to remove: none of the nodes has gone-"},
		{"label nodes x a=b!", `node "x" does not exist; nodes are: cp, w1, w2, w3` + "\n" + `label "a=b!": value "b!": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')`},
	}
	for _, test := range tests {
		t.Run(test.change, func(t *testing.T) {
			s := changeable()
			err := s.Change(test.change)
			if want := fmt.Sprintf("change %q: %s", test.change, test.want); fmt.Sprint(err) != want {
				t.Errorf("error:\n%v\nwant:\n%s", err, want)
			}
			if diff := cmp.Diff(changeable(), s); diff != "" {
				t.Errorf("Change failed, but changed the snapshot (-before +after):\n%s", diff)
			}
		})
	}
	if err := (&Snapshot{}).Change("cordon x"); err == nil || !strings.HasSuffix(err.Error(), `node "x" does not exist; nodes are: none`) {
		t.Errorf("cluster without nodes: got error %v", err)
	}
}

// FuzzChange: no change panics, an error changes nothing, and a changed snapshot can be encoded and decoded.
func FuzzChange(f *testing.F) {
	for _, change := range []string{
		"delete node -l '!pool'", "taint nodes w1 a=b:NoSchedule c-", "label nodes --all a= b-", "cordon w1", "uncordon -l pool in (web)",
		"taint nodes w2 dedicated:NoExecute-", "delete node --selector=", `"label" nodes -l "a b" 'x'=y`, "label nodes w1 -l=pool=web é=ü",
	} {
		f.Add(change)
	}
	f.Fuzz(func(t *testing.T, change string) {
		s := changeable()
		if err := s.Change(change); err != nil {
			if diff := cmp.Diff(changeable(), s); diff != "" {
				t.Fatalf("Change failed with %v, but changed the snapshot (-before +after):\n%s", err, diff)
			}
			return
		}
		data, err := EncodeSnapshot(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeSnapshot(data); err != nil {
			t.Fatalf("the changed snapshot cannot be decoded: %v", err)
		}
	})
}
