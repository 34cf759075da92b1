// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// stop ends a component with SIGTERM, and with SIGKILL after five seconds.
func (d dirs) stop(node, comp string) error {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		deadline := time.Now().Add(5 * time.Second)
		for time.Now().Before(deadline) {
			pid, err := d.find(node, comp)
			if err != nil {
				return err
			}
			if pid == 0 {
				return nil
			}
			if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("stop %s of %s: %w", comp, node, err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return fmt.Errorf("stop %s of %s: it still runs after SIGKILL", comp, node)
}

// down kills all processes with the sandbox's mark and removes its cgroups and files. It needs no
// state file, so it can clean up in every state. A node ends with its first process: its processes,
// mounts, interfaces and nftables rules are in namespaces that end with it.
func (d dirs) down(detail func(string)) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		left, err := d.remaining()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("kill the sandbox's processes: these still run: %v", left)
		}
		detail(fmt.Sprintf("%d processes left", len(left)))
		for _, pid := range left {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	detail("removing cgroups and files")
	if err := d.removeCgroups(deadline); err != nil {
		return err
	}
	if err := os.RemoveAll(d.state); err != nil {
		return fmt.Errorf("remove the sandbox's files: %w", err)
	}
	return d.leftovers()
}

// remaining lists the marked processes. Containers have no mark: they end with their node's first
// process.
func (d dirs) remaining() ([]int, error) {
	marked, err := d.marked()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range marked {
		pids = append(pids, p.PID)
	}
	return pids, nil
}

// removeCgroups removes the sandbox's cgroups in all hierarchies, deepest first. It retries: the
// kernel needs a moment after the last process of a cgroup has exited.
func (d dirs) removeCgroups(deadline time.Time) error {
	for {
		left, err := d.cgroups()
		if err != nil {
			return err
		}
		var busy error
		for i := len(left) - 1; i >= 0; i-- { // WalkDir lists parents first
			if err := syscall.Rmdir(left[i]); err != nil && !errors.Is(err, syscall.ENOENT) {
				busy = fmt.Errorf("remove cgroup %s: %w", left[i], err)
			}
		}
		if busy == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return busy
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// cgroups lists the sandbox's cgroups, with those of its pods, parents before children.
func (d dirs) cgroups() ([]string, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, m := range mounts {
		err := filepath.WalkDir(filepath.Join(m, d.cgroup()), func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && e.IsDir() {
				found = append(found, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
	}
	return found, nil
}

// leftovers returns an error that lists everything of the sandbox that still exists.
func (d dirs) leftovers() error {
	var left []string
	processes, err := d.marked()
	if err != nil {
		return err
	}
	for _, p := range processes {
		left = append(left, fmt.Sprintf("process %d (%s of %s)", p.PID, p.Component, p.Node))
	}
	cgroups, err := d.cgroups()
	if err != nil {
		return err
	}
	for _, c := range cgroups {
		left = append(left, "cgroup "+c)
	}
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	defer mounts.Close() // read only
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && strings.HasPrefix(fields[1], d.state+"/") {
			left = append(left, "mount "+fields[1])
		}
	}
	if _, err := os.Lstat(d.state); err == nil {
		left = append(left, "files in "+d.state)
	}
	if len(left) > 0 {
		return fmt.Errorf("take the sandbox down: these still exist:\n  - %s", strings.Join(left, "\n  - "))
	}
	return nil
}
