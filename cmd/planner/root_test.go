// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-multierror"
)

// TestProblems: each problem of an error is a message of its own. If one has several lines, empty lines separate them.
func TestProblems(t *testing.T) {
	one, two := errors.New("read one: no right"), errors.New("read two: no such file")
	long := errors.New("three:\nfield a: unknown\nfield b: unknown")
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"one", one, "read one: no right\n"},
		{"joined", errors.Join(one, two), "read one: no right\nread two: no such file\n"},
		{"wrapped", exit{exitUsage, fmt.Errorf("snapshot: %w; see --help", errors.Join(one, two))},
			"snapshot: read one: no right; see --help\nsnapshot: read two: no such file; see --help\n"},
		{"lists of lists", errors.Join(one, fmt.Errorf("in it: %w", errors.Join(two, one))),
			"read one: no right\nin it: read two: no such file\nin it: read one: no right\n"},
		{"multierror", &multierror.Error{Errors: []error{one, two}, ErrorFormat: func([]error) string {
			return "two errors"
		}}, "read one: no right\nread two: no such file\n"},
		{"two causes of one", fmt.Errorf("%w: %w", one, two), "read one: no right: read two: no such file\n"},
		{"several lines", long, "three:\n  field a: unknown\n  field b: unknown\n"},
		{"one of several lines", errors.Join(one, long, two),
			"read one: no right\n\nthree:\n  field a: unknown\n  field b: unknown\n\nread two: no such file\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			printProblems(&b, problemsOf(tt.err))
			if diff := cmp.Diff(tt.want, b.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
