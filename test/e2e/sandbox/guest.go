// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// guestPackages are the Debian packages in the guests, besides bash and libraries. Of their
// dependencies only the kernel is included.
var guestPackages = []string{"linux-image-cloud-amd64", "busybox-static", "iputils-ping", "isolinux", "syslinux-common"}

// guestModules are the kernel modules that guest/init loads, in this order.
var guestModules = []string{
	"virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk",
	"failover", "net_failover", "virtio_net", "cdrom", "isofs", "evdev", "button",
}

// kvmTime is how long a guest may take to boot on /dev/kvm. It takes a second or two if /dev/kvm
// works.
const kvmTime = 12 * time.Second

// buildGuests builds the guest images and tests whether a guest boots on /dev/kvm. root contains
// the programs of launcherPackages; buildGuests does not change it.
func buildGuests(ctx context.Context, dir, root string, detail func(string)) error {
	detail("downloading the guests' packages")
	cache, from := filepath.Join(dir, "guest-packages"), filepath.Join(dir, "guest-root")
	if err := download(ctx, cache, guestPackages); err != nil {
		return err
	}
	detail("building guests")
	if err := os.MkdirAll(from, 0o755); err != nil {
		return fmt.Errorf("unpack the guests' packages: %w", err)
	}
	for _, p := range append([]string{"linux-image-[0-9]"}, guestPackages[1:]...) {
		found, err := filepath.Glob(filepath.Join(cache, "archives", p+"*.deb"))
		if err != nil {
			return err
		}
		if len(found) != 1 {
			return fmt.Errorf("unpack the guests' packages: %d packages match %s, want one: %q", len(found), p, found)
		}
		if err := unpack(ctx, found[0], from); err != nil {
			return err
		}
	}
	kernels, err := filepath.Glob(filepath.Join(from, "boot", "vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return fmt.Errorf("build guests: want one kernel, found %q: %w", kernels, err)
	}
	kernel, err := os.ReadFile(kernels[0])
	if err != nil {
		return fmt.Errorf("build guests: %w", err)
	}

	images := map[name.Tag]v1.Image{}
	for _, variant := range []string{"guest", "guest-noping"} {
		initrd, err := guestInitrd(ctx, filepath.Join(dir, variant), from, root, variant == "guest")
		if err != nil {
			return fmt.Errorf("build the root of %s: %w", variant, err)
		}
		work := filepath.Join(root, "guest") // /guest inside root
		for name, content := range map[string][]byte{"iso/boot/vmlinuz": kernel, "iso/boot/initrd": initrd} {
			if err := writeFile(filepath.Join(work, name), content, 0o644); err != nil {
				return fmt.Errorf("build the disk of %s: %w", variant, err)
			}
		}
		if variant == "guest" {
			slow, err := tryKVM(ctx, root)
			if err != nil {
				return err
			}
			text := strconv.FormatBool(slow) + "\n"
			if err := writeFile(filepath.Join(dir, "emulated"), []byte(text), 0o644); err != nil {
				return err
			}
		}
		disk, err := guestDisk(ctx, root, from)
		if err != nil {
			return fmt.Errorf("build the disk of %s: %w", variant, err)
		}
		// KubeVirt uses the disk in /disk; kernelBoot uses kernel and initrd.
		layer, err := fileLayer([]file{
			{path: "disk/guest.iso", mode: 0o444, owner: 107, content: disk},
			{path: "boot/vmlinuz", mode: 0o444, owner: 107, content: kernel},
			{path: "boot/initrd", mode: 0o444, owner: 107, content: initrd},
		})
		if err != nil {
			return fmt.Errorf("create the image of %s: %w", variant, err)
		}
		tag, err := name.NewTag(image(variant))
		if err != nil {
			return fmt.Errorf("name the image of %s: %w", variant, err)
		}
		if images[tag], err = layeredImage(layer); err != nil {
			return fmt.Errorf("create the image of %s: %w", variant, err)
		}
		for _, used := range []string{work, filepath.Join(dir, variant)} {
			if err := os.RemoveAll(used); err != nil {
				return fmt.Errorf("clear the build directory: %w", err)
			}
		}
	}
	if err := tarball.MultiWriteToFile(filepath.Join(dir, "guest-images.tar"), images); err != nil {
		return fmt.Errorf("write the images of guests: %w", err)
	}
	for _, used := range []string{cache, from} {
		if err := os.RemoveAll(used); err != nil {
			return fmt.Errorf("clear the build directory: %w", err)
		}
	}
	return nil
}

// guestInitrd builds the root of a guest in tree, and returns it as an initramfs. Without ping, it
// contains neither the ping of iputils nor that of busybox.
func guestInitrd(ctx context.Context, tree, from, root string, ping bool) ([]byte, error) {
	m := mounter{} // used for all steps, not only mounts
	for _, dir := range []string{
		"bin", "lib/modules", "lib64", "dev", "proc", "sys", "mnt", "run", "tmp", "home/debian", "usr/share/udhcpc",
	} {
		m.mkdir(filepath.Join(tree, dir))
	}
	links := map[string]string{"sbin": "bin", "usr/bin": "../bin", "usr/sbin": "../bin", "bin/sh": "bash"}
	for link, target := range links {
		m.do("link", os.Symlink(target, filepath.Join(tree, link)))
	}
	m.do("chmod", os.Chmod(filepath.Join(tree, "tmp"), 0o1777))
	m.do("chown", os.Chown(filepath.Join(tree, "home/debian"), 1000, 1000))
	m.do("create /dev/console", unix.Mknod(filepath.Join(tree, "dev/console"), unix.S_IFCHR|0o600, int(unix.Mkdev(5, 1))))
	copies := map[string]string{"bin/bash": filepath.Join(root, "usr/bin/bash")}
	if ping {
		copies["bin/ping"] = filepath.Join(from, "bin/ping")
	}
	for to, program := range copies {
		if err := copyProgram(filepath.Join(tree, to), program, tree, root); err != nil {
			return nil, err
		}
	}

	// Under a name other than busybox, the binary runs only the applets that are linked to it, and
	// not for example `busybox ping`.
	busybox, multicall := filepath.Join(from, "bin/busybox"), "busybox"
	if !ping {
		multicall = "multicall"
	}
	list, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the applets of busybox: %w", withStderr(err))
	}
	content, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	m.do("write busybox", os.WriteFile(filepath.Join(tree, "bin", multicall), content, 0o755))
	m.do("chmod", os.Chmod(filepath.Join(tree, "bin", multicall), 0o755|fs.ModeSetuid)) // busybox ping needs it
	for applet := range strings.FieldsSeq(string(list)) {
		if strings.HasPrefix(applet, "ping") && (!ping || applet == "ping") || applet == "busybox" {
			continue
		}
		if err := os.Symlink(multicall, filepath.Join(tree, "bin", applet)); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}

	modules := map[string]string{}
	err = filepath.WalkDir(filepath.Join(from, "lib/modules"), func(path string, _ fs.DirEntry, err error) error {
		if module, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			modules[module] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, module := range guestModules {
		content, err := os.ReadFile(modules[module])
		if err != nil {
			return nil, fmt.Errorf("read kernel module %s: %w", module, err)
		}
		m.do("copy modules", os.WriteFile(filepath.Join(tree, "lib/modules", module+".ko"), content, 0o644))
	}
	moduleList := []byte(strings.Join(guestModules, "\n") + "\n")
	m.do("write the list of modules", os.WriteFile(filepath.Join(tree, "lib/modules/list"), moduleList, 0o644))

	for path, mode := range map[string]fs.FileMode{
		"init": 0o755, "bin/cloud-data": 0o755, "bin/network-data": 0o755,
		"usr/share/udhcpc/default.script": 0o755, "etc/acpi/PWRF/00000080": 0o755,
		"etc/inittab": 0o644, "etc/profile": 0o644, "etc/passwd": 0o644, "etc/group": 0o644,
	} {
		content, err := guestFiles.ReadFile(filepath.Join("guest", path))
		if err != nil {
			return nil, err
		}
		m.do("write "+path, writeFile(filepath.Join(tree, path), content, mode))
	}
	if m.err != nil {
		return nil, m.err
	}

	pack := exec.CommandContext(ctx, "sh", "-c", `find . | LC_ALL=C sort | "$1" cpio -o -H newc`, "sh", busybox)
	pack.Dir = tree
	cpio, err := pack.Output()
	if err != nil {
		return nil, fmt.Errorf("run cpio: %w", withStderr(err))
	}
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	if _, err := zip.Write(cpio); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// copyProgram copies a program, and the libraries that it loads from root to tree.
func copyProgram(to, program, tree, root string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	if err := writeFile(to, content, 0o755); err != nil {
		return err
	}
	const libraries = "lib/x86_64-linux-gnu"
	loader := "lib64/ld-linux-x86-64.so.2"
	binary, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("find the libraries of %s: %w", program, err)
	}
	needed, err := binary.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("find the libraries of %s: %w", program, err)
	}
	for _, library := range needed {
		path := filepath.Join(libraries, library)
		if library == filepath.Base(loader) {
			path = loader
		}
		if _, err := os.Stat(filepath.Join(tree, path)); err == nil {
			continue
		}
		// Use the path inside root: the symbolic link of the loader points to /lib.
		target := filepath.Join(root, libraries, library)
		if err := copyProgram(filepath.Join(tree, path), target, tree, root); err != nil {
			return err
		}
	}
	// Programs do not list their loader as a library.
	if _, err := os.Stat(filepath.Join(tree, loader)); err != nil {
		return copyProgram(filepath.Join(tree, loader), filepath.Join(root, libraries, filepath.Base(loader)), tree, root)
	}
	return nil
}

// guestDisk builds a disk image that boots /guest/iso of root, as a hard disk or a CD.
func guestDisk(ctx context.Context, root, from string) ([]byte, error) {
	work := filepath.Join(root, "guest")
	for to, path := range map[string]string{
		"iso/isolinux/isolinux.bin": "usr/lib/ISOLINUX/isolinux.bin",
		"iso/isolinux/ldlinux.c32":  "usr/lib/syslinux/modules/bios/ldlinux.c32",
		"mbr":                       "usr/lib/ISOLINUX/isohdpfx.bin",
	} {
		content, err := os.ReadFile(filepath.Join(from, path))
		if err != nil {
			return nil, err
		}
		if err := writeFile(filepath.Join(work, to), content, 0o644); err != nil {
			return nil, err
		}
	}
	config, err := guestFiles.ReadFile("guest/isolinux.cfg")
	if err != nil {
		return nil, err
	}
	if err := writeFile(filepath.Join(work, "iso/isolinux/isolinux.cfg"), config, 0o644); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "chroot", root,
		"xorriso", "-as", "mkisofs", "-quiet", "-V", "guest", "-o", "/guest/guest.iso",
		"-isohybrid-mbr", "/guest/mbr", "-c", "isolinux/boot.cat", "-b", "isolinux/isolinux.bin",
		"-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", "/guest/iso").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("xorriso: %w: %s", err, bytes.TrimSpace(out))
	}
	return os.ReadFile(filepath.Join(work, "guest.iso"))
}

