// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// nodeInit is the first process in the namespaces of a node (net, mount, PID, UTS, IPC). It sets up
// the node's own file systems, writes "ok" to ready, and then only reaps orphans. When it exits for
// any reason, the kernel kills all processes of the node and removes its mounts and interfaces.
//
// keep lists directories that must stay visible: that of the sandbox and that of its binaries.
func nodeInit(ctx context.Context, d dirs, node string, keep []string, ready io.WriteCloser) error {
	// Register before the first child: no SIGCHLD may be missed. Signals from inside the node must
	// not end this process.
	children := make(chan os.Signal, 64)
	signal.Notify(children, syscall.SIGCHLD)
	if err := makeRoot(d, node, keep); err != nil {
		return err
	}
	if err := setSysctls(); err != nil {
		return err
	}
	if _, err := io.WriteString(ready, "ok"); err != nil {
		return fmt.Errorf("report readiness of %s: %w", node, err)
	}
	if err := ready.Close(); err != nil {
		return fmt.Errorf("report readiness of %s: %w", node, err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-children:
			for {
				pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
				if errors.Is(err, syscall.EINTR) {
					continue
				}
				if err != nil || pid <= 0 {
					break
				}
			}
		}
	}
}

// makeRoot hides every directory that components of several nodes would share, or in which they
// would leave files on the host.
func makeRoot(d dirs, node string, keep []string) error {
	m := mounter{}
	m.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	m.do("set the host name", unix.Sethostname([]byte(node)))

	// Open the directories that must stay visible before the directories above them are hidden.
	cgroups, err := cgroupMounts()
	if err != nil {
		return err
	}
	kept := map[string]string{}
	for _, dir := range append(cgroups, keep...) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", dir, err)
		}
		kept[dir] = fmt.Sprintf("/proc/self/fd/%d", fd)
	}

	m.mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	// A new sysfs shows the node's own network. Bind the cgroups again before mounts are shared:
	// the kubelet needs them.
	m.mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	m.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755")
	for _, dir := range cgroups {
		m.mkdir(dir)
		m.bind(kept[dir], dir)
	}
	m.makeDev()
	for _, dir := range []string{"/run", "/tmp", "/var/lib", "/var/log"} {
		m.mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID, "mode=755")
	}
	m.do("chmod /tmp", os.Chmod("/tmp", 0o1777))
	for _, dir := range keep {
		if _, err := os.Stat(dir); err != nil {
			m.mkdir(dir)
			m.bind(kept[dir], dir)
		}
	}
	// These directories stay when the node's first process exits: containers' layers and pods' logs. Pods' volumes are in
	// memory: Tekton copies a program of 46 MB into a volume of each task.
	for target, name := range map[string]string{
		"/var/lib/containerd": "containerd",
		"/var/log/pods":       "pods-log",
	} {
		source := d.file("nodes", node, name)
		m.mkdir(source)
		m.mkdir(target)
		m.bind(source, target)
	}
	m.mkdir("/var/log/containers")
	m.maskSysctls()
	m.mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
	return m.err
}

// mounter runs steps until one fails and keeps the first error.
type mounter struct{ err error }

func (m *mounter) do(what string, err error) {
	if m.err == nil && err != nil {
		m.err = fmt.Errorf("%s: %w", what, err)
	}
}

func (m *mounter) mount(source, target, fstype string, flags uintptr, data string) {
	if m.err == nil {
		m.do("mount "+fstype+" on "+target, unix.Mount(source, target, fstype, flags, data))
	}
}

func (m *mounter) bind(source, target string) {
	if m.err == nil {
		m.do("bind-mount "+target, unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""))
	}
}

func (m *mounter) mkdir(dir string) {
	if m.err == nil {
		m.do("create "+dir, os.MkdirAll(dir, 0o755))
	}
}

