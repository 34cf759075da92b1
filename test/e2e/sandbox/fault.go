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
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/test/e2e/sandbox/fault"
)

// componentFault is a fault of a node's own components. Faults of packets are
// those of package fault.
type componentFault struct {
	Node string `json:"node"`
	// Stopped is the component that does not run: kubelet or kube-proxy.
	Stopped string `json:"stopped"`
	// ServiceRules says that kube-proxy's nftables are deleted too; they stay so
	// only while kube-proxy is stopped.
	ServiceRules bool `json:"serviceRules,omitempty"`
}

// id names the fault for `fault clear`. There is one of each component and node.
func (f componentFault) id() string { return f.Stopped + "/" + f.Node }

// String is the arguments of `fault add` that make the fault.
func (f componentFault) String() string {
	if f.ServiceRules {
		return "delete-service-rules --node " + f.Node
	}
	return "stop " + f.Stopped + " --node " + f.Node
}

// stoppable lists the components that a fault can stop.
func stoppable() []string { return []string{"kubelet", "kube-proxy"} }

const componentFaultUsage = `stop kubelet|kube-proxy --node NODE   the component of NODE does not run
delete-service-rules --node NODE      kube-proxy of NODE is stopped and its nftables are deleted
`

// isComponentFault tells the arguments of this file's faults from package fault's.
func isComponentFault(args []string) bool {
	return len(args) > 0 && (args[0] == "stop" || args[0] == "delete-service-rules")
}

// parseComponentFault reads the arguments of `fault add`, naming every problem.
func parseComponentFault(p plan, args []string) (componentFault, error) {
	f := componentFault{Stopped: "kube-proxy", ServiceRules: true}
	kind, args := args[0], args[1:]
	var errs []error
	if kind == "stop" {
		f = componentFault{}
		if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
			f.Stopped, args = args[0], args[1:]
		}
		if !slices.Contains(stoppable(), f.Stopped) {
			errs = append(errs, fmt.Errorf("stop %q: must be %s", f.Stopped, strings.Join(stoppable(), " or ")))
		}
	}
	flags := flag.NewFlagSet("fault", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&f.Node, "node", "", "")
	if err := flags.Parse(args); err != nil {
		return componentFault{}, errors.Join(append(errs, err)...)
	}
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	var names []string
	for _, n := range p.Nodes {
		names = append(names, n.Name)
	}
	if !slices.Contains(names, f.Node) {
		errs = append(errs, fmt.Errorf("--node %q: must be one of %s", f.Node, strings.Join(names, ", ")))
	}
	if len(errs) > 0 {
		return componentFault{}, errors.Join(errs...)
	}
	return f, nil
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
		i := slices.IndexFunc(c.Nodes, func(n nodePlan) bool { return n.Name == f.Node })
		if i < 0 {
			errs = append(errs, fmt.Errorf("clearing a fault of %s: there is no such node", f.Node))
			continue
		}
		comp := c.kubelet(c.Nodes[i])
		if f.Stopped == "kube-proxy" {
			comp = c.kubeProxy(c.Nodes[i])
		}
		errs = append(errs, c.start(ctx, f.Node, comp))
	}
	return cleared, errors.Join(errs...)
}

// faultNodes are the nodes as package fault knows them.
func (c *cluster) faultNodes() ([]fault.Node, error) {
	var nodes []fault.Node
	for _, n := range c.Nodes {
		pid, err := c.find(n.Name, "init")
		if err != nil {
			return nil, err
		}
		if pid == 0 {
			return nil, fmt.Errorf("%s does not run: run `sandbox up` to repair it", n.Name)
		}
		nodes = append(nodes, fault.Node{Name: n.Name, NetNS: netNS(pid), PodCIDRs: n.PodCIDRs, Uplink: "eth0"})
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
		Use:                "add KIND [FLAGS]",
		Short:              "Add one fault and print its id; those that are there stay",
		Long:               "Add one fault and print its id; those that are there stay.\n\n" + componentFaultUsage + "\n" + fault.Usage,
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
				added, err := parseComponentFault(c.plan, args)
				if err != nil {
					return usageError{err}
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
