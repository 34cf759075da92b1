// SPDX-License-Identifier: Apache-2.0

// Package flaky fails single requests of client-go's fake clients, for tests of what a bad day of the API server does
// to a run.
package flaky

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"
)

// Trouble is how a request fails.
type Trouble struct {
	Name string
	Err  error
	// Executed means that only the answer is lost.
	Executed bool
	// Denied means that the API server denies everything, as one that has just started does.
	Denied bool
}

// Troubles are the ways in which a request may fail that is answered when it is made again.
func Troubles() []Trouble {
	broken := func(op string, err error) error {
		return &url.Error{Op: "Get", URL: "https://10.96.0.1:443", Err: &net.OpError{Op: op, Net: "tcp", Err: err}}
	}
	pods := corev1.Resource("pods")
	return []Trouble{
		{Name: "connection refused", Err: broken("dial", syscall.ECONNREFUSED)},
		{Name: "dial timeout", Err: broken("dial", context.DeadlineExceeded)}, // as net's timeouts say that they are
		{Name: "answer lost", Err: broken("read", syscall.ECONNRESET), Executed: true},
		{Name: "429", Err: apierrors.NewTooManyRequests("too many requests", 1)},
		{Name: "500", Err: apierrors.NewInternalError(errors.New("etcdserver: leader changed"))},
		{Name: "503", Err: apierrors.NewServiceUnavailable("apiserver is shutting down")},
		{Name: "504", Err: apierrors.NewTimeoutError("request timed out", 1), Executed: true},
		{Name: "403", Err: apierrors.NewForbidden(pods, "", errors.New("no RBAC policy matched")), Denied: true},
	}
}

// Requests counts requests, and fails one of them. Its methods may be called from several goroutines.
type Requests struct {
	// Fail is the number of the request that fails, from 1; 0 means none.
	Fail int
	// With is how it fails.
	With Trouble

	mu      sync.Mutex // guards following
	made    []string
	stopped bool
}

// EachOnce runs a step undisturbed, and then again for each of its requests and for each of the ways in which that
// request fails. What run returns must always be the same.
func EachOnce(t *testing.T, ways func(request int) []Trouble, run func(*Requests) string) {
	t.Helper()
	undisturbed := &Requests{}
	want := run(undisturbed)
	for n, what := range undisturbed.Made() {
		for _, trouble := range ways(n) {
			if trouble.Denied && what == "create pods" {
				continue // what admission forbids is forbidden to a thousand pods: it is not tried again
			}
			r := &Requests{Fail: n + 1, With: trouble}
			if got := run(r); got != want {
				t.Errorf("request %d (%s) fails with %s: %s, want %s", n+1, r.Failed(), trouble.Name, got, want)
			}
		}
	}
}

// InEveryWay are all Troubles, for each request.
func InEveryWay(int) []Trouble { return Troubles() }

// InTurn is one of the Troubles for each request.
func InTurn(request int) []Trouble {
	all := Troubles()
	return all[request%len(all):][:1]
}

// Made returns the requests so far, such as "get configmaps".
func (r *Requests) Made() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.made...)
}

// Failed returns the request that failed, or empty.
func (r *Requests) Failed() string {
	if made := r.Made(); r.Fail > 0 && r.Fail <= len(made) {
		return made[r.Fail-1]
	}
	return ""
}

// Stop ends counting and failing: what follows is the test's own.
func (r *Requests) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
}

// Request counts a request, and reports whether it is to fail.
func (r *Requests) Request(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return false
	}
	r.made = append(r.made, what)
	return len(r.made) == r.Fail
}

// Of counts and fails the requests of fake clients. Call it after all reactors were added.
func (r *Requests) Of(clients ...*k8stesting.Fake) {
	for _, c := range clients {
		others := c.ReactionChain
		c.PrependReactor("*", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
			if !r.Request(describe(a)) {
				return false, nil, nil
			}
			if r.With.Executed {
				execute(others, a)
			}
			return true, nil, r.With.Err
		})
		c.PrependWatchReactor("*", func(a k8stesting.Action) (bool, watch.Interface, error) {
			failed := r.Request(describe(a))
			return failed, nil, r.With.Err
		})
	}
}

func describe(a k8stesting.Action) string {
	return fmt.Sprintf("%s %s", a.GetVerb(), a.GetResource().Resource)
}

func execute(reactors []k8stesting.Reactor, a k8stesting.Action) {
	a = a.DeepCopy() // one for all: a reactor may change the object for those after it
	for _, reactor := range reactors {
		if !reactor.Handles(a) {
			continue
		}
		if handled, _, _ := reactor.React(a); handled {
			return
		}
	}
}
