// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/console"
	"github.com/checkplan/checkplan/pkg/probe"
)

// isInit reports whether this process is the first of a VM. It may have arguments: words of the kernel's command line
// that the kernel does not know.
func isInit() bool { return os.Getpid() == 1 && os.Args[0] == "/init" }

// guest runs the agent as the only program of a VM. It does not return. It reports problems of the VM on the console.
func guest() {
	started := time.Now()
	var problems []string
	problem := func(err error) {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	problem(mountAll())
	// Messages of the kernel would mix with ours. Earlier ones are in the console's transcript, and a panic is still
	// printed.
	_, _, _ = unix.Syscall(unix.SYS_SYSLOG, syslogConsoleLevel, 0, onlyPanics)
	args, err := os.ReadFile("/proc/cmdline")
	problem(err)
	config, err := console.ParseKernelArgs(string(args))
	problem(err)
	clock, err := steadyClock()
	problem(err)
	if config.Deadline > 0 {
		time.AfterFunc(config.Deadline, func() {
			fmt.Fprintln(os.Stderr, "agent: power off, at the end of the guest's time of", config.Deadline)
			powerOff()
		})
	}
	problem(os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0))
	left, err := loadModules()
	problem(err)
	own := &ownAddresses{}
	if len(config.MAC) > 0 && len(config.Addresses) > 0 {
		var i *net.Interface
		if i, err = findInterface(config.MAC, left); err == nil {
			err = own.set(i, config.Addresses)
		}
		problem(err)
	}
	server := console.Server{
		State: func() console.State {
			all := slices.Clip(problems)
			if err := own.taken(); err != nil {
				all = append(all, err.Error())
			}
			return console.State{
				Version: version(), Kernel: kernelRelease(), Uptime: uptime().Milliseconds(), Clock: clock, Problems: all,
			}
		},
		Run: func(ctx context.Context, order io.Reader, out io.Writer) error {
			if len(problems) > 0 {
				return errors.New(strings.Join(problems, "; "))
			}
			if err := own.settle(ctx); err != nil {
				return err
			}
			o, err := probe.ReadOrder(order)
			if err != nil {
				return err
			}
			return probe.Agent{Order: o, Version: version(), Out: unlessTaken{own, out}}.Run(ctx)
		},
	}
	for {
		err := serveConsole(&server, fmt.Sprintf("checkplan's guest, agent %s, up after %s (%s of it the kernel's)",
			version(), uptime().Round(time.Millisecond), (uptime()-time.Since(started)).Round(time.Millisecond)))
		fmt.Fprintln(os.Stderr, "agent:", err)
		time.Sleep(time.Second) // retry a console that cannot be opened, until the deadline
	}
}

// clocks is where the kernel lists its clock sources, and where one is chosen.
const clocks = "/sys/devices/system/clocksource/clocksource0/"

// steadyClock has the kernel tell the time by the clock that it returns.
func steadyClock() (string, error) {
	available, err := os.ReadFile(clocks + "available_clocksource")
	if err != nil {
		return "", err
	}
	current, err := os.ReadFile(clocks + "current_clocksource")
	if err != nil {
		return "", err
	}
	now := strings.TrimSpace(string(current))
	clock := steadiest(strings.Fields(string(available)), now)
	if clock == now {
		return now, nil
	}
	if err := os.WriteFile(clocks+"current_clocksource", []byte(clock), 0); err != nil {
		return now, fmt.Errorf("change the kernel's clock from %s to %s: %w", now, clock, err)
	}
	return clock, nil
}

// steadiest returns the clock source to use: the current one, unless that is the CPU's counter of cycles (tsc) in a VM
// without KVM. The kernel itself must find out how fast that counter is, and on a busy node it was wrong by a factor of
// 19: all delays were wrong, and the guest powered itself off at once. QEMU emulates hpet and acpi_pm by the node's
// clock. With KVM the kernel is told how fast the counter is.
func steadiest(available []string, current string) string {
	if !strings.HasPrefix(current, "tsc") || slices.Contains(available, "kvm-clock") {
		return current
	}
	for _, emulated := range []string{"hpet", "acpi_pm"} {
		if slices.Contains(available, emulated) {
			return emulated
		}
	}
	return current
}

