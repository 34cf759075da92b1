// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// began is when the sources of tests begin to measure.
var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// mesh is a worksheet of three sources that measure two targets each.
func mesh() *checkup.Worksheet {
	return &checkup.Worksheet{
		Check: "mesh", Kind: "podMesh",
		Sources:     []checkup.Endpoint{{Node: "n0"}, {Node: "n1"}, {Node: "n2"}},
		Targets:     []checkup.Endpoint{{Node: "n0"}, {Node: "n1"}, {Node: "n2"}},
		Assignments: [][]int{{1, 2}, {0, 2}, {0, 1}},
		IPFamilies:  []checkup.IPFamily{checkup.IPv4},
		Probes:      []checkup.TransportProbe{{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 5}}},
	}
}

// connections is a worksheet of two sources that measure one address three times.
func connections() *checkup.Worksheet {
	peer := &checkup.Peer{Host: "192.0.2.1", Port: 2379, Family: checkup.IPv4, Transport: checkup.TLS}
	return &checkup.Worksheet{
		Check: "api", Kind: "controlPlane",
		Sources:     []checkup.Endpoint{{Node: "n0"}, {Node: "n1"}},
		Targets:     []checkup.Endpoint{{Label: "etcd", Peer: peer}},
		Assignments: [][]int{{0}, {0}},
		Probes:      []checkup.TransportProbe{{Transport: checkup.TLS, Probe: checkup.Probe{Sizes: []int{0}, Count: 3}}},
		Connections: &checkup.ConnectionSheet{},
	}
}

// pairOf is a pair of the mesh.
func pairOf(source, target int) checkup.Pair {
	return checkup.Pair{Source: source, Target: target, Family: checkup.IPv4, Transport: checkup.UDP, Size: 64}
}

// connection is a pair of the connections.
func connection(source int) checkup.Pair {
	return checkup.Pair{Source: source, Family: checkup.IPv4, Transport: checkup.TLS}
}

func observed(source, target, received int) checkup.Message {
	return checkup.Message{Observation: &checkup.Observation{Pair: pairOf(source, target), Sent: 5, Received: received}}
}

// flows is an observation of a pair of source 0, by two source ports of which the second is not answered.
func flows(answered, not int) checkup.Message {
	m := observed(0, 1, 2)
	m.Observation.Flows = []checkup.Flow{{Port: answered, Sent: 2, Received: 2}, {Port: not, Sent: 3}}
	return m
}

// resultAt is the result of source 0 at a second, with a delay.
func resultAt(second int, delay int64) checkup.Result {
	return checkup.Result{
		Pair: connection(0), At: began.Add(time.Duration(second) * time.Second), Delays: checkup.StageDelays{Connect: delay},
	}
}

func results(of ...checkup.Result) checkup.Message { return checkup.Message{Results: of} }

func control(ok bool) checkup.Message {
	return checkup.Message{Control: &checkup.Control{Family: checkup.IPv4, Name: "self", OK: ok}}
}

func end(observations, results int) checkup.Message {
	return checkup.Message{End: &checkup.AgentEnd{Observations: observations, Results: results}}
}

