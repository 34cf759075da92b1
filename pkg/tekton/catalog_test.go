// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var testCatalog = sync.OnceValues(func() (Files, error) {
	return Catalog([]*checkup.Plan{twoChecks(), smallPlan()}, testOptions)
})

func catalog(t *testing.T) Files {
	t.Helper()
	files, err := testCatalog()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestCatalogPages compares the pages; TestGolden compares the objects.
func TestCatalogPages(t *testing.T) {
	files := catalog(t)
	var pages txtar.Archive
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".md") {
			pages.Files = append(pages.Files, txtar.File{Name: name, Data: files[name]})
		}
	}
	golden(t, "catalog.txtar", txtar.Format(&pages))
}

func TestCatalogLayout(t *testing.T) {
	want := []string{
		"README.md",
		"cluster/kustomization.yaml", "cluster/small/kustomization.yaml", "cluster/small/rbac.yaml",
		"cluster/two-checks/kustomization.yaml", "cluster/two-checks/rbac.yaml",
		"default/kustomization.yaml", "kustomization.yaml", "pipeline/kustomization.yaml",
		"pipeline/small/README.md", "pipeline/small/kustomization.yaml", "pipeline/small/rbac.yaml",
		"pipeline/small/samples/small.yaml", "pipeline/small/small.yaml",
		"pipeline/two-checks/README.md", "pipeline/two-checks/kustomization.yaml", "pipeline/two-checks/rbac.yaml",
		"pipeline/two-checks/samples/two-checks.yaml", "pipeline/two-checks/two-checks.yaml",
		"task/checkplan-conclude/README.md", "task/checkplan-conclude/checkplan-conclude.yaml",
		"task/checkplan-probe-40m/README.md", "task/checkplan-probe-40m/checkplan-probe-40m.yaml",
		"task/checkplan-probe/README.md", "task/checkplan-probe/checkplan-probe.yaml",
		"task/checkplan-setup/README.md", "task/checkplan-setup/checkplan-setup.yaml",
		"task/kustomization.yaml", "task/kustomizeconfig.yaml",
	}
	files := catalog(t)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(files))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	reversed, err := Catalog([]*checkup.Plan{smallPlan(), twoChecks()}, testOptions)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files, reversed); diff != "" {
		t.Errorf("the catalog depends on the order of the plans:\n%s", diff)
	}
}

// TestCatalogApplies: task, pipeline and cluster hold the objects of Compile, each once and
// with a name of its own. What is in pipeline is in the catalog's namespace, and what is in cluster is not.
func TestCatalogApplies(t *testing.T) {
	files := catalog(t)
	seen := map[string]string{}
	for name, text := range files {
		if !strings.HasSuffix(name, ".yaml") || strings.Contains(name, "/samples/") || strings.HasPrefix(path.Base(name), "kustomiz") {
			continue
		}
		for _, object := range decodeStrict(t, text) {
			m, err := meta.Accessor(object)
			if err != nil {
				t.Fatal(err)
			}
			key := describe(object) + " in " + m.GetNamespace()
			if inside := m.GetNamespace() == testOptions.Namespace; inside == strings.HasPrefix(name, "cluster/") {
				t.Errorf("%s holds %s", name, key)
			}
			if m.GetName() == "" {
				t.Errorf("%s: %s has no name, and cannot be applied", name, key)
			}
			if other, ok := seen[key]; ok {
				t.Errorf("%s is in %s and in %s", key, name, other)
			}
			seen[key] = name
		}
	}
	for _, plan := range []*checkup.Plan{smallPlan(), twoChecks()} {
		for _, object := range compile(t, plan, testOptions).Applied() {
			m, err := meta.Accessor(object)
			if err != nil {
				t.Fatal(err)
			}
			if key := describe(object) + " in " + m.GetNamespace(); seen[key] == "" {
				t.Errorf("%s is in no file", key)
			}
		}
	}
}

