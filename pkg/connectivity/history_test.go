// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openshift/api/operatorcontrolplane/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// start is a time with a fraction of a second.
var start = time.Date(2026, 11, 21, 6, 0, 0, 123456789, time.UTC)

var etcd = identity{
	name: "kube-apiserver-a-to-etcd-server-b-2379", node: "a", sourcePod: "kube-apiserver-a",
	label: "etcd-server-b", host: "10.0.0.2", endpoint: "10.0.0.2:2379", cert: "etcd-client",
}

// passed and failed are results at a number of seconds after start.
func passed(at float64) checkup.Result {
	return checkup.Result{At: after(at), Delays: checkup.StageDelays{Connect: 241}}
}

func failed(at float64, message string) checkup.Result {
	return checkup.Result{At: after(at), Failure: &checkup.Cause{Stage: checkup.StageConnect, Message: message}}
}

func after(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

func foldAll(id identity, results ...checkup.Result) *v1alpha1.PodNetworkConnectivityCheckStatus {
	s := &v1alpha1.PodNetworkConnectivityCheckStatus{}
	for _, r := range results {
		id.fold(s, r)
	}
	return s
}

// Reasons and wording are those of OpenShift; a stage that OpenShift does not check has its own reason.
func TestEntries(t *testing.T) {
	named := identity{label: "load-balancer-api-external", host: "api.example.com", endpoint: "api.example.com:6443"}
	v6 := identity{label: "kube-apiserver-endpoint-b", host: "fd00::1", endpoint: "[fd00::1]:6443"}
	type entry struct {
		after   time.Duration
		reason  string
		message string
		latency time.Duration
	}
	tests := map[string]struct {
		id     identity
		result checkup.Result
		want   []entry
		reason string // of the condition
	}{
		"connected": {etcd, passed(0),
			[]entry{{0, "TCPConnect", "etcd-server-b: tcp connection to 10.0.0.2:2379 succeeded", 241 * time.Microsecond}}, "TCPConnectSuccess"},
		"connected by name": {named, checkup.Result{At: start, Delays: checkup.StageDelays{Resolve: 2000, Connect: 300, Handshake: 5000, Response: 700}},
			[]entry{
				{0, "DNSResolve", "load-balancer-api-external: resolved host name api.example.com successfully", 2 * time.Millisecond},
				{2 * time.Millisecond, "TCPConnect", "load-balancer-api-external: tcp connection to api.example.com:6443 succeeded", 300 * time.Microsecond},
			}, "TCPConnectSuccess"},
		"connected over IPv6": {v6, checkup.Result{At: start, Delays: checkup.StageDelays{Connect: 1}},
			[]entry{{0, "TCPConnect", "kube-apiserver-endpoint-b: tcp connection to [fd00::1]:6443 succeeded", time.Microsecond}}, "TCPConnectSuccess"},
		"resolve": {named, checkup.Result{At: start, Failure: &checkup.Cause{Stage: checkup.StageResolve, Message: "no such host"}},
			[]entry{{0, "DNSError", "load-balancer-api-external: failure looking up host api.example.com: no such host", 0}}, "DNSError"},
		"connect": {named, checkup.Result{At: start, Delays: checkup.StageDelays{Resolve: 1000}, Failure: &checkup.Cause{Stage: checkup.StageConnect, Message: "connection refused"}},
			[]entry{
				{0, "DNSResolve", "load-balancer-api-external: resolved host name api.example.com successfully", time.Millisecond},
				{time.Millisecond, "TCPConnectError", "load-balancer-api-external: failed to establish a TCP connection to api.example.com:6443: connection refused", 0},
			}, "TCPConnectError"},
		"handshake": {etcd, checkup.Result{At: start, Delays: checkup.StageDelays{Connect: 241}, Failure: &checkup.Cause{Stage: checkup.StageHandshake, Message: "accepted, then silent for 10s"}},
			[]entry{
				{0, "TCPConnect", "etcd-server-b: tcp connection to 10.0.0.2:2379 succeeded", 241 * time.Microsecond},
				{241 * time.Microsecond, "TLSHandshakeError", "etcd-server-b: failed to complete a TLS handshake with 10.0.0.2:2379: accepted, then silent for 10s", 0},
			}, "TLSHandshakeError"},
		"response": {etcd, checkup.Result{At: start, Delays: checkup.StageDelays{Connect: 241, Handshake: 1000}, Failure: &checkup.Cause{Stage: checkup.StageResponse, Message: "503 Service Unavailable"}},
			[]entry{
				{0, "TCPConnect", "etcd-server-b: tcp connection to 10.0.0.2:2379 succeeded", 241 * time.Microsecond},
				{1241 * time.Microsecond, "HTTPResponseError", "etcd-server-b: failed to get an HTTP response from 10.0.0.2:2379: 503 Service Unavailable", 0},
			}, "HTTPResponseError"},
		"a message above the limit": {etcd, checkup.Result{At: start, Failure: &checkup.Cause{Stage: checkup.StageConnect, Message: strings.Repeat("a", 1023) + "üb"}},
			[]entry{{0, "TCPConnectError", "etcd-server-b: failed to establish a TCP connection to 10.0.0.2:2379: " + strings.Repeat("a", 1023) + "...", 0}}, "TCPConnectError"},
		"a stage of a newer agent": {etcd, checkup.Result{At: start, Delays: checkup.StageDelays{Connect: 241}, Failure: &checkup.Cause{Stage: checkup.StageEcho, Message: "wrong answer"}},
			[]entry{
				{0, "TCPConnect", "etcd-server-b: tcp connection to 10.0.0.2:2379 succeeded", 241 * time.Microsecond},
				{241 * time.Microsecond, "ConnectionError", "etcd-server-b: failed to use a connection to 10.0.0.2:2379: echo: wrong answer", 0},
			}, "ConnectionError"},
	}
	for _, stage := range checkup.ConnectionStages {
		if _, ok := tests[string(stage)]; !ok {
			t.Errorf("no test of a failure at stage %s", stage)
		}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := foldAll(test.id, test.result)
			var got []entry
			all := slices.Concat(s.Successes, s.Failures) // one result has one of each at most but for names
			slices.SortStableFunc(all, func(a, b v1alpha1.LogEntry) int { return a.Start.Compare(b.Start.Time) })
			for _, e := range all {
				got = append(got, entry{e.Start.Sub(start), e.Reason, e.Message, e.Latency.Duration})
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(entry{})); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
			last := got[len(got)-1]
			want := v1alpha1.PodNetworkConnectivityCheckCondition{
				Type: v1alpha1.Reachable, Status: metav1.ConditionTrue, Reason: test.reason, Message: last.message, LastTransitionTime: metav1.NewTime(start),
			}
			if test.result.Failure != nil {
				want.Status = metav1.ConditionFalse
			}
			if diff := cmp.Diff([]v1alpha1.PodNetworkConnectivityCheckCondition{want}, s.Conditions); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOutage(t *testing.T) {
	reasons := func(log []v1alpha1.LogEntry) (out []string) {
		for _, e := range log {
			out = append(out, fmt.Sprintf("%.0f %s", e.Start.Sub(start).Seconds(), e.Reason))
		}
		return out
	}
	silent := func(at float64) checkup.Result {
		return checkup.Result{At: after(at), Delays: checkup.StageDelays{Connect: 1}, Failure: &checkup.Cause{Stage: checkup.StageHandshake, Message: "accepted, then silent for 10s"}}
	}
	s := foldAll(etcd, passed(0), failed(1, "refused"), failed(2, "refused"))
	if len(s.Outages) != 1 || !s.Outages[0].End.IsZero() {
		t.Fatalf("got %d outages, want one open outage", len(s.Outages))
	}
	if want, got := "Connectivity outage detected at 2026-11-21T06:00:01.123456789Z", s.Outages[0].Message; got != want {
		t.Errorf("message %q, want %q", got, want)
	}

	s = foldAll(etcd, passed(0), failed(1, "refused"), failed(2, "refused"), silent(3), silent(4), failed(5, "refused"), failed(6, "timeout"),
		failed(7, "no route"), failed(8, "refused"), passed(9.5), passed(10))
	o := s.Outages[0]
	if !o.Start.Equal(&metav1.Time{Time: after(1)}) || !o.End.Equal(&metav1.Time{Time: after(9.5)}) {
		t.Errorf("outage from %v to %v", o.Start, o.End)
	}
	if want := "Connectivity restored after 8.5s"; o.Message != want {
		t.Errorf("message %q, want %q", o.Message, want)
	}
	if diff := cmp.Diff([]string{"7 TCPConnectError", "6 TCPConnectError", "5 TCPConnectError", "3 TLSHandshakeError", "1 TCPConnectError"}, reasons(o.StartLogs)); diff != "" {
		t.Errorf("start logs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10 TCPConnect", "8 TCPConnectError", "7 TCPConnectError", "6 TCPConnectError", "5 TCPConnectError"}, reasons(o.EndLogs)); diff != "" {
		t.Errorf("end logs (-want +got):\n%s", diff)
	}
}

func TestConditionTime(t *testing.T) {
	since := func(results ...checkup.Result) time.Duration {
		return reachable(foldAll(etcd, results...)).LastTransitionTime.Sub(start)
	}
	refused, timeout := failed(2, "refused"), failed(3, "timeout")
	for _, test := range []struct {
		name    string
		results []checkup.Result
		want    time.Duration
	}{
		{"first", []checkup.Result{passed(0)}, 0},
		{"stays", []checkup.Result{passed(0), passed(1)}, 0},
		{"fails", []checkup.Result{passed(0), passed(1), refused}, 2 * time.Second},
		{"fails with another message", []checkup.Result{passed(0), refused, timeout}, 2 * time.Second},
		{"unmeasured is skipped", []checkup.Result{passed(0), {At: after(1), Unmeasured: &checkup.Cause{Stage: checkup.StageSelf}}}, 0},
	} {
		if got := since(test.results...); got != test.want {
			t.Errorf("%s: since %v, want %v", test.name, got, test.want)
		}
	}

	h := history{id: etcd}
	h.add(passed(0), time.Second)
	h.unknown(ReasonNoRecentResult, "no result for 10m0s", after(600))
	if c := reachable(h.status()); c.Status != metav1.ConditionUnknown || c.Message != "etcd-server-b: no result for 10m0s" || !c.LastTransitionTime.Time.Equal(after(600)) {
		t.Errorf("condition %+v", c)
	}
	h.add(passed(599), time.Second) // with a slow clock
	if c := reachable(h.status()); c.Status != metav1.ConditionTrue || !c.LastTransitionTime.Time.Equal(after(600)) {
		t.Errorf("time of the condition went backwards: %+v", c)
	}
}

// randomResults returns runs of failures (of every stage) and successes, in order, about a second apart.
func randomResults(r *rand.Rand, n int) []checkup.Result {
	var (
		results []checkup.Result
		at      time.Duration
		failing bool
	)
	for range n {
		at += time.Second + time.Duration(r.Int64N(int64(time.Second/4)))
		if r.IntN(6) == 0 {
			failing = !failing
		}
		res := checkup.Result{At: start.Add(at), Delays: checkup.StageDelays{Connect: 1 + r.Int64N(1000)}}
		if r.IntN(2) == 0 {
			res.Delays.Resolve = 1 + r.Int64N(1000)
		}
		switch {
		case r.IntN(20) == 0:
			res.Unmeasured = &checkup.Cause{Stage: checkup.StageSelf, Message: "held up"}
		case failing:
			stage := checkup.ConnectionStages[r.IntN(len(checkup.ConnectionStages))]
			switch stage {
			case checkup.StageResolve:
				res.Delays = checkup.StageDelays{}
			case checkup.StageConnect:
				res.Delays.Connect = 0
			}
			res.Failure = &checkup.Cause{Stage: stage, Message: fmt.Sprintf("cause %d", r.IntN(3))}
		}
		results = append(results, res)
	}
	return results
}

func eachSeed(t *testing.T, n int, property func(*testing.T, *rand.Rand)) {
	t.Helper()
	for seed := range uint64(n) {
		property(t, rand.New(rand.NewPCG(seed, 3)))
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
}

// Every outage that checkup.Outages finds is in the object, up to its limit.
func TestEveryOutage(t *testing.T) {
	eachSeed(t, 200, func(t *testing.T, r *rand.Rand) {
		results := randomResults(r, 1+r.IntN(400))
		want := checkup.Outages(results)
		slices.Reverse(want)
		want = want[:min(len(want), maxOutages)]
		s := foldAll(etcd, results...)
		if len(s.Outages) != len(want) {
			t.Fatalf("%d outages, want %d", len(s.Outages), len(want))
		}
		for i, o := range s.Outages {
			if !o.Start.Time.Equal(want[i].Start) || !o.End.Time.Equal(want[i].End) {
				t.Errorf("outage %d from %v to %v, want %v to %v", i, o.Start, o.End, want[i].Start, want[i].End)
			}
		}
	})
}

func TestLimits(t *testing.T) {
	eachSeed(t, 100, func(t *testing.T, r *rand.Rand) {
		s := foldAll(etcd, randomResults(r, r.IntN(400))...)
		newestFirst := func(what string, log []v1alpha1.LogEntry, limit int) {
			if len(log) > limit {
				t.Errorf("%d %s", len(log), what)
			}
			if !slices.IsSortedFunc(log, func(a, b v1alpha1.LogEntry) int { return b.Start.Compare(a.Start.Time) }) {
				t.Errorf("%s are not newest first", what)
			}
		}
		newestFirst("successes", s.Successes, 10)
		newestFirst("failures", s.Failures, 10)
		if len(s.Outages) > 20 {
			t.Errorf("%d outages", len(s.Outages))
		}
		for i, o := range s.Outages {
			newestFirst("start logs", o.StartLogs, 5)
			newestFirst("end logs", o.EndLogs, 5)
			for j := 1; j < len(o.StartLogs); j++ {
				if o.StartLogs[j].Message == o.StartLogs[j-1].Message {
					t.Error("a start log repeats the one before")
				}
			}
			if i > 0 && o.End.IsZero() {
				t.Error("an outage other than the newest is open")
			}
			if i > 0 && o.End.After(s.Outages[i-1].Start.Time) {
				t.Error("outages overlap")
			}
		}
	})
}

// A run continues where the one before ended: the object contains everything that it needs.
func TestFoldContinues(t *testing.T) {
	eachSeed(t, 100, func(t *testing.T, r *rand.Rand) {
		results := randomResults(r, 1+r.IntN(100))
		cut := r.IntN(len(results))
		stored, err := statusOf(statusConfiguration("ns", etcd.name, foldAll(etcd, results[:cut]...)))
		if err != nil {
			t.Fatal(err)
		}
		for _, res := range results[cut:] {
			etcd.fold(&stored, res)
		}
		if diff := cmp.Diff(foldAll(etcd, results...), &stored); diff != "" {
			t.Errorf("(-at once +in two runs):\n%s", diff)
		}
	})
}

// Late results within the hold time, and duplicates, change nothing.
func TestOrderOfArrival(t *testing.T) {
	const hold = 5 * time.Second
	eachSeed(t, 100, func(t *testing.T, r *rand.Rand) {
		results := randomResults(r, 1+r.IntN(100))
		results = slices.DeleteFunc(results, func(r checkup.Result) bool { return r.Unmeasured != nil })
		type arrival struct {
			checkup.Result
			at time.Time
		}
		var arrivals []arrival
		for _, res := range results {
			for range 1 + r.IntN(2) {
				arrivals = append(arrivals, arrival{res, res.At.Add(time.Duration(r.Int64N(int64(hold))))})
			}
		}
		slices.SortFunc(arrivals, func(a, b arrival) int { return a.at.Compare(b.at) })
		h := history{id: etcd}
		taken := 0
		for _, a := range arrivals {
			if h.add(a.Result, hold) {
				taken++
			}
		}
		if taken != len(results) {
			t.Errorf("got %d results taken, want %d", taken, len(results))
		}
		if diff := cmp.Diff(foldAll(etcd, results...), h.status()); diff != "" {
			t.Errorf("(-in order +in order of arrival):\n%s", diff)
		}
	})
}

// A status does not change after it was returned.
func TestStatusIsASnapshot(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	h := history{id: etcd}
	var snapshots, copies []*v1alpha1.PodNetworkConnectivityCheckStatus
	for _, res := range randomResults(r, 80) {
		if res.Unmeasured != nil {
			continue
		}
		h.add(res, 3*time.Second)
		s := h.status()
		snapshots, copies = append(snapshots, s), append(copies, s.DeepCopy())
	}
	if diff := cmp.Diff(copies, snapshots); diff != "" {
		t.Errorf("a later result changed an earlier status:\n%s", diff)
	}
}

// Results of a source whose clock was set back still count.
func TestClockSetBack(t *testing.T) {
	const hold = 5 * time.Second
	h := history{id: etcd}
	for _, r := range []checkup.Result{passed(3600), failed(3601, "refused"), failed(1, "refused"), passed(2), passed(3)} {
		if !h.add(r, hold) {
			t.Fatalf("result at %v was not taken", r.At)
		}
	}
	s := h.status()
	if c := reachable(s); c.Status != metav1.ConditionTrue {
		t.Errorf("condition %+v", c)
	}
	if len(s.Outages) != 1 || s.Outages[0].Message != "Connectivity restored after 0s" {
		t.Errorf("outages %+v", s.Outages)
	}
}

// A retry of the probe task receives all results again; recorded ones are recognized by their time.
func TestBegun(t *testing.T) {
	eachSeed(t, 100, func(t *testing.T, r *rand.Rand) {
		results := randomResults(r, 1+r.IntN(50))
		results = slices.DeleteFunc(results, func(r checkup.Result) bool { return r.Unmeasured != nil })
		dns := r.IntN(2) == 0 // the host is a name
		for i := range results {
			switch res := &results[i]; {
			case !dns:
				res.Delays.Resolve = 0
				if res.Failure != nil && res.Failure.Stage == checkup.StageResolve {
					res.Failure = &checkup.Cause{Stage: checkup.StageConnect, Message: "refused"}
				}
			case res.Failure == nil || res.Failure.Stage != checkup.StageResolve:
				res.Delays.Resolve = 1 + r.Int64N(1000)
			}
		}
		var want time.Time
		if len(results) > 0 {
			want = results[len(results)-1].At
		}
		if got := begun(foldAll(etcd, results...)); !got.Equal(want) {
			t.Errorf("got newest result at %v, want %v", got, want)
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	h := history{id: etcd}
	i := 0
	for b.Loop() {
		h.add(passed(float64(i)), 40*time.Second)
		i++
	}
}

// However many results arrive within the time of a late one, few are held back.
func TestHeldBack(t *testing.T) {
	h := history{id: identify(worksheet().Sources[0], worksheet().Targets[0])}
	begin := time.Now()
	for i := range 4000 {
		r := of(0, 0, good)
		if i%2 == 1 {
			r = of(0, 0, bad)
		}
		r.At = begin.Add(time.Duration(i) * time.Millisecond)
		h.add(r, time.Minute)
		if len(h.recent) > maxRecent {
			t.Fatalf("%d results are held back, want at most %d", len(h.recent), maxRecent)
		}
	}
}
