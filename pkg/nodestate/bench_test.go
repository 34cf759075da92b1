// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/checkplan/checkplan/pkg/nodestate/nodestatetest"
)

// The size of the clusters of the benchmarks.
const (
	benchServices  = 10_000
	benchEndpoints = 100_000
	benchNodes     = 5_000
)

// large returns a cluster of the benchmarks' size.
func large(b *testing.B) (*Cluster, *nodestatetest.Fleet) {
	b.Helper()
	f := nodestatetest.NewFleet(benchServices, benchEndpoints, benchNodes)
	c, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range f.Nodes {
		c.SetNode(n)
	}
	for _, s := range f.Services {
		c.SetService(s)
	}
	for _, s := range f.Slices {
		c.SetSlice(s)
	}
	return c, f
}

// BenchmarkState is the state of one node of a large cluster.
//
//   - objects: from the objects of the API server; this is what a proxy does when it starts
//   - scratch: from a Cluster that has the objects already; this is what a check does for each node
//   - change: a View, after a slice of which one endpoint changed; with the ratio of scratch to change
func BenchmarkState(b *testing.B) {
	c, f := large(b)
	node := f.Nodes[0].Name
	b.Run("objects", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c, err := New(Options{})
			if err != nil {
				b.Fatal(err)
			}
			c.SetNode(f.Nodes[0])
			for _, s := range f.Services {
				c.SetService(s)
			}
			for _, s := range f.Slices {
				c.SetSlice(s)
			}
			if n := len(c.State(node)); n != benchServices {
				b.Fatalf("%d services, want %d", n, benchServices)
			}
		}
	})
	var scratch float64
	b.Run("scratch", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.State(node)
		}
		scratch = float64(b.Elapsed()) / float64(b.N)
	})
	b.Run("change", func(b *testing.B) {
		b.ReportAllocs()
		view := c.View(node)
		defer view.Close()
		flips := make([]*discoveryv1.EndpointSlice, 0, 2*100)
		for i := range 100 { // an endpoint is not ready, and ready again
			s := f.Slices[i*len(f.Slices)/100]
			unready := s.DeepCopy()
			unready.Endpoints[0].Conditions.Ready = new(false)
			flips = append(flips, unready, s)
		}
		rev := view.Rev()
		n := 0
		for b.Loop() {
			c.SetSlice(flips[n%len(flips)])
			n++
		}
		if view.Rev() == rev {
			b.Fatal("no change altered the state")
		}
		if change := float64(b.Elapsed()) / float64(b.N); scratch > 0 {
			b.ReportMetric(scratch/change, "scratch/change")
		}
	})
}

// BenchmarkDay sends the events of a generated day to views of some nodes, and reports how many there are for one
// revision: with the heartbeats of all Nodes, as a watch of the cluster has them, and without (a kube-proxy watches its
// own Node only). A client that takes one state each second misses revisions; states is how many it gets.
func BenchmarkDay(b *testing.B) {
	for b.Loop() {
		c, f := large(b)
		views := []*View{}
		for i := range 10 {
			views = append(views, c.View(f.Nodes[i*benchNodes/10].Name))
		}
		var heartbeats, others, states float64
		second, revs := -1, make([]uint64, len(views))
		for e := range f.Day() {
			if e.Second != second { // the last second is over
				second = e.Second
				for i, v := range views {
					if v.Rev() != revs[i] {
						revs[i] = v.Rev()
						states += 1 / float64(len(views))
					}
				}
			}
			others++
			switch {
			case e.Node != nil:
				heartbeats++
				others--
				c.SetNode(e.Node)
			case e.Service != nil:
				c.SetService(e.Service)
			default:
				c.SetSlice(e.Slice)
			}
		}
		var revisions float64
		for _, v := range views {
			revisions += float64(v.Rev()-1) / float64(len(views))
		}
		if revisions == 0 {
			b.Fatal("a day without a change")
		}
		b.ReportMetric(heartbeats, "heartbeats")
		b.ReportMetric(others, "events")
		b.ReportMetric(revisions, "revisions")
		b.ReportMetric(states, "states")
		b.ReportMetric((heartbeats+others)/revisions, "all/revision")
		b.ReportMetric(others/revisions, "events/revision")
	}
}
