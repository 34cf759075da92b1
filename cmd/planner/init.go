// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/load"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// initModule is the CUE module of a new directory: nothing else imports it, so any name does.
const initModule = "plans.example@v0"

// The files that are the user's once they are written.
var (
	//go:embed init/plans.cue
	initPlans []byte
	//go:embed init/pre-commit
	initHook []byte
	//go:embed init/plans.yaml
	initWorkflow string
)

func newInit(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "init [DIR]",
		Short: "Make a directory for plans of your own",
		Long: `init writes into a directory (by default this one) what a repository of plans needs:

  plans.cue                    two plans to begin with
  cue.mod/                     a CUE module with a copy of the schema: editors and
                               the cue command find it without a registry
  .githooks/pre-commit         runs planner vet before each commit, after
                               git config core.hooksPath .githooks
  .github/workflows/plans.yaml runs planner vet on each pull request

It keeps files that exist. In a directory that has the copy of the schema, it writes
only that again: after an upgrade of planner, run planner init once more. planner vet
warns of a copy that is not that of planner.

Exit codes: 0; 1 a file could not be written; 2 wrong usage.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("%s: want at most one argument: a directory", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return env.init(append(args, ".")[0]) },
	}
}

func (e *environment) init(dir string) error {
	files := load.Module(initModule)
	files["plans.cue"], files[".githooks/pre-commit"] = initPlans, initHook
	files[".github/workflows/plans.yaml"] = []byte(strings.NewReplacer(
		"REPOSITORY", tekton.DefaultImageRepository, "VERSION", version).Replace(initWorkflow))
	target := dirOf(e, dir)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(target) // a symbolic link in it leads no file out of it
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = root.Stat(filepath.FromSlash(load.VendorDir))
	again := err == nil
	written, kept := 0, []string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if again && path.Dir(name) != load.VendorDir {
			continue
		}
		have, err := root.ReadFile(filepath.FromSlash(name))
		switch {
		case err == nil && bytes.Equal(have, files[name]):
			continue
		case err == nil && path.Dir(name) != load.VendorDir:
			kept = append(kept, name)
			continue
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		}
		if err := writeNew(root, filepath.FromSlash(name), files[name]); err != nil {
			return err
		}
		written++
	}
	if err := dropStale(root, files); err != nil {
		return err
	}
	what := ""
	if again {
		what = " of the schema"
	}
	fmt.Fprintf(e.stderr, "%s: %s%s written\n", dir, checkup.Count(written, "file"), what)
	for _, name := range kept {
		fmt.Fprintf(e.stderr, "%s exists: it is kept\n", name)
	}
	return nil
}

// writeNew writes a file with its directory. Scripts can be executed.
func writeNew(root *os.Root, name string, text []byte) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if bytes.HasPrefix(text, []byte("#!")) {
		mode = 0o755
	}
	return root.WriteFile(name, text, mode)
}

// dropStale removes files of the schema that this version does not have.
func dropStale(root *os.Root, files map[string][]byte) error {
	entries, err := fs.ReadDir(root.FS(), load.VendorDir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := path.Join(load.VendorDir, entry.Name())
		if _, ok := files[name]; ok || path.Ext(name) != ".cue" {
			continue
		}
		if err := root.Remove(filepath.FromSlash(name)); err != nil {
			return err
		}
	}
	return nil
}
