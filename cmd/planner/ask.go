// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/load"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// askOptions are the flags of ask.
type askOptions struct {
	startOptions
	output string
	keep   bool
}

func newAsk(env *environment) *cobra.Command {
	var o askOptions
	cmd := &cobra.Command{
		Use:   "ask POD POD[:PORT]",
		Short: "Answer whether one pod reaches another one",
		Long: `ask measures from inside the first pod, by an ephemeral container, whether it
reaches the second one: its own network, its labels, and the NetworkPolicies that
select it are what is measured. It runs a plan of one pair as planner run does,
prints the answer in words, and deletes what it created. Only the ephemeral
container, which has ended, stays in the pod's spec until the pod is deleted.

A pod is POD in the namespace of the run, or NAMESPACE/POD. Without a port, the
first TCP port that a container of the second pod declares is used, else ICMP.

Exit codes: 0 yes; 1 not known, or the tool or the cluster failed; 2 wrong usage;
3 no, or with losses.`,
		Example: "  planner ask -n checkplan shop/web-1 shop/db-0:5432",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("%s: want two arguments: the pod that asks, and the pod that it is to reach, such as "+
					"shop/web-1 shop/db-0:5432", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return env.ask(cmd.Context(), args[0], args[1], o) },
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			return completePods(cmd.Context(), o.access, len(args), begun),
				cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		},
	}
	addStartOptions(env, cmd, &o.startOptions)
	cmd.Flags().BoolVar(&o.keep, "keep", false,
		"keep the run and the plan's objects: planner report RUN prints the report")
	enumVar(cmd, &o.output, "output", "text", "output format", "text", "json")
	return cmd
}

// podRef is a pod on the command line of ask.
type podRef struct {
	namespace, name string
	port            int // 0 without one
}

func (p podRef) String() string {
	s := p.namespace + "/" + p.name
	if p.port > 0 {
		s += ":" + strconv.Itoa(p.port)
	}
	return s
}

// podOf reads POD, NAMESPACE/POD and, if ports is set, these with :PORT. The namespace is empty without one.
func podOf(arg string, ports bool) (podRef, error) {
	var p podRef
	rest := arg
	if name, port, ok := strings.Cut(arg, ":"); ok {
		var err error
		if !ports {
			return p, usage("%q: the pod that asks has no port: want POD or NAMESPACE/POD", arg)
		}
		if p.port, err = strconv.Atoi(port); err != nil || p.port < 1 || p.port > 65535 {
			return p, usage("%q: port %q: want a number from 1 to 65535", arg, port)
		}
		rest = name
	}
	p.name = rest
	if namespace, name, ok := strings.Cut(rest, "/"); ok {
		p.namespace, p.name = namespace, name
		if len(validation.IsDNS1123Label(namespace)) > 0 {
			return p, usage("%q: %q is not the name of a namespace: want POD or NAMESPACE/POD; "+
				"for a Service, ask for a pod behind it", arg, namespace)
		}
	}
	if len(validation.IsDNS1123Subdomain(p.name)) > 0 {
		return p, usage("%q: %q is not the name of a pod: want POD or NAMESPACE/POD", arg, p.name)
	}
	return p, nil
}

func (e *environment) ask(ctx context.Context, source, target string, o askOptions) error {
	from, err := podOf(source, false)
	if err != nil {
		return err
	}
	to, err := podOf(target, true)
	if err != nil {
		return err
	}
	cluster, err := run.Connect(o.access)
	if err != nil {
		return err
	}
	from.namespace, to.namespace = cmp.Or(from.namespace, cluster.Namespace), cmp.Or(to.namespace, cluster.Namespace)
	if from.namespace == to.namespace && from.name == to.name {
		return usage("%s and %s are the same pod: want two", source, target)
	}
	screen := newScreen(e.stderr, e.terminalOf(e.stderr))
	defer screen.close()
	before, stop := e.interruptible(ctx)
	to.port, err = findPods(before, cluster, from, to)
	stop()
	if err != nil {
		return err
	}
	plan, err := e.askPlan(ctx, from, to)
	if err != nil {
		return err
	}
	o.compile.Namespace = cluster.Namespace
	compiled, err := tekton.Compile(plan, o.compile)
	if err != nil {
		return exit{exitUsage, err}
	}
	pipelineRun, err := tekton.Run(plan, o.compile, nil, o.timeout)
	if err != nil {
		return exit{exitUsage, err}
	}
	if err := e.preflight(ctx, cluster, plan, compiled.Applied(), screen); err != nil {
		return err
	}
	started, err := e.start(ctx, cluster, plan, nil, compiled.Applied(), pipelineRun, screen)
	var report *checkup.Report
	if err == nil {
		report, err = e.finish(ctx, cluster, started, screen)
	}
	if !o.keep {
		screen.show("deleting what was created for the question")
		e.withdraw(ctx, cluster, plan, compiled, screen)
	}
	if err != nil {
		return err
	}
	screen.close()
	if o.output != "text" {
		return e.printReport(report, nil, o.output)
	}
	if err := print.Answer(e.stdout, report, from.String(), to.String()); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return outcome(report)
}

