// SPDX-License-Identifier: Apache-2.0

package networkhealth

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/checkup/hostile"
)

func diff(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// TestFault: the same objects say Unreachable during a fault, and Reachable after it.
func TestFault(t *testing.T) {
	m := newMesh("a", "b", "c")
	m.dead[[2]int{0, 2}] = true // a -> c
	m.next(t, m.input(), 10*time.Minute)
	diff(t, "during", list(m.existing),
		"a b Reachable Answered", "a c Unreachable NoAnswer", "b a Reachable Answered",
		"b c Reachable Answered", "c a Reachable Answered", "c b Reachable Answered")
	delete(m.dead, [2]int{0, 2})
	c := m.next(t, m.input(), 0)
	diff(t, "after", list(m.existing),
		"a b Reachable Answered", "a c Reachable Answered", "b a Reachable Answered",
		"b c Reachable Answered", "c a Reachable Answered", "c b Reachable Answered")
	if len(c.Delete) > 0 || c.Objects != 6 || c.Omitted != 0 {
		t.Errorf("deleted %d, %d objects, %d omitted", len(c.Delete), c.Objects, c.Omitted)
	}
	for _, h := range m.existing {
		changed := start.Add(40 * time.Second)
		if h.Spec.Source.Node == "a" && h.Spec.Target.Node == "c" {
			changed = changed.Add(10 * time.Minute)
		}
		if !h.Status.LastTransitionTime.Equal(changed) {
			t.Errorf("%s changed at %s, want %s", h.Name, h.Status.LastTransitionTime, changed)
		}
	}
}

// TestObject: everything that an object says.
func TestObject(t *testing.T) {
	m := newMesh("a", "b")
	m.pods("shop/cart-0")
	m.w.Assignments = [][]int{{0}, nil}
	m.lossy[[2]int{0, 0}] = 1
	m.probes = append(m.probes, checkup.TransportProbe{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56}, Count: 4, Timeout: checkup.Duration(time.Second)}})
	c := Reconcile(m.input())
	if len(c.Write) != 1 {
		t.Fatalf("%d objects", len(c.Write))
	}
	window := Window{Start: start.Add(20 * time.Second), End: start.Add(40 * time.Second)}
	want := Status{
		Reachability: Reachable, Reason: ReasonAnswered, Message: "2 probes answered; 1 of 14 measurements were not",
		LastTransitionTime: window.End, LastObservationTime: window.End,
		StaleTime: window.End.Add(time.Hour), ExpireTime: window.End.Add(24 * time.Hour),
		ObservedBy: ObservedBy{Run: "run-0", RunUID: "run-uid-0"},
		Source:     &ObservedPod{Namespace: "checks", Name: "agent-0-run-0", UID: "agent-uid-0-0", Node: "a", Addresses: []string{"198.18.1.1"}},
		Target:     &ObservedPod{Namespace: "shop", Name: "cart-0", UID: "uid-0", Node: "target-node", Addresses: []string{"198.18.0.1"}},
		Loss:       &Loss{Window: window, Sent: 14, Lost: 1, Percent: "7.143%"},
		Latency:    &Latency{Window: window, Probe: "tcp IPv4 0B", Count: 9, Min: 100, Mean: 104, P50: 104, P90: 108, P99: 108, Max: 108},
		Probes: []Probe{
			{Name: "tcp IPv4 0B", Reachability: Reachable, Message: "connect: timed out", Sent: new(int64(10)), Lost: new(int64(1)), P50: new(int64(104)), Max: new(int64(108))},
			{Name: "icmp IPv4 56B", Reachability: Reachable, Sent: new(int64(4)), Lost: new(int64(0)), P50: new(int64(101)), Max: new(int64(103))},
		},
		Coverage: Coverage{Extent: Partial, MeasuredPairs: 1, PossiblePairs: 2, Sampling: "an agent pod that the run started on the source's node, " +
			"not a workload, measured to the target's own pod; podMesh check, round 0 of 1, degree 1, seed 7"},
	}
	if d := cmp.Diff(want, c.Write[0].Status); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	spec := Spec{
		Observer: Observer{Name: "checkplan", Plan: "day-2", Check: "mesh"},
		Source:   Endpoint{Kind: StandIn, Node: "a"},
		Target:   Endpoint{Kind: Workload, Namespace: "shop", Name: "cart-0", UID: "uid-0", Node: "target-node"},
	}
	if d := cmp.Diff(spec, c.Write[0].Spec); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if want := map[string]string{checkup.LabelManagedBy: "checkplan", checkup.LabelPlan: "day-2", checkup.LabelCheck: "mesh"}; !cmp.Equal(want, c.Write[0].Labels) {
		t.Errorf("labels %v", c.Write[0].Labels)
	}
}

