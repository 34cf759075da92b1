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

// launcherPackages are the Debian packages whose closure is the root of
// virt-launcher and virt-handler.
var launcherPackages = []string{
	"libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients", "qemu-system-x86", "qemu-utils",
	"bash", "coreutils", "findutils", "tar", "procps", "nftables", "iproute2", "xorriso", "util-linux", "sed", "grep",
	"libc-bin", "ca-certificates",
}

// kubevirtCommands are the commands of KubeVirt that run in the sandbox. Left out
// are those for exports, agents in guests and backups.
var kubevirtCommands = []string{
	"virt-operator", "virt-api", "virt-controller", "virt-handler", "virt-chroot",
	"virt-launcher", "virt-launcher-monitor", "virt-tail",
}

// kubevirtEnv is beside [buildEnv] for KubeVirt's module: libvirt takes cgo, with
// which the tags keep everything else static. Its go.sum lacks the two modules
// that it has in a directory and are taken from elsewhere: -mod=mod adds them, by
// the checksum database.
func kubevirtEnv() []string {
	return []string{"CGO_ENABLED=1", "GOFLAGS=-buildvcs=false -trimpath -mod=mod -tags=netgo,osusergo"}
}

// buildKubeVirt makes KubeVirt's binaries from its module, images of them on
// Debian's packages, and the guests. It keeps the images and the manifests.
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
	// The process of a container disk: it has nothing but itself to run on.
	gcc := exec.CommandContext(ctx, "gcc", "-O2", "-static", "-o", filepath.Join(bin, "container-disk"),
		filepath.Join(src, "cmd", "container-disk-v2alpha", "main.c"))
	if out, err := gcc.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling container-disk: %w: %s", err, bytes.TrimSpace(out))
	}
	for _, name := range kubevirtManifests() {
		b, err := os.ReadFile(filepath.Join(src, "manifests", "generated", name))
		if err != nil {
			return fmt.Errorf("copying KubeVirt's manifests: %w", err)
		}
		if err := writeFile(filepath.Join(dir, "manifests", name), b, 0o644); err != nil {
			return fmt.Errorf("copying KubeVirt's manifests: %w", err)
		}
	}

	if err := debianRoot(ctx, filepath.Join(dir, "packages"), root, launcherPackages, detail); err != nil {
		return err
	}
	if err := buildGuests(ctx, dir, root, detail); err != nil {
		return err
	}
	detail("making images")
	if err := writeImages(filepath.Join(dir, "control-plane-images.tar"), bin, "virt-operator", "virt-api", "virt-controller"); err != nil {
		return err
	}
	if err := writeWorkerImages(ctx, filepath.Join(dir, "worker-images.tar"), src, bin, root); err != nil {
		return err
	}
	for _, part := range []string{src, bin, root, filepath.Join(dir, "packages")} {
		if err := os.RemoveAll(part); err != nil {
			return fmt.Errorf("clearing the build directory: %w", err)
		}
	}
	return nil
}

// copyKubeVirt writes what of KubeVirt's module is built, changed so that it can be.
func copyKubeVirt(ctx context.Context, to string) error {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", "kubevirt.io/kubevirt@"+kubevirtVersion)
	download.Dir, download.Env = filepath.Dir(to), buildEnv()
	out, err := download.Output()
	if err != nil {
		return fmt.Errorf("downloading KubeVirt's module: %w: %s", withStderr(err), bytes.TrimSpace(out))
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return fmt.Errorf("downloading KubeVirt's module: %w", err)
	}
	for _, part := range []string{"cmd", "pkg", "tools/cache", "tools/util", "manifests/generated"} {
		if err := os.CopyFS(filepath.Join(to, part), os.DirFS(filepath.Join(module.Dir, part))); err != nil {
			return fmt.Errorf("copying KubeVirt's module: %w", err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(module.Dir, name))
		if err != nil {
			return fmt.Errorf("copying KubeVirt's module: %w", err)
		}
		if err := writeFile(filepath.Join(to, name), b, 0o644); err != nil {
			return fmt.Errorf("copying KubeVirt's module: %w", err)
		}
	}
	edit := exec.CommandContext(ctx, "go", "mod", "edit",
		"-replace=kubevirt.io/api=kubevirt.io/api@"+kubevirtVersion,
		"-replace=kubevirt.io/client-go=kubevirt.io/client-go@"+kubevirtVersion)
	edit.Dir, edit.Env = to, buildEnv()
	if out, err := edit.CombinedOutput(); err != nil {
		return fmt.Errorf("taking KubeVirt's API from its published modules: %w: %s", err, bytes.TrimSpace(out))
	}
	if hasDummyLinks() {
		return nil
	}
	// A bridge without ports does what the dummy link does: it keeps addresses.
	for _, change := range [][3]string{
		{"types.go", `TypeDummy  = "dummy"`, `TypeDummy  = "bridge"`},
		{"spec.go", `	TypeDummy: func(iface Interface) (vishnetlink.Link, error) {
		return initLink(iface.Name, &vishnetlink.Dummy{})
	},
`, ""},
	} {
		file := filepath.Join(to, "pkg", "network", "driver", "nmstate", change[0])
		b, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("changing KubeVirt for a kernel without dummy links: %w", err)
		}
		if strings.Count(string(b), change[1]) != 1 {
			return fmt.Errorf("changing KubeVirt for a kernel without dummy links: %s does not have %q once", file, change[1])
		}
		if err := writeFile(file, []byte(strings.Replace(string(b), change[1], change[2], 1)), 0o644); err != nil {
			return fmt.Errorf("changing KubeVirt for a kernel without dummy links: %w", err)
		}
	}
	return nil
}

