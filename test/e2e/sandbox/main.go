// SPDX-License-Identifier: Apache-2.0

// Command sandbox creates a real Kubernetes cluster with Tekton Pipelines on one Linux machine,
// without a container engine and without pulling images, and removes it again. See README.md.
package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs the command. It returns 0 on success, 1 on failure, 2 for a wrong command line.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "sandbox: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// usageError is an error in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usage turns the errors of an argument check into usage errors.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

// flags are the flags of every verb.
type flags struct {
	stateDir, cacheDir string
}

func (f flags) dirs() (dirs, error) {
	dir, err := filepath.Abs(f.stateDir)
	if err != nil || strings.ContainsAny(dir, " \n") || dir == "/" {
		return dirs{}, usageError{fmt.Errorf(
			"--state is %q: must be a directory for the sandbox only, without spaces", f.stateDir)}
	}
	return dirs{state: dir}, nil
}

func (f flags) build() (build, error) {
	dir, err := filepath.Abs(f.cacheDir)
	if err != nil || f.cacheDir == "" {
		return build{}, usageError{fmt.Errorf(
			"--cache is %q: must be a directory (the default needs a home directory)", f.cacheDir)}
	}
	return cachedBuild(dir)
}

// cluster opens the existing sandbox.
func (f flags) cluster(stderr io.Writer) (*cluster, error) {
	d, err := f.dirs()
	if err != nil {
		return nil, err
	}
	s, err := d.readState()
	if err != nil {
		return nil, err
	}
	return &cluster{dirs: d, state: s, progress: &progress{out: stderr}, changed: func(string, string) {}}, nil
}

// lockedCluster opens the existing sandbox and prevents other commands from changing it until
// unlock.
func (f flags) lockedCluster(stderr io.Writer) (c *cluster, unlock func(), err error) {
	if err := mustBeRoot(); err != nil {
		return nil, nil, err
	}
	c, err = f.cluster(stderr)
	if err != nil {
		return nil, nil, err
	}
	unlock, err = c.lock()
	return c, unlock, err
}

// mustBeRoot fails for other users: they cannot read the environment of the sandbox's processes.
func mustBeRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("the sandbox's processes belong to root: run this with sudo")
	}
	return nil
}

func rootCommand() *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use:           "sandbox",
		Short:         "A real Kubernetes and Tekton cluster on one Linux machine",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.TraverseChildren = true // kubectl parses its own flags; --state comes before it
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&f.stateDir, "state", defaultStateDir, "directory of the running cluster")
	root.PersistentFlags().StringVar(&f.cacheDir, "cache", defaultCacheDir(),
		"directory of built binaries and images; down keeps it")
	root.AddCommand(
		upCommand(&f), downCommand(&f), statusCommand(&f), kubeconfigCommand(&f), loadCommand(&f), logsCommand(&f),
		kubectlCommand(&f), faultCommand(&f), preflightCommand(&f), buildCommand(&f), conformanceCommand(&f),
		nodeInitCommand(), holdCommand(), spawnCommand(), keepCommand(), balancerCommand(), faultHoldCommand(),
	)
	return root
}

// defaultCacheDir is empty if there is no home directory.
func defaultCacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "checkplan-sandbox")
}

// wanted is the cluster that the flags describe.
type wanted struct {
	plan         plan
	asked        bool     // whether a flag for the plan is set
	serviceProxy string   // empty: no flag is set
	with         []string // names of addons
}