// TestWorkloadSource: a pod that exists is the source itself, by its UID, with its own addresses. Its object goes on
// from run to run; a pod that is created again under the name is another source.
func TestWorkloadSource(t *testing.T) {
	m := newMesh("a", "b")
	m.inside("shop/web-0", "shop/web-1")
	m.pods("shop/cart-0")
	m.dead[[2]int{1, 0}] = true
	c := m.next(t, m.input(), 10*time.Minute)
	if len(c.Write) != 2 {
		t.Fatalf("%d objects", len(c.Write))
	}
	cart := Endpoint{Kind: Workload, Namespace: "shop", Name: "cart-0", UID: "uid-0", Node: "target-node"}
	for i, want := range []struct {
		source Endpoint
		reach  Reachability
	}{
		{Endpoint{Kind: Workload, Namespace: "shop", Name: "web-1", UID: "uid-of-shop/web-1", Node: "b"}, Unreachable},
		{Endpoint{Kind: Workload, Namespace: "shop", Name: "web-0", UID: "uid-of-shop/web-0", Node: "a"}, Reachable},
	} {
		w := c.Write[i]
		if w.Spec.Source != want.source || w.Spec.Target != cart || w.Status.Reachability != want.reach {
			t.Errorf("object %+v is %s, want source %+v, %s", w.Spec, w.Status.Reachability, want.source, want.reach)
		}
		pod := &ObservedPod{Namespace: "shop", Name: want.source.Name, UID: want.source.UID, Node: want.source.Node, Addresses: []string{"198.18.1.1"}}
		if d := cmp.Diff(pod, w.Status.Source); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if want := "an agent in the source's own pod measured to the target's own pod; "; !strings.HasPrefix(w.Status.Coverage.Sampling, want) {
			t.Errorf("sampling %q, want %q", w.Status.Coverage.Sampling, want)
		}
	}
	first := c.Write[1].Name
	if c := m.next(t, m.input(), 10*time.Minute); len(c.Write) != 2 || c.Write[1].Name != first || c.Write[1].Before == nil {
		t.Errorf("the next run writes %v, want the same objects", names(c))
	}
	// The agent cannot be inserted: whose pod it is now is not known. The object stays until it is stale.
	m.mute[0] = true
	m.next(t, m.input(), 2*time.Hour)
	m.next(t, m.input(), 10*time.Minute)
	if got := list(m.existing); !slices.Contains(got, "a shop/cart-0 Unknown Stale") || len(got) != 2 {
		t.Errorf("objects %q, want that of web-0 Unknown", got)
	}
	m.mute[0], m.uids["shop/web-0"] = false, "created again"
	m.next(t, m.input(), 10*time.Minute)
	if got := list(m.existing); !slices.Equal(got, []string{
		"a shop/cart-0 Reachable Answered", "a shop/cart-0 Unknown SourceGone", "b shop/cart-0 Unreachable NoAnswer",
	}) {
		t.Errorf("objects %q, want one of each pod", got)
	}
}

