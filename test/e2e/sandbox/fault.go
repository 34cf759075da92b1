// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/test/e2e/sandbox/fault"
)

// componentFault is a fault of a node's own components, or of pods. Faults of
// packets are those of package fault.
type componentFault struct {
	Node string `json:"node,omitempty"` // empty: silent pods of every node
	// Stopped is the component that does not run; see stoppable.
	Stopped string `json:"stopped,omitempty"`
	// ServiceRules says that kube-proxy's nftables are deleted too; they stay so
	// only while kube-proxy is stopped.
	ServiceRules bool `json:"serviceRules,omitempty"`
	// Silent is a static pod's component, or NAMESPACE/POD, whose processes are
	// held: the kernel accepts connections for them, and nobody answers.
	Silent string `json:"silent,omitempty"`
}

// id names the fault for `fault clear`. There is one of each component and node.
func (f componentFault) id() string {
	if f.Silent != "" {
		return strings.TrimSuffix("silence/"+f.Silent+"/"+f.Node, "/")
	}
	return f.Stopped + "/" + f.Node
}

// String is the arguments of `fault add` that make the fault.
func (f componentFault) String() string {
	what := "stop " + f.Stopped
	switch {
	case f.ServiceRules:
		what = "delete-service-rules"
	case f.Silent != "":
		what = "silence " + f.Silent
	}
	if f.Node == "" {
		return what
	}
	return what + " --node " + f.Node
}

// stoppable lists the components that a fault can stop.
func stoppable() []string { return append([]string{"kubelet", "kube-proxy"}, staticComponents()...) }

const componentFaultUsage = `stop COMPONENT --node NODE            kubelet, kube-proxy, etcd or kube-apiserver of NODE
                                      does not run
restart COMPONENT --node NODE [--for D]
                                      stop it, wait for D (5s), start it again, and print
                                      when it was down, up and ready; nothing to clear
silence COMPONENT --node NODE         etcd or kube-apiserver of NODE is held: connections
                                      are accepted, and nobody answers
silence NAMESPACE/POD [--node NODE]   so are the pods of this name, or of this Deployment,
                                      on NODE or on every node
delete-service-rules --node NODE      kube-proxy of NODE is stopped and its nftables are deleted
`

// isComponentFault tells the arguments of this file's faults from package fault's.
func isComponentFault(args []string) bool {
	return len(args) > 0 && slices.Contains([]string{"stop", "restart", "silence", "delete-service-rules"}, args[0])
}

// parseComponentFault reads the arguments of `fault add`, naming every problem.
// restart is how long the component is to be down, nil where the fault stays.
func parseComponentFault(p plan, args []string) (f componentFault, restart *time.Duration, err error) {
	kind, args := args[0], args[1:]
	var errs []error
	var what string
	if kind != "delete-service-rules" && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		what, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("fault", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&f.Node, "node", "", "")
	var names []string
	static := false // what runs on control planes only
	for _, n := range p.Nodes {
		names = append(names, n.Name)
	}
	pods := false
	switch kind {
	case "stop", "restart":
		f.Stopped, static = what, slices.Contains(staticComponents(), what)
		if !slices.Contains(stoppable(), what) {
			errs = append(errs, fmt.Errorf("%s %q: must be one of %s", kind, what, strings.Join(stoppable(), ", ")))
		}
		if kind == "restart" {
			restart = flags.Duration("for", 5*time.Second, "")
		}
	case "silence":
		f.Silent = what
		namespace, pod, isPod := strings.Cut(what, "/")
		pods, static = isPod, !isPod
		if isPod && (namespace == "" || pod == "" || strings.ContainsAny(what, "*?[_ \\") || strings.Contains(pod, "/")) ||
			!isPod && !slices.Contains(staticComponents(), what) {
			errs = append(errs, fmt.Errorf("silence %q: must be one of %s, or NAMESPACE/POD", what, strings.Join(staticComponents(), ", ")))
		}
	default:
		f.Stopped, f.ServiceRules = "kube-proxy", true
	}
	if err := flags.Parse(args); err != nil {
		return componentFault{}, nil, errors.Join(append(errs, err)...)
	}
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if restart != nil && *restart < 0 {
		errs = append(errs, fmt.Errorf("--for %s: must not be negative", *restart))
	}
	if static {
		names = nil
		for _, n := range p.controlPlanes() {
			names = append(names, n.Name)
		}
	}
	if !slices.Contains(names, f.Node) && (!pods || f.Node != "") {
		errs = append(errs, fmt.Errorf("--node %q: must be one of %s", f.Node, strings.Join(names, ", ")))
	}
	if len(errs) > 0 {
		return componentFault{}, nil, errors.Join(errs...)
	}
	return f, restart, nil
}

