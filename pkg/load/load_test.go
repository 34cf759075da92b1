// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// Every archive in testdata/good is a plan with what it comes to; every one in
// testdata/broken is one way to be invalid, with the exact problems (TestBroken).
// They are loaded from a directory outside this repository. UPDATE=1 writes what
// is found into the last file.

func TestGood(t *testing.T) {
	offline(t)
	eachArchive(t, "testdata/good", "plans.json", func(t *testing.T, dir string, args []string) string {
		plans, _, problems := Plans(t.Context(), dir, args)
		if len(problems) > 0 {
			t.Fatalf("problems:\n%v", problems)
		}
		b, err := json.MarshalIndent(plans, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		return string(b) + "\n"
	})
}

// offline makes sure that no network and no cache is used, as on a machine with
// nothing but this program.
func offline(t testing.TB) {
	t.Setenv("CUE_REGISTRY", "none")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("CUE_CACHE_DIR", "")
}

// eachArchive unpacks every archive in dir, and compares what got gives with the
// file of the name golden in it. got is given the arguments in the line of the
// archive's comment that begins with "args: ", or else the files.
// It returns how many archives there are.
func eachArchive(t *testing.T, dir, golden string, got func(t *testing.T, dir string, args []string) string) int {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(names) == 0 {
		t.Fatalf("archives in %s: %v, %v", dir, names, err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			last := &archive.Files[len(archive.Files)-1]
			if last.Name != golden {
				t.Fatalf("the last file is %s, want %s", last.Name, golden)
			}
			var args []string
			tmp := t.TempDir()
			for _, f := range archive.Files[:len(archive.Files)-1] {
				args = append(args, f.Name)
				path := filepath.Join(tmp, filepath.FromSlash(f.Name))
				if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, f.Data, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			for line := range strings.Lines(string(archive.Comment)) {
				if rest, ok := strings.CutPrefix(line, "args: "); ok {
					args = strings.Fields(rest)
				}
			}
			have := got(t, tmp, args)
			if os.Getenv("UPDATE") == "1" && !t.Failed() {
				last.Data = []byte(have)
				if err := os.WriteFile(name, txtar.Format(archive), 0o666); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(last.Data), have); diff != "" {
				t.Errorf("(-want +got; UPDATE=1 writes it)\n%s", diff)
			}
		})
	}
	return len(names)
}

// The plans of this repository are loaded with its own schema, and each is named
// after its file.
func TestOwnPlans(t *testing.T) {
	offline(t)
	plans, _, problems := Plans(t.Context(), "../..", []string{"plans"})
	if len(problems) > 0 {
		t.Fatalf("problems:\n%v", problems)
	}
	files, err := filepath.Glob("../../plans/*.cue")
	if err != nil || len(files) != len(plans) {
		t.Errorf("%d files and %d plans (%v)", len(files), len(plans), err)
	}
	for _, p := range plans {
		if _, err := os.Stat(filepath.Join("../../plans", p.Name+".cue")); err != nil {
			t.Errorf("plan %s: %v", p.Name, err)
		}
	}
}

// A directory or file of another kind, or one that cannot be parsed, is a problem of its name.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"chain/module/cue.mod", "chain/imports/cue.mod", "chain/imports/sub"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	write("bytes.cue", []byte("package p\n\nplan: a: \"\xff\"\n"))
	write("bytes.yaml", []byte("a: b\nc: \xc3\x28\n"))
	write("zero.json", []byte("{\"a\": \x00}"))
	write("large.yaml", []byte(strings.Repeat("# comment\n", MaxFileSize/10+1)))
	write("deep.cue", []byte("a: "+strings.Repeat("[", 1<<20)))
	const chain = 1_000_000 // with this length, each of these ended the process
	for name, text := range map[string]string{
		"binary": "a: 1" + strings.Repeat("+1", chain), "selector": "a: b" + strings.Repeat(".x", chain),
		"call": "a: b" + strings.Repeat("()", chain), "index": "a: b" + strings.Repeat("[0]", chain),
		"labels": strings.Repeat("a: ", chain) + "1", "lines": strings.Repeat("a:\n", chain) + "1",
		// Short chains in brackets, one in the other.
		"nested":        "a: " + strings.Repeat("[0, (", 200) + "1" + strings.Repeat(strings.Repeat("+1", 5000)+")][1]", 200),
		"interpolation": `a: "\("x" + "\(b)")" + "` + "\\(1" + strings.Repeat("+1", chain) + `)"`,
		// What is not valid CUE.
		"comma":   "a: " + strings.Repeat("(", 200) + "1" + strings.Repeat(strings.Repeat("+1", 5000)+",", 200),
		"bracket": "a: " + strings.Repeat("(1", 200) + strings.Repeat(strings.Repeat("+1", 5000)+"], ", 200),
	} {
		write("chain/"+name+".cue", []byte(text))
	}
	write("chain/module/cue.mod/module.cue", []byte("module: \"example.com/m@v0\"\nx: 1"+strings.Repeat("+1", chain)))
	write("chain/module/plan.cue", []byte("package p\n\nplan: {}\n"))
	write("chain/imports/cue.mod/module.cue", []byte("module: \"example.com/m@v0\"\nlanguage: version: \"v0.9.0\"\n"))
	write("chain/imports/sub/sub.cue", []byte("package sub\n\nx: 1"+strings.Repeat("+1", chain)))
	write("chain/imports/plan.cue", []byte("package p\n\nimport \"example.com/m/sub\"\n\nplan: {a: sub.x}\n"))
	write("deep.yaml", []byte("a: "+strings.Repeat("[", 1<<20)))
	write("deep.json", []byte(strings.Repeat("[", 1<<20)))
	if err := os.Mkdir(filepath.Join(dir, "dir.yaml"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop.cue", filepath.Join(dir, "loop.cue")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(os.DevNull, filepath.Join(dir, "null.yaml")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"fifo", "module/cue.mod", "zero/cue.mod", "embed/cue.mod"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"fifo/plan.yaml", "module/cue.mod/module.cue", "fifo.yaml"} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "zero/cue.mod/module.cue")); err != nil {
		t.Fatal(err)
	}
	write("zero/plan.cue", []byte("package p\n\nplan: {}\n"))
	write("module/plan.cue", []byte("package p\n\nplan: {}\n"))
	write("embed/cue.mod/module.cue", []byte("module: \"example.com/m@v0\"\nlanguage: version: \"v0.9.0\"\n"))
	write("embed/plan.cue", []byte("@extern(embed)\n\npackage p\n\nplan: a: description: _ @embed(file=s.txt,type=text)\n"))
	write("secret.txt", []byte("secret"))
	if err := os.Symlink("../secret.txt", filepath.Join(dir, "embed/s.txt")); err != nil {
		t.Fatal(err)
	}
	write("cr.yaml", []byte("a:\r - b\r#c\r - d\r"))
	const panicked = "cr.yaml: cannot be parsed: the parser panicked: runtime error: index out of range [3] with length 2"
	const tooLong = ": a chain of operators, selectors, calls or labels is too long: more than 20000 tokens without a comma or a new line; make several fields of it"
	tests := []struct{ path, want string }{
		{"chain/binary.cue", "chain/binary.cue:1:20002" + tooLong},
		{"chain/selector.cue", "chain/selector.cue:1:20002" + tooLong},
		{"chain/call.cue", "chain/call.cue:1:40000" + tooLong},
		{"chain/index.cue", "chain/index.cue:1:30001" + tooLong},
		{"chain/labels.cue", "chain/labels.cue:1:30001" + tooLong},
		{"chain/lines.cue", "chain/lines.cue:10001:1" + tooLong},
		{"chain/nested.cue", "chain/nested.cue:1:21003" + tooLong},
		{"chain/interpolation.cue", "chain/interpolation.cue:1:20016" + tooLong},
		{"chain/comma.cue", "chain/comma.cue:1:20203" + tooLong},
		{"chain/bracket.cue", "chain/bracket.cue:1:20204" + tooLong},
		{"chain/module", "chain/module/cue.mod/module.cue:2:20002" + tooLong},
		{"chain/imports", `chain/imports/plan.cue:3:8: "example.com/m@v0": import failed: chain/imports/plan.cue:3:8: ` +
			`cannot find package "example.com/m/sub": cannot get imports: cannot read "sub/sub.cue"` + tooLong},
		{"fifo", "fifo/plan.yaml: not a regular file"},
		{"fifo.yaml", "fifo.yaml: not a regular file"},
		{"module", "module/cue.mod/module.cue: not a regular file"},
		{"zero", "zero/cue.mod/module.cue: not a regular file"},
		{"embed", "embed/plan.cue:1:1: @extern(embed) is not supported in plans: write the values in CUE"},
		{"cr.yaml", panicked},
		{"bytes.cue", "bytes.cue:3:11: not UTF-8: byte 0xff"},
		{"bytes.yaml", "bytes.yaml:2:4: not UTF-8: byte 0xc3"},
		{"zero.json", "zero.json:1:7: not text: byte 0x00"},
		{"large.yaml", "large.yaml: larger than 8 MiB: too large for a plan"},
		{"deep.cue", "deep.cue:1:10004: expression exceeds maximum nesting depth of 10000"},
		{"deep.yaml", "deep.yaml: exceeded max depth of 10000"},
		{"deep.json", "deep.json:1:10001: not JSON: invalid character '[' exceeded max depth"},
		{"dir.yaml", "dir.yaml: no plan in this directory: want a .cue, .yaml, .yml or .json file"},
		{"loop.cue", "loop.cue: too many levels of symbolic links"},
		{"null.yaml", "null.yaml: not a regular file"},
		{"", "no plan: want a .cue, .yaml or .json file, or a directory of them"},
	}
	for _, test := range tests {
		t.Run(test.path, func(t *testing.T) {
			var paths []string
			if test.path != "" {
				paths = []string{test.path}
			}
			plans, _, problems := Plans(t.Context(), dir, paths)
			if len(plans) > 0 || len(problems) == 0 || problems[0].String() != test.want {
				t.Errorf("%d plans, problems:\n%vwant\n%s", len(plans), problems, test.want)
			}
		})
	}
}

// Reading ends at a bound of time or memory, and when the context ends, with the name of the
// file that is being read.
func TestBounds(t *testing.T) {
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	unbounded := bounds{time.Hour, time.Hour, math.MaxUint64}
	tests := []struct {
		name string
		ctx  context.Context
		bounds
		want string
	}{
		{"time", t.Context(), bounds{-1, time.Hour, math.MaxUint64}, "plan.cue: takes more than -1ns of CPU time to evaluate; simplify it"},
		{"wait", t.Context(), bounds{time.Hour, time.Millisecond, math.MaxUint64}, "plan.cue: not evaluated within 1ms: the machine is too busy"},
		{"memory", t.Context(), bounds{time.Hour, time.Hour, 1 << 20}, "plan.cue: takes more than 1 MiB of memory to evaluate; simplify it"},
		{"context", canceled, unbounded, "plan.cue: stopped while reading this: interrupted"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var at atomic.Pointer[string]
			at.Store(new("plan.cue"))
			r := await(test.ctx, make(chan *Result), &at, test.bounds)
			if len(r.Problems) != 1 || !strings.HasPrefix(r.Problems[0].String(), test.want) {
				t.Errorf("problems:\n%vwant\n%s", r.Problems, test.want)
			}
		})
	}
}

