// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// request is what a survey asked an API server.
type request struct{ verb, group, resource, namespace, name, selector string }

func (r request) String() string {
	s := r.verb + " " + r.resource
	if r.namespace != "" {
		s += " in " + r.namespace
	}
	if r.name+r.selector != "" {
		s += ": " + r.name + r.selector
	}
	return s
}

// requests were made; those of discovery need no right.
func (a *apiserver) requests() []request {
	var requests []request
	for _, action := range slices.Concat(a.typed.Actions(), a.dynamic.Actions()) {
		r := request{action.GetVerb(), action.GetResource().Group, action.GetResource().Resource, action.GetNamespace(), "", ""}
		if get, ok := action.(clienttesting.GetAction); ok {
			r.name = get.GetName()
		}
		if list, ok := action.(clienttesting.ListAction); ok {
			r.selector = list.GetListRestrictions().Labels.String()
		}
		if r.resource != "version" && r.resource != "resource" && r.resource != "group" {
			requests = append(requests, r)
		}
	}
	return requests
}

func covers(right checkup.Right, r request) bool {
	return right.Phase == checkup.PhaseSetup && right.Verb == r.verb && right.Group == r.group && right.Resource == r.resource &&
		(right.Scope == checkup.ScopeCluster || right.Scope == checkup.ScopeNamespace && right.Namespace == r.namespace) &&
		(len(right.Names) == 0 || slices.Contains(right.Names, r.name))
}

// TestRights: what a survey asks for it has the right to, and it has no right
// that no cluster makes it use.
func TestRights(t *testing.T) {
	plans := map[string]*checkup.Plan{
		"auto":           planOf(),
		"kubeadm":        planOf(preset(PresetKubeadm)),
		"openshift":      planOf(preset(PresetOpenShift)),
		"generic":        planOf(preset(PresetGeneric)),
		"one-service":    planOf(preset(PresetKubeadm), pairs("kube-apiserver > kube-apiserver.service")),
		"aggregated":     planOf(preset(PresetGeneric), pairs("node > aggregated-apiserver.service")),
		"own-pods":       planOf(preset(PresetGeneric), withRole("own", ComponentRole{Pods: &ComponentPods{Namespace: "own", Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": "own"}}, Port: 1}}), pairs("own > own")),
		"own-services":   planOf(preset(PresetGeneric), withRole("own", ComponentRole{Service: &ComponentService{Namespace: "kube-system", Name: "metrics-server"}}), pairs("own > own.service", "own > kube-apiserver.service")),
		"only-addresses": planOf(preset(PresetGeneric), withRole("own", ComponentRole{Hosts: []string{"192.0.2.1:80"}}), pairs("node > own")),
	}
	for name, p := range plans {
		t.Run(name, func(t *testing.T) {
			rights := Rights(p.Checks["api"])
			used := make([]bool, len(rights))
			for _, a := range []*apiserver{serve(t, false, kubeadmObjects()...), serve(t, true, openshiftObjects("HighlyAvailable")...), serve(t, false)} {
				if _, err := a.survey(p); err != nil {
					t.Fatal(err)
				}
				for _, r := range a.requests() {
					covered := r.resource == "nodes" // every run lists them
					for i, right := range rights {
						if covers(right, r) {
							used[i], covered = true, true
						}
					}
					if !covered {
						t.Errorf("no right to %s", r)
					}
				}
			}
			var lines []string
			for i, r := range rights {
				line := fmt.Sprintf("%s %s %s.%s %s: %s", r.Verb, cmp.Or(r.Namespace, string(r.Scope)), r.Resource, r.Group, strings.Join(r.Names, ","), r.Why)
				lines = append(lines, line)
				if !used[i] {
					t.Errorf("nothing uses %s", line)
				}
				if slices.IndexFunc(rights, func(other checkup.Right) bool { return gocmp.Equal(other, r) }) != i {
					t.Errorf("duplicate: %s", line)
				}
			}
			golden(t, "rights/"+name+".txt", []byte(strings.Join(lines, "\n")+"\n"))
		})
	}
	if got := Rights(checkup.Check{}); got != nil {
		t.Errorf("rights of a check of another kind: %v", got)
	}
}
