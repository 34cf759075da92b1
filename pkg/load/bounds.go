// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

// Bounds on reading plans. A disjunction of structs or a comprehension of a few lines can
// take hours and all memory, and CUE has no bounds of its own.
const (
	// MaxTime is the longest time for reading all paths.
	MaxTime = 30 * time.Second
	// MaxMemory is the largest size of the process's heap while it reads, in bytes.
	MaxMemory = 1 << 30
)

type bounds struct {
	time   time.Duration
	memory uint64
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
	timeout := time.NewTimer(b.time)
	defer timeout.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case r := <-done:
			return r
		case <-ctx.Done():
			return stopped("stopped while reading this: %v", context.Cause(ctx))
		case <-timeout.C:
			return stopped("takes longer than %v to evaluate; %s", b.time, hint)
		case <-look.C:
			if heap() > b.memory {
				return stopped("takes more than %d MiB of memory to evaluate; %s", b.memory>>20, hint)
			}
		}
	}
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
