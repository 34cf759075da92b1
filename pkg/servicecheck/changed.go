// SPDX-License-Identifier: Apache-2.0

package servicecheck

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/judge"
)

// FamilyKey names a Service in one family.
type FamilyKey struct {
	Service string // namespace/name
	Family  checkup.IPFamily
}

// States has a digest of each Service and its EndpointSlices by family.
type States map[FamilyKey]string

// Of returns the digest of a Service, as namespace/name; empty if there is none.
func (s States) Of(service string, family checkup.IPFamily) string {
	return s[FamilyKey{service, family}]
}

// Digests returns a digest of each Service and its EndpointSlices by family. It changes whenever something changes on
// which a node's state depends, also if that is undone later: an EndpointSlice has a generation.
func Digests(services []corev1.Service, endpoints []discoveryv1.EndpointSlice) States {
	type identity struct {
		Name       string
		UID        string
		Generation int64
		// Foreign are the values of labels for which a proxy leaves out the object.
		Foreign [2]string
	}
	identityOf := func(m metav1.ObjectMeta) identity {
		return identity{m.Name, string(m.UID), m.Generation,
			[2]string{m.Labels["service.kubernetes.io/service-proxy-name"], m.Labels[corev1.IsHeadlessService]}}
	}
	type content struct {
		Identity  identity
		Spec      corev1.ServiceSpec
		Status    corev1.LoadBalancerStatus
		Slices    []identity
		Endpoints []discoveryv1.EndpointSlice
	}
	of := map[FamilyKey]*content{}
	for i := range services {
		service := &services[i]
		for _, f := range checkup.IPFamilies {
			of[FamilyKey{service.Namespace + "/" + service.Name, f}] = &content{
				Identity: identityOf(service.ObjectMeta), Spec: service.Spec, Status: service.Status.LoadBalancer,
			}
		}
	}
	sorted := slices.Clone(endpoints)
	slices.SortFunc(sorted, func(a, b discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	for i := range sorted {
		slice := sorted[i]
		service := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
		key := FamilyKey{service, checkup.IPFamily(slice.AddressType)}
		if c := of[key]; c != nil {
			c.Slices = append(c.Slices, identityOf(slice.ObjectMeta))
			slice.ObjectMeta, slice.TypeMeta = metav1.ObjectMeta{}, metav1.TypeMeta{}
			c.Endpoints = append(c.Endpoints, slice)
		}
	}
	all := States{}
	for key, c := range of {
		b, err := json.Marshal(c)
		if err != nil { // no field of them can fail
			continue
		}
		sum := sha256.Sum256(b)
		all[key] = hex.EncodeToString(sum[:8])
	}
	return all
}

// after is the content of the fact that AskAgain records.
type after struct {
	// Changed are the indexes of the targets of which something changed since setup, ascending.
	Changed []int `json:"changed"`
}

// stateFact is the name of the fact that AskAgain records.
const stateFact = "state"

// AskAgain makes the listings again, and records which of so many targets changed: one fact, which Excuse reads.
func AskAgain(
	ctx context.Context, c kubernetes.Interface, listings []Listing, targets int,
	changed func(now States, target int) bool,
) []checkup.Fact {
	var now cluster.Snapshot
	if err := List(ctx, cluster.Reader{Kubernetes: c}, &now, listings); err != nil {
		return Unknown(err)
	}
	states := Digests(now.ServiceObjects, now.EndpointSlices)
	found := after{Changed: []int{}}
	for i := range targets {
		if changed(states, i) {
			found.Changed = append(found.Changed, i)
		}
	}
	content, err := json.Marshal(found)
	if err != nil {
		return Unknown(err)
	}
	return []checkup.Fact{{Unit: stateFact, Content: content}}
}

// Unknown is the fact that it is not known what changed.
func Unknown(err error) []checkup.Fact {
	return []checkup.Fact{{Unit: stateFact, Cause: &checkup.Cause{Stage: checkup.StageCollect, Message: err.Error()}}}
}

// ChangedSince reads the fact that AskAgain recorded. why says why it is not known what changed; nil if it is.
func ChangedSince(record *checkup.Record) (changed map[int]bool, why *checkup.Cause) {
	const attempt = "cannot tell whether its Service changed while it was measured: "
	because := func(message string) *checkup.Cause {
		return &checkup.Cause{Stage: checkup.StageCollect, Reason: checkup.ReasonChanged, Message: attempt + message}
	}
	why = because("the probe task did not read the Services again")
	if record == nil {
		return nil, why
	}
	for _, fact := range record.Facts {
		var found after
		switch {
		case fact.Unit != stateFact:
			continue
		case fact.Cause != nil:
			return nil, because(fact.Cause.Message)
		}
		if err := json.Unmarshal(fact.Content, &found); err != nil {
			return nil, because(err.Error())
		}
		changed = map[int]bool{}
		for _, i := range found.Changed {
			changed[i] = true
		}
		return changed, nil
	}
	return nil, why
}

// Excuse makes the pairs unmeasured that did not pass, and of which something changed since setup, or nobody knows
// whether it did. excused decides by what AskAgain recorded as changed.
func Excuse(j *judge.Judgement, record *checkup.Record, excused func(o *judge.Outcome, changed map[int]bool) bool) {
	changed, why := ChangedSince(record)
	ExcuseBy(j, func(o *judge.Outcome) *checkup.Cause {
		if why == nil && excused(o, changed) {
			return &Changed
		}
		return why
	})
}

// Changed is the cause of a pair that is unmeasured because its Service changed.
var Changed = checkup.Cause{
	Stage: checkup.StageCollect, Reason: checkup.ReasonChanged,
	Message: "changed during the run: the Service or its endpoints are not what they were at setup",
}

// ExcuseBy makes the pairs unmeasured that did not pass, and of which excused returns a cause that is not nil.
func ExcuseBy(j *judge.Judgement, excused func(o *judge.Outcome) *checkup.Cause) {
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if o.Verdict != checkup.Fail && o.Verdict != checkup.Undecided {
			continue
		}
		if why := excused(o); why != nil {
			cause := *why
			cause.Message += "; measured: " + o.Cause.Message
			o.Verdict, o.Cause, o.Breaches, o.Failure, o.Look = checkup.Unmeasured, cause, nil, 0, nil
		}
	}
}
