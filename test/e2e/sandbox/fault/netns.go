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

// errGone is a network namespace that does not exist (any more).
var errGone = errors.New("no such network namespace")

// openNetNS opens the file of a network namespace. A file that is there but is
// none, as after an unmount, is errGone like a missing one.
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

// inNetNS calls do in the network namespace of a file. Sockets that do opens
// and processes that it starts are in it, as long as it starts no goroutine.
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

// onThread calls do on a thread of its own, which ends with it, so that no
// other code runs in a namespace that do has entered.
func onThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock
		done <- do()
	}()
	return <-done
}

// command runs a tool with input in the current namespace, and returns what it
// printed. What it complained of is in the error.
func command(ctx context.Context, input, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	switch err := cmd.Run(); {
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w (Debian has it in the package %s)", err, map[string]string{"nft": "nftables", "tc": "iproute2"}[name])
	case err != nil:
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// load puts nft text into a namespace, all of it or nothing.
func load(ctx context.Context, netns, text string) error {
	return inNetNS(netns, func() error {
		_, err := command(ctx, text, "nft", "-f", "-")
		return err
	})
}

// queueRule makes chain hold of a fault's table pass packets to a netfilter
// queue, or on if nobody listens there. It is the xtables target, because a
// kernel may lack nft's own queue expression and the tool nft cannot name the
// target.
func queueRule(netns, id string, queue uint16) error {
	f, err := openNetNS(netns)
	if err != nil {
		return err
	}
	defer f.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(f.Fd())))
	if err != nil {
		return fmt.Errorf("reach nftables in %s: %w", netns, err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: tablePrefix + id}
	c.AddRule(&nftables.Rule{
		Table: table,
		Chain: &nftables.Chain{Name: "hold", Table: table},
		Exprs: []expr.Any{&expr.Target{Name: "NFQUEUE", Rev: 3, Info: nfqInfo(queue)}},
	})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("queue packets in %s (the kernel needs CONFIG_NFT_COMPAT and CONFIG_NETFILTER_XT_TARGET_NFQUEUE, or the qdiscs prio and netem): %w", netns, err)
	}
	return nil
}

// unqueue undoes queueRule, and leaves the table, because the kernel drops what
// queues hold when a table's hook goes. No rule, or no namespace, is fine.
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
		return fmt.Errorf("reach nftables in %s: %w", netns, err)
	}
	c.FlushChain(&nftables.Chain{Name: "hold", Table: &nftables.Table{Family: nftables.TableFamilyINet, Name: tablePrefix + id}})
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("queue no more packets in %s: %w", netns, err)
	}
	return nil
}

// nfqInfo is struct xt_NFQ_info_v3 (linux/netfilter/xt_NFQUEUE.h): first queue,
// number of queues, flags, padded to eight bytes.
func nfqInfo(queue uint16) *xt.Unknown {
	const bypass = 1 // NFQ_FLAG_BYPASS
	info := make(xt.Unknown, 8)
	binary.NativeEndian.PutUint16(info[0:], queue)
	binary.NativeEndian.PutUint16(info[2:], 1)
	binary.NativeEndian.PutUint16(info[4:], bypass)
	return &info
}

// passBridged makes a namespace pass the IP packets of its bridges through the
// hooks of family inet too.
func passBridged(netns string) error {
	return inNetNS(netns, func() error {
		for _, family := range []string{"iptables", "ip6tables"} {
			// Of the namespace that the thread is in.
			if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+family, []byte("1"), 0); err != nil {
				return fmt.Errorf("delay packets of a bridge (the kernel needs CONFIG_BRIDGE_NETFILTER; try modprobe br_netfilter): %w", err)
			}
		}
		return nil
	})
}

// dropTables deletes our tables from a namespace: that of one fault, or of all
// if id is empty. None, or no namespace, is fine.
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
		return fmt.Errorf("reach nftables in %s: %w", netns, err)
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

// hasNetem tells whether the kernel has the two qdiscs that delay likes best,
// by making them in a namespace that nobody else sees.
func hasNetem(ctx context.Context) bool {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return addNetem(ctx, "lo", time.Millisecond)
	}) == nil
}

// addNetem makes the qdiscs of a delay on a link of the current namespace.
func addNetem(ctx context.Context, uplink string, delay time.Duration) error {
	if _, err := command(ctx, "", "tc", prioArgs(uplink)...); err != nil {
		return err
	}
	_, err := command(ctx, "", "tc", netemArgs(uplink, delay)...)
	return err
}

// dropNetem deletes our qdiscs from a link. None, or no link, or no namespace,
// is fine.
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
