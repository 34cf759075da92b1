// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netutils "k8s.io/utils/net"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/test/e2e/sandbox/internal/nodestate"
	"github.com/checkplan/checkplan/test/e2e/sandbox/internal/nodestate/nodestatetest"
)

// TestDifferential: a node's state is what kube-proxy's own trackers and CategorizeEndpoints give, for generated
// clusters, and after each change of them.
func TestDifferential(t *testing.T) {
	cases := uint64(3_000)
	if os.Getenv("CHECKPLAN_LONG") != "" {
		cases = 100_000
	}
	covered := map[string]int{}
	for seed := range cases {
		c := nodestatetest.Generate(seed)
		err := compare(c, covered)
		if err == nil {
			continue
		}
		small, shrinking := nodestatetest.Shrink(c, func(c nodestatetest.Case) bool {
			_, differs := errors.AsType[*difference](compare(c, nil))
			return differs
		})
		text, encoding := yaml.Marshal(small)
		t.Fatalf("seed %d: %v\n\nThe smallest case, for pkg/nodestate/testdata/NAME.yaml (shrink: %v, encode: %v):\n%s\n%v",
			seed, err, shrinking, encoding, text, compare(small, nil))
	}
	// What the cases had to have, so that the comparison means something.
	for what, least := range map[string]int{
		"forward": 500, "reject": 500, "drop": 200, "hints decide": 200, "node hints decide": 100,
		"terminating decides": 200, "two families": 500, "affinity": 200, "health": 50, "sources": 50, "no services": 50,
		"established": 200, "different ports": 200, "different sets": 100, "ambiguous": 50, "changed": 500, "not changed": 500,
	} {
		if covered[what] < least {
			t.Errorf("%d cases with %s, want %d or more", covered[what], what, least)
		}
	}
	t.Logf("%d cases: %v", cases, covered)
}

// TestCases: what pkg/nodestate's own table wants is what kube-proxy gives.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("../internal/nodestate/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d cases in pkg/nodestate/testdata, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var entry struct{ Case nodestatetest.Case }
			if err := yaml.Unmarshal(data, &entry); err != nil {
				t.Fatal(err)
			}
			if err := compare(entry.Case, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// difference is that of two states: "-" is kube-proxy's, "+" ours.
type difference struct {
	step int
	diff string
}

func (d *difference) Error() string {
	return fmt.Sprintf("after %d changes: - kube-proxy, + pkg/nodestate:\n%s", d.step, d.diff)
}

// compare returns a *difference, or another error if kube-proxy cannot take the case, because no API server would have
// such an object. It counts what the case covers.
func compare(c nodestatetest.Case, covered map[string]int) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if !possible(c) {
		return errors.New("the API server sets defaults, and refuses objects without required fields")
	}
	cluster, err := nodestate.New(nodestate.Options{NodePortAddresses: c.NodePortAddresses})
	if err != nil {
		return err
	}
	if c.Node != nil {
		cluster.SetNode(c.Node)
	}
	for i := range c.Slices { // before Services: the order must not matter
		cluster.SetSlice(&c.Slices[i])
	}
	for i := range c.Services {
		cluster.SetService(&c.Services[i])
	}
	view := cluster.View(c.NodeName)
	proxy := newOracle(c)
	if err := same(c, proxy, view, 0, covered); err != nil {
		return err
	}
	for i, change := range c.Changes {
		before, rev := view.State(), view.Rev()
		switch {
		case change.SetService != nil:
			cluster.SetService(change.SetService)
			proxy.setService(change.SetService)
			c.Services = replace(c.Services, *change.SetService, (*corev1.Service).GetName)
		case change.DeleteService != "":
			cluster.DeleteService(nodestatetest.Namespace, change.DeleteService)
			proxy.deleteService(change.DeleteService)
			c.Services = without(c.Services, change.DeleteService, (*corev1.Service).GetName)
		case change.SetSlice != nil:
			cluster.SetSlice(change.SetSlice)
			proxy.setSlice(change.SetSlice, false)
			c.Slices = replace(c.Slices, *change.SetSlice, (*discoveryv1.EndpointSlice).GetName)
		case change.DeleteSlice != "":
			cluster.DeleteSlice(nodestatetest.Namespace, change.DeleteSlice)
			for _, s := range c.Slices {
				if s.Name == change.DeleteSlice {
					proxy.setSlice(&s, true)
				}
			}
			c.Slices = without(c.Slices, change.DeleteSlice, (*discoveryv1.EndpointSlice).GetName)
		}
		proxy.update()
		if err := same(c, proxy, view, i+1, covered); err != nil {
			return err
		}
		changed := diffOf(before, view.State()) != ""
		if changed != (view.Rev() != rev) {
			return &difference{i + 1, fmt.Sprintf("the state changed: %t, but its revision went from %d to %d", changed, rev, view.Rev())}
		}
		if covered != nil {
			covered[map[bool]string{true: "changed", false: "not changed"}[changed]]++
		}
	}
	return nil
}

// possible reports whether the objects have what the API server requires or sets, as far as kube-proxy relies on it.
func possible(c nodestatetest.Case) bool {
	for _, change := range c.Changes {
		if change.SetService != nil {
			c.Services = append(slices.Clip(c.Services), *change.SetService)
		}
		if change.SetSlice != nil {
			c.Slices = append(slices.Clip(c.Slices), *change.SetSlice)
		}
	}
	for _, s := range c.Services {
		if s.Name == "" || s.Namespace == "" || s.Spec.Type == "" || len(s.Spec.Ports) == 0 {
			return false
		}
		for _, p := range s.Spec.Ports {
			if p.Protocol == "" || p.Port == 0 {
				return false
			}
		}
	}
	of := map[string]string{}
	for _, s := range c.Slices {
		for _, p := range s.Ports {
			if p.Protocol == nil {
				return false
			}
		}
		// Neither changes; nodestatetest says why.
		fixed := string(s.AddressType) + " " + s.Labels[discoveryv1.LabelServiceName]
		if before, ok := of[s.Name]; s.Name == "" || s.Namespace == "" || s.AddressType == "" || ok && before != fixed {
			return false
		}
		of[s.Name] = fixed
	}
	return c.NodeName != ""
}

