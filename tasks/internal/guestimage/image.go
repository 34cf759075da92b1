// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Types of files in an initramfs (stat(2)).
const (
	typeDirectory = 0o040000
	typeDevice    = 0o020000 // of characters
	typeFile      = 0o100000
)

// initramfs returns the cpio archive that the kernel unpacks at its start
// (Documentation/driver-api/early-userspace/buffer-format.rst). It is not compressed, because QEMU copies it into the
// guest faster than the guest can decompress it.
func initramfs(agent []byte, modules []module) ([]byte, error) {
	var a cpio
	for _, directory := range []string{"dev", "proc", "sys", "modules"} {
		a.add(directory, typeDirectory|0o755, nil, 0, 0)
	}
	// The first process needs them before it mounts /dev.
	a.add("dev/console", typeDevice|0o600, nil, 5, 1)
	a.add("dev/null", typeDevice|0o666, nil, 1, 3)
	a.add("init", typeFile|0o755, agent, 0, 0)
	var list strings.Builder
	for _, m := range modules {
		a.add("modules/"+m.name+".ko", typeFile|0o644, m.content, 0, 0)
		needs := "-"
		if len(m.needs) > 0 {
			needs = strings.Join(m.needs, ",")
		}
		fmt.Fprintln(&list, strings.Join(append([]string{m.name, needs}, m.aliases...), " "))
	}
	a.add("modules/list", typeFile|0o644, []byte(list.String()), 0, 0)
	a.add("TRAILER!!!", 0, nil, 0, 0)
	return a.b.Bytes(), a.err
}

// cpio is an archive in the format newc.
type cpio struct {
	b     bytes.Buffer
	files int
	err   error
}

// add adds a file; major and minor are the numbers of a device.
func (c *cpio) add(name string, mode int, content []byte, major, minor int) {
	c.files++
	if int64(len(content)) > 1<<32-1 && c.err == nil {
		c.err = fmt.Errorf("%s is too large for an initramfs", name)
	}
	// magic, inode, mode, uid, gid, links, mtime, size, device of the archive (2),
	// device (2), size of the name with its 0, checksum
	fmt.Fprintf(&c.b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.files, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0)
	c.b.WriteString(name + "\x00")
	c.pad()
	c.b.Write(content)
	c.pad()
}

func (c *cpio) pad() {
	for c.b.Len()%4 != 0 {
		c.b.WriteByte(0)
	}
}

// image returns an image with kernel and initramfs. KubeVirt runs it as user 107, who must be able to read them.
func image(vmlinuz, initrd []byte) (v1.Image, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		header  tar.Header
		content []byte
	}{
		{tar.Header{Typeflag: tar.TypeDir, Name: "boot/", Mode: 0o755}, nil},
		{tar.Header{Typeflag: tar.TypeReg, Name: "boot/vmlinuz", Mode: 0o444, Size: int64(len(vmlinuz))}, vmlinuz},
		{tar.Header{Typeflag: tar.TypeReg, Name: "boot/initrd", Mode: 0o444, Size: int64(len(initrd))}, initrd},
	} {
		if err := w.WriteHeader(&f.header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
	)
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config.User = "linux", runtime.GOARCH, "107"
	return mutate.ConfigFile(image, config)
}
