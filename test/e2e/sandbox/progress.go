// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress prints what `up` and `down` do, one line at a time, to stderr:
//
//   - a step that takes over two seconds says that it is under way, and again
//     every fifteen seconds, with its latest detail;
//   - a step that is done says so with its time; one that took under a tenth of
//     a second and was never seen stays unsaid;
//   - an error is printed once, by main.
type progress struct {
	mu  sync.Mutex
	out io.Writer // guarded by mu
}

func (p *progress) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...) // where stderr is gone nobody listens
}

// step runs f under a name. f may say how far it is through detail, from any goroutine.
func (p *progress) step(name string, f func(detail func(string)) error) error {
	var mu sync.Mutex
	var latest string // guarded by mu
	start := time.Now()
	done := make(chan struct{})
	var watcher sync.WaitGroup
	seen := false
	watcher.Go(func() {
		wait := 2 * time.Second
		for {
			select {
			case <-done:
				return
			case <-time.After(wait):
			}
			mu.Lock()
			detail := latest
			mu.Unlock()
			if detail != "" {
				detail = ": " + detail
			}
			seen, wait = true, 15*time.Second
			p.printf("  ... %s (%s)%s", name, time.Since(start).Round(time.Second), detail)
		}
	})
	err := f(func(s string) {
		mu.Lock()
		defer mu.Unlock()
		latest = s
	})
	close(done)
	watcher.Wait()
	took := time.Since(start)
	switch {
	case err != nil:
		p.printf("  failed %s (%.1fs)", name, took.Seconds())
	case seen || took >= 100*time.Millisecond:
		p.printf("  ok %s (%.1fs)", name, took.Seconds())
	}
	return err
}
