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

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kinds"
)

// Defaults of Options.
const (
	DefaultNamespace       = "checkplan"
	DefaultImageRepository = "ghcr.io/checkplan/checkplan"
	DefaultImageTag        = "v0.1.0"
)

// Options are the namespace, the images and the Tekton release that a plan is
// compiled for.
type Options struct {
	// Namespace of the objects, and of the pods of every run. Empty means
	// DefaultNamespace. kubectl cannot choose another one, because a role binding
	// names the namespace of its account.
	Namespace string
	// ImageRepository is the part of image references before "/setup", "/probe",
	// "/report", "/teardown", "/agent" and "/guest". Empty means
	// DefaultImageRepository.
	ImageRepository string
	// ImageTag is the tag of all images. Without its leading "v", it is also the value
	// of the label app.kubernetes.io/version. Empty means DefaultImageTag.
	ImageTag string
	// ImageDigests are the digests of the images by name ("setup", "probe", ...), as
	// "sha256:<hex>". Empty means that images are named by tag only; else every image must
	// be there, the guest too. See ParseDigests.
	ImageDigests map[string]string
	// Tekton is the oldest Tekton release that the objects are for. Empty means
	// the last of Profiles.
	Tekton Profile
	// Tasks says where Pipelines find their Tasks. Unless it is zero, Compile returns no Tasks.
	Tasks Resolver
	// Pipelines says where sample runs and schedules find their Pipeline. Unless it is zero, a catalog has no Pipelines.
	Pipelines Resolver
	// Annotations of Tasks and Pipelines beside those that Compile writes, such as those that Artifact Hub reads.
	Annotations map[string]string
}

// Objects are what a plan compiles to.
type Objects struct {
	// Rights are the ServiceAccounts, and the roles and bindings of each phase.
	Rights []runtime.Object
	// Tasks that the Pipeline refers to. They are equal for all plans with the
	// shortest step timeouts. Nil if Options.Tasks finds them elsewhere.
	Tasks    []*pipelinev1.Task
	Pipeline *pipelinev1.Pipeline
	// Sample is a PipelineRun to create, not to apply: it has a generateName.
	Sample *pipelinev1.PipelineRun
	// Schedule is a CronJob that starts runs, with its account and role; empty for a plan without a schedule.
	Schedule []runtime.Object
}

// Applied lists the objects to apply, in order: rights, tasks, pipeline.
func (o *Objects) Applied() []runtime.Object {
	applied := slices.Clone(o.Rights)
	for _, task := range o.Tasks {
		applied = append(applied, task)
	}
	return append(applied, o.Pipeline)
}

// Deployed lists the objects of Applied, and those of Schedule. A run by hand needs no schedule.
func (o *Objects) Deployed() []runtime.Object { return append(o.Applied(), o.Schedule...) }

// Compile turns a plan into Kubernetes objects. The error lists every problem of the
// options and of the plan, a line each.
func Compile(plan *checkup.Plan, opts Options) (*Objects, error) {
	opts = opts.withDefaults()
	if err := errors.Join(opts.validate(), validatePlan(plan, opts)); err != nil {
		return nil, err
	}
	planJSON, err := encodePlan(plan)
	if err != nil {
		return nil, err
	}
	o := &Objects{
		Rights:   rights(plan, opts),
		Pipeline: pipeline(plan, opts, planJSON),
		Sample:   sampleRun(plan, opts),
	}
	if opts.Tasks.Name == "" {
		o.Tasks = tasks(plan, opts)
	}
	if err := validateAll(append(o.Applied(), o.Sample)...); err != nil {
		return nil, err
	}
	if o.Schedule, err = schedule(plan, o.Sample, opts); err != nil {
		return nil, err
	}
	if err := validateAll(o.Schedule...); err != nil {
		return nil, err
	}
	return o, nil
}

// encodePlan writes the plan as indented JSON: a changed line of the plan is a changed
// line of the compiled YAML. A dollar sign, which JSON has in strings only, is
// written \u0024. checkup.MaxPlanSize limits the size of this form.
func encodePlan(plan *checkup.Plan) (string, error) {
	b, err := json.MarshalIndent(plan, "", "  ")
	if err != nil {
		return "", fmt.Errorf("plan %s: write as JSON: %w", plan.Name, err)
	}
	return strings.ReplaceAll(string(checkup.EscapeJSON(b)), "$", `\u0024`), nil
}

// validatePlan lists every rule that the plan breaks: those of all plans, and those
// of Tekton and Kubernetes.
func validatePlan(plan *checkup.Plan, opts Options) error {
	var errs []error
	bad := func(problem string) { errs = append(errs, fmt.Errorf("plan %s: %s", plan.Name, problem)) }
	for _, problem := range kinds.Problems(plan) {
		bad(problem.String())
	}
	for _, name := range plan.CheckNames() {
		for _, namespace := range otherNamespaces(plan.Checks[name]) {
			if msgs := validation.IsDNS1123Label(namespace); len(msgs) > 0 {
				bad(fmt.Sprintf("checks.%s: namespace %q: %s", name, namespace, strings.Join(msgs, "; ")))
			}
		}
		if r := writesSystem(kinds.Rights(plan.Checks[name]), opts.Namespace); r != nil {
			bad(fmt.Sprintf("checks.%s: would get the right to %s %s %s in namespace %s, which belongs to Kubernetes: "+
				"use another namespace, or confirm it with -n %[5]s", name, r.Verb, r.Resource, strings.Join(r.Names, ", "),
				r.Namespace))
		}
	}
	for _, param := range plan.Params() {
		if strings.Contains(param.Default, "$") {
			bad(fmt.Sprintf("parameter %s: %q has a dollar sign, which Tekton and Kubernetes would expand", param.Name,
				param.Default))
		}
	}
	return errors.Join(errs...)
}