// TestReachability: of a pair with two probes, by what became of each.
func TestReachability(t *testing.T) {
	answered, lost, unmeasured := "answered", "lost", "unmeasured"
	for _, tt := range []struct {
		tcp, icmp string
		want      Reachability
		reason    string
		message   string
	}{
		{answered, answered, Reachable, ReasonAnswered, "2 probes answered"},
		{answered, lost, Unreachable, ReasonSomeNoAnswer, "1 of 2 probes were not answered: icmp IPv4 56B: connect: timed out"},
		{lost, lost, Unreachable, ReasonNoAnswer, "no probe was answered: tcp IPv4 0B: connect: timed out"},
		{answered, unmeasured, Unknown, ReasonSomeMissing, "1 of 2 probes were not measured: icmp IPv4 56B: collect: lost in a log"},
		{lost, unmeasured, Unreachable, ReasonSomeNoAnswer, "1 of 2 probes were not answered: tcp IPv4 0B: connect: timed out"},
		{unmeasured, unmeasured, Unknown, ReasonNotMeasured, "the run could not measure it: tcp IPv4 0B: collect: lost in a log"},
	} {
		t.Run(tt.tcp+" "+tt.icmp, func(t *testing.T) {
			m := newMesh("a", "b")
			m.w.Assignments = [][]int{{1}, nil}
			m.probes = append(m.probes, checkup.TransportProbe{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56}, Count: 4, Timeout: checkup.Duration(time.Second)}})
			m.otherwise = func(r *checkup.CheckReport) {
				r.Units = nil
				for i, what := range []string{tt.tcp, tt.icmp} {
					p := m.probes[i]
					u := checkup.Unit{Source: "a", Target: "b", Family: checkup.IPv4, Transport: p.Transport, Size: p.Sizes[0], Sent: p.Count}
					switch what {
					case lost:
						u.Verdict, u.Cause = checkup.Fail, &checkup.Cause{Stage: checkup.StageConnect, Message: "timed out"}
					case unmeasured: // the numbers of a unit that is not trusted do not count
						u.Verdict, u.Received, u.Cause = checkup.Unmeasured, p.Count, &checkup.Cause{Stage: checkup.StageCollect, Message: "lost in a log"}
					default:
						continue
					}
					r.Units = append(r.Units, u)
				}
			}
			w := Reconcile(m.input()).Write[0].Status
			if w.Reachability != tt.want || w.Reason != tt.reason || w.Message != tt.message {
				t.Errorf("%s %s %q\nwant %s %s %q", w.Reachability, w.Reason, w.Message, tt.want, tt.reason, tt.message)
			}
			if measured := tt.tcp != unmeasured || tt.icmp != unmeasured; measured == w.LastObservationTime.IsZero() {
				t.Errorf("observed at %s", w.LastObservationTime)
			}
		})
	}
}

// TestSecondLook: what a further look found is the last observation, and has its time.
func TestSecondLook(t *testing.T) {
	m := newMesh("a", "b")
	m.w.Assignments = [][]int{{1}, nil}
	m.dead[[2]int{0, 1}] = true
	in := m.input()
	c := in.Checks[0]
	c.Report.Units[0].Confirmation, c.Report.Units[0].After = checkup.Gone, checkup.Duration(5*time.Second)
	c.Report.Units[0].Verdict, c.Report.Units[0].Received, c.Report.Units[0].Delay = checkup.Pass, 9, &checkup.Delay{P50: 5, P90: 5, P99: 5, Max: 5}
	c.Record.Looks = []checkup.Look{{Record: checkup.Record{Sources: []checkup.Source{{Ended: start.Add(50 * time.Second)}}}}}
	st := Reconcile(in).Write[0].Status
	if st.Reachability != Reachable || !st.LastObservationTime.Equal(start.Add(50*time.Second)) || st.Loss.Lost != 1 {
		t.Errorf("%s at %s, lost %d", st.Reachability, st.LastObservationTime, st.Loss.Lost)
	}
}

// TestNotMeasured: a run that could not measure a pair keeps its last observation, and says Unknown.
func TestNotMeasured(t *testing.T) {
	m := newMesh("a", "b")
	m.next(t, m.input(), 10*time.Minute)
	m.mute[0] = true
	m.next(t, m.input(), 0)
	diff(t, "objects", list(m.existing), "a b Unknown NotMeasured", "b a Reachable Answered")
	i := slices.IndexFunc(m.existing, func(h *Health) bool { return h.Spec.Source.Node == "a" })
	st := m.existing[i].Status
	if !strings.HasSuffix(st.Message, "tcp IPv4 0B: start: the image cannot be pulled") || st.Latency == nil ||
		!st.LastObservationTime.Equal(start.Add(40*time.Second)) || st.ObservedBy.Run != "run-1" {
		t.Errorf("%+v", st)
	}
}

