// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"strings"
	"unicode"
)

// tail keeps the end of a console's output.
type tail struct{ last []byte }

// maxTail is how much is kept, tailLines and tailWidth how much of it is shown.
const (
	maxTail   = 4096
	tailLines = 5
	tailWidth = 160
)

func (t *tail) add(b []byte) {
	t.last = append(t.last, b...)
	if n := len(t.last) - maxTail; n > 0 {
		t.last = append(t.last[:0], t.last[n:]...)
	}
}

// lines returns the last lines that are not empty, quoted, on one line; empty if there
// is none.
func (t *tail) lines() string {
	var lines []string
	for line := range bytes.Lines(t.last) {
		if s := strings.TrimSpace(plain(string(line))); s != "" {
			if len(s) > tailWidth {
				s = strings.ToValidUTF8(s[:tailWidth], "") + "..."
			}
			lines = append(lines, `"`+s+`"`)
		}
	}
	return strings.Join(lines[max(0, len(lines)-tailLines):], ", ")
}

// plain returns a text without terminal commands: without escape sequences (ECMA-48,
// CSI and OSC among them), and without control characters except newlines and tabs. The
// result is valid UTF-8.
func plain(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] == 0x1b {
			i = skipEscape(s, i+1)
			continue
		}
		j := i + 1
		for j < len(s) && s[j] != 0x1b {
			j++
		}
		b.WriteString(strings.Map(func(r rune) rune {
			if r == '\n' || r == '\t' || !unicode.IsControl(r) {
				return r
			}
			return -1
		}, strings.ToValidUTF8(s[i:j], "?")))
		i = j
	}
	return b.String()
}

// skipEscape returns where the escape sequence ends whose introducer ends at i.
func skipEscape(s string, i int) int {
	if i >= len(s) {
		return i
	}
	switch s[i] {
	case '[': // CSI: parameters and intermediates, then a final byte
		for i++; i < len(s) && s[i] >= 0x20 && s[i] < 0x40; i++ {
		}
		return min(i+1, len(s))
	case ']', 'P', '^', '_', 'X': // a string, until BEL or ESC \
		for i++; i < len(s); i++ {
			switch s[i] {
			case 0x07:
				return i + 1
			case 0x1b:
				if i+1 < len(s) && s[i+1] == '\\' {
					i++
				}
				return i + 1
			case '\n': // not meant as a sequence
				return i
			}
		}
		return i
	}
	for ; i < len(s) && s[i] >= 0x20 && s[i] < 0x30; i++ {
	}
	return min(i+1, len(s))
}
