// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
)

//go:embed crd.yaml
var crdYAML []byte

// crdName is the name of the CustomResourceDefinition.
const crdName = "podnetworkconnectivitychecks." + Group

var crdResource = schema.GroupVersionResource{
	Group:    "apiextensions.k8s.io",
	Version:  "v1",
	Resource: "customresourcedefinitions",
}

// establish is how long EnsureCRD waits until the API server serves a CRD. A healthy API server needs a second or two.
const establish = 30 * time.Second

// CRD returns the CustomResourceDefinition as EnsureCRD creates it.
func CRD() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(crdYAML, &u.Object); err != nil {
		panic(err) // embedded, and parsed by a test
	}
	return u
}

// EnsureCRD makes sure that PodNetworkConnectivityChecks can be written. An existing CRD that has all written fields is
// used as it is, whoever created it. A missing CRD is created if install is true. An incompatible CRD is not changed.
//
// unwritten is the reason why none can be written; empty if they can. err is a failed request to the API server: the
// state of the CRD is then unknown.
func EnsureCRD(ctx context.Context, client dynamic.Interface, install bool) (unwritten string, err error) {
	crds := client.Resource(crdResource)
	live, err := crds.Get(ctx, crdName, metav1.GetOptions{})
	verb := "get"
	switch {
	case apierrors.IsNotFound(err) && !install:
		return fmt.Sprintf("the cluster has no CustomResourceDefinition %s, "+
			"and the plan does not allow creating it (connectivityChecks.installCRD)", crdName), nil
	case apierrors.IsNotFound(err):
		verb = "create"
		live, err = crds.Apply(ctx, crdName, CRD(), metav1.ApplyOptions{FieldManager: checkup.ManagedBy})
	}
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("no right to %s the CustomResourceDefinition: %v", verb, err), nil
	case err != nil:
		return "", fmt.Errorf("%s CustomResourceDefinition %s: %w", verb, crdName, err)
	}

	if differences := crdDifferences(CRD(), live); len(differences) > 0 {
		return fmt.Sprintf(
			"the cluster's CustomResourceDefinition %s is not OpenShift's: %s",
			crdName,
			strings.Join(differences, "; "),
		), nil
	}
	var waiting string
	err = wait.PollUntilContextTimeout(
		ctx,
		200*time.Millisecond,
		establish,
		true,
		func(ctx context.Context) (bool, error) {
			if waiting = notEstablished(live); waiting == "" {
				return true, nil
			}
			next, err := crds.Get(ctx, crdName, metav1.GetOptions{})
			if err == nil {
				live = next
			}
			return false, nil
		},
	)
	switch {
	case err == nil:
		return "", nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("wait for CustomResourceDefinition %s: %w", crdName, context.Cause(ctx))
	default:
		return fmt.Sprintf("the CustomResourceDefinition %s is not served: %s", crdName, waiting), nil
	}
}

// notEstablished returns the reason why a CRD is not served; empty if it is.
func notEstablished(crd *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	why := "the API server has set no condition"
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		switch {
		case condition["type"] == "Established" && condition["status"] == "True":
			return ""
		case condition["status"] == "False":
			why = fmt.Sprintf("%v is False: %v", condition["type"], condition["message"])
		}
	}
	return why
}

// crdDifferences lists what the live CRD lacks of ours, and what it requires in addition.
func crdDifferences(ours, live *unstructured.Unstructured) []string {
	var found []string
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	for _, field := range [][]string{{"spec", "scope"}, {"spec", "names", "kind"}} {
		want, _, _ := unstructured.NestedString(ours.Object, field...)
		if got, _, _ := unstructured.NestedString(live.Object, field...); got != want {
			report("%s is %q, not %q", strings.Join(field, "."), got, want)
		}
	}
	version := crdVersion(live)
	switch {
	case version == nil:
		report("version %s is missing", Version)
		return found
	case version["served"] != true:
		report("version %s is not served", Version)
	}
	if status, ok, _ := unstructured.NestedMap(version, "subresources", "status"); !ok || status == nil {
		report("version %s has no subresource status", Version)
	}
	schemaOf := func(version map[string]any) map[string]any {
		s, _, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema")
		return s
	}
	compareSchemas("", schemaOf(crdVersion(ours)), schemaOf(version), report)
	return found
}

// crdVersion returns our version of a CRD, or nil.
func crdVersion(crd *unstructured.Unstructured) map[string]any {
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		if version, ok := v.(map[string]any); ok && version["name"] == Version {
			return version
		}
	}
	return nil
}

// compareSchemas reports the fields of ours that live lacks or has with another type, and other fields that it
// requires.
func compareSchemas(path string, ours, live map[string]any, report func(string, ...any)) {
	name := strings.TrimPrefix(path, ".")
	if name == "" {
		name = "the object"
	}
	theirs, _ := live["properties"].(map[string]any)
	if live["x-kubernetes-preserve-unknown-fields"] == true && theirs == nil {
		return // accepts any fields
	}
	if ours["type"] != live["type"] {
		report("%s has the type %v, not %v", name, live["type"], ours["type"])
		return
	}
	properties, _ := ours["properties"].(map[string]any)
	required, _ := live["required"].([]any)
	for _, r := range required {
		field, _ := r.(string)
		if _, known := properties[field]; !known {
			report("%s requires %v", name, r)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(properties)) {
		if path == "" && (field == "apiVersion" || field == "kind" || field == "metadata") {
			continue // the API server's own
		}
		sub, ok := theirs[field].(map[string]any)
		if !ok {
			report("%s lacks %s", name, field)
			continue
		}
		of, _ := properties[field].(map[string]any)
		compareSchemas(path+"."+field, of, sub, report)
	}
	if items, ok := ours["items"].(map[string]any); ok {
		of, _ := live["items"].(map[string]any)
		compareSchemas(path+"[]", items, of, report)
	}
}
