// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// launcherPackages are the Debian packages that, with their dependencies, form the root of
// virt-launcher and virt-handler.
var launcherPackages = []string{
	"libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients", "qemu-system-x86", "qemu-utils",
	"bash", "coreutils", "findutils", "tar", "procps", "nftables", "iproute2", "xorriso", "util-linux", "sed", "grep",
	"libc-bin", "ca-certificates",
}

// kubevirtCommands are the commands of KubeVirt that run in the sandbox. It omits those for
// exports, guest agents and backups.
var kubevirtCommands = []string{
	"virt-operator", "virt-api", "virt-controller", "virt-handler", "virt-chroot",
	"virt-launcher", "virt-launcher-monitor", "virt-tail",
}

// kubevirtEnv is added to [buildEnv] for KubeVirt's module. libvirt requires cgo; the tags keep
// everything else static. The module's go.sum lacks the two modules that it has in directories and
// that copyKubeVirt replaces. -mod=mod adds them, verified with the checksum database.
func kubevirtEnv() []string {
	return []string{"CGO_ENABLED=1", "GOFLAGS=" + goFlags + " -mod=mod -tags=netgo,osusergo"}
}

// buildKubeVirt builds KubeVirt's binaries from its module, their images on top of Debian packages,
// and the guests. It keeps only images and manifests.
func buildKubeVirt(ctx context.Context, dir string, detail func(string)) error {
	src, bin, root := filepath.Join(dir, "src"), filepath.Join(dir, "bin"), filepath.Join(dir, "root")
	detail("copying the module")
	if err := copyKubeVirt(ctx, src); err != nil {
		return err
	}
	var packages []string
	for _, command := range kubevirtCommands {
		packages = append(packages, "./cmd/"+command)
	}
	detail("linking")
	const version = "kubevirt.io/client-go/version"
	flags := fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitTreeState=clean", version, kubevirtVersion)
	if err := goBuild(ctx, src, bin, flags, kubevirtEnv(), detail, packages...); err != nil {
		return err
	}
	// container-disk is the process of a container disk, whose image has no libraries: link it statically.
	gcc := exec.CommandContext(ctx, "gcc", "-O2", "-static", "-o", filepath.Join(bin, "container-disk"),
		filepath.Join(src, "cmd", "container-disk-v2alpha", "main.c"))
	if out, err := gcc.CombinedOutput(); err != nil {
		return fmt.Errorf("compile container-disk: %w: %s", err, bytes.TrimSpace(out))
	}
	for _, name := range kubevirtManifests() {
		b, err := os.ReadFile(filepath.Join(src, "manifests", "generated", name))
		if err != nil {
			return fmt.Errorf("copy KubeVirt's manifests: %w", err)
		}
		if err := writeFile(filepath.Join(dir, "manifests", name), b, 0o644); err != nil {
			return fmt.Errorf("copy KubeVirt's manifests: %w", err)
		}
	}

	if err := debianRoot(ctx, filepath.Join(dir, "packages"), root, launcherPackages, detail); err != nil {
		return err
	}
	if err := buildGuests(ctx, dir, root, detail); err != nil {
		return err
	}
	detail("building images")
	archive := filepath.Join(dir, "control-plane-images.tar")
	if err := writeImages(archive, bin, "virt-operator", "virt-api", "virt-controller"); err != nil {
		return err
	}
	if err := writeWorkerImages(ctx, filepath.Join(dir, "worker-images.tar"), src, bin, root); err != nil {
		return err
	}
	for _, part := range []string{src, bin, root, filepath.Join(dir, "packages")} {
		if err := os.RemoveAll(part); err != nil {
			return fmt.Errorf("clear the build directory: %w", err)
		}
	}
	return nil
}