// same compares kube-proxy's state with that of the view, and with one from scratch.
func same(c nodestatetest.Case, proxy *oracle, view *nodestate.View, step int, covered map[string]int) error {
	ours, theirs := view.State(), proxy.state()
	ambiguous := ambiguous(c)
	diff := diffOf(theirs, ours)
	// If several slices have one address, kube-proxy takes the first in the random order of a map. It must be able to
	// give our state.
	for try := 0; ambiguous && diff != "" && try < 300; try++ {
		diff = diffOf(newOracle(c).state(), ours)
	}
	if diff != "" {
		return &difference{step, diff}
	}
	scratch, err := nodestate.New(nodestate.Options{NodePortAddresses: c.NodePortAddresses})
	if err != nil {
		return err
	}
	for i := range c.Services {
		scratch.SetService(&c.Services[i])
	}
	for i := range c.Slices {
		scratch.SetSlice(&c.Slices[i])
	}
	if c.Node != nil {
		scratch.SetNode(c.Node)
	}
	if diff := diffOf(scratch.State(c.NodeName), ours); diff != "" {
		return &difference{step, "from scratch and by changes:\n" + diff}
	}
	if covered != nil && step == 0 {
		count(c, ours, ambiguous, covered)
	}
	return nil
}

// diffOf returns the difference of two states as that of their text, and "" if they are equal in every field.
func diffOf(from, to []*nodestate.ServiceEndpoints) string {
	if reflect.DeepEqual(from, to) {
		return ""
	}
	text := func(state []*nodestate.ServiceEndpoints) []string {
		data, err := yaml.Marshal(state)
		if err != nil {
			return []string{err.Error()}
		}
		return strings.Split(string(data), "\n")
	}
	return cmp.Diff(text(from), text(to)) + " " // never empty: nil and empty lists differ, too
}

// ambiguous reports whether several endpoints of a Service's slices have the same address and differ otherwise.
func ambiguous(c nodestatetest.Case) bool {
	seen := map[string]discoveryv1.Endpoint{}
	for _, s := range c.Slices {
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			key := s.Labels[discoveryv1.LabelServiceName] + " " + canonical(e.Addresses[0])
			e.Addresses = nil
			if other, ok := seen[key]; ok && cmp.Diff(other, e) != "" {
				return true
			}
			seen[key] = e
		}
	}
	return false
}

// canonical is an address in its canonical form.
func canonical(address string) string { return netutils.ParseIPSloppy(address).String() }

// count notes what a case covers.
func count(c nodestatetest.Case, state []*nodestate.ServiceEndpoints, ambiguous bool, covered map[string]int) {
	has := map[string]bool{"no services": len(state) == 0, "ambiguous": ambiguous}
	// What a field decides shows without it.
	has["hints decide"] = decides(c, state, func(e *discoveryv1.Endpoint) { e.Hints = nil })
	has["node hints decide"] = decides(c, state, func(e *discoveryv1.Endpoint) {
		if e.Hints != nil {
			e.Hints = &discoveryv1.EndpointHints{ForZones: e.Hints.ForZones}
		}
	})
	has["terminating decides"] = decides(c, state, func(e *discoveryv1.Endpoint) { e.Conditions.Terminating = nil })
	for _, s := range state {
		has["two families"] = has["two families"] || len(s.Families) == 2
		has["affinity"] = has["affinity"] || s.AffinitySeconds > 0
		for _, f := range s.Families {
			has["health"] = has["health"] || f.HealthyEndpoints > 0
			has["sources"] = has["sources"] || len(f.LoadBalancerSources) > 0
			for _, p := range f.Ports {
				for _, a := range []nodestate.Action{p.Internal, p.External, p.Inside} {
					has[string(a)] = a != ""
				}
				has["established"] = has["established"] || len(p.Established) > 0
				for _, e := range p.Endpoints {
					has["different ports"] = has["different ports"] || e.Port != p.Endpoints[0].Port
					has["different sets"] = has["different sets"] || e.Internal != e.Inside || e.External != e.Inside && p.External != ""
				}
			}
		}
	}
	for what, is := range has {
		if is {
			covered[what]++
		}
	}
}

// decides reports whether the state is another one if all endpoints are changed.
func decides(c nodestatetest.Case, state []*nodestate.ServiceEndpoints, change func(*discoveryv1.Endpoint)) bool {
	cluster, err := nodestate.New(nodestate.Options{NodePortAddresses: c.NodePortAddresses})
	if err != nil {
		return false
	}
	if c.Node != nil {
		cluster.SetNode(c.Node)
	}
	for i := range c.Services {
		cluster.SetService(&c.Services[i])
	}
	for i := range c.Slices {
		s := c.Slices[i].DeepCopy()
		for j := range s.Endpoints {
			change(&s.Endpoints[j])
		}
		cluster.SetSlice(s)
	}
	return !slices.EqualFunc(cluster.State(c.NodeName), state, (*nodestate.ServiceEndpoints).Equal)
}

// replace returns a list with one object replaced, or added.
func replace[T any](list []T, with T, name func(*T) string) []T {
	return append(without(list, name(&with), name), with)
}

func without[T any](list []T, gone string, name func(*T) string) []T {
	var left []T
	for i := range list {
		if name(&list[i]) != gone {
			left = append(left, list[i])
		}
	}
	return left
}
