// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	cueload "cuelang.org/go/cue/load"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/mod/modconfig"
	"cuelang.org/go/mod/modfile"
	"cuelang.org/go/mod/module"

	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/schema"
)

const (
	modulePath = "github.com/checkplan/checkplan"
	schemaPath = modulePath + "/schema"
	// moduleMajor is the module's path with its major version, as CUE's module
	// files spell it; cue.mod/module.cue says the same.
	moduleMajor = modulePath + "@v0"
	// moduleVersion is the version of the schema in this program. No registry has it.
	moduleVersion = "v0.0.0"
	// moduleFile is cue.mod/module.cue of the module that this program serves.
	moduleFile = "module: \"" + moduleMajor + "\"\nlanguage: version: \"" + schemaLanguage + "\"\nsource: kind: \"git\"\n"
	// schemaLanguage is the version of CUE that the schema is written in.
	schemaLanguage = "v0.9.0"
)

// embedded is the virtual directory of the embedded module, for plans in the absolute
// directory dir. The CUE loader reads packages of other modules only from the operating
// system's files, so the overlay has the module's files in this directory, which need
// not exist.
func embedded(dir string) string {
	return filepath.Join(filepath.VolumeName(dir)+string(filepath.Separator), "checkplan-planner-builtin")
}

// schemaFiles are the schema's files by name, with those of kinds that bring their own.
func schemaFiles() map[string][]byte {
	files := map[string][]byte{}
	names, err := fs.Glob(schema.FS, "*.cue")
	if err != nil {
		return nil
	}
	for _, name := range names {
		if b, err := fs.ReadFile(schema.FS, name); err == nil {
			files[name] = b
		}
	}
	for _, k := range kinds.All {
		if len(k.Schema) > 0 {
			files["kind_"+string(k.Name)+".cue"] = k.Schema
		}
	}
	return files
}

// registry is the user's own registry, except for this module, which it serves
// from memory.
type registry struct {
	modconfig.Registry
	root string // virtual directory of the embedded module
}

func (r registry) ModFile(ctx context.Context, m module.Version) (*modfile.File, error) {
	if m.Path() != moduleMajor {
		return r.Registry.ModFile(ctx, m)
	}
	return modfile.Parse([]byte(moduleFile), "module.cue")
}

func (r registry) Fetch(ctx context.Context, m module.Version) (module.SourceLoc, error) {
	if m.Path() != moduleMajor {
		return r.Registry.Fetch(ctx, m)
	}
	return module.SourceLoc{FS: moduleFS{r.root}, Dir: "."}, nil
}

func (r registry) ModuleVersions(ctx context.Context, mpath string) ([]string, error) {
	if mpath != moduleMajor && mpath != modulePath {
		return r.Registry.ModuleVersions(ctx, mpath)
	}
	return []string{moduleVersion}, nil
}

// moduleFS is the embedded module as a file system with a directory on disk, which the
// CUE loader needs of every module (module.OSRootFS).
type moduleFS struct{ root string }

func (m moduleFS) OSRoot() string { return m.root }

