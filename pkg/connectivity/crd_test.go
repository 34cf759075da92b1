// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openshift/api/operatorcontrolplane/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/crd"
)

// The CRD has the fields of OpenShift's Go types, with their types, and no others.
func TestCRDIsTheAPI(t *testing.T) {
	schema, _, _ := unstructured.NestedMap(definition.VersionOf(definition.Object()), "schema", "openAPIV3Schema", "properties")
	var walk func(path string, typ reflect.Type, schema map[string]any)
	walk = func(path string, typ reflect.Type, schema map[string]any) {
		want := ""
		switch {
		case typ == reflect.TypeFor[metav1.Time](), typ == reflect.TypeFor[metav1.Duration](), typ.Kind() == reflect.String:
			want = "string"
		case typ.Kind() == reflect.Bool:
			want = "boolean"
		case typ.Kind() == reflect.Slice:
			want = "array"
			items, _ := schema["items"].(map[string]any)
			walk(path+"[]", typ.Elem(), items)
		default:
			want = "object"
			properties, _ := schema["properties"].(map[string]any)
			fields := map[string]bool{}
			for i := range typ.NumField() {
				name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
				fields[name] = true
				sub, ok := properties[name].(map[string]any)
				if !ok {
					t.Errorf("the CRD lacks %s.%s", path, name)
					continue
				}
				walk(path+"."+name, typ.Field(i).Type, sub)
			}
			for name := range properties {
				if !fields[name] {
					t.Errorf("the CRD has %s.%s, which the API lacks", path, name)
				}
			}
		}
		if schema["type"] != want {
			t.Errorf("%s is %v, want %s", path, schema["type"], want)
		}
		if typ == reflect.TypeFor[metav1.Time]() && (schema["format"] != "date-time" || schema["nullable"] != true) {
			t.Errorf("%s is not a nullable date-time", path)
		}
	}
	for name, typ := range map[string]reflect.Type{
		"spec":   reflect.TypeFor[v1alpha1.PodNetworkConnectivityCheckSpec](),
		"status": reflect.TypeFor[v1alpha1.PodNetworkConnectivityCheckStatus](),
	} {
		sub, _ := schema[name].(map[string]any)
		walk(name, typ, sub)
	}

	columns, _, _ := unstructured.NestedSlice(definition.VersionOf(definition.Object()), "additionalPrinterColumns")
	var names, wide []string
	for _, c := range columns {
		column := c.(map[string]any)
		if column["priority"] == nil {
			names = append(names, column["name"].(string))
		} else {
			wide = append(wide, column["name"].(string))
		}
	}
	want := [][]string{{"Reachable", "Since"}, {"Target Endpoint", "Age"}}
	if diff := cmp.Diff(want, [][]string{names, wide}); diff != "" {
		t.Errorf("columns, and those of -o wide (-want +got):\n%s", diff)
	}
}

// definitionWith is ours, changed, and served.
func definitionWith(t *testing.T, change func(spec, version map[string]any)) *unstructured.Unstructured {
	t.Helper()
	u := definition.Object()
	u.SetLabels(nil)
	spec := u.Object["spec"].(map[string]any)
	if change != nil {
		change(spec, spec["versions"].([]any)[0].(map[string]any))
	}
	u.Object["status"] = conditions("Established", "True", "the initial names have been accepted")
	return u
}

func conditions(typ, status, message string) map[string]any {
	return map[string]any{"conditions": []any{map[string]any{"type": typ, "status": status, "message": message}}}
}

// in returns the nested object at a path.
func in(object map[string]any, path ...string) map[string]any {
	for _, p := range path {
		object = object[p].(map[string]any)
	}
	return object
}

