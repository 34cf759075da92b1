// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/record"
)

// Teller tells from time to time how far a check is: to the log, and to whoever
// follows the run. Telling is no part of the work: an error is forgotten.
type Teller struct {
	// Also is done each time before the progress is told; nil is nothing.
	Also func(context.Context)

	task  *Task
	store *record.Store

	mu   sync.Mutex // guards following
	last record.Progress
	told record.Progress
}

// NewTeller returns a Teller for the check of the task.
func NewTeller(t *Task, store *record.Store) *Teller { return &Teller{task: t, store: store} }

// tellEvery is the time between two tellings.
const tellEvery = 2 * time.Second

// Set says how far the check is now.
func (l *Teller) Set(p record.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = p
}

// Start tells every two seconds until the returned function is called, which
// tells a last time and waits for it.
func (l *Teller) Start(ctx context.Context) (stop func()) {
	running, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(tellEvery)
		defer tick.Stop()
		for {
			select {
			case <-running.Done():
				l.tell(ctx)
				return
			case <-tick.C:
				l.tell(ctx)
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

func (l *Teller) tell(ctx context.Context) {
	if l.Also != nil {
		l.Also(ctx)
	}
	l.mu.Lock()
	p, news := l.last, l.last != l.told
	l.told = l.last
	l.mu.Unlock()
	if news {
		l.task.Logf("%s", p)
		_ = l.store.SaveProgress(ctx, l.task.Check, p)
	}
}
