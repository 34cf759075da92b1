// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// pairsOf returns n pairs that are measured count times.
func pairsOf(n, count int, interval time.Duration) []Measurement {
	var ms []Measurement
	for i := range n {
		ms = append(ms, Measurement{Pair: checkup.Pair{Target: i, Transport: checkup.TLS},
			Probe: checkup.Probe{Count: count, Interval: checkup.Duration(interval)}})
	}
	return ms
}

// reportedOf decodes the reported results, by target.
func reportedOf(t *testing.T, lines []byte) map[int][]checkup.Result {
	t.Helper()
	reported := map[int][]checkup.Result{}
	for _, m := range messages(t, lines) {
		for _, r := range m.Results {
			reported[r.Target] = append(reported[r.Target], r)
		}
	}
	return reported
}

// With any durations of measurements and any end of the context: results of a pair are reported in order, no known
// result is missing and none is reported twice.
func TestResultsAreReportedInOrderAndNoneIsLost(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				pairs, count, interval := 1+random.IntN(40), 1+random.IntN(30), time.Duration(1+random.IntN(2000))*time.Millisecond
				longest := time.Duration(1 + random.IntN(20_000_000_000))
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(2*time.Duration(count)*interval+longest))))
				defer cancel()
				var out bytes.Buffer
				known := make([]int, pairs) // number of completed measurements
				r := results{lines: &lineWriter{w: &out}}
				r.measure = func(ctx context.Context, m Measurement) (checkup.Result, bool) {
					r.mu.Lock()
					takes := time.Duration(random.Int64N(int64(longest)))
					fails := random.IntN(3) == 0
					r.mu.Unlock()
					if sleepUntil(ctx, time.Now().Add(takes)) != nil {
						return checkup.Result{}, false
					}
					r.mu.Lock()
					known[m.Pair.Target]++
					r.mu.Unlock()
					result := checkup.Result{Pair: m.Pair, Delays: checkup.StageDelays{Connect: takes.Microseconds()}}
					if fails {
						result.Failure = cause(checkup.StageConnect, "connection refused")
					}
					return result, true
				}
				unknown, err := r.run(ctx, pairsOf(pairs, count, interval))
				if err != nil {
					t.Fatal(err)
				}
				reported := reportedOf(t, out.Bytes())
				n := 0
				for target, results := range reported {
					n += len(results)
					if !slices.IsSortedFunc(results, func(a, b checkup.Result) int { return max(-1, a.At.Compare(b.At)*2-1) }) {
						t.Errorf("target %d: results are out of order or duplicate: %v", target, results)
					}
					for _, result := range results {
						if result.Unmeasured == nil {
							known[target]--
						}
					}
					if len(results) > count {
						t.Errorf("target %d: got %d results, want %d", target, len(results), count)
					}
				}
				if r.reported != n {
					t.Errorf("got %d reported results, but a count of %d", n, r.reported)
				}
				for target, missing := range known {
					if missing != 0 {
						t.Errorf("target %d: %d known results were not reported", target, missing)
					}
				}
				if len(unknown)+len(reported) != pairs {
					t.Errorf("got %d reported and %d unknown pairs, want %d together", len(reported), len(unknown), pairs)
				}
			})
		})
	}
}

// Each measurement starts when it is due, however long earlier ones take.
func TestMeasurementsStartOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r := results{lines: &lineWriter{w: &out}, measure: func(ctx context.Context, m Measurement) (checkup.Result, bool) {
			time.Sleep(5 * time.Second) // silent until the deadline
			return checkup.Result{Pair: m.Pair, Failure: cause(checkup.StageHandshake, "silent")}, true
		}}
		start := time.Now()
		if _, err := r.run(t.Context(), pairsOf(2, 10, time.Second)); err != nil {
			t.Fatal(err)
		}
		for target, results := range reportedOf(t, out.Bytes()) {
			for i, result := range results {
				// The pairs are spread over the interval.
				want := start.Add(time.Duration(i)*time.Second + time.Duration(target)*time.Second/2)
				if !result.At.Equal(want) {
					t.Errorf("target %d, number %d began at %v, want %v", target, i, result.At.Sub(start), want.Sub(start))
				}
			}
			if len(results) != 10 {
				t.Errorf("target %d: got %d results, want 10", target, len(results))
			}
		}
	})
}

