// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// needed lists the commands that the sandbox runs and their Debian packages.
func needed() [][2]string {
	return [][2]string{
		{"containerd", "containerd"},
		{"containerd-shim-runc-v2", "containerd"},
		{"ctr", "containerd"},
		{"crun", "crun"},
		{"nft", "nftables"},
		{"ip", "iproute2"},
		{"nsenter", "util-linux"},
		{"mount", "mount"},
	}
}

// lookPath finds a command in searchPath.
func lookPath(name string) (string, error) {
	for dir := range strings.SplitSeq(searchPath, ":") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("command %s not found in %s", name, searchPath)
}

// cniBinDir returns the directory of the CNI plugins: that of Debian or the usual one.
func cniBinDir() (string, error) {
	dirs := []string{"/usr/lib/cni", "/opt/cni/bin"}
	for _, dir := range dirs {
		complete := true
		for _, plugin := range []string{"bridge", "host-local", "loopback"} {
			if _, err := os.Stat(filepath.Join(dir, plugin)); err != nil {
				complete = false
			}
		}
		if complete {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no CNI plugins bridge, host-local and loopback in %s", strings.Join(dirs, " or "))
}

// lack is one missing thing. pkg is the Debian package that has it; empty if none does.
type lack struct {
	what, pkg string
}

// preflight lists everything that the machine lacks to run a sandbox with this service proxy and these addons. If
// something is not built yet, this includes what the build needs.
func preflight(ctx context.Context, b build, want wanted) []lack {
	var missing []lack
	needGo := !b.complete()
	for _, name := range want.with {
		if !b.hasAddon(name) {
			needGo = true
			if needs := addons()[name].needs; needs != nil {
				missing = append(missing, needs()...)
			}
		}
	}
	if os.Geteuid() != 0 {
		missing = append(missing, lack{what: "root: the sandbox creates namespaces and mounts; run it with sudo"})
	}
	commands := needed()
	missing = append(missing, lackingPrograms(want.serviceProxy)...)
	if want.serviceProxy == kubeProxyIPTables || want.serviceProxy == ownIPTables {
		commands = append(commands, [2]string{"iptables-restore", "iptables"}, [2]string{"ip6tables-restore", "iptables"})
	}
	for _, n := range commands {
		if _, err := lookPath(n[0]); err != nil {
			missing = append(missing, lack{"the command " + n[0], n[1]})
		}
	}
	if _, err := cniBinDir(); err != nil {
		missing = append(missing, lack{err.Error(), "containernetworking-plugins"})
	}
	if needGo {
		if _, err := exec.LookPath("go"); err != nil {
			missing = append(missing, lack{what: "the Go toolchain (https://go.dev/dl), to build Kubernetes and Tekton"})
		}
	}
	filesystems, err := os.ReadFile("/proc/filesystems")
	if err != nil || !strings.Contains(string(filesystems), "overlay") {
		missing = append(missing, lack{what: "overlayfs in the kernel (CONFIG_OVERLAY_FS; try modprobe overlay)"})
	}
	if _, err := cgroupMounts(); err != nil {
		missing = append(missing, lack{what: "cgroups: " + err.Error()})
	}
	if len(missing) > 0 {
		return missing // the kernel tests need the commands
	}
	// Test each feature in a network namespace that ends with the command.
	for _, try := range [][2]string{
		{"ip link add type bridge", "network bridges in the kernel (CONFIG_BRIDGE)"},
		{"ip link add type veth", "veth links in the kernel (CONFIG_VETH)"},
		{"nft add table inet t", "nftables in the kernel (CONFIG_NF_TABLES_INET)"},
		{"nft 'add table ip t; add chain ip t c { type nat hook prerouting priority 0; }; " +
			"add rule ip t c meta l4proto tcp dnat to numgen random mod 2 map { 0 : 198.18.0.1, 1 : 198.18.0.2 }'",
			"NAT and numgen of nftables in the kernel (CONFIG_NFT_NAT, CONFIG_NFT_NUMGEN)"},
	} {
		cmd := exec.CommandContext(ctx, "unshare", "--net", "sh", "-c", try[0])
		cmd.Env = []string{"PATH=" + searchPath}
		if out, err := cmd.CombinedOutput(); err != nil {
			missing = append(missing, lack{what: fmt.Sprintf("%s: %v: %s", try[1], err, strings.TrimSpace(string(out)))})
		}
	}
	return missing
}

// inotify instances that a sandbox needs. The kernel limits them per user on the whole machine. A
// kubelet or API server that gets none exits at once.
const (
	inotifyPerNode         = 9
	inotifyPerControlPlane = 7 // in addition to inotifyPerNode
	inotifyOnce            = 6 // controller manager and scheduler
)

// lackingInotify returns a lack if the kernel's limit of inotify instances is too low.
func lackingInotify(p plan, with []string) ([]lack, error) {
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return nil, nil // the kernel has no limit
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, fmt.Errorf("read the limit of inotify instances: %w", err)
	}
	open, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil, err
	}
	used := 0
	for _, fd := range open {
		if target, err := os.Readlink(fd); err == nil && target == "anon_inode:inotify" {
			used++
		}
	}
	return inotifyLack(p, with, used, limit), nil
}