// Plans of a few lines exceed the bounds. A process of its own reads each, because CUE goes on in the background.
func TestBoundsOfPlans(t *testing.T) {
	const child = "CHECKPLAN_TEST_BOUNDS"
	var slow strings.Builder
	slow.WriteString("package p\n\nplan: slow: {}")
	for i := range 22 {
		fmt.Fprintf(&slow, " & ({a%d: 1} | {b%[1]d: 1})", i)
	}
	tests := map[string]struct {
		text string
		bounds
		want string
	}{
		"slow.cue": {
			slow.String(),
			bounds{200 * time.Millisecond, time.Hour, math.MaxUint64}, "slow.cue: takes more than 200ms of CPU time to evaluate; simplify it",
		},
		"big.cue": {
			"package p\n\nimport \"list\"\n\nplan: list.Range(0, 100000000, 1)\n",
			bounds{time.Hour, time.Hour, 64 << 20}, "big.cue: takes more than 64 MiB of memory to evaluate; simplify it",
		},
	}
	if path := os.Getenv(child); path != "" {
		fmt.Print(read(t.Context(), filepath.Dir(path), []string{filepath.Base(path)}, tests[filepath.Base(path)].bounds).Problems)
		os.Exit(0)
	}
	dir := t.TempDir()
	for name, test := range tests {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(test.text), 0o666); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestBoundsOfPlans$")
		cmd.Env = append(os.Environ(), child+"="+path)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), test.want) {
			t.Errorf("%s: %s%v\nwant %s", name, out, err, test.want)
		}
	}
}

