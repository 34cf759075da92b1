// SPDX-License-Identifier: Apache-2.0

package main

import (
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
// not even building, where it is not asked for.
type addon struct {
	binaries    []string    // of cmd; each is an image on every control plane
	deployments [][2]string // that must be available: namespace and name
	objects     func(dirs) ([]*unstructured.Unstructured, error)
}

// addons maps the names that `up --with` takes.
func addons() map[string]addon {
	return map[string]addon{
		"aggregated": {
			binaries:    []string{"aggregated"},
			deployments: [][2]string{{aggregatedNamespace, "aggregated"}},
			objects:     aggregatedObjects,
		},
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
func aggregatedObjects(d dirs) ([]*unstructured.Unstructured, error) {
	manifest := strings.ReplaceAll(aggregatedManifest, "image: IMAGE", "image: "+image("aggregated"))
	for field, file := range map[string]string{
		"tls.crt: CERT": "aggregated.crt", "tls.key: KEY": "aggregated.key", "caBundle: CA": "ca.crt",
	} {
		b, err := os.ReadFile(d.file("pki", file))
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
