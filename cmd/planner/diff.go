// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/run"
)

func newDiff(env *environment) *cobra.Command {
	var o previewOptions
	var all bool
	cmd := &cobra.Command{
		Use:   "diff PLAN | diff RUN|FILE|- RUN|FILE|-",
		Short: "Print what applying a plan would change, or what changed from one run to another",
		Long: `diff with one argument, the path of plans, prints what applying them would change:
in words what is measured (pairs, packets, pods, rights, parameters, limits), then
each object that would be created or changed, as the API server answers a dry run
of server-side apply. It changes nothing. It needs the rights to read and to apply
the objects. Objects that a plan no longer has are not listed.

Exit codes with one argument, as kubectl diff: 0 no difference; 1 differences;
2 an error.

diff with two arguments compares the reports of two runs: findings and units that
are new or gone, delays and losses that grew, and units that only one of the runs
measured. A delay counts if its median or 99th percentile is at least 1.5 times as
long and at least 200µs longer; a loss, if it grew by at least 1% of the packets.
This is not a statistical test. For two runs of one plan in the cluster, it also
compares nodes, zones and single pairs, while the plan's history has both runs.

A run is the name or UID of its PipelineRun, a file that "planner run --output
json" wrote, or - for standard input.

Exit codes with two arguments: 0, whatever changed; 1 if a report could not be
read; 2 wrong usage.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] != "-" {
				return nil
			}
			if len(args) != 2 || args[0] == "-" && args[1] == "-" {
				return usage("%s: want the path of a plan, or two runs, the earlier one first: each the name of a PipelineRun, a file, or (one of them) -",
					cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return env.diffPlans(cmd.Context(), args, o)
			}
			var reports [2]*checkup.Report
			var clusters [2]*run.Cluster
			for i, name := range args {
				var err error
				if reports[i], clusters[i], err = env.findReport(cmd.Context(), name, o.access); err != nil {
					return err
				}
			}
			d := checkup.Compare(reports[0], reports[1])
			if clusters[0] != nil && clusters[1] != nil && reports[0].Plan == reports[1].Plan {
				env.slower(cmd.Context(), clusters[1], d, reports)
			}
			t := env.terminalOf(env.stdout)
			text := print.TextOptions{Width: t.width, Color: t.color, Rest: allInJSON}
			if all {
				text.Lines = -1
			}
			var err error
			if o.output == "json" {
				err = print.Encode(env.stdout, d)
			} else {
				err = print.Diff(env.stdout, d, text)
			}
			if err != nil {
				return fmt.Errorf("print the comparison: %w", err)
			}
			return nil
		},
	}
	addAccess(cmd, &o.access)
	cmd.ValidArgsFunction = completeNames(&o.access, 2, runNames)
	addCompileOptions(env, cmd, &o.compile)
	resolverFlag(cmd, &o.compile.Tasks, "with one argument: where Pipelines find their Tasks")
	planFlag(env, cmd, &o.plan)
	cmd.Flags().StringVar(&o.manager, "field-manager", run.FieldManager,
		"with one argument: who would apply, such as kustomize-controller; fields of others are not removed")
	cmd.Flags().BoolVar(&all, "all", false, "with two arguments: print all lines of each list, not the first 20")
	enumVar(cmd, &o.output, "output", "text", "output format", "text", "json")
	return cmd
}

// slower adds to the comparison of two runs of a plan what its history knows of both. A history that cannot be read is
// a warning.
func (e *environment) slower(ctx context.Context, cluster *run.Cluster, d *checkup.Diff, reports [2]*checkup.Report) {
	ctx, stop := e.interruptible(ctx)
	defer stop()
	h, err := record.LoadHistory(ctx, cluster.Kube.CoreV1().ConfigMaps(cluster.Namespace), reports[0].Plan)
	if err != nil {
		warning := fmt.Sprintf("warning: nodes, zones and single pairs are not compared: %v", err)
		fmt.Fprintln(e.stderr, checkup.NoCommand(checkup.Clean(warning)))
	}
	if h != nil {
		h.Slower(d, reports[0], reports[1])
	}
}
