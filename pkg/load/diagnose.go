// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/token"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// diagnosis compares what a user wrote with the schema, field by field. CUE
// itself reports only some of several wrong fields, and describes each in terms of
// the schema's text.
type diagnosis struct {
	ctx   *cue.Context
	found []finding
	more  int // problems beyond maxFound
}

// maxFound is the most problems of one plan that are listed.
const maxFound = 100

func (d *diagnosis) report(path []cue.Selector, pos token.Pos, format string, args ...any) {
	if d.full() {
		return
	}
	d.found = append(d.found, finding{path: slices.Clone(path), pos: pos, message: fmt.Sprintf(format, args...)})
}

// full counts a problem that is not listed, and reports whether there are too many to list it.
func (d *diagnosis) full() bool {
	if len(d.found) < maxFound {
		return false
	}
	d.more++
	return true
}

// all returns what was found, with the number of what is not listed.
func (d *diagnosis) all() []finding {
	if d.more == 0 {
		return d.found
	}
	return append(d.found, finding{message: "and " + checkup.Count(d.more, "more problem") + ", not listed"})
}

// value reports what of v the schema def does not allow, and returns the rest;
// nil if nothing is left of it.
func (d *diagnosis) value(def, v cue.Value, path []cue.Selector) ast.Expr {
	switch kind := kindOf(v); {
	case kind == cue.BottomKind:
		for _, e := range errors.Errors(v.Err()) {
			pos := e.Position()
			if !pos.IsValid() {
				pos = valuePos(v)
			}
			d.report(path, pos, "%s", message(e))
		}
		return nil
	case kind == cue.StructKind && arm(def, kind).Exists():
		return d.fields(arm(def, kind), v, path)
	case kind == cue.ListKind && arm(def, kind).Exists():
		return d.elements(arm(def, kind), v, path)
	default:
		if def.Unify(v).Validate() != nil {
			d.mismatch(def, v, path)
			return nil
		}
		if !v.IsConcrete() {
			// The schema's default is taken. A reference that only the schema
			// resolves is an error here, but not an error of the user.
			if v.Err() == nil && def.Unify(v).Validate(cue.Concrete(true)) != nil {
				d.report(path, valuePos(v), "%s is not concrete: want %s", text(v), phrase(def))
			}
			return nil
		}
		expr, _ := v.Syntax(cue.Final()).(ast.Expr)
		return expr
	}
}

// kindOf is the kind of v, also if something in it is wrong.
func kindOf(v cue.Value) cue.Kind {
	if kind := v.IncompleteKind(); kind != cue.BottomKind {
		return kind
	}
	if _, err := v.Fields(); err == nil {
		return cue.StructKind
	}
	if _, err := v.List(); err == nil {
		return cue.ListKind
	}
	return cue.BottomKind
}

func (d *diagnosis) fields(def, v cue.Value, path []cue.Selector) ast.Expr {
	out := &ast.StructLit{}
	given := map[string]bool{}
	it, err := v.Fields()
	if err != nil {
		return nil
	}
	for it.Next() {
		name := it.Selector().Unquoted()
		given[name] = true
		at := append(path, it.Selector())
		sub, ok := lookup(def, it.Selector())
		if !ok {
			if !d.full() { // the message takes long to make
				d.report(at, labelPos(it.Value()), "%s", unknownField(def, name))
			}
			continue
		}
		if rest := d.value(sub, it.Value(), at); rest != nil {
			out.Elts = append(out.Elts, &ast.Field{Label: ast.NewString(name), Value: rest})
		}
	}
	whole := true
	known, err := def.Fields(cue.Optional(true))
	for err == nil && known.Next() {
		name := known.Selector().Unquoted()
		if known.FieldType() != cue.StringLabel|cue.RequiredConstraint || given[name] {
			continue
		}
		d.report(append(path, cue.Str(name)), valuePos(v), "missing: %s", firstSentence(doc(known.Value())))
		if known.Value().IncompleteKind() == cue.StructKind {
			out.Elts = append(out.Elts, &ast.Field{Label: ast.NewString(name), Value: ast.NewStruct()})
		} else {
			whole = false
		}
	}
	if !whole {
		return nil
	}
	return out
}

func (d *diagnosis) elements(def, v cue.Value, path []cue.Selector) ast.Expr {
	out := &ast.ListLit{}
	it, err := v.List()
	if err != nil {
		return nil
	}
	elem := def.LookupPath(cue.MakePath(cue.AnyIndex))
	for i := 0; it.Next(); i++ {
		if rest := d.value(elem, it.Value(), append(path, cue.Index(i))); rest != nil {
			out.Elts = append(out.Elts, rest)
		}
	}
	return out
}