// TestAges: without new observations an object becomes Unknown, and then goes.
func TestAges(t *testing.T) {
	m := newMesh("a", "b", "c")
	m.next(t, m.input(), 0)
	m.w.Assignments = [][]int{{1}, nil, nil} // the sample has one pair now
	for _, tt := range []struct {
		after time.Duration // of the observation
		want  []string
	}{
		{59 * time.Minute, []string{"a b Reachable Answered", "a c Reachable Answered"}},
		{time.Hour, []string{"a b Reachable Answered", "a c Unknown Stale"}},
		{23 * time.Hour, []string{"a b Reachable Answered", "a c Unknown Stale"}},
		{24 * time.Hour, []string{"a b Reachable Answered"}},
	} {
		m.at = start.Add(tt.after - 20*time.Second) // a run ends a minute after it started
		m.next(t, m.input(), 0)
		got := slices.DeleteFunc(list(m.existing), func(l string) bool { return !strings.HasPrefix(l, "a") })
		diff(t, tt.after.String(), got, tt.want...)
	}
}

// TestGone: the objects of a pod that is gone say so, and go after the grace time; those of a pod that is not ready,
// and those of others, stay.
func TestGone(t *testing.T) {
	m := newMesh("a")
	m.pods("shop/cart-0", "shop/cart-1")
	m.next(t, m.input(), 10*time.Minute)
	gone := func() {
		m.pods("shop/cart-0", "shop/cart-1")
		m.uids["shop/cart-1"] = "uid-9" // created again under its name
	}
	gone()
	m.next(t, m.input(), 50*time.Minute)
	diff(t, "at once", list(m.existing),
		"a shop/cart-0 Reachable Answered", "a shop/cart-1 Reachable Answered", "a shop/cart-1 Unknown TargetGone")
	gone()
	m.next(t, m.input(), 10*time.Minute)
	if len(m.existing) != 3 {
		t.Errorf("after 50m: %q", list(m.existing))
	}
	gone()
	m.next(t, m.input(), 0)
	diff(t, "after the grace time", list(m.existing), "a shop/cart-0 Reachable Answered", "a shop/cart-1 Reachable Answered")

	nodes := newMesh("a", "b")
	nodes.next(t, nodes.input(), 10*time.Minute)
	nodes.nodes("a", "c")
	nodes.grace = 0
	nodes.next(t, nodes.input(), 0)
	diff(t, "node b is gone, without grace", list(nodes.existing), "a c Reachable Answered", "c a Reachable Answered")
}

// TestBack: a node that was gone for a moment is Unknown until it is measured.
func TestBack(t *testing.T) {
	m := newMesh("a", "b", "c")
	m.next(t, m.input(), time.Minute)
	m.nodes("a", "b")
	m.next(t, m.input(), time.Minute)
	m.nodes("a", "b", "c")
	m.w.Assignments = [][]int{{1, 2}, nil, nil}
	m.next(t, m.input(), time.Minute)
	diff(t, "objects", list(m.existing),
		"a b Reachable Answered", "a c Reachable Answered", "b a Reachable Answered", "b c Unknown Stale", "c a Unknown Stale", "c b Unknown Stale")
	for _, h := range m.existing {
		if !h.Status.PodGoneTime.IsZero() {
			t.Errorf("%s is still gone", h.Name)
		}
	}
}

// TestOthers: what this run does not know stays: objects of other plans age only, those of other checks, too.
func TestOthers(t *testing.T) {
	m := newMesh("a", "b")
	object := func(plan, check string, observed time.Time) *Health {
		s := Spec{Observer: Observer{ObserverName, plan, check}, Source: Endpoint{Kind: StandIn, Node: "x"}, Target: Endpoint{Kind: StandIn, Node: "y"}}
		return &Health{ObjectMeta: metav1.ObjectMeta{Name: NameOf(s), CreationTimestamp: metav1.NewTime(observed)}, Spec: s, Status: &Status{
			Reachability: Unreachable, Reason: ReasonNoAnswer, LastObservationTime: observed, StaleTime: observed.Add(time.Hour), ExpireTime: observed.Add(2 * time.Hour),
		}}
	}
	m.existing = []*Health{
		object("other", "fresh", start), object("other", "stale", start.Add(-time.Hour)), object("other", "old", start.Add(-3*time.Hour)),
		object("day-2", "removed", start), object("day-2", "removed-stale", start.Add(-time.Hour)), object("day-2", "removed-old", start.Add(-3*time.Hour)),
	}
	for _, plan := range []string{"other", "day-2"} { // this run does not look for the pods
		gone := object(plan, "gone", start)
		gone.Status.Reachability, gone.Status.Reason, gone.Status.PodGoneTime = Unknown, ReasonTargetGone, start
		m.existing = append(m.existing, gone)
	}
	bare := object("day-2", "bare", start.Add(-2*time.Hour))
	young := object("other", "young", start)
	bare.Status, young.Status = nil, nil
	m.existing = append(m.existing, bare, young)
	m.next(t, m.input(), 0)
	var got []string
	for _, h := range m.existing {
		if h.Spec.Source.Node == "x" {
			state := "-"
			if h.Status != nil {
				state = string(h.Status.Reachability) + " " + h.Status.Reason
			}
			got = append(got, h.Spec.Observer.Plan+" "+h.Spec.Observer.Check+": "+state)
		}
	}
	slices.Sort(got)
	diff(t, "objects", got, "day-2 gone: Unknown TargetGone", "day-2 removed-stale: Unknown Stale", "day-2 removed: Unreachable NoAnswer",
		"other fresh: Unreachable NoAnswer", "other gone: Unknown TargetGone", "other stale: Unknown Stale", "other young: -")
}

