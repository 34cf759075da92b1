// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"io"
	"net"
	nethttp "net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Three measurements are ordered.
func TestRepeatUntilEnoughAreGood(t *testing.T) {
	noFile := os.NewSyscallError("socket", syscall.EMFILE)
	refused := cause(checkup.StageConnect, "connection refused")
	for _, test := range []struct {
		name string
		// made lists the measurements: s spoiled, g good, x refused.
		made    string
		timeout time.Duration // of all; 0 is none
		errs    map[int]error // that rounds return, by their number from 1
		rounds  []int         // how many measurements were asked for
		want    checkup.Observation
	}{
		{"none spoiled", "gxg", 0, nil, []int{3}, checkup.Observation{Sent: 3, Received: 2, RTTs: []int64{0, 2}, Failure: refused}},
		{"two spoiled", "sgsgg", 0, nil, []int{3, 2}, checkup.Observation{Sent: 3, Received: 3, Spoiled: 2, RTTs: []int64{1, 3, 4}}},
		{"a repeat refused", "sggx", 0, nil, []int{3, 1}, checkup.Observation{Sent: 3, Received: 2, Spoiled: 1, RTTs: []int64{1, 2}, Failure: refused}},
		{"a repeat spoiled", "sggsg", 0, nil, []int{3, 1, 1}, checkup.Observation{Sent: 3, Received: 3, Spoiled: 2, RTTs: []int64{1, 2, 4}}},
		{"all but the last tries", strings.Repeat("s", 12) + "ggg", 0, nil, []int{3, 3, 3, 3, 3}, checkup.Observation{Sent: 3, Received: 3, Spoiled: 12, RTTs: []int64{12, 13, 14}}},
		{"one too many", strings.Repeat("s", 13) + "gg", 0, nil, []int{3, 3, 3, 3, 3}, checkup.Observation{Sent: 2, Received: 2, Spoiled: 13, RTTs: []int64{13, 14}}},
		{"one good and no more", "g" + strings.Repeat("s", 14), 0, nil, []int{3, 2, 2, 2, 2, 2, 2}, checkup.Observation{Sent: 1, Received: 1, Spoiled: 14, RTTs: []int64{0}}},
		{"all", strings.Repeat("s", 15), 0, nil, []int{3, 3, 3, 3, 3},
			checkup.Observation{Spoiled: 15, Unmeasured: cause(checkup.StageSelf, "the agent or its target was held up during all 15 measurements, for up to 1h0m0s")}},
		{"time over before a repeat", "ssx", repeatPause / 2, nil, []int{3}, checkup.Observation{Sent: 1, Spoiled: 2, Failure: refused}},
		{"time over in a repeat", "sgsgs", 0, map[int]error{2: errCutShort}, []int{3, 2}, checkup.Observation{Sent: 1, Received: 1, Spoiled: 2, RTTs: []int64{1}}},
		{"time over at once", "", 0, map[int]error{1: errCutShort}, []int{3}, cutShort(Measurement{})},
		{"no file", "", 0, map[int]error{1: noFile}, []int{3}, checkup.Observation{Unmeasured: cause(checkup.StageSocket, "socket: too many open files")}},
		{"no file for a repeat", "sgg", 0, map[int]error{2: noFile}, []int{3, 1}, checkup.Observation{Unmeasured: cause(checkup.StageSocket, "socket: too many open files")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				if test.timeout > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), test.timeout)
				}
				defer cancel()
				start := time.Now()
				w := &Watch{}
				w.woke(start, start.Add(time.Hour))
				sampled := map[byte]sample{
					's': {start: start, end: start.Add(time.Minute)},
					'g': {start: start.Add(2 * time.Hour), end: start.Add(3 * time.Hour)},
					'x': {cause: refused},
				}
				made := 0
				var rounds []int
				got := repeat(ctx, Measurement{Probe: checkup.Probe{Count: 3}}, w, func(n int, _ ends) (samples []sample, _ error) {
					rounds = append(rounds, n)
					if err := test.errs[len(rounds)]; err != nil {
						return nil, err
					}
					for range n {
						s := sampled[test.made[made]]
						s.rtt = time.Duration(made) * time.Microsecond
						samples = append(samples, s)
						made++
					}
					return samples, nil
				})
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(test.rounds, rounds); diff != "" {
					t.Errorf("measurements by round (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A pair ends at a stopping point if it is beyond it by the measurements that were not spoiled, and a round ends where
// that is possible. Four measurements are ordered; after two of them, one loss is enough.
func TestRepeatEnds(t *testing.T) {
	for _, test := range []struct {
		name   string
		made   string // s spoiled, g good, x refused
		rounds []int
		want   checkup.Observation
	}{
		{"nothing is lost", "gggg", []int{4}, checkup.Observation{Sent: 4, Received: 4}},
		{"lost too late", "ggxx", []int{4}, checkup.Observation{Sent: 4, Received: 2}},
		{"lost", "gx", []int{4}, checkup.Observation{Sent: 2, Received: 1}},
		{"all is lost", "xx", []int{4}, checkup.Observation{Sent: 2}},
		{"spoiled before the point", "sxg", []int{4, 3}, checkup.Observation{Sent: 2, Received: 1, Spoiled: 1}},
		{"spoiled, not lost", "sgggg", []int{4, 3}, checkup.Observation{Sent: 4, Received: 4, Spoiled: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, w := time.Now(), &Watch{}
				w.woke(start, start.Add(time.Hour))
				made := 0
				var rounds []int
				m := Measurement{Probe: checkup.Probe{Count: 4}, Stops: checkup.Stops{{After: 2, Lost: 1}}}
				got := repeat(t.Context(), m, w, func(n int, end ends) (samples []sample, _ error) {
					rounds = append(rounds, n)
					unanswered := 0
					for i := range n {
						if end(i, unanswered) {
							break
						}
						s := sample{start: start.Add(2 * time.Hour), end: start.Add(3 * time.Hour)}
						switch test.made[made] {
						case 's':
							s.start, s.end = start, start.Add(time.Minute)
							unanswered++ // until it is over
						case 'x':
							s.cause = cause(checkup.StageConnect, "connection refused")
							unanswered++
						}
						samples = append(samples, s)
						made++
					}
					return samples, nil
				})
				if got.Sent != test.want.Sent || got.Received != test.want.Received || got.Spoiled != test.want.Spoiled {
					t.Errorf("%+v, want %+v", got, test.want)
				}
				if diff := cmp.Diff(test.rounds, rounds); diff != "" {
					t.Errorf("measurements by round (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The pause before a repeat doubles up to its limit.
func TestPausesBetweenRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, w := time.Now(), &Watch{}
		w.woke(start, start.Add(time.Hour)) // spoils all
		var pauses []time.Duration
		last := start
		repeat(t.Context(), Measurement{Probe: checkup.Probe{Count: 2}}, w, func(n int, _ ends) ([]sample, error) {
			pauses = append(pauses, time.Since(last))
			last = time.Now()
			return slices.Repeat([]sample{{start: start, end: start.Add(time.Minute)}}, min(n, 1)), nil
		})
		ms := time.Millisecond
		want := []time.Duration{0, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 800 * ms, 800 * ms, 800 * ms, 800 * ms, 800 * ms}
		if diff := cmp.Diff(want, pauses); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// An agent is held up during the first measurements, with real sockets: the peer ends the hold-up at the first repeat.
func TestSpoiledMeasurementsAreRepeated(t *testing.T) {
	const count = 3
	for _, test := range []struct {
		transport checkup.Transport
		size      int
		// listen calls asked for every request before it answers.
		listen func(t *testing.T, family checkup.IPFamily, asked func()) netip.AddrPort
	}{
		{checkup.TCP, 100, func(t *testing.T, family checkup.IPFamily, asked func()) netip.AddrPort {
			return listenTCP(t, family, func(c net.Conn) { asked(); echoPeer(c) })
		}},
		{checkup.UDP, 100, func(t *testing.T, family checkup.IPFamily, asked func()) netip.AddrPort {
			return listenUDP(t, family, func(requests [][]byte) [][]byte { asked(); return truthful(requests) })
		}},
		{checkup.HTTP, 0, func(t *testing.T, family checkup.IPFamily, asked func()) netip.AddrPort {
			return listenHTTP(t, family, func(w nethttp.ResponseWriter, _ *nethttp.Request) { asked(); io.WriteString(w, "ok") })
		}},
	} {
		t.Run(string(test.transport), func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
				s := session()
				s.Watch = &Watch{}
				s.Watch.set(nil, time.Now().Add(-time.Hour))
				var requests atomic.Int32
				m := Measurement{
					Pair: pairOf(test.transport, family, test.size),
					Address: test.listen(t, family, func() {
						if requests.Add(1) > count {
							s.Watch.set(nil, time.Time{})
						}
					}),
					Probe: checkup.Probe{Count: count, Timeout: patience, Path: "/"},
				}
				got := Funcs[test.transport](t.Context(), m, s)
				if diff := diffObservations(checkup.Observation{Pair: m.Pair, Sent: count, Received: count, Spoiled: count}, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if n := requests.Load(); n != 2*count {
					t.Errorf("%d requests, want %d", n, 2*count)
				}
			})
		})
	}
}

// An answer that arrives after its round settles nothing of the next round.
func TestAnswersOfAnEarlierRound(t *testing.T) {
	sent, f := time.Now(), &flow{highest: -1}
	c := conversation{
		datagrams: &datagrams{m: Measurement{Probe: checkup.Probe{Count: 1, Timeout: patience}}},
		journeys:  []journey{{flow: f, sent: sent, over: true}, {flow: f, sent: sent}},
		unsettled: 1,
	}
	for _, step := range []struct {
		number                int
		unsettled, duplicates int
		strange               bool
	}{
		{0, 1, 0, false},
		{0, 1, 1, false},
		{1, 0, 1, false},
		{2, 0, 1, true}, // not sent yet
	} {
		c.hear(heard{event: event{kind: arrival, at: sent}, flow: f, number: step.number, right: true})
		if c.unsettled != step.unsettled || c.duplicates != step.duplicates || f.strange != step.strange {
			t.Errorf("after an answer to %d: %d unsettled, %d duplicates, strange %v; want %+v", step.number, c.unsettled, c.duplicates, f.strange, step)
		}
	}
	c.hear(heard{event: event{kind: failure, errno: syscall.ECONNREFUSED}, flow: f, number: 2})
	if samples := c.samples(1); len(samples) != 1 || samples[0].cause != nil {
		t.Errorf("the second round is %+v, want one answer", samples)
	}
}
