// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden compares got with a file in testdata/golden. UPDATE=1 writes the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name)
	if os.Getenv("UPDATE") == "1" {
		if err := writeFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: run with UPDATE=1 to write it", err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (-want +got); run with UPDATE=1 to rewrite it:\n%s", file, d)
	}
}

func TestConfigurationOfNodes(t *testing.T) {
	d := dirs{state: "/var/lib/checkplan-sandbox"}
	for name, controlPlanes := range map[string]int{"dual": 1, "ipv4": 1, "ipv6": 1, "dual-2": 2} {
		family, _, _ := strings.Cut(name, "-")
		t.Run(name, func(t *testing.T) {
			p, err := newPlan(controlPlanes, 2, 2, family)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			section := func(name, content string) { b.WriteString("-- " + name + " --\n" + content) }
			commands := func(c component) { section(c.name, strings.Join(c.args, "\n")+"\n") }

			for _, cp := range p.controlPlanes() {
				for _, name := range staticComponents() {
					pod, err := d.staticPod(p, cp, name)
					if err != nil {
						t.Fatal(err)
					}
					section(name+" of "+cp.Name, string(pod))
				}
			}
			section("kubelet.yaml of control-plane", string(d.kubeletConfig(p, p.Nodes[0])))
			commands(d.controllerManager(p))
			commands(d.scheduler(p))
			section("fabric", fabricCommands()+balancerCommands(p))
			n := p.Nodes[controlPlanes]
			section("fabric to "+n.Name, linkCommands(n, 4711))
			section(n.Name, nodeCommands(p, n))
			commands(d.containerd(n))
			section("containerd.toml", string(d.containerdConfig(n, "/usr/lib/cni", "overlayfs")))
			commands(d.kubelet(n))
			section("kubelet.yaml", string(d.kubeletConfig(p, n)))
			for _, proxy := range serviceProxies() {
				for _, c := range d.proxyComponents(p, n, proxy) {
					commands(c)
				}
				if !own(proxy) {
					section(kubeProxyFile(proxy), string(d.kubeProxyConfig(p, n, proxy)))
				}
			}
			cni, err := cniConfig(n)
			if err != nil {
				t.Fatal(err)
			}
			section("pods.conflist", string(cni))
			golden(t, name+".txt", b.String())
		})
	}
}

// The kubelet must have time for several reports before its node is NotReady, also on a busy
// machine. Tests wait for that time.
func TestNodeTimes(t *testing.T) {
	if graceSeconds < 4*statusSeconds {
		t.Errorf("a node is NotReady after %ds, before four reports of %ds each", graceSeconds, statusSeconds)
	}
	if graceSeconds < leaseSeconds {
		t.Errorf("a node is NotReady after %ds, before its lease of %ds ends", graceSeconds, leaseSeconds)
	}
}

// The weights of kubelets: of 1024 shares for each CPU, and the same as a weight of cgroup v2.
func TestPodsWeighAsOnRealNodes(t *testing.T) {
	for _, tt := range []struct{ nodes, cpus, shares, weight int }{
		{1, 1, 1024, 39}, {1, 2, 2048, 79}, {5, 2, 10240, 391}, {100, 64, 262144, 10000},
	} {
		got := cpuWeights(plan{Nodes: make([]nodePlan, tt.nodes)}.cpuShares(tt.cpus))
		if got["cpu.shares"] != tt.shares || got["cpu.weight"] != tt.weight || len(got) != 2 {
			t.Errorf("%d nodes on %d CPUs: %v, want %d shares or weight %d", tt.nodes, tt.cpus, got, tt.shares, tt.weight)
		}
	}
}

func TestControlPlanesWeighTwiceAsMuchAsWorkers(t *testing.T) {
	worker, controlPlane := nodePlan{}.cpuShares(), nodePlan{ControlPlane: true}.cpuShares()
	if worker != 1024 || controlPlane != 2048 {
		t.Errorf("%d shares of a worker, %d of a control plane, want 1024 and 2048", worker, controlPlane)
	}
}

func TestSandboxesHaveTheirOwnCgroups(t *testing.T) {
	for dir, want := range map[string]string{
		defaultStateDir: "checkplan-sandbox",
		"/tmp/other":    "checkplan-sandbox-tmp-other",
	} {
		if got := (dirs{state: dir}).cgroup(); got != want {
			t.Errorf("cgroup of %s is %s, want %s", dir, got, want)
		}
	}
}

func TestCgroupsOfNodes(t *testing.T) {
	const v1 = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n"
	for name, c := range map[string]struct {
		mounts string
		want   []string
	}{
		"v1":        {v1, []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/pids"}},
		"v2":        {"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", []string{"/sys/fs/cgroup"}},
		"both":      {v1 + "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n", []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/pids"}},
		"elsewhere": {"cgroup /mnt/cpu cgroup rw,cpu 0 0\n", nil},
		"none":      {"tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\ncgroup\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, cgroupsOf(c.mounts)); diff != "" {
				t.Errorf("cgroups of nodes (-want +got):\n%s", diff)
			}
		})
	}
}
