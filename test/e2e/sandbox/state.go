// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
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

// markVariable is in the environment of every process that the sandbox starts
// outside of containers, and of the static pods': "STATE-DIR NODE COMPONENT". What runs is found by
// reading it from /proc, so there is no file of process ids that could be lost
// or name a stranger.
const markVariable = "CHECKPLAN_SANDBOX"

// state is what state.json holds.
type state struct {
	plan
	// BinDir holds the binaries that this cluster runs.
	BinDir string `json:"binDir"`
	// APIPort is the port on the host's 127.0.0.1 that leads to the API servers.
	APIPort int `json:"apiPort"`
	// With holds the names of the addons that are installed, sorted.
	With []string `json:"with,omitempty"`
	// Processes maps a node's name, or "fabric", to its first process and the
	// path of its network namespace. It is for readers outside of this program,
	// which itself looks at what runs.
	Processes map[string]firstProcess `json:"processes,omitempty"`
}

type firstProcess struct {
	PID   int    `json:"pid"`
	NetNS string `json:"netns"`
}

// dirs names the files of one sandbox.
type dirs struct{ state string }

func (d dirs) file(elem ...string) string {
	return filepath.Join(append([]string{d.state}, elem...)...)
}

func (d dirs) kubeconfig() string { return d.file("kubeconfig") }
func (d dirs) log(node, component string) string {
	return d.file("logs", node, component+".log")
}

// cgroup is the name of the sandbox's cgroup under each hierarchy's root. A
// sandbox in another directory has another.
func (d dirs) cgroup() string {
	if d.state == defaultStateDir {
		return "checkplan-sandbox"
	}
	return "checkplan-sandbox" + strings.ReplaceAll(d.state, "/", "-")
}

// readState returns fs.ErrNotExist, wrapped, where there is no sandbox.
func (d dirs) readState() (state, error) {
	var s state
	b, err := os.ReadFile(d.file("state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("no sandbox in %s: run `sandbox up` first: %w", d.state, err)
	}
	if err != nil {
		return s, fmt.Errorf("reading the sandbox's state: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("reading %s: %w: run `sandbox down` to start afresh", d.file("state.json"), err)
	}
	return s, nil
}

func (d dirs) writeState(s state) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the sandbox's state: %w", err)
	}
	return writeFile(d.file("state.json"), append(b, '\n'), 0o644)
}

// writeFile replaces a file as a whole, making its directory where missing.
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

// lock keeps two commands that change the sandbox apart. It is on the state
// directory itself and ends with the process, however that ends; one that was
// killed may take a moment to go.
func (d dirs) lock() (unlock func(), err error) {
	if err := os.MkdirAll(d.state, 0o755); err != nil {
		return nil, fmt.Errorf("making the sandbox's directory: %w", err)
	}
	f, err := os.Open(d.state)
	if err != nil {
		return nil, fmt.Errorf("locking the sandbox: %w", err)
	}
	err = poll(context.Background(), 5*time.Second, func() error {
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	})
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("another sandbox command is at work in %s: wait until it has ended: %w", d.state, err)
	}
	return func() { _ = f.Close() }, nil // nothing was written
}

// process is one that the sandbox started.
type process struct {
	PID             int
	Node, Component string
}

// mark is the value of markVariable.
func (d dirs) mark(node, component string) string {
	return d.state + " " + node + " " + component
}

// marked lists every process under /proc with this sandbox's mark, helpers and
// containerd's shims too.
func (d dirs) marked() ([]process, error) { return d.scan(func(string, string) bool { return true }) }

// components lists the processes that are what their mark says, and not a child
// that inherited it.
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
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var found []process
	prefix := []byte(markVariable + "=" + d.state + " ")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Processes end while they are looked at, and a zombie has neither
		// environment nor executable: all are as good as gone.
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

// find returns the process id of a component, 0 where it does not run.
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