// TestTwoRunsAtOnce: the newer observation stays.
func TestTwoRunsAtOnce(t *testing.T) {
	m := newMesh("a", "b")
	older := m.input()
	m.at, m.run = m.at.Add(5*time.Second), 1
	m.dead[[2]int{0, 1}] = true
	m.next(t, m.input(), 0)
	older.Existing = m.existing
	c := Reconcile(older)
	for _, w := range c.Write {
		if w.Status.ObservedBy.Run == "run-0" {
			t.Errorf("%s is overwritten by an older observation", w.Name)
		}
	}
	diff(t, "objects", list(made(t, m.existing, c, start)), "a b Unreachable NoAnswer", "b a Reachable Answered")
}

// TestBound is a property: whatever happens in a series of runs, a plan has at most its number of objects, no object
// that is dropped is worse than one that is kept, each object is one that the API server accepts, and each says what
// was observed last.
func TestBound(t *testing.T) {
	a := newAPI(t)
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m := newMesh("a", "b", "c")
		for range 12 {
			var nodes []string
			for i := range 2 + rnd.IntN(6) {
				nodes = append(nodes, fmt.Sprintf("worker-%d", (i+rnd.IntN(2))*7%11))
			}
			slices.Sort(nodes)
			m.nodes(slices.Compact(nodes)...)
			if rnd.IntN(4) == 0 {
				m.pods("shop/cart-0", "shop/cart-1", "db/pg")
			}
			for s := range m.w.Assignments {
				m.w.Assignments[s] = slices.DeleteFunc(m.w.Assignments[s], func(int) bool { return rnd.IntN(3) == 0 })
			}
			clear(m.dead)
			clear(m.lossy)
			clear(m.mute)
			for s := range m.w.Sources {
				m.mute[s] = rnd.IntN(6) == 0
				for target := range m.w.Targets {
					m.dead[[2]int{s, target}] = rnd.IntN(5) == 0
					m.lossy[[2]int{s, target}] = rnd.IntN(3)
				}
			}
			m.max = 1 + rnd.IntN(12)
			in := m.input()
			c := m.next(t, in, time.Duration(rnd.IntN(150))*time.Minute)
			if len(m.existing) > m.max || c.Objects != len(m.existing) {
				t.Fatalf("seed %d: %d objects, %d announced, at most %d are allowed", seed, len(m.existing), c.Objects, m.max)
			}
			unbound := in
			unbound.Config.MaxObjects = 1000
			all := Reconcile(unbound)
			worst := [3]int{}
			for _, h := range made(t, in.Existing, all, in.Run.Finished) {
				worst[rank(h.Status.Reachability)]++
			}
			kept := [3]int{}
			for _, h := range m.existing {
				kept[rank(h.Status.Reachability)]++
			}
			left := m.max
			for i := range worst {
				if want := min(worst[i], left); kept[i] != want {
					t.Fatalf("seed %d: %d objects are %s, want %d of %d", seed, kept[i], Reachabilities[i], want, worst[i])
				}
				left -= kept[i]
			}
			for _, w := range c.Write {
				if refused := a.refuses(objectOf(&w), nil); refused != "" {
					t.Fatalf("seed %d: %s", seed, refused)
				}
				if errs := validation.IsDNS1123Label(w.Name); len(errs) > 0 {
					t.Fatalf("name %s: %v", w.Name, errs)
				}
			}
			if again := Reconcile(in); !cmp.Equal(names(c), names(again)) {
				t.Fatalf("seed %d: the same input gives other changes", seed)
			}
		}
	}
}

