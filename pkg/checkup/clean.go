// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Names of objects, messages of pods and consoles of guests may hold anything. They are stored as they are, and cleaned
// where they are printed: on terminals, in logs, in files.

// Clean makes one harmless line of a text. White space becomes a space. What does not print becomes U+FFFD: control
// characters, which begin escape sequences of terminals, and format characters, such as those that change the direction
// of the text after them.
func Clean(s string) string {
	return anywhere.Replace(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == utf8.RuneError || !unicode.IsPrint(r):
			return utf8.RuneError
		default:
			return r
		}
	}, s))
}

// CleanLines is Clean for a text of several lines, which it keeps.
func CleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Clean(lines[i])
	}
	return strings.Join(lines, "\n")
}

// Log viewers take a line for a command that begins with "::" (GitHub Actions, Tekton's dashboard: ::error::), or has
// one of these anywhere (Azure Pipelines, old runners of GitHub: ##[error]).
var (
	leading  = regexp.MustCompile(`(?m)^([ \t]*):(:)`)
	anywhere = strings.NewReplacer("##[", "# #[", "##vso[", "# #vso[")
)

// NoCommand returns whole lines with a space in what log viewers would take for a command, because a message must not
// forge an ::error:: line.
func NoCommand(lines string) string {
	return anywhere.Replace(leading.ReplaceAllString(lines, "$1: $2"))
}

// escapes are of what anywhere replaces. JSON has a number sign in strings only.
var escapes = strings.NewReplacer("##[", `\u0023#[`, "##vso[", `\u0023#vso[`)

// EscapeJSON returns a JSON document that prints: what Clean would replace is written as an escape, which reads back as
// the same value.
func EscapeJSON(document []byte) []byte {
	var b strings.Builder
	for _, r := range string(document) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default: // encoding/json escapes what could not be inside a string
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return []byte(escapes.Replace(b.String()))
}