func (d dirs) componentFaultsFile() string { return d.file("faults", "components.json") }

// componentFaults lists the active faults of components, in the order in which
// they were added.
func (d dirs) componentFaults() ([]componentFault, error) {
	b, err := os.ReadFile(d.componentFaultsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the active faults: %w", err)
	}
	var faults []componentFault
	if err := json.Unmarshal(b, &faults); err != nil {
		return nil, fmt.Errorf("reading the active faults: %w", err)
	}
	return faults, nil
}

func (d dirs) writeComponentFaults(faults []componentFault) error {
	b, err := json.MarshalIndent(faults, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the active faults: %w", err)
	}
	if err := writeFile(d.componentFaultsFile(), append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the active faults: %w", err)
	}
	return nil
}

// stoppedByFault reports whether a component is meant not to run.
func (d dirs) stoppedByFault(node, comp string) (bool, error) {
	faults, err := d.componentFaults()
	return slices.ContainsFunc(faults, func(f componentFault) bool {
		return f.Node == node && f.Stopped == comp
	}), err
}

// node is a node of the plan.
func (c *cluster) node(name string) (nodePlan, error) {
	i := slices.IndexFunc(c.Nodes, func(n nodePlan) bool { return n.Name == name })
	if i < 0 {
		return nodePlan{}, fmt.Errorf("there is no node %s", name)
	}
	return c.Nodes[i], nil
}

