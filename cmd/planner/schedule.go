// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/run"
)

func newSchedule(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "List, suspend, resume and trigger the schedules of a namespace",
		Long: `schedule works with the schedules that plans were compiled to. Plans are named,
not read. Applying a plan again resets what suspend and resume changed: for good,
write schedule.suspend into the plan.`,
		Args: func(cmd *cobra.Command, args []string) error {
			return usage("%s: want list, suspend, resume or trigger", cmd.CommandPath())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	none := func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usage("%s takes no arguments", cmd.CommandPath())
		}
		return nil
	}
	one := func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage("%s: want one argument: the name of a plan", cmd.CommandPath())
		}
		return nil
	}
	verb := func(use, short string, args cobra.PositionalArgs, do func(context.Context, *run.Cluster, []string) error) {
		var access run.Access
		sub := &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := run.Connect(access)
			if err != nil {
				return err
			}
			ctx, stop := env.interruptible(cmd.Context())
			defer stop()
			return do(ctx, cluster, args)
		}}
		addAccess(sub, &access)
		cmd.AddCommand(sub)
	}
	verb("list", "List the schedules of a namespace", none,
		func(ctx context.Context, c *run.Cluster, _ []string) error {
			schedules, err := c.Schedules(ctx)
			if err != nil {
				return err
			}
			if len(schedules) == 0 {
				fmt.Fprintf(env.stderr, "no plan has a schedule in namespace %s\n", c.Namespace)
				return nil
			}
			return print.Blocks(env.stdout, []checkup.Block{{Table: scheduleTable(schedules)}}, print.BlockOptions{
				Width: env.terminalOf(env.stdout).width, Lines: -1,
			})
		})
	verb("suspend PLAN", "Stop the schedule of a plan; runs that have started go on", one,
		func(ctx context.Context, c *run.Cluster, args []string) error { return c.Suspend(ctx, args[0], true) })
	verb("resume PLAN", "Let the schedule of a plan go on", one,
		func(ctx context.Context, c *run.Cluster, args []string) error { return c.Suspend(ctx, args[0], false) })
	verb("trigger PLAN", "Start a run now, as the schedule of the plan would", one,
		func(ctx context.Context, c *run.Cluster, args []string) error {
			name, err := c.Trigger(ctx, args[0], time.Now())
			if err == nil {
				fmt.Fprintln(env.stdout, name)
				fmt.Fprintf(env.stderr, "Job %s starts PipelineRun %[1]s, if no other run of plan %s forbids it\n", name, args[0])
			}
			return err
		})
	return cmd
}

func scheduleTable(schedules []run.Schedule) *checkup.Table {
	t := &checkup.Table{Noun: "schedule"}
	for _, name := range []string{"PLAN", "CRON", "TIME ZONE", "SUSPENDED", "LAST START"} {
		t.Columns = append(t.Columns, checkup.Column{Name: name})
	}
	t.Columns[len(t.Columns)-1].Priority = 1
	for _, s := range schedules {
		last := "never"
		if !s.Last.IsZero() {
			last = s.Last.UTC().Format(time.RFC3339)
		}
		row := []checkup.Cell{}
		for _, text := range []string{s.Plan, s.Cron, s.TimeZone, yesNo(s.Suspended), last} {
			row = append(row, checkup.Text(text))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
