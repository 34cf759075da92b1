// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
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

// componentFault is a fault of a node's components or of pods. Package fault has the faults of
// packets.
type componentFault struct {
	Node string `json:"node,omitempty"` // empty: pods of all nodes, only with Silent
	// Stopped is the component that the fault stops; see stoppable.
	Stopped string `json:"stopped,omitempty"`
	// ServiceRules deletes all rules of the stopped service proxy too. They stay deleted only while
	// it is stopped.
	ServiceRules bool `json:"serviceRules,omitempty"`
	// Service, Endpoint and Added are changes of rules while the service proxy runs on: see ruleEdit. Each is an address
	// and a TCP port, such as 10.96.0.10:53. kube-proxy writes its own rules again when the Service changes, when it
	// starts, and once in an hour.
	Service  string `json:"service,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Added    string `json:"added,omitempty"`
	// Silent is the component of a static pod, or NAMESPACE/POD, whose processes are stopped with
	// SIGSTOP: the kernel accepts their connections, but no process answers.
	Silent string `json:"silent,omitempty"`
}

// id is the argument of `fault clear`. Each component of a node has at most one fault.
func (f componentFault) id() string {
	switch {
	case f.Silent != "":
		return strings.TrimSuffix("silence/"+f.Silent+"/"+f.Node, "/")
	case f.edits():
		return "service-rule/" + cmp.Or(f.Added, f.Endpoint, f.Service) + "/" + f.Node
	}
	return f.Stopped + "/" + f.Node
}

// edits reports whether the fault changes rules of a service proxy that runs.
func (f componentFault) edits() bool { return f.Service != "" || f.Endpoint != "" }

// edit returns the change of rules.
func (f componentFault) edit() (e ruleEdit, err error) {
	var errs []error
	for _, of := range []struct {
		flag, text string
		to         *netip.AddrPort
	}{{"service", f.Service, &e.service}, {"endpoint", f.Endpoint, &e.endpoint}, {"address", f.Added, &e.added}} {
		if of.text == "" {
			continue
		}
		if *of.to, err = netip.ParseAddrPort(of.text); err != nil {
			errs = append(errs, fmt.Errorf("--%s %q: must be IP:PORT, such as 10.96.0.10:53 or [fd00:96::a]:53",
				of.flag, of.text))
		}
	}
	if len(errs) == 0 && e.added.IsValid() && e.added.Addr().Is6() != e.service.Addr().Is6() {
		errs = append(errs, fmt.Errorf("--address %s and --service %s: must be of one IP family", f.Added, f.Service))
	}
	return e, errors.Join(errs...)
}

// String returns the arguments of `fault add` that make the fault.
func (f componentFault) String() string {
	what := "stop " + f.Stopped
	switch {
	case f.Added != "":
		return "add-service-rule --service " + f.Service + " --address " + f.Added + " --node " + f.Node
	case f.Service != "":
		return "delete-service-rules --service " + f.Service + " --node " + f.Node
	case f.Endpoint != "":
		return "delete-service-rules --endpoint " + f.Endpoint + " --node " + f.Node
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
func stoppable(s state) []string {
	names := []string{"kubelet"}
	for _, comp := range (dirs{}).proxyComponents(s.plan, s.Nodes[0], s.ServiceProxy) {
		names = append(names, comp.name)
	}
	return append(names, staticComponents()...)
}

const componentFaultUsage = `stop COMPONENT --node NODE            stop kubelet, kube-proxy, etcd or kube-apiserver of NODE
restart COMPONENT --node NODE [--for D]
                                      stop it, wait for D (5s), start it again, and print
                                      when it was down, up and ready; no clear is needed
silence COMPONENT --node NODE         etcd or kube-apiserver of NODE accepts connections,
                                      but does not answer
silence NAMESPACE/POD [--node NODE]   the same for pods of this name or of this Deployment,
                                      on NODE or on all nodes
delete-service-rules --node NODE      stop kube-proxy, or what NODE has instead, and delete
                                      all its rules
delete-service-rules --node NODE --service IP:PORT
                                      delete the rules of one TCP port of a cluster IP;
                                      kube-proxy runs on, and does not notice
delete-service-rules --node NODE --endpoint IP:PORT
                                      delete the rules that send connections to one TCP
                                      endpoint of Services
add-service-rule --node NODE --service IP:PORT --address IP:PORT
                                      send connections to another address, too, where
                                      those to one TCP port of a cluster IP go
`

// isComponentFault reports whether arguments are those of a fault in this file, not in package
// fault.
func isComponentFault(args []string) bool {
	return len(args) > 0 &&
		slices.Contains([]string{"stop", "restart", "silence", "delete-service-rules", "add-service-rule"}, args[0])
}

// parseComponentFault parses the arguments of `fault add`. The error lists every problem. restart
// is how long the component stays down, nil if the fault stays until it is cleared.
func parseComponentFault(s state, args []string) (f componentFault, restart *time.Duration, err error) {
	kind, args := args[0], args[1:]
	var errs []error
	var what string
	if !strings.Contains(kind, "-service-rule") && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		what, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("fault", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&f.Node, "node", "", "")
	var names []string
	static := false // runs on control planes only
	for _, n := range s.Nodes {
		names = append(names, n.Name)
	}
	pods := false
	switch kind {
	case "stop", "restart":
		f.Stopped, static = what, slices.Contains(staticComponents(), what)
		if names := stoppable(s); !slices.Contains(names, what) {
			errs = append(errs, fmt.Errorf("%s %q: must be one of %s", kind, what, strings.Join(names, ", ")))
		}
		if kind == "restart" {
			restart = flags.Duration("for", 5*time.Second, "")
		}
	case "silence":
		f.Silent = what
		namespace, pod, isPod := strings.Cut(what, "/")
		pods, static = isPod, !isPod
		badPod := namespace == "" || pod == "" || strings.ContainsAny(what, "*?[_ \\") || strings.Contains(pod, "/")
		if isPod && badPod || !isPod && !slices.Contains(staticComponents(), what) {
			errs = append(errs,
				fmt.Errorf("silence %q: must be one of %s, or NAMESPACE/POD", what, strings.Join(staticComponents(), ", ")))
		}
	case "add-service-rule":
		flags.StringVar(&f.Service, "service", "", "")
		flags.StringVar(&f.Added, "address", "", "")
	default:
		flags.StringVar(&f.Service, "service", "", "")
		flags.StringVar(&f.Endpoint, "endpoint", "", "")
	}
	if err := flags.Parse(args); err != nil {
		return componentFault{}, nil, errors.Join(append(errs, err)...)
	}
	switch {
	case kind == "add-service-rule" && (f.Service == "" || f.Added == ""):
		errs = append(errs, errors.New("want --service IP:PORT and --address IP:PORT"))
	case f.Service != "" && f.Endpoint != "":
		errs = append(errs, errors.New("want one of --service and --endpoint"))
	case kind == "delete-service-rules" && !f.edits():
		f.Stopped, f.ServiceRules = proxyOf(s.ServiceProxy), true
	}
	if _, err := f.edit(); err != nil {
		errs = append(errs, err)
	}
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	if restart != nil && *restart < 0 {
		errs = append(errs, fmt.Errorf("--for %s: must not be negative", *restart))
	}
	if static {
		names = nil
		for _, n := range s.controlPlanes() {
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

// componentFaults returns the active faults of components, in the order in which they were added.
func (d dirs) componentFaults() ([]componentFault, error) {
	b, err := os.ReadFile(d.componentFaultsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the active faults: %w", err)
	}
	var faults []componentFault
	if err := json.Unmarshal(b, &faults); err != nil {
		return nil, fmt.Errorf("read the active faults: %w", err)
	}
	return faults, nil
}

func (d dirs) writeComponentFaults(faults []componentFault) error {
	b, err := json.MarshalIndent(faults, "", "  ")
	if err != nil {
		return fmt.Errorf("write the active faults: %w", err)
	}
	if err := writeFile(d.componentFaultsFile(), append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the active faults: %w", err)
	}
	return nil
}

// stoppedByFault reports whether a fault stops a component.
func (d dirs) stoppedByFault(node, comp string) (bool, error) {
	faults, err := d.componentFaults()
	return slices.ContainsFunc(faults, func(f componentFault) bool {
		return f.Node == node && f.Stopped == comp
	}), err
}

// node returns a node of the plan.
func (c *cluster) node(name string) (nodePlan, error) {
	i := slices.IndexFunc(c.Nodes, func(n nodePlan) bool { return n.Name == name })
	if i < 0 {
		return nodePlan{}, fmt.Errorf("unknown node %s: want one of %s", name, strings.Join(c.names(), ", "))
	}
	return c.Nodes[i], nil
}

// addComponentFault records the fault before it acts: `up` then does not repair it, and `clear`
// finds it also after an interruption.
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
	case f.edits():
		e, err := f.edit()
		if err == nil {
			err = c.editRules(ctx, f.Node, ruleSets()[c.ServiceProxy], e)
		}
		if err != nil {
			return errors.Join(err, c.writeComponentFaults(faults))
		}
		return nil
	case f.Silent != "":
		pids, err := c.processesOf(f)
		if err == nil && len(pids) == 0 {
			err = fmt.Errorf("%s: no such process runs: see `sandbox status`", f)
		}
		if err == nil {
			err = signalAll(pids, syscall.SIGSTOP)
		}
		if err != nil {
			return errors.Join(err, c.writeComponentFaults(faults))
		}
		c.progress.printf("%s: %d processes stopped since %s", f, len(pids), timestamp(time.Now()))
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
	return c.editRules(ctx, f.Node, ruleSets()[c.ServiceProxy], ruleEdit{})
}

// clearComponentFaults clears the faults with these IDs, or all faults without IDs: it starts what
// they stopped. A service proxy writes its rules again when it starts.
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

// endComponentFault starts or continues what a fault stopped. It has no effect on processes that
// started after the fault.
func (c *cluster) endComponentFault(ctx context.Context, f componentFault) error {
	if f.Silent != "" {
		pids, err := c.processesOf(f)
		if err != nil {
			return err
		}
		if err := signalAll(pids, syscall.SIGCONT); err != nil {
			return err
		}
		c.progress.printf("%s: %d processes continue since %s", f, len(pids), timestamp(time.Now()))
		return nil
	}
	n, err := c.node(f.Node)
	if err != nil {
		return fmt.Errorf("clear fault %s: %w", f, err)
	}
	stopped := f.Stopped
	if f.edits() { // when it starts, a service proxy writes all rules
		stopped = proxyOf(c.ServiceProxy)
		if err := c.dirs.stop(f.Node, stopped); err != nil {
			return fmt.Errorf("clear fault %s: %w", f, err)
		}
	}
	if f.Endpoint != "" { // but not those of an endpoint: kube-proxy in its mode nftables keeps the chains that it finds
		if err := c.editRules(ctx, f.Node, ruleSets()[c.ServiceProxy], ruleEdit{}); err != nil {
			return fmt.Errorf("clear fault %s: %w", f, err)
		}
	}
	for _, comp := range append(c.proxyComponents(c.plan, n, c.ServiceProxy), c.kubelet(n)) {
		if comp.name == stopped {
			return c.startOn(ctx, n, comp)
		}
	}
	return c.startStaticPod(ctx, n, f.Stopped)
}

// processesOf returns the processes that a fault silences.
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
	// pods-log/NAMESPACE_POD_UID is the layout of the kubelet. Do not ask the API server: it may be silent too.
	var uids []string
	for _, name := range []string{pod, pod + "-*"} {
		// Glob fails only for malformed patterns.
		found, _ := filepath.Glob(c.file("nodes", node, "pods-log", namespace+"_"+name+"_*"))
		for _, dir := range found {
			uids = append(uids, dir[strings.LastIndex(dir, "_")+1:])
		}
	}
	return processesOfPods(uids)
}

// processesOfPods returns the processes of the pods with these UIDs.
func processesOfPods(uids []string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if uid, err := podUID(pid); err == nil && slices.Contains(uids, uid) {
			found = append(found, pid)
		}
	}
	return found, nil
}

// podUID returns the UID of the pod of a process. Every container mounts a file of the pod's directory at
// /dev/termination-log: .../pods/UID/containers/...
func podUID(pid int) (string, error) {
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return "", fmt.Errorf("process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line) // proc_pid_mountinfo(5): 3 is the root of the mount, 4 the mount point
		if len(fields) > 4 && fields[4] == "/dev/termination-log" {
			dir, _, _ := strings.Cut(fields[3], "/containers/")
			return filepath.Base(dir), nil
		}
	}
	return "", fmt.Errorf("process %d does not belong to a pod", pid)
}

func signalAll(pids []int, signal syscall.Signal) error {
	var errs []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, signal); err != nil {
			errs = append(errs, fmt.Errorf("send signal %s to process %d: %w", signal, pid, err))
		}
	}
	return errors.Join(errs...)
}

// timestamp formats times for output. Tests compare them with the times that they record.
func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// restart stops a component for a time and starts it again. If it is interrupted, the fault stays
// and can be cleared.
func (c *cluster) restart(ctx context.Context, f componentFault, down time.Duration) error {
	if err := c.addComponentFault(ctx, f); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("interrupted: the fault stays: run `sandbox fault clear %s`", f.id())
	case <-time.After(down):
	}
	_, err := c.clearComponentFaults(ctx, f.id())
	return err
}

// faultNodes returns the nodes for package fault, and also the balancer, which has addresses of its
// own, and the additional networks.
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
		Short: "Add a fault and print its ID; other faults stay",
		Long: "Add a fault and print its ID; other faults stay.\n\n" + componentFaultUsage + "\n" + fault.Usage +
			"\nThe nodes are those of `sandbox status`, and " + balancerName + ", the control plane's endpoint;\n" +
			"networks are those of `sandbox up --with multus`: br10, br20.\n",
		DisableFlagParsing: true, // each kind has its own flags
		RunE: func(cmd *cobra.Command, args []string) error {
			var packets fault.Fault
			if !isComponentFault(args) {
				var err error
				if packets, err = fault.Parse(args); errors.Is(err, flag.ErrHelp) {
					return cmd.Help()
				} else if err != nil {
					return usageError{fmt.Errorf("%w\nrun `sandbox fault add --help` for the kinds of faults", err)}
				}
			}
			c, unlock, err := f.lockedCluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer unlock()
			if isComponentFault(args) {
				added, restart, err := parseComponentFault(c.state, args)
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
			// The process of a delay inherits the mark: `sandbox down` finds it by the mark.
			if err := os.Setenv(markVariable, c.mark(fabric, fault.HoldVerb)); err != nil {
				return fmt.Errorf("set %s for the process of a delay: %w", markVariable, err)
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
		Short: "List the faults with ID, status and the arguments that add them",
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
		Short: "Clear these faults, or all, and print them",
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

// clearFaults clears all faults that it can and reports every problem. IDs of component faults
// contain a slash, IDs of packet faults are numbers.
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

// faultHoldCommand runs the process of a delay.
func faultHoldCommand() *cobra.Command {
	return &cobra.Command{
		Use: fault.HoldVerb, Hidden: true, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return fault.Hold(cmd.Context(), args, os.Stdin, os.Stdout)
		},
	}
}
