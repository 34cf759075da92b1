// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/networkhealth"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/scheduling"
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
	whatIf   []string
	output   string
	power    bool
}

func newExplain(env *environment) *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain PATH...",
		Short: "Show what a run of a plan will do, before it does it",
		Long: `explain surveys the cluster, or reads a snapshot of one, and shows what a run of
the plan would do: pods per node, pods that would stay pending and why, VMs with
their networks and what these lack, images, service accounts with every verb,
pairs, packets, bytes, peak rates, longest duration, pod security, the objects
that are left behind, and which losses a mesh can see. It changes nothing. It
computes the worksheet with the code of a run.

--what-if changes the cluster that explain assumes, in the words of kubectl.
Several changes are applied in their order:

  --what-if "delete node worker-1"
  --what-if "delete node -l '!node-role.kubernetes.io/control-plane'"
  --what-if "taint nodes -l pool=web maintenance=soon:NoSchedule"
  --what-if "label nodes worker-1 worker-2 pool=web zone-"
  --what-if "cordon worker-1"

Whether a pod would be scheduled depends on the capacity of the nodes and the
requests of their pods. Reading requests needs the right to list all pods.
Without it, explain prints them as unknown.`,
		Args: paths,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := env.interruptible(cmd.Context())
			defer stop()
			return env.explain(ctx, args, o)
		},
	}
	fileFlag(cmd)
	addAccess(cmd, &o.access)
	addCompileOptions(env, cmd, &o.compile)
	planFlag(env, cmd, &o.plan)
	setFlag(env, cmd, &o.settings)
	cmd.Flags().StringVar(&o.snapshot, "snapshot", "",
		"read the cluster from this file, which --record wrote, instead of from the API server")
	cmd.Flags().StringVar(&o.record, "record", "",
		"write what was read of the cluster to this file, without the changes of --what-if")
	cmd.Flags().StringArrayVar(&o.whatIf, "what-if", nil, "a change of the cluster to assume; can be repeated")
	cmd.Flags().BoolVar(&o.power, "power", false,
		"show the probability that a run sees a loss, by its size and by where packets are lost")
	enumVar(cmd, &o.output, "output", "text", "output format", "text", "json")
	return cmd
}

// explanation is what explain shows, and its JSON.
type explanation struct {
	Plan      string `json:"plan"`
	Namespace string `json:"namespace"`
	// WhatIf are the assumed changes of the cluster.
	WhatIf []string `json:"whatIf,omitempty"`
	// Unseen is what could not be read from the cluster.
	Unseen []cluster.Unseen `json:"unseen,omitempty"`
	// Schedule starts runs; nil if the plan has none. Keeps is how many of its finished runs are kept.
	Schedule *checkup.Schedule `json:"schedule,omitempty"`
	Keeps    int               `json:"keeps,omitempty"`
	// Limits of the plan, with what a run would use; nil if it has none.
	Limits []cost.Use `json:"limits,omitempty"`
	// PodNetworkHealth are the objects that a run writes; nil if the feature is off.
	PodNetworkHealth *healthExplained  `json:"podNetworkHealth,omitempty"`
	Checks           []checkExplained  `json:"checks"`
	Images           []string          `json:"images"`
	Accounts         []accountRights   `json:"serviceAccounts"`
	Longest          checkup.Duration  `json:"longest"`
	Parameters       map[string]string `json:"parameters"`
}

// healthExplained are the PodNetworkHealths of a plan.
type healthExplained struct {
	checkup.PodNetworkHealth
	// Pairs is the number of (source, target) pairs of a run that may have an object, and Checks those that have such
	// pairs.
	Pairs  int      `json:"pairs"`
	Checks []string `json:"checks"`
}

type checkExplained struct {
	cost.Cost
	kind.Explanation
	Round    int      `json:"round"`
	Rounds   int      `json:"rounds"`
	Degree   int      `json:"degree"`
	Seed     uint64   `json:"seed"`
	Warnings []string `json:"warnings,omitempty"`
	// Landing is which of the check's pods would be scheduled; nil if it has none.
	Landing *scheduling.Landing `json:"landing,omitempty"`
	// Worksheet is what a run would freeze before it measures, and Roster the targets
	// that already exist.
	Worksheet *checkup.Worksheet `json:"worksheet"`
	Roster    *checkup.Roster    `json:"roster"`
}

type accountRights struct {
	Account string          `json:"account"`
	Rights  []checkup.Right `json:"rights"`
}

func (e *environment) explain(ctx context.Context, args []string, o explainOptions) error {
	plan, _, err := e.onePlan(ctx, args, o.plan)
	if err != nil {
		return err
	}
	if err := kinds.Apply(plan, o.settings); err != nil {
		return usage("--set: %w", err)
	}
	snapshot, err := e.survey(ctx, plan, &o)
	if err != nil {
		return err
	}
	for _, change := range o.whatIf {
		if err := snapshot.Change(change); err != nil {
			return usage("--what-if: %w", err)
		}
	}
	explained, err := explain(plan, snapshot, o.compile)
	if err != nil {
		return err
	}
	explained.WhatIf = o.whatIf
	if o.output == "json" {
		return print.Encode(e.stdout, explained)
	}
	return explained.print(e.stdout, o.power)
}