// addComponentFault records the fault before it acts, so that `up` does not
// repair it and `clear` finds it whatever happens in between.
func (c *cluster) addComponentFault(ctx context.Context, f componentFault) error {
	faults, err := c.componentFaults()
	if err != nil {
		return err
	}
	faults = slices.DeleteFunc(faults, func(other componentFault) bool { return other.id() == f.id() })
	if err := c.writeComponentFaults(append(faults, f)); err != nil {
		return err
	}
	switch {
	case f.Silent != "":
		pids, err := c.processesOf(f)
		if err == nil && len(pids) == 0 {
			err = fmt.Errorf("%s: there is no such process", f)
		}
		if err == nil {
			err = signalAll(pids, syscall.SIGSTOP)
		}
		if err != nil {
			return errors.Join(err, c.writeComponentFaults(faults))
		}
		c.progress.printf("%s: %d processes held since %s", f, len(pids), timestamp(time.Now()))
		return nil
	case slices.Contains(staticComponents(), f.Stopped):
		return c.stopStaticPod(ctx, f.Node, f.Stopped)
	}
	if err := c.dirs.stop(f.Node, f.Stopped); err != nil {
		return err
	}
	if !f.ServiceRules {
		return nil
	}
	pid, err := c.find(f.Node, "init")
	if err != nil {
		return err
	}
	for _, family := range []string{"ip", "ip6"} {
		// Adding first makes deleting succeed where the family has no table.
		cmd := exec.CommandContext(ctx, "nsenter", "--net="+netNS(pid), "--", "nft",
			fmt.Sprintf("add table %[1]s kube-proxy; delete table %[1]s kube-proxy", family))
		cmd.Env = []string{"PATH=" + searchPath}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("deleting the service rules of %s: %w: %s", f.Node, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// clearComponentFaults starts again what these faults, or all if no id is given,
// have stopped. kube-proxy makes its rules anew when it starts.
func (c *cluster) clearComponentFaults(ctx context.Context, ids ...string) ([]componentFault, error) {
	faults, err := c.componentFaults()
	if err != nil {
		return nil, err
	}
	var keep, cleared []componentFault
	for _, f := range faults {
		if len(ids) == 0 || slices.Contains(ids, f.id()) {
			cleared = append(cleared, f)
		} else {
			keep = append(keep, f)
		}
	}
	if len(cleared) == 0 {
		return nil, nil
	}
	if err := c.writeComponentFaults(keep); err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range cleared {
		errs = append(errs, c.endComponentFault(ctx, f))
	}
	return cleared, errors.Join(errs...)
}

// endComponentFault starts again what a fault has stopped, or lets go what it
// holds. Processes that were started since the fault are none the worse for it.
func (c *cluster) endComponentFault(ctx context.Context, f componentFault) error {
	if f.Silent != "" {
		pids, err := c.processesOf(f)
		if err != nil {
			return err
		}
		if err := signalAll(pids, syscall.SIGCONT); err != nil {
			return err
		}
		c.progress.printf("%s: %d processes go on since %s", f, len(pids), timestamp(time.Now()))
		return nil
	}
	n, err := c.node(f.Node)
	if err != nil {
		return fmt.Errorf("clearing %s: %w", f, err)
	}
	switch f.Stopped {
	case "kubelet":
		return c.start(ctx, f.Node, c.kubelet(n))
	case "kube-proxy":
		return c.start(ctx, f.Node, c.kubeProxy(n))
	}
	return c.startStaticPod(ctx, n, f.Stopped)
}

// processesOf lists the processes that a fault keeps silent.
func (c *cluster) processesOf(f componentFault) ([]int, error) {
	namespace, pod, isPod := strings.Cut(f.Silent, "/")
	if !isPod {
		pid, err := c.find(f.Node, f.Silent)
		if err != nil || pid == 0 {
			return nil, err
		}
		return []int{pid}, nil
	}
	node := f.Node
	if node == "" {
		node = "*"
	}
	// POD-LOG/NAMESPACE_POD_UID and PODS/UID are the kubelet's layout. No API
	// server is asked: it may be silent too.
	var dirs []string
	for _, name := range []string{pod, pod + "-*"} {
		found, _ := filepath.Glob(c.file("nodes", node, "pods-log", namespace+"_"+name+"_*")) // the pattern is well-formed
		for _, dir := range found {
			uid := dir[strings.LastIndex(dir, "_")+1:]
			nodeDir := filepath.Dir(filepath.Dir(dir))
			dirs = append(dirs, filepath.Join("/nodes", filepath.Base(nodeDir), "kubelet", "pods", uid))
		}
	}
	return processesOfPods(dirs)
}

// processesOfPods lists the processes of the pods with these directories, the
// heads of whose paths depend on the file system.
func processesOfPods(dirs []string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir, err := podDirectory(pid)
		if err == nil && slices.ContainsFunc(dirs, func(d string) bool { return strings.HasSuffix(dir, d) }) {
			found = append(found, pid)
		}
	}
	return found, nil
}

// podDirectory is the kubelet's directory of the pod that a process is of, as
// the root of the file system has it. Every container of a pod has a mount of a
// file in it at /dev/termination-log.
func podDirectory(pid int) (string, error) {
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return "", fmt.Errorf("process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line) // proc_pid_mountinfo(5): 3 is the root of the mount, 4 its place
		if len(fields) > 4 && fields[4] == "/dev/termination-log" {
			dir, _, _ := strings.Cut(fields[3], "/containers/")
			return dir, nil
		}
	}
	return "", fmt.Errorf("process %d is of no pod", pid)
}

func signalAll(pids []int, signal syscall.Signal) error {
	var errs []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, signal); err != nil {
			errs = append(errs, fmt.Errorf("sending signal %s to process %d: %w", signal, pid, err))
		}
	}
	return errors.Join(errs...)
}

// timestamp is how times are printed: tests compare them with what they record.
func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// restart stops a component for a while and starts it again. Interrupted, it
// leaves a fault that can be cleared.
func (c *cluster) restart(ctx context.Context, f componentFault, down time.Duration) error {
	if err := c.addComponentFault(ctx, f); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("interrupted: %s stays until it is cleared", f.id())
	case <-time.After(down):
	}
	_, err := c.clearComponentFaults(ctx, f.id())
	return err
}

// faultNodes are the nodes as package fault knows them, the balancer, which is no
// node but has addresses of its own, and the further networks.
func (c *cluster) faultNodes() ([]fault.Node, error) {
	var nodes []fault.Node
	add := func(process, name, uplink string, ips []netip.Addr, pods []netip.Prefix) error {
		pid, err := c.find(process, "init")
		if err == nil && pid == 0 {
			err = fmt.Errorf("%s does not run: run `sandbox up` to repair it", process)
		}
		nodes = append(nodes, fault.Node{Name: name, NetNS: netNS(pid), PodCIDRs: pods, IPs: ips, Uplink: uplink})
		return err
	}
	for _, n := range c.Nodes {
		if err := add(n.Name, n.Name, "eth0", n.IPs, n.PodCIDRs); err != nil {
			return nil, err
		}
	}
	if err := add(fabric, balancerName, "br0", c.balancerIPs(), nil); err != nil {
		return nil, err
	}
	if !slices.Contains(c.With, "multus") {
		return nodes, nil
	}
	for _, network := range l2Networks() {
		if err := add(l2Fabric(network.name), network.name, "", nil, nil); err != nil {
			return nil, err
		}
		for _, n := range c.Nodes {
			if slices.Contains(c.l2NetworksOf(n), network) {
				nodes[len(nodes)-1].Ports = append(nodes[len(nodes)-1].Ports, n.Name)
			}
		}
	}
	return nodes, nil
}

