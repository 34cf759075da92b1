// SPDX-License-Identifier: Apache-2.0

// Images builds the task images on this machine without a registry, a container
// engine or ko, for clusters that load archives, as the sandbox does:
//
//	go run ./tasks/internal/images --repository R --tag T --output DIR
//
// It writes DIR/NAME.tar for each image NAME, in the format of docker save, for
// the reference R/NAME:T. The images are as ko makes them by .ko.yaml, but from
// nothing instead of from a base image, and for this machine's architecture (or
// GOARCH). Releases are made by ko, which makes images for several
// architectures, with an SBOM; but to build ko takes some two hundred modules
// and minutes, which a demo has not.
package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// names of the images, each of the command tasks/NAME.
var names = []string{"setup", "probe", "teardown", "report", "agent"}

func main() {
	repository := flag.String("repository", "", "what comes before /NAME in the references, such as ghcr.io/checkplan/checkplan")
	tag := flag.String("tag", "", "tag of the references, such as v0.1.0; also the version that the binaries tell")
	output := flag.String("output", "dist", "directory of the archives")
	flag.Parse()
	if err := build(*repository, *tag, *output); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func build(repository, tag, output string) error {
	bin, err := os.MkdirTemp("", "checkplan-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	args := []string{"build", "-trimpath", "-ldflags", "-s -w -X main.version=" + tag, "-o", bin + "/"}
	for _, n := range names {
		args = append(args, "./tasks/"+n)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	if err := os.MkdirAll(output, 0o755); err != nil {
		return err
	}
	for _, n := range names {
		ref, err := name.NewTag(repository+"/"+n+":"+tag, name.StrictValidation)
		if err != nil {
			return fmt.Errorf("reference of image %s: %w", n, err)
		}
		img, err := image(filepath.Join(bin, n))
		if err != nil {
			return fmt.Errorf("image %s: %w", n, err)
		}
		file := filepath.Join(output, n+".tar")
		if err := tarball.WriteToFile(file, ref, img); err != nil {
			return fmt.Errorf("image %s: %w", n, err)
		}
		fmt.Println(file, ref)
	}
	return nil
}

// image holds one static binary as /ko-app/NAME, and runs as nonroot.
func image(binary string) (v1.Image, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	path := "ko-app/" + filepath.Base(binary)
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	for _, h := range []*tar.Header{
		{Name: "ko-app/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: path, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))},
	} {
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", cmp.Or(os.Getenv("GOARCH"), runtime.GOARCH)
	config.Config.Entrypoint = []string{"/" + path}
	config.Config.User = "65532"
	return mutate.ConfigFile(img, config)
}
