// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/run"
)

// historyOptions are the flags of history.
type historyOptions struct {
	access run.Access
	since  string
	check  string
	pair   string
	output string
	all    bool
}

func newHistory(env *environment) *cobra.Command {
	var o historyOptions
	cmd := &cobra.Command{
		Use:   "history PLAN|FILE|-",
		Short: "Print what the runs of a plan have found over time",
		Long: `history prints the runs of a plan with their verdicts, the gaps between them, the
findings over time, how many of the possible pairs all runs together measured, and
the trend of the delays. PLAN is a name, not a file: its history is in the
namespace in which it runs.

With a file, or - for standard input, it prints the history in that file, which
kubectl wrote:

  kubectl get configmaps -l checkplan.dev/role=history,checkplan.dev/plan=PLAN -o yaml

Exit codes: 0; 1 if there is no history, or it could not be read.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s: want one argument: the name of a plan, a file, or - for standard input", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return env.history(cmd.Context(), args[0], o) },
	}
	addAccess(cmd, &o.access)
	cmd.ValidArgsFunction = completeNames(&o.access, 1, planNames)
	cmd.Flags().StringVar(&o.since, "since", "",
		"only runs that began since: a time before now (36h, 7d), a date (2026-01-31), or a time (RFC 3339)")
	cmd.Flags().StringVar(&o.check, "check", "", "only this check")
	cmd.Flags().StringVar(&o.pair, "pair", "", "also the results of one pair: the names of its source and target, as A,B")
	cmd.Flags().BoolVar(&o.all, "all", false, "print all runs and findings, not the newest 20")
	enumVar(cmd, &o.output, "output", "text", "output format", "text", "html", "json")
	return cmd
}

func (e *environment) history(ctx context.Context, name string, o historyOptions) error {
	filter := history.Filter{Check: o.check}
	var err error
	if filter.Since, err = sinceOf(o.since, time.Now()); err != nil {
		return err
	}
	if o.pair != "" {
		var ok bool
		if filter.Source, filter.Target, ok = strings.Cut(o.pair, ","); !ok || filter.Source == "" || filter.Target == "" {
			return usage("--pair %q: want the names of source and target, as A,B", o.pair)
		}
	}
	h, live, err := e.readHistory(ctx, name, o.access)
	if live {
		filter.Now = time.Now()
	}
	if errors.Is(err, record.ErrNewer) {
		fmt.Fprintf(e.stderr, "warning: %v: this is the part that planner %s can read\n", err, version)
		err = nil
	}
	if err != nil {
		return err
	}
	if len(h.Runs) == 0 && len(h.Days) == 0 && len(h.SetAside) == 0 {
		return fmt.Errorf("plan %s has no history: no run of it has reported yet in this namespace", h.Plan)
	}
	view := h.Overview(filter)
	if o.pair != "" && len(view.Pair) == 0 {
		fmt.Fprintf(e.stderr, "no run that is remembered has measured %s -> %s\n", filter.Source, filter.Target)
	}
	switch o.output {
	case "json":
		return print.HistoryJSON(e.stdout, view)
	case "html":
		return print.HTMLHistory(e.stdout, view, filter.Source, filter.Target, print.Links{})
	}
	t := e.terminalOf(e.stdout)
	text := print.TextOptions{Width: t.width, Color: t.color, Unicode: t.is, Rest: allInJSON}
	if o.all {
		text.Lines = -1
	}
	if err := print.History(e.stdout, view, text); err != nil {
		return fmt.Errorf("print the history of plan %s: %w", h.Plan, err)
	}
	return nil
}

// readHistory reads a history from a file, standard input or the cluster; live says that it is from the cluster.
func (e *environment) readHistory(
	ctx context.Context, name string, access run.Access,
) (h *history.History, live bool, err error) {
	if name == "-" || isFile(dirOf(e, name)) {
		ctx, stop := e.interruptible(ctx)
		defer stop()
		text, err := e.readAll(ctx, name)
		if err != nil {
			return nil, false, fmt.Errorf("read %s: %w", name, err)
		}
		h, err = record.ReadHistory(ctx, text)
		if err != nil && !errors.Is(err, record.ErrNewer) {
			return nil, false, usage("%s: %w", name, err)
		}
		return h, false, err
	}
	cluster, err := run.Connect(access)
	if err != nil {
		return nil, false, err
	}
	ctx, stop := e.interruptible(ctx)
	defer stop()
	h, err = record.LoadHistory(ctx, cluster.Kube.CoreV1().ConfigMaps(cluster.Namespace), name)
	return h, true, err
}

// sinceOf reads --since; empty is the zero time.
func sinceOf(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int
		if _, err := fmt.Sscanf(days+"\n", "%d\n", &n); err == nil && n >= 0 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usage("--since %q: want a time before now (36h, 7d), a date (2026-01-31) or a time (RFC 3339)", s)
}
