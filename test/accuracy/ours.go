// SPDX-License-Identifier: Apache-2.0

package main

import (
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/podmesh"
)

// setting is one cell of the table.
type setting struct {
	scenario scenario
	noise    noise
	nodes    int
	degree   int
}

// trial is one simulated run, judged.
type trial struct {
	causes []string
	report checkup.CheckReport
	// took is the time for judging and localising.
	took time.Duration
	// open and left count the alternatives of all findings in the first look, and after the second. An open of -1 was not
	// counted, see mostOpen.
	open, left int
	// baselines are the findings of the algorithms.
	baselines [][]guess
}

// simulate makes one run of a setting. The same setting and seed give the same run.
func (s setting) simulate(seed uint64) (*network, *checkup.Record, checkup.Gate, error) {
	p := plan(s.degree, seed)
	if mesh, ok := p.Checks["mesh"].Spec.(*podmesh.Spec); ok && s.scenario.racks {
		mesh.Sample.Topology = []string{rackLabel}
	}
	w, roster, err := expand(p, s.nodes)
	if err != nil {
		return nil, nil, p.Gate, err
	}
	h := fnv.New64a()
	h.Write([]byte(s.scenario.name)) // the same fault with every noise
	d := &draw{w: w, rng: rand.New(rand.NewPCG(seed, h.Sum64())), used: map[int]bool{}}
	h.Write([]byte(s.noise.name))
	n := &network{
		w: w, roster: roster, noise: s.noise, fault: s.scenario.draw(d), rng: rand.New(rand.NewPCG(seed, h.Sum64())),
	}
	return n, n.measure(w), p.Gate, nil
}

// mostOpen is the largest number of nodes at which the alternatives of the first look are counted. Judging takes most
// of the time of large runs, and counting them is a third of it.
const mostOpen = 200

// run makes one run of a setting and judges it.
func (s setting) run(seed uint64) (*trial, error) {
	n, record, gate, err := s.simulate(seed)
	if err != nil {
		return nil, err
	}
	t := &trial{causes: n.fault.causes, open: -1}
	o := observe(n.w, record)
	for _, a := range algorithms {
		t.baselines = append(t.baselines, a.find(o))
	}
	if s.nodes <= mostOpen {
		t.open = alternatives(podmesh.Kind.Judge(n.w, n.roster, record, gate))
	}
	n.lookAgain(record, gate)
	began := time.Now()
	t.report = podmesh.Kind.Judge(n.w, n.roster, record, gate)
	t.took = time.Since(began)
	t.left = alternatives(t.report)
	return t, nil
}

// alternatives counts the alternatives of all findings that are not gone.
func alternatives(r checkup.CheckReport) int {
	n := 0
	for _, f := range r.Findings {
		n += len(f.Alternatives)
	}
	return n
}

// lookAgain appends the further look to the record, if the kind wants one. It has the same fault and noise.
func (n *network) lookAgain(record *checkup.Record, gate checkup.Gate) {
	if again := podmesh.Kind.Again(n.w, n.roster, record, gate); again != nil {
		record.Looks = append(record.Looks, checkup.Look{
			Worksheet: *again, After: checkup.Duration(time.Minute), Record: *n.measure(again),
		})
	}
}
