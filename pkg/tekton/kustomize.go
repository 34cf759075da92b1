// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/connectivity"
	"github.com/checkplan/checkplan/pkg/networkhealth"
)

// Names of files that kustomize reads.
const (
	kustomizationFile = "kustomization.yaml"
	configFile        = "kustomizeconfig.yaml"
)

// syncWave is Argo CD's annotation with the order in which objects are applied; 0 is the default.
const syncWave = "argocd.argoproj.io/sync-wave"

// component is the Kind of a kustomization that changes what others hold.
const component = "Component"

// kustomization is a Kustomization or a Component; docs/gitops.md says how they fit together.
type kustomization struct {
	APIVersion     string        `json:"apiVersion"`
	Kind           string        `json:"kind"` // empty means Kustomization
	Resources      []string      `json:"resources,omitempty"`
	Components     []string      `json:"components,omitempty"`
	Configurations []string      `json:"configurations,omitempty"`
	Replacements   []replacement `json:"replacements,omitempty"`
}

// replacement copies a field of one object to others, as kustomize documents it.
type replacement struct {
	Source  replacementSource   `json:"source"`
	Targets []replacementTarget `json:"targets"`
}

type replacementSource struct {
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	FieldPath string `json:"fieldPath"`
}

type replacementTarget struct {
	Select struct {
		Kind      string `json:"kind"`
		Name      string `json:"name"`
		Namespace string `json:"namespace,omitempty"`
	} `json:"select"`
	FieldPaths []string            `json:"fieldPaths"`
	Options    *replacementOptions `json:"options,omitempty"`
}

// replacementOptions select the part of a field that is replaced.
type replacementOptions struct {
	Delimiter string `json:"delimiter"`
	Index     int    `json:"index"`
}

func (k kustomization) encode() ([]byte, error) {
	k.APIVersion, k.Kind = "kustomize.config.k8s.io/v1beta1", cmp.Or(k.Kind, "Kustomization")
	if k.Kind == component {
		k.APIVersion = "kustomize.config.k8s.io/v1alpha1"
	}
	return yaml.Marshal(k)
}

// kustomizeConfig says where Tasks have images, one of them in an environment variable, and which fields of Pipelines
// are names of Tasks. Kustomize hands it to all overlays of a directory.
const kustomizeConfig = `images:
- kind: Task
  path: spec/steps/image
- kind: Task
  path: spec/steps/env/value
nameReference:
- kind: Task
  fieldSpecs:
  - kind: Pipeline
    path: spec/tasks/taskRef/name
  - kind: Pipeline
    path: spec/finally/taskRef/name
`

// beyond splits objects into those of the namespace, and those that are cluster-scoped or in other namespaces.
func beyond(objects []runtime.Object, namespace string) (inside, outside []runtime.Object) {
	for _, object := range objects {
		if m, err := meta.Accessor(object); err == nil && m.GetNamespace() == namespace {
			inside = append(inside, object)
		} else {
			outside = append(outside, object)
		}
	}
	return inside, outside
}

// clusterComponent adds to an overlay the rights of a plan outside its namespace, which are in rbac.yaml. Kustomize's
// namespace: would move those in other namespaces, and leave the names of the cluster-scoped ones: those of two
// overlays would be one object. A component is applied after it: it copies the namespace of the plan's account into
// their names and subjects. The names are checkplan:NAMESPACE:...
func clusterComponent(plan string, outside []runtime.Object) (kustomization, error) {
	rename := replacement{Source: replacementSource{Kind: "ServiceAccount", Name: plan, FieldPath: "metadata.namespace"}}
	for _, object := range outside {
		m, err := meta.Accessor(object)
		if err != nil {
			return kustomization{}, err
		}
		var target replacementTarget
		target.Select.Kind = object.GetObjectKind().GroupVersionKind().Kind
		target.Select.Name, target.Select.Namespace = m.GetName(), m.GetNamespace()
		names := target
		names.FieldPaths = []string{"metadata.name"}
		names.Options = &replacementOptions{Delimiter: ":", Index: 1}
		switch object.(type) {
		case *rbacv1.ClusterRoleBinding, *rbacv1.RoleBinding:
			target.FieldPaths = []string{"subjects.*.namespace"}
			rename.Targets = append(rename.Targets, target) // before the name changes, by which it is selected
			names.FieldPaths = append(names.FieldPaths, "roleRef.name")
		}
		rename.Targets = append(rename.Targets, names)
	}
	return kustomization{Kind: component, Resources: []string{"rbac.yaml"}, Replacements: []replacement{rename}}, nil
}

