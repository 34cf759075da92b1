// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/checkup"
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
			r, err := env.findReport(cmd.Context(), args[0], access)
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

// findReport reads a report from a file, from standard input, or from the cluster by the name or UID of its
// PipelineRun.
func (e *environment) findReport(ctx context.Context, name string, access run.Access) (*checkup.Report, error) {
	if _, err := os.Stat(dirOf(e, name)); name == "-" || err == nil {
		return e.readReport(name)
	}
	cluster, err := run.Connect(access)
	if err != nil {
		return nil, err
	}
	ctx, stop := e.interruptible(ctx)
	defer stop()
	return record.FindReport(ctx, cluster.Kube.CoreV1().ConfigMaps(cluster.Namespace), name)
}
