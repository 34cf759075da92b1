// SPDX-License-Identifier: Apache-2.0

package networkhealth

import (
	"context"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	apivalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// api is the API server's own validation of the objects.
type api struct {
	schema *structuralschema.Structural
	fields apivalidation.SchemaValidator
	rules  *cel.Validator
}

func crdOf(t testing.TB) *apiextensions.CustomResourceDefinition {
	t.Helper()
	v1, internal := &apiextensionsv1.CustomResourceDefinition{}, &apiextensions.CustomResourceDefinition{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(definition.Object().Object, v1, true); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(v1)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&v1.Spec)
	v1.Status.StoredVersions = []string{Version}
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(v1, internal, nil); err != nil {
		t.Fatal(err)
	}
	return internal
}

func newAPI(t testing.TB) *api {
	t.Helper()
	crd := crdOf(t)
	properties := crd.Spec.Versions[0].Schema
	if properties == nil {
		properties = crd.Spec.Validation
	}
	structural, err := structuralschema.NewStructural(properties.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	fields, _, err := apivalidation.NewSchemaValidator(properties.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	return &api{structural, fields, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
}

// refuses returns what the API server would say about an object; old is the object before, or nil. Unknown fields
// are refused, too: the API server would drop them.
func (a *api) refuses(object, old map[string]any) string {
	var all []string
	if dropped := pruning.PruneWithOptions(runtime.DeepCopyJSON(object), a.schema, true,
		structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}); len(dropped) > 0 {
		all = append(all, "unknown fields: "+strings.Join(dropped, ", "))
	}
	for _, err := range apivalidation.ValidateCustomResource(nil, object, a.fields) {
		all = append(all, err.Error())
	}
	var before any
	if old != nil {
		before = old
	}
	failed, _ := a.rules.Validate(context.Background(), nil, a.schema, object, before, math.MaxInt64)
	for _, err := range failed {
		all = append(all, err.Error())
	}
	return strings.Join(all, "; ")
}

// objectOf is what the API server gets of a write.
func objectOf(w *Write) map[string]any {
	u := w.object()
	u.SetLabels(w.Labels)
	u.Object["spec"], u.Object["status"] = fields(w.Spec), fields(w.Status)
	return u.Object
}

// TestCRD: the API server would accept the definition.
func TestCRD(t *testing.T) {
	crd := crdOf(t)
	for _, err := range validation.ValidateCustomResourceDefinition(t.Context(), crd) {
		t.Error(err)
	}
	if crd.Name != definition.Name || crd.Spec.Group != Group || crd.Spec.Names.Kind != Kind || crd.Spec.Names.Plural != Resource.Resource {
		t.Errorf("the definition is of %s in %s, kind %s", crd.Name, crd.Spec.Group, crd.Spec.Names.Kind)
	}
	if errs := structuralschema.ValidateStructural(nil, newAPI(t).schema); len(errs) > 0 {
		t.Error(errs)
	}
}

// TestCRDIsTheAPI: the schema has the fields of the Go types, and no others; each is described, and each text and list
// is bounded.
func TestCRDIsTheAPI(t *testing.T) {
	properties := newAPI(t).schema.Properties
	var walk func(path string, typ reflect.Type, s structuralschema.Structural)
	walk = func(path string, typ reflect.Type, s structuralschema.Structural) {
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if d := s.Description; d == "" || !strings.HasSuffix(strings.TrimSpace(d), ".") {
			t.Errorf("%s: description %q, want sentences", path, d)
		}
		want := ""
		switch {
		case typ == reflect.TypeFor[time.Time]():
			want = "string"
			if s.ValueValidation == nil || s.ValueValidation.Format != "date-time" {
				t.Errorf("%s is no date-time", path)
			}
		case typ.Kind() == reflect.String:
			want = "string"
			if s.ValueValidation == nil || s.ValueValidation.MaxLength == nil && len(s.ValueValidation.Enum) == 0 {
				t.Errorf("%s has no bound", path)
			}
		case typ.Kind() == reflect.Int64:
			want = "integer"
			if s.ValueValidation == nil || s.ValueValidation.Format != "int64" {
				t.Errorf("%s is no int64", path)
			}
		case typ.Kind() == reflect.Slice:
			want = "array"
			if s.ValueValidation == nil || s.ValueValidation.MaxItems == nil {
				t.Errorf("%s has no bound", path)
			}
			walk(path+"[]", typ.Elem(), *s.Items)
		default:
			want = "object"
			var known []string
			for f := range typ.Fields() {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				known = append(known, name)
				sub, ok := s.Properties[name]
				if !ok {
					t.Errorf("the CRD lacks %s.%s", path, name)
					continue
				}
				walk(path+"."+name, f.Type, sub)
			}
			for name := range s.Properties {
				if !slices.Contains(known, name) {
					t.Errorf("the CRD has %s.%s, and Go lacks it", path, name)
				}
			}
		}
		if s.Type != want {
			t.Errorf("%s is %v, want %s", path, s.Type, want)
		}
	}
	walk("spec", reflect.TypeFor[Spec](), properties["spec"])
	walk("status", reflect.TypeFor[Status](), properties["status"])
	for _, name := range []string{"apiVersion", "kind"} { // the API server describes metadata
		if properties[name].Description == "" {
			t.Errorf("%s has no description", name)
		}
	}
	enum := func(s structuralschema.Structural) (values []string) {
		for _, v := range s.ValueValidation.Enum {
			values = append(values, v.Object.(string))
		}
		slices.Sort(values)
		return values
	}
	equal := func(what string, s structuralschema.Structural, want []string) {
		slices.Sort(want)
		if got := enum(s); !slices.Equal(got, want) {
			t.Errorf("%s is one of %q in the CRD, and of %q in Go", what, got, want)
		}
	}
	status := properties["status"].Properties
	equal("reachability", status["reachability"], texts(Reachabilities))
	equal("reachability of a probe", status["probes"].Items.Properties["reachability"], texts(Reachabilities))
	equal("kind", properties["spec"].Properties["source"].Properties["kind"], texts(EndpointKinds))
	equal("extent", status["coverage"].Properties["extent"], []string{Partial})
	for _, reason := range Reasons {
		if !strings.Contains(status["reason"].Description, reason) {
			t.Errorf("the description of reason lacks %s", reason)
		}
	}
	limits := map[string]struct {
		s    structuralschema.Structural
		want int64
	}{
		"message":       {status["message"], maxMessage},
		"probe message": {status["probes"].Items.Properties["message"], maxProbeMessage},
		"probe name":    {status["probes"].Items.Properties["name"], maxProbeName},
		"sampling":      {status["coverage"].Properties["sampling"], maxSampling},
		"name":          {properties["spec"].Properties["source"].Properties["name"], maxName},
		"uid":           {properties["spec"].Properties["source"].Properties["uid"], maxUID},
		"namespace":     {properties["spec"].Properties["source"].Properties["namespace"], maxLabel},
	}
	for what, l := range limits {
		if got := *l.s.ValueValidation.MaxLength; got != l.want {
			t.Errorf("%s may have %d characters in the CRD, %d in Go", what, got, l.want)
		}
	}
	if got := *status["probes"].ValueValidation.MaxItems; got != maxProbes {
		t.Errorf("%d probes in the CRD, %d in Go", got, maxProbes)
	}
}

func texts[T ~string](list []T) (out []string) {
	for _, v := range list {
		out = append(out, string(v))
	}
	return out
}

// TestCRDSaysPartial: who reads an object, its columns or its documentation does not read that a network is healthy.
func TestCRDSaysPartial(t *testing.T) {
	a := newAPI(t)
	if d := a.schema.Description; !strings.Contains(d, "partial and best effort") || !strings.Contains(d, "no set of objects says that a network is healthy") {
		t.Errorf("description %q", d)
	}
	required := a.schema.Properties["status"].ValueValidation.Required
	if !slices.Contains(required, "coverage") || !slices.Contains(required, "staleTime") {
		t.Errorf("required are %q", required)
	}
	for _, c := range crdOf(t).Spec.AdditionalPrinterColumns {
		if c.JSONPath == ".status.coverage.extent" && c.Priority == 0 {
			return
		}
	}
	for _, c := range crdOf(t).Spec.Versions[0].AdditionalPrinterColumns {
		if c.JSONPath == ".status.coverage.extent" && c.Priority == 0 {
			return
		}
	}
	t.Error("kubectl get does not show the extent")
}

// TestValidation: what the rules of the schema refuse.
func TestValidation(t *testing.T) {
	a := newAPI(t)
	good := func() map[string]any {
		m := newMesh("worker-1", "worker-2")
		c := Reconcile(m.input())
		return objectOf(&c.Write[0])
	}
	set := func(value any, path ...string) func(map[string]any) {
		return func(o map[string]any) {
			for _, p := range path[:len(path)-1] {
				o = o[p].(map[string]any)
			}
			if value == nil {
				delete(o, path[len(path)-1])
			} else {
				o[path[len(path)-1]] = value
			}
		}
	}
	workload := map[string]any{"kind": "Workload", "namespace": "shop", "name": "cart-0", "uid": "u", "node": "n"}
	for _, tt := range []struct {
		name   string
		change func(map[string]any)
		want   string // a part; empty if it is accepted
	}{
		{"as written", func(map[string]any) {}, ""},
		{"a workload", set(workload, "spec", "source"), ""},
		{"without status", set(nil, "status"), ""},
		{"no spec", set(nil, "spec"), "spec: Required"},
		{"a workload without uid", set(map[string]any{"kind": "Workload", "namespace": "shop", "name": "cart-0", "node": "n"}, "spec", "source"),
			"a Workload has namespace, name and uid"},
		{"a stand-in with a name", set("agent-1", "spec", "target", "name"), "a StandIn has none of them"},
		{"another kind", set("Service", "spec", "source", "kind"), "Unsupported value"},
		{"healthy", set("Healthy", "status", "reachability"), "Unsupported value"},
		{"complete", set("Complete", "status", "coverage", "extent"), "Unsupported value"},
		{"no coverage", set(nil, "status", "coverage"), "status.coverage: Required"},
		{"never observed", set(nil, "status", "lastObservationTime"), "what was never observed is Unknown"},
		{"reachable without an answer", func(o map[string]any) {
			set(o["status"].(map[string]any)["loss"].(map[string]any)["sent"], "status", "loss", "lost")(o)
		}, "a pair without an answer is not Reachable"},
		{"more lost than sent", set(int64(99), "status", "loss", "lost"), "more is lost than was sent"},
		{"stale after it expires", set("2100-01-01T00:00:00Z", "status", "staleTime"), "becomes stale before it expires"},
		{"descending percentiles", set(int64(0), "status", "latency", "p90Microseconds"), "percentiles ascend"},
		{"window", set("2100-01-01T00:00:00Z", "status", "latency", "window", "start"), "a window ends after it starts"},
		{"reason", set("no answer", "status", "reason"), "status.reason"},
		{"time", set("yesterday", "status", "lastTransitionTime"), "date-time"},
		{"long message", set(strings.Repeat("a", maxMessage+1), "status", "message"), "Too long"},
		{"unknown field", set("yes", "status", "healthy"), "unknown fields: status.healthy"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := good()
			tt.change(o)
			if got := a.refuses(o, nil); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	t.Run("spec changes", func(t *testing.T) {
		o := good()
		set("worker-9", "spec", "target", "node")(o)
		if got := a.refuses(o, good()); !strings.Contains(got, "spec cannot change") {
			t.Errorf("%q", got)
		}
	})
	t.Run("status changes", func(t *testing.T) {
		o := good()
		set("x", "status", "message")(o)
		if got := a.refuses(o, good()); got != "" {
			t.Error(got)
		}
	})
}

// TestRights: narrow ones, and none if the feature is off.
func TestRights(t *testing.T) {
	if got := Rights(nil); got != nil {
		t.Errorf("off: %v", got)
	}
	list := func(c checkup.PodNetworkHealth) (out []string) {
		for _, r := range Rights(&c) {
			if r.Why == "" {
				t.Errorf("%v: no reason", r)
			}
			out = append(out, strings.Join(append([]string{string(r.Phase), string(r.Scope), r.Verb, r.Resource}, r.Names...), " "))
		}
		return out
	}
	definition := "customresourcedefinitions podnetworkhealths.networkhealth.checkplan.dev"
	objects := []string{
		"conclude run list podnetworkhealths", "conclude run create podnetworkhealths", "conclude run patch podnetworkhealths",
		"conclude run delete podnetworkhealths", "conclude run patch podnetworkhealths/status",
	}
	if got, want := list(checkup.PodNetworkHealth{}), append([]string{"setup cluster get " + definition}, objects...); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	install := []string{"setup cluster get " + definition, "setup cluster create " + definition, "setup cluster patch " + definition}
	if got, want := list(checkup.PodNetworkHealth{InstallCRD: true}), append(install, objects...); !slices.Equal(got, want) {
		t.Errorf("with installCRD: got %q\nwant %q", got, want)
	}
}
