// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// flows sums up samples by source port, in the order of the first use of a port. It returns nil if that would add
// nothing (all measurements or none were answered, and every demanded port was used), if a port is unknown, or if there
// are more than checkup.MaxFlows. So only pairs that lost a part have flows: with 500,000 pairs, four ports of each
// would double the record.
func flows(o checkup.Observation, samples []sample) []checkup.Flow {
	refused := slices.ContainsFunc(samples, func(s sample) bool { return s.unusable != nil })
	if !refused && (o.Received == 0 || o.Received == o.Sent) {
		return nil
	}
	var all []checkup.Flow
	for _, s := range samples {
		if s.spoiled {
			continue
		}
		i := slices.IndexFunc(all, func(f checkup.Flow) bool { return f.Port == s.port })
		switch {
		case s.port == 0, i < 0 && len(all) == checkup.MaxFlows:
			return nil
		case i < 0:
			i = len(all)
			all = append(all, checkup.Flow{Port: s.port})
		}
		switch f := &all[i]; {
		case s.unusable != nil:
			f.Unmeasured = s.unusable
		case s.cause == nil:
			f.Sent++
			f.Received++
		default:
			f.Sent++
		}
	}
	return all
}

// unusable is the sample of a measurement that was not made because its source port could not be used.
func unusable(port int, err error) sample {
	return sample{port: port, unusable: &checkup.Cause{Stage: checkup.StageSocket, Message: localTrouble(err).Error()}}
}

// isTaken reports whether an error of the local socket is about its source port: in use by another socket, also one
// that is closed and waits for late packets (RFC 9293, section 3.6), or not allowed.
func isTaken(err error) bool {
	return isLocal(err) && (errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) ||
		errors.Is(err, syscall.EACCES))
}

// turn lets the measurements of one source port happen one after another.
type turn struct {
	mine  chan struct{} // full while the port is used
	taken error         // why it cannot be used; nil if it can
}

// take waits for its turn and calls one, whose measurement demands the port of the turn.
func (t *turn) take(
	ctx context.Context,
	m Measurement,
	one func(context.Context, Measurement) (sample, error),
) (s sample, err error) {
	select {
	case t.mine <- struct{}{}:
	case <-ctx.Done():
		return s, errCutShort
	}
	defer func() { <-t.mine }()
	if t.taken == nil {
		err = patiently(ctx, m, m.Ports[0], func() (err error) {
			s, err = one(ctx, m)
			return err
		})
	}
	if isTaken(err) {
		t.taken = err
	}
	if t.taken != nil {
		return unusable(m.Ports[0], t.taken), nil
	}
	return s, err
}

// takenPause is how long to wait before a source port that is in use is tried again.
const takenPause = 50 * time.Millisecond

// patiently calls use, again and again while its source port is in use, for as long as a pair like m may take: then a
// pair of this agent that uses the port is over. Port 0 is never in use.
func patiently(ctx context.Context, m Measurement, port int, use func() error) error {
	patience := time.Now().
		Add(time.Duration(m.Probe.Count)*time.Duration(m.Probe.Interval) + time.Duration(m.Probe.Timeout))
	for {
		err := use()
		if port == 0 || !isTaken(err) || errors.Is(err, syscall.EACCES) ||
			time.Now().After(patience) || sleepUntil(ctx, time.Now().Add(takenPause)) != nil {
			return err
		}
	}
}