// wantedFlags adds the flags of a cluster to a verb. The returned function reads them.
func wantedFlags(cmd *cobra.Command) func() (wanted, error) {
	var controlPlanes, workers, zones int
	var ipFamily, serviceProxy string
	var workerNames, with []string
	cmd.Flags().IntVar(&controlPlanes, "control-planes", 1,
		"number of control planes, each with an etcd member and an API server")
	cmd.Flags().IntVar(&workers, "nodes", 3, "number of workers, without the control planes")
	cmd.Flags().StringSliceVar(&workerNames, "worker-names", nil,
		"names of the first workers; also sets the number of workers if --nodes is not set; others are worker-N")
	cmd.Flags().IntVar(&zones, "zones", 2, "number of zones of the workers")
	cmd.Flags().StringVar(&ipFamily, "ip-family", "dual", "dual (IPv4 first), ipv4 or ipv6")
	cmd.Flags().StringVar(&serviceProxy, "service-proxy", serviceProxies()[0],
		"what programs Services: "+strings.Join(serviceProxies(), ", ")+"; that of a running cluster is replaced")
	cmd.Flags().StringSliceVar(&with, "with", nil,
		"also install these addons: "+strings.Join(addonNames(), ", ")+"; installed addons stay")
	return func() (wanted, error) {
		if len(workerNames) > 0 && !cmd.Flags().Changed("nodes") {
			workers = len(workerNames)
		}
		want, err := newPlan(controlPlanes, workers, zones, ipFamily, workerNames...)
		if err := errors.Join(err, checkServiceProxy(serviceProxy), checkAddons(with)); err != nil {
			return wanted{}, usageError{err}
		}
		if !cmd.Flags().Changed("service-proxy") {
			serviceProxy = ""
		}
		planFlags := []string{"control-planes", "nodes", "worker-names", "zones", "ip-family"}
		asked := slices.ContainsFunc(planFlags, cmd.Flags().Changed)
		return wanted{want, asked, serviceProxy, with}, nil
	}
}

func upCommand(f *flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster, or start what does not run in it",
		Args:  usage(cobra.NoArgs),
	}
	read := wantedFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		want, err := read()
		if err != nil {
			return err
		}
		return up(cmd.Context(), *f, want, cmd.ErrOrStderr())
	}
	return cmd
}

// up creates the cluster of a plan and installs its addons. If flags set the plan, an existing
// cluster must have the same plan.
func up(ctx context.Context, f flags, want wanted, stderr io.Writer) error {
	start := time.Now()
	d, err := f.dirs()
	if err != nil {
		return err
	}
	b, err := f.build()
	if err != nil {
		return err
	}
	if err := lacking(preflight(ctx, b, want)); err != nil {
		return err
	}
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()

	s, err := d.readState()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		missing, err := lackingInotify(want.plan, want.with)
		if err := errors.Join(err, lacking(missing)); err != nil {
			return err
		}
		s = state{plan: want.plan, BinDir: b.bin(), ServiceProxy: serviceProxies()[0]}
	case err != nil:
		return err
	case want.asked && !samePlan(s.plan, want.plan):
		return usageError{fmt.Errorf("the sandbox in %s has the nodes %s and IP family %s: "+
			"run `sandbox down` before you create another",
			d.state, strings.Join(s.names(), ", "), s.Family)}
	case s.BinDir != b.bin():
		fmt.Fprintf(stderr, "the running sandbox continues to use its binaries in %s\n", s.BinDir)
		b = build{dir: filepath.Dir(s.BinDir)}
	}

	s.ServiceProxy = cmp.Or(want.serviceProxy, s.ServiceProxy)
	for _, name := range want.with {
		if !slices.Contains(s.With, name) {
			s.With = append(s.With, name)
		}
	}
	slices.Sort(s.With)

	var changed atomic.Int64
	c := &cluster{
		dirs: d, state: s, progress: &progress{out: stderr},
		changed: func(string, string) { changed.Add(1) },
	}
	if !b.complete() {
		name := "build Kubernetes " + kubernetesVersion + ", Tekton " + tektonVersion + " and CoreDNS " + corednsVersion
		err := c.progress.step(name,
			func(detail func(string)) error { return b.run(ctx, detail) })
		if err != nil {
			return err
		}
		for _, other := range otherBuilds(f.cacheDir, b) {
			fmt.Fprintf(stderr, "an older build is in %s: you can remove it\n", other)
		}
	}
	for _, name := range s.With {
		if b.hasAddon(name) {
			continue
		}
		err := c.progress.step("build "+name, func(detail func(string)) error { return b.runAddon(ctx, name, detail) })
		if err != nil {
			return err
		}
		for _, other := range b.otherAddons(name) {
			fmt.Fprintf(stderr, "an older build is in %s: you can remove it\n", other)
		}
	}
	if c.APIPort == 0 { // after the builds: a port that is free before may be in use then
		if c.APIPort, err = freePort(d.state == defaultStateDir); err != nil {
			return err
		}
	}
	if err := d.writeState(c.state); err != nil {
		return fmt.Errorf("write the sandbox's state: %w", err)
	}
	if err := c.up(ctx, b); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted: run `sandbox up` to continue, or `sandbox down` to remove everything")
		}
		return err
	}
	what := "up"
	if changed.Load() == 0 {
		what = "up already"
	}
	fmt.Fprintf(stderr, "sandbox %s in %.0fs: %d nodes, Kubernetes %s, Tekton %s\nexport KUBECONFIG=%s\n",
		what, time.Since(start).Seconds(), len(c.Nodes), kubernetesVersion, tektonVersion, d.kubeconfig())
	return nil
}

