// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// BenchmarkAgainstFping runs the agent and fping, in turns, from one network
// namespace to another over a veth pair, both made here. It needs root, and the
// Debian packages fping and iproute2:
//
//	go test -run '^$' -bench AgainstFping -benchtime 5x ./tasks/agent
//
// rate: 60 targets (all one address) of 1000 packets each, as fast as one packet
// per target and millisecond. fping has 65536 sequence numbers for all of its
// targets, so that it cannot do much more in one run. Reported are answered
// packets per second of the whole process, start and end included, and the
// CPU time per packet. delay: 500 packets, one each 5 ms; reported is the
// median round-trip delay. A ratio is the agent's number by fping's, of the
// medians over all runs. fping speaks ICMP only; the agent's udp is answered by
// a responder, a process, where ICMP is answered by the kernel: the agent
// subtracts the time that the responder reports. docs/benchmarks.md has results.
func BenchmarkAgainstFping(b *testing.B) {
	bench := newBench(b)
	const targets, count = 60, 1000
	for _, transport := range []checkup.Transport{checkup.ICMP, checkup.UDP} {
		b.Run("rate/"+string(transport), func(b *testing.B) {
			var ours, theirs []result
			for range b.N {
				ours = append(ours, bench.agent(b, transport, targets, count, time.Millisecond))
				theirs = append(theirs, bench.fping(b, targets, count, time.Millisecond))
			}
			compare(b, "pps", ours, theirs, func(r result) float64 { return float64(len(r.delays)) / r.wall.Seconds() })
			compare(b, "cpu-µs/packet", ours, theirs, func(r result) float64 { return float64(r.cpu.Microseconds()) / float64(r.sent) })
			compare(b, "answered-%", ours, theirs, func(r result) float64 { return 100 * float64(len(r.delays)) / float64(r.sent) })
		})
		b.Run("delay/"+string(transport), func(b *testing.B) {
			var ours, theirs []result
			for range b.N {
				ours = append(ours, bench.agent(b, transport, 1, 500, 5*time.Millisecond))
				theirs = append(theirs, bench.fping(b, 1, 500, 5*time.Millisecond))
			}
			compare(b, "median-µs", ours, theirs, func(r result) float64 { return median(r.delays) })
		})
	}
}

// result of one run of one program.
type result struct {
	sent      int
	delays    []float64 // of answered packets, in microseconds
	wall, cpu time.Duration
}

// compare reports the medians of a number and their ratio.
func compare(b *testing.B, unit string, ours, theirs []result, number func(result) float64) {
	middle := func(rs []result) float64 {
		var ns []float64
		for _, r := range rs {
			ns = append(ns, number(r))
		}
		return median(ns)
	}
	b.ReportMetric(middle(ours), "agent-"+unit)
	b.ReportMetric(middle(theirs), "fping-"+unit)
	b.ReportMetric(middle(ours)/middle(theirs), unit+"-ratio")
	b.ReportMetric(0, "ns/op") // has no meaning here
}

func median(ns []float64) float64 {
	if len(ns) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(ns))
	return s[len(s)/2]
}

// bench is two network namespaces with a responder in the far one.
type bench struct{ near, far string }

const farAddress = "192.0.2.2"

func newBench(b *testing.B) bench {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("needs root, to make network namespaces")
	}
	for _, program := range []string{"ip", "fping"} {
		if _, err := exec.LookPath(program); err != nil {
			b.Skipf("needs %s: apt-get install iproute2 fping", program)
		}
	}
	n := bench{near: fmt.Sprintf("bench-near-%d", os.Getpid()), far: fmt.Sprintf("bench-far-%d", os.Getpid())}
	b.Cleanup(func() {
		for _, ns := range []string{n.near, n.far} {
			exec.Command("ip", "netns", "delete", ns).Run() // may not exist
		}
	})
	for _, args := range [][]string{
		{"netns", "add", n.near},
		{"netns", "add", n.far},
		{"-n", n.near, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", n.far},
		{"-n", n.near, "address", "add", "192.0.2.1/30", "dev", "eth0"},
		{"-n", n.far, "address", "add", farAddress + "/30", "dev", "eth0"},
		{"-n", n.near, "link", "set", "lo", "up"},
		{"-n", n.near, "link", "set", "eth0", "up"},
		{"-n", n.far, "link", "set", "eth0", "up"},
		{"netns", "exec", n.near, "sh", "-c", "echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			b.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	responder := n.in(n.far, os.Args[0], "respond")
	if err := responder.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		responder.Process.Signal(syscall.SIGTERM)
		if err := responder.Wait(); err != nil {
			b.Errorf("responder: %v", err)
		}
	})
	// It is ready when the agent's first packet is answered.
	for b.Context().Err() == nil && len(n.agent(b, checkup.TCP, 1, 1, 0).delays) == 0 {
	}
	return n
}

