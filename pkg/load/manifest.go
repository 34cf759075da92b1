// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"
	cuejson "cuelang.org/go/encoding/json"
	cueyaml "cuelang.org/go/encoding/yaml"
)

// loadManifests loads the plans of a YAML or JSON file.
func (l *loader) loadManifests(abs string) {
	b, ok := l.read(abs)
	if !ok {
		return
	}
	var docs []ast.Expr
	if filepath.Ext(abs) == ".json" {
		var any json.RawMessage
		if err := json.Unmarshal(b, &any); err != nil {
			l.add(l.jsonProblem(abs, b, err))
			return
		}
		expr, err := cuejson.Extract(abs, b)
		if err != nil {
			l.addErrors(err, abs)
			return
		}
		docs = []ast.Expr{expr}
	} else {
		f, err := cueyaml.Extract(abs, b)
		if err != nil {
			l.addErrors(err, abs)
			return
		}
		docs = documents(f)
	}
	if len(docs) == 0 {
		l.add(Problem{File: l.rel(abs), Message: "empty file: want a plan"})
	}
	for _, d := range l.configMaps(abs, items(docs)) {
		l.manifest(abs, d)
	}
}

// documents are the documents of a YAML file, without the empty ones.
func documents(f *ast.File) []ast.Expr {
	if len(f.Decls) == 1 {
		if e, ok := f.Decls[0].(*ast.EmbedDecl); ok {
			docs := []ast.Expr{e.Expr}
			if list, ok := e.Expr.(*ast.ListLit); ok {
				docs = list.Elts
			}
			return slices.DeleteFunc(docs, func(d ast.Expr) bool {
				lit, ok := d.(*ast.BasicLit)
				return ok && lit.Kind == token.NULL
			})
		}
	}
	return []ast.Expr{&ast.StructLit{Elts: f.Decls}}
}

// items are the documents with each List (kubectl get -o yaml writes it) replaced by its items.
func items(docs []ast.Expr) []ast.Expr {
	var all []ast.Expr
	for _, d := range docs {
		field := at(d, "items")
		if literal(at(d, "kind")) != "List" || field == nil {
			all = append(all, d)
			continue
		}
		if list, ok := field.Value.(*ast.ListLit); ok {
			all = append(all, list.Elts...)
		}
	}
	return all
}

// jsonProblem is an error of encoding/json with its place.
func (l *loader) jsonProblem(abs string, b []byte, err error) Problem {
	p := Problem{File: l.rel(abs), Message: "not JSON: " + err.Error()}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		before := b[:max(0, min(int(syntax.Offset)-1, len(b)))]
		p.Line = bytes.Count(before, []byte("\n")) + 1
		p.Column = len(before) - bytes.LastIndexByte(before, '\n')
	}
	return p
}

// manifest loads one document.
func (l *loader) manifest(abs string, doc ast.Expr) {
	if !l.schema.Exists() {
		l.schema = schemaValue(l.ctx)
	}
	v := l.ctx.BuildExpr(doc)
	s := &source{
		file:     abs,
		namePath: manifestName,
		specPath: manifestSpec,
		value:    v,
		def:      manifestDef,
		schema:   l.schema,
		raw:      func() cue.Value { return v },
	}
	if f := countChecks(v.LookupPath(manifestSpec)); f != nil {
		f.path = slices.Concat(manifestSpec.Selectors(), f.path)
		l.addFound(s, []finding{*f})
		return
	}
	l.plan(s)
}
