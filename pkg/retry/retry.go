// SPDX-License-Identifier: Apache-2.0

// Package retry repeats requests to the API server that failed for a reason that passes: an API server that restarts,
// an etcd that elects a leader, a connection that broke. What a run measured must not depend on one such request.
package retry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// firstPause is the pause after the first try; each later one is twice as long, up to longestPause.
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
	// deniedFor is how long startup 403s are tolerated: an API server that has just started denies everything for a
	// second or two, until it has read its roles.
	deniedFor = 3 * time.Second
)

// Until makes a request until it succeeds, its error is Final, or the deadline of ctx. Without a deadline it makes one
// try, because nothing would end the waiting. The request must be one that may be repeated after it was executed and
// its answer was lost. The error is that of the last try, which it wraps.
func Until(ctx context.Context, request func() error) error {
	_, limited := ctx.Deadline()
	began, pause := time.Now(), firstPause
	for try := 1; ; try++ {
		err := request()
		if err == nil {
			return nil
		}
		if limited && !Final(err, time.Since(began)) {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
				pause = min(2*pause, longestPause)
				continue
			case <-ctx.Done():
				timer.Stop()
			}
		}
		if try > 1 {
			err = fmt.Errorf("%w (tried %d times in %s)", err, try, time.Since(began).Round(100*time.Millisecond))
		}
		return err
	}
}

// Get is Until for a request that returns a value, which is that of the last try.
func Get[T any](ctx context.Context, request func() (T, error)) (T, error) {
	var value T
	err := Until(ctx, func() (err error) {
		value, err = request()
		return err
	})
	return value, err
}

// Read is Get, but a denial is final at once: a survey also works without some rights, and must not wait for each.
func Read[T any](ctx context.Context, request func() (T, error)) (T, error) {
	var denied error
	value, err := Get(ctx, func() (T, error) {
		value, err := request()
		if apierrors.IsForbidden(err) {
			denied, err = err, nil
		}
		return value, err
	})
	if err == nil {
		err = denied
	}
	return value, err
}

// Final reports whether it is useless to repeat a request whose first try was made that long ago and whose last one
// failed so. A denial is final when an API server that has just started would have read its roles.
func Final(err error, after time.Duration) bool {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return after >= deniedFor
	}
	return !Passing(err)
}

// Passing reports whether an error of a request may be temporary: the API server did not decide about the request
// itself. It answered 429 or 5xx, or not at all.
func Passing(err error) bool {
	var status apierrors.APIStatus
	if connection := new(net.OpError); errors.As(err, &connection) {
		return true // net's own timeouts are DeadlineExceeded, too, but not that of the request's context
	}
	if !errors.As(err, &status) {
		return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
	}
	return apierrors.IsTooManyRequests(err) || status.Status().Code >= 500
}
