// SPDX-License-Identifier: Apache-2.0

// Package hostile is for tests of what prints texts of others: it puts harmful characters into every text of a value,
// and finds them in what was printed.
package hostile

import (
	"reflect"
	"strings"
	"testing"
	"unicode"
)

// Text moves a cursor, colours a terminal, reverses the text after it, and forges commands of log viewers.
const Text = "\x1b[2J\x1b[31m\x9b\u009b31m\u202e\u2066\ufeff\u200b\x00\x7f\r\n::error::forged\n##[error]forged\u2028::endgroup::"

// Fill appends Text to every string of the value that v points to, keys of maps excepted; with enums true also to
// strings of named types, such as verdicts.
func Fill(v any, enums bool) { fill(reflect.ValueOf(v), enums) }

func fill(v reflect.Value, enums bool) {
	switch v.Kind() {
	case reflect.Pointer:
		fill(v.Elem(), enums)
	case reflect.Interface:
		if !v.IsNil() && v.CanSet() {
			inner := reflect.New(v.Elem().Type()).Elem()
			inner.Set(v.Elem())
			fill(inner, enums)
			v.Set(inner)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), enums)
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 { // JSON of a kind
			return
		}
		for i := range v.Len() {
			fill(v.Index(i), enums)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			inner := reflect.New(v.Type().Elem()).Elem()
			inner.Set(v.MapIndex(key))
			fill(inner, enums)
			if v.CanSet() {
				v.SetMapIndex(key, inner)
			}
		}
	case reflect.String:
		if v.CanSet() && (enums || v.Type() == reflect.TypeFor[string]()) {
			v.SetString(v.String() + Text)
		}
	}
}

// Check reports what of Text is in an output of lines, by the output's name.
func Check(t testing.TB, name, output string) {
	t.Helper()
	for i, line := range strings.Split(output, "\n") {
		if at := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); at >= 0 {
			t.Errorf("%s: line %d has a character that does not print: %q", name, i+1, line[at:])
			return
		}
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "::error::forged") ||
			strings.Contains(line, "##[") {
			t.Errorf("%s: line %d is a forged command: %q", name, i+1, line)
			return
		}
	}
	if !strings.Contains(output, "forged") {
		t.Errorf("%s: no hostile text was printed", name)
	}
}
