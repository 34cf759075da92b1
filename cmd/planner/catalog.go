// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/tekton"
)

func newCatalog(env *environment) *cobra.Command {
	var options tekton.Options
	options.Namespace = tekton.DefaultNamespace
	var plansPath string
	var check bool
	cmd := &cobra.Command{
		Use:   "catalog DIR",
		Short: "Write the Tekton catalog of plans into a directory",
		Long: `catalog compiles plans, and writes them as a Tekton catalog: task/NAME/NAME.yaml,
pipeline/NAME/NAME.yaml, a README with the params of each, samples and RBAC. With
--check it writes nothing, lists the files that differ, and exits with 1 if there
are any.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s: want one argument: the directory of the catalog", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			read, err := env.load(cmd.Context(), []string{plansPath})
			if err != nil {
				return err
			}
			files, err := tekton.Catalog(read.Plans, options)
			if err != nil {
				return exit{exitUsage, err}
			}
			dir := dirOf(env, args[0])
			drift, err := files.Drift(dir)
			if err != nil {
				return err
			}
			if check {
				if len(drift) > 0 {
					return fmt.Errorf("%s is not what %s compiles to; to write it again: planner catalog %s\n  %s",
						args[0], plansPath, args[0], strings.Join(drift, "\n  "))
				}
				return nil
			}
			if err := files.Write(dir); err != nil {
				return err
			}
			fmt.Fprintf(env.stderr, "%s: %d files, %d changed\n", args[0], len(files), len(drift))
			return nil
		},
	}
	addCompileOptions(env, cmd, &options)
	cmd.Flags().StringVar(&plansPath, "plans", "./plans", "directory or file with the plans")
	cmd.Flags().BoolVar(&check, "check", false, "write nothing; fail if the directory differs")
	return cmd
}
