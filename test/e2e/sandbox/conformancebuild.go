// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// conformanceSource is the source of the build, and its key: the module that lists the commands agnhost and ginkgo as
// its tools. It has the versions of go.mod, and so shares the compiled packages. It is not go.mod, because Kubernetes'
// tests need modules that nothing else here does. go:embed excludes modules, hence the names of the files.
//
//go:embed conformancebuild.go addons/conformance.mod addons/conformance.sum
var conformanceSource embed.FS

// agnhostPackages are the Debian packages with the programs that tests run in pods of agnhost: what its own image has
// from Alpine, without bash and iperf. Debian's busybox is no shell for them: it runs its own nc instead of any other.
// Its wget crashes with -T, which the tests use, hence GNU's.
var agnhostPackages = []string{"bind9-dnsutils", "busybox-static", "curl", "dash", "iproute2", "netcat-openbsd", "wget"}

// agnhostRepository is the name of the image in Kubernetes' tests, without its tag.
const agnhostRepository = "registry.k8s.io/e2e-test-images/agnhost"

// conformanceAddon is what Kubernetes' end-to-end tests need: their binary, the command that runs it in several
// processes, and on every worker the image agnhost.
func conformanceAddon() addon {
	return addon{
		needs: conformanceNeeds,
		key: func() string {
			var b strings.Builder
			if err := writeFiles(&b, conformanceSource); err != nil {
				panic(err) // embedded files are always readable
			}
			return b.String() + linkFlags()
		},
		build: buildConformance,
		images: func(dir string, n nodePlan) []string {
			if n.ControlPlane {
				return nil
			}
			return []string{filepath.Join(dir, "images.tar")}
		},
	}
}

// conformanceNeeds lists what the machine lacks to build the image of agnhost.
func conformanceNeeds() []lack {
	var missing []lack
	for _, n := range [][2]string{{"tar", "tar"}, {"apt-get", "apt"}, {"dpkg-deb", "dpkg"}} {
		if _, err := lookPath(n[0]); err != nil {
			missing = append(missing, lack{"the command " + n[0], n[1]})
		}
	}
	return missing
}

// buildConformance builds e2e.test, ginkgo and the image of agnhost from Kubernetes' module. It keeps only these.
func buildConformance(ctx context.Context, dir string, detail func(string)) error {
	src, bin, root := filepath.Join(dir, "src"), filepath.Join(dir, "bin"), filepath.Join(dir, "root")
	for _, file := range []string{"mod", "sum"} {
		b, err := conformanceSource.ReadFile("addons/conformance." + file)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(src, "go."+file), b, 0o644); err != nil {
			return fmt.Errorf("write the module to build: %w", err)
		}
	}
	if err := goBuild(ctx, src, bin, linkFlags(), nil, detail, "tool"); err != nil {
		return err
	}
	detail("building e2e.test")
	// Kubernetes vets its tests itself. Here it would take longer than the build.
	e2e := filepath.Join(bin, "e2e.test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags", linkFlags(), "-o", e2e,
		"k8s.io/kubernetes/test/e2e")
	cmd.Dir, cmd.Env = src, buildEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build e2e.test in %s: %w\n%s", src, err, bytes.TrimSpace(out))
	}

	module, err := moduleDir(ctx, src, "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	source := filepath.Join(module, "test", "images", "agnhost")
	tag, err := agnhostTag(ctx, e2e, source)
	if err != nil {
		return err
	}
	if err := debianRoot(ctx, filepath.Join(dir, "packages"), root, agnhostPackages, detail); err != nil {
		return err
	}
	detail("building the image of agnhost")
	agnhost := filepath.Join(bin, "agnhost")
	if err := agnhostRoot(ctx, root, agnhost, source); err != nil {
		return fmt.Errorf("build the root of agnhost: %w", err)
	}
	if err := writeAgnhost(ctx, filepath.Join(dir, "images.tar"), tag, root); err != nil {
		return fmt.Errorf("build the image of agnhost: %w", err)
	}
	for _, part := range []string{src, agnhost, root, filepath.Join(dir, "packages")} {
		if err := os.RemoveAll(part); err != nil {
			return fmt.Errorf("clear the build directory: %w", err)
		}
	}
	return nil
}

