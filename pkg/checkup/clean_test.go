// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"encoding/json"
	"testing"
)

func TestClean(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"mesh: worker-2 → 10.0.0.1 µs 網", "mesh: worker-2 → 10.0.0.1 µs 網"},
		{"\x1b[31mred\x1b[0m\a\x7f", "\uFFFD[31mred\uFFFD[0m\uFFFD\uFFFD"},
		{"one\r\ntwo\tthree\u2028four", "one  two three four"},
		{"\u202eevil\u2066\u200b\ufeff\u009b31m", "\uFFFDevil\uFFFD\uFFFD\uFFFD\uFFFD31m"},
		{"bad \xff UTF-8", "bad \uFFFD UTF-8"},
	} {
		if got := Clean(tt.in); got != tt.want {
			t.Errorf("Clean(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
	if got := CleanLines("a\x1b\nb\r\n"); got != "a\uFFFD\nb \n" {
		t.Errorf("CleanLines: %q", got)
	}
}

func TestNoCommand(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"::error::x", ": :error::x"},
		{"  ::endgroup::", "  : :endgroup::"},
		{"a\n::warning::b\n", "a\n: :warning::b\n"},
		{"address fd00::1, see a::b", "address fd00::1, see a::b"},
		{"x ##[error]y ##vso[task.complete]", "x # #[error]y # #vso[task.complete]"},
	} {
		if got := NoCommand(tt.in); got != tt.want {
			t.Errorf("NoCommand(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

// TestEscapeJSON: an escaped document has the same value.
func TestEscapeJSON(t *testing.T) {
	in := map[string]string{"k\u202e": "##[x] \x1b[31m \u202e\u009b\u2028 \U000E0001 é \n\t \x7f"}
	b, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	escaped := EscapeJSON(b)
	if clean := CleanLines(string(escaped)); clean != string(escaped) {
		t.Errorf("%q is not clean", escaped)
	}
	var out map[string]string
	if err := json.Unmarshal(escaped, &out); err != nil || out["k\u202e"] != in["k\u202e"] {
		t.Errorf("%q, %v; want %q", out, err, in)
	}
}
