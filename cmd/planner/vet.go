// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/load"
	"github.com/checkplan/checkplan/pkg/print"
)

func newVet(env *environment) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "vet PATH...",
		Short: "List all problems of plans",
		Long: `vet reads plans and lists all their problems, each as file:line:col: path: message.
File names are relative to the working directory. Warnings are marked as such. It
needs no cluster and no network. Exit codes: 0 valid; 2 invalid.`,
		Args: paths,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output == "text" {
				read, err := env.load(cmd.Context(), args)
				if err != nil {
					return err
				}
				for _, plan := range read.Plans {
					fmt.Fprintf(env.stdout, "%s: valid\n", plan.Name)
				}
				return nil
			}
			read, err := env.read(cmd.Context(), args)
			if err != nil {
				return err
			}
			all := append(load.Problems{}, read.Warnings...) // an empty list, not null
			if err := print.Encode(env.stdout, append(all, read.Problems...)); err != nil {
				return err
			}
			if len(read.Problems) > 0 {
				return exit{code: exitUsage}
			}
			return nil
		},
	}
	fileFlag(cmd)
	enumVar(cmd, &output, "output", "text", "output format", "text", "json")
	return cmd
}