// TestCatalogConventions checks Tasks and Pipelines by the rules of catlin's linter
// (its pkg/validator) that need no network.
func TestCatalogConventions(t *testing.T) {
	categories := []string{"Kubernetes", "Monitoring", "Testing"} // of the hub's list
	for name, text := range catalog(t) {
		dir, file := filepath.Split(name)
		if filepath.Base(dir)+".yaml" != file || strings.Contains(name, "/samples/") {
			continue
		}
		m, err := meta.Accessor(decodeStrict(t, text)[0])
		if err != nil {
			t.Fatal(err)
		}
		if got := m.GetName() + ".yaml"; got != file {
			t.Errorf("%s holds %s", name, got)
		}
		if got := m.GetLabels()["app.kubernetes.io/version"]; got != "1.2.3" {
			t.Errorf("%s: version label %q", name, got)
		}
		annotations := m.GetAnnotations()
		if got := annotations["tekton.dev/pipelines.minVersion"]; got != "1.15.0" {
			t.Errorf("%s: minVersion %q", name, got)
		}
		for _, category := range strings.Split(annotations["tekton.dev/categories"], ",") {
			if !slices.Contains(categories, strings.TrimSpace(category)) {
				t.Errorf("%s: category %q", name, category)
			}
		}
		for _, platform := range strings.Split(annotations["tekton.dev/platforms"], ",") {
			if !regexp.MustCompile(`^[a-z0-9]+/[a-z0-9]+$`).MatchString(platform) {
				t.Errorf("%s: platform %q", name, platform)
			}
		}
		for _, key := range []string{"tekton.dev/displayName", "tekton.dev/tags"} {
			if annotations[key] == "" {
				t.Errorf("%s: no annotation %s", name, key)
			}
		}
		if !bytes.Contains(text, []byte("\n  description: |-\n")) {
			t.Errorf("%s: want a description with a summary line, an empty line and detail", name)
		}
		for _, image := range regexp.MustCompile(`(?m)^    image: (.*)$`).FindAllSubmatch(text, -1) {
			if !bytes.HasPrefix(image[1], []byte("registry.example.com/")) || !bytes.HasSuffix(image[1], []byte(":v1.2.3")) {
				t.Errorf("%s: image %s", name, image[1])
			}
		}
		if bytes.Contains(text, []byte("script:")) {
			t.Errorf("%s has a script", name)
		}
	}
}

// TestArtifactHub: what Artifact Hub reads of a package of the catalog directory is there (its
// internal/tracker/source/tekton, docs/tekton_annotations.md): a directory with NAME.yaml, a version, a description, a
// README, the annotations, and samples of each Pipeline.
func TestArtifactHub(t *testing.T) {
	const catalog = "../../catalog"
	packages, err := filepath.Glob(catalog + "/*/*/README.md")
	if err != nil || len(packages) < 10 {
		t.Fatalf("%d packages: %v", len(packages), err)
	}
	for _, readme := range packages {
		dir := filepath.Dir(readme)
		file := filepath.Join(dir, filepath.Base(dir)+".yaml")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		var o struct {
			Metadata metav1.ObjectMeta
			Spec     struct{ Description string }
		}
		if err := yaml.Unmarshal(text, &o); err != nil {
			t.Fatal(err)
		}
		if o.Metadata.Name != filepath.Base(dir) || o.Spec.Description == "" ||
			!regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(o.Metadata.Labels["app.kubernetes.io/version"]) {
			t.Errorf("%s: name, version or description is missing: %+v", file, o)
		}
		var links []struct{ Name, URL string }
		var changes []struct{ Kind, Description string }
		annotations := o.Metadata.Annotations
		errs := []error{
			yaml.UnmarshalStrict([]byte(annotations["artifacthub.io/links"]), &links),
			yaml.UnmarshalStrict([]byte(annotations["artifacthub.io/changes"]), &changes),
		}
		if err := errors.Join(errs...); err != nil || len(links) == 0 || len(changes) == 0 {
			t.Errorf("%s: links %v, changes %v: %v", file, links, changes, err)
		}
		for _, l := range links {
			if u, err := url.Parse(l.URL); err != nil || u.Host == "" || l.Name == "" {
				t.Errorf("%s: link %+v", file, l)
			}
		}
		kinds := []string{"added", "changed", "deprecated", "removed", "fixed", "security"}
		for _, c := range changes {
			if !slices.Contains(kinds, c.Kind) || c.Description == "" {
				t.Errorf("%s: change %+v", file, c)
			}
		}
		for key, want := range map[string]string{"license": "Apache-2.0", "provider": "checkplan", "category": "networking"} {
			if got := annotations["artifacthub.io/"+key]; got != want {
				t.Errorf("%s: %s %q, want %q", file, key, got, want)
			}
		}
		samples, err := filepath.Glob(dir + "/samples/*.yaml")
		if pipeline := filepath.Base(filepath.Dir(dir)) == "pipeline"; err != nil || pipeline != (len(samples) == 1) {
			t.Errorf("%s: samples %q, %v", file, samples, err)
		}
	}
}

