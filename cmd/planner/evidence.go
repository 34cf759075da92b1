// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/run"
)

func newEvidence(env *environment) *cobra.Command {
	var access run.Access
	var output string
	cmd := &cobra.Command{
		Use:   "evidence RUN",
		Short: "Print logs, events and consoles of the pods and VMs of a run that went wrong",
		Long: `evidence prints what a run kept of its own pods and VMs that went wrong: events, the
ends of logs, and the output of consoles. With --output json, it also prints their
manifests. The run is named by its PipelineRun: evidence is deleted with it.

Teardown keeps the evidence, of at most 20 pods and 20 VMs.

Exit codes: 0, also without evidence; 1 if the run does not exist, or the evidence
could not be read.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s: want one argument: the name of a PipelineRun", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.evidence(cmd.Context(), args[0], access, output)
		},
	}
	addAccess(cmd, &access)
	enumVar(cmd, &output, "output", "text", "output format", "text", "json")
	cmd.ValidArgsFunction = completeNames(&access, 1, runNames)
	return cmd
}

func (e *environment) evidence(ctx context.Context, name string, access run.Access, output string) error {
	ctx, stop := e.interruptible(ctx)
	defer stop()
	cluster, err := run.Connect(access)
	if err != nil {
		return err
	}
	one, err := cluster.Tekton.TektonV1().PipelineRuns(cluster.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("run %s: no PipelineRun in namespace %s; another namespace: -n; the evidence of a run is deleted "+
			"with its PipelineRun", name, cluster.Namespace)
	case err != nil:
		return fmt.Errorf("read PipelineRun %s in namespace %s: %w", name, cluster.Namespace, err)
	case !one.IsDone():
		warning := fmt.Sprintf("warning: run %s has not ended: its evidence is complete after teardown", name)
		fmt.Fprintln(e.stderr, checkup.NoCommand(checkup.Clean(warning)))
	}
	kept, err := record.LoadEvidence(ctx, cluster.Kube.CoreV1().ConfigMaps(cluster.Namespace),
		configMapsOf(cluster, cluster.Namespace), string(one.UID))
	if err != nil {
		return fmt.Errorf("evidence of run %s in namespace %s: %w", name, cluster.Namespace, err)
	}
	kept.Namespace, kept.Run = cluster.Namespace, name
	if output == "json" {
		return print.Encode(e.stdout, kept)
	}
	t := e.terminalOf(e.stdout)
	return print.Evidence(e.stdout, kept, print.TextOptions{Width: t.width, Color: t.color, Unicode: t.is})
}
