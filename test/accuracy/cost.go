// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"syscall"
	"time"

	"github.com/checkplan/checkplan/pkg/podmesh"
)

// costs prints what judging and localising cost: the most CPU time of some runs of each setting, one at a time, and the
// most memory. That is the heap of the whole process, garbage and the record included, as for a report step. CPU time
// depends less than elapsed time on what else the machine does.
func costs(settings []setting, seeds uint64) error {
	fmt.Printf("| %-18s | %-5s | nodes | deg | CPU    | memory |\n|---|---|---|---|---|---|\n", "case", "noise")
	for _, s := range settings {
		var slowest time.Duration
		var most uint64
		for seed := range seeds {
			n, record, gate, err := s.simulate(seed)
			if err != nil {
				return err
			}
			n.lookAgain(record, gate)
			runtime.GC()
			done, peak := make(chan bool), make(chan uint64)
			go watchHeap(done, peak)
			began := spent()
			podmesh.Kind.Judge(n.w, n.roster, record, gate)
			slowest = max(slowest, spent()-began)
			close(done)
			most = max(most, <-peak)
		}
		fmt.Printf("| %-18s | %-5s | %5d | %3d | %6.2fs | %4dMB |\n",
			s.scenario.name, s.noise.name, s.nodes, s.degree, slowest.Seconds(), most>>20)
	}
	return nil
}

// spent is the CPU time of the process.
func spent() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// watchHeap sends the largest size of the heap, in bytes, from now until done is closed.
func watchHeap(done <-chan bool, peak chan<- uint64) {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	var sizes []uint64
	for over := false; !over; {
		metrics.Read(sample)
		sizes = append(sizes, sample[0].Value.Uint64())
		select {
		case <-done:
			over = true
		case <-time.After(time.Millisecond):
		}
	}
	peak <- slices.Max(sizes)
}