// A measurement that cannot start on time is reported as unmeasured in a watch, with the reason. In a round it is tried
// again at the time of a later one, until the deadline. Then one result says why all that are left did not start.
func TestMeasurementsThatCannotStart(t *testing.T) {
	const late = "not started within 1s of its time: the agent was held up, or limits.packetsPerSecond is too low"
	const busy = "not started: 2 measurements of this pair were still open"
	const full = "not started: 512 measurements of other pairs were still open"
	instant := func(_ context.Context, m Measurement) (checkup.Result, bool) {
		return checkup.Result{Pair: m.Pair}, true
	}
	takes := func(d time.Duration) func(context.Context, Measurement) (checkup.Result, bool) {
		return func(_ context.Context, m Measurement) (checkup.Result, bool) {
			time.Sleep(d)
			return checkup.Result{Pair: m.Pair}, true
		}
	}
	type start struct {
		At  string // since the first pair's first
		Why string // empty for measured
	}
	for _, test := range []struct {
		name    string
		pairs   int
		count   int
		until   time.Duration
		limiter func() *rate.Limiter
		measure func(context.Context, Measurement) (checkup.Result, bool)
		// of the last pair
		watch, round []start
	}{
		{"too many open", 200, 6, time.Minute, nil, takes(3500 * time.Millisecond),
			[]start{{"995ms", ""}, {"1.995s", ""}, {"2.995s", busy}, {"3.995s", busy}, {"4.995s", ""}, {"5.995s", ""}},
			[]start{{"995ms", ""}, {"1.995s", ""}, {"4.995s", ""}, {"5.995s", ""}, {"8.995s", ""}, {"9.995s", ""}}},
		// The last pair starts when the maximum number of others is open.
		{"too many pairs", maxUnderWay + 1, 1, time.Minute, nil, takes(20 * time.Second),
			[]start{{"998ms", full}},
			[]start{{"20.998s", ""}}},
		{"too many pairs, until the deadline", maxUnderWay + 1, 2, time.Minute, nil, takes(2 * time.Minute),
			[]start{{"998ms", full}, {"1.998s", full}},
			[]start{{"1m0s", full}}},
		{"too many pairs, until before the last is due", maxUnderWay + 1, 2, 1500 * time.Millisecond, nil, takes(2 * time.Minute),
			[]start{{"998ms", full}},
			[]start{{"1.5s", full}}},
		{"held up", 2, 6, time.Minute, func() *rate.Limiter {
			l := rate.NewLimiter(1000, 4500)
			for range 2 {
				l.ReserveN(time.Now(), 4500) // the second is 4.5 s in debt
			}
			return l
		}, instant,
			[]start{{"4.502s", ""}, {"4.502s", late}, {"4.502s", late}, {"4.502s", late}, {"4.503s", ""}, {"5.5s", ""}},
			[]start{{"4.502s", ""}, {"5.5s", ""}, {"6.5s", ""}, {"7.5s", ""}, {"8.5s", ""}, {"9.5s", ""}}},
		{"limit too low", 2, 4, time.Minute, func() *rate.Limiter { return rate.NewLimiter(0.75, 1) }, instant,
			[]start{{"1.333s", ""}, {"4s", ""}, {"4s", late}, {"6.666s", ""}},
			[]start{{"1.333s", ""}, {"4s", ""}, {"6.666s", ""}, {"9.333s", ""}}},
	} {
		for _, watch := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, watch %t", test.name, watch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					began := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), test.until)
					defer cancel()
					var out bytes.Buffer
					r := results{lines: &lineWriter{w: &out}, measure: test.measure, watch: watch}
					if test.limiter != nil {
						r.limiter = test.limiter()
					}
					if _, err := r.run(ctx, pairsOf(test.pairs, test.count, time.Second)); err != nil {
						t.Fatal(err)
					}
					var got []start
					for _, result := range reportedOf(t, out.Bytes())[test.pairs-1] {
						why := ""
						if u := result.Unmeasured; u != nil {
							if why = u.Message; u.Stage != checkup.StageSelf {
								t.Errorf("stage %s", u.Stage)
							}
						}
						got = append(got, start{result.At.Sub(began).Truncate(time.Millisecond).String(), why})
					}
					want := test.round
					if watch {
						want = test.watch
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
				})
			})
		}
	}
}

