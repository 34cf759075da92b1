// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Files are the contents of files by slash-separated path.
type Files map[string][]byte

// Files are the objects as YAML: one file for the rights, one per Task, one for
// the Pipeline and one for the schedule, in one directory; and the sample in the folder
// samples, because it cannot be applied. Files of several plans have different
// names, except for those of Tasks, which are equal. Files.Kustomize makes one directory of them.
func (o *Objects) Files() (Files, error) {
	groups := map[string][]runtime.Object{
		"rbac-" + o.Pipeline.Name + ".yaml":     o.Rights,
		"pipeline-" + o.Pipeline.Name + ".yaml": {o.Pipeline},
		"samples/" + o.Pipeline.Name + ".yaml":  {o.Sample},
	}
	for _, task := range o.Tasks {
		groups["task-"+task.Name+".yaml"] = []runtime.Object{task}
	}
	if o.Schedule != nil {
		groups["schedule-"+o.Pipeline.Name+".yaml"] = o.Schedule
	}
	files := Files{}
	return files, files.encode(groups)
}

// Catalog is the Tekton catalog of the plans, versioned by Git (TEP-0115): task/NAME/NAME.yaml and
// pipeline/NAME/NAME.yaml, each with a README, and the pipeline's rights in its namespace beside it. These
// directories are kustomizations that an overlay can move to another namespace. The rights outside the namespace are
// in cluster/NAME, a component; CustomResourceDefinitions in crd; default is a kustomization of all. Sample runs
// cannot be applied, because they have a generateName: they are in folders of their own, where Artifact Hub reads them.
// There is no directory task if opts.Tasks finds the Tasks, and no Pipeline if opts.Pipelines finds them.
func Catalog(plans []*checkup.Plan, opts Options) (Files, error) {
	opts = opts.withDefaults()
	plans = slices.SortedFunc(slices.Values(plans), func(a, b *checkup.Plan) int {
		return strings.Compare(a.Name, b.Name)
	})
	files, groups := Files{}, map[string][]runtime.Object{}
	tasks := map[string]*pipelinev1.Task{}
	var names, clusters, crds []string
	var errs []error
	if opts.ImageTag == "latest" {
		errs = append(errs, errors.New(
			"image tag latest: a catalog must name images that do not change; want a version, such as v0.1.0"))
	}
	for i, plan := range plans {
		if i > 0 && plans[i-1].Name == plan.Name {
			errs = append(errs, fmt.Errorf("plan %s: duplicate name", plan.Name))
			continue
		}
		o, err := Compile(plan, opts)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		dir := path.Join("pipeline", plan.Name)
		if opts.Pipelines.Name == "" {
			groups[path.Join(dir, plan.Name+".yaml")] = []runtime.Object{o.Pipeline}
		}
		names = append(names, plan.Name)
		inside, outside := beyond(o.Rights, opts.Namespace)
		groups[path.Join(dir, "rbac.yaml")] = inside
		if len(outside) > 0 {
			clusters = append(clusters, plan.Name)
			groups[path.Join("cluster", plan.Name, "rbac.yaml")] = outside
			component, err := clusterComponent(plan.Name, outside)
			errs = append(errs, err)
			files[path.Join("cluster", plan.Name, kustomizationFile)], err = component.encode()
			errs = append(errs, err)
		}
		needed, err := definitions(plan, opts)
		errs = append(errs, err)
		for name, definition := range needed {
			file := name + ".yaml"
			if groups[path.Join("crd", file)] == nil {
				crds = append(crds, file)
			}
			groups[path.Join("crd", file)] = []runtime.Object{definition}
		}
		if o.Schedule != nil {
			groups[path.Join(dir, "schedule.yaml")] = o.Schedule
		}
		groups[path.Join(dir, "samples", plan.Name+".yaml")] = []runtime.Object{o.Sample}
		files[path.Join(dir, "README.md")] = pipelineReadme(plan, opts, o)
		for _, task := range o.Tasks {
			tasks[task.Name] = task
		}
	}
	for name, task := range tasks {
		dir := path.Join("task", name)
		groups[path.Join(dir, name+".yaml")] = []runtime.Object{task}
		files[path.Join(dir, "README.md")] = taskReadme(task)
	}
	taskNames := slices.Sorted(maps.Keys(tasks))
	slices.Sort(crds)
	files["README.md"] = catalogReadme(plans, opts, taskNames, clusters)
	errs = append(errs, files.encode(groups), files.kustomize(names, taskNames, clusters, crds))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for name, text := range files {
		if n := len(text); strings.HasSuffix(name, ".yaml") && n > maxAnnotations {
			errs = append(errs, fmt.Errorf("%s is %d bytes long; kubectl apply stores it in an annotation, which Kubernetes "+
				"limits to %d bytes (256 KiB): split the plan", name, n, maxAnnotations))
			continue
		}
		files[name] = append(mark(name), text...)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return files, nil
}

// encode adds a file of YAML for each group of objects.
func (f Files) encode(groups map[string][]runtime.Object) error {
	for name, objects := range groups {
		text, err := Encode(objects...)
		if err != nil {
			return err
		}
		f[name] = text
	}
	return nil
}

// generated marks the files of a catalog. A file with the mark may be removed when
// its plan is gone; other files are never changed.
const generated = "Generated by planner catalog. Do not edit."

func mark(name string) []byte {
	if strings.HasSuffix(name, ".md") {
		return []byte("<!-- " + generated + " -->\n\n")
	}
	return []byte("# " + generated + "\n")
}

// Drift lists the files in which a directory differs from f, each with how it
// differs (missing, changed, stale), sorted by name. A generated file that is not in
// f is stale; other files are ignored. In a directory that does not exist, all files
// are missing.
func (f Files) Drift(dir string) ([]string, error) {
	var drift []string
	for name, want := range f {
		have, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			drift = append(drift, name+": missing")
		case err != nil:
			return nil, err
		case !bytes.Equal(have, want):
			drift = append(drift, name+": changed")
		}
	}
	stale, err := f.stale(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range stale {
		drift = append(drift, name+": stale")
	}
	slices.Sort(drift)
	return drift, nil
}

// Write writes f to the directory: it writes the files that differ, each whole or
// not at all, and removes stale files.
func (f Files) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// A symbolic link in the directory does not lead a file out of it.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range slices.Sorted(maps.Keys(f)) {
		file := filepath.FromSlash(name)
		if have, err := root.ReadFile(file); err == nil && bytes.Equal(have, f[name]) {
			continue
		}
		if err := root.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := replaceFile(root, file, f[name]); err != nil {
			return err
		}
	}
	stale, err := f.stale(dir)
	if err != nil {
		return err
	}
	for _, name := range stale {
		file := filepath.FromSlash(name)
		if err := root.Remove(file); err != nil {
			return err
		}
		_ = root.Remove(filepath.Dir(file)) // fails if the folder is not empty, as it should
	}
	return nil
}

