// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/record"
)

// ProgressWriter writes from time to time how far a check is: to the log, and to the
// record for people who follow the run. Progress is informational: errors are ignored.
type ProgressWriter struct {
	// Also is called each time before the progress is written; nil is nothing.
	Also func(context.Context)

	task  *Task
	store *record.Store

	mu      sync.Mutex // guards following
	last    record.Progress
	written record.Progress
}

// NewProgressWriter returns a ProgressWriter for the check of the task.
func NewProgressWriter(t *Task, store *record.Store) *ProgressWriter {
	return &ProgressWriter{task: t, store: store}
}

// progressEvery is how often progress is written.
const progressEvery = 2 * time.Second

// Set sets how far the check is now.
func (p *ProgressWriter) Set(now record.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = now
}

// Start writes the progress every two seconds until the returned function is called,
// which writes it a last time and waits for that.
func (p *ProgressWriter) Start(ctx context.Context) (stop func()) {
	running, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-running.Done():
				p.write(ctx)
				return
			case <-tick.C:
				p.write(ctx)
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

func (p *ProgressWriter) write(ctx context.Context) {
	if p.Also != nil {
		p.Also(ctx)
	}
	p.mu.Lock()
	last, changed := p.last, p.last != p.written
	p.written = p.last
	p.mu.Unlock()
	if changed {
		p.task.Logf("%s", last)
		_ = p.store.SaveProgress(ctx, p.task.Check, last)
	}
}
