// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command init is the first process of a machine of test/kernel. It loads the kernel's modules, runs one program, whose
// output goes to the second serial line, and switches the machine off.
package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: not the first process of a machine: see test/kernel")
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err) // on the kernel's console
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	// Without ACPI this is the only way to end the machine.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

func run() error {
	for _, m := range []struct{ path, kind string }{
		{"/dev", "devtmpfs"}, {"/proc", "proc"}, {"/sys", "sysfs"}, {"/run", "tmpfs"}, {"/tmp", "tmpfs"},
	} {
		if err := unix.Mount(m.kind, m.path, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.path, err)
		}
	}
	var order struct {
		Args []string
		Dir  string
		Env  []string
		Keep string
	}
	text, err := os.ReadFile("/order.json")
	if err == nil {
		err = json.Unmarshal(text, &order)
	}
	if err != nil {
		return err
	}
	out, err := openRaw("/dev/ttyS1")
	if err != nil {
		return err
	}
	defer out.Close()
	if err := errors.Join(loadModules(), setUp("lo")); err != nil {
		return err
	}
	cmd := exec.Command(order.Args[0], order.Args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = order.Dir, order.Env, out, out
	err = cmd.Run()
	code := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		return err
	}
	if order.Keep != "" {
		if err := keep(order.Keep, "/dev/vda"); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "\nguest: exit code %d\n", code)
	return errors.Join(err, drain(out))
}

// loadModules loads all modules of the archive, in their order: dependencies are first.
func loadModules() error {
	list, err := os.ReadFile("/modules/list")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(list)) {
		name, _, _ := strings.Cut(line, " ")
		f, err := os.Open("/modules/" + name + ".ko")
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	return nil
}

// setUp switches a network interface on.
func setUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("switch %s on: %w", name, err)
	}
	return nil
}

// openRaw opens a serial line that does not change output.
func openRaw(path string) (*os.File, error) {
	// Without O_NONBLOCK, writes wait in the kernel, not in Go's poller.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err == nil {
		t.Oflag &^= unix.OPOST
		t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		err = unix.IoctlSetTermios(fd, unix.TCSETS, t)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("set %s to raw: %w", path, err)
	}
	return f, nil
}

// drain waits until a serial line has sent what was written to it.
func drain(f *os.File) error { return unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1) }

// keep writes the files of a directory of the repository to a disk.
func keep(directory, disk string) error {
	to, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	w := tar.NewWriter(to)
	root := "/src"
	err = filepath.WalkDir(filepath.Join(root, directory), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	return errors.Join(err, w.Close(), to.Close())
}
