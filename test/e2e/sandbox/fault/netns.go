// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// errGone is returned for a network namespace that does not exist (any more).
var errGone = errors.New("no such network namespace")

// openNetNS opens the file of a network namespace. A file that is not a namespace, for example
// after an unmount, is errGone like a missing file.
func openNetNS(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", errGone, path)
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		f.Close()
		return nil, fmt.Errorf("%w: %s", errGone, path)
	}
	return f, nil
}

// inNetNS calls do in the network namespace of a file. Sockets that do opens and processes that it
// starts belong to this namespace, unless do starts a goroutine.
func inNetNS(path string, do func() error) error {
	f, err := openNetNS(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return onThread(func() error {
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s (are you root?): %w", path, err)
		}
		return do()
	})
}

// onThread calls do on its own OS thread, which ends after do. So no other code runs in a namespace
// that do enters.
func onThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock
		done <- do()
	}()
	return <-done
}

// command runs a tool with input in the current namespace and returns its stdout. The error
// contains its stderr.
func command(ctx context.Context, input, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	switch err := cmd.Run(); {
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w: install the Debian package %s",
			err, map[string]string{"nft": "nftables", "tc": "iproute2"}[name])
	case err != nil:
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// load applies nft text in a namespace, completely or not at all.
func load(ctx context.Context, netns, text string) error {
	return inNetNS(netns, func() error {
		_, err := command(ctx, text, "nft", "-f", "-")
		return err
	})
}

// queueRule adds a rule to chain hold of a fault's table: it sends packets to a netfilter queue, or
// lets them pass if no process listens there. The rule uses the xtables target, because a kernel
// may lack the queue expression of nft, and the tool nft cannot write the target.
func queueRule(netns, id string, queue uint16) error {
	f, err := openNetNS(netns)
	if err != nil {
		return err
	}
	defer f.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(f.Fd())))
	if err != nil {
		return fmt.Errorf("connect to nftables in %s: %w", netns, err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: tablePrefix + id}
	c.AddRule(&nftables.Rule{
		Table: table,
		Chain: &nftables.Chain{Name: "hold", Table: table},
		Exprs: []expr.Any{&expr.Target{Name: "NFQUEUE", Rev: 3, Info: nfqInfo(queue)}},
	})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("queue packets in %s: %w (the kernel needs CONFIG_NFT_COMPAT and "+
			"CONFIG_NETFILTER_XT_TARGET_NFQUEUE, or the qdiscs prio and netem)", netns, err)
	}
	return nil
}

// unqueue removes the rule of queueRule. The table stays, because the kernel drops the packets in
// queues when it removes the hook of a table. A missing rule or namespace is not an error.
func unqueue(netns, id string) error {
	f, err := openNetNS(netns)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(f.Fd())))
	if err != nil {
		return fmt.Errorf("connect to nftables in %s: %w", netns, err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: tablePrefix + id}
	c.FlushChain(&nftables.Chain{Name: "hold", Table: table})
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stop queueing packets in %s: %w", netns, err)
	}
	return nil
}

// nfqInfo returns struct xt_NFQ_info_v3 (linux/netfilter/xt_NFQUEUE.h): first queue, number of
// queues, flags; padded to eight bytes.
func nfqInfo(queue uint16) *xt.Unknown {
	const bypass = 1 // NFQ_FLAG_BYPASS
	info := make(xt.Unknown, 8)
	binary.NativeEndian.PutUint16(info[0:], queue)
	binary.NativeEndian.PutUint16(info[2:], 1)
	binary.NativeEndian.PutUint16(info[4:], bypass)
	return &info
}

// passBridged makes the kernel pass the IP packets of a namespace's bridges to the hooks of family
// inet too.
func passBridged(netns string) error {
	return inNetNS(netns, func() error {
		for _, family := range []string{"iptables", "ip6tables"} {
			// The sysctl belongs to the namespace of this thread.
			if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+family, []byte("1"), 0); err != nil {
				return fmt.Errorf("delay packets of a bridge: %w (the kernel needs CONFIG_BRIDGE_NETFILTER: "+
					"try modprobe br_netfilter)", err)
			}
		}
		return nil
	})
}

// dropTables deletes our tables from a namespace: the tables of one fault, or of all faults if id
// is empty. Missing tables or a missing namespace are not errors.
func dropTables(netns, id string) error {
	f, err := openNetNS(netns)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(f.Fd())))
	if err != nil {
		return fmt.Errorf("connect to nftables in %s: %w", netns, err)
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		tables, err := c.ListTablesOfFamily(family)
		if err != nil {
			return fmt.Errorf("list tables in %s: %w", netns, err)
		}
		for _, t := range tables {
			if of, ours := strings.CutPrefix(t.Name, tablePrefix); ours && (id == "" || of == id) {
				c.DelTable(t)
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete tables in %s: %w", netns, err)
	}
	return nil
}

// hasNetem reports whether the kernel has the qdiscs prio and netem. It tries to add them in a
// temporary namespace.
func hasNetem(ctx context.Context) bool {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return addNetem(ctx, "lo", time.Millisecond)
	}) == nil
}

// addNetem adds the qdiscs of a delay to a link of the current namespace.
func addNetem(ctx context.Context, uplink string, delay time.Duration) error {
	if _, err := command(ctx, "", "tc", prioArgs(uplink)...); err != nil {
		return err
	}
	_, err := command(ctx, "", "tc", netemArgs(uplink, delay)...)
	return err
}

// dropNetem deletes our qdiscs from a link. A missing qdisc, link or namespace
// is not an error.
func dropNetem(ctx context.Context, netns, uplink string) error {
	err := inNetNS(netns, func() error {
		if _, err := net.InterfaceByName(uplink); err != nil {
			return nil
		}
		shown, err := command(ctx, "", "tc", "qdisc", "show", "dev", uplink)
		if err == nil && strings.Contains(shown, "qdisc prio "+prioHandle+" root") {
			_, err = command(ctx, "", "tc", "qdisc", "del", "dev", uplink, "root")
		}
		return err
	})
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}
