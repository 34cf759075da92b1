// SPDX-License-Identifier: Apache-2.0

package task

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestWrap: what the dashboard shows of a long line, badge included, fits; a short line stays as it is.
func TestWrap(t *testing.T) {
	words := strings.TrimSpace(strings.Repeat("0123456789 ", 10))
	long := strings.Repeat("x", 100)
	for _, tt := range []struct{ name, line, want string }{
		{"empty", "", "\n"},
		{"short", "a  b", "a  b\n"},
		{"as long as the width", "a " + strings.Repeat("y", 74), "a " + strings.Repeat("y", 74) + "\n"},
		{"one too long", "a " + strings.Repeat("y", 75), "a\n    " + strings.Repeat("y", 75) + "\n"},
		{"long", words, strings.TrimSpace(strings.Repeat("0123456789 ", 7)) + "\n    0123456789 0123456789 0123456789\n"},
		{
			"an error", "::error::" + words,
			"::error::" + strings.TrimSpace(strings.Repeat("0123456789 ", 6)) +
				"\n::error::    0123456789 0123456789 0123456789 0123456789\n",
		},
		{
			"a warning has a longer badge", "::warning::" + words,
			"::warning::" + strings.TrimSpace(strings.Repeat("0123456789 ", 6)) +
				"\n::warning::    0123456789 0123456789 0123456789 0123456789\n",
		},
		{"the title of a group", "::group::" + words, "::group::" + words[:76] + "\n    0123456789 0123456789 0123456789\n"},
		{"an indent", "  " + words, "  " + words[:65] + "\n      0123456789 0123456789 0123456789 0123456789\n"},
		{"a word that is too long", "copy " + long + " now", "copy\n    " + long + "\n    now\n"},
		{"only a word", long, long + "\n"},
		{"no command in the middle", "a ::error:: b", "a ::error:: b\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := wrap(tt.line); got != tt.want {
				t.Errorf("%q\nbecomes %q\nwant    %q", tt.line, got, tt.want)
			}
		})
	}
}

// TestWrapper: lines may come in pieces, and the last one may lack its end.
func TestWrapper(t *testing.T) {
	var log strings.Builder
	w := &wrapper{to: &log}
	for _, piece := range []string{"a", "b\nc\n", "", "d", "\n\ne"} {
		if n, err := w.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := "ab\nc\nd\n\n"; log.String() != want {
		t.Errorf("%q, want %q", log.String(), want)
	}
	if err := w.Close(); err != nil || log.String() != "ab\nc\nd\n\ne\n" {
		t.Errorf("%q, %v after Close", log.String(), err)
	}
}

// FuzzWrap: no word is lost, changed or moved, and no line of several words is too long.
func FuzzWrap(f *testing.F) {
	f.Add("::error::mesh: packets into node worker-2 are lost: all 12 pairs to it fail, none from it (confidence 0.99)")
	f.Add("   " + strings.Repeat("ab ", 60))
	f.Add("::group::" + strings.Repeat("é", 90) + " x")
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsRune(line, '\n') || !utf8.ValidString(line) {
			return
		}
		level := levels.FindString(line)
		got := wrap(line)
		var text strings.Builder
		for i, l := range strings.Split(strings.TrimSuffix(got, "\n"), "\n") {
			rest, ok := strings.CutPrefix(l, level)
			if !ok {
				t.Fatalf("%q has a line without the level: %q", line, l)
			}
			if i > 0 {
				text.WriteByte(' ')
			}
			text.WriteString(rest)
			rest = strings.TrimPrefix(rest, group)
			if strings.Contains(strings.Trim(rest, " \t"), " ") && got != line+"\n" && utf8.RuneCountInString(rest) > logWidth {
				t.Errorf("%q has a line that is too long: %q", line, l)
			}
		}
		if a, b := strings.Fields(strings.TrimPrefix(line, level)), strings.Fields(text.String()); strings.Join(a, " ") != strings.Join(b, " ") {
			t.Errorf("%q becomes %q", a, b)
		}
	})
}