// TestSource: each thing that a source may report counts as it should.
func TestSource(t *testing.T) {
	self := checkup.Control{Family: checkup.IPv4, Name: "self", OK: true}
	wrong := checkup.Control{Family: checkup.IPv4, Name: "self"}
	other := resultAt(0, 9)
	other.Source = 1
	elsewhere := resultAt(1, 1)
	elsewhere.At = elsewhere.At.In(time.FixedZone("", 3600))
	for _, tt := range []struct {
		name         string
		w            *checkup.Worksheet
		messages     []checkup.Message
		refused      int // messages that make no sense
		observations int
		results      int
		complete     bool
		want         checkup.Source // but for its End
	}{
		{name: "nothing", w: mesh()},
		{
			name: "all", w: mesh(), messages: []checkup.Message{control(true), observed(0, 1, 5), observed(0, 2, 5), end(2, 0)},
			observations: 2, complete: true, want: checkup.Source{Controls: []checkup.Control{self}},
		}, {
			name: "one less than it says", w: mesh(), messages: []checkup.Message{observed(0, 1, 5), end(2, 0)}, observations: 1,
		}, {
			name: "the same twice", w: mesh(), messages: []checkup.Message{observed(0, 1, 5), observed(0, 1, 5), end(1, 0)},
			observations: 1, complete: true,
		}, {
			name: "twice and differently", w: mesh(),
			messages:     []checkup.Message{observed(0, 2, 5), observed(0, 1, 5), observed(0, 2, 4), observed(0, 1, 4), observed(0, 1, 5)},
			observations: 2, want: checkup.Source{Conflicts: []checkup.Pair{pairOf(0, 1), pairOf(0, 2)}},
		}, {
			name: "twice, with different flows", w: mesh(), messages: []checkup.Message{flows(1, 2), flows(1, 2), flows(1, 3)},
			observations: 1, want: checkup.Source{Conflicts: []checkup.Pair{pairOf(0, 1)}},
		}, {
			name: "pairs of others, and one that is nobody's", w: mesh(),
			messages:     []checkup.Message{observed(1, 0, 5), observed(1, 0, 4), observed(0, 99, 5), observed(0, 1, 5), observed(-1, 0, 5)},
			observations: 1, want: checkup.Source{Unrequested: 3},
		}, {
			name: "the start of another source", w: mesh(), messages: []checkup.Message{{Start: &checkup.AgentStart{Source: 1}}}, refused: 1,
		}, {
			name: "a control pair twice and differently", w: mesh(), messages: []checkup.Message{control(true), control(false), control(true)},
			want: checkup.Source{Controls: []checkup.Control{wrong}},
		}, {
			name: "control pairs that do not exist", w: mesh(), refused: 2,
			messages: []checkup.Message{
				{Control: &checkup.Control{Family: checkup.IPv4, Name: "other"}}, {Control: &checkup.Control{Family: "IPv5", Name: "self"}},
			},
		}, {
			name: "what a responder reports", w: mesh(), refused: 1,
			messages: []checkup.Message{{Reception: &checkup.Reception{Pair: pairOf(0, 1), Packets: 5}}},
		}, {
			name: "results of a pair that is measured as a whole", w: mesh(), refused: 1,
			messages: []checkup.Message{results(checkup.Result{Pair: pairOf(0, 1), At: began})},
		}, {
			name: "results", w: connections(), messages: []checkup.Message{results(resultAt(0, 1), resultAt(1, 1)), results(resultAt(2, 1)), end(0, 3)},
			results: 3, complete: true,
		}, {
			name: "results again, in another time zone", w: connections(),
			messages: []checkup.Message{results(resultAt(0, 1), resultAt(1, 1)), results(elsewhere, resultAt(2, 1))}, results: 3,
		}, {
			name: "one result twice and differently", w: connections(),
			messages: []checkup.Message{results(resultAt(0, 1), resultAt(1, 1)), results(resultAt(0, 2))}, results: 2,
			want: checkup.Source{Conflicts: []checkup.Pair{connection(0)}},
		}, {
			name: "results of another source", w: connections(), messages: []checkup.Message{results(other, resultAt(0, 1))}, results: 1,
			want: checkup.Source{Unrequested: 1},
		}, {
			name: "a result without a time", w: connections(), messages: []checkup.Message{results(checkup.Result{Pair: connection(0)}, resultAt(0, 1))},
			refused: 1, results: 1,
		}, {
			name: "more results than were ordered", w: connections(), refused: 1,
			messages: []checkup.Message{results(resultAt(0, 1), resultAt(1, 1), resultAt(2, 1), resultAt(3, 1), resultAt(4, 1))}, results: 4,
		}, {
			name: "two ends", w: mesh(), messages: []checkup.Message{end(0, 0), end(2, 0)}, complete: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, to, refused := NewSource(tt.w, 0), &sink{}, 0
			for _, m := range tt.messages {
				fresh, ok := s.Take(m)
				fresh.To(to)
				if !ok {
					refused++
				}
			}
			if refused != tt.refused || len(to.observations) != tt.observations || len(to.results) != tt.results || s.Complete() != tt.complete {
				t.Errorf("%d messages refused, %d observations, %d results, complete: %t; want %d, %d, %d, %t",
					refused, len(to.observations), len(to.results), s.Complete(), tt.refused, tt.observations, tt.results, tt.complete)
			}
			got := s.Report()
			got.End = nil
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("source (-want +got):\n%s", diff)
			}
		})
	}
}

