// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"runtime/metrics"
	"sync/atomic"
	"syscall"
	"time"
)

// Bounds on reading plans. A disjunction of structs or a comprehension of a few lines can
// take hours and all memory, and CUE has no bounds of its own.
const (
	// MaxTime is the most CPU time of the process while it reads all paths. A busy machine or a container with
	// little CPU does not make a plan too complex: on a machine with a load of 50, a plan of 0.3 s took 30 s.
	MaxTime = 30 * time.Second
	// MaxWait is the longest wait for that: for CPU time, or for a file that does not end.
	MaxWait = 5 * time.Minute
	// MaxMemory is the largest size of the process's heap while it reads, in bytes.
	MaxMemory = 1 << 30
)

type bounds struct {
	time, wait time.Duration
	memory     uint64
}

// await returns what done delivers, or a problem with the file in at if ctx ends or a
// bound is exceeded before that.
func await(ctx context.Context, done <-chan *Result, at *atomic.Pointer[string], b bounds) *Result {
	stopped := func(format string, args ...any) *Result {
		p := Problem{Message: fmt.Sprintf(format, args...)}
		if name := at.Load(); name != nil {
			p.File = *name
		}
		return &Result{Problems: Problems{p}}
	}
	const hint = "simplify it: disjunctions of structs and comprehensions over long lists take most"
	timeout := time.NewTimer(b.wait)
	defer timeout.Stop()
	before := cpuTime()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case r := <-done:
			return r
		case <-ctx.Done():
			return stopped("stopped while reading this: %v", context.Cause(ctx))
		case <-timeout.C:
			return stopped("not evaluated within %v: the machine is too busy, or the file does not end", b.wait)
		case <-look.C:
			if cpuTime()-before > b.time {
				return stopped("takes more than %v of CPU time to evaluate; %s", b.time, hint)
			}
			if heap() > b.memory {
				return stopped("takes more than %d MiB of memory to evaluate; %s", b.memory>>20, hint)
			}
		}
	}
}

// cpuTime is the CPU time that the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap is the size of the objects on the heap, in bytes.
func heap() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
