// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/run"
)

func newReport(env *environment) *cobra.Command {
	var access run.Access
	var output string
	cmd := &cobra.Command{
		Use:   "report RUN|FILE|-",
		Short: "Print the report of an earlier run",
		Long: `report prints the stored report of a run: by the name or UID of its PipelineRun,
from a file that "planner run --output json" wrote, or from standard input. Its
exit code is that of the run: 0, 1 or 3.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s: want one argument: the name of a PipelineRun, a file, or - for standard input", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if _, err := os.Stat(dirOf(env, name)); name == "-" || err == nil {
				r, err := env.readReport(name)
				if err != nil {
					return err
				}
				return env.printReport(r, output)
			}
			cluster, err := run.Connect(access)
			if err != nil {
				return err
			}
			ctx, stop := env.interruptible(cmd.Context())
			defer stop()
			r, err := record.FindReport(ctx, cluster.Kube.CoreV1().ConfigMaps(cluster.Namespace), name)
			if err != nil {
				return err
			}
			return env.printReport(r, output)
		},
	}
	addAccess(cmd, &access)
	outputFlag(cmd, &output)
	return cmd
}
