// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tektoncd/pipeline/pkg/apis/config"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/pkg/apis"
)

// Profile is the oldest Tekton release that compiled objects are for. Objects use
// stable features of Tekton only: those of two profiles differ only in the release
// that they name.
type Profile string

const (
	// Tekton112 is the oldest: before 1.10, results of failed tasks never reach the
	// PipelineRun, and 1.12 is the first LTS release since then.
	Tekton112 Profile = "1.12"
	// Tekton115 is the LTS release that the tests run on.
	Tekton115 Profile = "1.15"
)

// Profiles lists every Profile, oldest first.
var Profiles = []Profile{Tekton112, Tekton115}

func joinProfiles() string {
	names := make([]string, len(Profiles))
	for i, p := range Profiles {
		names[i] = string(p)
	}
	return strings.Join(names, ", ")
}

// minVersion is the value of the annotation tekton.dev/pipelines.minVersion.
func (p Profile) minVersion() string { return string(p) + ".0" }

// tektonContext holds the configuration of the strictest cluster that must accept the
// objects: no inline specs, and stable fields only, unless remote resolvers find
// objects: their params are beta, which is Tekton's default.
func tektonContext(remote bool) (context.Context, error) {
	fields := config.StableAPIFields
	if remote {
		fields = config.BetaAPIFields
	}
	flags, err := config.NewFeatureFlagsFromMap(map[string]string{
		"enable-api-fields":   fields,
		"disable-inline-spec": "pipelinerun,taskrun,pipeline",
	})
	if err != nil {
		return nil, fmt.Errorf("tekton's feature flags: %w", err)
	}
	defaults, err := config.NewDefaultsFromMap(map[string]string{})
	if err != nil {
		return nil, fmt.Errorf("tekton's defaults: %w", err)
	}
	cfg := config.FromContextOrDefaults(context.Background())
	cfg.FeatureFlags, cfg.Defaults = flags, defaults
	return config.ToContext(context.Background(), cfg), nil
}

// remote says that a resolver finds what the object refers to.
func remote(object runtime.Object) bool {
	switch o := object.(type) {
	case *pipelinev1.Pipeline:
		return slices.ContainsFunc(slices.Concat(o.Spec.Tasks, o.Spec.Finally), func(t pipelinev1.PipelineTask) bool {
			return t.TaskRef != nil && t.TaskRef.Resolver != ""
		})
	case *pipelinev1.PipelineRun:
		return o.Spec.PipelineRef != nil && o.Spec.PipelineRef.Resolver != ""
	default:
		return false
	}
}

// tektonObject is implemented by all of Tekton's API types.
type tektonObject interface {
	runtime.Object
	apis.Defaultable
	apis.Validatable
}

// Limits of Kubernetes on one object.
const (
	// maxObject is below etcd's default request limit of 1.5 MiB, because a PipelineRun
	// has the Pipeline's spec in its status beside its own spec.
	maxObject = 1 << 20
	// maxAnnotations is the limit on the annotations of an object together
	// (apimachinery's TotalAnnotationSizeLimitB).
	maxAnnotations = validation.TotalAnnotationSizeLimitB
)

// validateAll sets the defaults that Tekton's webhook would set. The error lists what
// Tekton or Kubernetes would refuse.
func validateAll(objects ...runtime.Object) error {
	ctx, err := tektonContext(slices.ContainsFunc(objects, remote))
	if err != nil {
		return err
	}
	var errs []error
	for _, object := range objects {
		if t, ok := object.(tektonObject); ok {
			errs = append(errs, defaultAndValidate(ctx, t))
		}
		errs = append(errs, validateSize(object))
	}
	return errors.Join(errs...)
}

func defaultAndValidate(ctx context.Context, object tektonObject) error {
	object.SetDefaults(ctx)
	named := object.DeepCopyObject().(tektonObject)
	m, err := meta.Accessor(named)
	if err != nil {
		return err
	}
	if m.GetName() == "" {
		// The API server appends five characters to generateName before it calls
		// Tekton's webhook.
		m.SetName(m.GetGenerateName() + "00000")
	}
	if err := named.Validate(ctx); err != nil {
		return fmt.Errorf("Tekton would refuse %s: %w", describe(object), err)
	}
	return nil
}

// validateSize returns an error that lists the limits of Kubernetes that an object
// breaks.
func validateSize(object runtime.Object) error {
	m, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", describe(object), fmt.Sprintf(format, args...)))
	}
	if msgs := path.IsValidPathSegmentName(m.GetName()); len(msgs) > 0 {
		bad("name: %s", strings.Join(msgs, "; "))
	}
	annotations := 0
	for k, v := range m.GetAnnotations() {
		annotations += len(k) + len(v)
	}
	if annotations > maxAnnotations {
		bad("annotations are %d bytes long; Kubernetes allows %d bytes (256 KiB)", annotations, maxAnnotations)
	}
	b, err := json.Marshal(object) // the form that etcd stores
	if err != nil {
		return fmt.Errorf("write %s as JSON: %w", describe(object), err)
	}
	if len(b) > maxObject {
		bad("object is %d bytes long; a PipelineRun has room for %d bytes (1 MiB): split the plan", len(b), maxObject)
	}
	return errors.Join(errs...)
}

// describe returns kind and name of an object, as kubectl prints them.
func describe(object runtime.Object) string {
	name := ""
	if m, err := meta.Accessor(object); err == nil {
		name = m.GetName() + m.GetGenerateName()
	}
	return strings.ToLower(object.GetObjectKind().GroupVersionKind().Kind) + "/" + name
}