// mismatch reports a value that is not what the schema wants.
func (d *diagnosis) mismatch(def, v cue.Value, path []cue.Selector) {
	have, want := text(v), phrase(def)
	hint := ""
	if v.IncompleteKind()&(cue.NumberKind|cue.BoolKind) != 0 && v.IsConcrete() {
		if s := d.ctx.Encode(have); def.Unify(s).Validate(cue.Concrete(true)) == nil {
			hint = fmt.Sprintf("; write %q", have)
		}
	}
	if v.IsNull() && arm(def, cue.StructKind).Exists() {
		hint = "; write {} for the defaults"
	}
	d.report(path, valuePos(v), "%s is not %s%s", have, want, hint)
}

// uncovered is what CUE found in the plan at base beyond what d found, unless it
// only follows from that: then the user wrote nothing that it points at.
func (l *loader) uncovered(found []finding, err error, base cue.Path) []finding {
	var out []finding
	for _, e := range errors.Errors(err) {
		if len(found) >= maxFound || len(out) >= maxFound {
			break
		}
		path := slices.DeleteFunc(pathOf(e.Path()).Selectors(), cue.Selector.IsDefinition)
		if n := len(base.Selectors()); len(path) >= n && cue.MakePath(path[:n]...).String() == base.String() {
			path = path[n:]
		}
		pos, hint := l.positions(e)
		if covered(found, path) || !pos.IsValid() && len(found) > 0 {
			continue
		}
		out = append(out, finding{path: path, pos: pos, message: message(e) + hint})
	}
	return out
}

// covered reports whether something was found at path, above or below it.
func covered(found []finding, path []cue.Selector) bool {
	return slices.ContainsFunc(found, func(f finding) bool {
		n := min(len(f.path), len(path))
		return cue.MakePath(f.path[:n]...).String() == cue.MakePath(path[:n]...).String()
	})
}

// arm is the part of def that takes values of a kind: of a disjunction, which
// begins with its default, the last such part. It does not exist if there is
// none. (CUE gives a disjunction whose default is among its other values as an
// expression of no operator and the one other value.)
func arm(def cue.Value, kind cue.Kind) cue.Value {
	if def.IncompleteKind()&kind == 0 {
		return cue.Value{}
	}
	op, args := def.Expr()
	if op == cue.OrOp || op == cue.NoOp && len(args) == 1 && fmt.Sprint(args[0]) != fmt.Sprint(def) {
		for _, a := range slices.Backward(args) {
			if found := arm(a, kind); found.Exists() {
				return found
			}
		}
	}
	return def
}

// lookup is what def says of the field of a name.
func lookup(def cue.Value, name cue.Selector) (cue.Value, bool) {
	for _, sel := range []cue.Selector{name, name.Optional(), cue.Str(name.Unquoted()).Required(), cue.AnyString} {
		if v := def.LookupPath(cue.MakePath(sel)); v.Exists() {
			return v, true
		}
	}
	return cue.Value{}, false
}

// unknownField is the message about a field that def does not have, with the
// field that was probably meant.
func unknownField(def cue.Value, name string) string {
	names := fieldNames(def)
	best, bestDistance := "", max(2, len(name)/3)+1
	for _, known := range names {
		if n := distance(strings.ToLower(name), strings.ToLower(known)); n < bestDistance {
			best, bestDistance = known, n
		}
	}
	if best == "" {
		for _, known := range names {
			sub, _ := lookup(def, cue.Str(known))
			if slices.Contains(fieldNames(sub), name) {
				best = known + "." + name
				break
			}
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("unknown field %q; did you mean %q?", name, best)
	case len(names) == 0:
		return fmt.Sprintf("unknown field %q", name)
	default:
		return fmt.Sprintf("unknown field %q; known are %s", name, strings.Join(names, ", "))
	}
}

// fieldNames are the names of the fields that def knows, in its order.
func fieldNames(def cue.Value) []string {
	def = arm(def, cue.StructKind)
	if !def.Exists() {
		return nil
	}
	var names []string
	it, err := def.Fields(cue.Optional(true))
	for err == nil && it.Next() {
		names = append(names, it.Selector().Unquoted())
	}
	return names
}

// distance is how many letters must be changed, added, dropped or swapped with
// their neighbour to make b of a.
func distance(a, b string) int {
	prev2, prev, row := []int(nil), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev, row = prev, row, make([]int, len(b)+1)
	}
	return prev[len(b)]
}

