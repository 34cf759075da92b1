// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkAgainstCUE measures whole processes on the same plans, in turn: `planner
// compile` and `planner vet` against stock `cue vet -c`, which only validates. Each
// metric is planner's total time divided by cue's.
func BenchmarkAgainstCUE(b *testing.B) {
	root, err := filepath.Abs("../..")
	if err != nil {
		b.Fatal(err)
	}
	bin := b.TempDir()
	for name, pkg := range map[string]string{"planner": "./cmd/planner", "cue": "cuelang.org/go/cmd/cue"} {
		build := exec.Command("go", "build", "-o", filepath.Join(bin, name), pkg)
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			b.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	run := func(args ...string) time.Duration {
		cmd := exec.Command(filepath.Join(bin, args[0]), args[1:]...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CUE_REGISTRY=none")
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %v\n%s", args, err, out)
		}
		return time.Since(start)
	}
	peer := []string{"cue", "vet", "-c", "./plans"}
	for name, args := range map[string][]string{
		"compile": {"planner", "compile", "./plans"},
		"vet":     {"planner", "vet", "./plans"},
	} {
		b.Run(name, func(b *testing.B) {
			run(args...) // fills the page cache
			run(peer...)
			var ours, theirs time.Duration
			for b.Loop() {
				ours += run(args...)
				theirs += run(peer...)
			}
			b.ReportMetric(float64(ours)/float64(theirs), "x-cue-vet")
		})
	}
}
