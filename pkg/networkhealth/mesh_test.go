// SPDX-License-Identifier: Apache-2.0

package networkhealth

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

// start is when the first run of the tests starts.
var start = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// mesh is a check, and what its run measured: everything is answered, unless a test changes it.
type mesh struct {
	plan      string
	w         checkup.Worksheet
	roster    checkup.Roster
	record    checkup.Record
	uids      map[string]string // of existing pods
	dead      map[[2]int]bool   // nothing of such a pair is answered
	lossy     map[[2]int]int    // of ten, in the first probe
	mute      map[int]bool      // sources that report nothing
	probes    []checkup.TransportProbe
	at        time.Time
	run       int
	max       int
	stale     time.Duration
	expire    time.Duration
	grace     time.Duration
	existing  []*Health
	otherwise func(*checkup.CheckReport)
}

// newMesh is the full mesh of nodes, with one probe.
func newMesh(nodes ...string) *mesh {
	m := &mesh{
		plan: "day-2", dead: map[[2]int]bool{}, lossy: map[[2]int]int{}, mute: map[int]bool{}, uids: map[string]string{},
		at: start, max: 1000, stale: time.Hour, expire: 24 * time.Hour, grace: time.Hour,
		probes: []checkup.TransportProbe{{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 10, Timeout: checkup.Duration(time.Second)}}},
	}
	m.nodes(nodes...)
	return m
}

func (m *mesh) nodes(nodes ...string) {
	m.w = checkup.Worksheet{
		Plan: m.plan, Check: "mesh", Kind: "podMesh", Rounds: 1, Degree: len(nodes) - 1, Seed: 7,
		Possible: len(nodes) * (len(nodes) - 1), IPFamilies: []checkup.IPFamily{checkup.IPv4},
	}
	for s, node := range nodes {
		m.w.Sources = append(m.w.Sources, checkup.Endpoint{Node: node})
		m.w.Targets = append(m.w.Targets, checkup.Endpoint{Node: node})
		var to []int
		for t := range nodes {
			if t != s {
				to = append(to, t)
			}
		}
		m.w.Assignments = append(m.w.Assignments, to)
	}
}

// pods makes existing pods the targets, each from every node.
func (m *mesh) pods(pods ...string) {
	m.w.Targets = nil
	for i, pod := range pods {
		m.w.Targets = append(m.w.Targets, checkup.Endpoint{Node: "target-node", Pod: pod})
		m.uids[pod] = fmt.Sprintf("uid-%d", i)
	}
	for s := range m.w.Sources {
		m.w.Assignments[s] = nil
		for t := range pods {
			m.w.Assignments[s] = append(m.w.Assignments[s], t)
		}
	}
	m.w.Possible = len(m.w.Sources) * len(pods)
}

// inside makes existing pods the sources, by an agent in each.
func (m *mesh) inside(pods ...string) {
	for i, pod := range pods {
		m.w.Sources[i].Pod, m.w.Sources[i].Inside = pod, true
		m.uids[pod] = "uid-of-" + pod
	}
}

