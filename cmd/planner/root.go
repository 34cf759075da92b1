// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/load"
	"github.com/checkplan/checkplan/pkg/record"
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
	problems := problemsOf(err)
	for i := range problems {
		problems[i] = "planner: " + problems[i]
	}
	printProblems(env.stderr, problems)
	return code
}

// problemsOf are the messages of an error: of one that joins several, a message for each, with what is before and
// behind the list of them.
func problemsOf(err error) []string {
	for e := err; e != nil; e = errors.Unwrap(e) {
		var parts []error
		switch list := e.(type) { //nolint:errorlint // the loop unwraps
		case interface{ WrappedErrors() []error }:
			parts = list.WrappedErrors()
		case interface{ Unwrap() []error }:
			if parts = list.Unwrap(); e.Error() != errors.Join(parts...).Error() {
				continue // several causes of one problem
			}
		default:
			continue
		}
		before, after, found := strings.Cut(err.Error(), e.Error())
		if !found {
			break
		}
		var problems []string
		for _, part := range parts {
			for _, problem := range problemsOf(part) {
				problems = append(problems, before+problem+after)
			}
		}
		return problems
	}
	return []string{err.Error()}
}

// printProblems prints a line for each problem. If one has several lines, the further ones are indented, and empty
// lines separate all problems.
func printProblems(w io.Writer, problems []string) {
	several := slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(strings.TrimSpace(p), "\n") })
	for i, p := range problems {
		if several && i > 0 {
			fmt.Fprintln(w)
		}
		p = strings.ReplaceAll(strings.TrimSpace(p), "\n", "\n  ")
		fmt.Fprintln(w, checkup.NoCommand(checkup.CleanLines(p)))
	}
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
		Version:       version,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; see planner --help", args[0])
			}
			return cmd.Help()
		},
	}
	root.SetVersionTemplate(versionLine())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var invalid *pflag.InvalidValueError
		if errors.As(err, &invalid) && invalid.GetFlag().Name == "resolver" {
			err = fmt.Errorf("--resolver: %w", invalid.Unwrap()) // without the value, which may hold credentials
		}
		return usage("%w; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(newInit(env), newVet(env), newCompile(env), newExplain(env), newRun(env), newStart(env), newAsk(env),
		newReport(env), newEvidence(env), newDiff(env), newHistory(env), newSchedule(env), newServe(env), newState(env),
		newCatalog(env), newVersion(env))
	return root
}

// fileFlag adds kubectl's -f to a verb that reads plans: its paths come behind the arguments.
func fileFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayP("filename", "f", nil, "path of a plan, as an argument is; can be repeated")
	do := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return do(cmd, pathsOf(cmd, args)) }
}

// pathsOf are the paths of a command line, those of -f included.
func pathsOf(cmd *cobra.Command, args []string) []string {
	files, err := cmd.Flags().GetStringArray("filename")
	if err != nil { // the verb has no such flag
		return args
	}
	return slices.Concat(args, files)
}

// paths checks the arguments of the verbs that read plans.
func paths(cmd *cobra.Command, args []string) error {
	if len(pathsOf(cmd, args)) == 0 {
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
	cmd.Flags().StringVar(&access.As, "as", "",
		"user or service account (system:serviceaccount:NAMESPACE:NAME) to impersonate; needs the right to do so")
	cmd.Flags().StringArrayVar(&access.AsGroups, "as-group", nil, "group to impersonate, with --as; can be repeated")
	// The only error is a missing flag, and the lines above add them.
	_ = cmd.RegisterFlagCompletionFunc("context",
		func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return run.Contexts(*access), cobra.ShellCompDirectiveNoFileComp
		})
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNames(access, 0, namespaceNames))
}

// completionTime is the longest time for asking the cluster what completes a word.
const completionTime = 3 * time.Second

// completeNames completes a word by names from the cluster, up to the argument of that number; 0 is no limit. Without a
// cluster, or without the right to list, there is nothing to complete.
func completeNames(
	access *run.Access, last int, list func(context.Context, *run.Cluster) ([]string, error),
) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		cluster, err := run.Connect(*access)
		if err != nil || last > 0 && len(args) >= last {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		names, err := list(ctx, cluster)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// namesOf returns the names of the objects of a list, in its order, or the error of listing them.
func namesOf(list runtime.Object, err error) ([]string, error) {
	if err != nil {
		return nil, err
	}
	var names []string
	err = meta.EachListItem(list, func(o runtime.Object) error {
		object, err := meta.Accessor(o)
		if err == nil {
			names = append(names, object.GetName())
		}
		return err
	})
	return names, err
}

func namespaceNames(ctx context.Context, cluster *run.Cluster) ([]string, error) {
	return namesOf(cluster.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}))
}

// runNames are the runs that have a report, newest first.
func runNames(ctx context.Context, cluster *run.Cluster) ([]string, error) {
	reports, _, err := record.Reports(ctx, configMapsOf(cluster, cluster.Namespace))
	var names []string
	for _, r := range reports {
		names = append(names, r.Run)
	}
	return names, err
}

