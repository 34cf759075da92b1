// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// turn makes the turn of a worksheet once: when every agent has reported a pair, at the latest some time after the
// first one did. It is a sink. Agents begin with the pairs that the turn is for, so each of them was tried before.
type turn struct {
	latest time.Duration
	change func() checkup.Fact

	mu      sync.Mutex    // guards following
	waiting map[int]bool  // sources that have not reported a pair yet
	first   time.Time     // when the first pair was reported
	timer   *time.Timer   // since then
	begun   bool          // the turn, or finish before it
	made    chan struct{} // closed then
	fact    checkup.Fact  // what the API said after the turn; set before made is closed
}

// turnOf returns the turn of a worksheet; nil if it has none.
func turnOf(ctx context.Context, t *task.Task, f *fleet.Fleet, w *checkup.Worksheet, roster *checkup.Roster) *turn {
	if len(w.Turning()) == 0 {
		return nil
	}
	waiting := map[int]bool{}
	for _, order := range fleet.Orders(w, roster) {
		waiting[order.Source] = true
	}
	return newTurn(time.Duration(w.TurnTime()), waiting, func() checkup.Fact {
		if err := f.Turn(ctx, w, roster); err != nil {
			t.Logf("::warning::the endpoints of Services could not be changed: %v", err)
			return noTurn("the endpoints could not be changed: " + fleet.OneLine(err.Error()))
		}
		return servicesNow(ctx, t, f, w, checkup.FactServicesTurned)
	})
}

func newTurn(latest time.Duration, waiting map[int]bool, change func() checkup.Fact) *turn {
	return &turn{latest: latest, waiting: waiting, change: change, made: make(chan struct{})}
}

// noTurn is the fact of a turn that was not made.
func noTurn(message string) checkup.Fact {
	cause := &checkup.Cause{Stage: checkup.StageCollect, Message: message}
	return checkup.Fact{Unit: checkup.FactServicesTurned, Cause: cause}
}

func (t *turn) Observation(o checkup.Observation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer == nil {
		t.first = time.Now()
		t.timer = time.AfterFunc(t.latest, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.begin()
		})
	}
	if delete(t.waiting, o.Source); len(t.waiting) == 0 {
		t.begin()
	}
}

func (*turn) Results([]checkup.Result) {}

func (*turn) Source(checkup.Source) {}

// begin makes the turn, unless it was begun before. Agents wait for a time since their own first reports
// (checkup.Worksheet.TurnWait): they may not have seen a turn that took too long. The caller has locked t.
func (t *turn) begin() {
	if t.begun {
		return
	}
	t.begun = true
	first := t.first
	go func() {
		defer close(t.made)
		t.fact = t.change()
		if took, most := time.Since(first), t.latest/4*5; took > most {
			t.fact = noTurn(fmt.Sprintf("the endpoints were changed %s after the first pair was measured, later than %s",
				took.Round(time.Second), most))
		}
	}()
}

// finish returns what the API said after the turn, when everything was measured. It waits for a turn that is being
// made.
func (t *turn) finish() checkup.Fact {
	t.mu.Lock()
	if t.timer != nil {
		t.timer.Stop()
	}
	if !t.begun {
		t.begun, t.fact = true, noTurn("the endpoints were not changed: agents ended before")
		close(t.made)
	}
	t.mu.Unlock()
	<-t.made
	return t.fact
}