func names(c Changes) (names []string) {
	for _, h := range c.Delete {
		names = append(names, "delete "+h.Name)
	}
	for _, w := range c.Write {
		names = append(names, "write "+w.Name)
	}
	return names
}

// TestOrder: what is kept if there is not room for all, one object less each time.
func TestOrder(t *testing.T) {
	m := newMesh("a", "b", "c", "d")
	m.w.Assignments = [][]int{{1, 2, 3}, {0, 2}, nil, nil}
	m.next(t, m.input(), 10*time.Minute) // a -> d and b -> c are observed now only
	m.w.Assignments = [][]int{{1, 2}, {0}, {0}, {0}}
	m.dead[[2]int{0, 1}], m.lossy[[2]int{0, 2}], m.mute[2] = true, 3, true
	in := m.input()
	want := []string{
		"a b Unreachable NoAnswer", // answered nothing
		"c a Unknown NotMeasured",
		"a c Reachable Answered", // with loss
		"a d Reachable Answered", // observed 10 minutes ago
		"b c Reachable Answered",
		"b a Reachable Answered", // existing
		"d a Reachable Answered", // new
	}
	for most := len(want); most > 0; most-- {
		in.Config.MaxObjects = most
		c := Reconcile(in)
		kept := slices.Clone(want[:most])
		slices.Sort(kept)
		diff(t, fmt.Sprintf("at most %d", most), list(made(t, in.Existing, c, in.Run.Finished)), kept...)
		if c.Omitted != len(want)-most {
			t.Errorf("at most %d: %d omitted", most, c.Omitted)
		}
		for _, w := range c.Write {
			if !w.Aged && w.Status.Coverage.ObjectsOmitted != int64(c.Omitted) {
				t.Errorf("%s: %d omitted, want %d", w.Name, w.Status.Coverage.ObjectsOmitted, c.Omitted)
			}
		}
	}
}

// TestLargeMesh: more pairs than are sorted at once.
func TestLargeMesh(t *testing.T) {
	var nodes []string
	for i := range 150 {
		nodes = append(nodes, fmt.Sprintf("n%03d", i))
	}
	m := newMesh(nodes...)
	m.max = 3
	m.dead[[2]int{149, 0}], m.dead[[2]int{3, 140}] = true, true
	c := Reconcile(m.input())
	if c.Objects != 3 || c.Omitted != 150*149-3 || c.Write[1].Status.Reachability != Unreachable || c.Write[2].Status.Reachability != Reachable {
		t.Errorf("%d objects, %d omitted", c.Objects, c.Omitted)
	}
}

// TestNames: names are DNS labels, differ where anything of the pair differs, and do not change.
func TestNames(t *testing.T) {
	base := Spec{
		Observer: Observer{ObserverName, "plan", "check"}, Source: Endpoint{Kind: StandIn, Node: "worker-1.example.com"},
		Target: Endpoint{Kind: Workload, Namespace: "shop", Name: "cart-0", UID: "u", Node: "worker-2"},
	}
	if got, want := NameOf(base), "worker-1-example-com-to-cart-0-"; !strings.HasPrefix(got, want) {
		t.Errorf("name %s, want %s and a hash", got, want)
	}
	seen := map[string]bool{NameOf(base): true}
	for _, change := range []func(*Spec){
		func(s *Spec) { s.Observer.Plan = "plan2" }, func(s *Spec) { s.Observer.Check = "check2" },
		func(s *Spec) { s.Source.Node = "worker-1-example.com" }, func(s *Spec) { s.Target.Namespace = "shop2" },
		func(s *Spec) { s.Target.UID = "u2" }, func(s *Spec) { s.Target.Node = "worker-3" },
		func(s *Spec) { s.Source, s.Target = s.Target, s.Source }, func(s *Spec) { s.Source.Node = "" },
		func(s *Spec) { s.Source.Node = strings.Repeat("é.", 100) }, func(s *Spec) { s.Target.Name = strings.Repeat("a", 23) + "-" + strings.Repeat("b", 200) },
	} {
		s := base
		change(&s)
		name := NameOf(s)
		if seen[name] || NameOf(s) != name {
			t.Errorf("name %s is not unique", name)
		}
		seen[name] = true
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
			t.Errorf("name %s: %v", name, errs)
		}
	}
}