// survey reads the cluster, or the file of --snapshot, and writes the file of --record.
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
		o.compile.Namespace = cmp.Or(o.access.Namespace, homeOf(plan))
		return snapshot, nil
	}
	o.access.Namespace = cmp.Or(o.access.Namespace, homeOf(plan))
	c, err := run.Connect(o.access)
	if err != nil {
		return nil, err
	}
	o.compile.Namespace = c.Namespace
	reader := cluster.Reader{Kubernetes: c.Kube, Metadata: c.Metadata, Dynamic: c.Dynamic, Namespace: c.Namespace}
	snapshot, err := kinds.Survey(ctx, reader, plan)
	if err != nil {
		return nil, err
	}
	if err := requests(ctx, reader, snapshot); err != nil {
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

// requests reads what pods on the nodes request, if no kind has read it: a run does not
// need it, but explain predicts the scheduling of pods. Without the right to list pods it
// is recorded as unseen.
func requests(ctx context.Context, r cluster.Reader, s *cluster.Snapshot) error {
	surveyed := slices.ContainsFunc(s.Nodes, func(n cluster.Node) bool { return n.Requested != nil })
	if surveyed || s.NodesUnseen() {
		return nil
	}
	err := r.Requests(ctx, s)
	if apierrors.IsForbidden(err) {
		s.AddUnseen("what is requested on the nodes", err)
		return nil
	}
	return err
}

// explain computes the explanation. It is pure: it reads no cluster.
func explain(plan *checkup.Plan, snapshot *cluster.Snapshot, options tekton.Options) (*explanation, error) {
	compiled, err := tekton.Compile(plan, options)
	if err != nil {
		return nil, exit{exitUsage, err}
	}
	x := &explanation{
		Plan: plan.Name, Namespace: compiled.Pipeline.Namespace, Unseen: snapshot.Unseen, Parameters: map[string]string{},
	}
	for _, param := range plan.Params() {
		x.Parameters[param.Name] = param.Default
	}
	x.Images = tekton.Images(options)
	for _, name := range plan.CheckNames() {
		c, err := explainCheck(plan, name, snapshot, x.Namespace, options)
		if err != nil {
			return nil, err
		}
		for _, image := range c.Explanation.Images {
			if !slices.Contains(x.Images, image) {
				x.Images = append(x.Images, image)
			}
		}
		x.Checks = append(x.Checks, *c)
	}
	x.Limits = cost.Uses(plan.Limits, costsOf(x.Checks)...)
	x.PodNetworkHealth = explainHealth(plan, x.Checks)
	for _, right := range tekton.Rights(plan, options) {
		account := checkup.AccountName(plan.Name, right.Phase)
		i := slices.IndexFunc(x.Accounts, func(a accountRights) bool { return a.Account == account })
		if i < 0 {
			i = len(x.Accounts)
			x.Accounts = append(x.Accounts, accountRights{Account: account})
		}
		x.Accounts[i].Rights = append(x.Accounts[i].Rights, right)
	}
	if plan.Schedule != nil {
		x.Schedule, x.Keeps = plan.Schedule, plan.Retention.Reports
		x.Accounts = append(x.Accounts, accountRights{tekton.ScheduleAccount(plan), tekton.ScheduleRights(plan)})
	}
	x.Longest = checkup.Duration(tekton.Timeouts(plan).Pipeline.Duration)
	return x, nil
}

func costsOf(checks []checkExplained) []cost.Cost {
	costs := make([]cost.Cost, len(checks))
	for i, c := range checks {
		costs[i] = c.Cost
	}
	return costs
}

// explainHealth explains the PodNetworkHealths of a plan, and adds them to the objects of its checks; nil if it has
// none.
func explainHealth(plan *checkup.Plan, checks []checkExplained) *healthExplained {
	if plan.NetworkHealth() == nil {
		return nil
	}
	h := &healthExplained{PodNetworkHealth: *plan.NetworkHealth()}
	for i := range checks {
		c := &checks[i]
		if !networkhealth.Reports(c.Worksheet) {
			continue
		}
		pairs := 0
		for _, targets := range c.Worksheet.Assignments {
			pairs += len(targets)
		}
		h.Checks = append(h.Checks, c.Worksheet.Check)
		h.Pairs += pairs
		if pairs > 0 {
			c.Objects = append(c.Objects, cost.Object{
				Kind: networkhealth.Kind, Count: min(pairs, h.MaxObjects), LeftBehind: true,
				Until: fmt.Sprintf("%s after the observation, by the next run", h.ExpireAfter),
			})
		}
	}
	return h
}

// explainCheck explains one check: what its kind shows, and what its worksheet costs.
func explainCheck(plan *checkup.Plan, name string, snapshot *cluster.Snapshot, namespace string,
	options tekton.Options) (*checkExplained, error) {
	image := tekton.AgentImage(options)
	k, err := kinds.Of(plan, name)
	if err != nil {
		return nil, err
	}
	w, roster, err := kinds.Expand(plan, name, snapshot)
	if err != nil {
		return nil, err
	}
	c := &checkExplained{
		Cost: cost.Of(w, plan, image), Round: w.Round, Rounds: w.Rounds, Degree: w.Degree, Seed: w.Seed, Warnings: w.Warnings,
		Worksheet: w, Roster: roster,
	}
	c.Explanation = k.Explain(kind.Explained{
		Spec: plan.Checks[name].Spec, Worksheet: w, Roster: c.Roster,
		Gate: plan.Gate, Cost: c.Cost, GuestImage: tekton.GuestImage(options),
	})
	agents, responders, err := fleet.Pods(w, namespace, image)
	if err != nil {
		return nil, fmt.Errorf("check %q: %w", name, err)
	}
	if c.Agents+c.Responders > 0 {
		landing := scheduling.Land(slices.Concat(responders, agents), snapshot.Nodes)
		c.Landing = &landing
	}
	return c, nil
}
