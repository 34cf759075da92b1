// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"io"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

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