func TestEnsureCRD(t *testing.T) {
	properties := func(version map[string]any, path ...string) map[string]any {
		return in(version, append([]string{"schema", "openAPIV3Schema", "properties"}, path...)...)
	}
	forbid := func(what string) func(verb, resource, subresource, name string) error {
		return func(verb, _, _, name string) error {
			if verb == what {
				return apierrors.NewForbidden(crd.Resource.GroupResource(), name, fmt.Errorf("User \"setup\" cannot %s it", verb))
			}
			return nil
		}
	}
	tests := []struct {
		name    string
		live    *unstructured.Unstructured
		install bool
		refuse  func(verb, resource, subresource, name string) error
		want    string // of unwritten, a part
		wantErr string
		writes  int
	}{
		{name: "there", live: definitionWith(t, nil)},
		{name: "exists, with installCRD", live: definitionWith(t, nil), install: true},
		{name: "exists, with more fields than we write", live: definitionWith(t, func(_, version map[string]any) {
			properties(version, "spec", "properties")["color"] = map[string]any{"type": "string"}
		})},
		{name: "exists, and accepts any fields", live: definitionWith(t, func(_, version map[string]any) {
			properties(version)["status"] = map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
		})},
		{name: "missing, not allowed", want: "the cluster has no CustomResourceDefinition " + definition.Name + ", and the plan does not allow creating it (connectivityChecks.installCRD)"},
		{name: "missing, allowed", install: true, writes: 1},
		{name: "no right to get", refuse: forbid("get"), want: `no right to get the CustomResourceDefinition: customresourcedefinitions.apiextensions.k8s.io "` + definition.Name + `" is forbidden: User "setup" cannot get it`},
		{name: "no right to create", install: true, refuse: forbid("patch"), want: "no right to create the CustomResourceDefinition: "},
		{name: "API server away", refuse: func(string, string, string, string) error { return fmt.Errorf("connection refused") }, wantErr: "get CustomResourceDefinition " + definition.Name + ": connection refused"},
		{name: "cluster-wide", live: definitionWith(t, func(spec, _ map[string]any) { spec["scope"] = "Cluster" }), install: true,
			want: `the cluster's CustomResourceDefinition ` + definition.Name + ` is not OpenShift's: spec.scope is "Cluster", not "Namespaced"`},
		{name: "another kind", live: definitionWith(t, func(spec, _ map[string]any) { in(spec, "names")["kind"] = "Check" }), want: `spec.names.kind is "Check", not "PodNetworkConnectivityCheck"`},
		{name: "another version", live: definitionWith(t, func(_, version map[string]any) { version["name"] = "v1" }), want: "version v1alpha1 is missing"},
		{name: "not served", live: definitionWith(t, func(_, version map[string]any) { version["served"] = false }), want: "version v1alpha1 is not served"},
		{name: "no status subresource", live: definitionWith(t, func(_, version map[string]any) { delete(version, "subresources") }), want: "version v1alpha1 has no subresource status"},
		{name: "a field less, and another type", live: definitionWith(t, func(_, version map[string]any) {
			delete(properties(version, "status", "properties", "outages", "items", "properties"), "endLogs")
			properties(version, "spec", "properties", "targetEndpoint")["type"] = "integer"
		}), want: "spec.targetEndpoint has the type integer, not string; status.outages[] lacks endLogs"},
		{name: "a field that it requires", live: definitionWith(t, func(_, version map[string]any) {
			properties(version, "spec")["required"] = []any{"sourcePod", "sourceNode"}
		}), want: "spec requires sourceNode"},
		{name: "no schema at all", live: definitionWith(t, func(_, version map[string]any) { delete(version, "schema") }), want: "the object has the type <nil>, not object"},
		{name: "never established", live: func() *unstructured.Unstructured {
			u := definitionWith(t, nil)
			u.Object["status"] = conditions("NamesAccepted", "False", "the singular name is taken")
			return u
		}(), want: "is not served: NamesAccepted is False: the singular name is taken"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				if test.live != nil {
					if err := s.tracker.Create(crd.Resource, test.live.DeepCopy(), ""); err != nil {
						t.Fatal(err)
					}
				}
				s.refuse = test.refuse
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go s.establish(ctx, 3*time.Second, test.live == nil)
				unwritten, err := EnsureCRD(ctx, s, test.install)
				if test.wantErr == "" && err != nil || test.wantErr != "" && (err == nil || err.Error() != test.wantErr) {
					t.Errorf("got error %v, want %q", err, test.wantErr)
				}
				if test.want == "" && unwritten != "" || !strings.Contains(unwritten, test.want) {
					t.Errorf("got unwritten %q\nwant %q", unwritten, test.want)
				}
				if writes := s.take(); len(writes) != test.writes {
					t.Errorf("wrote %q", writes)
				}
			})
		})
	}
}

// establish sets a new CRD's condition Established after a while, as the API server does.
func (s *server) establish(ctx context.Context, later time.Duration, do bool) {
	select {
	case <-ctx.Done():
	case <-time.After(later):
		s.mu.Lock()
		defer s.mu.Unlock()
		object, err := s.tracker.Get(crd.Resource, "", definition.Name)
		if err != nil || !do {
			return
		}
		object.(*unstructured.Unstructured).Object["status"] = conditions("Established", "True", "")
		if err := s.tracker.Update(crd.Resource, object, ""); err != nil {
			panic(err)
		}
	}
}

// TestRights: each right is used, and each used verb has its right. Other tests check what is refused without a right.
func TestRights(t *testing.T) {
	if got := Rights(checkup.ConnectivityChecks{InstallCRD: true}); got != nil {
		t.Errorf("without objects: got rights %v, want none", got)
	}
	list := func(c checkup.ConnectivityChecks) (out []string) {
		for _, r := range Rights(c) {
			if r.Why == "" {
				t.Errorf("%v: no reason", r)
			}
			out = append(out, strings.Join(append([]string{string(r.Phase), string(r.Scope), r.Namespace, r.Verb, r.Resource}, r.Names...), " "))
		}
		return out
	}
	common := []string{
		"probe run  list podnetworkconnectivitychecks",
		"probe run  create podnetworkconnectivitychecks",
		"probe run  patch podnetworkconnectivitychecks",
		"probe run  patch podnetworkconnectivitychecks/status",
		"probe namespace default create events",
		"conclude run  list podnetworkconnectivitychecks",
		"conclude run  delete podnetworkconnectivitychecks",
		"conclude run  patch podnetworkconnectivitychecks/status",
	}
	look := []string{"setup cluster  get customresourcedefinitions " + definition.Name}
	if diff := cmp.Diff(append(look, common...), list(checkup.ConnectivityChecks{Write: true})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	install := []string{"setup cluster  create customresourcedefinitions " + definition.Name, "setup cluster  patch customresourcedefinitions " + definition.Name}
	if diff := cmp.Diff(append(append(look, install...), common...), list(checkup.ConnectivityChecks{Write: true, InstallCRD: true})); diff != "" {
		t.Errorf("with InstallCRD (-want +got):\n%s", diff)
	}
}
