// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/tekton"
)

func newCompile(env *environment) *cobra.Command {
	var options tekton.Options
	var dir string
	cmd := &cobra.Command{
		Use:   "compile PATH...",
		Short: "Compile plans into Tekton Pipelines",
		Long: `compile prints the Tasks, Pipeline and RBAC that plans compile to, as YAML that
kubectl apply takes. With -o it writes one file per object into a directory
instead, and a sample PipelineRun into its folder samples. It needs no cluster.`,
		Args: paths,
		RunE: func(cmd *cobra.Command, args []string) error {
			plans, err := env.load(args)
			if err != nil {
				return err
			}
			for _, plan := range plans {
				compiled, err := tekton.Compile(plan, options)
				if err != nil {
					return exit{exitUsage, err}
				}
				if dir == "" {
					text, err := tekton.Encode(compiled.Applied()...)
					if err != nil {
						return err
					}
					if _, err := env.stdout.Write(text); err != nil {
						return err
					}
					continue
				}
				files, err := compiled.Files()
				if err != nil {
					return err
				}
				if err := files.Write(dirOf(env, dir)); err != nil {
					return err
				}
				fmt.Fprintf(env.stderr, "wrote %d files for plan %s to %s\n", len(files), plan.Name, dir)
			}
			return nil
		},
	}
	addCompileOptions(cmd, &options)
	cmd.Flags().StringVarP(&options.Namespace, "namespace", "n", tekton.DefaultNamespace, "namespace that the objects are for")
	cmd.Flags().StringVarP(&dir, "output-dir", "o", "", "directory to write to; empty: standard output")
	return cmd
}

// dirOf makes a path of the user's absolute.
func dirOf(env *environment, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(env.dir, path)
}