func (d dirs) faultsDir() string { return d.file("faults") }

func faultCommand(f *flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "Add, list and clear faults of the network and of components",
		Args:  usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(faultAddCommand(f), faultListCommand(f), faultClearCommand(f))
	return cmd
}

func faultAddCommand(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "add KIND [FLAGS]",
		Short: "Add one fault and print its id; those that are there stay",
		Long: "Add one fault and print its id; those that are there stay.\n\n" + componentFaultUsage + "\n" + fault.Usage +
			"\nThe nodes are those of `sandbox status`, and " + balancerName + ", the control plane's endpoint;\nnetworks are those of `sandbox up --with multus`: br10, br20.\n",
		DisableFlagParsing: true, // each kind has its own flags
		RunE: func(cmd *cobra.Command, args []string) error {
			var packets fault.Fault
			if !isComponentFault(args) {
				var err error
				if packets, err = fault.Parse(args); errors.Is(err, flag.ErrHelp) {
					return cmd.Help()
				} else if err != nil {
					return usageError{fmt.Errorf("%w\n`sandbox fault add --help` lists them", err)}
				}
			}
			c, unlock, err := f.lockedCluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer unlock()
			if isComponentFault(args) {
				added, restart, err := parseComponentFault(c.plan, args)
				if err != nil {
					return usageError{err}
				}
				if restart != nil {
					return c.restart(cmd.Context(), added, *restart)
				}
				if err := c.addComponentFault(cmd.Context(), added); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), added.id())
				return nil
			}
			nodes, err := c.faultNodes()
			if err != nil {
				return err
			}
			// A delay's process inherits the mark, so that down finds it.
			if err := os.Setenv(markVariable, c.mark(fabric, fault.HoldVerb)); err != nil {
				return fmt.Errorf("marking the fault's process: %w", err)
			}
			id, err := fault.Add(cmd.Context(), c.faultsDir(), nodes, packets)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), id)
			return nil
		},
	}
}

func faultListCommand(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the faults, each with its id, its state and the arguments that add it",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.cluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			components, err := c.componentFaults()
			if err != nil {
				return err
			}
			packets, err := fault.List(c.faultsDir())
			if err != nil {
				return err
			}
			tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, active := range components {
				fmt.Fprintf(tw, "%s\t%s\t%s\n", active.id(), fault.Active, active)
			}
			for _, r := range packets {
				fmt.Fprintf(tw, "%s\t%s\t%s\n", r.ID, r.Status, r.Fault)
			}
			return tw.Flush()
		},
	}
}

func faultClearCommand(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "clear [ID...]",
		Short: "End these faults, or all of them, and print which",
		RunE: func(cmd *cobra.Command, ids []string) error {
			c, unlock, err := f.lockedCluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer unlock()
			return c.clearFaults(cmd.Context(), cmd.OutOrStdout(), ids)
		},
	}
}

// clearFaults clears what it can and reports every problem. Ids of components
// have a slash, ids of packet faults are numbers.
func (c *cluster) clearFaults(ctx context.Context, out io.Writer, ids []string) error {
	var componentIDs, packetIDs []string
	for _, id := range ids {
		if strings.Contains(id, "/") {
			componentIDs = append(componentIDs, id)
		} else {
			packetIDs = append(packetIDs, id)
		}
	}
	var errs []error
	if len(ids) == 0 || len(packetIDs) > 0 {
		nodes, err := c.faultNodes()
		if err != nil {
			return err
		}
		cleared, err := fault.Clear(ctx, c.faultsDir(), nodes, packetIDs...)
		for _, r := range cleared {
			fmt.Fprintln(out, r.ID, r.Fault)
		}
		errs = append(errs, err)
	}
	if len(ids) == 0 || len(componentIDs) > 0 {
		cleared, err := c.clearComponentFaults(ctx, componentIDs...)
		for _, f := range cleared {
			fmt.Fprintln(out, f.id(), f)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// faultHoldCommand is the process of a delay.
func faultHoldCommand() *cobra.Command {
	return &cobra.Command{
		Use: fault.HoldVerb, Hidden: true, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return fault.Hold(cmd.Context(), args, os.Stdin, os.Stdout)
		},
	}
}