func (m moduleFS) Open(name string) (fs.File, error) {
	if in, ok := strings.CutPrefix(name+"/", "schema/"); ok {
		return schema.FS.Open(path.Clean(in))
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// ReadFile knows the module file too, which is not among the schema's files.
func (m moduleFS) ReadFile(name string) ([]byte, error) {
	if name == "cue.mod/module.cue" {
		return []byte(moduleFile), nil
	}
	return fs.ReadFile(schema.FS, strings.TrimPrefix(name, "schema/"))
}

// ReadDir lists no file at the root: the module has the one package only.
func (m moduleFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if in, ok := strings.CutPrefix(name+"/", "schema/"); ok {
		return schema.FS.ReadDir(path.Clean(in))
	}
	return nil, nil
}

// config is how a package in the directory dir is loaded. overlay holds the
// files that were read already, by absolute name. With open, the schema is
// replaced by one that allows everything, to get what the user wrote without the
// schema.
func config(dir string, overlay map[string][]byte, open bool) *cueload.Config {
	ours := embedded(dir)
	cfg := &cueload.Config{
		Dir:     dir,
		Overlay: map[string]cueload.Source{},
		Registry: registry{
			Registry: &modconfig.LazyRegistry{New: func() (modconfig.CachedRegistry, error) {
				return modconfig.NewRegistry(&modconfig.Config{ClientType: "checkplan-planner"})
			}},
			root: ours,
		},
	}
	schemaDir := cmp.Or(ownSchema(dir), filepath.Join(ours, "schema"))
	if found := moduleRoot(dir); found == "" {
		cfg.ModuleRoot = dir
		own := &modfile.File{Module: "checkplan.dev/plan@v0", Language: &modfile.Language{Version: cue.LanguageVersion()}}
		cfg.Overlay[filepath.Join(dir, "cue.mod", "module.cue")] = depend(own, nil)
	} else {
		for name, src := range dependencies(found) {
			cfg.Overlay[name] = src
		}
	}
	for name, b := range schemaFiles() {
		cfg.Overlay[filepath.Join(ours, "schema", name)] = cueload.FromBytes(b)
	}
	for name, b := range overlay {
		cfg.Overlay[name] = cueload.FromBytes(b)
	}
	cfg.ParseFile = parseFile
	if open {
		cfg.ParseFile = func(name string, src any, c parser.Config) (*ast.File, error) {
			f, err := parseFile(name, src, c)
			if err == nil && filepath.Dir(name) == schemaDir {
				f = opened(f)
			}
			return f, err
		}
	}
	return cfg
}

// opened is a file of the schema in which every definition allows everything.
func opened(f *ast.File) *ast.File {
	out := &ast.File{Filename: f.Filename}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.Package:
			out.Decls = append(out.Decls, d)
		case *ast.Field:
			var v ast.Expr = ast.NewIdent("_")
			if _, ok := d.Value.(*ast.StructLit); ok {
				v = &ast.StructLit{Elts: []ast.Decl{&ast.Ellipsis{}}}
			}
			out.Decls = append(out.Decls, &ast.Field{Label: d.Label, Value: v})
		}
	}
	return out
}

// moduleRoot is the nearest directory at or above dir with a cue.mod in it, or
// "".
func moduleRoot(dir string) string {
	for {
		if _, err := os.Stat(filepath.Join(dir, "cue.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

// ownSchema is the directory of the schema that packages in dir import: "" if
// that is the embedded one, because dir is not in this module.
func ownSchema(dir string) string {
	root := moduleRoot(dir)
	if root == "" {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(root, "cue.mod", "module.cue"))
	if err != nil {
		return ""
	}
	f, err := modfile.ParseNonStrict(b, "module.cue")
	if err != nil || f.QualifiedModule() != moduleMajor {
		return ""
	}
	return filepath.Join(root, "schema")
}

// dependencies gives the module files of a user's module, by name, with this
// module added to the dependencies, if it is missing there. Files that
// cannot be read are skipped: the CUE loader reports why.
func dependencies(root string) map[string]cueload.Source {
	if vendored(root) != "" {
		return nil
	}
	name := filepath.Join(root, "cue.mod", "module.cue")
	b, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	f, err := modfile.ParseNonStrict(b, name)
	if err != nil || f.QualifiedModule() == moduleMajor {
		return nil
	}
	out := map[string]cueload.Source{}
	if src := depend(f, nil); src != nil {
		out[name] = src
	}
	// If there is a local-module.cue, CUE reads dependencies from it.
	localName := filepath.Join(root, "cue.mod", "local-module.cue")
	if b, err := os.ReadFile(localName); err == nil {
		if local, err := modfile.ParseLocal(b, localName, f); err == nil {
			if src := depend(local, f); src != nil {
				out[localName] = src
			}
		}
	}
	return out
}

// depend writes the module file f with this module among its dependencies; nil
// if it is already there. base is the module.cue of f if f is a local-module.cue, else
// nil.
func depend(f, base *modfile.File) cueload.Source {
	for name := range f.Deps {
		if p, _, _ := strings.Cut(name, "@"); p == modulePath {
			return nil
		}
	}
	deps := map[string]*modfile.Dep{moduleMajor: {Version: moduleVersion, Default: true}}
	for name, d := range f.Deps {
		deps[name] = d
	}
	g := &modfile.File{Module: f.Module, Language: f.Language, Source: f.Source, Deps: deps, Custom: f.Custom}
	var b []byte
	var err error
	if base == nil {
		b, err = modfile.Format(g)
	} else {
		b, err = modfile.FormatLocal(g, base)
	}
	if err != nil {
		return nil
	}
	return cueload.FromBytes(b)
}

// isSchema reports whether an import path, with or without a major version, is
// the schema's.
func isSchema(importPath string) bool {
	return path.Clean(ast.ParseImportPath(importPath).Path) == schemaPath
}