// Of thousands of problems of one plan the first are listed, and the rest is counted.
func TestManyProblems(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	b.WriteString("apiVersion: checkplan.dev/v1alpha1\nkind: Plan\nmetadata: {name: many}\nspec:\n")
	for i := range 8000 {
		fmt.Fprintf(&b, "  field%d: 1\n", i)
	}
	b.WriteString("  checks: {mesh: {podMesh: {probes: {tcp: {}}}}}\n")
	if err := os.WriteFile(filepath.Join(dir, "plan.yaml"), []byte(b.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	_, _, problems := Plans(t.Context(), dir, []string{"plan.yaml"})
	if len(problems) != maxFound+1 {
		t.Fatalf("%d problems, want %d and their sum", len(problems), maxFound)
	}
	if want := "and 7900 more problems, not listed"; !strings.Contains(problems.String(), want) {
		t.Errorf("problems do not contain %q:\n%v", want, problems)
	}
}

// A plan of thousands of checks is refused by their number, before the schema is
// put to each.
func TestLarge(t *testing.T) {
	dir := t.TempDir()
	var cue, yaml strings.Builder
	cue.WriteString("package p\n\nimport \"github.com/checkplan/checkplan/schema\"\n\nplan: large: schema.#Plan & {\n")
	yaml.WriteString("apiVersion: checkplan.dev/v1alpha1\nkind: Plan\nmetadata: {name: large}\nspec:\n  checks:\n")
	for n := 0; cue.Len() <= largeSource; n++ {
		fmt.Fprintf(&cue, "\tchecks: \"check-%d\": podMesh: {probes: tcp: {count: 5, interval: \"100ms\"}, expect: latency: p99: \"5ms\"}\n", n)
		fmt.Fprintf(&yaml, "    check-%d: {podMesh: {probes: {tcp: {count: 5, interval: 100ms}}, expect: {latency: {p99: 5ms}}}}\n", n)
	}
	cue.WriteString("}\n")
	for name, data := range map[string]string{"large.cue": cue.String(), "large.yaml": yaml.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o666); err != nil {
			t.Fatal(err)
		}
		plans, _, problems := Plans(t.Context(), dir, []string{name})
		if len(plans) > 0 || len(problems) != 1 || !strings.Contains(problems[0].Message, "checks: at most 128 fit") {
			t.Errorf("%s: %d plans, problems:\n%v", name, len(plans), problems)
		}
	}
}
