// SPDX-License-Identifier: Apache-2.0

// Command kernel runs the tests of packages on another kernel than this machine's: in a virtual machine with Debian's,
// which has what many machines lack, such as IPVS and dummy links.
//
//	go run ./test/kernel [-run REGEXP] [-files FILES] [-with PROGRAMS] [-keep DIRECTORY] DIRECTORY...
//
// For each directory it builds the test binary of the package there, starts a machine in QEMU, without KVM, and runs
// the tests as root in it. A test that is skipped is a failure: this is where it has to run. A test sees by the
// environment variable CHECKPLAN_GUEST that it runs here; UPDATE and CHECKPLAN_LONG are passed on.
//
// The machine has modules for netfilter, ipset and IPVS loaded, the interface lo, no other one, and the programs of
// debianPrograms. Its files are in memory: the test binary, the testdata of its package and the files of -files, in
// /src as they are in this repository. After the tests, the files of -keep are written back.
//
// It needs Debian or a derivative, amd64, with qemu-system-x86; apt-get downloads the rest.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/checkplan/checkplan/pkg/initramfs"
)

func main() {
	var o options
	flag.StringVar(&o.run, "run", ".", "`REGEXP` of the tests")
	flag.StringVar(&o.files, "files", "", "`FILES` and directories of the repository that the tests read, with commas between them")
	flag.StringVar(&o.with, "with", "", "`DIRECTORIES` of Go programs that the tests run, with commas between them: they are in the machine's PATH")
	flag.StringVar(&o.keep, "keep", "", "`DIRECTORY` of the repository whose files are written back")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "for the tests of one package")
	flag.IntVar(&o.memory, "memory", 512, "`MiB` of the machine")
	flag.StringVar(&o.kernel, "kernel", "linux-image-cloud-amd64", "Debian `PACKAGE` of the kernel")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "kernel: want directories of packages")
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.test(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "kernel:", err)
		os.Exit(1)
	}
}

type options struct {
	run, files, with, keep, kernel string
	timeout                        time.Duration
	memory                         int
}

// test runs the tests of all packages, and returns what failed.
func (o options) test(ctx context.Context, directories []string) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("no machine for %s: want amd64", runtime.GOARCH)
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		return errors.New("no QEMU: install the Debian package qemu-system-x86")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	cache = filepath.Join(cache, "checkplan-guest")
	deb, err := initramfs.Download(o.kernel, cache)
	if err != nil {
		return err
	}
	kernel, err := initramfs.Unpack(deb)
	if err != nil {
		return err
	}
	modules, err := kernel.Modules(modules...)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(deb), err)
	}
	debian, err := unpackDebian(ctx, cache, debianPackages)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "kernel")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	init, err := build(ctx, work, "build", "test/kernel/init")
	if err != nil {
		return err
	}
	var failed []error
	for _, directory := range directories {
		started := time.Now()
		fmt.Printf("=== %s on %s\n", directory, filepath.Base(deb))
		a := initramfs.NewArchive(init, modules)
		if err := o.fill(ctx, a, work, debian, directory); err != nil {
			return err
		}
		archive, err := a.Bytes()
		if err != nil {
			return err
		}
		g := guest{dir: work, kernel: kernel.Image, archive: archive, memory: o.memory, out: os.Stdout}
		result, err := g.run(ctx, o.timeout+5*time.Minute)
		if err == nil && o.keep != "" { // what a test that failed wrote, too
			err = extract(result.files, o.keep)
		}
		if err == nil {
			err = result.failure()
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", directory, err))
		}
		fmt.Printf("=== %s took %s\n", directory, time.Since(started).Round(time.Second))
	}
	return errors.Join(failed...)
}

// order is what the first process of the machine does.
type order struct {
	Args []string `json:"args"`
	Dir  string   `json:"dir"`
	Env  []string `json:"env"`
	// Keep is a directory whose files are written to the machine's disk afterwards. Empty: none.
	Keep string `json:"keep,omitempty"`
}

// fill adds all but the first process and its modules.
func (o options) fill(ctx context.Context, a *initramfs.Archive, work, debian, directory string) error {
	if err := addDebian(a, debian, debianPrograms); err != nil {
		return err
	}
	binary, err := build(ctx, work, "test", directory)
	if err != nil {
		return err
	}
	a.File("test", 0o755, binary)
	for _, program := range split(o.with) {
		binary, err := build(ctx, work, "build", program)
		if err != nil {
			return err
		}
		a.File("usr/bin/"+filepath.Base(program), 0o755, binary)
	}
	directory = filepath.Clean(directory)
	a.Directory(filepath.Join("src", directory))
	files := split(o.files)
	if _, err := os.Stat(filepath.Join(directory, "testdata")); err == nil {
		files = append(files, filepath.Join(directory, "testdata"))
	}
	added := map[string]bool{}
	for _, root := range files {
		err := filepath.WalkDir(filepath.Clean(root), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || added[path] {
				return err
			}
			added[path] = true
			content, err := os.ReadFile(path)
			a.File(filepath.Join("src", path), 0o644, content)
			return err
		})
		if err != nil {
			return err
		}
	}
	order := order{
		Args: []string{"/test", "-test.v", "-test.count=1", "-test.run=" + o.run, "-test.timeout=" + o.timeout.String()},
		Dir:  filepath.Join("/src", directory),
		Env:  []string{"PATH=/usr/sbin:/usr/bin", "HOME=/root", "CHECKPLAN_GUEST=1"},
		Keep: o.keep,
	}
	for _, name := range []string{"UPDATE", "CHECKPLAN_LONG"} {
		if value := os.Getenv(name); value != "" {
			order.Env = append(order.Env, name+"="+value)
		}
	}
	text, err := json.Marshal(order)
	a.File("order.json", 0o644, text)
	return err
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// build builds a program, or the tests of a package with how == "test", in its own module, static and small.
func build(ctx context.Context, work, how, directory string) ([]byte, error) {
	to := filepath.Join(work, "binary")
	args := []string{how, "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", to}
	if how == "test" {
		args = append(args, "-c")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir, cmd.Env, cmd.Stderr = directory, append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go %s in %s: %w", how, directory, err)
	}
	defer os.Remove(to)
	return os.ReadFile(to)
}

var skipped = regexp.MustCompile(`(?m)^ *--- SKIP: .*$`)

// failure says why the tests did not pass, nil if they did.
func (r result) failure() error {
	switch skips := skipped.FindAllString(r.output, -1); {
	case r.code != 0:
		return fmt.Errorf("exit code %d", r.code)
	case len(skips) > 0:
		return fmt.Errorf("%d tests were skipped: %s", len(skips), strings.TrimSpace(skips[0]))
	case !strings.Contains(r.output, "--- PASS"):
		return errors.New("no test ran")
	}
	return nil
}