// TestUnusable: checks whose report does not judge the pairs of the worksheet, and pairs that cannot be named, have no
// objects.
func TestUnusable(t *testing.T) {
	for name, change := range map[string]func(*Measured){
		"not set up":      func(m *Measured) { m.Worksheet = nil },
		"not judged":      func(m *Measured) { m.Report.Coverage = nil },
		"other units":     func(m *Measured) { m.Report.Counts.Expected++ },
		"unit of another": func(m *Measured) { m.Report.Units = []checkup.Unit{{Source: "z", Target: "a"}} },
		"of components":   func(m *Measured) { m.Worksheet.Connections = &checkup.ConnectionSheet{} },
		"of own Services": func(m *Measured) { m.Worksheet.Services = []checkup.ServiceFixture{{Name: "cluster-ip"}} },
		"of VMs":          func(m *Measured) { m.Worksheet.Guests = &checkup.GuestSheet{} },
		"hostile nodes": func(m *Measured) {
			m.Worksheet.Sources[0].Node, m.Worksheet.Sources[1].Node = "a\x1b[31m", strings.Repeat("n", 254)
		},
		"pods without a UID": func(m *Measured) { m.Worksheet.Targets[0].Pod, m.Worksheet.Targets[1].Pod = "ns/a", "ns/b" },
		"not on a node":      func(m *Measured) { m.Worksheet.Targets[0].Node, m.Worksheet.Targets[1].Node = "", "" },
	} {
		t.Run(name, func(t *testing.T) {
			in := newMesh("a", "b").input()
			in.Checks[0].Record.Observations[0].Sent = 1
			change(&in.Checks[0])
			if c := Reconcile(in); len(c.Write) != 0 {
				t.Errorf("writes %v", names(c))
			}
		})
	}
}

// TestHostile: whatever agents report and objects hold, the API server accepts what is written.
func TestHostile(t *testing.T) {
	a := newAPI(t)
	long := strings.Repeat("é\x1b]0;", 2000) + hostile.Text
	m := newMesh("a", "b", "c")
	m.probes[0].Sizes = nil
	for i := range 40 { // more than an object lists
		m.probes[0].Sizes = append(m.probes[0].Sizes, i)
	}
	m.dead[[2]int{0, 1}], m.mute[1] = true, true
	in := m.input()
	c := in.Checks[0]
	for i := range c.Report.Units {
		c.Report.Units[i].Cause = &checkup.Cause{Stage: checkup.Stage(long), Message: long}
	}
	for i := range c.Record.Sources {
		s := &c.Record.Sources[i]
		s.Pod, s.UID, s.Addresses = long+"/"+long, long, map[checkup.IPFamily]string{checkup.IPv4: long, checkup.IPv6: "fe80::1%" + long}
		s.Began, s.Ended = start.Add(1000*time.Hour), start.Add(-1000*time.Hour)
	}
	for i := range c.Record.Observations {
		o := &c.Record.Observations[i]
		o.RTTs = []int64{-1 << 62, 1 << 62, 0}
		o.Failure = &checkup.Cause{Stage: checkup.StageConnect, Message: long}
	}
	for i := range c.Roster.Targets {
		c.Roster.Targets[i].Pod, c.Roster.Targets[i].Addresses = long, map[checkup.IPFamily]string{checkup.IPv4: "::ffff:198.18.0.1"}
	}
	in.Run.Name, in.Run.UID = long, long
	c.Report.Coverage.Measured, c.Worksheet.Kind = -5, checkup.Kind(long)
	changes := Reconcile(in)
	if len(changes.Write) != 6 {
		t.Errorf("%d objects", len(changes.Write))
	}
	for _, w := range changes.Write {
		if refused := a.refuses(objectOf(&w), nil); refused != "" {
			t.Errorf("%s: %s", w.Name, refused)
		}
	}
}