// copyKubeVirt copies the parts of KubeVirt's module that are built, with the changes that the
// build needs.
func copyKubeVirt(ctx context.Context, to string) error {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", "kubevirt.io/kubevirt@"+kubevirtVersion)
	download.Dir, download.Env = filepath.Dir(to), buildEnv()
	out, err := download.Output()
	if err != nil {
		return fmt.Errorf("download KubeVirt's module: %w: %s", withStderr(err), bytes.TrimSpace(out))
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return fmt.Errorf("download KubeVirt's module: %w", err)
	}
	for _, part := range []string{"cmd", "pkg", "tools/cache", "tools/util", "manifests/generated"} {
		if err := os.CopyFS(filepath.Join(to, part), os.DirFS(filepath.Join(module.Dir, part))); err != nil {
			return fmt.Errorf("copy KubeVirt's module: %w", err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(module.Dir, name))
		if err != nil {
			return fmt.Errorf("copy KubeVirt's module: %w", err)
		}
		if err := writeFile(filepath.Join(to, name), b, 0o644); err != nil {
			return fmt.Errorf("copy KubeVirt's module: %w", err)
		}
	}
	edit := exec.CommandContext(ctx, "go", "mod", "edit",
		"-replace=kubevirt.io/api=kubevirt.io/api@"+kubevirtVersion,
		"-replace=kubevirt.io/client-go=kubevirt.io/client-go@"+kubevirtVersion)
	edit.Dir, edit.Env = to, buildEnv()
	if out, err := edit.CombinedOutput(); err != nil {
		return fmt.Errorf("replace KubeVirt's API with its published modules: %w: %s", err, bytes.TrimSpace(out))
	}
	if hasDummyLinks() {
		return nil
	}
	// A bridge without ports also keeps addresses, like the dummy link.
	for _, change := range [][3]string{
		{"types.go", `TypeDummy  = "dummy"`, `TypeDummy  = "bridge"`},
		{"spec.go", `	TypeDummy: func(iface Interface) (vishnetlink.Link, error) {
		return initLink(iface.Name, &vishnetlink.Dummy{})
	},
`, ""},
	} {
		file := filepath.Join(to, "pkg", "network", "driver", "nmstate", change[0])
		if err := replaceOnce(file, change[1], change[2]); err != nil {
			return fmt.Errorf("patch KubeVirt for a kernel without dummy links: %w", err)
		}
	}
	return nil
}

// download downloads Debian packages and all their dependencies into dir, as apt-get would for a
// machine without packages. It uses only the sources and keys of the machine's apt.
func download(ctx context.Context, dir string, packages []string) error {
	for _, d := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return fmt.Errorf("download Debian packages: %w", err)
		}
	}
	if err := writeFile(filepath.Join(dir, "status"), nil, 0o644); err != nil {
		return fmt.Errorf("download Debian packages: %w", err)
	}
	apt := func(args ...string) error {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{
			"--quiet=2",
			"-o", "Dir::State::status=" + filepath.Join(dir, "status"), "-o", "Dir::State::lists=" + filepath.Join(dir, "lists"),
			"-o", "Dir::Cache=" + dir, "-o", "Dir::Cache::archives=" + filepath.Join(dir, "archives"),
			"-o", "APT::Install-Recommends=false", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1",
		}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
		return nil
	}
	// A failed source matters only if it has the packages.
	failed := apt("update")
	if err := apt(append([]string{"install", "--yes", "--download-only"}, packages...)...); err != nil {
		return fmt.Errorf("download Debian packages: %w", errors.Join(err, failed))
	}
	return nil
}

// debianRoot unpacks Debian packages and all their dependencies into root, without documentation.
// It runs no package scripts.
func debianRoot(ctx context.Context, cache, root string, packages []string, detail func(string)) error {
	detail("downloading Debian packages")
	if err := download(ctx, cache, packages); err != nil {
		return err
	}
	detail("unpacking Debian packages")
	for link, target := range map[string]string{
		"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64",
		"var/run": "../run", "var/lock": "../run/lock",
	} {
		link = filepath.Join(root, link)
		for _, dir := range []string{filepath.Dir(link), filepath.Join(filepath.Dir(link), target)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("unpack Debian packages: %w", err)
			}
		}
		if err := os.Symlink(target, link); err != nil {
			return fmt.Errorf("unpack Debian packages: %w", err)
		}
	}
	found, err := filepath.Glob(filepath.Join(cache, "archives", "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range found {
		if err := unpack(ctx, deb, root); err != nil {
			return err
		}
	}
	return nil
}

// unpack unpacks a Debian package into root. It follows existing links to directories.
func unpack(ctx context.Context, deb, root string) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", `set -e; `+
		`dpkg-deb --fsys-tarfile "$1" | tar --extract --keep-directory-symlink --directory "$2" `+
		`--exclude './usr/share/doc/*' --exclude './usr/share/man/*' `+
		`--exclude './usr/share/info/*' --exclude './usr/share/locale/*' `+
		`--exclude './usr/share/perl*/*' --exclude './usr/lib/*/perl*/*' --exclude './usr/lib/*/gconv/*'`,
		"sh", deb, root)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w: %s", deb, err, bytes.TrimSpace(out))
	}
	return nil
}

