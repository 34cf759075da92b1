// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress prints the steps of `up` and `down` to stderr, one per line:
//
//   - after two seconds, and then every fifteen seconds, that a step still
//     runs, with its latest detail;
//   - at the end of a step its time, unless the step took less than a tenth of
//     a second.
//
// It prints no errors: main prints them, once.
type progress struct {
	mu  sync.Mutex
	out io.Writer // guarded by mu
}

func (p *progress) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...) // without stderr there is no reader
}

// step runs f under a name. f may report its state with detail, from any goroutine.
func (p *progress) step(name string, f func(detail func(string)) error) error {
	var mu sync.Mutex
	var latest string // guarded by mu
	start := time.Now()
	done := make(chan struct{})
	var watcher sync.WaitGroup
	printed := false
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
			printed, wait = true, 15*time.Second
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
	case printed || took >= 100*time.Millisecond:
		p.printf("  ok %s (%.1fs)", name, took.Seconds())
	}
	return err
}
