// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/kiagnose"
)

// upstream are the rights of kiagnose's own checkup (its README, "Permissions"), as "verb resource".
var upstream = []string{
	"get virtualmachineinstances.kubevirt.io", "create virtualmachineinstances.kubevirt.io",
	"delete virtualmachineinstances.kubevirt.io", "get virtualmachineinstances/console.subresources.kubevirt.io",
	"get network-attachment-definitions.k8s.cni.cncf.io", "get configmaps", "update configmaps",
}

// more are the rights that a checkup uses if they are granted.
var more = []string{"create pods", "get pods", "list pods", "delete pods", "get pods/log", "list events"}

// grant makes the fake cluster refuse everything but the rights, and answer access reviews by them, until lift is
// called.
func (v *virtual) grant(t *testing.T, rights []string) (lift func()) {
	lifted := false
	allowed := func(verb, group, resource, subresource string) bool {
		what := resource
		if subresource != "" {
			what += "/" + subresource
		}
		if group != "" {
			what += "." + group
		}
		return lifted || slices.Contains(rights, verb+" "+what)
	}
	decide := func(a k8stesting.Action) (bool, runtime.Object, error) {
		r := a.GetResource()
		if create, ok := a.(k8stesting.CreateAction); ok {
			if review, ok := create.GetObject().(*authorizationv1.SelfSubjectAccessReview); ok {
				review = review.DeepCopy()
				asked := review.Spec.ResourceAttributes
				want := map[string]string{"network-attachment-definitions": "default"}[asked.Resource]
				if want == "" {
					want = "kiagnose"
				}
				if asked.Namespace != want {
					t.Errorf("asked for rights in namespace %q: %+v", asked.Namespace, asked)
				}
				review.Status.Allowed = allowed(asked.Verb, asked.Group, asked.Resource, asked.Subresource)
				return true, review, nil
			}
		}
		// The fake's discovery is an action on "resource".
		if r.Resource == "resource" || allowed(a.GetVerb(), r.Group, r.Resource, a.GetSubresource()) {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(r.GroupResource(), "", errors.New("no right to "+a.GetVerb()))
	}
	v.kube.PrependReactor("*", "*", decide)
	v.virt.PrependReactor("*", "*", decide)
	v.Dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("*", "*", decide)
	if !allowed("get", "subresources.kubevirt.io", "virtualmachineinstances", "console") {
		v.Console = func(context.Context, string) (io.ReadWriteCloser, error) {
			return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "virtualmachineinstances/console"}, "", errors.New("no right"))
		}
	}
	return func() { lifted = true }
}

// TestRights: whichever right is missing, no VM, pod or ConfigMap is left behind, and none is created unless all of
// upstream's rights are granted. Other rights are used if they are granted, and not needed.
func TestRights(t *testing.T) {
	all := slices.Concat(upstream, more)
	type test struct {
		name    string
		rights  []string
		missing []string // of upstream's
	}
	tests := []test{{"all", all, nil}, {"upstream's", upstream, nil}, {"none", nil, upstream}}
	for i, right := range all {
		tt := test{"without " + right, slices.Delete(slices.Clone(all), i, i+1), nil}
		if i < len(upstream) {
			tt.missing = []string{right}
			tests = append(tests, test{"upstream's without " + right, slices.Delete(slices.Clone(upstream), i, i+1), tt.missing})
		}
		tests = append(tests, tt)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := newVirtual(t, spec())
			lift := v.grant(t, tt.rights)
			v.PodUID, v.GuestImage = "uid-of-job", "registry.test:5000/cp/guest:v9" // as the manifest sets them
			err := runCheckup(t.Context(), v.Task, environment(byConfigMap...))
			if (err == nil) != (len(tt.missing) == 0) {
				t.Errorf("%v; log:\n%s", err, &v.log)
			}
			created := slices.ContainsFunc(slices.Concat(v.kube.Actions(), v.virt.Actions()), func(a k8stesting.Action) bool {
				return a.GetVerb() == "create" && a.GetResource().Resource != "selfsubjectaccessreviews"
			})
			if created != (len(tt.missing) == 0) {
				t.Errorf("something was created: %t", created)
			}
			lift()
			if left := v.left(t); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			said := v.data(t)[kiagnose.KeyFailureReason] + fmt.Sprint(err)
			for _, right := range tt.missing {
				// Which network is meant is in the ConfigMap.
				hidden := slices.Contains(tt.missing, "get configmaps") && strings.Contains(right, "network-attachment")
				if !hidden && !strings.Contains(said, right+" in namespace ") && !strings.Contains(said, right+" cm in namespace ") &&
					!strings.Contains(said, right+" br10 in namespace ") {
					t.Errorf("right %q is not named: %s", right, said)
				}
			}
			for _, right := range more {
				if slices.Contains(tt.rights, right) == strings.Contains(v.log.String(), "without the right to "+right+" in namespace ") && len(tt.missing) == 0 {
					t.Errorf("granted: %t, but the log is\n%s", slices.Contains(tt.rights, right), &v.log)
				}
			}
		})
	}
}