// agnhostTag returns the name of the image whose source is in a directory. The tests must use this version of it.
func agnhostTag(ctx context.Context, e2e, source string) (name.Tag, error) {
	version, err := os.ReadFile(filepath.Join(source, "VERSION"))
	if err != nil {
		return name.Tag{}, fmt.Errorf("read the version of agnhost: %w", err)
	}
	tag, err := name.NewTag(agnhostRepository + ":" + strings.TrimSpace(string(version)))
	if err != nil {
		return name.Tag{}, fmt.Errorf("name the image of agnhost: %w", err)
	}
	used, err := exec.CommandContext(ctx, e2e, "--list-images").Output()
	if err != nil {
		return name.Tag{}, fmt.Errorf("list the images of the tests: %w", withStderr(err))
	}
	if !slices.Contains(strings.Fields(string(used)), tag.String()) {
		return name.Tag{}, fmt.Errorf("the tests do not use %s, the version of its source", tag)
	}
	return tag, nil
}

// agnhostRoot adds to a root of Debian packages what else the image of agnhost has: see its Dockerfile.
func agnhostRoot(ctx context.Context, root, agnhost, source string) error {
	for to, from := range map[string]string{
		"agnhost":       agnhost,
		"localhost.crt": filepath.Join(source, "porter", "localhost.crt"),
		"localhost.key": filepath.Join(source, "porter", "localhost.key"),
	} {
		b, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(root, to), b, 0o755); err != nil {
			return err
		}
	}
	for path, content := range map[string]string{
		"etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"etc/group":         "root:x:0:\nnogroup:x:65534:\n",
		"etc/nsswitch.conf": "hosts: files dns\n",
		"etc/wgetrc":        "tries = 1\n", // as busybox's; by default 20
	} {
		if err := writeFile(filepath.Join(root, path), []byte(content), 0o644); err != nil {
			return err
		}
	}
	for dir, mode := range map[string]fs.FileMode{"uploads": 0o755, "root": 0o700, "tmp": fs.ModeSticky | 0o777} {
		path := filepath.Join(root, dir)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, mode)); err != nil {
			return err
		}
	}
	// Package scripts would make the first two links. As in Alpine, busybox is what the packages do not have.
	list, err := exec.CommandContext(ctx, filepath.Join(root, "usr/bin/busybox"), "--list").Output()
	if err != nil {
		return fmt.Errorf("list the applets of busybox: %w", withStderr(err))
	}
	links := [][2]string{{"sh", "dash"}, {"nc", "nc.openbsd"}}
	for applet := range strings.FieldsSeq(string(list)) {
		links = append(links, [2]string{applet, "busybox"})
	}
	for _, link := range links {
		if _, err := os.Lstat(filepath.Join(root, "usr/sbin", link[0])); err == nil {
			continue
		}
		err := os.Symlink(link[1], filepath.Join(root, "usr/bin", link[0]))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// writeAgnhost writes an archive with one image: root, with agnhost as its entrypoint.
func writeAgnhost(ctx context.Context, archive string, tag name.Tag, root string) error {
	out, err := exec.CommandContext(ctx, "tar", "--create", "--numeric-owner", "--sort=name", "--mtime=@0",
		"--directory", root, ".").Output()
	if err != nil {
		return fmt.Errorf("pack its root: %w", withStderr(err))
	}
	img, err := layeredImage(static.NewLayer(out, types.DockerUncompressedLayer))
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.Config.Entrypoint, config.Config.Cmd = []string{"/agnhost"}, []string{"pause"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return err
	}
	return tarball.WriteToFile(archive, tag, img)
}
