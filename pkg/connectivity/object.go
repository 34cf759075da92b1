// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"fmt"
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

// Resource is where the objects are.
var Resource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "podnetworkconnectivitychecks"}

// identity is what stays the same of a pair's object, and what messages call
// its target.
type identity struct {
	name      string // of the object
	node      string // of the source, on which events are
	sourcePod string
	label     string // of the target
	host      string
	endpoint  string // host:port
	cert      string // Secret; empty means none
}

// identify says what the object of a pair is. The target has a Peer. A source
// that is no pod is named by its label.
func identify(source, target checkup.Endpoint) identity {
	pod := source.Label
	if _, name, ok := strings.Cut(source.Pod, "/"); ok {
		pod = name // of a Deployment's pod it is another one after each rollout
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

// ownLabels are those by which the objects of a check are known as ours.
func ownLabels(plan, check string) map[string]string {
	return map[string]string{
		checkup.LabelManagedBy: checkup.ManagedBy,
		checkup.LabelPlan:      plan,
		checkup.LabelCheck:     check,
	}
}

// managed reports whether an object is of some check of ours. One that another
// check wrote is taken over: a pair is the same whoever measures it, and has one
// history.
func managed(object *unstructured.Unstructured) bool {
	return object.GetLabels()[checkup.LabelManagedBy] == checkup.ManagedBy
}

// has reports whether an object has these labels.
func has(object *unstructured.Unstructured, labels map[string]string) bool {
	got := object.GetLabels()
	for k, v := range labels {
		if got[k] != v {
			return false
		}
	}
	return true
}

// owner says in words whose an object is that is not ours.
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

// object is all but the status of a pair's object. It has no owner: its history
// outlives the run.
func (id identity) object(namespace string, labels map[string]string) *unstructured.Unstructured {
	u := apply(namespace, id.name)
	u.SetLabels(labels)
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

// matches reports whether an object in the cluster has all that object says.
func (id identity) matches(object *unstructured.Unstructured, labels map[string]string) bool {
	spec, _, _ := unstructured.NestedMap(object.Object, "spec")
	for field, want := range id.spec() {
		if !reflect.DeepEqual(spec[field], want) {
			return false
		}
	}
	return has(object, labels)
}

// statusOf reads the status of an object in the cluster.
func statusOf(object *unstructured.Unstructured) (v1alpha1.PodNetworkConnectivityCheckStatus, error) {
	var live v1alpha1.PodNetworkConnectivityCheck
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &live); err != nil {
		return v1alpha1.PodNetworkConnectivityCheckStatus{}, fmt.Errorf("read %s %s: %w", Kind, object.GetName(), err)
	}
	return live.Status, nil
}

// statusConfiguration applies a status. It is written by hand
// because metav1.Time writes whole seconds: an outage's start would no longer be
// the time of its first failure, and the difference of two times no duration
// that was. Readers of metav1.Time understand fractions, and the API's
// date-time (RFC 3339) allows them.
func statusConfiguration(namespace, name string, s *v1alpha1.PodNetworkConnectivityCheckStatus) *unstructured.Unstructured {
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
		say(outage, "message", o.Message)
		outages = append(outages, outage)
	}
	put(status, "outages", outages)
	for _, c := range s.Conditions {
		condition := map[string]any{
			"type":               string(c.Type),
			"status":             string(c.Status),
			"lastTransitionTime": stamp(c.LastTransitionTime),
		}
		say(condition, "reason", c.Reason)
		say(condition, "message", c.Message)
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
		say(entry, "reason", e.Reason)
		say(entry, "message", e.Message)
		if e.Latency.Duration != 0 { // unknown, not nothing
			entry["latency"] = e.Latency.Duration.String()
		}
		out = append(out, entry)
	}
	return out
}

// stamp prints a time with its fraction of a second; null if there is none.
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

func say(object map[string]any, field, text string) {
	if text != "" {
		object[field] = text
	}
}
