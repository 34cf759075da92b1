// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netfilter

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

// TestSteady: a dump is of one moment, also if a proxy writes its rules while they are read. Rules that never rest are
// an error, not half of them.
func TestSteady(t *testing.T) {
	type read struct {
		same bool
		err  error
	}
	ok, written, gone := read{true, nil}, read{false, nil}, read{false, fmt.Errorf("read nftables: %w", errChanged)}
	for _, tt := range []struct {
		name  string
		reads []read // the last one again and again
		calls int
		want  string
	}{
		{"nothing changes", []read{ok}, 1, "<nil>"},
		{"one sync", []read{written, ok}, 2, "<nil>"},
		{"a chain is gone when its rules are asked for, and a sync", []read{gone, written, ok}, 3, "<nil>"},
		{"one sync after another", []read{written}, attempts, "read rules: they changed 10 times while they were read"},
		{"another error", []read{written, {false, errors.New("no right")}}, 2, "no right"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				dump, err := steady(func() (*Dump, bool, error) {
					r := tt.reads[min(calls, len(tt.reads)-1)]
					calls++
					if r.err != nil {
						return nil, false, r.err
					}
					return &Dump{}, r.same, nil
				})
				if fmt.Sprint(err) != tt.want || (dump != nil) != (err == nil) || calls != tt.calls {
					t.Errorf("%v after %d reads, want %s after %d", err, calls, tt.want, tt.calls)
				}
			})
		})
	}
}
