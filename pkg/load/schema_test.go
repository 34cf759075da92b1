// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/schema"
)

// The schema has exactly the fields that checkup.Plan has in JSON, of types that
// fit, except for the plan's name, which is a key in CUE.
func TestSchemaMirrorsPlan(t *testing.T) {
	def := schemaValue(cuecontext.New()).LookupPath(planDef)
	if err := def.Err(); err != nil {
		t.Fatal(err)
	}
	sameFields(t, "", def, reflect.TypeFor[checkup.Plan](), "name")
	for value, list := range map[string][]string{
		"gate.require": texts(checkup.Requirements),
		"teardown":     texts(checkup.Teardowns),
	} {
		v := def.LookupPath(cue.ParsePath(value))
		if got := phrase(v); got != `one of "`+strings.Join(list, `", "`)+`"` {
			t.Errorf("%s is %s; pkg/checkup has %q", value, got, list)
		}
	}
}

func texts[T ~string](list []T) []string {
	var out []string
	for _, v := range list {
		out = append(out, string(v))
	}
	return out
}

func sameFields(t *testing.T, path string, def cue.Value, typ reflect.Type, except ...string) {
	t.Helper()
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ == reflect.TypeFor[json.RawMessage]() { // Placement.Affinity
		typ = reflect.TypeFor[corev1.NodeAffinity]()
		except = []string{"preferredDuringSchedulingIgnoredDuringExecution"}
	}
	kind := def.IncompleteKind()
	switch {
	case kind == cue.StructKind && typ == reflect.TypeFor[checkup.Check]():
		// Beside after there is one field for each kind.
		want := append([]string{"after"}, texts(kinds.Names())...)
		if got := slices.Sorted(slices.Values(fieldNames(def))); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("%s has %q; want %q", path, got, want)
		}
		for _, k := range kinds.All {
			sub, ok := lookup(def, cue.Str(string(k.Name)))
			if !ok {
				t.Errorf("%s.%s is not in the schema", path, k.Name)
				continue
			}
			sameFields(t, path+"."+string(k.Name), sub, reflect.TypeOf(k.New()))
		}
	case kind == cue.StructKind && typ == reflect.TypeFor[map[checkup.Transport]checkup.Probe]():
		// The keys are fields in the schema, and path is http's alone.
		if got := fieldNames(def); !slices.Equal(got, texts(podmesh.Transports)) {
			t.Errorf("%s has %q; pkg/podmesh has %q", path, got, podmesh.Transports)
		}
		for _, tr := range podmesh.Transports {
			sub, _ := lookup(def, cue.Str(string(tr)))
			if tr == checkup.HTTP {
				sameFields(t, path+"."+string(tr), sub, typ.Elem())
			} else {
				sameFields(t, path+"."+string(tr), sub, typ.Elem(), "path")
			}
		}
	case kind == cue.StructKind && typ.Kind() == reflect.Map:
		elem, ok := lookup(arm(def, kind), cue.Str("any"))
		if !ok {
			t.Errorf("%s is not a map in the schema", path)
			return
		}
		sameFields(t, path+"[*]", elem, typ.Elem())
	case kind == cue.StructKind && typ.Kind() == reflect.Struct:
		var want []string
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" {
				t.Errorf("%s.%s has no JSON name", path, f.Name)
			}
			if slices.Contains(except, name) {
				continue
			}
			want = append(want, name)
			sub, ok := lookup(def, cue.Str(name))
			if !ok {
				t.Errorf("%s.%s is not in the schema", path, name)
				continue
			}
			sameFields(t, path+"."+name, sub, f.Type)
		}
		for _, name := range fieldNames(def) {
			if !slices.Contains(want, name) {
				t.Errorf("%s.%s is not in %v", path, name, typ)
			}
		}
	case kind == cue.ListKind && typ.Kind() == reflect.Slice:
		sameFields(t, path+"[]", arm(def, kind).LookupPath(cue.MakePath(cue.AnyIndex)), typ.Elem())
	case kind == cue.StringKind && typ.Kind() == reflect.String,
		kind == cue.StringKind && (typ == reflect.TypeFor[checkup.Duration]() || typ == reflect.TypeFor[checkup.Percent]()),
		kind == cue.BoolKind && typ.Kind() == reflect.Bool,
		kind == cue.NumberKind && typ.Kind() == reflect.Float64,
		kind == cue.IntKind && (typ.Kind() == reflect.Int || typ.Kind() == reflect.Int64 || typ.Kind() == reflect.Uint64):
	default:
		t.Errorf("%s is %v in the schema and %v in Go", path, kind, typ)
	}
}

