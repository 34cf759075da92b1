// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// BenchmarkAgent runs a whole agent against a responder, both in this process,
// over loopback: 16 targets at once, one packet per target and millisecond. It
// reports answered packets per second and the median delay.
//
//	go test -run '^$' -bench Agent ./pkg/probe
func BenchmarkAgent(b *testing.B) {
	for _, transport := range []checkup.Transport{checkup.TCP, checkup.UDP, checkup.HTTP} {
		for _, size := range []int{0, 64, 1400} {
			if transport == checkup.UDP && size < checkup.MinUDPSize {
				continue
			}
			b.Run(fmt.Sprintf("%s/%d", transport, size), func(b *testing.B) {
				r := serve(b, checkup.IPv4)
				order := orderTo(r, checkup.IPv4)
				order.Limits = checkup.Limits{PacketsPerSecond: 1_000_000, Concurrency: 16}
				order.Probes = []checkup.TransportProbe{{Transport: transport, Probe: checkup.Probe{
					Sizes: []int{size}, Count: 200, Interval: checkup.Duration(time.Millisecond), Timeout: patience, Path: "/healthz"}}}
				for i := range 15 {
					t := order.Targets[0]
					t.Target = 100 + i
					order.Targets = append(order.Targets, t)
				}
				var delays []int64
				for b.Loop() {
					var out bytes.Buffer
					if err := (Agent{Order: order, Out: &out}).Run(b.Context()); err != nil {
						b.Fatal(err)
					}
					for _, m := range messages(b, out.Bytes()) {
						if o := m.Observation; o != nil {
							delays = append(delays, o.RTTs...)
						}
					}
				}
				slices.Sort(delays)
				b.ReportMetric(float64(len(delays))/b.Elapsed().Seconds(), "packets/s")
				b.ReportMetric(float64(delays[len(delays)/2]), "median-µs")
			})
		}
	}
}
