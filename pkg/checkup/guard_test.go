// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"errors"
	"testing"
)

func TestGuarded(t *testing.T) {
	wrong := errors.New("wrong")
	for _, test := range []struct {
		name  string
		parse func() error
		want  string
	}{
		{"no error", func() error { return nil }, ""},
		{"an error", func() error { return wrong }, "wrong"},
		{"an index out of range", func() error { return []error{}[len("x")] }, "the parser panicked: runtime error: index out of range [1] with length 0"},
		{"hostile words", func() error { panic("a\nb\x1b[31m") }, "the parser panicked: " + Clean("a\nb\x1b[31m")},
	} {
		got := ""
		if err := Guarded(test.parse); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
	if !errors.Is(Guarded(func() error { return wrong }), wrong) {
		t.Error("the error of a parser is lost")
	}
}
