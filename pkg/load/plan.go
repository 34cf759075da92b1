// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	cueload "cuelang.org/go/cue/load"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var (
	planPath     = cue.ParsePath("plan")
	planDef      = cue.ParsePath("#Plan")
	manifestDef  = cue.ParsePath("#Manifest")
	manifestName = cue.ParsePath("metadata.name")
	manifestSpec = cue.ParsePath("spec")
)

// loadCUE loads one package: args are what the cue command would be given in
// dir, files the files that they stand for.
func (l *loader) loadCUE(dir string, args, files []string) {
	overlay := map[string][]byte{}
	before := len(l.problems)
	for _, name := range files {
		b, ok := l.read(name)
		if !ok {
			continue
		}
		if err := tooDeep(b); err != nil {
			l.addErrors(err, name)
			continue
		}
		if _, err := parser.ParseFile(name, b, parser.AllErrors); err != nil {
			l.addErrors(err, name)
			continue
		}
		overlay[name] = b
	}
	if len(l.problems) > before {
		return
	}

	inst := cueload.Instances(args, config(dir, overlay, false))[0]
	where := files[0]
	if args[0] == "." {
		where = dir
	}
	if inst.Err != nil {
		l.addErrors(inst.Err, where)
		return
	}
	pkg := l.ctx.BuildInstance(inst)
	plans := pkg.LookupPath(planPath)
	if !plans.Exists() {
		if err := pkg.Err(); err != nil {
			l.addErrors(err, where)
			return
		}
		l.add(Problem{File: l.rel(where), Message: `no plan: want a field plan: "<name>": schema.#Plan & {...}`})
		return
	}

	// What the user wrote, apart from the schema; built only if it is needed.
	var openPlans cue.Value
	open := func() cue.Value {
		if !openPlans.Exists() {
			inst := cueload.Instances(args, config(dir, overlay, true))[0]
			openPlans = cuecontext.New().BuildInstance(inst).LookupPath(planPath)
		}
		return openPlans
	}

	it, err := plans.Fields()
	if err != nil {
		l.addErrors(err, where)
		return
	}
	def := l.schemaOf(inst).LookupPath(planDef)
	n := 0
	for ; it.Next(); n++ {
		name := it.Selector().Unquoted()
		at := cue.MakePath(cue.Str("plan"), cue.Str(name))
		l.plan(&source{
			name:   name,
			path:   at,
			nameAt: at,
			value:  it.Value(),
			def:    def,
			raw:    func() cue.Value { return open().LookupPath(cue.MakePath(cue.Str(name))) },
		})
	}
	if n == 0 {
		if err := plans.Err(); err != nil {
			l.addErrors(err, where)
			return
		}
		l.add(l.problem(plans.Pos(), planPath, `no plan: want "<name>": schema.#Plan & {...} in it`))
	}
}

// source is one plan before it is known to be one.
type source struct {
	name   string
	path   cue.Path // of the plan, for problems
	nameAt cue.Path // of its name
	// value is what the user wrote, perhaps with the schema in it already.
	value cue.Value
	def   cue.Value // #Plan
	// raw is what the user wrote by itself.
	raw func() cue.Value
}

// plan turns a source into a plan, or into problems.
func (l *loader) plan(s *source) {
	var found []finding
	clean := s.def.Unify(s.value)
	err := clean.Validate(cue.Concrete(true))
	if err != nil {
		raw := s.raw()
		if !raw.Exists() {
			l.addErrors(err, "")
			return
		}
		d := &diagnosis{ctx: raw.Context()}
		def := s.def
		if def.Context() != d.ctx {
			def = schemaValue(d.ctx).LookupPath(planDef)
		}
		rest := d.value(def, raw, nil)
		found = d.found
		found = append(found, d.uncovered(err, s.path)...)
		if found == nil {
			l.addErrors(err, "")
			return
		}
		clean = def.Unify(d.ctx.Encode(rest))
		if clean.Validate(cue.Concrete(true)) != nil {
			l.addFound(s, found)
			return
		}
	}
	b, err := clean.MarshalJSON()
	if err != nil {
		l.addErrors(err, "")
		return
	}
	p := &checkup.Plan{}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(p); err != nil {
		l.addFound(s, append(found, finding{message: fmt.Sprintf("reading the plan: %v", err)}))
		return
	}
	p.Name = s.name
	for _, f := range check(p) {
		if !covered(found, f.path) {
			found = append(found, f)
		}
	}
	if len(found) > 0 {
		l.addFound(s, found)
		return
	}
	l.take(p, l.problem(s.raw().Pos(), s.nameAt, ""))
}