// TestHostileSource: however much a source makes up, what is kept of it is bounded.
func TestHostileSource(t *testing.T) {
	w := connections()
	s := NewSource(w, 0)
	for i := range 3 * MaxUnrequested {
		p := connection(0)
		p.Transport = checkup.Transport(strings.Repeat("x", 100) + fmt.Sprint(i))
		s.Take(results(checkup.Result{Pair: p, At: began}, resultAt(i, int64(i))))
		s.Take(checkup.Message{Control: &checkup.Control{Family: checkup.IPv4, Name: fmt.Sprint(i)}})
	}
	if got := s.Report(); got.Unrequested != MaxUnrequested || len(got.Controls) != 0 {
		t.Errorf("%d unrequested pairs and %d control pairs, want %d and 0", got.Unrequested, len(got.Controls), MaxUnrequested)
	}
	if s.Results() != 4 || len(s.pairs) != 1 {
		t.Errorf("%d results of %d pairs, want one more than the 3 that were ordered, of one", s.Results(), len(s.pairs))
	}
}

// TestLongReports: what is longer than was ordered is cut, and shows.
func TestLongReports(t *testing.T) {
	w := mesh()
	s := NewSource(w, 0)
	long := checkup.Cause{Stage: checkup.StageEcho, Message: strings.Repeat("ä", 1<<16)}
	forged := checkup.Cause{Stage: "owned\n::error::", Reason: "owned", Message: "x"}
	m := observed(0, 1, 2)
	ordered := w.Measurements(m.Observation.Pair)
	m.Observation.RTTs = make([]int64, 10_000)
	m.Observation.Connects = make([]int64, 10_000)
	m.Observation.Flows = make([]checkup.Flow, 10_000)
	m.Observation.Later = make([]string, 10_000)
	m.Observation.Failure, m.Observation.Unmeasured = &long, &forged
	got, ok := s.Take(m)
	if !ok || got.Observation == nil {
		t.Fatalf("the observation is refused")
	}
	o := got.Observation
	if len(o.RTTs) != ordered+1 || len(o.Flows) != checkup.MaxFlows+1 || len(o.Failure.Message) > MaxMessage+3 {
		t.Errorf("%d delays, %d flows and a message of %d bytes are kept", len(o.RTTs), len(o.Flows), len(o.Failure.Message))
	}
	if len(o.Connects) != ordered+1 {
		t.Errorf("%d delays of connects are kept, want one more than the %d that were ordered", len(o.Connects), ordered)
	}
	if len(o.Later) != checkup.IdleTries {
		t.Errorf("%d answers after the session affinity are kept, want those of %d tries", len(o.Later), checkup.IdleTries)
	}
	if !utf8.ValidString(o.Failure.Message) {
		t.Error("the message is cut within a character")
	}
	if want := (checkup.Cause{Stage: checkup.StageCollect, Message: "x"}); *o.Unmeasured != want {
		t.Errorf("a cause that nobody knows is kept as %+v, want %+v", *o.Unmeasured, want)
	}
}

// TestRecentResults: of a long watch the newest results are remembered, and a conflict
// among them is seen.
func TestRecentResults(t *testing.T) {
	w := connections()
	w.Probes[0].Count = 10 * recent
	s := NewSource(w, 0)
	for i := range 10 * recent {
		s.Take(results(resultAt(i, 1)))
	}
	s.Take(results(resultAt(9*recent, 1), resultAt(10*recent-1, 1)))
	if got := s.Report(); len(got.Conflicts) != 0 || len(s.pairs[connection(0)].newest) != recent {
		t.Errorf("conflicts %v, %d results remembered; want none, %d", got.Conflicts, len(s.pairs[connection(0)].newest), recent)
	}
	s.Take(results(resultAt(9*recent, 2)))
	if got := s.Report(); len(got.Conflicts) != 1 {
		t.Errorf("conflicts %v, want one", got.Conflicts)
	}
}

// sink keeps what is new.
type sink struct {
	observations []checkup.Observation
	results      []checkup.Result
}

func (s *sink) Observation(o checkup.Observation) { s.observations = append(s.observations, o) }
func (s *sink) Results(r []checkup.Result)        { s.results = append(s.results, r...) }
func (*sink) Source(checkup.Source)               {}

// ingested is all that came of a log.
type ingested struct {
	Observations []checkup.Observation
	Results      []checkup.Result
	Source       checkup.Source
	Receptions   []checkup.Reception
}

