// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The versions in go.mod; a test compares them.
const (
	kubernetesVersion = "v1.35.6"
	tektonVersion     = "v1.15.1"
	corednsVersion    = "v1.13.1"
	etcdVersion       = "v3.6.5"
)

// module is the module from which the Kubernetes, Tekton and CoreDNS binaries are built: this
// module, whose go.mod lists them as tools. It is embedded: the command works in every directory.
//
//go:embed go.mod go.sum cmd
var module embed.FS

// build is the cache directory of the binaries and images of one set of versions.
type build struct{ dir string }

func (b build) src() string    { return filepath.Join(b.dir, "src") }
func (b build) bin() string    { return filepath.Join(b.dir, "bin") }
func (b build) tekton() string { return filepath.Join(b.dir, "tekton") }

// Image archives: staticImages for the static pods of control planes, nodeImages for every node,
// controlPlaneImages for the first control plane, addonImages for the binaries of an addon, on
// every control plane.
func (b build) staticImages() string       { return filepath.Join(b.dir, "static-images.tar") }
func (b build) nodeImages() string         { return filepath.Join(b.dir, "node-images.tar") }
func (b build) controlPlaneImages() string { return filepath.Join(b.dir, "control-plane-images.tar") }
func (b build) addonImages(name string) string {
	return filepath.Join(b.addonDir(name), "images.tar")
}

// addonDir is the directory of an addon's own build with the current key.
func (b build) addonDir(name string) string {
	dir := filepath.Join(b.dir, "addons", name)
	if key := addons()[name].key; key != nil {
		hash := sha256.Sum256([]byte(key()))
		dir += "-" + hex.EncodeToString(hash[:8])
	}
	return dir
}

// image returns the name of an image that the sandbox builds. No registry exists at .invalid (RFC
// 6761): a missing image is an immediate error.
func image(binary string) string {
	version := map[string]string{
		"coredns": corednsVersion, "etcd": etcdVersion, "kube-apiserver": kubernetesVersion,
		"pause": "v1", "aggregated": "v1",
		"guest": "v1", "guest-noping": "v1", "dashboard": dashboardVersion,
	}[binary]
	switch {
	case version != "":
	case strings.HasPrefix(binary, "virt-"):
		version = kubevirtVersion
	default:
		version = tektonVersion
	}
	return "sandbox.invalid/" + binary + ":" + version
}

// goFlags are those of every Go build of this project, as in its Makefile: with the same flags the builds share a cache.
const goFlags = "-trimpath -buildvcs=false -gcflags=all=-dwarf=false"

// buildEnv returns the environment of every Go build.
func buildEnv() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+goFlags, "GOWORK=off")
}

// linkFlags returns flags that set the version of the Kubernetes binaries. Without them Tekton's
// controller rejects the API server.
func linkFlags() string {
	major, minor, _ := strings.Cut(strings.TrimPrefix(kubernetesVersion, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	flags := "-s -w"
	for _, p := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags += fmt.Sprintf(
			" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean",
			p, kubernetesVersion, major, minor)
	}
	return flags
}

// cachedBuild returns the cache directory for the embedded module, its flags and the Go version of
// this command.
func cachedBuild(cacheDir string) (build, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, linkFlags()) // writes to a hash do not fail
	if err := writeFiles(h, module); err != nil {
		return build{}, fmt.Errorf("read the embedded module: %w", err)
	}
	key := hex.EncodeToString(h.Sum(nil))[:16]
	return build{dir: filepath.Join(cacheDir, key)}, nil
}

// writeFiles writes path, size and content of each file.
func writeFiles(to io.Writer, files fs.FS) error {
	return fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(to, "%s %d\n%s", path, len(b), b)
		return err
	})
}

// complete reports whether everything is built.
func (b build) complete() bool {
	_, err := os.Stat(filepath.Join(b.dir, "complete"))
	return err == nil
}

// run builds what is missing, and reports its progress to detail.
func (b build) run(ctx context.Context, detail func(string)) error {
	if b.complete() {
		return nil
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return fmt.Errorf("create the build cache: %w", err)
	}
	unlock, err := b.lock("lock")
	if err != nil {
		return err
	}
	defer unlock()
	if b.complete() { // another command has built it in the meantime
		return nil
	}

	src := b.src()
	if err := os.RemoveAll(src); err != nil {
		return fmt.Errorf("clear the build directory: %w", err)
	}
	if err := os.CopyFS(src, module); err != nil {
		return fmt.Errorf("write the module to build: %w", err)
	}
	err = goBuild(ctx, src, b.bin(), linkFlags(), nil, detail, "tool", "./cmd/coredns", "./cmd/etcd", "./cmd/pause")
	if err != nil {
		return err
	}

	detail("copying Tekton's manifests")
	dir, err := moduleDir(ctx, src, "github.com/tektoncd/pipeline")
	if err != nil {
		return err
	}
	if err := os.RemoveAll(b.tekton()); err != nil {
		return fmt.Errorf("clear the build directory: %w", err)
	}
	if err := copyManifests(filepath.Join(dir, "config"), b.tekton()); err != nil {
		return fmt.Errorf("copy Tekton's manifests: %w", err)
	}

	detail("building images")
	if err := writeImages(b.staticImages(), b.bin(), "pause", "etcd", "kube-apiserver"); err != nil {
		return err
	}
	if err := writeImages(b.nodeImages(), b.bin(), "pause", "entrypoint", "nop", "workingdirinit"); err != nil {
		return err
	}
	if err := writeImages(b.controlPlaneImages(), b.bin(), "coredns", "controller", "webhook"); err != nil {
		return err
	}
	return writeFile(filepath.Join(b.dir, "complete"), nil, 0o644)
}