// withdraw deletes what ask created, for at most withdrawTime. What is left costs no more than a warning.
func (e *environment) withdraw(ctx context.Context, cluster *run.Cluster, plan *checkup.Plan, o *tekton.Objects,
	screen *screen) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	if err := cluster.Withdraw(ctx, plan.Name, append(o.Rights, o.Pipeline)); err != nil {
		screen.say("warning: %v", err)
	}
}

const withdrawTime = 20 * time.Second

// findPods checks that both pods exist, and returns the port to ask for; 0 means ICMP. A missing right is not an error:
// the run has its own.
func findPods(ctx context.Context, cluster *run.Cluster, from, to podRef) (int, error) {
	read := func(p podRef) (*corev1.Pod, error) {
		pod, err := cluster.Kube.CoreV1().Pods(p.namespace).Get(ctx, p.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("no pod %s in namespace %s: see kubectl get pods -n %s", p.name, p.namespace, p.namespace)
		case apierrors.IsForbidden(err):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("read pod %s/%s at %s: %w", p.namespace, p.name, cluster.Server, err)
		}
		return pod, nil
	}
	if _, err := read(from); err != nil {
		return 0, err
	}
	pod, err := read(to)
	switch {
	case err != nil:
		return 0, err
	case to.port > 0:
		return to.port, nil
	case pod == nil:
		return 0, usage("no right to read the ports of pod %s/%s: want %s:PORT", to.namespace, to.name, to.name)
	}
	if ports := tcpPorts(pod); len(ports) > 0 {
		return ports[0], nil
	}
	return 0, nil
}

// tcpPorts are the TCP ports that the containers of a pod declare, in their order.
func tcpPorts(pod *corev1.Pod) []int {
	var ports []int
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Protocol == "" || p.Protocol == corev1.ProtocolTCP {
				ports = append(ports, int(p.ContainerPort))
			}
		}
	}
	return ports
}

// askPlan is the plan of one pair: 20 connects in a second, or echo requests without a port. Its name is its own:
// several questions at once do not meet.
func (e *environment) askPlan(ctx context.Context, from, to podRef) (*checkup.Plan, error) {
	probe := `{tcp: {count: 20, interval: 50ms, timeout: 1s}}`
	if to.port == 0 {
		probe = `{icmp: {count: 20, interval: 50ms, timeout: 1s}}`
	}
	text := fmt.Sprintf(`apiVersion: checkplan.dev/v1alpha1
kind: Plan
metadata: {name: "ask-%s"}
spec:
  gate: {confirm: false}
  retention: {reports: 1}
  checks:
    ask:
      podMesh:
        sources: {pods: {namespace: %q, name: %q}}
        targets: {pods: {namespace: %q, name: %q, port: %d}}
        probes: %s
        limits: {startJitter: 0s}
        timeouts: {setup: 1m, probe: 1m}
`, strings.ToLower(rand.Text()[:10]), from.namespace, from.name, to.namespace, to.name, max(to.port, 1), probe)
	dir, err := os.MkdirTemp("", "planner-ask-")
	if err != nil {
		return nil, fmt.Errorf("write the plan of the question: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "ask.yaml"), []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write the plan of the question: %w", err)
	}
	plans, _, problems := load.Plans(ctx, dir, []string{"ask.yaml"})
	if len(problems) > 0 {
		return nil, fmt.Errorf("the plan of the question: %s", problems[0])
	}
	return plans[0], nil
}

// completePods completes an argument of ask: pods of the namespace of the run, or of the one that was begun; those of
// the second argument with their TCP ports. Without a cluster there is nothing to complete.
func completePods(ctx context.Context, access run.Access, arg int, begun string) []string {
	cluster, err := run.Connect(access)
	if err != nil || arg > 1 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	namespace, prefix := cluster.Namespace, ""
	if of, _, ok := strings.Cut(begun, "/"); ok {
		namespace, prefix = of, of+"/"
	}
	var names []string
	pods, err := cluster.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		for i := range pods.Items {
			name := prefix + pods.Items[i].Name
			names = append(names, name)
			if arg == 0 { // the pod that asks
				continue
			}
			for _, port := range tcpPorts(&pods.Items[i]) {
				names = append(names, fmt.Sprintf("%s:%d", name, port))
			}
		}
	}
	if prefix != "" {
		return names
	}
	namespaces, err := cluster.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, n := range namespaces.Items {
			names = append(names, n.Name+"/")
		}
	}
	return names
}