func samePlan(a, b plan) bool {
	return a.Family == b.Family && slices.EqualFunc(a.Nodes, b.Nodes, func(a, b nodePlan) bool {
		return a.Name == b.Name && a.Zone == b.Zone
	})
}

// freePort returns a port on which the host can reach the API server: the preferred port if it is
// free, otherwise any port. Only one sandbox may use the preferred port: two that start at the same
// time would both find it free.
func freePort(preferred bool) (int, error) {
	var l net.Listener
	err := errors.New("any port is wanted")
	if preferred {
		l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", preferredAPIPort))
	}
	if err != nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close() // only the number is needed
	return l.Addr().(*net.TCPAddr).Port, nil
}

func downCommand(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster and remove everything of it, in every state",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := f.dirs()
			if err != nil {
				return err
			}
			if err := mustBeRoot(); err != nil {
				return err
			}
			if entries, err := os.ReadDir(d.state); err == nil && len(entries) > 0 {
				if _, err := os.Stat(d.file("nodes")); err != nil {
					if _, err := os.Stat(d.file("state.json")); err != nil {
						return usageError{fmt.Errorf("%s is not the directory of a sandbox: not removed", d.state)}
					}
				}
			}
			unlock, err := d.lock()
			if err != nil {
				return err
			}
			defer unlock()
			p := &progress{out: cmd.ErrOrStderr()}
			if err := p.step("stop the sandbox", d.down); err != nil {
				return err
			}
			p.printf("sandbox down: everything is removed")
			return nil
		},
	}
}

func kubeconfigCommand(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the cluster's kubeconfig file",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.cluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), c.kubeconfig())
			return nil
		},
	}
}

func kubectlCommand(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl ARGS...",
		Short:              "Run kubectl, in the cluster's version, on the cluster",
		DisableFlagParsing: true, // all flags are kubectl's
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.cluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			kubectl := filepath.Join(c.BinDir, "kubectl")
			env := append(os.Environ(), "KUBECONFIG="+c.kubeconfig())
			if err := syscall.Exec(kubectl, append([]string{"kubectl"}, args...), env); err != nil {
				return fmt.Errorf("run %s: %w", kubectl, err)
			}
			return nil
		},
	}
}

func loadCommand(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "load ARCHIVE...",
		Short: "Import image archives (of docker save, or OCI layouts) into every node",
		Args:  usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := mustBeRoot(); err != nil {
				return err
			}
			c, err := f.cluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, a := range args {
				if _, err := os.Stat(a); err != nil {
					return usageError{fmt.Errorf("load images: %w", err)}
				}
			}
			return c.progress.step("load images on every node", func(func(string)) error {
				g, ctx := errgroup.WithContext(cmd.Context())
				for _, n := range c.Nodes {
					g.Go(func() error {
						if pid, err := c.find(n.Name, "containerd"); err != nil {
							return err
						} else if pid == 0 {
							return fmt.Errorf("load images on node %s: containerd does not run: run `sandbox up` to start it", n.Name)
						}
						for _, a := range args {
							if err := c.load(ctx, n, a); err != nil {
								return err
							}
						}
						return nil
					})
				}
				return g.Wait()
			})
		},
	}
}

