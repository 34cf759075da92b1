// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tektoncd/pipeline/pkg/apis/config"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/pkg/apis"
)

// Profile is the oldest Tekton release that compiled objects are for. All of
// them need only what Tekton calls stable, and so the objects differ in nothing
// but the release that they say they need.
type Profile string

const (
	// Tekton112 is the floor: before 1.10, results of failed tasks never reach the
	// PipelineRun, and 1.12 is the first release after that with long support.
	Tekton112 Profile = "1.12"
	// Tekton115 is the release with long support that we test on.
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

// tektonContext carries the configuration of the strictest cluster that the
// objects must be accepted by: stable fields only, no inline specs.
func tektonContext() (context.Context, error) {
	flags, err := config.NewFeatureFlagsFromMap(map[string]string{
		"enable-api-fields":   config.StableAPIFields,
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

// tektonObject is what all of Tekton's API types are.
type tektonObject interface {
	runtime.Object
	apis.Defaultable
	apis.Validatable
}

// Limits of Kubernetes on one object.
const (
	// maxObject is kept below etcd's default request limit of 1.5 MiB, because a
	// PipelineRun carries the Pipeline's spec in its status beside its own.
	maxObject = 1 << 20
	// maxAnnotations is the limit on the annotations of an object together
	// (apimachinery's TotalAnnotationSizeLimitB).
	maxAnnotations = validation.TotalAnnotationSizeLimitB
)

// validateAll fills in the defaults that Tekton's webhook would fill in, and
// tells what Tekton or Kubernetes would refuse.
func validateAll(objects ...runtime.Object) error {
	ctx, err := tektonContext()
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
		// The API server has made a name of generateName, with five characters more,
		// before it asks Tekton's webhook.
		m.SetName(m.GetGenerateName() + "00000")
	}
	if err := named.Validate(ctx); err != nil {
		return fmt.Errorf("%s would be refused by Tekton: %w", describe(object), err)
	}
	return nil
}

// validateSize tells which limit of Kubernetes an object would break.
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
		bad("its annotations are %d bytes long; Kubernetes allows %d (256 KiB)", annotations, maxAnnotations)
	}
	b, err := json.Marshal(object) // as etcd holds it
	if err != nil {
		return fmt.Errorf("write %s as JSON: %w", describe(object), err)
	}
	if len(b) > maxObject {
		bad("it is %d bytes long; at most %d (1 MiB) fit into a PipelineRun: split the plan", len(b), maxObject)
	}
	return errors.Join(errs...)
}

// describe is kind and name of an object, as kubectl prints them.
func describe(object runtime.Object) string {
	name := ""
	if m, err := meta.Accessor(object); err == nil {
		name = m.GetName() + m.GetGenerateName()
	}
	return strings.ToLower(object.GetObjectKind().GroupVersionKind().Kind) + "/" + name
}
