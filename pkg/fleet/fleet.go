// SPDX-License-Identifier: Apache-2.0

// Package fleet runs pods that are pinned to nodes: responders, which answer,
// and agents, which measure. It starts them, waits for them, reads their logs through
// the API server (package ingest understands them), and removes them.
//
// What the cluster does to one of the pods is data: a Cause with the message of the
// component that stopped it (scheduler, kubelet, admission, eviction). An error is
// returned only for what concerns them all: a missing right, an API server that
// does not answer, an admission that refuses all pods.
//
// Pods and ConfigMaps are named by checkup.ObjectName: a retry finds what an earlier
// try created and continues with it. Each is owned by the pod of the task that uses
// it, ends by itself (activeDeadlineSeconds), and carries AnnotationExpires for the
// sweep of a later run.
package fleet

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// AnnotationExpires is on every fixture: the time, RFC 3339, after which no run needs
// it and Sweep removes it.
const AnnotationExpires = "checkplan.dev/expires"

// LabelPair is on the two VMs of a pair, and on their preflight pods: the number of
// the pair in its worksheet.
const LabelPair = "checkplan.dev/pair"

// expiry is how long a fixture is kept after its pod's own end: its run may be reading
// logs.
const expiry = 10 * time.Minute

// concurrency of requests to the API server. With the client's QPS of Config it
// creates 1000 pods in about 10 s.
const concurrency = 16

// Fleet is the fixtures of one run, for one of its tasks.
type Fleet struct {
	Client    kubernetes.Interface
	Namespace string
	// Plan's name and the PipelineRun's UID.
	Plan   string
	RunUID string
	// Image of agents and responders. Needed to start them only.
	Image string
	// Owner names the pod of the task. Needed to start and to take over only.
	Owner string
	// OwnerUID is its UID.
	OwnerUID types.UID
	// Services says that the plan's checks may have Services: only then there is a right to list and delete them.
	Services bool
	// Alone says that one process runs all phases: its pod owns the fixtures from the start, and it needs no
	// ConfigMap, nor any right to them.
	Alone bool
	// Logf prints a line to the task's log; nil discards it.
	Logf func(format string, args ...any)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// OpenLog opens the log of a pod of the namespace, as the options say; nil
	// means through the API server. A pod of any namespace is namespace/name.
	OpenLog func(ctx context.Context, pod string, options *corev1.PodLogOptions) (io.ReadCloser, error)

	// Patience is how long to wait when every pod that is still waited for is in a
	// state from which pods rarely recover: unschedulable, an image that cannot be
	// pulled, a kubelet that does not accept the pod or does not return its log.
	// Scheduler and kubelets keep trying, so any value is a guess; 0 means 30 s:
	// three tries of a kubelet to pull an image, a kubelet's restart.
	Patience time.Duration
	// Stall is how long the log of an agent may be silent until it is opened again,
	// because the connection may be dead, and how long a log that is not silent is
	// read while others wait for their turn; 0 means 30 s.
	Stall time.Duration
	// Farewell is how long agents may take to report what they still have when
	// measuring is stopped from outside; 0 means 7 s: their grace period, and a
	// second before and after it.
	Farewell time.Duration
	// Retry is the pause before a failed request is repeated, and how often the state
	// of what is being deleted is read; 0 means 1 s.
	Retry time.Duration
	// Force is how long a pod may outlive its grace period until it is deleted without
	// waiting for its kubelet; 0 means 15 s.
	Force time.Duration
}

// Config returns a copy with the request rate that a fleet needs. client-go's
// default of 5 a second would take minutes for a few hundred pods; the server's
// own priority and fairness is the real limit.
func Config(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.QPS, c.Burst = 100, 200
	return c
}

func (f *Fleet) logf(format string, args ...any) {
	if f.Logf != nil {
		f.Logf(format, args...)
	}
}

func (f *Fleet) now() time.Time {
	if f.Now != nil {
		return f.Now()
	}
	return time.Now()
}

func (f *Fleet) patience() time.Duration { return cmp.Or(f.Patience, 30*time.Second) }

func (f *Fleet) retry() time.Duration { return cmp.Or(f.Retry, time.Second) }

// Log opens the log of a pod: it is OpenLog or its default.
func (f *Fleet) Log(ctx context.Context, pod string, options *corev1.PodLogOptions) (io.ReadCloser, error) {
	if f.OpenLog != nil {
		return f.OpenLog(ctx, pod, options)
	}
	namespace, name, other := strings.Cut(pod, "/")
	if !other {
		namespace, name = f.Namespace, pod
	}
	return f.Client.CoreV1().Pods(namespace).GetLogs(name, options).Stream(ctx)
}

// Labels select the fixtures of a check and role; an empty check or role selects any.
func (f *Fleet) Labels(check string, role checkup.Role) labels.Set {
	set := labels.Set{checkup.LabelRun: f.RunUID}
	if check != "" {
		set[checkup.LabelCheck] = check
	}
	if role != "" {
		set[checkup.LabelRole] = string(role)
	}
	return set
}

// roles are the roles of the fixtures that a fleet removes: all except VMs, whose pods
// and ConfigMaps pkg/guest removes.
func roles() []string {
	var roles []string
	for _, role := range checkup.FixtureRoles {
		if role != checkup.RoleGuest {
			roles = append(roles, string(role))
		}
	}
	return roles
}

// fixtures selects every fixture of the run.
func (f *Fleet) fixtures() string {
	return fmt.Sprintf("%s=%s,%s in (%s)", checkup.LabelRun, f.RunUID, checkup.LabelRole, strings.Join(roles(), ","))
}

// Owners returns the ownerReferences of what this task uses; nil if no pod owns it.
// blockOwnerDeletion is false: it would need a right on the owner's finalizers, and
// nothing has to wait for a fixture.
func (f *Fleet) Owners() []metav1.OwnerReference {
	if f.Owner == "" || f.OwnerUID == "" {
		return nil
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: f.Owner, UID: f.OwnerUID}}
}

// Sleep waits for d or the end of ctx, and reports whether ctx goes on.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
