// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Where the project's own images and its catalog are.
const (
	DefaultNamespace       = "checkplan"
	DefaultImageRepository = "ghcr.io/checkplan/checkplan"
	DefaultImageTag        = "v0.1.0"
)

// Options say for where a plan is compiled.
type Options struct {
	// Namespace that the objects live in, and the pods of every run. Empty means
	// DefaultNamespace: a binding of rights to an account must name its namespace,
	// so that there is none that kubectl could choose.
	Namespace string
	// ImageRepository is what stands before "/setup", "/probe", "/report",
	// "/teardown" and "/agent" in image references. Empty means
	// DefaultImageRepository.
	ImageRepository string
	// ImageTag is the tag of all images. Without a "v" before it, it is also the
	// value of the label app.kubernetes.io/version. Empty means DefaultImageTag.
	ImageTag string
	// Tekton is the oldest Tekton release that the objects are for. Empty means
	// the last of Profiles.
	Tekton Profile
}

// Objects are what a plan compiles to.
type Objects struct {
	// Rights are the ServiceAccounts, and the roles and bindings of each phase.
	Rights []runtime.Object
	// Tasks that the Pipeline refers to. They are the same for every plan that
	// needs no longer step timeouts than the shortest.
	Tasks    []*pipelinev1.Task
	Pipeline *pipelinev1.Pipeline
	// Sample is a PipelineRun to create, not to apply: it has a generateName.
	Sample *pipelinev1.PipelineRun
}

// Applied lists what is to be applied, in order: rights, tasks, pipeline.
func (o *Objects) Applied() []runtime.Object {
	applied := slices.Clone(o.Rights)
	for _, task := range o.Tasks {
		applied = append(applied, task)
	}
	return append(applied, o.Pipeline)
}

// Compile turns a plan into Kubernetes objects. The error tells every problem of
// options and plan that was found, a line each.
func Compile(plan *checkup.Plan, opts Options) (*Objects, error) {
	opts = opts.withDefaults()
	if err := errors.Join(opts.validate(), validatePlan(plan)); err != nil {
		return nil, err
	}
	planJSON, err := encodePlan(plan)
	if err != nil {
		return nil, err
	}
	o := &Objects{
		Rights:   rights(plan, opts),
		Tasks:    tasks(plan, opts),
		Pipeline: pipeline(plan, opts, planJSON),
		Sample:   sampleRun(plan, opts),
	}
	if err := validateAll(append(o.Applied(), o.Sample)...); err != nil {
		return nil, err
	}
	return o, nil
}

// Limits that Kubernetes and Tekton set, and a plan can run into.
const (
	// maxEnv is Linux' MAX_ARG_STRLEN: the longest single string of a process'
	// environment, with its name, "=" and the final NUL.
	maxEnv = 128 << 10
	// maxObject is kept below etcd's default request limit of 1.5 MiB, because a
	// PipelineRun carries the Pipeline's spec in its status beside its own.
	maxObject = 1 << 20
	// maxAnnotations is the limit on the annotations of an object together
	// (apimachinery's TotalAnnotationSizeLimitB).
	maxAnnotations = 256 << 10
	// maxName is the longest name of a Tekton object (Tekton's
	// pkg/apis/validate.MaxLength), and of a label value.
	maxName = validation.DNS1123LabelMaxLength
)

// envPlan is the environment variable that brings the plan to a step.
const envPlan = "PLAN"

// encodePlan writes the plan as indented JSON, so that a change of it is a
// change of one line in the compiled YAML. A dollar sign can only stand inside a
// string there, and is written \u0024.
func encodePlan(plan *checkup.Plan) (string, error) {
	b, err := json.MarshalIndent(plan, "", "  ")
	if err != nil {
		return "", fmt.Errorf("plan %s: write as JSON: %w", plan.Name, err)
	}
	text := strings.ReplaceAll(string(b), "$", `\u0024`)
	if n := len(envPlan) + len("=") + len(text) + 1; n > maxEnv {
		return "", fmt.Errorf("plan %s: as JSON it takes %d bytes of a step's environment; Linux allows %d (128 KiB): split the plan", plan.Name, n, maxEnv)
	}
	return text, nil
}

