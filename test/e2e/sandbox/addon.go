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
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// addon is something that `up --with` installs beside Tekton. It costs nothing,
// not even building, where it is not asked for. Functions are nil where there is
// nothing to do; dir is the directory of the addon's own build, see
// [build.addonDir].
type addon struct {
	binaries    []string    // of cmd; each is an image on every control plane
	deployments [][2]string // that must be available: namespace and name
	inotify     int         // instances that root's processes of it take on each worker
	objects     func(*cluster) ([]*unstructured.Unstructured, error)

	// needs lists what the machine lacks to build it.
	needs func() []lack
	// key is what its own build depends on beyond the build that it is part of.
	key func() string
	// build makes what is in dir beside the images of the binaries.
	build func(ctx context.Context, dir string, detail func(string)) error
	// images lists further archives of images that a node needs.
	images func(dir string, n nodePlan) []string
	// prepare makes the nodes ready for it, once they have their network and
	// before anything runs on them, or again while everything does.
	prepare func(ctx context.Context, c *cluster, dir string) error
	// ready is asked until it returns nil, once the deployments are available.
	ready func(ctx context.Context, c *cluster, api *client) error
}

// addons maps the names that `up --with` takes.
func addons() map[string]addon {
	return map[string]addon{
		"aggregated": {
			binaries:    []string{"aggregated"},
			deployments: [][2]string{{aggregatedNamespace, "aggregated"}},
			objects:     aggregatedObjects,
		},
		"kubevirt": kubevirtAddon(),
		"multus":   multusAddon(),
	}
}

func addonNames() []string { return slices.Sorted(maps.Keys(addons())) }

// checkAddons reports every name that is none.
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

// aggregatedNamespace is the namespace of the aggregated API server, and the
// first part of its Service's name.
const aggregatedNamespace = "sandbox-aggregated"

// aggregatedObjects are the aggregated API server, its Service and its APIService.
func aggregatedObjects(c *cluster) ([]*unstructured.Unstructured, error) {
	manifest := strings.ReplaceAll(aggregatedManifest, "image: IMAGE", "image: "+image("aggregated"))
	for field, file := range map[string]string{
		"tls.crt: CERT": "aggregated.crt", "tls.key: KEY": "aggregated.key", "caBundle: CA": "ca.crt",
	} {
		b, err := os.ReadFile(c.file("pki", file))
		if err != nil {
			return nil, fmt.Errorf("reading a certificate of the aggregated API server: %w", err)
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