// serveConsole serves the console until it fails.
func serveConsole(s *console.Server, greeting string) error {
	name := "ttyS0"
	if active, err := os.ReadFile("/sys/class/tty/console/active"); err == nil {
		// The kernel's consoles; the last is /dev/console.
		if all := strings.Fields(string(active)); len(all) > 0 {
			name = all[len(all)-1]
		}
	}
	f, err := openRaw(filepath.Join("/dev", name))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "\n%s\n", greeting); err != nil {
		return err
	}
	return s.Serve(context.Background(), f)
}

// openRaw opens a terminal that neither echoes nor changes input and output.
func openRaw(path string) (*os.File, error) {
	// Without O_NONBLOCK, reads and writes wait in the kernel, not in Go's poller.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err == nil {
		t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
		t.Oflag &^= unix.OPOST
		t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
		t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
		err = unix.IoctlSetTermios(fd, unix.TCSETS, t)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("set %s to raw: %w", path, err)
	}
	return f, nil
}

// Of syslog(2).
const (
	syslogConsoleLevel = 8
	onlyPanics         = 1
)

// mountAll mounts what the kernel shows.
func mountAll() error {
	var errs []error
	for _, m := range []struct{ path, kind string }{{"/dev", "devtmpfs"}, {"/proc", "proc"}, {"/sys", "sysfs"}} {
		if err := unix.Mount(m.kind, m.path, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, fmt.Errorf("mount %s: %w", m.path, err))
		}
	}
	return errors.Join(errs...)
}

func powerOff() {
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	// Without ACPI this is the only way to end the VM.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

// uptime since the kernel was started.
func uptime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// unlessTaken writes only while no other machine uses the guest's addresses.
type unlessTaken struct {
	own *ownAddresses
	w   io.Writer
}

func (u unlessTaken) Write(b []byte) (int, error) {
	if err := u.own.taken(); err != nil {
		return 0, err
	}
	return u.w.Write(b)
}

// ownAddresses are those of the guest.
type ownAddresses struct {
	iface *net.Interface
	ipv4  [4]byte // unspecified without one
	ipv6  bool
	// asked is closed when the ARP probes for the IPv4 address were sent and other machines had time to answer.
	asked chan struct{}
	// thief is the MAC of another machine that uses the IPv4 address.
	thief atomic.Pointer[net.HardwareAddr]
}

const (
	// askTime is how long other machines may take to answer the ARP probes, as long as the kernel waits for an IPv6
	// address. RFC 5227 allows more time, but the guest also checks later ARP packets.
	askTime = time.Second
	// settlePatience is how long the kernel may take to confirm an IPv6 address: it waits while the link is down.
	settlePatience = 10 * time.Second
)

// settle waits until the duplicate address detection is over.
func (o *ownAddresses) settle(ctx context.Context) error {
	select {
	case <-o.asked:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	deadline := time.Now().Add(settlePatience)
	for ; o.ipv6 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, tentative := o.flagged(flagTentative); !tentative || ctx.Err() != nil {
			break
		}
	}
	return o.taken()
}

// taken returns an error if another machine uses an address of the guest: results are then not valid.
func (o *ownAddresses) taken() error {
	if mac := o.thief.Load(); mac != nil {
		return fmt.Errorf("address conflict: %s also uses the address %s", *mac, net.IP(o.ipv4[:]))
	}
	if a, duplicate := o.flagged(flagDADFailed); o.ipv6 && duplicate {
		return fmt.Errorf("address conflict: another machine also uses the address %s", a)
	}
	return nil
}

// flagged returns an IPv6 address of the guest that has a flag; false if none has.
func (o *ownAddresses) flagged(flag uint64) (netip.Addr, bool) {
	if o.iface == nil {
		return netip.Addr{}, false
	}
	table, _ := os.ReadFile("/proc/net/if_inet6") // does not exist without IPv6
	return flaggedAddress(string(table), o.iface.Name, flag)
}
