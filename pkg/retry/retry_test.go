// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestUntil: how often a request is made that fails so for ever, with a deadline of one minute and without one.
func TestUntil(t *testing.T) {
	maps := corev1.Resource("configmaps")
	_, dialTimeout := (&net.Dialer{Timeout: 1}).Dial("tcp", "127.0.0.1:1")
	for _, tt := range []struct {
		name  string
		err   error
		tries bool          // more than one
		took  time.Duration // with the deadline
	}{
		{"connection refused", &url.Error{Op: "Get", Err: syscall.ECONNREFUSED}, true, time.Minute},
		{"packets to the API server are dropped", &url.Error{Op: "Get", Err: dialTimeout}, true, time.Minute},
		{"internal error", apierrors.NewInternalError(errors.New("leader changed")), true, time.Minute},
		{"unavailable", apierrors.NewServiceUnavailable("shutting down"), true, time.Minute},
		{"too many requests", apierrors.NewTooManyRequests("slow down", 1), true, time.Minute},
		{"timeout", apierrors.NewTimeoutError("timeout", 1), true, time.Minute},
		{"bad gateway", apierrors.NewGenericServerResponse(502, "get", maps, "cm", "", 0, true), true, time.Minute},
		{"forbidden", apierrors.NewForbidden(maps, "cm", nil), true, 3150 * time.Millisecond},
		{"not found", apierrors.NewNotFound(maps, "cm"), false, 0},
		{"exists", apierrors.NewAlreadyExists(maps, "cm"), false, 0},
		{"conflict", apierrors.NewConflict(maps, "cm", nil), false, 0},
		{"invalid", apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("ConfigMap").GroupKind(), "cm", nil), false, 0},
		{"too large", apierrors.NewRequestEntityTooLargeError("3 MiB"), false, 0},
		{"own timeout", context.DeadlineExceeded, false, 0},
	} {
		for _, limited := range []bool{true, false} {
			t.Run(tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx := t.Context()
					if limited {
						var cancel func()
						ctx, cancel = context.WithTimeout(ctx, time.Minute)
						defer cancel()
					}
					began, tries := time.Now(), 0
					err := Until(ctx, func() error { tries++; return tt.err })
					if !errors.Is(err, tt.err) {
						t.Errorf("%v, want the error of the request", err)
					}
					took, want := time.Since(began), time.Duration(0)
					if limited {
						want = tt.took
					}
					if took != want || (tries > 1) != (tt.tries && limited) || strings.Contains(err.Error(), "tried") != (tries > 1) {
						t.Errorf("%d tries in %s, want %s: %v", tries, took, want, err)
					}
				})
			})
		}
	}
}

// TestSecondTry: a request that succeeds when it is made again is no error; a denial of what a survey reads is final.
func TestSecondTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		answers := func(first error) func() (int, error) {
			n := 0
			return func() (int, error) {
				if n++; n == 1 {
					return 0, first
				}
				return n, nil
			}
		}
		denied := apierrors.NewForbidden(corev1.Resource("nodes"), "", nil)
		if n, err := Get(ctx, answers(denied)); n != 2 || err != nil {
			t.Errorf("Get: %d, %v", n, err)
		}
		if n, err := Read(ctx, answers(syscall.ECONNRESET)); n != 2 || err != nil {
			t.Errorf("Read: %d, %v", n, err)
		}
		if n, err := Read(ctx, answers(denied)); n != 0 || !apierrors.IsForbidden(err) {
			t.Errorf("Read: %d, %v, want that it is denied", n, err)
		}
	})
}