// tryKVM boots the guest in root's /guest/iso on /dev/kvm. It reports whether guests need emulation
// instead: on some machines guests hang although the device exists.
func tryKVM(ctx context.Context, root string) (emulated bool, err error) {
	var stat unix.Stat_t
	if err := unix.Stat("/dev/kvm", &stat); err != nil {
		return true, nil
	}
	device := filepath.Join(root, "dev", "kvm")
	if err := unix.Mknod(device, unix.S_IFCHR|0o600, int(stat.Rdev)); err != nil {
		return false, fmt.Errorf("test /dev/kvm: %w", err)
	}
	defer os.Remove(device) // must not be in the packed root
	ctx, cancel := context.WithTimeout(ctx, kvmTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "chroot", root, "qemu-system-x86_64", "-accel", "kvm", "-cpu", "qemu64", "-m", "256",
		"-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", "/guest/iso/boot/vmlinuz", "-initrd", "/guest/iso/boot/initrd", "-append", "console=ttyS0 quiet")
	output := &until{word: "login:", found: cancel}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.WaitDelay = time.Second
	_ = cmd.Run() // fails if it is killed or cannot use /dev/kvm
	return !output.done, nil
}

// until is a writer that calls found when a word is written.
type until struct {
	word  string
	found func()
	seen  []byte
	done  bool
}

func (u *until) Write(b []byte) (int, error) {
	u.seen = append(u.seen, b...)
	if !u.done && bytes.Contains(u.seen, []byte(u.word)) {
		u.done = true
		u.found()
	}
	return len(b), nil
}
