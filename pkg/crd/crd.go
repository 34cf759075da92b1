// SPDX-License-Identifier: Apache-2.0

// Package crd has what the packages that write custom resources share: Ensure checks for the definition or creates it,
// Each lists objects in pages, Delete deletes one that nobody has changed meanwhile. The constants limit how fast
// objects are written.
package crd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Limits on the requests that write objects: the API server is shared.
const (
	// PerSecond and Burst limit all of them.
	PerSecond = 50
	Burst     = 100
	// AtOnce is the number of concurrent requests.
	AtOnce = 8
	// Timeout limits one request: a request that hangs is retried.
	Timeout = 10 * time.Second
)

// Resource is the API resource of CustomResourceDefinitions.
var Resource = schema.GroupVersionResource{
	Group:    "apiextensions.k8s.io",
	Version:  "v1",
	Resource: "customresourcedefinitions",
}

// establish is how long Ensure waits until the API server serves a CRD. A healthy API server needs a second or two.
const establish = 30 * time.Second

// Definition is a CustomResourceDefinition, of which one version is written.
type Definition struct {
	// YAML of the definition, as it is created.
	YAML []byte
	// Name of the definition, and the version that is written.
	Name, Version string
	// Setting is the field of the plan that allows creating the definition.
	Setting string
	// Whose says whose definition it is, for messages: "OpenShift's".
	Whose string
	// Own says that the definition is checkplan's. An older one that checkplan created is brought up to date where
	// creating it is allowed. The definition of others is never changed.
	Own bool
}

// Object returns the definition as Ensure creates it. It panics if the YAML is invalid: it is embedded, and parsed by a
// test.
func (d Definition) Object() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(d.YAML, &u.Object); err != nil {
		panic(err)
	}
	return u
}

// Ensure makes sure that objects of the definition can be written. An existing definition that has all written fields
// is used as it is, whoever created it. A missing one is created if install is true. An incompatible one is not
// changed, unless it is an older one of ours (see Own).
//
// unwritten is the reason why no objects can be written; empty if they can. err is a failed request to the API server:
// the state of the definition is then unknown.
func (d Definition) Ensure(ctx context.Context, client dynamic.Interface, install bool) (unwritten string, err error) {
	crds := client.Resource(Resource)
	live, err := crds.Get(ctx, d.Name, metav1.GetOptions{})
	verb := "get"
	apply := func() (*unstructured.Unstructured, error) {
		return crds.Apply(ctx, d.Name, d.Object(), metav1.ApplyOptions{FieldManager: checkup.ManagedBy})
	}
	switch {
	case apierrors.IsNotFound(err) && !install:
		return fmt.Sprintf("the cluster has no CustomResourceDefinition %s, "+
			"and the plan does not allow creating it (%s)", d.Name, d.Setting), nil
	case apierrors.IsNotFound(err):
		verb = "create"
		live, err = apply()
	case err == nil && install && d.Own && live.GetLabels()[checkup.LabelManagedBy] == checkup.ManagedBy &&
		len(d.differences(live)) > 0:
		verb = "update"
		live, err = apply()
	}
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("no right to %s the CustomResourceDefinition: %v", verb, err), nil
	case err != nil:
		return "", fmt.Errorf("%s CustomResourceDefinition %s: %w", verb, d.Name, err)
	}

	if differences := d.differences(live); len(differences) > 0 {
		return fmt.Sprintf(
			"the cluster's CustomResourceDefinition %s is not %s: %s",
			d.Name,
			d.Whose,
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
			next, err := crds.Get(ctx, d.Name, metav1.GetOptions{})
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
		return "", fmt.Errorf("wait for CustomResourceDefinition %s: %w", d.Name, context.Cause(ctx))
	default:
		return fmt.Sprintf("the CustomResourceDefinition %s is not served: %s", d.Name, waiting), nil
	}
}

// Rights returns the rights that Ensure needs, for which package, with install or without.
func (d Definition) Rights(of, objects string, install bool) []checkup.Right {
	right := func(verb, why string) checkup.Right {
		return checkup.Right{
			Phase: checkup.PhaseSetup, Scope: checkup.ScopeCluster, Group: Resource.Group, Resource: Resource.Resource,
			Names: []string{d.Name}, Verb: verb, Why: of + " EnsureCRD: " + why,
		}
	}
	rights := []checkup.Right{right("get", "checks whether "+objects+" can be written")}
	if install { // Server-side apply of a missing object needs both.
		rights = append(rights, right("create", "creates the missing definition"),
			right("patch", "creates the missing definition"))
	}
	return rights
}

// Each lists objects in pages.
func Each(
	ctx context.Context,
	objects dynamic.ResourceInterface,
	o metav1.ListOptions,
	each func(*unstructured.Unstructured) error,
) error {
	p := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) })
	return p.EachListItem(ctx, o, func(object runtime.Object) error { return each(object.(*unstructured.Unstructured)) })
}

// Delete deletes an object that is as it was read. It returns false without an error if the object is gone, or if
// someone has written it since: who wrote it expects it.
func Delete(ctx context.Context, objects dynamic.ResourceInterface, u *unstructured.Unstructured) (bool, error) {
	uid, version := u.GetUID(), u.GetResourceVersion()
	unchanged := &metav1.Preconditions{UID: &uid, ResourceVersion: &version}
	err := objects.Delete(ctx, u.GetName(), metav1.DeleteOptions{Preconditions: unchanged})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("delete %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return true, nil
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

// differences lists what the live CRD lacks of ours, and what it requires in addition.
func (d Definition) differences(live *unstructured.Unstructured) []string {
	ours := d.Object()
	var found []string
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	for _, field := range [][]string{{"spec", "scope"}, {"spec", "names", "kind"}} {
		want, _, _ := unstructured.NestedString(ours.Object, field...)
		if got, _, _ := unstructured.NestedString(live.Object, field...); got != want {
			report("%s is %q, not %q", strings.Join(field, "."), got, want)
		}
	}
	version := d.VersionOf(live)
	switch {
	case version == nil:
		report("version %s is missing", d.Version)
		return found
	case version["served"] != true:
		report("version %s is not served", d.Version)
	}
	if status, ok, _ := unstructured.NestedMap(version, "subresources", "status"); !ok || status == nil {
		report("version %s has no subresource status", d.Version)
	}
	schemaOf := func(version map[string]any) map[string]any {
		s, _, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema")
		return s
	}
	compareSchemas("", schemaOf(d.VersionOf(ours)), schemaOf(version), report)
	return found
}

// VersionOf returns the version that is written, of a CRD; nil if it has none of that name.
func (d Definition) VersionOf(crd *unstructured.Unstructured) map[string]any {
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		if version, ok := v.(map[string]any); ok && version["name"] == d.Version {
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
