// SPDX-License-Identifier: Apache-2.0

//go:build !race

// Kustomize starts no goroutine, and the race detector makes these tests take seven times as long: they run without it.
// The scripts catalog_*.txtar run the command catalog with it, catalog_bundle.txtar also what pushes to a registry.

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/ecosystem"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// defaultCatalog is the catalog of catalogPlans without options.
var defaultCatalog = sync.OnceValues(func() (tekton.Files, error) {
	return tekton.Catalog(catalogPlans().Plans, tekton.Options{})
})

// catalogOf is the catalog of catalogPlans.
func catalogOf(t *testing.T, o tekton.Options) tekton.Files {
	t.Helper()
	for _, p := range catalogPlans().Problems {
		t.Fatal(p)
	}
	files, err := defaultCatalog()
	if !reflect.DeepEqual(o, tekton.Options{}) {
		files, err = tekton.Catalog(catalogPlans().Plans, o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// objects are decoded objects by kind, namespace and name.
type objects map[string]map[string]any

func (o objects) add(t *testing.T, object map[string]any) {
	t.Helper()
	m, _ := object["metadata"].(map[string]any)
	at := func(field string) string { s, _ := m[field].(string); return s }
	key := object["kind"].(string) + " " + at("namespace") + "/" + at("name")
	if at("name") == "" {
		t.Errorf("%s has no name: %v", key, object)
	}
	if o[key] != nil {
		t.Errorf("%s is a duplicate", key)
	}
	o[key] = object
}

// of are the objects with these prefixes of their kind and namespace.
func (o objects) of(prefix string) objects {
	of := objects{}
	for key, object := range o {
		if strings.HasPrefix(key, prefix) {
			of[key] = object
		}
	}
	return of
}

// built is what kustomize makes of a directory of the catalog, in /catalog, and of overlays.
func built(t *testing.T, catalog tekton.Files, overlays map[string]string, dir string) objects {
	t.Helper()
	fs := filesys.MakeFsInMemory()
	write := func(file string, text []byte) {
		if err := fs.WriteFile(file, text); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range catalog {
		write(path.Join("/catalog", name), text)
	}
	for dir, text := range overlays {
		write(path.Join("/", dir, "kustomization.yaml"), []byte(text))
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, path.Join("/", dir))
	if err != nil {
		t.Fatalf("kustomize build %s: %v", dir, err)
	}
	all := objects{}
	for _, resource := range resources.Resources() {
		text, err := resource.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var object map[string]any
		if err := json.Unmarshal(text, &object); err != nil {
			t.Fatal(err)
		}
		all.add(t, object)
	}
	if len(all) == 0 {
		t.Fatalf("kustomize build %s: no objects", dir)
	}
	return all
}

// overlay moves the whole catalog to a namespace, as docs/gitops.md shows.
func overlay(namespace string) map[string]string {
	return map[string]string{
		namespace:                 "resources: [namespaced]\ncomponents: [../catalog/cluster]\n",
		namespace + "/namespaced": "namespace: " + namespace + "\nresources: [../../catalog]\n",
	}
}

// Kustomize builds each directory of a catalog that has a kustomization, and default holds each object of the catalog
// once, unchanged. Samples are in none of them.
func TestKustomizeBuilds(t *testing.T) {
	catalog := catalogOf(t, tekton.Options{})
	want, dirs := objects{}, 0
	for name, text := range catalog {
		switch {
		case path.Base(name) == "kustomization.yaml":
			if !strings.Contains(string(text), "kind: Component") {
				built(t, catalog, nil, path.Join("catalog", path.Dir(name)))
				dirs++
			}
		case strings.HasSuffix(name, ".yaml") && !strings.Contains(name, "/samples/") && !strings.HasSuffix(name, "/kustomizeconfig.yaml"):
			for document := range strings.SplitSeq(string(text), "\n---\n") {
				var object map[string]any
				if err := yaml.Unmarshal([]byte(document), &object); err != nil {
					t.Fatal(err)
				}
				want.add(t, object)
			}
		}
	}
	if dirs < 10 {
		t.Errorf("%d directories have kustomizations", dirs)
	}
	got := built(t, catalog, nil, "catalog/default")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects of default (-want +got):\n%s", diff)
	}
}

// An overlay with namespace: is what planner compiles for this namespace. It shares no object with one in another
// namespace, so that none steals from the other.
func TestKustomizeNamespace(t *testing.T) {
	catalog := catalogOf(t, tekton.Options{})
	a, b := built(t, catalog, overlay("team-a"), "team-a"), built(t, catalog, overlay("team-b"), "team-b")
	want := built(t, catalogOf(t, tekton.Options{Namespace: "team-a"}), nil, "catalog/default")
	maps.DeleteFunc(want, func(key string, _ map[string]any) bool { return strings.HasPrefix(key, "CustomResourceDefinition ") })
	if diff := cmp.Diff(want, a); diff != "" {
		t.Errorf("overlay (-compiled +overlay):\n%s", diff)
	}
	for key := range a {
		if b[key] != nil {
			t.Errorf("both overlays have %s", key)
		}
	}
	ecosystem.Row(t, "GitOps", "kustomize (`krusty`), `namespace:`", ecosystem.Version(t, "sigs.k8s.io/kustomize/api"),
		"two overlays of the catalog of all plans, and one with a schedule, in two namespaces",
		fmt.Sprintf("%d objects each, equal to what planner compiles for the namespace; 0 objects in both", len(a)))
	text, err := yaml.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	if line := regexp.MustCompile(`.*(namespace: checkplan|checkplan:checkplan:|"namespace": ?"checkplan").*`).Find(text); line != nil {
		t.Errorf("the namespace of the catalog is left in an overlay: %s", line)
	}
}

// namespace: on the catalog itself moves no right of another namespace, and shares no object of the cluster.
func TestKustomizeTargetNamespace(t *testing.T) {
	catalog := catalogOf(t, tekton.Options{})
	got := built(t, catalog, map[string]string{"flux": "namespace: team-a\nresources: [../catalog]\n"}, "flux")
	for key := range got {
		if !strings.Contains(key, " team-a/") {
			t.Errorf("%s is not in the namespace", key)
		}
	}
	if want := built(t, catalog, overlay("team-a"), "team-a").of("Role team-a/"); !cmp.Equal(want, got.of("Role team-a/")) {
		t.Errorf("roles of the namespace (-want +got):\n%s", cmp.Diff(want, got.of("Role team-a/")))
	}
}

// With namePrefix: Pipelines refer to the Tasks, bindings to the roles and accounts, that the overlay has.
func TestKustomizeNamePrefix(t *testing.T) {
	overlays := overlay("team-a")
	overlays["team-a/namespaced"] += "namePrefix: x-\n"
	got := built(t, catalogOf(t, tekton.Options{}), overlays, "team-a")
	references := 0
	exists := func(from, kind, namespace, name any) {
		t.Helper()
		references++
		if key := kind.(string) + " " + namespace.(string) + "/" + name.(string); got[key] == nil {
			t.Errorf("%s refers to %s, which does not exist", from, key)
		}
	}
	list := func(v any) []any { l, _ := v.([]any); return l }
	for key, object := range got {
		spec, _ := object["spec"].(map[string]any)
		for _, task := range slices.Concat(list(spec["tasks"]), list(spec["finally"])) {
			exists(key, "Task", "team-a", task.(map[string]any)["taskRef"].(map[string]any)["name"])
		}
		for _, subject := range list(object["subjects"]) {
			s := subject.(map[string]any)
			exists(key, s["kind"], s["namespace"], s["name"])
		}
		if role, ok := object["roleRef"].(map[string]any); ok {
			namespace, _ := object["metadata"].(map[string]any)["namespace"].(string)
			if role["kind"] == "ClusterRole" {
				namespace = ""
			}
			exists(key, role["kind"], namespace, role["name"])
		}
	}
	if references < 100 {
		t.Errorf("only %d references", references)
	}
	ecosystem.Row(t, "GitOps", "kustomize (`krusty`), `namePrefix:`", ecosystem.Version(t, "sigs.k8s.io/kustomize/api"),
		"the same overlay with a prefix",
		fmt.Sprintf("%d references to Tasks, roles and accounts, all to objects that exist", references))
	for key := range got.of("Task ") {
		if !strings.Contains(key, "/x-") {
			t.Errorf("%s has no prefix", key)
		}
	}
}

// images: changes every image, that of the agent in an environment variable, too.
func TestKustomizeImages(t *testing.T) {
	var images strings.Builder
	names := []string{"setup", "probe", "teardown", "report", "agent", "guest"}
	for _, name := range names {
		images.WriteString("- {name: " + tekton.DefaultImageRepository + "/" + name + ", newName: mirror.example.com/" + name + "}\n")
	}
	got := built(t, catalogOf(t, tekton.Options{}),
		map[string]string{"mirror": "resources: [../catalog/default]\nimages:\n" + images.String()}, "mirror")
	want := built(t, catalogOf(t, tekton.Options{ImageRepository: "mirror.example.com"}), nil, "catalog/default")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("overlay (-compiled +overlay):\n%s", diff)
	}
	ecosystem.Row(t, "GitOps", "kustomize (`krusty`), `images:`", ecosystem.Version(t, "sigs.k8s.io/kustomize/api"),
		"`catalog/default` with another registry for each of 6 images",
		fmt.Sprintf("%d objects, equal to what planner compiles with `--image-repository`", len(got)))
	text, err := yaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.Contains(string(text), "mirror.example.com/"+name+":"+tekton.DefaultImageTag) {
			t.Errorf("image %s is not used", name)
		}
	}
}

// What catalog --bundle pushes beside a bundle is what it writes: whoever has the registry, and neither the plans nor a
// Git repository, unpacks it with crane and builds the accounts, roles and definitions of the bundle's plans.
func TestKustomizeBesideBundle(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	var stdout, stderr bytes.Buffer
	dir, reference := t.TempDir(), strings.TrimPrefix(server.URL, "http://")+"/team/catalog:v1"
	env := &environment{stdout: &stdout, stderr: &stderr, dir: ".", getenv: func(string) string { return "" }}
	args := []string{"catalog", "--plans", "../../plans", "--bundle", reference, dir}
	if code := planner(t.Context(), env, args); code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr.String())
	}
	_, pinned, _ := strings.Cut(strings.TrimSpace(stdout.String()), "\n")
	if !strings.HasPrefix(pinned, reference+"-manifests@sha256:") {
		t.Fatalf("prints %q", stdout.String())
	}
	image, err := crane.Pull(pinned)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := image.Manifest()
	if err != nil || len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != types.OCILayer {
		t.Fatalf("Argo CD reads one layer of type %s: %+v, %v", types.OCILayer, manifest, err)
	}
	var exported bytes.Buffer
	if err := crane.Export(image, &exported); err != nil {
		t.Fatal(err)
	}
	files := tekton.Files{}
	archive := tar.NewReader(&exported)
	for header, err := archive.Next(); !errors.Is(err, io.EOF); header, err = archive.Next() {
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			if files[header.Name], err = io.ReadAll(archive); err != nil {
				t.Fatal(err)
			}
		}
	}
	if drift, err := files.Drift(dir); err != nil || len(drift) > 0 {
		t.Errorf("what is written is not what is pushed: %q, %v", drift, err)
	}
	all := built(t, files, nil, "catalog/default")
	for _, kind := range []string{"Task ", "Pipeline "} {
		if n := len(all.of(kind)); n > 0 {
			t.Errorf("%d objects of kind %s, which are in the bundle", n, kind)
		}
	}
	for _, kind := range []string{"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "CustomResourceDefinition"} {
		if len(all.of(kind+" ")) == 0 {
			t.Errorf("no object of kind %s", kind)
		}
	}
	ecosystem.Row(t, "Tekton bundles", "crane (`crane.Export`), and kustomize (`krusty`)",
		ecosystem.Version(t, "github.com/google/go-containerregistry")+", "+ecosystem.Version(t, "sigs.k8s.io/kustomize/api"),
		"`default` of the manifests beside a bundle of all plans, from a registry in memory",
		fmt.Sprintf("%d objects, no Task and no Pipeline; files equal to those that planner writes", len(all)))
}