func logsCommand(f *flags) *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "logs COMPONENT",
		Short: "Print the log of a component, or of a Deployment's pods, from every node that has it",
		Args:  usage(cobra.ExactArgs(1)),
	}
	cmd.Flags().StringVar(&node, "node", "*", "only of this node")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := f.dirs()
		if err != nil {
			return err
		}
		found, err := filepath.Glob(d.log(node, args[0]))
		if err != nil {
			return usageError{fmt.Errorf("find logs of %q: %w", args[0], err)}
		}
		found = append(found, d.podLogs(node, args[0])...)
		if len(found) == 0 {
			all, _ := filepath.Glob(d.log("*", "*")) // Glob fails only for malformed patterns
			names := []string{}
			for _, a := range all {
				names = append(names, strings.TrimSuffix(filepath.Base(a), ".log"))
			}
			names = append(names, staticComponents()...)
			for _, deployment := range systemDeployments(addonNames()) {
				names = append(names, deployment[1])
			}
			slices.Sort(names)
			return usageError{fmt.Errorf("no log of %q: want one of %s",
				args[0], strings.Join(slices.Compact(names), ", "))}
		}
		for _, name := range found {
			fmt.Fprintf(cmd.ErrOrStderr(), "==> %s\n", name)
			log, err := os.Open(name)
			if err != nil {
				return fmt.Errorf("read a log: %w", err)
			}
			_, err = io.Copy(cmd.OutOrStdout(), log)
			_ = log.Close() // read only
			if err != nil {
				return fmt.Errorf("print %s: %w", name, err)
			}
		}
		return nil
	}
	return cmd
}

func preflightCommand(f *flags) *cobra.Command {
	var doInstall bool
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "List everything that this machine lacks for `up` with the same flags",
		Args:  usage(cobra.NoArgs),
	}
	read := wantedFlags(cmd)
	cmd.Flags().BoolVar(&doInstall, "install", false, "install the missing Debian packages with apt-get; needs root")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		want, err := read()
		if err != nil {
			return err
		}
		b, err := f.build()
		if err != nil {
			return err
		}
		missing := preflight(cmd.Context(), b, want)
		if doInstall {
			if err := install(cmd.Context(), packagesOf(missing), cmd.ErrOrStderr()); err != nil {
				return err
			}
			missing = preflight(cmd.Context(), b, want)
		}
		return lacking(missing)
	}
	return cmd
}

func buildCommand(f *flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build what up would build, and print the directory of the binaries",
		Args:  usage(cobra.NoArgs),
	}
	var with []string
	cmd.Flags().StringSliceVar(&with, "with", nil, "also build these addons: "+strings.Join(addonNames(), ", "))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkAddons(with); err != nil {
			return usageError{err}
		}
		b, err := f.build()
		if err != nil {
			return err
		}
		p := &progress{out: cmd.ErrOrStderr()}
		err = p.step("build Kubernetes, Tekton and CoreDNS", func(detail func(string)) error {
			return b.run(cmd.Context(), detail)
		})
		if err != nil {
			return err
		}
		for _, name := range with {
			err := p.step("build "+name, func(detail func(string)) error { return b.runAddon(cmd.Context(), name, detail) })
			if err != nil {
				return err
			}
		}
		fmt.Fprintln(cmd.OutOrStdout(), b.bin())
		return nil
	}
	return cmd
}

