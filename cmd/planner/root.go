// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/load"
	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// Exit codes; main.go documents them. They never change.
const (
	exitOK     = 0
	exitError  = 1
	exitUsage  = 2
	exitFailed = 3
)

// exit is an error with its exit code. If err is nil, it was printed already.
type exit struct {
	code int
	err  error
}

func (e exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e exit) Unwrap() error { return e.err }

// usage is an error in the command line or in a plan.
func usage(format string, args ...any) error {
	return exit{exitUsage, fmt.Errorf(format, args...)}
}

var errInterrupted = errors.New("interrupted")

// version of planner and of its task images. The linker sets it for a release; else
// it is the next release.
var version = tekton.DefaultImageTag

// planner runs one command line and returns the exit code.
func planner(ctx context.Context, env *environment, args []string) int {
	root := newRoot(env)
	root.SetArgs(args)
	root.SetIn(env.stdin)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	code := exitError
	var e exit
	if errors.As(err, &e) {
		code = e.code
		if e.err == nil {
			return code
		}
	}
	for i, line := range strings.Split(strings.TrimRight(err.Error(), "\n"), "\n") {
		if i == 0 {
			line = "planner: " + line
		}
		fmt.Fprintln(env.stderr, checkup.NoCommand(checkup.Clean(line)))
	}
	return code
}

