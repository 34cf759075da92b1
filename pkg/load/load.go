// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// MaxFileSize is the most bytes that one file of a plan may have. A plan itself
// may be MaxPlanSize as JSON; the rest is room for comments and for CUE that
// makes plans out of data.
const MaxFileSize = 8 << 20

// Plans reads the plans at paths, which are relative to the directory dir; ""
// means the working directory. A path is a file or a directory:
//
//   - .cue files, which together are one package, as for the cue command;
//   - a directory with .cue files, which is the package in it, as for the cue
//     command;
//   - a .yaml, .yml or .json file, with one document per plan, which may be the
//     ConfigMap of a kiagnose checkup (see package kiagnose);
//   - a directory without .cue files: all .yaml, .yml and .json files in it.
//
// CUE is read by the ordinary rules of modules and registries, except that
// github.com/checkplan/checkplan/schema is always the schema of this program
// unless the plans are in that module itself. A plan that imports
// nothing else is read without network, and needs no cue.mod.
//
// Plans are returned in the order of paths, and by name within one. If
// there are problems, no plan is returned. Warnings are returned in any case.
//
// Plans returns when ctx ends or a bound is exceeded (see MaxTime, MaxWait and MaxMemory). CUE
// cannot be interrupted: what it evaluates goes on in the background, and the process
// should end.
func Plans(ctx context.Context, dir string, paths []string) (plans []*checkup.Plan, warnings, problems Problems) {
	r := Read(ctx, dir, paths)
	return r.Plans, r.Warnings, r.Problems
}

// Result is what is in the files of plans.
type Result struct {
	// Plans are empty where there are Problems.
	Plans []*checkup.Plan
	// ConfigMaps has the data of the ConfigMaps of kiagnose checkups among the files,
	// numbers as strings: what kubectl apply would make of them.
	ConfigMaps map[checkup.ConfigMapRef]map[string]string
	Warnings   Problems
	Problems   Problems
}

// Read reads the paths as Plans does, and returns all that is in them.
func Read(ctx context.Context, dir string, paths []string) *Result {
	return read(ctx, dir, paths, bounds{MaxTime, MaxWait, MaxMemory})
}

func read(ctx context.Context, dir string, paths []string, b bounds) *Result {
	var at atomic.Pointer[string]
	done := make(chan *Result, 1)
	go func() {
		l, problems := load(dir, paths, &at)
		r := &Result{ConfigMaps: l.data, Warnings: l.warnings.tidy(), Problems: problems}
		if len(problems) == 0 {
			r.Plans = l.plans
		}
		done <- r
	}()
	return await(ctx, done, &at, b)
}

// load reads the paths. It stores in at the name of the file or directory that it reads.
func load(dir string, paths []string, at *atomic.Pointer[string]) (*loader, Problems) {
	l := &loader{
		at:      at,
		ctx:     cuecontext.New(),
		sources: map[string]*source{},
		data:    map[checkup.ConfigMapRef]map[string]string{},
	}
	var err error
	if l.dir, err = filepath.Abs(dir); err != nil {
		return l, Problems{{Message: fmt.Sprintf("finding the working directory: %v", err)}}
	}
	if len(paths) == 0 {
		l.add(Problem{Message: "no plan: want a .cue, .yaml or .json file, or a directory of them"})
	}
	l.load(paths)
	return l, l.problems.tidy()
}

// loader is one call of Plans.
type loader struct {
	dir    string // absolute
	ctx    *cue.Context
	schema cue.Value // the embedded package; the zero Value until it is asked for
	// ownSchema is the schema's directory where the plans are in this module.
	ownSchema string
	plans     []*checkup.Plan
	sources   map[string]*source // of plans, by name
	problems  Problems
	warnings  Problems
	// data of the ConfigMaps that are plans.
	data map[checkup.ConfigMapRef]map[string]string
	at   *atomic.Pointer[string]
}

// guarded calls read, which reads the file or directory abs. A panic of a parser that
// read calls is a problem of abs.
func (l *loader) guarded(abs string, read func()) {
	name := l.rel(abs)
	l.at.Store(&name)
	if err := checkup.Guarded(func() error { read(); return nil }); err != nil {
		l.add(Problem{File: name, Message: fmt.Sprintf("cannot be parsed: %v", err)})
	}
}