// measure returns what the run measured, judged by the real judge.
func (m *mesh) measure() Measured {
	m.w.Probes = m.probes
	m.roster, m.record = checkup.Roster{}, checkup.Record{}
	for i, t := range m.w.Targets {
		pod := t.Pod
		if pod == "" {
			pod = fmt.Sprintf("checks/responder-%d-run-%d", i, m.run)
		}
		m.roster.Targets = append(m.roster.Targets, checkup.RosterEntry{
			Pod: pod, UID: m.uids[t.Pod], Addresses: map[checkup.IPFamily]string{checkup.IPv4: fmt.Sprintf("198.18.0.%d", i%250+1)},
		})
	}
	for s := range m.w.Sources {
		if m.mute[s] {
			m.record.Sources = append(m.record.Sources, checkup.Source{
				Source: s, Cause: &checkup.Cause{Stage: checkup.StageStart, Message: "the image cannot be pulled"},
			})
			continue
		}
		pod, uid := fmt.Sprintf("checks/agent-%d-run-%d", s, m.run), fmt.Sprintf("agent-uid-%d-%d", s, m.run)
		if own := m.w.Sources[s].Pod; own != "" {
			pod, uid = own, m.uids[own]
		}
		source := checkup.Source{
			Source: s, Pod: pod, UID: uid,
			Addresses: map[checkup.IPFamily]string{checkup.IPv4: "198.18.1.1", checkup.IPv6: "not an address"},
			Began:     m.at.Add(20 * time.Second), Ended: m.at.Add(40 * time.Second), End: &checkup.AgentEnd{},
		}
		for _, f := range m.w.IPFamilies {
			source.Controls = append(source.Controls, checkup.Control{Family: f, Name: "self", OK: true},
				checkup.Control{Family: f, Name: "closed", OK: true})
		}
		for p := range m.w.PairsOf(s) {
			o := checkup.Observation{Pair: p, Sent: m.w.Measurements(p)}
			between := [2]int{p.Source, p.Target}
			o.Received = o.Sent
			if p.Transport == m.probes[0].Transport {
				o.Received -= m.lossy[between]
			}
			if m.dead[between] {
				o.Received = 0
			}
			if o.Received < o.Sent {
				o.Failure = &checkup.Cause{Stage: checkup.StageConnect, Message: "timed out"}
			}
			for i := range o.Received {
				o.RTTs = append(o.RTTs, int64(100+i))
			}
			m.record.Observations = append(m.record.Observations, o)
			source.End.Observations++
		}
		m.record.Sources = append(m.record.Sources, source)
	}
	gate := checkup.Gate{Require: checkup.RequirePass}
	j := judge.Pairs(&m.w, &m.roster, &m.record, judge.Rules{})
	report := j.Report(gate)
	report.Units = j.Troubled()
	if m.otherwise != nil {
		m.otherwise(&report)
	}
	w, roster, record := m.w, m.roster, m.record
	return Measured{Report: &report, Worksheet: &w, Roster: &roster, Record: &record}
}

func (m *mesh) input() Input {
	return Input{
		Plan: m.plan,
		Config: checkup.PodNetworkHealth{
			MaxObjects: m.max, StaleAfter: checkup.Duration(m.stale), ExpireAfter: checkup.Duration(m.expire),
			PodGoneGrace: checkup.Duration(m.grace),
		},
		Run:    Run{Name: fmt.Sprintf("run-%d", m.run), UID: fmt.Sprintf("run-uid-%d", m.run), Started: m.at, Finished: m.at.Add(time.Minute)},
		Checks: []Measured{m.measure()}, Existing: m.existing,
	}
}

// next runs the check, makes the changes, and lets time pass until the next run.
func (m *mesh) next(t testing.TB, in Input, until time.Duration) Changes {
	t.Helper()
	c := Reconcile(in)
	m.existing = made(t, m.existing, c, in.Run.Finished)
	m.run++
	m.at = m.at.Add(until)
	return c
}

// made are the objects after changes.
func made(t testing.TB, existing []*Health, c Changes, now time.Time) []*Health {
	t.Helper()
	after := slices.Clone(existing)
	for _, d := range c.Delete {
		i := slices.Index(after, d)
		if i < 0 {
			t.Fatalf("%s is deleted, and does not exist", d.Name)
		}
		after = slices.Delete(after, i, i+1)
	}
	for _, w := range c.Write {
		status := w.Status
		if w.Before != nil {
			i := slices.Index(after, w.Before)
			if i < 0 || w.Before.Name != w.Name || w.Before.Spec != w.Spec {
				t.Fatalf("%s is changed, and is another object", w.Name)
			}
			changed := *w.Before
			changed.Status = &status
			after[i] = &changed
			continue
		}
		after = append(after, &Health{
			ObjectMeta: metav1.ObjectMeta{Name: w.Name, Labels: w.Labels, CreationTimestamp: metav1.NewTime(now)}, Spec: w.Spec, Status: &status,
		})
	}
	return after
}

// list prints objects as kubectl does, sorted: "worker-1 worker-2 Reachable Answered".
func list(objects []*Health) (lines []string) {
	for _, h := range objects {
		line := h.Spec.Source.Node + " " + h.Spec.Target.Node
		if h.Spec.Target.Name != "" {
			line = h.Spec.Source.Node + " " + h.Spec.Target.Namespace + "/" + h.Spec.Target.Name
		}
		if h.Status != nil {
			line += " " + string(h.Status.Reachability) + " " + h.Status.Reason
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}
