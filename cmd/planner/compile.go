// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/checkplan/checkplan/pkg/tekton"
)

func newCompile(env *environment) *cobra.Command {
	var options tekton.Options
	var dir string
	var policies bool
	cmd := &cobra.Command{
		Use:   "compile PATH...",
		Short: "Compile plans into Tekton Pipelines",
		Long: `compile prints the Tasks, Pipelines and RBAC of plans, as YAML for kubectl apply.
With --output-dir it writes files into a directory instead, for kubectl apply -k,
Flux and Argo CD, with a sample PipelineRun in its folder samples. It needs no
cluster.

With --resolver it writes no Tasks: the Pipelines find them by one of Tekton's
remote resolvers, such as
  bundles=REGISTRY/REPOSITORY:TAG@sha256:HEX[,secret=NAME]
  cluster=NAMESPACE
  git=URL,revision=REVISION[,path=DIR][,secret=NAME]
  hub=CATALOG[,version=VERSION]
where secret names a Secret in the namespace, and path a directory that planner
catalog wrote.`,
		Args: paths,
		RunE: func(cmd *cobra.Command, args []string) error {
			env.warnChangeable(options.Tasks)
			read, err := env.load(cmd.Context(), args)
			if err != nil {
				return err
			}
			var objects []runtime.Object
			files := tekton.Files{}
			for _, plan := range read.Plans {
				compiled, err := tekton.Compile(plan, options)
				if err != nil {
					return exit{exitUsage, err}
				}
				written, err := compiled.Files()
				if err != nil {
					return err
				}
				maps.Copy(files, written)
				if policies {
					of := tekton.Policies(plan, options)
					if files["policies/"+plan.Name+".yaml"], err = tekton.Encode(of...); err != nil {
						return err
					}
					objects = append(objects, of...)
				}
				for _, object := range compiled.Deployed() { // plans share their Tasks
					if !slices.ContainsFunc(objects, func(o runtime.Object) bool { return reflect.DeepEqual(o, object) }) {
						objects = append(objects, object)
					}
				}
			}
			if dir != "" {
				if err := files.Kustomize(); err != nil {
					return err
				}
				if err := files.Write(dirOf(env, dir)); err != nil {
					return err
				}
				fmt.Fprintf(env.stderr, "wrote %d files to %s\n", len(files), dir)
				return nil
			}
			text, err := tekton.Encode(objects...)
			if err != nil {
				return err
			}
			_, err = env.stdout.Write(text)
			return err
		},
	}
	fileFlag(cmd)
	addCompileOptions(env, cmd, &options)
	resolverFlag(cmd, &options.Tasks, "where Pipelines find their Tasks; none are written")
	cmd.Flags().StringVarP(&options.Namespace, "namespace", "n", tekton.DefaultNamespace,
		"namespace of the objects; RBAC names it, so kubectl cannot change it")
	cmd.Flags().BoolVar(&policies, "policies", false,
		"also write ValidatingAdmissionPolicies that limit the accounts to their pods; a cluster administrator applies them")
	cmd.Flags().StringVar(&dir, "output-dir", "", "directory to write to; if empty, standard output")
	cmd.Flags().VarP(formerDir{}, "output", "o", "")
	_ = cmd.Flags().MarkHidden("output") // it was added by the line above
	return cmd
}

// formerDir is -o of compile, which was the directory before -o was the output format of all other verbs. Compile has
// one format.
type formerDir struct{}

func (formerDir) String() string { return "" }
func (formerDir) Type() string   { return "string" }
func (formerDir) Set(v string) error {
	if v == "yaml" {
		return nil
	}
	return fmt.Errorf("compile prints yaml; to write files into a directory: --output-dir %s", v)
}

// dirOf returns the absolute form of a path from the command line.
func dirOf(env *environment, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(env.dir, path)
}

// open opens a file, or standard input for "-".
func (e *environment) open(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(e.stdin), nil
	}
	return os.Open(dirOf(e, path))
}

// readAll reads a file, or standard input for "-". It ends with ctx, because a pipe may be silent for ever.
func (e *environment) readAll(ctx context.Context, path string) ([]byte, error) {
	type content struct {
		text []byte
		err  error
	}
	read := make(chan content, 1)
	go func() {
		in, err := e.open(path)
		if err != nil {
			read <- content{nil, err}
			return
		}
		defer in.Close()
		text, err := io.ReadAll(in)
		read <- content{text, err}
	}()
	select {
	case c := <-read:
		return c.text, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
