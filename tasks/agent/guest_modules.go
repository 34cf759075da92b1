// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// modulesDirectory holds the kernel's modules, and a list of them: a line for each,
// dependencies first: the name, a comma-separated list of the modules that it
// needs (or -), and the patterns of the devices that it drives.
const modulesDirectory = "/modules"

// module of the kernel.
type module struct {
	name    string
	needs   []string
	aliases []string
}

func readModules(list string) []module {
	var ms []module
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		m := module{name: fields[0], aliases: fields[2:]}
		if fields[1] != "-" {
			m.needs = strings.Split(fields[1], ",")
		}
		ms = append(ms, m)
	}
	return ms
}

// wanted returns the modules for devices, and those that they need, in the order of the list.
func wanted(ms []module, devices []string) []module {
	want := map[string]bool{}
	// Modules that need a module come after it in the list.
	for _, m := range slices.Backward(ms) {
		if !want[m.name] {
			want[m.name] = slices.ContainsFunc(devices, m.drives)
		}
		for _, name := range m.needs {
			want[name] = want[name] || want[m.name]
		}
	}
	return slices.DeleteFunc(slices.Clone(ms), func(m module) bool { return !want[m.name] })
}

// drives reports whether the module drives the device.
func (m module) drives(device string) bool {
	return slices.ContainsFunc(m.aliases, func(alias string) bool {
		ok, err := path.Match(alias, device)
		return err == nil && ok
	})
}

// loadModules loads the modules for all devices, including devices that appear while it loads. It returns the network
// devices without a module.
func loadModules() (left []string, err error) {
	list, err := os.ReadFile(filepath.Join(modulesDirectory, "list"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // all drivers are built into the kernel
	} else if err != nil {
		return nil, err
	}
	ms := readModules(string(list))
	loaded := map[string]bool{}
	for {
		devices := devices()
		news := slices.DeleteFunc(wanted(ms, devices), func(m module) bool { return loaded[m.name] })
		if len(news) == 0 {
			return slices.DeleteFunc(devices, func(d string) bool {
				return !isEthernet(d) || slices.ContainsFunc(ms, func(m module) bool { return m.drives(d) })
			}), err
		}
		for _, m := range news {
			loaded[m.name] = true
			err = errors.Join(err, m.load())
		}
	}
}

// isEthernet reports whether a device is a PCI network controller for Ethernet,
// class 02 subclass 00.
func isEthernet(modalias string) bool {
	return strings.HasPrefix(modalias, "pci:") && strings.Contains(modalias, "bc02sc00")
}

// devices returns the modaliases of all devices.
func devices() []string {
	files, _ := filepath.Glob("/sys/bus/*/devices/*/modalias") // the pattern is valid
	var all []string
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			all = append(all, strings.TrimSpace(string(b)))
		}
	}
	return all
}

func (m module) load() error {
	f, err := os.Open(filepath.Join(modulesDirectory, m.name+".ko"))
	if err != nil {
		return fmt.Errorf("load the kernel module %s: %w", m.name, err)
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load the kernel module %s: %w", m.name, err)
	}
	return nil
}
