// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func newVersion(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of planner and of the plans that it reads",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := fmt.Fprint(env.stdout, versionLine())
			return err
		},
	}
}

// versionLine is what version and --version print.
func versionLine() string {
	return fmt.Sprintf("planner %s (plans %s, %s)\n", version, checkup.APIVersion, runtime.Version())
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s takes no argument, but got %q", cmd.CommandPath(), args[0])
	}
	return nil
}
