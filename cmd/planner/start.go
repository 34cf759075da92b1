// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/tekton"
)

func newStart(env *environment) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "start NAME",
		Short: "Start a run of a plan that is deployed, and print its report",
		Long: `start creates a PipelineRun of a Pipeline that Git, or somebody else, applied. It
applies nothing, and needs no file: the Pipeline has the plan. Then it does as run
does.

With --resolver bundles=REF or cluster=NAMESPACE the Pipeline is not in the
namespace, which needs only the plan's accounts and roles. planner reads the
Pipeline of a bundle from the registry, not from the cluster, and the run uses the
digest that it read. With cluster, the right to get pipelines is in NAMESPACE.

With --detach it needs these rights in the namespace: get pipelines, create
pipelineruns. To follow the run, also: get pipelineruns, list taskruns, get and
list configmaps; to cancel it by Ctrl-C: patch pipelineruns.

Exit codes: as run.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s: want one argument: the name of a Pipeline, which is that of its plan", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.from.Name == tekton.ResolverGit || o.from.Name == tekton.ResolverHub {
				return usage("start reads the Pipeline, and cannot by resolver %s: want bundles or cluster, or create the PipelineRun"+
					" with kubectl", o.from.Name)
			}
			cluster, err := run.Connect(o.access)
			if err != nil {
				return err
			}
			return env.startDeployed(cmd.Context(), cluster, args[0], o)
		},
	}
	addAccess(cmd, &o.access)
	cmd.ValidArgsFunction = completeNames(&o.access, 1, func(ctx context.Context, cluster *run.Cluster) ([]string, error) {
		return cluster.Pipelines(ctx)
	})
	timeoutFlag(cmd, &o.timeout)
	addRunOptions(env, cmd, &o)
	resolverFlag(cmd, &o.from, "where the Pipeline is, if not in the namespace")
	return cmd
}

func (e *environment) startDeployed(ctx context.Context, cluster *run.Cluster, name string, o runOptions) error {
	screen := newScreen(e.stderr, e.terminalOf(e.stderr))
	defer screen.close()
	started, err := e.create(ctx, cluster, name, o, screen)
	if err != nil {
		return err
	}
	return e.watch(ctx, cluster, started, screen, o)
}

// create creates a run of a Pipeline, unless it is interrupted.
func (e *environment) create(ctx context.Context, cluster *run.Cluster, name string, o runOptions, screen *screen) (
	*pipelinev1.PipelineRun, error) {
	ctx, stop := e.interruptible(ctx)
	defer stop()
	pipeline, from, err := e.findPipeline(ctx, cluster, name, o.from)
	if err != nil {
		return nil, err
	}
	pipelineRun, err := tekton.Start(pipeline, cluster.Namespace, from, o.allSettings(), o.timeout)
	if err != nil {
		return nil, exit{exitUsage, err}
	}
	started, err := cluster.Start(ctx, pipelineRun)
	if err == nil {
		screen.say("started PipelineRun %s in namespace %s", started.Name, cluster.Namespace)
	}
	return started, err
}

// findPipeline reads a Pipeline from the namespace, or where a resolver finds it. For a bundle, the resolver that it
// returns has the digest of what was read.
func (e *environment) findPipeline(ctx context.Context, cluster *run.Cluster, name string, from tekton.Resolver) (
	*pipelinev1.Pipeline, tekton.Resolver, error) {
	if from.Name == tekton.ResolverBundles {
		found, pinned, err := bundles.Read(ctx, from.From, "pipeline", name)
		if err != nil {
			return nil, from, err
		}
		pipeline, err := tekton.DecodePipeline(found.Content)
		if err != nil {
			return nil, from, fmt.Errorf("bundle %s: %w", from.From, err)
		}
		return pipeline, from.At(pinned), nil
	}
	elsewhere := *cluster
	elsewhere.Namespace = cmp.Or(from.From, cluster.Namespace)
	pipeline, err := elsewhere.Pipeline(ctx, name)
	return pipeline, from, err
}