// hasAddon reports whether an addon is built.
func (b build) hasAddon(name string) bool {
	_, err := os.Stat(filepath.Join(b.addonDir(name), "complete"))
	return err == nil
}

// runAddon builds what an addon needs in addition to a complete build. Builds of different addons can
// run at the same time.
func (b build) runAddon(ctx context.Context, name string, detail func(string)) error {
	unlock, err := b.lock("lock-" + name)
	if err != nil {
		return err
	}
	defer unlock()
	if b.hasAddon(name) { // another command has built it in the meantime
		return nil
	}
	dir := b.addonDir(name)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clear the build directory of %s: %w", name, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the build directory of %s: %w", name, err)
	}
	addon := addons()[name]
	if len(addon.binaries) > 0 {
		var packages []string
		for _, binary := range addon.binaries {
			packages = append(packages, "./cmd/"+binary)
		}
		if err := goBuild(ctx, b.src(), b.bin(), linkFlags(), nil, detail, packages...); err != nil {
			return err
		}
		if err := writeImages(b.addonImages(name), b.bin(), addon.binaries...); err != nil {
			return err
		}
	}
	if addon.build != nil {
		if err := addon.build(ctx, dir, detail); err != nil {
			return err
		}
	}
	return writeFile(filepath.Join(dir, "complete"), nil, 0o644)
}

// lock waits until another build with this lock file has ended.
func (b build) lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(b.dir, name), os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the build cache: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close() // read only
		return nil, fmt.Errorf("lock the build cache %s: %w", f.Name(), err)
	}
	return func() { _ = f.Close() }, nil // read only
}

// goBuild builds commands of the module in src and writes them to out. flags are linker flags; env
// is added to [buildEnv].
func goBuild(
	ctx context.Context, src, out, flags string, env []string, detail func(string), packages ...string,
) error {
	args := append([]string{"build", "-v", "-ldflags", flags, "-o", out + "/"}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = src, append(buildEnv(), env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("start go build: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go build: %w", err)
	}
	// With -v, stderr contains the import paths of compiled packages, and errors. An import path
	// contains no space.
	var compiled atomic.Int64
	var last []string
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.ContainsAny(line, " \t") {
			last = append(last, line)
			last = last[max(0, len(last)-40):]
			continue
		}
		detail(fmt.Sprintf("%d packages compiled", compiled.Add(1)))
	}
	_, _ = io.Copy(io.Discard, stderr) // if a line was too long: go build must not block on a full pipe
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("build %s in %s: %w\n%s", strings.Join(packages, " "), src, err, strings.Join(last, "\n"))
	}
	return nil
}

// replaceOnce replaces a text that a file of copied sources has once.
func replaceOnce(file, old, text string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if strings.Count(string(b), old) != 1 {
		return fmt.Errorf("want %q once in %s", old, file)
	}
	return writeFile(file, []byte(strings.Replace(string(b), old, text, 1)), 0o644)
}

// moduleDir returns the directory in the module cache of a module that the module in src requires, and that is
// downloaded.
func moduleDir(ctx context.Context, src, path string) (string, error) {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", path)
	list.Dir, list.Env = src, buildEnv()
	out, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find the module %s: %w", path, withStderr(err))
	}
	return strings.TrimSpace(string(out)), nil
}

// copyManifests copies the YAML files of a directory tree. Files in the module cache are read-only.
// The copies must be writable, because the build cache must be removable.
func copyManifests(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return writeFile(filepath.Join(to, rel), b, 0o644)
	})
}

// writeImages writes an archive in the format of docker save, with one image per binary.
func writeImages(archive, binDir string, binaries ...string) error {
	images := map[name.Tag]v1.Image{}
	for _, b := range binaries {
		tag, err := name.NewTag(image(b))
		if err != nil {
			return fmt.Errorf("name the image of %s: %w", b, err)
		}
		if images[tag], err = binaryImage(filepath.Join(binDir, b)); err != nil {
			return fmt.Errorf("build the image of %s: %w", b, err)
		}
	}
	if err := tarball.MultiWriteToFile(archive, images); err != nil {
		return fmt.Errorf("write images to %s: %w", archive, err)
	}
	return nil
}

// binaryImage returns an image of one static binary at /ko-app/NAME, where Tekton expects its own.
// The layer is not compressed: it stays on this machine, and every node that runs it unpacks it.
func binaryImage(file string) (v1.Image, error) {
	base := filepath.Base(file)
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	headers := []*tar.Header{
		{Name: "ko-app/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "ko-app/" + base, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))},
	}
	for _, h := range headers {
		if err := tw.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	if _, err := tw.Write(content); err != nil {
		return nil, err
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	layer := static.NewLayer(b.Bytes(), types.DockerUncompressedLayer)
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Entrypoint = []string{"/ko-app/" + base}
	config.Config.User = "65532"
	config.Config.Env = []string{"PATH=/ko-app"}
	return mutate.ConfigFile(img, config)
}

// withStderr adds the stderr of a command to its error.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}

// otherAddons lists the builds of an addon with other keys.
func (b build) otherAddons(name string) []string {
	// Glob fails only for malformed patterns.
	found, _ := filepath.Glob(filepath.Join(b.dir, "addons", name+"-*"))
	current := b.addonDir(name)
	return slices.DeleteFunc(found, func(dir string) bool { return dir == current })
}

// otherBuilds lists the other builds in the cache, by name.
func otherBuilds(cacheDir string, current build) []string {
	entries, err := os.ReadDir(cacheDir)
	if err != nil {
		return nil
	}
	var others []string
	for _, e := range entries {
		if dir := filepath.Join(cacheDir, e.Name()); dir != current.dir {
			others = append(others, dir)
		}
	}
	slices.Sort(others)
	return others
}