func inotifyLack(p plan, with []string, used, limit int) []lack {
	need := inotifyPerNode*len(p.Nodes) + inotifyPerControlPlane*len(p.controlPlanes()) + inotifyOnce
	for _, name := range with {
		need += addons()[name].inotify * (len(p.Nodes) - len(p.controlPlanes()))
	}
	if used+need <= limit {
		return nil
	}
	return []lack{{what: fmt.Sprintf("inotify instances: %d are in use and the sandbox needs %d, but the limit is %d: "+
		"take another sandbox down, or raise sysctl fs.inotify.max_user_instances", used, need, limit)}}
}

// lacking returns one error for everything that is missing, nil if nothing is.
func lacking(missing []lack) error {
	if len(missing) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString("this machine lacks what the sandbox needs:")
	for _, l := range missing {
		b.WriteString("\n  - " + l.what)
		if l.pkg != "" {
			b.WriteString(" (Debian package " + l.pkg + ")")
		}
	}
	if packages := packagesOf(missing); len(packages) > 0 {
		b.WriteString("\nrun `sandbox preflight --install` (Debian or Ubuntu) to install: " + strings.Join(packages, " "))
	}
	return errors.New(b.String())
}

func packagesOf(missing []lack) []string {
	var packages []string
	for _, l := range missing {
		if l.pkg != "" {
			packages = append(packages, l.pkg)
		}
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

// install installs packages with apt-get, but does not start their services: the sandbox runs its
// own copies, and nothing needs etcd or containerd on the host.
func install(ctx context.Context, packages []string, out io.Writer) error {
	if len(packages) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("install %s: apt-get not found, not Debian or Ubuntu: install them yourself",
			strings.Join(packages, " "))
	}
	const policy = "/usr/sbin/policy-rc.d" // invoke-rc.d runs it; exit status 101 forbids a service to start
	f, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err == nil {
		_, writeErr := io.WriteString(f, "#!/bin/sh\nexit 101\n")
		if err := errors.Join(writeErr, f.Close()); err != nil {
			return fmt.Errorf("prevent services from starting: %w", err)
		}
		defer os.Remove(policy) // created here; otherwise it would also affect later installations
	} else if !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("prevent services from starting: %w", err)
	}
	fmt.Fprintf(out, "installing Debian packages: %s\n", strings.Join(packages, " "))
	for _, args := range [][]string{
		{"update", "-q"},
		append([]string{"install", "-q", "-y", "--no-install-recommends"}, packages...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w", strings.Join(args, " "), err)
		}
	}
	return nil
}
