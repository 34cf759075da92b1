// SPDX-License-Identifier: Apache-2.0

package load

import (
	"path/filepath"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
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
	for _, d := range docs {
		l.manifest(abs, d)
	}
}

// documents are the documents of a YAML file, without empty ones.
func documents(f *ast.File) []ast.Expr {
	var docs []ast.Expr
	for _, d := range f.Decls {
		if e, ok := d.(*ast.EmbedDecl); ok {
			if list, ok := e.Expr.(*ast.ListLit); ok && len(f.Decls) == 1 {
				return list.Elts
			}
			return []ast.Expr{e.Expr}
		}
	}
	return append(docs, &ast.StructLit{Elts: f.Decls})
}

func (l *loader) manifest(abs string, doc ast.Expr) {
	v := l.ctx.BuildExpr(doc)
	if !l.schema.Exists() {
		l.schema = schemaValue(l.ctx)
	}
	def := l.schema.LookupPath(manifestDef)
	if err := def.Unify(v).Validate(cue.Concrete(true)); err != nil {
	}
	name, _ := v.LookupPath(manifestName).String()
	l.plan(&source{
		name:   name,
		path:   manifestSpec,
		nameAt: manifestName,
		value:  v.LookupPath(manifestSpec),
		def:    l.schema.LookupPath(planDef),
		raw:    func() cue.Value { return v.LookupPath(manifestSpec) },
	})
}