// planNames are the plans that have a report or a history.
func planNames(ctx context.Context, cluster *run.Cluster) ([]string, error) {
	_, plans, err := record.Reports(ctx, configMapsOf(cluster, cluster.Namespace))
	var names []string
	for _, p := range plans {
		names = append(names, p.Plan)
	}
	return names, err
}

// configMapsOf lists the metadata of the ConfigMaps of a namespace; of all if it is empty.
func configMapsOf(cluster *run.Cluster, namespace string) record.Lister {
	return cluster.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(namespace)
}

// oneOrAll refuses --all-namespaces beside --namespace.
func oneOrAll(access run.Access, all bool) error {
	if all && access.Namespace != "" {
		return usage("--namespace %s and --all-namespaces: want one of them", access.Namespace)
	}
	return nil
}

// addCompileOptions adds the flags that decide what a plan compiles to, except the
// namespace.
func addCompileOptions(env *environment, cmd *cobra.Command, o *tekton.Options) {
	cmd.Flags().StringVar(&o.ImageRepository, "image-repository", tekton.DefaultImageRepository,
		"repository of the task images: setup, probe, teardown, report, agent and guest")
	cmd.Flags().StringVar(&o.ImageTag, "image-tag", version, "tag of the task images")
	cmd.Flags().Var(digestsFile{env, o}, "image-digests",
		"file with a reference REPOSITORY/NAME@sha256:HEX per image, as make release-images writes it: pins the images")
	enumVar(cmd, (*string)(&o.Tekton), "tekton", string(tekton.Profiles[len(tekton.Profiles)-1]),
		"Tekton Pipelines release to compile for", words(tekton.Profiles)...)
}

// resolverFlag adds the flag with one of Tekton's remote resolvers.
func resolverFlag(cmd *cobra.Command, r *tekton.Resolver, purpose string) {
	cmd.Flags().Var(resolverValue{r}, "resolver", purpose+": Tekton's remote resolver, as "+
		strings.Join(tekton.Resolvers, "|")+"=FROM[,PARAM=VALUE...]")
	var prefixes []string
	for _, name := range tekton.Resolvers {
		prefixes = append(prefixes, name+"=")
	}
	// The only error is a missing flag, and the lines above add it.
	_ = cmd.RegisterFlagCompletionFunc("resolver",
		cobra.FixedCompletions(prefixes, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

// resolverValue is the value of --resolver.
type resolverValue struct{ r *tekton.Resolver }

func (v resolverValue) String() string { return v.r.String() }
func (v resolverValue) Type() string   { return "resolver" }
func (v resolverValue) Set(text string) (err error) {
	*v.r, err = tekton.ParseResolver(text)
	return err
}

// warnChangeable warns of Tasks that may change while a run uses them.
func (e *environment) warnChangeable(r tekton.Resolver) {
	if why := r.Changeable(); r.Name != "" && why != "" {
		fmt.Fprintf(e.stderr, "warning: later Tasks of a run may differ from earlier ones: %s\n", why)
	}
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
	completePlans(env, cmd, "plan", 0, func(p *checkup.Plan) []string { return []string{p.Name} })
}

// completePlans completes the values of a flag from the plans that the command line
// names or, if it names none yet, from those of the working directory.
func completePlans(
	env *environment, cmd *cobra.Command, flag string, directive cobra.ShellCompDirective,
	values func(*checkup.Plan) []string,
) {
	complete := func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		// cobra parses the flags of a completion twice, so -f has each path twice.
		paths := slices.Compact(slices.Sorted(slices.Values(pathsOf(cmd, args))))
		if len(paths) == 0 {
			paths = []string{"."}
		}
		var all []string
		for _, p := range load.Read(cmd.Context(), env.dir, paths).Plans {
			all = append(all, values(p)...)
		}
		return all, cobra.ShellCompDirectiveNoFileComp | directive
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
	var problems []string
	for _, p := range slices.Concat(files.Warnings, files.Problems) {
		problems = append(problems, p.String())
	}
	printProblems(e.stderr, problems)
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
	completePlans(env, cmd, "set", cobra.ShellCompDirectiveNoSpace, func(p *checkup.Plan) []string {
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

// enumVar adds a flag with a list of allowed values. --output is also -o, as in kubectl.
func enumVar(cmd *cobra.Command, value *string, name, standard, usage string, allowed ...string) {
	*value = standard
	short := ""
	if name == "output" {
		short = "o"
	}
	cmd.Flags().VarP(enum{value, allowed}, name, short, usage+": "+strings.Join(allowed, ", "))
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

// terminalOf describes w. A writer that is no terminal has no colour, and $COLUMNS columns or 80.
func (e *environment) terminalOf(w io.Writer) terminal {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		width, err := strconv.Atoi(e.getenv("COLUMNS"))
		if err != nil || width <= 0 {
			width = 80
		}
		return terminal{width: width}
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	return terminal{is: true, width: width, color: e.getenv("NO_COLOR") == "" && e.getenv("TERM") != "dumb"}
}
