// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// multusModule is the go.mod of the build of Multus. The file is not named go.mod in its own
// directory, because go:embed excludes modules.
//
//go:embed addons/multus.mod
var multusModule []byte

//go:embed addons/multus.sum
var multusSums []byte

//go:embed manifests/multus.yaml
var multusManifest string

// multusAddon is Multus as the nodes' CNI plugin, with the additional networks and their
// NetworkAttachmentDefinitions.
func multusAddon() addon {
	return addon{
		key:     func() string { return fmt.Sprint(string(multusModule), string(multusSums), linkFlags(), multusChanges) },
		build:   buildMultus,
		prepare: prepareMultus,
		objects: func(*cluster) ([]*unstructured.Unstructured, error) {
			objects, err := decode([]byte(multusManifest))
			if err != nil {
				return nil, fmt.Errorf("manifests/multus.yaml: %w", err)
			}
			return objects, nil
		},
		ready: func(ctx context.Context, c *cluster, api *client) error { return c.markBridges(ctx, api) },
	}
}

// multusChanges make Multus wait ten times as long for an answer of the API server, the handshake included. Where three
// clusters share two cores, 250 ms are often too short. Then the network of a pod fails, and the kubelet tries again
// after 12 s or more, with the same result: VMs do not start for minutes.
var multusChanges = [][2]string{
	{"shortPollDuration    = 250 * time.Millisecond", "shortPollDuration    = 2500 * time.Millisecond"},
	{"shortPollTimeout     = 2500 * time.Millisecond", "shortPollTimeout     = 25000 * time.Millisecond"},
}

func buildMultus(ctx context.Context, dir string, detail func(string)) error {
	src := filepath.Join(dir, "src")
	for name, content := range map[string][]byte{"go.mod": multusModule, "go.sum": multusSums} {
		if err := writeFile(filepath.Join(src, name), content, 0o644); err != nil {
			return fmt.Errorf("write the module to build: %w", err)
		}
	}
	if err := changeMultus(ctx, src); err != nil {
		return fmt.Errorf("change the timeouts of Multus: %w", err)
	}
	return goBuild(ctx, src, filepath.Join(dir, "bin"), linkFlags(), nil, detail, multusPath+"/cmd/multus")
}

const multusPath = "gopkg.in/k8snetworkplumbingwg/multus-cni.v4"

// changeMultus makes the module in src use a copy of Multus with multusChanges.
func changeMultus(ctx context.Context, src string) error {
	run := func(args ...string) error {
		cmd := exec.CommandContext(ctx, "go", append([]string{"mod"}, args...)...)
		cmd.Dir, cmd.Env = src, buildEnv()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go mod %s: %w: %s", args[0], err, bytes.TrimSpace(out))
		}
		return nil
	}
	if err := run("download", multusPath); err != nil {
		return err
	}
	module, err := moduleDir(ctx, src, multusPath)
	if err != nil {
		return err
	}
	to := filepath.Join(src, "multus")
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(module)); err != nil {
		return err
	}
	file := filepath.Join(to, "pkg", "multus", "multus.go")
	for _, change := range multusChanges {
		if err := replaceOnce(file, change[0], change[1]); err != nil {
			return err
		}
	}
	return run("edit", "-replace="+multusPath+"=./multus")
}