// makeDev creates the node's own device files. The kubelet reads kmsg.
func (m *mounter) makeDev() {
	m.mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=755")
	for name, number := range map[string][2]uint32{
		"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9},
		"kmsg": {1, 11}, "tty": {5, 0}, "net/tun": {10, 200},
	} {
		if m.err != nil {
			return
		}
		path := filepath.Join("/dev", name)
		m.mkdir(filepath.Dir(path))
		m.do("create "+path, unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(number[0], number[1]))))
		m.do("create "+path, os.Chmod(path, 0o666))
	}
	for _, dir := range []string{"/dev/pts", "/dev/shm", "/dev/mqueue"} {
		m.mkdir(dir)
	}
	m.mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
	m.mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	m.mount("mqueue", "/dev/mqueue", "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd",
		"stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if m.err != nil {
			return
		}
		m.do("link /dev/"+name, os.Symlink(target, filepath.Join("/dev", name)))
	}
}

// maskSysctls shows the kubelet the machine-wide settings that it expects (pkg/kubelet/cm,
// setupKernelTunables). Otherwise the kubelet would change the settings of the host.
func (m *mounter) maskSysctls() {
	for path, value := range map[string]string{
		"/proc/sys/vm/overcommit_memory":      "1",
		"/proc/sys/vm/panic_on_oom":           "0",
		"/proc/sys/kernel/panic":              "10",
		"/proc/sys/kernel/panic_on_oops":      "1",
		"/proc/sys/kernel/keys/root_maxkeys":  "1000000",
		"/proc/sys/kernel/keys/root_maxbytes": "25000000",
	} {
		if _, err := os.Stat(path); err != nil || m.err != nil {
			continue // the kernel does not have this setting
		}
		mask := filepath.Join("/run/sysctl", path)
		m.mkdir(filepath.Dir(mask))
		m.do("write "+mask, os.WriteFile(mask, []byte(value+"\n"), 0o644))
		m.bind(mask, path)
	}
}

// cgroupMounts lists the mount points of the machine's cgroup hierarchies that nodes see.
func cgroupMounts() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	found := cgroupsOf(string(b))
	if len(found) == 0 {
		return nil, errors.New("list cgroups: no cgroup hierarchy is mounted under /sys/fs/cgroup")
	}
	return found, nil
}

// cgroupsOf lists the mount points of cgroup hierarchies in /proc/self/mounts: that of v2, or, on a machine with both
// versions, those of v1 alone, because crun refuses to run with both.
func cgroupsOf(mounts string) []string {
	var v1, v2 []string
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 3 || !strings.HasPrefix(fields[1], "/sys/fs/cgroup"):
		case fields[2] == "cgroup":
			v1 = append(v1, fields[1])
		case fields[2] == "cgroup2":
			v2 = append(v2, fields[1])
		}
	}
	if len(v1) > 0 {
		return v1
	}
	return v2
}

// setSysctls makes the node's network namespace a router.
func setSysctls() error {
	for name, value := range map[string]string{
		"net/ipv4/ip_forward":             "1",
		"net/ipv4/conf/all/rp_filter":     "0",
		"net/ipv4/conf/default/rp_filter": "0",
		"net/ipv6/conf/all/forwarding":    "1",
		"net/ipv6/conf/default/accept_ra": "0",
		"net/ipv6/conf/all/accept_ra":     "0",
	} {
		path := filepath.Join("/proc/sys", name)
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			return fmt.Errorf("set %s to %s: %w", strings.ReplaceAll(name, "/", "."), value, err)
		}
	}
	return nil
}

// spawn starts a command in its own session and does not wait for it. In a node's PID namespace the
// command becomes a child of the node's first process.
func spawn(argv []string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", argv[0], err)
	}
	return nil
}

// keep runs a command, and runs it again after delay each time it ends, until ctx ends. It writes to log how the
// command ended, which is an error too if it could not start.
func keep(ctx context.Context, argv []string, delay time.Duration, log io.Writer) {
	for {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = log, log
		err := cmd.Run()
		if ctx.Err() != nil {
			return
		}
		fmt.Fprintf(log, "--- %s ended (%v) at %s and starts again in %v\n",
			filepath.Base(argv[0]), cmp.Or(err, errors.New("exit status 0")), time.Now().Format(time.RFC3339), delay)
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
}

// enterNetNS moves the calling thread to another network namespace.
func enterNetNS(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the network namespace %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace %s: %w", path, err)
	}
	return nil
}