// in is a command in a network namespace.
func (n bench) in(ns, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), "ip", append([]string{"netns", "exec", ns, program}, args...)...)
	cmd.Env = append(os.Environ(), asAgent+"=1")
	return cmd
}

func (n bench) agent(b *testing.B, transport checkup.Transport, targets, count int, interval time.Duration) result {
	b.Helper()
	size := 56 // as fping's
	if transport == checkup.TCP {
		size = 0
	}
	order := checkup.Order{
		Deadline: checkup.Duration(time.Minute),
		Limits:   checkup.Limits{PacketsPerSecond: 1_000_000, Concurrency: targets},
		Probes: []checkup.TransportProbe{{Transport: transport, Probe: checkup.Probe{
			Sizes: []int{size}, Count: count, Interval: checkup.Duration(interval), Timeout: checkup.Duration(time.Second)}}},
		IPFamilies: []checkup.IPFamily{checkup.IPv4},
	}
	for i := range targets {
		order.Targets = append(order.Targets, checkup.OrderTarget{Target: i,
			Addresses: map[checkup.IPFamily]string{checkup.IPv4: farAddress},
			Ports:     map[checkup.Transport]int{checkup.TCP: 7007, checkup.UDP: 7007}})
	}
	content, err := json.Marshal(order)
	if err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "order.json")
	if err := os.WriteFile(file, content, 0o644); err != nil {
		b.Fatal(err)
	}
	cmd := n.in(n.near, os.Args[0], "probe", "--order", file)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	r := timed(b, cmd)
	for line := range bytes.Lines(stdout.Bytes()) {
		var m checkup.Message
		if err := json.Unmarshal(line, &m); err != nil {
			b.Fatal(err)
		}
		if m.Control != nil && !m.Control.OK {
			b.Fatalf("control pair %s: %s", m.Control.Name, m.Control.Message)
		}
		if o := m.Observation; o != nil {
			if o.Unmeasured != nil {
				b.Fatalf("unmeasured: %s", o.Unmeasured)
			}
			r.sent += o.Sent
			for _, rtt := range o.RTTs {
				r.delays = append(r.delays, float64(rtt))
			}
		}
	}
	return r
}

func (n bench) fping(b *testing.B, targets, count int, interval time.Duration) result {
	b.Helper()
	args := []string{"-q", "-C", strconv.Itoa(count), "-p", strconv.FormatInt(interval.Milliseconds(), 10), "-i", "0", "-t", "1000"}
	cmd := n.in(n.near, "fping", append(args, slices.Repeat([]string{farAddress}, targets)...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr // its output: "192.0.2.2 : 0.05 - 0.04 ...", in ms
	r := timed(b, cmd)
	for line := range strings.Lines(stderr.String()) {
		_, delays, ok := strings.Cut(line, " : ")
		if !ok {
			b.Fatalf("fping: %s", line)
		}
		for field := range strings.FieldsSeq(delays) {
			r.sent++
			if field == "-" {
				continue
			}
			ms, err := strconv.ParseFloat(field, 64)
			if err != nil {
				b.Fatal(err)
			}
			r.delays = append(r.delays, ms*1000)
		}
	}
	return r
}

// timed runs a command.
func timed(b *testing.B, cmd *exec.Cmd) result {
	b.Helper()
	start := time.Now()
	err := cmd.Run()
	if err != nil && cmd.ProcessState.ExitCode() != 1 { // fping: some lost
		b.Fatalf("%s: %v: %s", cmd, err, cmd.Stderr)
	}
	return result{wall: time.Since(start), cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
}
