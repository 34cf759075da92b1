// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
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
With -o it writes files into a directory instead, with a sample PipelineRun in
its folder samples. It needs no cluster.`,
		Args: paths,
		RunE: func(cmd *cobra.Command, args []string) error {
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
	addCompileOptions(env, cmd, &options)
	cmd.Flags().StringVarP(&options.Namespace, "namespace", "n", tekton.DefaultNamespace,
		"namespace of the objects; RBAC names it, so kubectl cannot change it")
	cmd.Flags().BoolVar(&policies, "policies", false,
		"also write ValidatingAdmissionPolicies that hold the accounts to their pods; a cluster administrator applies them")
	cmd.Flags().StringVarP(&dir, "output-dir", "o", "", "directory to write to; if empty, standard output")
	return cmd
}

// dirOf returns the absolute form of a path from the command line.
func dirOf(env *environment, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(env.dir, path)
}