// addFound adds what was found at paths of the plan as problems at the user's
// positions.
func (l *loader) addFound(s *source, found []finding) {
	raw := s.raw()
	for _, f := range found {
		pos := f.pos
		if !pos.IsValid() {
			pos = position(raw, f.path)
		}
		path := s.path
		if f.name {
			path = s.nameAt
		}
		p := l.problem(pos, cue.MakePath(append(path.Selectors(), f.path...)...), f.message)
		p.rule = f.rule
		l.add(p)
	}
}

// finding is a problem at a path in a plan.
type finding struct {
	path    []cue.Selector
	name    bool      // it is about the plan's name
	pos     token.Pos // if it is not the value at the path
	message string
	rule    string
}

// position is where the value at path was written, or else the nearest one
// around it.
func position(v cue.Value, path []cue.Selector) token.Pos {
	pos := valuePos(v)
	for _, sel := range path {
		v = v.LookupPath(cue.MakePath(sel))
		if !v.Exists() {
			break
		}
		if p := valuePos(v); p.IsValid() {
			pos = p
		}
	}
	return pos
}

func (l *loader) problem(pos token.Pos, path cue.Path, message string) Problem {
	p := Problem{Path: path.String(), Message: message}
	if pos.IsValid() {
		p.File, p.Line, p.Column = l.rel(pos.Filename()), pos.Line(), pos.Column()
	}
	return p
}

// addErrors adds CUE's own errors. where is the file or directory of those that
// have no position.
func (l *loader) addErrors(err error, where string) {
	for _, e := range errors.Errors(err) {
		p := l.cueProblem(e)
		if p.File == "" && where != "" {
			p.File = l.rel(where)
		}
		l.add(p)
	}
}

// cueProblem is one of CUE's own errors, at the user's position, with a
// position in the schema as a hint behind it.
func (l *loader) cueProblem(e errors.Error) Problem {
	p := Problem{Path: pathOf(e.Path()).String(), Message: message(e)}
	var hint string
	for _, pos := range errors.Positions(e) {
		file, ours := l.schemaFile(pos.Filename())
		switch {
		case !pos.IsValid() || pos.Filename() == "":
		case ours && hint == "":
			hint = fmt.Sprintf(" (%s:%d)", file, pos.Line())
		case !ours && p.File == "":
			p.File, p.Line, p.Column = l.rel(pos.Filename()), pos.Line(), pos.Column()
		}
	}
	p.Message += hint
	return p
}

// message is what one of CUE's own errors says, without its path, on one line.
func message(e errors.Error) string {
	s := e.Error()
	if path := strings.Join(e.Path(), "."); path != "" {
		s = strings.TrimPrefix(s, path+": ")
	}
	return oneLine(s)
}

// schemaFile is how a file of the schema is called, if name is one.
func (l *loader) schemaFile(name string) (string, bool) {
	if rel, err := filepath.Rel(embedded(l.dir), name); err == nil && filepath.IsLocal(rel) {
		return filepath.ToSlash(rel), true
	}
	return "", false
}

func pathOf(elems []string) cue.Path {
	var sels []cue.Selector
	for _, e := range elems {
		p := cue.ParsePath(e)
		if s := p.Selectors(); p.Err() == nil && len(s) == 1 {
			sels = append(sels, s[0])
		} else {
			sels = append(sels, cue.Str(e))
		}
	}
	return cue.MakePath(sels...)
}

// schemaOf is the package schema that a package imports, or else the embedded
// one.
func (l *loader) schemaOf(inst *build.Instance) cue.Value {
	seen := map[*build.Instance]bool{}
	var find func(*build.Instance) *build.Instance
	find = func(i *build.Instance) *build.Instance {
		if seen[i] {
			return nil
		}
		seen[i] = true
		for _, imp := range i.Imports {
			if isSchema(imp.ImportPath) {
				return imp
			}
			if found := find(imp); found != nil {
				return found
			}
		}
		return nil
	}
	if imp := find(inst); imp != nil {
		return l.ctx.BuildInstance(imp)
	}
	if !l.schema.Exists() {
		l.schema = schemaValue(l.ctx)
	}
	return l.schema
}

// schemaValue builds the embedded schema.
func schemaValue(ctx *cue.Context) cue.Value {
	inst := build.NewContext().NewInstance("", nil)
	for name, b := range schemaFiles() {
		// An error stays with the instance, and so with the value.
		_ = inst.AddFile(filepath.Join(embedded("/"), "schema", name), b)
	}
	return ctx.BuildInstance(inst)
}