// download fetches Debian packages and all that they depend on, as apt-get would
// install them on a machine that has nothing, into dir. The machine's own apt is
// only asked for its sources and keys.
func download(ctx context.Context, dir string, packages []string) error {
	for _, d := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return fmt.Errorf("downloading Debian packages: %w", err)
		}
	}
	if err := writeFile(filepath.Join(dir, "status"), nil, 0o644); err != nil {
		return fmt.Errorf("downloading Debian packages: %w", err)
	}
	apt := func(args ...string) error {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{
			"--quiet=2", "-o", "Dir::State::status=" + filepath.Join(dir, "status"), "-o", "Dir::State::lists=" + filepath.Join(dir, "lists"),
			"-o", "Dir::Cache=" + dir, "-o", "Dir::Cache::archives=" + filepath.Join(dir, "archives"),
			"-o", "APT::Install-Recommends=false", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1",
		}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
		return nil
	}
	// A source that does not answer matters only if it has the packages.
	failed := apt("update")
	if err := apt(append([]string{"install", "--yes", "--download-only"}, packages...)...); err != nil {
		return fmt.Errorf("downloading Debian packages: %w", errors.Join(err, failed))
	}
	return nil
}

// debianRoot makes a root of Debian packages and all that they depend on, without
// what only people read. No script of a package runs.
func debianRoot(ctx context.Context, cache, root string, packages []string, detail func(string)) error {
	detail("downloading Debian packages")
	if err := download(ctx, cache, packages); err != nil {
		return err
	}
	detail("unpacking Debian packages")
	for link, target := range map[string]string{
		"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "../run", "var/lock": "../run/lock",
	} {
		link = filepath.Join(root, link)
		for _, dir := range []string{filepath.Dir(link), filepath.Join(filepath.Dir(link), target)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("unpacking Debian packages: %w", err)
			}
		}
		if err := os.Symlink(target, link); err != nil {
			return fmt.Errorf("unpacking Debian packages: %w", err)
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

// unpack unpacks a Debian package into root, over the links that there are.
func unpack(ctx context.Context, deb, root string) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", `set -e; dpkg-deb --fsys-tarfile "$1" | tar --extract --keep-directory-symlink --directory "$2" `+
		`--exclude './usr/share/doc/*' --exclude './usr/share/man/*' --exclude './usr/share/info/*' --exclude './usr/share/locale/*' `+
		`--exclude './usr/share/perl*/*' --exclude './usr/lib/*/perl*/*' --exclude './usr/lib/*/gconv/*'`, "sh", deb, root)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("unpacking %s: %w: %s", deb, err, bytes.TrimSpace(out))
	}
	return nil
}

