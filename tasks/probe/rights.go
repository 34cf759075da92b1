// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/kiagnose"
	"github.com/checkplan/checkplan/pkg/retry"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// A Job's service account often has the rights of kiagnose's own checkup only. They suffice. All rights are reviewed
// before anything is created: a VM that cannot be deleted must not be created.

// errConfigMap is in the error of begin if the outcome cannot be written.
var errConfigMap = errors.New("cannot write the outcome")

// required are the rights without which a checkup does not start, except that to its network: those of kiagnose's own
// checkup (its README, section Permissions). A ConfigMap without a name needs none.
func required(namespace string, parameters, outcome kiagnose.ConfigMap) []checkup.Right {
	const vms, console = "virtualmachineinstances", "virtualmachineinstances/console"
	rights := []checkup.Right{
		{Namespace: namespace, Group: "kubevirt.io", Resource: vms, Verb: "get"},
		{Namespace: namespace, Group: "kubevirt.io", Resource: vms, Verb: "create"},
		{Namespace: namespace, Group: "kubevirt.io", Resource: vms, Verb: "delete"},
		{Namespace: namespace, Group: "subresources.kubevirt.io", Resource: console, Verb: "get"},
	}
	add := func(verb string, cm kiagnose.ConfigMap) {
		if cm.Name != "" {
			r := checkup.Right{Namespace: cm.Namespace, Resource: "configmaps", Names: []string{cm.Name}, Verb: verb}
			rights = append(rights, r)
		}
	}
	add("get", outcome)
	add("update", outcome)
	if parameters != outcome {
		add("get", parameters)
	}
	return rights
}

// optional are the rights that a checkup uses if they are granted. Why says what it lacks without the right.
func optional(namespace string) []checkup.Right {
	const (
		preflight = "no pod tests the network first: a VM that cannot be attached is reported when spec.timeout is over"
		reasons   = "the reason why a VM does not start is less exact"
		logs      = "logs of failed VMs are not kept"
	)
	var rights []checkup.Right
	for _, verb := range []string{"create", "get", "list", "delete"} {
		rights = append(rights, checkup.Right{Namespace: namespace, Resource: "pods", Verb: verb, Why: preflight})
	}
	return append(rights,
		checkup.Right{Namespace: namespace, Resource: "events", Verb: "list", Why: reasons},
		checkup.Right{Namespace: namespace, Resource: "pods/log", Verb: "get", Why: logs},
	)
}

// isRight reports whether a right is that verb on the ConfigMap.
func isRight(r checkup.Right, verb string, cm kiagnose.ConfigMap) bool {
	return r.Resource == "configmaps" && r.Verb == verb && r.Namespace == cm.Namespace && slices.Contains(r.Names, cm.Name)
}

// reviewTries is how often the review of a right is requested, a second apart.
const reviewTries = 5

// lacking returns those of the rights that this process does not have. Every service account may ask that (ClusterRole
// system:basic-user).
func lacking(ctx context.Context, t *task.Task, rights []checkup.Right) ([]checkup.Right, error) {
	var missing []checkup.Right
	for _, r := range rights {
		attributes := &authorizationv1.ResourceAttributes{Verb: r.Verb, Group: r.Group, Namespace: r.Namespace}
		attributes.Resource, attributes.Subresource, _ = strings.Cut(r.Resource, "/")
		if len(r.Names) > 0 {
			attributes.Name = r.Names[0]
		}
		review := &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes},
		}
		client := t.Kubernetes.AuthorizationV1().SelfSubjectAccessReviews()
		answer, err := client.Create(ctx, review, metav1.CreateOptions{})
		for try := 1; err != nil && try < reviewTries && retry.Passing(err) && fleet.Sleep(ctx, time.Second); try++ {
			answer, err = client.Create(ctx, review, metav1.CreateOptions{})
		}
		if err != nil {
			return nil, fmt.Errorf("review the right to %s: %w", words([]checkup.Right{r}), err)
		}
		if !answer.Status.Allowed {
			missing = append(missing, r)
		}
	}
	return missing, nil
}

// words are rights in one line, such as "get pods in namespace a, list pods in namespace a".
func words(rights []checkup.Right) string {
	each := make([]string, len(rights))
	for i, r := range rights {
		each[i] = r.Verb + " " + r.Resource
		if r.Group != "" {
			each[i] += "." + r.Group
		}
		for _, name := range r.Names {
			each[i] += " " + name
		}
		each[i] += " in namespace " + r.Namespace
	}
	return strings.Join(each, ", ")
}
