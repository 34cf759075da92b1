// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/openshift/api/operatorcontrolplane/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// The API of the objects.
const (
	Group   = "controlplane.operator.openshift.io"
	Version = "v1alpha1"
	Kind    = "PodNetworkConnectivityCheck"
)

// Resource is the API resource of the objects.
var Resource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "podnetworkconnectivitychecks"}

// identity is the constant part of a pair's object, and the target's name in messages.
type identity struct {
	name      string // of the object
	node      string // of the source, for events
	sourcePod string
	label     string // of the target
	host      string
	endpoint  string // host:port
	cert      string // Secret; empty means none
}

// identify returns the identity of a pair's object. The target must have a Peer. A source that is not a pod is named by
// its label.
func identify(source, target checkup.Endpoint) identity {
	pod := source.Label
	if _, name, ok := strings.Cut(source.Pod, "/"); ok {
		pod = name // each rollout renames a Deployment's pods
	}
	return identity{
		name:      checkup.ConnectivityName(source, target),
		node:      source.Node,
		sourcePod: pod,
		label:     target.Name(),
		host:      target.Peer.Host,
		endpoint:  target.Peer.Address(),
		cert:      target.Peer.ClientCertificate,
	}
}

// ownLabels are the labels that mark an object as ours and as one of this check.
func ownLabels(plan, check string) map[string]string {
	return map[string]string{
		checkup.LabelManagedBy: checkup.ManagedBy,
		checkup.LabelPlan:      plan,
		checkup.LabelCheck:     check,
	}
}

// Annotations of an object: its check's staleAfter and retention, as Go durations, by which runs of other checks age
// the object, and the target's name in messages.
const (
	annotationStaleAfter = "checkplan.dev/stale-after"
	annotationRetention  = "checkplan.dev/retention"
	annotationTarget     = "checkplan.dev/target"
)

// ageAnnotations are the annotations that are the same for all objects of a check.
func ageAnnotations(c checkup.ConnectivityChecks) map[string]string {
	return map[string]string{
		annotationStaleAfter: time.Duration(c.StaleAfter).String(),
		annotationRetention:  time.Duration(c.Retention).String(),
	}
}

// agesOf returns the annotated ages of an object; false if it does not have them.
func agesOf(object *unstructured.Unstructured) (c checkup.ConnectivityChecks, ok bool) {
	stale, err := time.ParseDuration(object.GetAnnotations()[annotationStaleAfter])
	if err != nil || stale <= 0 {
		return c, false
	}
	retention, err := time.ParseDuration(object.GetAnnotations()[annotationRetention])
	if err != nil || retention < 0 {
		return c, false
	}
	c.StaleAfter, c.Retention = checkup.Duration(stale), checkup.Duration(retention)
	return c, true
}

// managed reports whether a check of ours wrote the object. An object of another check is taken over: a pair has one
// history, whichever check measures it.
func managed(object *unstructured.Unstructured) bool {
	return object.GetLabels()[checkup.LabelManagedBy] == checkup.ManagedBy
}

// has reports whether labels or annotations include the wanted ones.
func has(got, want map[string]string) bool {
	for k, v := range want {
		if got[k] != v {
			return false
		}
	}
	return true
}

// owner returns the name of the owner of an object that is not ours, for messages.
func owner(object *unstructured.Unstructured) string {
	l := object.GetLabels()
	if by := l[checkup.LabelManagedBy]; by != "" {
		return by
	}
	if by := l["networking.openshift.io/managedBy"]; by != "" {
		return by
	}
	return "someone else"
}

// apply is an empty configuration for server-side apply.
func apply(namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(Group + "/" + Version)
	u.SetKind(Kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// object returns a pair's object without its status. It has no owner, because its history must outlive the run.
func (id identity) object(namespace string, labels, ages map[string]string) *unstructured.Unstructured {
	u := apply(namespace, id.name)
	u.SetLabels(labels)
	annotations := map[string]string{annotationTarget: id.label}
	maps.Copy(annotations, ages)
	u.SetAnnotations(annotations)
	u.Object["spec"] = id.spec()
	return u
}

func (id identity) spec() map[string]any {
	spec := map[string]any{"sourcePod": id.sourcePod, "targetEndpoint": id.endpoint}
	if id.cert != "" {
		spec["tlsClientCert"] = map[string]any{"name": id.cert}
	}
	return spec
}

// matches reports whether an object in the cluster has the labels, annotations and spec of a pair's object. Ages are
// the annotations of its check.
func (id identity) matches(object *unstructured.Unstructured, labels, ages map[string]string) bool {
	spec, _, _ := unstructured.NestedMap(object.Object, "spec")
	for field, want := range id.spec() {
		if !reflect.DeepEqual(spec[field], want) {
			return false
		}
	}
	annotated := object.GetAnnotations()
	return has(object.GetLabels(), labels) && has(annotated, ages) && annotated[annotationTarget] == id.label
}

// statusOf reads the status of an object in the cluster.
func statusOf(object *unstructured.Unstructured) (v1alpha1.PodNetworkConnectivityCheckStatus, error) {
	var live v1alpha1.PodNetworkConnectivityCheck
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &live); err != nil {
		return v1alpha1.PodNetworkConnectivityCheckStatus{}, fmt.Errorf("read %s %s: %w", Kind, object.GetName(), err)
	}
	return live.Status, nil
}

// statusConfiguration returns the apply configuration of a status. It does not use the Go type, because metav1.Time
// encodes whole seconds: an outage's start would differ from the time of its first failure, and durations would be
// wrong. Readers of metav1.Time accept fractions, and the API's date-time (RFC 3339) allows them.
func statusConfiguration(
	namespace, name string,
	s *v1alpha1.PodNetworkConnectivityCheckStatus,
) *unstructured.Unstructured {
	status := map[string]any{}
	put(status, "successes", logs(s.Successes))
	put(status, "failures", logs(s.Failures))
	var outages, conditions []any
	for _, o := range s.Outages {
		outage := map[string]any{"start": stamp(o.Start)}
		if !o.End.IsZero() {
			outage["end"] = stamp(o.End)
		}
		put(outage, "startLogs", logs(o.StartLogs))
		put(outage, "endLogs", logs(o.EndLogs))
		setText(outage, "message", o.Message)
		outages = append(outages, outage)
	}
	put(status, "outages", outages)
	for _, c := range s.Conditions {
		condition := map[string]any{
			"type":               string(c.Type),
			"status":             string(c.Status),
			"lastTransitionTime": stamp(c.LastTransitionTime),
		}
		setText(condition, "reason", c.Reason)
		setText(condition, "message", c.Message)
		conditions = append(conditions, condition)
	}
	put(status, "conditions", conditions)
	u := apply(namespace, name)
	u.Object["status"] = status
	return u
}

func logs(entries []v1alpha1.LogEntry) []any {
	var out []any
	for _, e := range entries {
		entry := map[string]any{"time": stamp(e.Start), "success": e.Success}
		setText(entry, "reason", e.Reason)
		setText(entry, "message", e.Message)
		if e.Latency.Duration != 0 { // 0 means unknown
			entry["latency"] = e.Latency.Duration.String()
		}
		out = append(out, entry)
	}
	return out
}

// stamp formats a time with its fraction of a second; null if the time is zero.
func stamp(t metav1.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func put(object map[string]any, field string, list []any) {
	if len(list) > 0 {
		object[field] = list
	}
}

func setText(object map[string]any, field, text string) {
	if text != "" {
		object[field] = text
	}
}
