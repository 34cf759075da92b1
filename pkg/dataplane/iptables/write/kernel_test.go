// SPDX-License-Identifier: Apache-2.0

package write

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy/proxytest"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
)

// TestKernel: what a kernel has after each state is what pkg/dataplane/want expects, read by the readers of the audit,
// with both backends of iptables.
func TestKernel(t *testing.T) {
	for _, backend := range []struct {
		name string
		read func(dataplane.Family) (dataplane.Table, []dataplane.Program, error)
	}{{"nft", iptables.Read}, {"legacy", iptables.ReadLegacy}} {
		t.Run(backend.name, func(t *testing.T) {
			if _, err := exec.LookPath("iptables-" + backend.name + "-restore"); err != nil || os.Geteuid() != 0 {
				t.Skipf("needs iptables, and root: %v", err)
			}
			runtime.LockOSThread() // for good: the thread ends with the test
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				t.Skipf("no network namespace: %v", err)
			}
			program := func(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
				family, what, _ := strings.Cut(name, "-")
				return run(ctx, stdin, strings.TrimSuffix(family+"-"+backend.name+"-"+what, "-"), args...)
			}
			cases := uint64(25)
			if os.Getenv("CHECKPLAN_LONG") != "" {
				cases = 1_000
			}
			var log bytes.Buffer
			start := func() *Writer { return newWriter(slog.New(slog.NewTextHandler(&log, nil)), program) }
			w := start()
			compared := 0
			for seed := range cases {
				for i, step := range proxytest.Steps(seed) {
					if seed%10 == 9 && i == 0 { // a successor
						w = start()
					}
					if err := w.Write(t.Context(), proxy.Check(step.Items), proxytest.Node()); err != nil || log.Len() > 0 {
						t.Fatalf("seed %d, step %d: %v\n%s", seed, i, err, &log)
					}
					for _, family := range proxy.Families {
						wanted := want.Table(step.State, family, dataplane.IPTables)
						have, by, err := backend.read(family)
						if err != nil {
							t.Fatal(err)
						}
						if len(by) == 0 && len(wanted.Frontends) == 0 {
							continue
						}
						if differences := dataplane.Compare(wanted, have); len(differences) > 0 || len(have.Unknown) > 0 ||
							!slices.Equal(by, []dataplane.Program{dataplane.ServiceProxy}) {
							save, err := program(t.Context(), nil, map[dataplane.Family]string{dataplane.IPv4: "iptables-save", dataplane.IPv6: "ip6tables-save"}[family])
							t.Fatalf("seed %d, step %d, %s, of %v: %+v %q\n%s%v", seed, i, family, by, differences, have.Unknown, save, err)
						}
						compared++
					}
					if seed%10 == 0 {
						if err := w.Present(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			t.Logf("%d tables", compared)
			if err := w.Cleanup(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"iptables-save", "ip6tables-save"} {
				if save, err := program(t.Context(), nil, name); err != nil || strings.Contains(string(save), iptables.OwnPrefix) {
					t.Errorf("left after --cleanup: %v\n%s", err, save)
				}
			}
		})
	}
}