// text is a value as the user wrote it, or what it is if that would be long.
func text(v cue.Value) string {
	switch v.IncompleteKind() {
	case cue.StructKind:
		return "a struct"
	case cue.ListKind:
		return "a list"
	}
	b, err := format.Node(v.Syntax(cue.Final()))
	if err != nil {
		return "this value"
	}
	s := checkup.OneLine(string(b))
	if r := []rune(s); len(r) > 60 {
		s = string(r[:57]) + "..."
	}
	return s
}

// phrase says in words what the schema wants: the comment of the definition
// that it refers to, the values that are allowed, or the type and its bounds.
func phrase(def cue.Value) string {
	if _, ref := def.ReferencePath(); len(ref.Selectors()) > 0 {
		if s := firstSentence(doc(cue.Dereference(def))); s != "" && def.IncompleteKind() != cue.StructKind {
			return strings.ToLower(s[:1]) + strings.TrimSuffix(s[1:], ".")
		}
	}
	switch op, args := def.Expr(); op {
	case cue.NoOp: // a disjunction but for its default, or a plain value
		if len(args) == 1 && fmt.Sprint(args[0]) != fmt.Sprint(def) {
			return phrase(args[0])
		}
	case cue.OrOp:
		var values, others []string
		for _, a := range args {
			if a.IsConcrete() && a.IncompleteKind()&(cue.StructKind|cue.ListKind) == 0 {
				values = append(values, text(a))
			} else {
				others = append(others, phrase(a))
			}
		}
		if len(others) > 0 {
			return others[len(others)-1]
		}
		return "one of " + strings.Join(values, ", ")
	case cue.AndOp:
		var parts []string
		for _, a := range args {
			parts = append(parts, phrase(a))
		}
		slices.SortStableFunc(parts, func(a, b string) int { return strings.Compare(order(a), order(b)) })
		s := strings.Join(slices.Compact(parts), " ")
		if strings.Contains(s, " from ") && !strings.Contains(s, " to ") {
			s += " up"
		}
		return strings.Replace(s, " up to ", " to ", 1)
	case cue.GreaterThanEqualOp:
		return "from " + text(args[0])
	case cue.LessThanEqualOp:
		return "to " + text(args[0])
	case cue.RegexMatchOp:
		return "a string matching " + text(args[0])
	case cue.CallOp:
		if len(args) == 2 && fmt.Sprint(args[0]) == "strings.MaxRunes" {
			return "of at most " + text(args[1]) + " characters"
		}
	}
	switch kind := def.IncompleteKind(); {
	case def.IsConcrete() && kind&(cue.StructKind|cue.ListKind) == 0:
		return text(def)
	case kind == cue.StructKind:
		if names := fieldNames(def); len(names) > 0 {
			return "a struct with fields " + strings.Join(names, ", ")
		}
		return "a struct"
	case kind == cue.ListKind:
		return "a list"
	case kind == cue.IntKind:
		return "a whole number"
	case kind == cue.StringKind:
		return "a string"
	case kind == cue.BoolKind:
		return "true or false"
	}
	return text(def)
}

// order sorts the parts of a phrase: type, then lower bound, then the rest.
func order(part string) string {
	switch {
	case strings.HasPrefix(part, "a "):
		return "0"
	case strings.HasPrefix(part, "from "):
		return "1"
	}
	return "2"
}

// doc is the comment of a field or definition, on one line.
func doc(v cue.Value) string {
	var s []string
	for _, g := range v.Doc() {
		s = append(s, g.Text())
	}
	return checkup.OneLine(strings.Join(s, " "))
}

func firstSentence(s string) string {
	if i := strings.Index(s, ". "); i >= 0 {
		s = s[:i+1]
	}
	return strings.TrimSuffix(s, ".")
}

// labelPos is where the label of a field was written.
func labelPos(v cue.Value) token.Pos {
	if f, ok := v.Source().(*ast.Field); ok {
		return f.Label.Pos()
	}
	return v.Pos()
}

// valuePos is where a value was written: of a struct, its label, because that is
// what people look for.
func valuePos(v cue.Value) token.Pos {
	if f, ok := v.Source().(*ast.Field); ok && v.IncompleteKind() != cue.StructKind {
		return f.Value.Pos()
	}
	return v.Pos()
}