// launcherRoot gives the root of Debian packages what its packages' scripts would,
// and KubeVirt's own images have.
func launcherRoot(root, src string) error {
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/bash\nqemu:x:107:107:qemu:/home/qemu:/bin/bash\n" +
			"libvirt-qemu:x:64055:64055:libvirt:/var/lib/libvirt:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"etc/group": "root:x:0:\ntty:x:5:\nqemu:x:107:\nkvm:x:104:\nlibvirt:x:105:\nlibvirt-qemu:x:64055:\nnogroup:x:65534:\n",
		// virt-launcher reads what is not a comment, and needs something.
		"etc/libvirt/virtlogd.conf": "max_clients = 1024\n",
		// Debian has no virtqemud. libvirtd does the same with the one driver for
		// connections that it finds; virt-handler looks for a process of this name.
		"usr/sbin/virtqemud": "#!/bin/bash\nmkdir -p /run/libvirt\nln -sf libvirt-sock /run/libvirt/virtqemud-sock\n" +
			"exec /usr/libexec/virtqemud \"$@\"\n",
	}
	for to, from := range map[string]string{
		"etc/libvirt/qemu.conf": "qemu.conf", "etc/libvirt/virtqemud.conf": "virtqemud.conf", "etc/libvirt/hooks/qemu": "qemu",
		"etc/nsswitch.conf": "nsswitch.conf", "usr/bin/node-labeller.sh": "node-labeller/node-labeller.sh",
	} {
		b, err := os.ReadFile(filepath.Join(src, "cmd", "virt-launcher", from))
		if err != nil {
			return fmt.Errorf("making the root of virt-launcher: %w", err)
		}
		files[to] = string(b)
	}
	// It would make a /dev/kvm that the node does not have because guests hang on it.
	files["usr/bin/node-labeller.sh"] = strings.Replace(files["usr/bin/node-labeller.sh"], "mknod /dev/kvm", ": mknod /dev/kvm", 1)
	for path, content := range files {
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(content, "#!") {
			mode = 0o755
		}
		if err := writeFile(filepath.Join(root, path), []byte(content), mode); err != nil {
			return fmt.Errorf("making the root of virt-launcher: %w", err)
		}
	}
	drivers, err := filepath.Glob(filepath.Join(root, "usr/lib/*/libvirt/connection-driver/*.so"))
	if err != nil {
		return err
	}
	for _, driver := range drivers {
		if filepath.Base(driver) != "libvirt_driver_qemu.so" {
			if err := os.Remove(driver); err != nil {
				return fmt.Errorf("making the root of virt-launcher: %w", err)
			}
		}
	}
	for _, dir := range []string{"usr/libexec", "var/log/libvirt"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("making the root of virt-launcher: %w", err)
		}
	}
	if err := os.Rename(filepath.Join(root, "usr/sbin/libvirtd"), filepath.Join(root, "usr/libexec/virtqemud")); err != nil {
		return fmt.Errorf("making the root of virt-launcher: %w", err)
	}
	if err := os.Symlink("bash", filepath.Join(root, "usr/bin/sh")); err != nil {
		return fmt.Errorf("making the root of virt-launcher: %w", err)
	}
	return nil
}

// writeWorkerImages writes the images of virt-launcher and virt-handler, which
// share all but their own binaries.
func writeWorkerImages(ctx context.Context, archive, src, bin, root string) error {
	if err := launcherRoot(root, src); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "tar", "--create", "--numeric-owner", "--sort=name", "--mtime=@0", "--directory", root, ".").Output()
	if err != nil {
		return fmt.Errorf("packing the root of virt-launcher: %w", withStderr(err))
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
				return fmt.Errorf("making the image of %s: %w", of[0], err)
			}
			f := file{path: "usr/bin/" + command, mode: 0o755, content: content}
			if command == "virt-launcher-monitor" {
				f.capability = 10 // CAP_NET_BIND_SERVICE, as in KubeVirt's image
			}
			files = append(files, f)
		}
		layer, err := fileLayer(files)
		if err != nil {
			return fmt.Errorf("making the image of %s: %w", of[0], err)
		}
		tag, err := name.NewTag(image(of[0]))
		if err != nil {
			return fmt.Errorf("naming the image of %s: %w", of[0], err)
		}
		if images[tag], err = layeredImage(base, layer); err != nil {
			return fmt.Errorf("making the image of %s: %w", of[0], err)
		}
	}
	if err := tarball.MultiWriteToFile(archive, images); err != nil {
		return fmt.Errorf("writing images to %s: %w", archive, err)
	}
	return nil
}

// layeredImage is an image of these layers, with Debian's search path.
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

// file is one of an image's layer.
type file struct {
	path       string // without a slash before it; its directories are root's
	mode       int64
	owner      int // user and group
	content    []byte
	capability int // that whoever runs it has, by its number; 0 is none
}

// fileLayer is a layer of files.
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
