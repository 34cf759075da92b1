// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const defaultStateDir = "/var/lib/checkplan-sandbox"

// markVariable is in the environment of every process that the sandbox starts outside of
// containers, and of static pods: "STATE-DIR NODE COMPONENT". The sandbox finds its processes by
// this variable in /proc. A file of process IDs could be lost, or contain the ID of a foreign
// process.
const markVariable = "CHECKPLAN_SANDBOX"

// state is the content of state.json.
type state struct {
	plan
	// BinDir is the directory of the binaries that this cluster runs.
	BinDir string `json:"binDir"`
	// APIPort is the port on the host's 127.0.0.1 that routes to the API servers.
	APIPort int `json:"apiPort"`
	// ServiceProxy is a value of --service-proxy.
	ServiceProxy string `json:"serviceProxy"`
	// With lists the names of the installed addons, sorted.
	With []string `json:"with,omitempty"`
	// Processes maps a node's name, or "fabric", to its first process and the path of its network
	// namespace. It is for readers other than this program, which looks up running processes
	// itself.
	Processes map[string]firstProcess `json:"processes,omitempty"`
}

type firstProcess struct {
	PID   int    `json:"pid"`
	NetNS string `json:"netns"`
}

// dirs returns the paths of the files of one sandbox.
type dirs struct{ state string }

func (d dirs) file(elem ...string) string {
	return filepath.Join(append([]string{d.state}, elem...)...)
}

func (d dirs) kubeconfig() string { return d.file("kubeconfig") }
func (d dirs) log(node, component string) string {
	return d.file("logs", node, component+".log")
}

// cgroup is the name of the sandbox's cgroup under the root of each hierarchy. It depends on the
// state directory.
func (d dirs) cgroup() string {
	if d.state == defaultStateDir {
		return "checkplan-sandbox"
	}
	return "checkplan-sandbox" + strings.ReplaceAll(d.state, "/", "-")
}

// readState reads the state. The error wraps fs.ErrNotExist if no sandbox exists.
func (d dirs) readState() (state, error) {
	var s state
	b, err := os.ReadFile(d.file("state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("no sandbox in %s: run `sandbox up` first: %w", d.state, err)
	}
	if err != nil {
		return s, fmt.Errorf("read the sandbox's state: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("read %s: %w: run `sandbox down` to start again", d.file("state.json"), err)
	}
	s.ServiceProxy = cmp.Or(s.ServiceProxy, serviceProxies()[0]) // older versions wrote none
	return s, nil
}

func (d dirs) writeState(s state) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write the sandbox's state: %w", err)
	}
	return writeFile(d.file("state.json"), append(b, '\n'), 0o644)
}

// writeFile replaces a whole file, and creates missing directories.
func writeFile(name string, b []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	tmp := name + ".new"
	if err := os.WriteFile(tmp, b, mode); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

// lock prevents two commands from changing the sandbox at the same time. The lock is on the state
// directory and ends with the process. A killed process may need a moment to end, so lock waits a
// few seconds.
func (d dirs) lock() (unlock func(), err error) {
	if err := os.MkdirAll(d.state, 0o755); err != nil {
		return nil, fmt.Errorf("create the sandbox's directory: %w", err)
	}
	f, err := os.Open(d.state)
	if err != nil {
		return nil, fmt.Errorf("lock the sandbox: %w", err)
	}
	err = poll(context.Background(), 5*time.Second, func() error {
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	})
	if err != nil {
		_ = f.Close() // read only
		return nil, fmt.Errorf("another sandbox command runs in %s: wait until it has ended: %w", d.state, err)
	}
	return func() { _ = f.Close() }, nil // read only
}

// process is a process that the sandbox started.
type process struct {
	PID             int
	Node, Component string
}

// mark returns the value of markVariable.
func (d dirs) mark(node, component string) string {
	return d.state + " " + node + " " + component
}

// marked returns all processes in /proc with this sandbox's mark, including helpers and the shims
// of containerd.
func (d dirs) marked() ([]process, error) {
	return d.scan(func(string, string) bool { return true })
}

// components returns the processes that run the component named in their mark. Children inherit the
// mark but run another binary.
func (d dirs) components() ([]process, error) {
	return d.scan(func(exe, component string) bool {
		switch component {
		case "init", balancerName:
			return exe == "sandbox"
		}
		return exe == component
	})
}

func (d dirs) scan(want func(exe, component string) bool) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	prefix := []byte(markVariable + "=" + d.state + " ")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// A process may exit during the scan, and a zombie has neither environment nor executable:
		// ignore both.
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			continue
		}
		for _, v := range bytes.Split(env, []byte{0}) {
			rest, ok := bytes.CutPrefix(v, prefix)
			if !ok {
				continue
			}
			exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
			if err != nil {
				break
			}
			exe = strings.TrimSuffix(filepath.Base(exe), " (deleted)")
			node, component, _ := strings.Cut(string(rest), " ")
			if want(exe, component) {
				found = append(found, process{PID: pid, Node: node, Component: component})
			}
			break
		}
	}
	slices.SortFunc(found, func(a, b process) int { return a.PID - b.PID })
	return found, nil
}

// find returns the process ID of a component, 0 if it does not run.
func (d dirs) find(node, component string) (int, error) {
	all, err := d.components()
	if err != nil {
		return 0, err
	}
	for _, p := range all {
		if p.Node == node && p.Component == component {
			return p.PID, nil
		}
	}
	return 0, nil
}
