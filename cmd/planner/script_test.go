// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"planner": main})
}

// TestScripts runs testdata/script/VERB_TOPIC.txtar: each has its inputs, the command
// lines and their exact output. UPDATE=1 writes the new output. Those of the verb explain
// are TestExplainScripts.
func TestScripts(t *testing.T) {
	runScripts(t, func(script string) bool { return !isExplain(script) })
}

func isExplain(script string) bool { return strings.HasPrefix(filepath.Base(script), "explain_") }

// runScripts runs the scripts that are chosen.
func runScripts(t *testing.T, chosen func(script string) bool) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(script string) bool { return !chosen(script) })
	testscript.Run(t, testscript.Params{
		Files:               files,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			// No cluster, no CUE registry, and an empty home: the scripts work offline.
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "no-kubeconfig"))
			env.Setenv("CUE_REGISTRY", "none")
			// With the race detector on, a process sleeps for a second before it exits.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			// A registry of its own, in memory.
			server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
			env.Defer(server.Close)
			env.Setenv("REGISTRY", strings.TrimPrefix(server.URL, "http://"))
			root, err := filepath.Abs("../..")
			env.Setenv("ROOT", root)
			return err
		},
	})
}

// Every verb has a script.
func TestEveryVerbHasAScript(t *testing.T) {
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string]bool{}
	for _, path := range scripts {
		verb, _, ok := strings.Cut(filepath.Base(path), "_")
		if !ok {
			t.Errorf("%s: want VERB_TOPIC.txtar", path)
		}
		verbs[verb] = true
	}
	root := newRoot(&environment{})
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if !verbs[cmd.Name()] {
			t.Errorf("no script testdata/script/%s_*.txtar", cmd.Name())
		}
	}
	forEach(root, func(cmd *cobra.Command) {
		if cmd.Short == "" {
			t.Errorf("%s has no short help", cmd.CommandPath())
		}
	})
}

func forEach(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		forEach(c, f)
	}
}