// replaceFile writes a temporary file beside the old one and renames it: a reader
// never sees half a file.
func replaceFile(root *os.Root, file string, data []byte) error {
	temporary := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+"-"+rand.Text())
	defer root.Remove(temporary) // fails after the rename, as it should
	if err := root.WriteFile(temporary, data, 0o644); err != nil {
		return err
	}
	return root.Rename(temporary, file)
}

// stale are the generated files in the folders of a catalog that are not in f.
func (f Files) stale(dir string) ([]string, error) {
	var stale []string
	for _, folder := range []string{"task", "pipeline", "cluster", "crd", "default", "samples"} {
		err := filepath.WalkDir(filepath.Join(dir, folder), func(file string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			name, err := filepath.Rel(dir, file)
			if err != nil {
				return err
			}
			name = filepath.ToSlash(name)
			if _, ok := f[name]; ok {
				return nil
			}
			text, err := os.ReadFile(file)
			if err == nil && bytes.HasPrefix(text, mark(name)) {
				stale = append(stale, name)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return stale, nil
}

// Bundle is what a bundle of the plans holds: their Tasks, each once, and their Pipelines. If opts.Tasks is zero, it is
// the Tasks only: the Pipelines of a bundle find their Tasks in another one, because no bundle can hold its own digest.
// The objects have no namespace.
func Bundle(plans []*checkup.Plan, opts Options) ([]runtime.Object, error) {
	withPipelines := opts.Tasks.Name != ""
	tasks, pipelines := map[string]runtime.Object{}, map[string]runtime.Object{}
	var errs []error
	for _, plan := range plans {
		if pipelines[plan.Name] != nil {
			errs = append(errs, fmt.Errorf("plan %s: duplicate name", plan.Name))
			continue
		}
		o, err := Compile(plan, opts)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		o.Pipeline.Namespace = ""
		pipelines[plan.Name] = o.Pipeline
		if withPipelines {
			local := opts
			local.Tasks = Resolver{}
			if o, err = Compile(plan, local); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		for _, task := range o.Tasks {
			task.Namespace = ""
			tasks[task.Name] = task
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var objects []runtime.Object
	for _, name := range slices.Sorted(maps.Keys(tasks)) {
		objects = append(objects, tasks[name])
	}
	if withPipelines {
		for _, name := range slices.Sorted(maps.Keys(pipelines)) {
			objects = append(objects, pipelines[name])
		}
	}
	return objects, nil
}