func statusCommand(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what runs; fails if something does not run that should",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := mustBeRoot(); err != nil {
				return err
			}
			c, err := f.cluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return c.status(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

// componentsOf lists the components that should run on a node.
func (c *cluster) componentsOf(n nodePlan) []string {
	names := []string{"init", "containerd", "kubelet"}
	for _, comp := range c.proxyComponents(c.plan, n, c.ServiceProxy) {
		names = append(names, comp.name)
	}
	if n.ControlPlane {
		names = append(names, staticComponents()...)
	}
	if n.Name == c.Nodes[0].Name {
		names = append(names, "kube-controller-manager", "kube-scheduler", balancerName)
	}
	return names
}

func (c *cluster) status(ctx context.Context, out io.Writer) error {
	running, err := c.components()
	if err != nil {
		return err
	}
	api, err := newClient(c.kubeconfig())
	if err != nil {
		return err
	}
	down := 0
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tZONE\tADDRESSES\tREADY\tNOT RUNNING")
	for _, n := range c.Nodes {
		var missing []string
		for _, name := range c.componentsOf(n) {
			if !slices.ContainsFunc(running, func(p process) bool { return p.Node == n.Name && p.Component == name }) {
				missing = append(missing, name)
			}
		}
		ready := "yes"
		if err := api.nodeReady(ctx, n.Name, time.Time{}); err != nil {
			ready = "no: " + err.Error()
			down++
		}
		down += len(missing)
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n",
			n.Name, orDash(n.Zone), joined(n.IPs), ready, orDash(strings.Join(missing, ",")))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("print the status: %w", err)
	}
	for _, d := range systemDeployments(c.With) {
		condition := "Ready"
		if err := api.deploymentReady(ctx, d[0], d[1]); err != nil {
			condition = err.Error()
			down++
		}
		fmt.Fprintf(out, "%s/%s: %s\n", d[0], d[1], condition)
	}
	fmt.Fprintf(out, "KUBECONFIG=%s\n", c.kubeconfig())
	if down > 0 {
		return errors.New("not everything runs: see `sandbox logs COMPONENT`, run `sandbox up` to repair")
	}
	return nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// The sandbox itself runs the verbs below, in the namespaces of nodes.

func nodeInitCommand() *cobra.Command {
	var d dirs
	var node string
	var keep []string
	cmd := &cobra.Command{
		Use: "node-init", Hidden: true, Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return nodeInit(cmd.Context(), d, node, keep, os.NewFile(3, "ready"))
		},
	}
	cmd.Flags().StringVar(&d.state, "state", "", "")
	cmd.Flags().StringVar(&node, "node", "", "")
	cmd.Flags().StringArrayVar(&keep, "keep", nil, "")
	return cmd
}

// holdCommand is the first process of the network between nodes. It only keeps the namespace open.
func holdCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: "hold", Hidden: true, Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ready := os.NewFile(3, "ready")
			if _, err := io.WriteString(ready, "ok"); err != nil {
				return fmt.Errorf("report readiness: %w", err)
			}
			_ = ready.Close() // the reader has what was written
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "")
	return cmd
}

func spawnCommand() *cobra.Command {
	return &cobra.Command{
		Use: "spawn", Hidden: true, Args: usage(cobra.MinimumNArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error { return spawn(args) },
	}
}

func keepCommand() *cobra.Command {
	return &cobra.Command{
		Use: "keep", Hidden: true, Args: usage(cobra.MinimumNArgs(1)),
		Run: func(cmd *cobra.Command, args []string) { keep(cmd.Context(), args, restartDelay, os.Stderr) },
	}
}

// balancerCommand runs in the fabric's namespace. File descriptor 3 is a listener on the host.
func balancerCommand() *cobra.Command {
	var netns, ca string
	var listen, backends []string
	cmd := &cobra.Command{
		Use: balancerName, Hidden: true, Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			pem, err := os.ReadFile(ca)
			if err != nil {
				return fmt.Errorf("read the certificate authority: %w", err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(pem)
			host, err := net.FileListener(os.NewFile(3, "host"))
			if err != nil {
				return fmt.Errorf("listen on the host: %w", err)
			}
			listeners := []net.Listener{host}
			for _, address := range listen {
				l, err := net.Listen("tcp", address)
				if err != nil {
					return fmt.Errorf("listen for clients of the API servers: %w", err)
				}
				listeners = append(listeners, l)
			}
			return balance(cmd.Context(), listeners, backends, roots, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&netns, "netns", "", "") // not used here; startBalancer reads it in the command line
	cmd.Flags().StringVar(&ca, "ca", "", "")
	cmd.Flags().StringArrayVar(&listen, "listen", nil, "")
	cmd.Flags().StringArrayVar(&backends, "backend", nil, "")
	return cmd
}