// writesSystem returns the first right to change something in a namespace of Kubernetes
// itself, unless that is the run's namespace; nil if there is none.
func writesSystem(rights []checkup.Right, runNamespace string) *checkup.Right {
	for _, r := range rights {
		reads := slices.Contains([]string{"get", "list", "watch"}, r.Verb)
		system := r.Scope == checkup.ScopeNamespace && strings.HasPrefix(r.Namespace, "kube-")
		if system && r.Namespace != runNamespace && !reads {
			return &r
		}
	}
	return nil
}

// tagPattern is the grammar of a tag in the OCI distribution specification,
// section "Pulling manifests"; repositoryPattern is, more loosely, that of a registry
// host, an optional port, and a repository.
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
		errs = append(errs, fmt.Errorf(
			"image repository %q: want a registry host and a path, without tag, such as registry.example.com/checkplan",
			o.ImageRepository))
	}
	if !tagPattern.MatchString(o.ImageTag) {
		errs = append(errs, fmt.Errorf("image tag %q: want up to 128 letters, digits, dots, dashes and underscores, "+
			"such as v0.1.0", o.ImageTag))
	} else if msgs := validation.IsValidLabelValue(o.version()); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("image tag %q: not valid as value of the label app.kubernetes.io/version: %s",
			o.ImageTag, strings.Join(msgs, "; ")))
	}
	for _, name := range append(slices.Clone(taskImages), guestImage) { // the Tasks always name the guest
		if len(o.ImageDigests) > 0 && o.ImageDigests[name] == "" {
			errs = append(errs, fmt.Errorf("image digests: no digest of the image %s", name))
		}
	}
	for _, r := range []Resolver{o.Tasks, o.Pipelines} {
		if r.Name == ResolverHub && r.params["version"] == "" && !versionPattern.MatchString(o.version()) {
			errs = append(errs, fmt.Errorf("image tag %q is no version of a hub: add version=VERSION to %s=%s",
				o.ImageTag, r.Name, r.From))
		}
	}
	for _, err := range apivalidation.ValidateAnnotations(o.Annotations, field.NewPath("annotations")) {
		errs = append(errs, err)
	}
	if !slices.Contains(Profiles, o.Tekton) {
		errs = append(errs, fmt.Errorf("tekton profile %q: want one of %s", o.Tekton, joinProfiles()))
	}
	return errors.Join(errs...)
}

// version is the value of the label app.kubernetes.io/version. Catalogs have it
// without the "v" of a Git tag (TEP-0115).
func (o Options) version() string {
	if rest, ok := strings.CutPrefix(o.ImageTag, "v"); ok && rest != "" {
		return rest
	}
	return o.ImageTag
}

// Images are the images of a run in the order of their use; the image of agents and
// responders is the last.
func Images(opts Options) []string {
	opts = opts.withDefaults()
	images := make([]string, len(taskImages))
	for i, name := range taskImages {
		images[i] = opts.image(name)
	}
	return images
}

// AgentImage is the image of agents and responders.
func AgentImage(opts Options) string { return opts.withDefaults().image("agent") }

// GuestImage is the image with the kernel and the initial RAM disk of VMs whose check
// names no image.
func GuestImage(opts Options) string { return opts.withDefaults().image(guestImage) }

func (o Options) image(name string) string {
	image := o.ImageRepository + "/" + name + ":" + o.ImageTag
	if digest := o.ImageDigests[name]; digest != "" {
		image += "@" + digest
	}
	return image
}

// taskImages are the names of the images that every plan uses.
var taskImages = []string{"setup", "probe", "teardown", "report", "agent"}

// guestImage is the name of the image of VMs.
const guestImage = "guest"

// ParseDigests reads references of images, one per line, as ko prints them:
// REPOSITORY/NAME[:TAG]@sha256:HEX. It returns the digests by NAME, the last
// element of the path. Empty lines are skipped. The error lists every wrong line.
func ParseDigests(text []byte) (map[string]string, error) {
	digests := map[string]string{}
	var errs []error
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		parts := digestPattern.FindStringSubmatch(line)
		if parts == nil {
			errs = append(errs, fmt.Errorf("line %d: want REPOSITORY/NAME@sha256:HEX, not %q", i+1, line))
			continue
		}
		if have := digests[parts[1]]; have != "" && have != parts[2] {
			errs = append(errs, fmt.Errorf("line %d: a second digest of the image %s", i+1, parts[1]))
		}
		digests[parts[1]] = parts[2]
	}
	if len(digests) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("no image references in it"))
	}
	return digests, errors.Join(errs...)
}

var digestPattern = regexp.MustCompile(
	`^(?:[a-zA-Z0-9][a-zA-Z0-9._:-]*/)+([a-z0-9]+(?:[._-]+[a-z0-9]+)*)(?::[\w.-]{1,128})?@(sha256:[0-9a-f]{64})$`)

// meta is the metadata of a namespaced object. plan is empty for an object that
// belongs to no plan.
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

// plainText adds a space after the dollar sign in $(x), ${x} and $$, because Tekton,
// Kubernetes and Flux expand these. Only texts for people are changed.
func plainText(s string) string {
	var b strings.Builder
	for i, r := range s {
		b.WriteRune(r)
		if r == '$' && i+1 < len(s) && strings.IndexByte("({$", s[i+1]) >= 0 {
			b.WriteByte(' ')
		}
	}
	return b.String()
}
