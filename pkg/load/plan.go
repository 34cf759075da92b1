// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	cueload "cuelang.org/go/cue/load"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kinds"
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
	before, size := len(l.problems), 0
	for _, name := range files {
		b, ok := l.read(name)
		if !ok {
			continue
		}
		if _, err := parseFile(name, b, parser.NewConfig(parser.AllErrors)); err != nil {
			l.addErrors(err, name)
			continue
		}
		overlay[name] = b
		size += len(b)
	}
	if len(l.problems) > before {
		return
	}

	if !l.moduleFiles(dir) {
		return
	}
	l.checkVendored(dir)
	l.ownSchema = ownSchema(dir)
	inst := cueload.Instances(args, config(dir, overlay, false))[0]
	where := files[0]
	if args[0] == "." {
		where = dir
	}
	if inst.Err != nil {
		l.addErrors(inst.Err, where)
		return
	}
	if l.embeds(inst) {
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
	if size > largeSource && l.tooManyChecks(open(), where) {
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

	it, err := plans.Fields()
	if err != nil {
		l.addErrors(err, where)
		return
	}
	schema := l.schemaOf(inst)
	n := 0
	for ; it.Next(); n++ {
		sel := it.Selector()
		l.plan(&source{
			name:   sel.Unquoted(),
			path:   cue.MakePath(append(planPath.Selectors(), sel)...),
			file:   where,
			value:  it.Value(),
			def:    planDef,
			schema: schema,
			raw:    func() cue.Value { return open().LookupPath(cue.MakePath(sel)) },
		})
	}
	if err := plans.Err(); n == 0 && err != nil {
		l.addErrors(err, where)
	} else if n == 0 {
		l.add(l.problem(plans.Pos(), planPath, `no plan: want "<name>": schema.#Plan & {...} in it`))
	}
	// What is beside the plans must be right too, as for the cue command.
	for _, e := range errors.Errors(pkg.Validate()) {
		if path := pathOf(e.Path()).Selectors(); len(path) == 0 || path[0] != planPath.Selectors()[0] {
			l.addErrors(e, where)
		}
	}
}

// moduleFiles adds a problem and returns false if a file of the module around dir cannot
// be read.
func (l *loader) moduleFiles(dir string) bool {
	before := len(l.problems)
	if root := moduleRoot(dir); root != "" {
		for _, name := range []string{"module.cue", "local-module.cue"} {
			file := filepath.Join(root, "cue.mod", name)
			b, err := readFile(file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				l.add(Problem{File: l.rel(file), Message: reason(err)})
			}
			if err := tooDeep(file, b); err != nil {
				l.addErrors(err, file)
			}
		}
	}
	return len(l.problems) == before
}

// embeds adds a problem for each file of the instance and its imports that asks for
// @embed, and reports whether there was one. Embedded files may be links to any file that
// the user can read, and their content would be in the compiled Pipeline.
func (l *loader) embeds(inst *build.Instance) bool {
	before := len(l.problems)
	seen := map[*build.Instance]bool{}
	var visit func(*build.Instance)
	visit = func(i *build.Instance) {
		if seen[i] {
			return
		}
		seen[i] = true
		for _, f := range i.Files {
			for _, d := range f.Decls {
				if a, ok := d.(*ast.Attribute); ok && strings.HasPrefix(a.Text, "@extern(") {
					l.add(l.problem(a.Pos(), cue.Path{}, a.Text+" is not supported in plans: write the values in CUE"))
				}
			}
		}
		for _, imp := range i.Imports {
			visit(imp)
		}
	}
	visit(inst)
	return len(l.problems) > before
}

// maxChecks is the most checks of a plan that are evaluated. The shortest check
// has more than a kilobyte in a plan's JSON, so that more never fit
// checkup.MaxPlanSize; and each takes the schema some milliseconds.
const maxChecks = 128

// largeSource is from how many bytes of CUE on the checks are counted before the
// schema is put to them.
const largeSource = 256 << 10

// tooManyChecks reports whether any of the plans has more than maxChecks.
func (l *loader) tooManyChecks(plans cue.Value, where string) bool {
	before := len(l.problems)
	it, err := plans.Fields()
	for err == nil && it.Next() {
		path := append(planPath.Selectors(), it.Selector())
		if f := countChecks(it.Value()); f != nil {
			l.addFound(&source{path: cue.MakePath(path...), file: where, raw: it.Value}, []finding{*f})
		}
	}
	return len(l.problems) > before
}

// countChecks finds a plan that has more than maxChecks; nil if it does not.
func countChecks(plan cue.Value) *finding {
	checks := cue.ParsePath("checks")
	n := 0
	it, err := plan.LookupPath(checks).Fields()
	for err == nil && it.Next() {
		n++
	}
	if n <= maxChecks {
		return nil
	}
	message := fmt.Sprintf("%d checks: at most %d fit what Linux passes to a task: split the plan", n, maxChecks)
	return &finding{path: checks.Selectors(), rule: "plan-size", message: message}
}

// source is something that should be a plan: a plan by itself, or one in a
// manifest.
type source struct {
	// name is the plan's name where it is not in the value.
	name string
	path cue.Path // of the value, for problems
	file string   // or directory, of problems that have no other place
	// namePath and specPath are where name and plan are in the value, if it is a
	// manifest.
	namePath, specPath cue.Path
	// value is what the user wrote, perhaps with the schema in it already.
	value cue.Value
	def   cue.Path // the definition in the schema that it must match
	// schema is the package that it is compared with.
	schema cue.Value
	// raw is what the user wrote by itself.
	raw func() cue.Value
}

// plan turns a source into a plan, or into problems.
func (l *loader) plan(s *source) {
	var found []finding
	whole := s.value.Unify(s.schema.LookupPath(s.def))
	plan := whole.LookupPath(s.specPath)
	if err := whole.Validate(cue.Concrete(true)); err != nil {
		raw := s.raw()
		d := &diagnosis{ctx: l.ctx}
		schema := s.schema
		if raw.Exists() {
			d.value(schema.LookupPath(s.def), raw, nil)
		}
		found = append(d.all(), l.uncovered(d.found, err, s.path)...)
		// The rules check the valid rest of the plan, to report all problems at once.
		rest := (&diagnosis{ctx: d.ctx}).value(schema.LookupPath(planDef), raw.LookupPath(s.specPath), nil)
		if rest == nil {
			l.addFound(s, found)
			return
		}
		plan = d.ctx.BuildExpr(rest).Unify(schema.LookupPath(planDef))
		if plan.Validate(cue.Concrete(true)) != nil {
			l.addFound(s, found)
			return
		}
	}
	var p *checkup.Plan
	b, err := plan.MarshalJSON()
	if err == nil {
		p, err = kinds.DecodeStrict(b)
	}
	if err != nil {
		l.addFound(s, append(found, finding{message: fmt.Sprintf("reading the plan: %v", err)}))
		return
	}
	p.Name = s.name
	if sels := s.namePath.Selectors(); len(sels) > 0 {
		p.Name, _ = s.value.LookupPath(s.namePath).String()
	}
	shape := found
	for _, f := range check(p) {
		if f.rule == "plan-name" {
			f.path = s.namePath.Selectors()
		} else {
			f.path = slices.Concat(s.specPath.Selectors(), f.path)
		}
		if len(f.path) == 0 || !covered(shape, f.path) {
			found = append(found, f)
		}
	}
	if len(found) > 0 {
		l.addFound(s, found)
		return
	}
	l.take(p, s)
}

// take adds a decoded plan; a second plan of the same name is a problem.
func (l *loader) take(p *checkup.Plan, s *source) {
	if other, ok := l.sources[p.Name]; ok {
		first := l.problem(valuePos(other.raw()), other.path, "")
		message := fmt.Sprintf("duplicate plan %q: the first is at %s:%d", p.Name, first.File, first.Line)
		l.addFound(s, []finding{{path: s.namePath.Selectors(), message: message}})
		return
	}
	l.sources[p.Name] = s
	l.plans = append(l.plans, p)
}

// addFound adds what was found in a source, at the user's positions.
func (l *loader) addFound(s *source, found []finding) {
	raw := s.raw()
	for _, f := range found {
		pos := f.pos
		if !pos.IsValid() {
			pos = position(raw, f.path)
		}
		p := l.problem(pos, cue.MakePath(slices.Concat(s.path.Selectors(), f.path)...), f.message)
		p.rule = f.rule
		if p.File == "" {
			p.File = l.rel(s.file)
		}
		l.add(p)
	}
}

// finding is a problem at a path in a source.
type finding struct {
	path    []cue.Selector
	pos     token.Pos // where it is not at the value at the path
	message string
	rule    string // name of the rule that was broken, if it was one
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
		pos, hint := l.positions(e)
		p := l.problem(pos, pathOf(e.Path()), message(e)+hint)
		if p.File == "" && where != "" {
			p.File = l.rel(where)
			// YAML's own errors begin with their place.
			var line int
			if rest, ok := strings.CutPrefix(p.Message, where+":"); ok {
				if n, _ := fmt.Sscanf(rest, "%d:", &line); n == 1 {
					p.Line, p.Column = line, 1
					_, p.Message, _ = strings.Cut(rest, ": ")
				} else {
					p.Message = strings.TrimSpace(rest)
				}
			}
		}
		p.Message = strings.ReplaceAll(p.Message, l.dir+string(filepath.Separator), "")
		p.Message = strings.ReplaceAll(p.Message, strconv.Quote(l.dir), "this directory")
		l.add(p)
	}
}

