// SPDX-License-Identifier: Apache-2.0

// Guestimage builds the image of checkplan's guest: a Debian kernel, and an initramfs with the agent as the first
// process and the modules for the network interfaces of KubeVirt's VMs.
//
//	go run ./tasks/internal/guestimage -tag REFERENCE [-o FILE] [-push FILE] [-kernel PACKAGE]
//
// It needs Debian or a derivative: it downloads the kernel with apt-get and keeps it in the user's cache directory. The
// image has /boot/vmlinuz and /boot/initrd, for kernelBoot.container of a VirtualMachineInstance. The same agent and
// the same kernel package give the same bytes.
//
// The default is the cloud kernel, which boots fastest. It has drivers for the virtual functions of Mellanox and of
// Intel's 82599 and X5x0. For those of Intel's X710 and E810 (iavf) and of Broadcom, use -kernel linux-image-amd64.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/checkplan/checkplan/pkg/initramfs"
)

// drivers of the network interfaces of VMs: virtio, and virtual functions. A kernel may lack some of them.
var drivers = []string{"virtio_pci", "virtio_net", "ixgbevf", "iavf", "igbvf", "mlx4_en", "mlx5_core", "bnxt_en"}

// needed are the drivers that a kernel must have.
var needed = []string{"virtio_pci", "virtio_net"}

// likeParent are drivers that are loaded together with another one, for the same devices; with modprobe, the other
// driver requests them itself.
var likeParent = map[string]string{"mlx4_en": "mlx4_core"}

func main() {
	out := flag.String("o", "", "`FILE` to write the image to, as a docker archive")
	tag := flag.String("tag", "", "`REFERENCE` of the image")
	push := flag.String("push", "", "push the image to its registry, and add its reference with its digest to `FILE`")
	kernel := flag.String("kernel", "linux-image-cloud-"+runtime.GOARCH, "Debian `PACKAGE` of the kernel")
	flag.Parse()
	if flag.NArg() > 0 || *tag == "" || *out == "" && *push == "" {
		fmt.Fprintln(os.Stderr, "guestimage: want -tag, and -o or -push")
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*out, *tag, *kernel, *push); err != nil {
		fmt.Fprintln(os.Stderr, "guestimage:", err)
		os.Exit(1)
	}
}

func run(out, tag, kernel, push string) error {
	reference, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	deb, err := initramfs.Download(kernel, filepath.Join(cache, "checkplan-guest"))
	if err != nil {
		return err
	}
	unpacked, err := initramfs.Unpack(deb)
	if err != nil {
		return err
	}
	modules, err := modulesOf(unpacked)
	if err != nil {
		return fmt.Errorf("%s: %w", deb, err)
	}
	agent, err := buildAgent()
	if err != nil {
		return err
	}
	initrd, err := initramfs.NewArchive(agent, modules).Bytes()
	if err != nil {
		return err
	}
	image, err := image(unpacked.Image, initrd)
	if err != nil {
		return fmt.Errorf("build the image: %w", err)
	}
	if out != "" {
		if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
			return err
		}
		if err := tarball.WriteToFile(out, reference, image); err != nil {
			return fmt.Errorf("write %s: %w", out, err)
		}
	}
	if push != "" {
		if err := publish(reference, image, push); err != nil {
			return fmt.Errorf("push %s: %w", reference, err)
		}
	}
	fmt.Printf(
		"%s: %s, kernel %d KiB, initramfs %d KiB\n",
		reference,
		filepath.Base(deb),
		len(unpacked.Image)>>10,
		len(initrd)>>10,
	)
	return nil
}

// modulesOf returns the drivers that a kernel has and their dependencies, dependencies first.
func modulesOf(k *initramfs.Kernel) ([]initramfs.Module, error) {
	names := slices.DeleteFunc(slices.Clone(drivers), func(name string) bool {
		return !k.Has(name) && !slices.Contains(needed, name)
	})
	modules, err := k.Modules(names...)
	if err != nil {
		return nil, err
	}
	for i, m := range modules {
		parent := slices.IndexFunc(modules, func(p initramfs.Module) bool { return p.Name == likeParent[m.Name] })
		if parent >= 0 {
			modules[i].Aliases = modules[parent].Aliases
		}
	}
	return modules, nil
}

// publish pushes an image, and adds the line REFERENCE@sha256:HEX to the file refs, in the form in which ko prints the
// references of the other images.
func publish(reference name.Tag, image v1.Image, refs string) error {
	if err := remote.Write(reference, image, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(refs, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s@%s\n", reference, digest)
	return errors.Join(err, f.Close())
}

// buildAgent builds the agent for this architecture.
func buildAgent() ([]byte, error) {
	directory, err := os.MkdirTemp("", "guestimage")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	file := filepath.Join(directory, "agent")
	build := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file,
		"github.com/checkplan/checkplan/tasks/agent"}
	if _, err := output(append(os.Environ(), "CGO_ENABLED=0"), "go", build...); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}

// output runs a program and returns its standard output. The error contains its standard error.
func output(env []string, program string, args ...string) ([]byte, error) {
	cmd := exec.Command(program, args...)
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = env, &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, bytes.TrimSpace(said.Bytes()))
	}
	return out, nil
}
