// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// explainOptions are the flags of explain.
type explainOptions struct {
	plan     string
	access   run.Access
	compile  tekton.Options
	settings []string
	snapshot string
	record   string
	output   string
}

func newExplain(env *environment) *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain PATH...",
		Short: "Show what a run of a plan will do, before it does it",
		Long: `explain surveys the cluster, or reads a snapshot of one, and shows what a run of
the plan would do: its pods per node, images, service accounts with every verb,
pairs, packets, bytes, peak rates, longest duration, and the objects that are
left behind. It changes nothing. The worksheet is worked out by the code that a
run uses, so that what is shown is what will run.`,
		Args: paths,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := env.interruptible(cmd.Context())
			defer stop()
			return env.explain(ctx, args, o)
		},
	}
	addAccess(cmd, &o.access)
	addCompileOptions(cmd, &o.compile)
	planFlag(cmd, &o.plan)
	setFlag(cmd, &o.settings)
	cmd.Flags().StringVar(&o.snapshot, "snapshot", "", "read the cluster from this file, which --record wrote, instead of asking one")
	cmd.Flags().StringVar(&o.record, "record", "", "write what was read of the cluster into this file")
	enumVar(cmd, &o.output, "output", "text", "output format", "text", "json")
	return cmd
}

// explanation is what explain shows, and its JSON.
type explanation struct {
	Plan       string            `json:"plan"`
	Namespace  string            `json:"namespace"`
	Checks     []checkExplained  `json:"checks"`
	Images     []string          `json:"images"`
	Accounts   []accountRights   `json:"serviceAccounts"`
	Longest    checkup.Duration  `json:"longest"`
	Parameters map[string]string `json:"parameters"`
}

type checkExplained struct {
	checkup.Cost
	Round    int      `json:"round"`
	Rounds   int      `json:"rounds"`
	Degree   int      `json:"degree"`
	Seed     uint64   `json:"seed"`
	Warnings []string `json:"warnings,omitempty"`
}

type accountRights struct {
	Account string         `json:"account"`
	Rights  []tekton.Right `json:"rights"`
}

func (e *environment) explain(ctx context.Context, args []string, o explainOptions) error {
	plan, err := e.onePlan(args, o.plan)
	if err != nil {
		return err
	}
	if err := plan.Apply(o.settings); err != nil {
		return usage("--set: %w", err)
	}
	snapshot, err := e.survey(ctx, plan, &o)
	if err != nil {
		return err
	}
	explained, err := explain(plan, snapshot, o.compile)
	if err != nil {
		return err
	}
	if o.output == "json" {
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(explained)
	}
	return explained.print(e)
}

// survey reads the cluster, or the file that stands for it, and writes the file
// that --record asks for.
func (e *environment) survey(ctx context.Context, plan *checkup.Plan, o *explainOptions) (*cluster.Snapshot, error) {
	if o.snapshot != "" {
		data, err := os.ReadFile(dirOf(e, o.snapshot))
		if err != nil {
			return nil, usage("--snapshot: %w", err)
		}
		snapshot, err := cluster.DecodeSnapshot(data)
		if err != nil {
			return nil, usage("--snapshot %s: %w", o.snapshot, err)
		}
		o.compile.Namespace = o.access.Namespace
		return snapshot, nil
	}
	c, err := run.Connect(o.access)
	if err != nil {
		return nil, err
	}
	o.compile.Namespace = c.Namespace
	snapshot, err := kind.Survey(ctx, cluster.Reader{Kubernetes: c.Kube, Metadata: c.Metadata, Dynamic: c.Dynamic, Namespace: c.Namespace}, plan)
	if err != nil {
		return nil, err
	}
	if o.record == "" {
		return snapshot, nil
	}
	data, err := cluster.EncodeSnapshot(snapshot)
	if err != nil {
		return nil, err
	}
	return snapshot, os.WriteFile(dirOf(e, o.record), data, 0o644)
}