func TestCatalogRefuses(t *testing.T) {
	large := smallPlan()
	large.Name, large.Description = "large", strings.Repeat("x", 45<<10)
	for i := range 5 {
		large.Checks[fmt.Sprint("c", i)] = mesh()
	}
	bad := smallPlan()
	bad.Name = "Bad"
	files, err := Catalog([]*checkup.Plan{smallPlan(), smallPlan(), large, bad}, testOptions)
	if err == nil || files != nil {
		t.Fatalf("got %d files and error %v, want none and an error", len(files), err)
	}
	for _, want := range []string{"plan small: duplicate name", `plan Bad: name "Bad" is not`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q\ndoes not contain %q", err, want)
		}
	}
	latest := testOptions
	latest.ImageTag = "latest"
	if files, err := Catalog(nil, latest); err == nil || files != nil || !strings.HasPrefix(err.Error(), "image tag latest: ") {
		t.Errorf("got %d files and error %v, want none and an error about the tag", len(files), err)
	}
	files, err = Catalog([]*checkup.Plan{large}, testOptions)
	if want := "kubectl apply stores it in an annotation, which Kubernetes limits to 262144 bytes (256 KiB): split the plan"; err == nil || files != nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %d files and error %v, want none and an error that contains %q", len(files), err, want)
	}
}

func TestDriftAndWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "catalog")
	files := catalog(t)
	drift := func() []string {
		t.Helper()
		got, err := files.Drift(dir)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	change := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write := func() {
		t.Helper()
		if err := files.Write(dir); err != nil {
			t.Fatal(err)
		}
	}

	if got := drift(); len(got) != len(files) || got[0] != "README.md: missing" {
		t.Errorf("empty directory: %v", got)
	}
	write()
	if got := drift(); len(got) != 0 {
		t.Errorf("after writing: %v", got)
	}

	change("task/checkplan-setup/checkplan-setup.yaml", "x")
	change("pipeline/gone/gone.yaml", string(mark("gone.yaml"))+"kind: Pipeline\n")
	change("pipeline/gone/README.md", string(mark("README.md"))+"# Gone\n")
	change("pipeline/small/OWNERS", "approvers: [me]\n")
	change("mine.yaml", string(mark("mine.yaml")))
	if err := os.Remove(filepath.Join(dir, "pipeline/small/samples/small.yaml")); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"pipeline/gone/README.md: stale", "pipeline/gone/gone.yaml: stale", "pipeline/small/samples/small.yaml: missing", "task/checkplan-setup/checkplan-setup.yaml: changed",
	}
	if diff := cmp.Diff(want, drift()); diff != "" {
		t.Errorf("drift (-want +got):\n%s", diff)
	}

	write()
	if got := drift(); len(got) != 0 {
		t.Errorf("after writing again: %v", got)
	}
	for name, want := range map[string]bool{"pipeline/gone": false, "pipeline/small/OWNERS": true, "mine.yaml": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s exists: %v, want %v", name, err == nil, want)
		}
	}
}

// A symbolic link in the output directory does not lead a file out of it, and a file that
// is a link is replaced.
func TestWriteFollowsNoLinkOut(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := (Files{"a.yaml": []byte("ours")}).Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "task")); err != nil {
		t.Fatal(err)
	}
	if err := (Files{"task/b.yaml": []byte("ours")}).Write(dir); err == nil {
		t.Error("a folder that is a link out of the directory was followed")
	}
	if text, err := os.ReadFile(victim); string(text) != "mine" {
		t.Errorf("the file outside is %q (%v)", text, err)
	}
	if entries, err := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("%d files outside (%v), want 1", len(entries), err)
	}
}

// TestFiles: the files of a compiled plan hold the objects, and nothing else.
func TestFiles(t *testing.T) {
	o := compile(t, twoChecks(), testOptions)
	files, err := o.Files()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"pipeline-two-checks.yaml", "rbac-two-checks.yaml", "samples/two-checks.yaml",
		"task-checkplan-conclude.yaml", "task-checkplan-probe-40m.yaml", "task-checkplan-probe.yaml", "task-checkplan-setup.yaml",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(files))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	objects := 0
	for _, text := range files {
		objects += len(decodeStrict(t, text))
	}
	if want := len(o.Applied()) + 1; objects != want {
		t.Errorf("%d objects in files, want %d", objects, want)
	}
	files["policies/two-checks.yaml"] = nil
	if err := files.Kustomize(); err != nil {
		t.Fatal(err)
	}
	golden(t, "kustomization.yaml", files["kustomization.yaml"])
}
