// SPDX-License-Identifier: Apache-2.0

package console

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Parameters of the kernel's command line. The kernel treats names with a dot as
// parameters of modules, and ignores them.
const (
	paramMAC      = "checkplan.mac"
	paramAddress  = "checkplan.address"
	paramDeadline = "checkplan.deadline"
)

// KernelArgs is the kernel's command line for checkplan's own guest: its interface
// and addresses, and after how long it powers itself off, whatever happens.
func KernelArgs(vm checkup.VM, deadline time.Duration) string {
	args := []string{
		// The last console that exists is the guest's own: PCs have ttyS0, Arm has
		// ttyAMA0.
		"console=ttyAMA0", "console=ttyS0",
		"quiet",
		// A kernel that panics restarts at once.
		"panic=-1",
		// Without KVM on a busy node, the timer is late when the kernel tests it, and the
		// kernel distrusts the clock in the middle of a measurement.
		"no_timer_check", "tsc=reliable",
		// Features that delay the start and are useless to a guest that runs one trusted
		// program.
		"nokaslr", "mitigations=off", "cryptomgr.notests",
		fmt.Sprintf("%s=%s", paramMAC, vm.MAC),
	}
	for _, f := range checkup.IPFamilies {
		if a, ok := vm.Addresses[f]; ok {
			args = append(args, fmt.Sprintf("%s=%s", paramAddress, a))
		}
	}
	return strings.Join(append(args, fmt.Sprintf("%s=%d", paramDeadline, int64(deadline/time.Second))), " ")
}

// GuestConfig is the configuration of a guest in KernelArgs.
type GuestConfig struct {
	MAC       net.HardwareAddr
	Addresses []netip.Prefix
	// Deadline after which the guest powers itself off, from the start of its agent; 0: no deadline.
	Deadline time.Duration
}

// ParseKernelArgs reads a kernel's command line. With an error, the config holds
// what could be read.
func ParseKernelArgs(args string) (GuestConfig, error) {
	var c GuestConfig
	var problem error
	for field := range strings.FieldsSeq(args) {
		name, value, _ := strings.Cut(field, "=")
		var err error
		switch name {
		case paramMAC:
			c.MAC, err = net.ParseMAC(value)
		case paramAddress:
			var p netip.Prefix
			if p, err = netip.ParsePrefix(value); err == nil {
				c.Addresses = append(c.Addresses, p)
			}
		case paramDeadline:
			var seconds int64
			seconds, err = strconv.ParseInt(value, 10, 32)
			c.Deadline = max(0, time.Duration(seconds)*time.Second)
		}
		if err != nil && problem == nil {
			problem = fmt.Errorf("the kernel's command line: %s=%s: %w", name, value, err)
		}
	}
	switch {
	case problem != nil:
		return c, problem
	case c.MAC == nil:
		return c, fmt.Errorf("the kernel's command line has no %s", paramMAC)
	case len(c.Addresses) == 0:
		return c, fmt.Errorf("the kernel's command line has no %s", paramAddress)
	}
	return c, nil
}