// kustomize adds the kustomizations of a catalog. names are those of its plans, tasks those of its Tasks, clusters the
// plans with rights outside their namespace, and crds the files with definitions.
func (f Files) kustomize(names, tasks, clusters, crds []string) error {
	all := map[string]kustomization{
		".":        {Resources: []string{"pipeline"}},
		"pipeline": {Resources: names},
		"default":  {Resources: []string{"../pipeline"}},
	}
	if len(names) == 0 {
		return nil
	}
	if len(tasks) > 0 {
		k := kustomization{Configurations: []string{configFile}}
		for _, task := range tasks {
			k.Resources = append(k.Resources, task+"/"+task+".yaml")
		}
		all["task"] = k
		all["."] = kustomization{Resources: []string{"pipeline", "task"}}
		all["default"] = kustomization{Resources: []string{"../pipeline", "../task"}}
		f[path.Join("task", configFile)] = []byte(kustomizeConfig)
	}
	for _, name := range names {
		var k kustomization
		if _, ok := f[path.Join("pipeline", name, name+".yaml")]; ok {
			k.Resources = append(k.Resources, name+".yaml")
		}
		k.Resources = append(k.Resources, "rbac.yaml")
		if _, ok := f[path.Join("pipeline", name, "schedule.yaml")]; ok {
			k.Resources = append(k.Resources, "schedule.yaml")
		}
		all[path.Join("pipeline", name)] = k
	}
	complete := all["default"]
	if len(clusters) > 0 {
		all["cluster"] = kustomization{Kind: component, Components: clusters}
		complete.Components = []string{"../cluster"}
	}
	if len(crds) > 0 {
		all["crd"] = kustomization{Resources: crds}
		complete.Resources = append(complete.Resources, "../crd")
	}
	all["default"] = complete
	for dir, k := range all {
		text, err := k.encode()
		if err != nil {
			return err
		}
		f[path.Join(dir, kustomizationFile)] = text
	}
	return nil
}

// Kustomize adds a kustomization of all files that planner compile writes, for kubectl apply -k, Flux and Argo CD:
// those of the first level. Samples are to be created, and policies are for who administers the cluster.
func (f Files) Kustomize() error {
	k := kustomization{Configurations: []string{configFile}}
	for name := range f {
		if !strings.Contains(name, "/") {
			k.Resources = append(k.Resources, name)
		}
	}
	slices.Sort(k.Resources)
	text, err := k.encode()
	if err != nil {
		return err
	}
	f[kustomizationFile], f[configFile] = text, []byte(kustomizeConfig)
	return nil
}

// definitions are the CustomResourceDefinitions that the plan lets setup create, by name. Where Git applies them, the
// plan can do without this right. They come first, and are never pruned: objects of other plans would go with them.
func definitions(plan *checkup.Plan, opts Options) (map[string]*unstructured.Unstructured, error) {
	all := map[string]*unstructured.Unstructured{}
	for _, r := range Rights(plan, opts) {
		if r.Resource != "customresourcedefinitions" || r.Verb != "create" {
			continue
		}
		for _, text := range [][]byte{connectivity.CRD(), networkhealth.CRD()} {
			var object unstructured.Unstructured
			if err := yaml.Unmarshal(text, &object.Object); err != nil {
				return nil, fmt.Errorf("read a CustomResourceDefinition: %w", err)
			}
			if slices.Contains(r.Names, object.GetName()) {
				annotations := object.GetAnnotations()
				if annotations == nil {
					annotations = map[string]string{}
				}
				annotations[syncWave] = "-1"
				annotations["argocd.argoproj.io/sync-options"] = "Prune=false,Delete=false"
				annotations["kustomize.toolkit.fluxcd.io/prune"] = "disabled"
				object.SetAnnotations(annotations)
				all[object.GetName()] = &object
			}
		}
	}
	return all, nil
}
