// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"

	"github.com/checkplan/checkplan/test/e2e/sandbox/internal/nodestate"
	"github.com/checkplan/checkplan/test/e2e/sandbox/internal/nodestate/nodestatetest"
)

// BenchmarkAgainstKubeProxy reports the time of pkg/nodestate divided by that of kube-proxy's trackers and
// CategorizeEndpoints, in turns, for one node of 5,000, with 10,000 Services and 100,000 endpoints.
//
//   - scratch: all objects, then the state
//   - change: one slice, then the state. At each sync, kube-proxy categorizes the endpoints of all Services.
//   - tracking: one slice; of kube-proxy its trackers only, which do not know yet what the node serves.
func BenchmarkAgainstKubeProxy(b *testing.B) {
	f := nodestatetest.NewFleet(10_000, 100_000, 5_000)
	c := nodestatetest.Case{NodeName: f.Nodes[0].Name, Node: f.Nodes[0]}
	ours := func() (*nodestate.Cluster, *nodestate.View) {
		cluster, err := nodestate.New(nodestate.Options{})
		if err != nil {
			b.Fatal(err)
		}
		cluster.SetNode(c.Node)
		for _, s := range f.Services {
			cluster.SetService(s)
		}
		for _, s := range f.Slices {
			cluster.SetSlice(s)
		}
		return cluster, cluster.View(c.NodeName)
	}
	theirs := func() *oracle {
		o := newOracle(c)
		for _, s := range f.Services {
			o.setService(s)
		}
		for _, s := range f.Slices {
			o.setSlice(s, false)
		}
		o.update()
		return o
	}
	b.Run("scratch", func(b *testing.B) {
		ratio(b, func(int) { ours() }, func(int) { theirs().categorize() })
	})

	cluster, view := ours()
	o := theirs()
	if diff := diffOf(o.state(), view.State()); diff != "" {
		b.Fatalf("the states differ: %s", diff)
	}
	flips := []*discoveryv1.EndpointSlice{}
	for i := range 100 { // an endpoint is not ready, and ready again
		s := f.Slices[i*len(f.Slices)/100]
		unready := s.DeepCopy()
		unready.Endpoints[0].Conditions.Ready = new(false)
		flips = append(flips, unready, s)
	}
	change := func(n int) { cluster.SetSlice(flips[n%len(flips)]) }
	b.Run("change", func(b *testing.B) {
		ratio(b, change, func(n int) {
			o.setSlice(flips[n%len(flips)], false)
			o.update()
			o.categorize()
		})
	})
	b.Run("tracking", func(b *testing.B) {
		ratio(b, change, func(n int) {
			o.setSlice(flips[n%len(flips)], false)
			o.update()
		})
	})
}

// categorize is what syncProxyRules asks for each port, before it writes a rule.
func (o *oracle) categorize() {
	for f := range families {
		for name, info := range o.ports[f] {
			proxy.CategorizeEndpoints(o.ready[f][name], info, o.node, o.zone)
		}
	}
}

// ratio runs both in turns, with the number of the turn.
func ratio(b *testing.B, ours, theirs func(int)) {
	var spent [2]time.Duration
	n := 0
	for b.Loop() {
		for i, run := range []func(int){ours, theirs} {
			begin := time.Now()
			run(n)
			spent[i] += time.Since(begin)
		}
		n++
	}
	b.ReportMetric(float64(spent[0])/float64(spent[1]), "ratio")
	b.ReportMetric(0, "ns/op") // of both together: it means nothing
}
