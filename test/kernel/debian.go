// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/checkplan/checkplan/pkg/initramfs"
)

// debianPackages have debianPrograms, which are in the PATH of each machine.
var (
	debianPackages = []string{"iptables", "ipset", "nftables", "iproute2", "conntrack"}
	debianPrograms = []string{
		"iptables-nft", "iptables-nft-save", "iptables-nft-restore", "ip6tables-nft", "ip6tables-nft-save", "ip6tables-nft-restore",
		"iptables-legacy", "iptables-legacy-save", "iptables-legacy-restore", "ip6tables-legacy", "ip6tables-legacy-save",
		"ip6tables-legacy-restore", "ipset", "nft", "ip", "conntrack",
	}
)

// unpackDebian unpacks packages and all their dependencies, without documentation and scripts, into a directory of the
// cache, and returns it. The sources are those of this machine's apt.
func unpackDebian(ctx context.Context, cache string, packages []string) (string, error) {
	fail := func(err error) (string, error) { return "", fmt.Errorf("unpack Debian packages: %w", err) }
	archives, none := filepath.Join(cache, "archives"), filepath.Join(cache, "none")
	for _, directory := range []string{filepath.Join(archives, "partial"), filepath.Join(none, "partial")} {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return fail(err)
		}
	}
	status := filepath.Join(cache, "status") // of a machine without packages
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return fail(err)
	}
	apt := func(archives, how string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"--quiet=2", "--yes", "-o", "Dir::State::status=" + status,
			"-o", "Dir::Cache::archives=" + archives, "-o", "APT::Install-Recommends=false", "-o", "APT::Sandbox::User=root",
			"-o", "Debug::NoLocking=1", how, "install"}, packages...)...)
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s\nIf apt does not know the packages: run apt-get update", cmd, err, bytes.TrimSpace(said.Bytes()))
		}
		return out, nil
	}
	// Each line is 'URI' FILE SIZE HASH, of the packages that are not in the directory of archives.
	uris, err := apt(none, "--print-uris")
	if err != nil {
		return fail(err)
	}
	var files []string
	for line := range strings.Lines(string(uris)) {
		if fields := strings.Fields(line); len(fields) >= 2 && strings.HasSuffix(fields[1], ".deb") {
			files = append(files, fields[1])
		}
	}
	root := filepath.Join(cache, fmt.Sprintf("root-%.8x", sha256.Sum256([]byte(strings.Join(files, "\n")))))
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	if _, err := apt(archives, "--download-only"); err != nil {
		return fail(err)
	}
	part, err := os.MkdirTemp(cache, "part")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(part)
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(part, "usr", name), 0o755), os.Symlink("usr/"+name, filepath.Join(part, name))); err != nil {
			return fail(err)
		}
	}
	for _, file := range files {
		cmd := exec.CommandContext(ctx, "sh", "-c", `set -e; dpkg-deb --fsys-tarfile "$1" | tar --extract --keep-directory-symlink --directory "$2" --exclude './usr/share/*' --exclude './usr/lib/*/perl*' --exclude './usr/lib/*/gconv/*'`,
			"sh", filepath.Join(archives, file), part)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fail(fmt.Errorf("%s: %w: %s", file, err, bytes.TrimSpace(out)))
		}
	}
	if err := os.Rename(part, root); err != nil {
		return fail(err)
	}
	return root, nil
}

// addDebian adds programs of an unpacked root, the libraries that they need, and what iptables loads by itself.
func addDebian(a *initramfs.Archive, root string, programs []string) error {
	d := debian{a: a, root: root, added: map[string]bool{}}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		a.Directory("usr/" + name)
		a.Link(name, "usr/"+name)
	}
	for _, directory := range []string{"etc", "root", "run", "tmp", "var"} {
		a.Directory(directory)
	}
	// ipset asks the C library for the numbers of protocols.
	a.File("etc/protocols", 0o644, []byte("icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n"))
	a.File("etc/nsswitch.conf", 0o644, []byte("protocols: files\n"))
	for _, program := range programs {
		if err := d.find(program, "usr/sbin", "usr/bin"); err != nil {
			return err
		}
	}
	plugins, err := filepath.Glob(filepath.Join(root, "usr/lib/*/xtables/*.so"))
	if err != nil {
		return err
	}
	for _, plugin := range plugins {
		name, _ := filepath.Rel(root, plugin)
		if err := d.add(name); err != nil {
			return err
		}
	}
	return nil
}

type debian struct {
	a     *initramfs.Archive
	root  string
	added map[string]bool // paths
}

// find adds a file that is in one of some directories.
func (d *debian) find(name string, directories ...string) error {
	for _, directory := range directories {
		path := filepath.Join(directory, name)
		if _, err := os.Lstat(filepath.Join(d.root, path)); err == nil {
			return d.add(path)
		}
	}
	return fmt.Errorf("%s is in none of %s of the Debian packages", name, strings.Join(directories, ", "))
}

// add adds a file, what its links lead to, and the libraries that it needs.
func (d *debian) add(path string) error {
	if d.added[path] {
		return nil
	}
	d.added[path] = true
	full := filepath.Join(d.root, path)
	info, err := os.Lstat(full)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(full)
		if err != nil {
			return err
		}
		d.a.Link(path, target)
		if !filepath.IsAbs(target) {
			target = filepath.Join("/", filepath.Dir(path), target)
		}
		target = strings.TrimPrefix(target, "/")
		for _, merged := range []string{"bin", "sbin", "lib", "lib64"} {
			if rest, ok := strings.CutPrefix(target, merged+"/"); ok {
				target = filepath.Join("usr", merged, rest)
			}
		}
		return d.add(target)
	}
	content, err := os.ReadFile(full)
	if err != nil {
		return err
	}
	d.a.File(path, 0o755, content)
	program, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil // a script
	}
	libraries, err := program.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, library := range libraries {
		if err := d.find(library, "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"); err != nil {
			return err
		}
	}
	if program.Section(".interp") != nil {
		return d.find("ld-linux-x86-64.so.2", "usr/lib64")
	}
	return nil
}