// positions are the first position of an error in a user's file, and a hint at
// the last one in the schema, which is the narrowest.
func (l *loader) positions(e errors.Error) (user token.Pos, hint string) {
	for _, pos := range errors.Positions(e) {
		if !pos.IsValid() || pos.Filename() == "" {
			continue
		}
		if file, ours := l.schemaFile(pos.Filename()); !ours && !user.IsValid() {
			user = pos
		} else if ours {
			hint = fmt.Sprintf(" (%s:%d)", file, pos.Line())
		}
	}
	return user, hint
}

// message is the text of one of CUE's own errors, without its path, on one line.
func message(e errors.Error) string {
	s := e.Error()
	if path := strings.Join(e.Path(), "."); path != "" {
		s = strings.TrimPrefix(s, path+": ")
	}
	return checkup.OneLine(s)
}

// schemaFile is how a file of the schema is called, if name is one.
func (l *loader) schemaFile(name string) (string, bool) {
	if rel, err := filepath.Rel(embedded(l.dir), name); err == nil && filepath.IsLocal(rel) {
		return filepath.ToSlash(rel), true
	}
	return l.rel(name), filepath.Dir(name) == l.ownSchema
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
		file, err := parser.ParseFile(filepath.Join(embedded("/"), "schema", name), b, parser.ParseComments)
		if err != nil {
			inst.ReportError(errors.Promote(err, "parse the schema"))
			continue
		}
		_ = inst.AddSyntax(file)
	}
	return ctx.BuildInstance(inst)
}