// Every definition and every field has a comment of whole sentences, which states
// the default of what has one, or that there is none.
func TestSchemaIsDocumented(t *testing.T) {
	for name, b := range schemaFiles() {
		f, err := parser.ParseFile(name, b, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		var walk func(path string, decls []ast.Decl)
		walk = func(path string, decls []ast.Decl) {
			for _, d := range decls {
				field, ok := d.(*ast.Field)
				if _, pattern := label(field); !ok || pattern {
					continue
				}
				at, _ := label(field)
				at = path + at
				comment := checkup.OneLine(commentOf(field))
				if !strings.HasSuffix(comment, ".") || !unicode.IsUpper([]rune(comment)[0]) {
					t.Errorf("%s: comment %q", at, comment)
				}
				if want := defaultOf(field.Value); want != "" && !strings.Contains(comment, "Default "+want) {
					t.Errorf("%s: comment %q does not state the default %s", at, comment, want)
				}
				if field.Constraint == token.OPTION && !strings.Contains(strings.ToLower(comment), "default") {
					t.Errorf("%s: comment %q mentions no default", at, comment)
				}
				if s, ok := field.Value.(*ast.StructLit); ok {
					walk(at+".", s.Elts)
				}
			}
		}
		walk(name+": ", f.Decls)
	}
}

// label is the name of a field, and whether it is a pattern.
func label(f *ast.Field) (string, bool) {
	if f == nil {
		return "", false
	}
	if _, ok := f.Label.(*ast.ListLit); ok {
		return "", true
	}
	name, _, _ := ast.LabelName(f.Label)
	return name, false
}

func commentOf(f *ast.Field) string {
	for _, g := range ast.Comments(f) {
		if g.Doc {
			return g.Text()
		}
	}
	return ""
}

// defaultOf is the default in an expression, where it is a word or a number.
func defaultOf(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.BinaryExpr:
		return defaultOf(x.X)
	case *ast.UnaryExpr:
		if lit, ok := x.X.(*ast.BasicLit); ok && x.Op == token.MUL {
			return strings.Trim(lit.Value, `"`)
		}
	}
	return ""
}

// What is embedded is what is in the module, and nothing else is in the package.
func TestEmbeddedModule(t *testing.T) {
	file, err := os.ReadFile("../../cue.mod/module.cue")
	if err != nil {
		t.Fatal(err)
	}
	if string(file) != moduleFile {
		t.Errorf("cue.mod/module.cue is\n%s\nwhile this program serves\n%s", file, moduleFile)
	}
	names, err := filepath.Glob("../../schema/*.cue")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := fs.ReadFile(schema.FS, filepath.Base(name))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is not embedded as it is: %v", name, err)
		}
	}
	if len(schemaFiles()) != len(names) {
		t.Errorf("%d files are embedded of %d", len(schemaFiles()), len(names))
	}
}

// The schema says the limit that the agents keep.
func TestLimitsOfProbes(t *testing.T) {
	count := schemaValue(cuecontext.New()).LookupPath(cue.ParsePath("#Count"))
	if got, want := phrase(count), "a whole number from 1 to 1000"; got != want || checkup.MaxCount != 1000 {
		t.Errorf("schema: %s; want up to %d", got, checkup.MaxCount)
	}
}
