// SPDX-License-Identifier: Apache-2.0

package write

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy/proxytest"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
)

// network gives the test a network of its own, in which nft may write.
func network(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs nft, and root: %v", err)
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
}

// servable returns states without what proxytest's node cannot serve: addresses that are its own, or an endpoint's.
func servable(t *testing.T, seed uint64) (steps []proxytest.Step) {
	t.Helper()
	for _, step := range proxytest.Steps(seed) {
		var unserved proxy.Unserved
		for _, family := range proxy.Families {
			Want(proxy.Check(step.Items), proxytest.Node(), family, &unserved)
		}
		if len(unserved.Problems) == 0 {
			steps = append(steps, step)
		}
	}
	return steps
}

// compare compares what a reader found with what a state wants.
func compare(t *testing.T, step proxytest.Step, family dataplane.Family, have dataplane.Table, seed uint64) (compared int) {
	t.Helper()
	mode := dataplane.Proxy{Mode: dataplane.IPVS, Program: dataplane.ServiceProxy}.Decides()
	wanted := want.Table(step.State, family, mode)
	if differences := dataplane.Compare(wanted, have); len(differences) > 0 || len(have.Unknown) > 0 {
		rules, _ := exec.Command("nft", "list", "ruleset").Output()
		t.Fatalf("seed %d, %s: %+v %q\n%s", seed, family, differences, have.Unknown, rules)
	}
	return len(wanted.Frontends)
}

// TestRoundTrip: the table in a kernel, and virtual servers as they have to be, are read as what pkg/dataplane/want
// expects, in each state of random clusters and in both families.
func TestRoundTrip(t *testing.T) {
	network(t)
	seeds := uint64(60)
	if os.Getenv("CHECKPLAN_LONG") != "" {
		seeds = 2_000
	}
	compared := 0
	rules := table.Writer(slog.New(slog.DiscardHandler))
	for seed := range seeds {
		for _, step := range servable(t, seed) {
			state := proxy.Check(step.Items)
			if err := rules.Write(t.Context(), state, proxytest.Node()); err != nil {
				t.Fatal(err)
			}
			for _, family := range proxy.Families {
				layout := Want(state, proxytest.Node(), family, &proxy.Unserved{})
				k := &ipvs.Kernel{Program: dataplane.ServiceProxy, Device: layout.Addresses}
				for _, s := range layout.Servers {
					k.Servers = append(k.Servers, s.VirtualServer)
				}
				for _, a := range proxytest.Node().Addresses {
					if a.Is4() == (family == dataplane.IPv4) && !a.IsLoopback() {
						k.Node = append(k.Node, a)
					}
				}
				var err error
				if k.Rules, err = netfilter.Read(family == dataplane.IPv6, ipvs.OwnTable); err != nil {
					t.Fatal(err)
				}
				have, err := ipvs.Parse(k)
				if err != nil {
					t.Fatal(err)
				}
				compared += compare(t, step, family, have, seed)
			}
		}
	}
	if t.Logf("%d frontends", compared); compared < 1000 {
		t.Error("want 1000 or more")
	}
}

// tidy calls Tidy until nothing is left: the table keeps unused chains for a second.
func tidy(t *testing.T, w *Writer) {
	t.Helper()
	for range 5 {
		now := w.Now().Add(2 * lookInterval)
		w.Now = func() time.Time { return now }
		more, err := w.Tidy(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return
		}
		time.Sleep(time.Second)
	}
	t.Error("there is always something left to tidy")
}

// TestKernel: what a kernel with IPVS has after each state is what pkg/dataplane/want expects, read by the reader of the
// audit; after a clean-up, it has nothing.
func TestKernel(t *testing.T) {
	network(t)
	if _, err := ipvs.Servers(dataplane.IPv4); err != nil {
		t.Skip(err)
	}
	for i, a := range proxytest.Node().Addresses {
		if a.IsLoopback() {
			continue
		}
		device := fmt.Sprintf("node%d", i)
		for _, args := range [][]string{
			{"link", "add", device, "type", "dummy"}, {"address", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", device},
		} {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				t.Fatalf("ip %v: %v: %s", args, err, out)
			}
		}
	}
	compared := 0
	w := New(slog.New(slog.DiscardHandler))
	for seed := range uint64(20) {
		if seed%10 == 9 { // a successor
			w = New(slog.New(slog.DiscardHandler))
		}
		for _, step := range servable(t, seed) {
			if err := w.Write(t.Context(), proxy.Check(step.Items), proxytest.Node()); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if err := w.Present(t.Context()); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for _, family := range proxy.Families {
				have, by, err := ipvs.Read(family)
				if err != nil || !slices.Equal(by, []dataplane.Program{dataplane.ServiceProxy}) {
					t.Fatalf("seed %d: of %v: %v", seed, by, err)
				}
				compared += compare(t, step, family, have, seed)
			}
			tidy(t, w)
		}
	}
	if t.Logf("%d frontends", compared); compared < 500 {
		t.Error("want 500 or more")
	}
	if err := w.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	for _, family := range proxy.Families {
		left, err := ipvs.Servers(family)
		if _, by, _ := ipvs.Read(family); len(left) > 0 || err != nil || len(by) > 0 {
			t.Errorf("left after a clean-up: %v, %v, %v", left, by, err)
		}
	}
}