// ingest reads a log piece by piece, as the log of source 0 and as that of the
// responder of target 1.
func ingest(t *testing.T, w *checkup.Worksheet, pieces ...[]byte) ingested {
	s, to, received := NewSource(w, 0), &sink{}, NewReceptions(w, 1)
	for _, piece := range pieces {
		if _, err := Lines(bytes.NewReader(piece), func(m checkup.Message) bool {
			fresh, ok := s.Take(m)
			fresh.To(to)
			return received.Take(m) || ok
		}); err != nil {
			t.Fatal(err)
		}
	}
	return ingested{to.observations, to.results, s.Report(), received.All()}
}

// TestTimes: the time of a result that is handed on can be written, in any zone.
func TestTimes(t *testing.T) {
	for _, at := range append(hostileTimes, "2026-01-02T03:04:05+01:00", "1970-01-01T00:00:00Z", "2200-12-31T23:59:59Z") {
		s, to := NewSource(connections(), 0), &sink{}
		garbage, err := Lines(strings.NewReader(resultLine(at)), func(m checkup.Message) bool {
			fresh, ok := s.Take(m)
			fresh.To(to)
			return ok
		})
		if err != nil || garbage+len(to.results) != 1 {
			t.Errorf("%s: %v, %d lines of garbage, %d results", at, err, garbage, len(to.results))
		}
		for _, r := range to.results {
			for _, zone := range []int{-23, 0, 23} {
				if _, err := r.At.In(time.FixedZone("", zone*3600)).MarshalJSON(); err != nil {
					t.Errorf("%s: %v", at, err)
				}
			}
			if r.At.Location() != time.UTC {
				t.Errorf("%s: in zone %s", at, r.At.Location())
			}
		}
		if good := !slices.Contains(hostileTimes, at) || strings.HasPrefix(at, "2026"); good != (len(to.results) == 1) {
			t.Errorf("%s: %d results", at, len(to.results))
		}
	}
}

// FuzzIngest: whatever a log holds, reading it again from any line on changes nothing,
// reading it in pieces is the same as reading it at once, and what comes of it is about
// the pairs of its source, each once.
func FuzzIngest(f *testing.F) {
	log := func(messages ...checkup.Message) []byte {
		var b bytes.Buffer
		for _, m := range messages {
			if err := json.NewEncoder(&b).Encode(m); err != nil {
				f.Fatal(err)
			}
		}
		return b.Bytes()
	}
	reception := checkup.Message{Reception: &checkup.Reception{Pair: pairOf(0, 1), Packets: 4, Dropped: 1}}
	f.Add(log(control(true), observed(0, 1, 5), observed(0, 2, 5), end(2, 0)), uint(2))
	f.Add(log(observed(0, 1, 5), observed(0, 1, 4), observed(1, 0, 4), end(1, 0), end(2, 0)), uint(1))
	f.Add(log(control(true), control(false), reception, observed(0, 1, 5), reception), uint(3))
	f.Add(log(results(resultAt(0, 1), resultAt(1, 1)), results(resultAt(1, 2), resultAt(2, 1), resultAt(3, 1), resultAt(4, 1))), uint(1))
	for _, at := range hostileTimes {
		f.Add([]byte(resultLine(at)), uint(1))
	}
	f.Add([]byte("panic: oh\n\n{}\nnull\n{\"results\":[{}]}\n"), uint(2))
	f.Fuzz(func(t *testing.T, in []byte, at uint) {
		if bytes.Count(in, []byte("\n")) > MaxGarbage {
			t.Skip("more lines than are read of garbage")
		}
		in = in[:bytes.LastIndexByte(in, '\n')+1]
		lines := bytes.SplitAfter(in, []byte("\n"))
		cut := 0
		for _, line := range lines[:at%uint(len(lines))] {
			cut += len(line)
		}
		for _, w := range []*checkup.Worksheet{mesh(), connections()} {
			whole := ingest(t, w, in)
			for name, pieces := range map[string][][]byte{
				"in two pieces":      {in[:cut], in[cut:]},
				"again from a line":  {in, in[cut:]},
				"again to a line":    {in, in[:cut]},
				"broken and resumed": {in[:cut], in},
			} {
				if diff := cmp.Diff(whole, ingest(t, w, pieces...)); diff != "" {
					t.Errorf("%s: %s (-whole +got):\n%s", w.Check, name, diff)
				}
			}
			if _, err := json.Marshal(whole); err != nil {
				t.Error(err)
			}
			expected := slices.Collect(w.PairsOf(0))
			seen := map[checkup.Pair]bool{}
			for _, o := range whole.Observations {
				if seen[o.Pair] || !slices.Contains(expected, o.Pair) {
					t.Errorf("observation of %v: reported before or not expected", o.Pair)
				}
				seen[o.Pair] = true
			}
			for _, r := range whole.Results {
				if !slices.Contains(expected, r.Pair) {
					t.Errorf("result of %v, which is not expected", r.Pair)
				}
			}
			for _, r := range whole.Receptions {
				if r.Target != 1 || r.Packets < 0 || r.Dropped < 0 {
					t.Errorf("reception %+v of the responder of target 1", r)
				}
			}
		}
	})
}