// explain works everything out from values alone.
func explain(plan *checkup.Plan, snapshot *cluster.Snapshot, options tekton.Options) (*explanation, error) {
	compiled, err := tekton.Compile(plan, options)
	if err != nil {
		return nil, exit{exitUsage, err}
	}
	x := &explanation{Plan: plan.Name, Namespace: compiled.Pipeline.Namespace, Parameters: map[string]string{}}
	for _, param := range plan.Params() {
		x.Parameters[param.Name] = param.Default
	}
	x.Images = tekton.Images(options)
	for _, name := range plan.CheckNames() {
		k, err := kind.Of(plan, name)
		if err != nil {
			return nil, err
		}
		w, warnings, err := k.Expand(plan, name, snapshot)
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", name, err)
		}
		c := checkExplained{Cost: w.Cost(plan, tekton.AgentImage(options)), Round: w.Round, Rounds: w.Rounds, Degree: w.Degree, Seed: w.Seed, Warnings: warnings}
		x.Checks = append(x.Checks, c)
	}
	for _, right := range tekton.Rights(plan, options) {
		account := plan.Name + "-" + string(right.Phase)
		i := slices.IndexFunc(x.Accounts, func(a accountRights) bool { return a.Account == account })
		if i < 0 {
			i = len(x.Accounts)
			x.Accounts = append(x.Accounts, accountRights{Account: account})
		}
		x.Accounts[i].Rights = append(x.Accounts[i].Rights, right)
	}
	x.Longest = checkup.Duration(tekton.Timeouts(plan).Pipeline.Duration)
	return x, nil
}

// print shows the explanation as tables.
func (x *explanation) print(e *environment) error {
	w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	row := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	row("plan %s in namespace %s, at most %s", x.Plan, x.Namespace, x.Longest)
	for _, c := range x.Checks {
		row("\ncheck %s (%s)", c.Check, c.Kind)
		row("  sample\tround %d of %d, degree %d, seed %d", c.Round, c.Rounds, c.Degree, c.Seed)
		row("  pairs\t%d", c.Pairs)
		row("  packets\t%d, about %s both ways", c.Packets, bytesText(c.Bytes))
		row("  peak rate\t%d packets/s from a node, %d packets/s to a node", c.PeakSent, c.PeakReceived)
		row("  duration\tabout %s of probing, at most %s with setup", c.ExpectedProbe, c.Longest)
		row("  pods\t%d agents and %d responders, at most %d on a node", c.Agents, c.Responders, c.PodsPerNode)
		row("  capabilities\t%s", orNone(c.Capabilities))
		for _, warning := range c.Warnings {
			row("  warning\t%s", warning)
		}
		row("\n  NODE\tAGENTS\tRESPONDERS\tSENDS UP TO\tRECEIVES UP TO")
		const most = 20
		for _, n := range c.Nodes[:min(most, len(c.Nodes))] {
			row("  %s\t%d\t%d\t%d/s\t%d/s", n.Node, n.Agents, n.Responders, n.PeakSent, n.PeakReceived)
		}
		if more := len(c.Nodes) - most; more > 0 {
			row("  and %d more nodes (all of them: --output json)", more)
		}
		row("\n  OBJECTS\tROLE\tCOUNT\tLEFT BEHIND\tUNTIL")
		for _, o := range c.Objects {
			count := fmt.Sprint(o.Count)
			if o.AtLeast {
				count += " or more"
			}
			row("  %s\t%s\t%s\t%s\t%s", o.Kind, o.Role, count, yesNo(o.LeftBehind), o.Until)
		}
	}
	row("\nSERVICE ACCOUNT\tWHERE\tRESOURCE\tVERBS")
	for _, a := range x.Accounts {
		for _, line := range grants(a.Rights, x.Namespace) {
			row("%s\t%s\t%s\t%s", a.Account, line.where, line.resource, strings.Join(line.verbs, " "))
		}
	}
	row("(agents and responders have no token)")
	row("\nIMAGE")
	for _, image := range x.Images {
		row("%s", image)
	}
	return w.Flush()
}

// grant is the verbs of one account on one resource.
type grant struct {
	where, resource string
	verbs           []string
}

func grants(rights []tekton.Right, runNamespace string) []grant {
	var lines []grant
	for _, r := range rights {
		where := "cluster"
		switch r.Scope {
		case tekton.ScopeRun:
			where = "namespace " + runNamespace
		case tekton.ScopeNamespace:
			where = "namespace " + r.Namespace
		}
		i := slices.IndexFunc(lines, func(g grant) bool { return g.where == where && g.resource == r.Resource })
		if i < 0 {
			i = len(lines)
			lines = append(lines, grant{where: where, resource: r.Resource})
		}
		lines[i].verbs = append(lines[i].verbs, r.Verb)
	}
	return lines
}

func orNone(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// bytesText prints a number of bytes in the binary units of Kubernetes
// quantities.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
