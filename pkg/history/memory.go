// SPDX-License-Identifier: Apache-2.0

package history

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// Unmarshal is json.Unmarshal for what others may have written: `{},` may become a struct of hundreds of bytes. It
// first computes about how many bytes of memory the value takes, and subtracts them from left. It refuses a value for
// which not enough is left.
func Unmarshal(raw []byte, value any, left *int) error {
	if !json.Valid(raw) {
		return json.Unmarshal(raw, value) // it says what is wrong
	}
	s := weigher{raw: raw, left: *left, shapes: map[reflect.Type]*shape{}}
	s.value(reflect.TypeOf(value))
	if *left = max(s.left, 0); s.left < 0 {
		return errors.New("takes too much memory")
	}
	return json.Unmarshal(raw, value)
}

// weigher weighs JSON that is valid.
type weigher struct {
	raw    []byte
	at     int
	left   int // bytes; below 0, nothing more is read
	shapes map[reflect.Type]*shape
}

// shape is what weigher knows of a type.
type shape struct {
	own    bool // the type reads its JSON itself
	fields map[string]reflect.Type
}

func (s *weigher) shape(t reflect.Type) *shape {
	if known := s.shapes[t]; known != nil {
		return known
	}
	p, of := reflect.PointerTo(t), &shape{}
	of.own = p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	s.shapes[t] = of
	if t.Kind() == reflect.Struct {
		of.fields = map[string]reflect.Type{}
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" && !f.Anonymous {
				name = f.Name
			}
			of.fields[name] = f.Type // of an embedded struct it is "", and its fields are among those that are visible
		}
	}
	return of
}

// value reads a value that json.Unmarshal puts into a variable of type t; nil if it ignores the value.
func (s *weigher) value(t reflect.Type) {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
		s.left -= int(t.Size())
	}
	var of shape
	if t != nil {
		of = *s.shape(t)
	}
	first := s.next()
	begin := s.at
	switch first {
	case '{':
		var slot int // bytes of a key and an element of a map
		if !of.own && t != nil && t.Kind() == reflect.Map {
			slot = int(t.Key().Size() + t.Elem().Size())
			s.left -= 48 + 8*slot // the smallest map has room for eight
		}
		for s.at++; s.next() != '}' && s.left >= 0; {
			name := s.text()
			s.next()
			s.at++ // the colon
			switch {
			case slot > 0:
				s.left -= len(name) + 2*slot
				s.value(t.Elem())
			case of.own:
				s.value(nil)
			default:
				s.value(of.field(name))
			}
			s.comma()
		}
		s.at++
	case '[':
		var element reflect.Type
		if !of.own && t != nil && t.Kind() == reflect.Slice {
			element = t.Elem()
		}
		for s.at++; s.next() != ']' && s.left >= 0; s.comma() {
			if element != nil {
				s.left -= 2 * int(element.Size()) // a slice that grows is copied
			}
			s.value(element)
		}
		s.at++
	case '"':
		if n := len(s.text()); t != nil {
			s.left -= n
		}
	default: // a number, true, false or null
		for s.at < len(s.raw) && strings.IndexByte(",]} \t\r\n", s.raw[s.at]) < 0 {
			s.at++
		}
	}
	if of.own {
		s.left -= s.at - begin
		if first == '[' || first == '{' {
			s.left -= 64 * (s.at - begin) // as values of any, as which checkup.Cell reads them: many small maps
		}
	}
}

// field is the type of the field of a name, which json.Unmarshal also finds in other letters; nil if there is none.
func (of *shape) field(name []byte) reflect.Type {
	if t, ok := of.fields[string(name)]; ok {
		return t
	}
	var unquoted string
	if json.Unmarshal([]byte(fmt.Sprintf(`"%s"`, name)), &unquoted) == nil {
		for known, t := range of.fields {
			if strings.EqualFold(known, unquoted) {
				return t
			}
		}
	}
	return nil
}

// next is the first byte that is no space; 0 at the end.
func (s *weigher) next() byte {
	for ; s.at < len(s.raw); s.at++ {
		if c := s.raw[s.at]; c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return c
		}
	}
	return 0
}

func (s *weigher) comma() {
	if s.next() == ',' {
		s.at++
	}
}

// text reads a string, and returns what is between its quotes.
func (s *weigher) text() []byte {
	s.next()
	begin := s.at + 1
	for s.at = begin; s.raw[s.at] != '"'; s.at++ {
		if s.raw[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
	return s.raw[begin : s.at-1]
}