// TestReceptions: a responder counts the expected pairs of its own target.
func TestReceptions(t *testing.T) {
	r := NewReceptions(mesh(), 1)
	take := func(p checkup.Pair, packets int) bool {
		return r.Take(checkup.Message{Reception: &checkup.Reception{Pair: p, Packets: packets}})
	}
	sizes := pairOf(0, 1)
	sizes.Size = 65
	for _, tt := range []struct {
		name    string
		pair    checkup.Pair
		packets int
		want    bool
	}{
		{"expected", pairOf(2, 1), 3, true},
		{"another source", pairOf(0, 1), 2, true},
		{"more of the same", pairOf(0, 1), 5, true},
		{"an older count", pairOf(0, 1), 4, true},
		{"another target", pairOf(0, 2), 5, false},
		{"not on the worksheet", pairOf(1, 1), 5, false},
		{"another size", sizes, 5, false},
		{"no such source", pairOf(99, 1), 5, false},
		{"a negative source", pairOf(-1, 1), 5, false},
		{"a negative count", pairOf(0, 1), -1, false},
	} {
		if got := take(tt.pair, tt.packets); got != tt.want {
			t.Errorf("%s: counts: %t, want %t", tt.name, got, tt.want)
		}
	}
	if r.Take(observed(0, 1, 5)) {
		t.Error("an observation counts as a reception")
	}
	want := []checkup.Reception{{Pair: pairOf(0, 1), Packets: 5}, {Pair: pairOf(2, 1), Packets: 3}}
	if diff := cmp.Diff(want, r.All()); diff != "" {
		t.Errorf("receptions (-want +got):\n%s", diff)
	}
}

// TestReceptionsOfAFurtherLook: a responder counts each look for itself, and its log has all of
// them.
func TestReceptionsOfAFurtherLook(t *testing.T) {
	w := mesh()
	w.Look = 1
	r := NewReceptions(w, 1)
	for look, want := range []bool{true, true, false} {
		m := checkup.Message{Reception: &checkup.Reception{Pair: pairOf(0, 1), Look: look, Packets: 9 - look, Dropped: 3 - look}}
		if got := r.Take(m); got != want {
			t.Errorf("look %d: makes sense: %t, want %t", look, got, want)
		}
	}
	want := []checkup.Reception{{Pair: pairOf(0, 1), Look: 1, Packets: 8, Dropped: 2}}
	if diff := cmp.Diff(want, r.All()); diff != "" {
		t.Errorf("receptions (-want +got):\n%s", diff)
	}
	if NewReceptions(mesh(), 1).Take(checkup.Message{Reception: &want[0]}) {
		t.Error("a count of a further look makes sense before there was one")
	}
}

// BenchmarkSource reads the log of an agent with 100 pairs of 100 measurements each.
func BenchmarkSource(b *testing.B) {
	w := mesh()
	w.Probes[0].Sizes = nil
	for size := range 50 {
		w.Probes[0].Sizes = append(w.Probes[0].Sizes, size)
	}
	var log bytes.Buffer
	for p := range w.PairsOf(0) {
		o := &checkup.Observation{Pair: p, Sent: 100, Received: 100, RTTs: make([]int64, 100)}
		for i := range o.RTTs {
			o.RTTs[i] = int64(100 + i)
		}
		if err := json.NewEncoder(&log).Encode(checkup.Message{Observation: o}); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(log.Len()))
	for b.Loop() {
		s := NewSource(w, 0)
		if _, err := Lines(io.Reader(bytes.NewReader(log.Bytes())), func(m checkup.Message) bool {
			_, ok := s.Take(m)
			return ok
		}); err != nil {
			b.Fatal(err)
		}
	}
}