// prepareMultus creates the networks, and then configures Multus as the nodes' CNI plugin.
// containerd watches the directory and uses the first configuration in it.
func prepareMultus(ctx context.Context, c *cluster, dir string) error {
	if err := c.makeL2Networks(ctx); err != nil {
		return err
	}
	// Copy the binary: nodes do not see the build cache.
	binary, err := os.ReadFile(filepath.Join(dir, "bin", "multus"))
	if err != nil {
		return fmt.Errorf("copy Multus into the sandbox: %w", err)
	}
	plugin := filepath.Join(c.cniPlugins(), "multus")
	if existing, err := os.ReadFile(plugin); err != nil || !bytes.Equal(existing, binary) {
		if err := writeFile(plugin, binary, 0o755); err != nil {
			return fmt.Errorf("copy Multus into the sandbox: %w", err)
		}
	}
	for _, n := range c.Nodes {
		conf, err := c.multusConfig(n)
		if err != nil {
			return err
		}
		file := c.file("nodes", n.Name, "cni", "00-multus.conf")
		if existing, err := os.ReadFile(file); err == nil && slices.Equal(existing, conf) {
			continue
		}
		if err := writeFile(file, conf, 0o644); err != nil {
			return fmt.Errorf("configure Multus on %s: %w", n.Name, err)
		}
	}
	return nil
}

// multusConfig returns the node's configuration of Multus. It delegates the first network to the
// configuration of the pod network, and uses the kubeconfig of the node's kubelet.
func (d dirs) multusConfig(n nodePlan) ([]byte, error) {
	pods, err := cniConfig(n)
	if err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(map[string]any{
		"cniVersion": "0.4.0",
		"name":       "multus",
		"type":       "multus",
		"kubeconfig": d.file("pki", "kubelet-"+n.Name+".kubeconfig"),
		"logLevel":   "error",
		"delegates":  []json.RawMessage{pods},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the configuration of Multus on %s: %w", n.Name, err)
	}
	return append(b, '\n'), nil
}

// bridgeResource begins the names of the resources with which kubevirt's bridge-marker reports the
// bridges of a node. bridgeCapacity is its capacity of each: a resource cannot be unlimited.
const (
	bridgeResource = "bridge.network.kubevirt.io/"
	bridgeCapacity = 1000
)

// markBridges writes the bridges of each node into the node's capacity, like bridge-marker
// (github.com/kubevirt/bridge-marker, pkg/marker). It returns an error until each kubelet has made
// them allocatable.
func (c *cluster) markBridges(ctx context.Context, api *client) error {
	for _, n := range c.Nodes {
		if err := c.markBridgesOf(ctx, api, n); err != nil {
			return fmt.Errorf("report the bridges of %s: %w", n.Name, err)
		}
	}
	for _, n := range c.Nodes {
		if stopped, err := c.stoppedByFault(n.Name, "kubelet"); err != nil || stopped {
			return err
		}
		node, err := api.typed.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the bridges of %s: %w", n.Name, err)
		}
		for _, network := range c.l2NetworksOf(n) {
			if q := node.Status.Allocatable[corev1.ResourceName(bridgeResource+network.name)]; q.IsZero() {
				return fmt.Errorf("node %s: bridge %s is not allocatable yet", n.Name, network.name)
			}
		}
	}
	return nil
}

func (c *cluster) markBridgesOf(ctx context.Context, api *client, n nodePlan) error {
	bridges, err := c.bridges(ctx, c.Processes[n.Name].PID)
	if err != nil {
		return err
	}
	node, err := api.typed.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	patch := bridgePatch(node.Status.Capacity, bridges)
	if len(patch) == 0 {
		return nil
	}
	b, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": patch}})
	if err != nil {
		return err
	}
	_, err = api.typed.CoreV1().Nodes().PatchStatus(ctx, n.Name, b)
	return err
}

// bridgePatch returns the merge patch after which a node's capacity has exactly these bridges;
// empty if it already has.
func bridgePatch(capacity corev1.ResourceList, bridges []string) map[string]any {
	patch := map[string]any{}
	for name := range capacity {
		if bridge, ok := strings.CutPrefix(string(name), bridgeResource); ok && !slices.Contains(bridges, bridge) {
			patch[string(name)] = nil
		}
	}
	for _, bridge := range bridges {
		name := bridgeResource + bridge
		if q := capacity[corev1.ResourceName(name)]; q.Value() != bridgeCapacity {
			patch[name] = strconv.Itoa(bridgeCapacity)
		}
	}
	return patch
}
