// SPDX-License-Identifier: Apache-2.0

// Images runs ko on a machine without access to a registry:
//
//	go run ./tasks/internal/images KO ARGUMENT...
//
// ko reads base images only from a registry. Therefore this program serves a registry on loopback while ko runs, with
// an empty base image for each platform of .ko.yaml, and sets KO_DEFAULTBASEIMAGE. The images are static binaries
// that need nothing from a base image. If ko fails, its output is printed.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: images KO ARGUMENT...")
		os.Exit(2)
	}
	if err := build(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func build(ko string, args []string) error {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	base, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/base:latest")
	if err != nil {
		return err
	}
	index, err := emptyBase("amd64", "arm64")
	if err != nil {
		return fmt.Errorf("build the base image: %w", err)
	}
	if err := remote.WriteIndex(base, index); err != nil {
		return fmt.Errorf("write the base image to %s: %w", base, err)
	}
	var said bytes.Buffer
	cmd := exec.Command(ko, args...)
	cmd.Env = append(os.Environ(), "KO_DEFAULTBASEIMAGE="+base.String())
	cmd.Stdout, cmd.Stderr = os.Stdout, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", ko, strings.Join(args, " "), err, said.String())
	}
	return nil
}

// emptyBase returns an image without files for each architecture. It runs as the user of distroless' nonroot images.
func emptyBase(architectures ...string) (v1.ImageIndex, error) {
	var index v1.ImageIndex = empty.Index
	for _, arch := range architectures {
		image, err := mutate.ConfigFile(
			empty.Image,
			&v1.ConfigFile{OS: "linux", Architecture: arch, Config: v1.Config{User: "65532"}},
		)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index, nil
}