// validatePlan tells what of a plan Tekton or Kubernetes would refuse.
func validatePlan(plan *checkup.Plan) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("plan %s: %s", plan.Name, fmt.Sprintf(format, args...)))
	}
	if msgs := validation.IsDNS1123Label(plan.Name); len(msgs) > 0 {
		bad("name: %s", strings.Join(msgs, "; "))
	}
	if len(plan.Name) > checkup.MaxPlanName {
		bad("name is %d characters long; at most %d leave room for the names of runs", len(plan.Name), checkup.MaxPlanName)
	}
	if len(plan.Checks) == 0 {
		bad("it has no check")
	}
	seen := map[string]bool{}
	for _, name := range plan.CheckNames() {
		check := plan.Checks[name]
		if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
			bad("check %q: name: %s", name, strings.Join(msgs, "; "))
		}
		if len(name) > checkup.MaxCheckName {
			bad("check %s: name is %d characters long; at most %d leave room for the names of task runs", name, len(name), checkup.MaxCheckName)
		}
		for _, after := range check.After {
			if _, ok := plan.Checks[after]; !ok {
				bad("check %s: after: there is no check %q", name, after)
			} else if !seen[after] {
				bad("check %s: after: %s is part of a cycle", name, after)
			}
		}
		seen[name] = true
		mesh := check.PodMesh
		if mesh == nil {
			bad("check %s: it has no kind", name)
			continue
		}
		for _, t := range []struct {
			field   string
			timeout checkup.Duration
		}{{"setup", mesh.Timeouts.Setup}, {"probe", mesh.Timeouts.Probe}} {
			if t.timeout <= 0 || time.Duration(t.timeout) > maxTimeout {
				bad("check %s: timeouts.%s is %s; want more than 0s and at most %s", name, t.field, t.timeout, maxTimeout)
			}
		}
		if pods := mesh.Targets.Pods; pods != nil && pods.Namespace != "" {
			if msgs := validation.IsDNS1123Label(pods.Namespace); len(msgs) > 0 {
				bad("check %s: targets.pods.namespace %q: %s", name, pods.Namespace, strings.Join(msgs, "; "))
			}
		}
	}
	for _, param := range plan.Params() {
		if strings.Contains(param.Default, "$") {
			bad("parameter %s: value %q has a dollar sign, which Tekton and Kubernetes expand", param.Name, param.Default)
		}
	}
	return errors.Join(errs...)
}

// tagPattern is the grammar of a tag in the OCI distribution specification,
// section "Pulling manifests"; repositoryPattern is that of a repository with a
// registry host and port before it, loosely.
var (
	tagPattern        = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	repositoryPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9.-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$`)
)

func (o Options) withDefaults() Options {
	o.Namespace = cmp.Or(o.Namespace, DefaultNamespace)
	o.ImageRepository = cmp.Or(o.ImageRepository, DefaultImageRepository)
	o.ImageTag = cmp.Or(o.ImageTag, DefaultImageTag)
	o.Tekton = cmp.Or(o.Tekton, Profiles[len(Profiles)-1])
	return o
}

func (o Options) validate() error {
	var errs []error
	if msgs := validation.IsDNS1123Label(o.Namespace); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("namespace %q: %s", o.Namespace, strings.Join(msgs, "; ")))
	}
	if !repositoryPattern.MatchString(o.ImageRepository) {
		errs = append(errs, fmt.Errorf("image repository %q: want a registry host and a path, without tag, such as registry.example.com/checkplan", o.ImageRepository))
	}
	if !tagPattern.MatchString(o.ImageTag) {
		errs = append(errs, fmt.Errorf("image tag %q: want up to 128 letters, digits, dots, dashes and underscores, such as v0.1.0", o.ImageTag))
	} else if msgs := validation.IsValidLabelValue(o.version()); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("image tag %q: it cannot be the label app.kubernetes.io/version: %s", o.ImageTag, strings.Join(msgs, "; ")))
	}
	if !slices.Contains(Profiles, o.Tekton) {
		errs = append(errs, fmt.Errorf("tekton profile %q: want one of %s", o.Tekton, joinProfiles()))
	}
	return errors.Join(errs...)
}

// version is the value of the label app.kubernetes.io/version, which catalogs
// want without the "v" of a Git tag (TEP-0115).
func (o Options) version() string {
	if rest, ok := strings.CutPrefix(o.ImageTag, "v"); ok && rest != "" {
		return rest
	}
	return o.ImageTag
}

func (o Options) image(name string) string {
	return o.ImageRepository + "/" + name + ":" + o.ImageTag
}

// meta is the metadata of a namespaced object. plan is empty for what belongs to
// no plan.
func (o Options) meta(name, plan string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Name:      name,
		Namespace: o.Namespace,
		Labels: map[string]string{
			checkup.LabelManagedBy:      checkup.ManagedBy,
			"app.kubernetes.io/version": o.version(),
		},
	}
	if plan != "" {
		m.Labels[checkup.LabelPlan] = plan
	}
	return m
}

// plainText keeps what people wrote from being taken for a variable by those who
// expand $(x), ${x} or $x: a dollar sign stays, but nothing that follows it
// touches it. Only texts for people are changed so.
func plainText(s string) string {
	return strings.NewReplacer("$(", "$ (", "${", "$ {").Replace(s)
}
