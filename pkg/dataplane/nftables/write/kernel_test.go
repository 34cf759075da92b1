// SPDX-License-Identifier: Apache-2.0

package write

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy/proxytest"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

// kernel gives the test a network of its own, in which nft may write.
func kernel(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs nft, and root: %v", err)
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
}

func nft(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("nft", command).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v: %s", command, err, out)
	}
	return string(out)
}

// TestKernel: what a kernel has after each state is what pkg/dataplane/want expects, read by the reader of the audit.
// No change is refused, so clients keep their affinities.
func TestKernel(t *testing.T) {
	kernel(t)
	cases := uint64(40)
	if os.Getenv("CHECKPLAN_LONG") != "" {
		cases = 2_000
	}
	var log bytes.Buffer
	w := New(slog.New(slog.NewTextHandler(&log, nil)))
	compared := 0
	for seed := range cases {
		for i, step := range proxytest.Steps(seed) {
			if seed%10 == 9 && i == 0 { // a successor
				w = New(slog.New(slog.NewTextHandler(&log, nil)))
			}
			if err := w.Write(t.Context(), proxy.Check(step.Items), proxytest.Node()); err != nil || log.Len() > 0 {
				t.Fatalf("seed %d, step %d: %v\n%s", seed, i, err, &log)
			}
			w.later()
			if more, err := w.Tidy(t.Context()); err != nil || more {
				t.Fatalf("seed %d, step %d: tidy: %v, %v", seed, i, more, err)
			}
			for _, family := range proxy.Families {
				wanted := want.Table(step.State, family, dataplane.NFTables)
				have, by, err := nftables.Read(family)
				if err != nil {
					t.Fatal(err)
				}
				if len(by) == 0 && len(wanted.Frontends) == 0 {
					continue
				}
				if differences := dataplane.Compare(wanted, have); len(differences) > 0 || len(have.Unknown) > 0 ||
					!slices.Equal(by, []dataplane.Program{dataplane.ServiceProxy}) {
					t.Fatalf("seed %d, step %d, %s, of %v: %+v %q\n%s", seed, i, family, by, differences, have.Unknown, nft(t, "list ruleset"))
				}
				compared++
			}
			if err := w.Present(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d tables", compared)
	if err := w.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := nft(t, "list ruleset"); left != "" {
		t.Errorf("left after --cleanup:\n%s", left)
	}
}

// TestKernelAffinity: a client keeps its endpoint when another one of the Service ends, and when a successor starts.
func TestKernelAffinity(t *testing.T) {
	kernel(t)
	sticky := func(s *api.ServiceEndpoints) { s.AffinitySeconds = 600 }
	fewer := func(s *api.ServiceEndpoints) { s.Families[0].Ports[0].Endpoints = s.Families[0].Ports[0].Endpoints[:1] }
	w := New(slog.New(slog.DiscardHandler))
	write(t, w, service("web", sticky))
	set := ""
	for line := range strings.Lines(nft(t, "list sets")) {
		if name := strings.Fields(line); len(name) > 1 && strings.HasPrefix(name[1], "affinity-") && strings.Contains(name[1], "10.244.1.4") {
			set = name[1]
		}
	}
	nft(t, fmt.Sprintf("add element ip %s %s { 198.51.100.1 }", nftables.OwnName, set))
	kept := func() bool {
		return strings.Contains(nft(t, fmt.Sprintf("list set ip %s %s", nftables.OwnName, set)), "198.51.100.1")
	}
	write(t, w, service("web", sticky, fewer))
	if !kept() {
		t.Error("forgotten when another endpoint ended")
	}
	write(t, New(slog.New(slog.DiscardHandler)), service("web", sticky))
	if !kept() {
		t.Error("forgotten when a successor started")
	}
}

// BenchmarkKernel is what a node of a cluster with so many Services and ten times as many endpoints writes into its
// kernel. With CHECKPLAN_LONG=1, there are up to 10,000 Services.
//
//   - start: all rules, over none; of it, system is the kernel's time, user that of nft
//   - restart: all rules, over those of a predecessor
//   - change: one endpoint ends, and comes back
func BenchmarkKernel(b *testing.B) {
	if _, err := exec.LookPath("nft"); err != nil || os.Geteuid() != 0 {
		b.Skipf("needs nft, and root: %v", err)
	}
	sizes := []int{1_000}
	if os.Getenv("CHECKPLAN_LONG") != "" {
		sizes = append(sizes, 3_000, 10_000)
	}
	for _, services := range sizes {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			runtime.LockOSThread() // for good: the thread ends with the benchmark
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				b.Skipf("no network namespace: %v", err)
			}
			node, state := proxytest.Node(), proxy.Check(proxytest.Large(services, 10*services))
			var w *Writer
			write := func(state *proxy.State) (took, system, user time.Duration) {
				before, begin := children(b), time.Now()
				if err := w.Write(b.Context(), state, node); err != nil {
					b.Fatal(err)
				}
				after := children(b)
				return time.Since(begin), time.Duration(after.Stime.Nano() - before.Stime.Nano()),
					time.Duration(after.Utime.Nano() - before.Utime.Nano())
			}
			for b.Loop() {
				w = New(slog.New(slog.DiscardHandler))
				start, system, user := write(state)
				b.ReportMetric(start.Seconds(), "s/start")
				b.ReportMetric(system.Seconds(), "system-s/start")
				b.ReportMetric(user.Seconds(), "user-s/start")

				w = New(slog.New(slog.DiscardHandler))
				restart, _, _ := write(state)
				b.ReportMetric(restart.Seconds(), "s/restart")

				less := *state
				less.Ports = slices.Clone(state.Ports)
				i := slices.IndexFunc(less.Ports, func(p proxy.Port) bool { return len(p.Internal.Endpoints) > 3 && p.Inside.Action == "" })
				less.Ports[i].Internal.Endpoints = less.Ports[i].Internal.Endpoints[1:]
				const changes = 4
				var sum time.Duration
				for n := range changes {
					change, _, _ := write(map[bool]*proxy.State{true: state, false: &less}[n%2 == 1])
					sum += change
				}
				b.ReportMetric(sum.Seconds()/changes, "s/change")
				if err := w.Cleanup(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(0, "ns/op") // of all together: it means nothing
		})
	}
}

// children is the CPU time of the commands that ended.
func children(b *testing.B) (usage unix.Rusage) {
	b.Helper()
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &usage); err != nil {
		b.Fatal(err)
	}
	return usage
}

// TestKernelPredecessor: a table of another program under this name, with other objects of these names, is replaced.
func TestKernelPredecessor(t *testing.T) {
	kernel(t)
	nft(t, "add table ip checkplan-proxy; add set ip checkplan-proxy service-ips { type ipv4_addr; }; "+
		"add chain ip checkplan-proxy nat-prerouting; add chain ip checkplan-proxy x; add rule ip checkplan-proxy x goto nat-prerouting")
	w := New(slog.New(slog.DiscardHandler))
	write(t, w, service("web"))
	if text := nft(t, "list ruleset"); strings.Contains(text, "chain x ") || !strings.Contains(text, "shop/web/tcp/http") {
		t.Error(text)
	}
	nft(t, "flush ruleset")
	if err := w.Present(t.Context()); err == nil {
		t.Error("flushed rules are not missed")
	}
	write(t, w, service("web"))
	if text := nft(t, "list ruleset"); !strings.Contains(text, "shop/web/tcp/http") {
		t.Error(text)
	}
}