// launcherRoot adds what package scripts would create, and what KubeVirt's own images contain, to a
// root of Debian packages.
func launcherRoot(root, src string) error {
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/bash\nqemu:x:107:107:qemu:/home/qemu:/bin/bash\n" +
			"libvirt-qemu:x:64055:64055:libvirt:/var/lib/libvirt:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"etc/group": "root:x:0:\ntty:x:5:\nqemu:x:107:\nkvm:x:104:\nlibvirt:x:105:\nlibvirt-qemu:x:64055:\n" +
			"nogroup:x:65534:\n",
		// virt-launcher reads the lines that are not comments, and needs at least one.
		"etc/libvirt/virtlogd.conf": "max_clients = 1024\n",
		// Debian has no virtqemud. libvirtd with the QEMU driver as its only connection driver does
		// the same. virt-handler searches for a process of this name.
		"usr/sbin/virtqemud": "#!/bin/bash\nmkdir -p /run/libvirt\nln -sf libvirt-sock /run/libvirt/virtqemud-sock\n" +
			"exec /usr/libexec/virtqemud \"$@\"\n",
	}
	for to, from := range map[string]string{
		"etc/libvirt/qemu.conf": "qemu.conf", "etc/libvirt/virtqemud.conf": "virtqemud.conf",
		"etc/libvirt/hooks/qemu": "qemu",
		"etc/nsswitch.conf":      "nsswitch.conf", "usr/bin/node-labeller.sh": "node-labeller/node-labeller.sh",
	} {
		b, err := os.ReadFile(filepath.Join(src, "cmd", "virt-launcher", from))
		if err != nil {
			return fmt.Errorf("build the root of virt-launcher: %w", err)
		}
		files[to] = string(b)
	}
	// The script would create a /dev/kvm that the node does not have because guests hang on it.
	labeller := "usr/bin/node-labeller.sh"
	files[labeller] = strings.Replace(files[labeller], "mknod /dev/kvm", ": mknod /dev/kvm", 1)
	for path, content := range files {
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(content, "#!") {
			mode = 0o755
		}
		if err := writeFile(filepath.Join(root, path), []byte(content), mode); err != nil {
			return fmt.Errorf("build the root of virt-launcher: %w", err)
		}
	}
	drivers, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libvirt/connection-driver/*.so"))
	if err != nil {
		return err
	}
	for _, driver := range drivers {
		if filepath.Base(driver) != "libvirt_driver_qemu.so" {
			if err := os.Remove(driver); err != nil {
				return fmt.Errorf("build the root of virt-launcher: %w", err)
			}
		}
	}
	for _, dir := range []string{"usr/libexec", "var/log/libvirt"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("build the root of virt-launcher: %w", err)
		}
	}
	libvirtd, virtqemud := filepath.Join(root, "usr/sbin/libvirtd"), filepath.Join(root, "usr/libexec/virtqemud")
	if err := os.Rename(libvirtd, virtqemud); err != nil {
		return fmt.Errorf("build the root of virt-launcher: %w", err)
	}
	if err := os.Symlink("bash", filepath.Join(root, "usr/bin/sh")); err != nil {
		return fmt.Errorf("build the root of virt-launcher: %w", err)
	}
	return nil
}

// writeWorkerImages writes the images of virt-launcher and virt-handler. They differ only in their
// own binaries.
func writeWorkerImages(ctx context.Context, archive, src, bin, root string) error {
	if err := launcherRoot(root, src); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "tar", "--create", "--numeric-owner", "--sort=name", "--mtime=@0",
		"--directory", root, ".").Output()
	if err != nil {
		return fmt.Errorf("pack the root of virt-launcher: %w", withStderr(err))
	}
	base := static.NewLayer(out, types.DockerUncompressedLayer)
	images := map[name.Tag]v1.Image{}
	for _, of := range [][]string{
		{"virt-launcher", "virt-launcher-monitor", "container-disk", "virt-tail"},
		{"virt-handler", "virt-chroot"},
	} {
		var files []file
		for _, command := range of {
			content, err := os.ReadFile(filepath.Join(bin, command))
			if err != nil {
				return fmt.Errorf("build the image of %s: %w", of[0], err)
			}
			f := file{path: "usr/bin/" + command, mode: 0o755, content: content}
			if command == "virt-launcher-monitor" {
				f.capability = 10 // CAP_NET_BIND_SERVICE, as in KubeVirt's image
			}
			files = append(files, f)
		}
		layer, err := fileLayer(files)
		if err != nil {
			return fmt.Errorf("build the image of %s: %w", of[0], err)
		}
		tag, err := name.NewTag(image(of[0]))
		if err != nil {
			return fmt.Errorf("name the image of %s: %w", of[0], err)
		}
		if images[tag], err = layeredImage(base, layer); err != nil {
			return fmt.Errorf("build the image of %s: %w", of[0], err)
		}
	}
	if err := tarball.MultiWriteToFile(archive, images); err != nil {
		return fmt.Errorf("write images to %s: %w", archive, err)
	}
	return nil
}

// layeredImage returns an image of these layers, with Debian's search path.
func layeredImage(layers ...v1.Layer) (v1.Image, error) {
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Env = []string{"PATH=/usr/sbin:/usr/bin"}
	return mutate.ConfigFile(img, config)
}

// file is a file in a layer of an image.
type file struct {
	path       string // without leading slash; its directories belong to root
	mode       int64
	owner      int // user and group
	content    []byte
	capability int // number of the file capability; 0: none
}

// fileLayer returns a layer of files.
func fileLayer(files []file) (v1.Layer, error) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{
			Name: f.path, Typeflag: tar.TypeReg, Mode: f.mode, Uid: f.owner, Gid: f.owner,
			Size: int64(len(f.content)), ModTime: time.Unix(0, 0),
		}
		if f.capability > 0 {
			// struct vfs_cap_data of linux/capability.h, revision 2: effective,
			// permitted.
			data := binary.LittleEndian.AppendUint32(nil, 0x02000001)
			data = binary.LittleEndian.AppendUint32(data, 1<<f.capability)
			data = append(data, make([]byte, 12)...)
			h.Format = tar.FormatPAX
			h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": string(data)}
		}
		if err := tw.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := tw.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return static.NewLayer(b.Bytes(), types.DockerUncompressedLayer), nil
}
