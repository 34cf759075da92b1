// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"
)

// l2Network is an additional network. Each node in it has a bridge with the network's name. The
// bridge's uplink leads to a bridge in the network's own namespace, which has no route out. Only
// what is connected to the network has addresses in it.
type l2Network struct {
	name   string
	uplink string // the link of the node's bridge to the other nodes
}

// l2NetworksOf returns the additional networks of a node. The last worker is not in br20.
func (p plan) l2NetworksOf(n nodePlan) []l2Network {
	all := l2Networks()
	if n.Name == p.Nodes[len(p.Nodes)-1].Name {
		return all[:1]
	}
	return all
}

func l2Networks() []l2Network {
	return []l2Network{{"br10", "eth1"}, {"br20", "eth2"}}
}

// l2Fabric is the name of an additional network's process and log.
func l2Fabric(network string) string { return fabric + "-" + network }

// makeL2Networks creates the missing parts of the additional networks.
func (c *cluster) makeL2Networks(ctx context.Context) error {
	for _, network := range l2Networks() {
		fabricName := l2Fabric(network.name)
		fabricPID, err := c.startInit(ctx, fabricName, unix.CLONE_NEWNET, "hold")
		if err != nil {
			return err
		}
		c.Processes[fabricName] = firstProcess{fabricPID, netNS(fabricPID)}
		if !c.hasLink(ctx, fabricPID, network.name) {
			if err := c.ip(ctx, fabricPID, bridgeCommands(network.name)); err != nil {
				return fmt.Errorf("create network %s: %w", network.name, err)
			}
		}
		for _, n := range c.Nodes {
			if !slices.Contains(c.l2NetworksOf(n), network) {
				continue
			}
			pid := c.Processes[n.Name].PID
			if !c.hasLink(ctx, pid, network.name) {
				if err := c.ip(ctx, pid, bridgeCommands(network.name)); err != nil {
					return fmt.Errorf("create bridge %s on %s: %w", network.name, n.Name, err)
				}
			}
			if c.hasLink(ctx, pid, network.uplink) {
				continue
			}
			c.deleteStale(ctx, fabricPID, n.Name)
			if err := c.ip(ctx, fabricPID, network.plugCommands(n, pid)); err != nil {
				return fmt.Errorf("connect %s to network %s: %w", n.Name, network.name, err)
			}
			if err := c.ip(ctx, pid, network.uplinkCommands()); err != nil {
				return fmt.Errorf("connect %s to network %s: %w", n.Name, network.name, err)
			}
		}
	}
	return c.writeState(c.state)
}

// bridgeCommands returns commands for `ip -batch` that create a bridge without addresses. It
// forwards all frames: multicast snooping is off, because nothing in the network queries group
// memberships.
func bridgeCommands(name string) string {
	return fmt.Sprintf("link add %[1]s type bridge mcast_snooping 0\n"+
		"link set %[1]s mtu 1500 addrgenmode none\nlink set %[1]s up\n", name)
}

// plugCommands returns commands for `ip -batch` in the network's namespace: they connect a node,
// whose first process is pid. The link in the network has the node's name.
func (l l2Network) plugCommands(n nodePlan, pid int) string {
	return fmt.Sprintf("link add name %[1]s mtu 1500 type veth peer name %[2]s mtu 1500 netns %[3]d\n"+
		"link set %[1]s addrgenmode none\nlink set %[1]s master %[4]s up\n", n.Name, l.uplink, pid, l.name)
}

// uplinkCommands returns commands for `ip -batch` in the node's namespace: they connect the uplink
// to the node's bridge.
func (l l2Network) uplinkCommands() string {
	return fmt.Sprintf("link set %[1]s addrgenmode none\nlink set %[1]s master %[2]s up\n", l.uplink, l.name)
}

// bridges lists the bridges in the network namespace of a process.
func (c *cluster) bridges(ctx context.Context, pid int) ([]string, error) {
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+netNS(pid), "--",
		"ip", "-json", "link", "show", "type", "bridge")
	cmd.Env = []string{"PATH=" + searchPath}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list bridges: %w", withStderr(err))
	}
	var links []struct {
		IfName string `json:"ifname"`
	}
	if err := json.Unmarshal(out, &links); err != nil {
		return nil, fmt.Errorf("list bridges: %w", err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.IfName)
	}
	return names, nil
}
