// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// addon is something that `up --with` installs beside Tekton. It is built only if it is requested.
// A function is nil if the addon does not need it. dir is the directory of the addon's own build,
// see [build.addonDir].
type addon struct {
	binaries    []string    // of cmd; each is an image on every control plane
	deployments [][2]string // namespace and name; must become available
	inotify     int         // inotify instances of root that it needs on each worker
	objects     func(*cluster) ([]*unstructured.Unstructured, error)

	// needs lists what the machine lacks to build the addon.
	needs func() []lack
	// key is what the addon's own build depends on, besides the common build.
	key func() string
	// build writes the addon's files other than the images of binaries to dir.
	build func(ctx context.Context, dir string, detail func(string)) error
	// images returns further image archives for a node.
	images func(dir string, n nodePlan) []string
	// prepare sets up the nodes for the addon after their network and before other processes. A
	// repeated `up` calls it again on running nodes.
	prepare func(ctx context.Context, c *cluster, dir string) error
	// ready is called until it returns nil, after the deployments are available.
	ready func(ctx context.Context, c *cluster, api *client) error
}

// addons maps the names for `up --with` to addons.
func addons() map[string]addon {
	return map[string]addon{
		"aggregated": {
			binaries:    []string{"aggregated"},
			deployments: [][2]string{{aggregatedNamespace, "aggregated"}},
			objects:     aggregatedObjects,
		},
		"conformance": conformanceAddon(),
		"dashboard":   dashboardAddon(),
		"kubevirt":    kubevirtAddon(),
		"multus":      multusAddon(),
		"resolvers": {
			binaries:    []string{"resolvers"},
			deployments: [][2]string{{"tekton-pipelines-resolvers", resolversDeployment}},
			objects:     resolversObjects,
		},
	}
}

func addonNames() []string { return slices.Sorted(maps.Keys(addons())) }

// checkAddons reports every unknown name.
func checkAddons(names []string) error {
	var errs []error
	for _, name := range names {
		if !slices.Contains(addonNames(), name) {
			errs = append(errs, fmt.Errorf("--with %q: must be one of %s", name, strings.Join(addonNames(), ", ")))
		}
	}
	return errors.Join(errs...)
}

//go:embed manifests/aggregated.yaml
var aggregatedManifest string

// aggregatedNamespace is the namespace of the aggregated API server, and part of its Service's DNS
// name.
const aggregatedNamespace = "sandbox-aggregated"

// aggregatedObjects returns the aggregated API server, its Service and its APIService.
func aggregatedObjects(c *cluster) ([]*unstructured.Unstructured, error) {
	manifest := strings.ReplaceAll(aggregatedManifest, "image: IMAGE", "image: "+image("aggregated"))
	for field, file := range map[string]string{
		"tls.crt: CERT": "aggregated.crt", "tls.key: KEY": "aggregated.key", "caBundle: CA": "ca.crt",
	} {
		b, err := os.ReadFile(c.file("pki", file))
		if err != nil {
			return nil, fmt.Errorf("read a certificate of the aggregated API server: %w", err)
		}
		name, _, _ := strings.Cut(field, " ")
		manifest = strings.ReplaceAll(manifest, field, name+" "+base64.StdEncoding.EncodeToString(b))
	}
	objects, err := decode([]byte(manifest))
	if err != nil {
		return nil, fmt.Errorf("manifests/aggregated.yaml: %w", err)
	}
	return objects, nil
}

const resolversDeployment = "tekton-pipelines-remote-resolvers"

// resolversObjects returns Tekton's remote resolvers, which run cmd/resolvers of this module.
func resolversObjects(c *cluster) ([]*unstructured.Unstructured, error) {
	objects, err := manifests(os.DirFS(filepath.Join(c.build().tekton(), "resolvers")))
	if err != nil {
		return nil, fmt.Errorf("resolvers: %w", err)
	}
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		if err != nil || len(containers) != 1 {
			return nil, fmt.Errorf("resolvers: %d containers in Deployment %s, want 1: %w", len(containers), o.GetName(), err)
		}
		containers[0].(map[string]any)["command"] = []any{"/ko-app/resolvers"} // the image has no tini
		if err := unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers"); err != nil {
			return nil, fmt.Errorf("resolvers: %w", err)
		}
	}
	return objects, onControlPlane(objects)
}