// First and changed results are reported at once, all others in batches.
func TestChangesAreReportedAtOnce(t *testing.T) {
	const (
		pass = iota
		fail
		spoiled
	)
	for _, test := range []struct {
		name string
		seen []int
		// reported is after how many batch intervals each result was reported at the latest, rounded down; one measurement
		// is made in each interval, at its middle.
		atOnce []bool
	}{
		{"first, steady", []int{pass, pass, pass}, []bool{true, false, false}},
		{"failing", []int{fail, fail, fail}, []bool{true, false, false}},
		{"outage", []int{pass, pass, fail, fail, pass, pass}, []bool{true, false, true, false, true, false}},
		{"unmeasured first", []int{spoiled, spoiled, pass, spoiled, pass}, []bool{true, false, true, false, false}},
		{"unmeasured in an outage", []int{fail, spoiled, fail, spoiled, pass}, []bool{true, false, false, false, true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var reported []bool
				writer := writerFunc(func(b []byte) (int, error) {
					for _, m := range messages(t, b) {
						for _, r := range m.Results {
							reported = append(reported, r.At.Equal(time.Now()))
						}
					}
					return len(b), nil
				})
				n := 0
				r := results{lines: &lineWriter{w: writer}, measure: func(_ context.Context, m Measurement) (checkup.Result, bool) {
					result := checkup.Result{Pair: m.Pair}
					switch test.seen[n] {
					case fail:
						result.Failure = cause(checkup.StageConnect, "connection refused")
					case spoiled:
						result.Unmeasured = cause(checkup.StageSelf, "held up")
					}
					n++
					return result, true
				}}
				// Never at the time of a batch, except for the first.
				if _, err := r.run(t.Context(), pairsOf(1, len(test.seen), batchInterval-time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.atOnce, reported[:len(reported)-1]); diff != "" && !slices.Equal(test.atOnce[:len(test.atOnce)-1], reported[:len(reported)-1]) {
					t.Errorf("reported at once, except for the last one (-want +got):\n%s", diff)
				}
				if took := time.Since(start); took >= time.Duration(len(test.seen))*batchInterval {
					t.Errorf("ended after %v", took)
				}
			})
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// Lines with any results fit the container log.
func TestResultsFitTheContainerLog(t *testing.T) {
	for _, message := range []string{"", "connection refused", strings.Repeat("\u2028", 66)} {
		var out bytes.Buffer
		r := results{lines: &lineWriter{w: &out}}
		for i := range 1000 {
			result := checkup.Result{
				Pair:   checkup.Pair{Source: 9999, Target: i, Family: checkup.IPv6, Transport: checkup.TLS},
				At:     time.Date(2026, 1, 1, 0, 0, 0, 123456000, time.UTC),
				Delays: checkup.StageDelays{Resolve: 1e8, Connect: 1e8, Handshake: 1e8, Response: 1e8},
			}
			if message != "" {
				result.Failure = cause(checkup.StageHandshake, "%s", message)
			}
			r.inHand = append(r.inHand, result)
		}
		want := slices.Clone(r.inHand)
		if err := r.report(); err != nil {
			t.Fatal(err)
		}
		var got []checkup.Result
		for line := range bytes.Lines(out.Bytes()) {
			if len(line) > maxLine {
				t.Errorf("got a line of %d bytes", len(line))
			}
			for _, m := range messages(t, line) {
				got = append(got, m.Results...)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if lines := bytes.Count(out.Bytes(), []byte("\n")); lines > 100 {
			t.Errorf("%d lines for 1000 results", lines)
		}
	}
}

func TestMaxWordsKeepResultsShort(t *testing.T) {
	got := words(errors.New(strings.Repeat("a\n\u00fc", 1000)), 0)
	b, err := json.Marshal(got)
	if err != nil || len(b) > maxWords+2 || strings.Contains(got, "\n") || !strings.HasPrefix(got, "a?ü") {
		t.Errorf("%d bytes, %q, %v", len(b), got, err)
	}
}

// peerOrder is an order for one peer.
func peerOrder(peers ...checkup.Peer) checkup.Order {
	order := checkup.Order{
		Source:     5,
		Limits:     checkup.Limits{PacketsPerSecond: 100_000, Concurrency: 1},
		IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Deadline:   patience,
		Connections: &checkup.ConnectionSheet{Deadlines: checkup.StageDeadlines{
			Resolve: patience, Connect: patience, Handshake: patience, Response: patience}},
	}
	for _, transport := range peerTransports {
		order.Probes = append(order.Probes, checkup.TransportProbe{Transport: transport, Probe: checkup.Probe{
			Sizes: []int{0}, Count: 4, Interval: checkup.Duration(10 * time.Millisecond), Timeout: patience}})
	}
	for i, p := range peers {
		order.Targets = append(order.Targets, checkup.OrderTarget{Target: i, Peer: &p})
	}
	return order
}

func peerOf(transport checkup.Transport, address netip.AddrPort) checkup.Peer {
	return *peerAt(transport, familyOf(address.Addr()), address).Peer
}

func TestAgentReportsConnections(t *testing.T) {
	bad := peerOf(checkup.TLS, listenTCP(t, checkup.IPv4, silentPeer))
	bad.ClientCertificate = "no-such"
	order := peerOrder(
		peerOf(checkup.TLS, listenTCP(t, checkup.IPv4, secure(nil, silentPeer))),
		peerOf(checkup.TCP, listenTCP(t, checkup.IPv6, silentPeer)),
		peerOf(checkup.TCP, listenTCP(t, checkup.IPv4, nil)),
		bad,
	)
	b, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	if order, err = ReadOrder(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (Agent{Order: order, Version: "v1.2.3", Out: &out, Root: noCgroup, Certificates: secrets}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []checkup.Message
	results := map[int][]checkup.Result{}
	for _, m := range messages(t, out.Bytes()) {
		for _, r := range m.Results {
			results[r.Target] = append(results[r.Target], r)
		}
		if m.Results == nil {
			got = append(got, m)
		}
	}
	got[len(got)-1].End.SelfDoubt = checkup.SelfDoubt{}
	want := []checkup.Message{
		{Start: &checkup.AgentStart{Source: 5, Version: "v1.2.3", Pairs: 4}},
		{Control: &checkup.Control{Family: checkup.IPv4, Name: "self", OK: true, Message: "tcp, tls answered"}},
		{Control: &checkup.Control{Family: checkup.IPv4, Name: "closed", OK: true, Message: "tcp, tls refused"}},
		{Observation: &checkup.Observation{Pair: checkup.Pair{Source: 5, Target: 3, Family: checkup.IPv4, Transport: checkup.TLS},
			Unmeasured: cause(checkup.StageSetup, "no client certificate: the run's namespace has no Secret no-such with tls.crt and tls.key")}},
		{End: &checkup.AgentEnd{Observations: 1, Results: 12}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for target, want := range map[int]checkup.Result{
		0: {Pair: checkup.Pair{Source: 5, Family: checkup.IPv4, Transport: checkup.TLS}},
		1: {Pair: checkup.Pair{Source: 5, Target: 1, Family: checkup.IPv6, Transport: checkup.TCP}},
		2: {Pair: checkup.Pair{Source: 5, Target: 2, Family: checkup.IPv4, Transport: checkup.TCP}, Failure: noConnection(checkup.ReasonRefused, "connection refused")},
	} {
		if len(results[target]) != 4 {
			t.Errorf("target %d: got %d results, want 4", target, len(results[target]))
		}
		for _, r := range results[target] {
			if r.At.IsZero() || (r.Failure == nil) != (r.Delays.Connect > 0) {
				t.Errorf("target %d: %+v", target, r)
			}
			r.At, r.Delays = time.Time{}, checkup.StageDelays{}
			if diff := cmp.Diff(want, r); diff != "" {
				t.Errorf("target %d (-want +got):\n%s", target, diff)
			}
		}
	}
}

// A listener is closed for a while, and then the agent is stopped: one outage with start and end, and nothing else.
func TestWatchOverAnOutage(t *testing.T) {
	bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
		l, err := net.Listen("tcp", anyPort(family))
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().(*net.TCPAddr).AddrPort()
		silent := blackHole(t, netip.AddrPortFrom(loopback[family], 0))
		order := peerOrder(peerOf(checkup.TLS, address), peerOf(checkup.TCP, silent))
		order.IPFamilies = nil
		order.Probes[0].Count = checkup.MaxWatch
		reader, writer := io.Pipe()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ran := make(chan error, 1)
		go func() {
			err := Agent{Order: order, Out: writer, Root: noCgroup}.Run(ctx)
			writer.Close()
			ran <- err
		}()
		var serving chan struct{}
		serve := func() {
			serving = make(chan struct{})
			go func() {
				defer close(serving)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() { defer c.Close(); secure(nil, silentPeer)(c) }()
				}
			}()
		}
		shut := func() {
			l.Close()
			<-serving
		}
		serve()
		open := func() {
			l = listenAgain(t, address)
			serve()
		}
		var results []checkup.Result
		lines := bufio.NewScanner(reader)
		steps := []struct {
			fails bool
			then  func()
		}{{false, shut}, {true, open}, {false, stop}}
		for lines.Scan() {
			for _, m := range messages(t, lines.Bytes()) {
				if m.End != nil {
					t.Error("got an end, want none")
				}
				for _, r := range m.Results {
					if r.Target == 1 {
						t.Errorf("got the result of an open measurement: %+v", r)
						continue
					}
					results = append(results, r)
					if len(steps) > 0 && r.Unmeasured == nil && (r.Failure != nil) == steps[0].fails {
						steps[0].then()
						steps = steps[1:]
					}
				}
			}
		}
		shut()
		if err := <-ran; err != nil || len(steps) > 0 {
			t.Fatalf("Run = %v with %d steps to go", err, len(steps))
		}
		outages := checkup.Outages(results)
		if len(outages) != 1 || outages[0].End.IsZero() {
			t.Errorf("outages %+v", outages)
		}
	})
}

// listenAgain listens on an address as soon as it is free: a dial may use its port as source.
func listenAgain(t *testing.T, address netip.AddrPort) net.Listener {
	t.Helper()
	retry := time.NewTicker(time.Millisecond)
	defer retry.Stop()
	for {
		l, err := net.Listen("tcp", address.String())
		if err == nil {
			return l
		}
		select {
		case <-retry.C:
		case <-t.Context().Done():
			t.Fatal(err)
		}
	}
}

// The deadline ends pairs early: those without results are reported as unmeasured, the others have fewer results.
func TestDeadlineOfConnections(t *testing.T) {
	order := peerOrder(
		peerOf(checkup.TLS, listenTCP(t, checkup.IPv4, secure(nil, silentPeer))),
		peerOf(checkup.TCP, blackHole(t, netip.AddrPortFrom(loopback[checkup.IPv4], 0))),
	)
	order.IPFamilies = nil
	order.Deadline = checkup.Duration(time.Second)
	order.Probes[0].Count = checkup.MaxWatch
	var out bytes.Buffer
	if err := (Agent{Order: order, Out: &out, Root: noCgroup}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	reported := reportedOf(t, out.Bytes())
	ms := messages(t, out.Bytes())
	end := ms[len(ms)-1].End
	want := cutShort(Measurement{Pair: checkup.Pair{Source: 5, Target: 1, Family: checkup.IPv4, Transport: checkup.TCP}})
	if diff := cmp.Diff(&want, ms[len(ms)-2].Observation); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if end == nil || end.Observations != 1 || end.Results != len(reported[0]) || len(reported[0]) == 0 || len(reported) != 1 {
		t.Errorf("end %+v after results of %v, %d of them", end, slices.Collect(maps.Keys(reported)), len(reported[0]))
	}
}

func TestResultsThatCannotBeWritten(t *testing.T) {
	order := peerOrder(peerOf(checkup.TCP, listenTCP(t, checkup.IPv4, silentPeer)))
	order.Probes[1].Count = 200
	for n := range 5 {
		err := Agent{Order: order, Out: &failingWriter{after: n}, Root: noCgroup}.Run(t.Context())
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("after %d lines: error %v, want %v", n, err, io.ErrClosedPipe)
		}
	}
}