func (l *loader) add(p Problem) { l.problems = append(l.problems, p) }

// load sorts paths into packages, files and manifests, and loads each at
// the position of its first path.
func (l *loader) load(paths []string) {
	var cueFiles []string // all of them, once the first was met
	for _, p := range paths {
		if filepath.Ext(p) == ".cue" && !l.isDir(p) {
			cueFiles = append(cueFiles, l.abs(p))
		}
	}
	cueLoaded := false
	for _, p := range paths {
		abs := l.abs(p)
		info, err := os.Stat(abs)
		switch {
		case err != nil:
			l.add(Problem{File: l.rel(abs), Message: reason(err)})
		case info.IsDir():
			l.loadDir(abs)
		case filepath.Ext(abs) == ".cue":
			if !cueLoaded {
				cueLoaded = true
				l.guarded(abs, func() { l.loadCUE(filepath.Dir(abs), cueFiles, cueFiles) })
			}
		case slices.Contains(manifestExts, filepath.Ext(abs)):
			l.guarded(abs, func() { l.loadManifests(abs) })
		default:
			l.add(Problem{File: l.rel(abs), Message: "unknown file extension: want .cue, .yaml, .yml or .json"})
		}
	}
}

var manifestExts = []string{".yaml", ".yml", ".json"}

func (l *loader) loadDir(abs string) {
	entries, err := os.ReadDir(abs)
	if err != nil {
		l.add(Problem{File: l.rel(abs), Message: reason(err)})
		return
	}
	var cueFiles, manifests []string
	for _, e := range entries {
		name := filepath.Join(abs, e.Name())
		switch ext := filepath.Ext(e.Name()); {
		case l.isDir(name), strings.HasPrefix(e.Name(), "."), strings.HasPrefix(e.Name(), "_"):
		case ext == ".cue":
			cueFiles = append(cueFiles, name)
		case slices.Contains(manifestExts, ext):
			manifests = append(manifests, name)
		}
	}
	switch {
	case len(cueFiles) > 0:
		l.guarded(abs, func() { l.loadCUE(abs, []string{"."}, cueFiles) })
	case len(manifests) > 0:
		for _, m := range manifests {
			l.guarded(m, func() { l.loadManifests(m) })
		}
	default:
		l.add(Problem{File: l.rel(abs), Message: "no plan in this directory: want a .cue, .yaml, .yml or .json file"})
	}
}

// read reads a file of a plan, or adds a problem and returns false if the file
// cannot be a plan.
func (l *loader) read(abs string) ([]byte, bool) {
	b, err := readFile(abs)
	if err != nil {
		l.add(Problem{File: l.rel(abs), Message: reason(err)})
		return nil, false
	}
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	for rest, line, col := b, 1, 1; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			l.add(Problem{File: l.rel(abs), Line: line, Column: col, Message: fmt.Sprintf("not UTF-8: byte 0x%02x", rest[0])})
			return nil, false
		}
		if r == 0 {
			l.add(Problem{File: l.rel(abs), Line: line, Column: col, Message: "not text: byte 0x00"})
			return nil, false
		}
		if col += n; r == '\n' {
			line, col = line+1, 1
		}
		rest = rest[n:]
	}
	if len(bytes.TrimSpace(b)) == 0 {
		l.add(Problem{File: l.rel(abs), Message: "empty file: want a plan"})
		return nil, false
	}
	return b, true
}

// readFile reads a regular file of at most MaxFileSize. To open another kind may block
// for ever, or never end.
func readFile(abs string) ([]byte, error) {
	if info, err := os.Stat(abs); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(abs)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err == nil && len(b) > MaxFileSize {
		err = fmt.Errorf("larger than %d MiB: too large for a plan", MaxFileSize>>20)
	}
	return b, err
}

func (l *loader) abs(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(l.dir, path)
}

// rel is how a file is called in problems: relative to the working directory,
// with slashes.
func (l *loader) rel(abs string) string {
	if rel, err := filepath.Rel(l.dir, abs); err == nil {
		abs = rel
	}
	return filepath.ToSlash(abs)
}

func (l *loader) isDir(path string) bool {
	info, err := os.Stat(l.abs(path))
	return err == nil && info.IsDir()
}

// reason is what went wrong with a file, without its name, which the caller prints first.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