func newRoot(env *environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "planner",
		Short: "Check, explain, compile and run checkup plans for Kubernetes networks",
		Long: `planner checks, explains, compiles and runs checkup plans for Kubernetes networks.

A plan says in CUE, YAML or JSON which network paths of a cluster must work, and
how well. planner compiles it into a Tekton Pipeline, which measures them. The
ConfigMap of a kiagnose VM latency checkup is a plan, too.

Exit codes: 0 pass; 1 inconclusive, or the tool failed; 2 wrong usage, or an
invalid plan; 3 the network does not do what the plan expects.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; see planner --help", args[0])
			}
			return cmd.Help()
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%w; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(newVet(env), newCompile(env), newExplain(env), newRun(env), newAsk(env), newReport(env),
		newDiff(env), newHistory(env), newSchedule(env), newCatalog(env),
		newVersion(env))
	return root
}

// paths checks the arguments of the verbs that read plans.
func paths(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage("%s: want the path of a plan: a .cue, .yaml or .json file, or a directory of .cue files",
			cmd.CommandPath())
	}
	return nil
}

// addAccess adds the flags that select the cluster; their names are kubectl's.
func addAccess(cmd *cobra.Command, access *run.Access) {
	cmd.Flags().StringVar(&access.Kubeconfig, "kubeconfig", "",
		"path of the kubeconfig; if empty, $KUBECONFIG or ~/.kube/config")
	cmd.Flags().StringVar(&access.Context, "context", "", "context of the kubeconfig; if empty, its current context")
	cmd.Flags().StringVarP(&access.Namespace, "namespace", "n", "", "namespace; if empty, that of the context")
}

// addCompileOptions adds the flags that decide what a plan compiles to, except the
// namespace.
func addCompileOptions(env *environment, cmd *cobra.Command, o *tekton.Options) {
	cmd.Flags().StringVar(&o.ImageRepository, "image-repository", tekton.DefaultImageRepository,
		"repository that holds the task images setup, probe, teardown, report and agent")
	cmd.Flags().StringVar(&o.ImageTag, "image-tag", version, "tag of the task images")
	cmd.Flags().Var(digestsFile{env, o}, "image-digests",
		"file with a reference REPOSITORY/NAME@sha256:HEX per image, as ko --image-refs writes it: pins the images")
	enumVar(cmd, (*string)(&o.Tekton), "tekton", string(tekton.Profiles[len(tekton.Profiles)-1]),
		"Tekton Pipelines release to compile for", words(tekton.Profiles)...)
}

// digestsFile is the value of --image-digests: setting it reads the file.
type digestsFile struct {
	env *environment
	o   *tekton.Options
}

func (d digestsFile) Set(path string) error {
	text, err := os.ReadFile(dirOf(d.env, path))
	if err != nil {
		return err
	}
	d.o.ImageDigests, err = tekton.ParseDigests(text)
	return err
}

func (d digestsFile) String() string { return "" }

func (d digestsFile) Type() string { return "file" }

// planFlag adds the flag that selects one of several plans.
func planFlag(env *environment, cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "plan", "", "name of the plan, if the files hold several plans")
	completePlans(env, cmd, "plan", func(p *checkup.Plan) []string { return []string{p.Name} })
}

// completePlans completes the values of a flag from the plans that the command line
// names.
func completePlans(env *environment, cmd *cobra.Command, flag string, values func(*checkup.Plan) []string) {
	complete := func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var all []string
		for _, p := range load.Read(cmd.Context(), env.dir, args).Plans {
			all = append(all, values(p)...)
		}
		return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	// The only error is a missing flag, and the caller added it.
	_ = cmd.RegisterFlagCompletionFunc(flag, complete)
}

// read reads plans until the first interrupt.
func (e *environment) read(ctx context.Context, paths []string) (*load.Result, error) {
	ctx, stop := e.interruptible(ctx)
	defer stop()
	files := load.Read(ctx, e.dir, paths)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return files, nil
}

// load reads plans and prints warnings. When it returns exitUsage, it has printed what is
// wrong with the plans.
func (e *environment) load(ctx context.Context, paths []string) (*load.Result, error) {
	files, err := e.read(ctx, paths)
	if err != nil {
		return nil, err
	}
	for _, p := range slices.Concat(files.Warnings, files.Problems) {
		fmt.Fprintln(e.stderr, checkup.NoCommand(checkup.CleanLines(p.String())))
	}
	if len(files.Problems) == 0 {
		return files, nil
	}
	return nil, exit{code: exitUsage}
}

// onePlan loads the paths and picks a plan.
func (e *environment) onePlan(
	ctx context.Context, args []string, name string,
) (*checkup.Plan, *load.Result, error) {
	files, err := e.load(ctx, args)
	if err != nil {
		return nil, nil, err
	}
	plans := files.Plans
	names := make([]string, len(plans))
	for i, p := range plans {
		names[i] = p.Name
	}
	if name == "" && len(plans) == 1 {
		return plans[0], files, nil
	}
	if name == "" {
		return nil, nil, usage("%s hold %d plans; choose one with --plan: %s",
			strings.Join(args, " "), len(plans), strings.Join(names, ", "))
	}
	i := slices.Index(names, name)
	if i < 0 {
		return nil, nil, usage(
			"no plan %q in %s; choose one of: %s",
			name,
			strings.Join(args, " "),
			strings.Join(names, ", "),
		)
	}
	return plans[i], files, nil
}

// setFlag collects --set name=value.
func setFlag(env *environment, cmd *cobra.Command, settings *[]string) {
	cmd.Flags().StringArrayVar(settings, "set", nil,
		"set a tunable of the plan for this run, as name=value (mesh.degree=3, gate=Nothing); can be repeated")
	completePlans(env, cmd, "set", func(p *checkup.Plan) []string {
		var names []string
		for _, param := range p.Params() {
			names = append(names, param.Name+"=")
		}
		return names
	})
}

// enum is a flag with a list of allowed values, which completion offers.
type enum struct {
	value   *string
	allowed []string
}

func (e enum) String() string { return *e.value }
func (e enum) Type() string   { return "string" }
func (e enum) Set(v string) error {
	if !slices.Contains(e.allowed, v) {
		return fmt.Errorf("want one of %s", strings.Join(e.allowed, ", "))
	}
	*e.value = v
	return nil
}

func enumVar(cmd *cobra.Command, value *string, name, standard, usage string, allowed ...string) {
	*value = standard
	cmd.Flags().Var(enum{value, allowed}, name, usage+": "+strings.Join(allowed, ", "))
	// The only error is a missing flag, and the line above adds it.
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp))
}

func words[T ~string](values []T) []string {
	w := make([]string, len(values))
	for i, v := range values {
		w[i] = string(v)
	}
	return w
}

// terminal describes a writer: whether it is a terminal, and how wide.
type terminal struct {
	is    bool
	width int
	color bool
}

// terminalOf describes w. A writer that is no terminal has no colour and 100 columns.
func (e *environment) terminalOf(w io.Writer) terminal {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return terminal{width: 100}
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	return terminal{is: true, width: width, color: e.getenv("NO_COLOR") == "" && e.getenv("TERM") != "dumb"}
}
