// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// modules are those that a machine loads, after those that they need. What is built into the kernel is left out.
var modules = []string{
	"crc32c_generic", // libcrc32c needs it without saying so
	"virtio_pci", "virtio_blk", "dummy", "veth", "bridge",
	"nf_conntrack", "nf_conntrack_netlink", "nf_nat", "nf_tables", "nft_compat", "nft_chain_nat", "nft_ct", "nft_nat",
	"nft_masq", "nft_redir", "nft_fib_ipv4", "nft_fib_ipv6", "nft_fib_inet", "nft_reject_inet", "nft_numgen", "nft_limit",
	"nft_log", "nft_hash", "nft_reject_ipv4", "nft_reject_ipv6",
	"ip_tables", "iptable_nat", "iptable_filter", "iptable_mangle", "ip6_tables", "ip6table_nat", "ip6table_filter",
	"xt_tcpudp", "xt_comment", "xt_mark", "xt_addrtype", "xt_conntrack", "xt_statistic", "xt_recent", "xt_nat",
	"xt_MASQUERADE", "xt_physdev", "xt_set", "xt_ipvs", "xt_sctp", "ipt_REJECT", "ip6t_REJECT",
	"ip_set", "ip_set_hash_ip", "ip_set_hash_ipport", "ip_set_hash_ipportip", "ip_set_hash_ipportnet", "ip_set_hash_net",
	"ip_set_bitmap_port",
	"ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_lc", "ip_vs_wlc", "ip_vs_sh", "ip_vs_mh", "ip_vs_sed", "ip_vs_nq", "ip_vs_dh",
	"ip_vs_fo",
}

// guest is a machine that runs one program, and ends.
type guest struct {
	dir             string // for its files
	kernel, archive []byte
	memory          int       // MiB
	out             io.Writer // gets what the program prints, while it does
}

type result struct {
	code   int
	output string
	files  []byte // a tar archive; empty without order.Keep
}

// diskSize is that of the machine's disk in bytes, which takes the files that are kept.
const diskSize = 256 << 20

var exitCode = regexp.MustCompile(`(?m)^guest: exit code (-?[0-9]+)\s*$`)

// run starts the machine, and waits for its end. An error means that it did not run the program to its end.
func (g guest) run(ctx context.Context, timeout time.Duration) (result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the machine ran for %s", timeout))
	defer cancel()
	path := func(name string) string { return filepath.Join(g.dir, name) }
	if err := errors.Join(os.WriteFile(path("vmlinuz"), g.kernel, 0o600), os.WriteFile(path("initrd"), g.archive, 0o600),
		os.WriteFile(path("disk"), nil, 0o600), os.Truncate(path("disk"), diskSize)); err != nil {
		return result{}, err
	}
	// Of the kernel's command line: a kernel that panics restarts at once, which ends QEMU; without KVM on a busy
	// machine, the timer is late when the kernel tests it, and the kernel distrusts the clock; and what only takes time.
	const words = "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable nokaslr mitigations=off cryptomgr.notests"
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-m", strconv.Itoa(g.memory),
		"-nodefaults", "-display", "none", "-no-reboot", "-kernel", path("vmlinuz"), "-initrd", path("initrd"), "-append", words,
		"-drive", "format=raw,if=virtio,file="+path("disk"), "-serial", "file:"+path("console"), "-serial", "stdio")
	var output, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&output, g.out), &said
	err := cmd.Run()
	r := result{output: output.String()}
	found := exitCode.FindAllStringSubmatch(r.output, -1)
	if len(found) == 0 {
		console, _ := os.ReadFile(path("console"))
		lines := strings.Split(string(bytes.TrimSpace(console)), "\n")
		if err = errors.Join(err, context.Cause(ctx)); err == nil {
			err = errors.New("the machine switched itself off")
		}
		return r, fmt.Errorf("the tests did not end: %w\n%s\nThe end of the machine's messages:\n%s", err, bytes.TrimSpace(said.Bytes()), strings.Join(lines[max(0, len(lines)-30):], "\n"))
	}
	r.code, _ = strconv.Atoi(found[len(found)-1][1])
	r.files, err = os.ReadFile(path("disk"))
	return r, err
}

// extract writes the files of an archive that are in a directory of the repository.
func extract(archive []byte, directory string) error {
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the files that the machine kept: %w", err)
		}
		name := filepath.Clean(h.Name)
		if !filepath.IsLocal(name) || !strings.HasPrefix(name, filepath.Clean(directory)+"/") {
			return fmt.Errorf("the machine kept a file %q, outside of %s", h.Name, directory)
		}
		content, err := io.ReadAll(r)
		if err == nil {
			err = os.WriteFile(name, content, 0o644)
		}
		if err != nil {
			return err
		}
	}
}
