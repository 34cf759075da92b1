// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// ask sends a request, again whenever the guest has been silent for a while, and
// calls hear with each reply until hear is done or returns an error. request is called
// for each request that is sent.
func ask(
	ctx context.Context,
	c *connection,
	request func() request,
	hear func(reply) (done, again bool, err error),
) error {
	send := func() error {
		line, err := frame(requestMark, request())
		if err != nil {
			return err
		}
		return c.send(ctx, line)
	}
	if err := send(); err != nil {
		return err
	}
	var lines splitter
	heard := time.Now()
	poll := time.NewTimer(pollEvery)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
			if time.Since(heard) > deadAfter {
				return fmt.Errorf("%w: the guest has been silent for %s", errLost, time.Since(heard).Round(time.Second))
			}
			if err := send(); err != nil {
				return err
			}
			poll.Reset(pollEvery)
		case b, ok := <-c.chunks:
			if !ok {
				return c.lost(ctx)
			}
			var done, again bool
			var err error
			lines.feed(b, func(line []byte) {
				var r reply
				if done || err != nil || !unframe(replyMark, line, &r) {
					return
				}
				heard = time.Now()
				poll.Reset(pollEvery)
				var now bool
				done, now, err = hear(r)
				again = again || now
			})
			switch {
			case err != nil || done:
				return err
			case again:
				if err := send(); err != nil {
					return err
				}
			}
		}
	}
}

// ownReady waits until checkplan's own guest reports its state, in the answer to this request: a state that the guest
// sent earlier, and nobody read, may be that before a restart.
func (g *Guest) ownReady(ctx context.Context, c *connection, heard func()) error {
	id := rand.Text()
	err := ask(ctx, c, func() request { return request{ID: id} }, func(r reply) (bool, bool, error) {
		heard()
		switch {
		case r.State == nil:
			return false, false, nil
		case r.ID != id:
			return false, r.ID == "", nil // a guest that has just started did not receive the request
		case len(r.State.Problems) > 0:
			return false, false, fmt.Errorf("the guest cannot measure: %s", strings.Join(r.State.Problems, "; "))
		case g.boot != nil && *g.boot != r.State.Boot:
			return false, false, errors.New("the guest restarted since it was ready")
		}
		g.boot = &r.State.Boot
		g.logf("the guest is ready %s after its kernel started; its clock is %s",
			time.Duration(r.State.Uptime)*time.Millisecond, checkup.Clean(r.State.Clock))
		return true, false, nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("the guest did not answer on its console: %w", err)
	}
	return err
}

// ownMeasure has checkplan's own guest carry out an order.
func (g *Guest) ownMeasure(ctx context.Context, order checkup.Order, report func(checkup.Message)) error {
	content, err := json.Marshal(order)
	if err != nil {
		return fmt.Errorf("encode the order: %w", err)
	}
	id := rand.Text()
	next := 0 // the number of the first message that has not been reported
	limit := time.Duration(order.Deadline) + graceOfGuest
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the guest did not finish its order within %s", limit))
	defer cancel()
	return g.persist(ctx, false, func(ctx context.Context, c *connection, heard func()) error {
		return ask(
			ctx,
			c,
			func() request { return request{ID: id, Order: content, From: next} },
			func(r reply) (done, again bool, err error) {
				if r.State != nil && r.ID == "" && next > 0 {
					return false, true, nil // it was restarted, and will report that it does not know the order
				}
				if r.ID != id {
					return false, false, nil
				}
				heard()
				switch {
				case r.Message != nil && r.Number == next:
					next++
					report(*r.Message)
				case r.Status == nil:
				case r.Status.Unknown:
					return false, false, errors.New("the guest restarted while it measured")
				case r.Status.Messages > next:
					return false, true, nil // some were damaged on the way
				case r.Status.Error != "":
					return false, false, fmt.Errorf("the guest's agent: %s", r.Status.Error)
				case r.Status.Done:
					return true, false, nil
				}
				return false, false, nil
			},
		)
	})
}

// graceOfGuest is how much longer than its deadline an order may take, lost
// connections included.
const graceOfGuest = time.Minute
