// SPDX-License-Identifier: Apache-2.0

package services

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
	"github.com/checkplan/checkplan/pkg/nodestate"
)

// states computes the states of nodes from a snapshot.
type states struct {
	// all has every Service. local has only the Services of which traffic to the cluster IP must stay on the node. Both
	// have the nodes.
	all, local *nodestate.Cluster
}

func statesOf(s *cluster.Snapshot) (*states, error) {
	all, err := nodestate.New(nodestate.Options{})
	if err != nil {
		return nil, err
	}
	local, err := nodestate.New(nodestate.Options{})
	if err != nil {
		return nil, err
	}
	type name struct{ namespace, name string }
	isLocal := map[name]bool{}
	for i := range s.ServiceObjects {
		service := &s.ServiceObjects[i]
		all.SetService(service)
		if p := service.Spec.InternalTrafficPolicy; p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal {
			isLocal[name{service.Namespace, service.Name}] = true
			local.SetService(service)
		}
	}
	for i := range s.EndpointSlices {
		slice := &s.EndpointSlices[i]
		all.SetSlice(slice)
		if isLocal[name{slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}] {
			local.SetSlice(slice)
		}
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
		for _, address := range n.InternalIPs {
			node.Status.Addresses = append(node.Status.Addresses,
				corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		}
		all.SetNode(node)
		local.SetNode(node)
	}
	return &states{all: all, local: local}, nil
}

// portKey names a port of a Service in one family.
type portKey struct {
	service, port string
	family        checkup.IPFamily
}

// internal returns what a node does with traffic to the cluster IPs of those Services of which traffic must stay on the
// node.
func (s *states) internal(node string) map[portKey]Expectation {
	of := map[portKey]Expectation{}
	for _, m := range s.local.State(node) {
		for _, f := range m.Families {
			for _, p := range f.Ports {
				if p.Protocol == nodestate.TCP {
					of[portKey{m.Namespace + "/" + m.Name, p.Name, checkup.IPFamily(f.Family)}] = expectation(p.Internal)
				}
			}
		}
	}
	return of
}

// expectation is what a connection has to do where a node takes an action.
func expectation(a nodestate.Action) Expectation {
	switch a {
	case nodestate.Reject:
		return Refused
	case nodestate.Drop:
		return Dropped
	}
	return Works
}

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

// AskAfter reads the Services again, after everything was measured: one fact, which names the targets of which
// something changed since setup.
func AskAfter(ctx context.Context, c kubernetes.Interface, w *checkup.Worksheet) []checkup.Fact {
	sheet, err := SheetOf(w)
	if err != nil {
		return Unknown(err)
	}
	return AskAgain(ctx, c, sheet.Listings, len(w.Targets), func(now States, i int) bool {
		t := sheet.Targets[i]
		return w.Targets[i].Peer == nil || now.Of(t.Service, w.Targets[i].Peer.Family) != t.State
	})
}

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

// changedSince reads the fact that AskAgain recorded. why says why it is not known what changed; nil if it is.
func changedSince(record *checkup.Record) (changed map[int]bool, why *checkup.Cause) {
	const attempt = "whether its Service changed while it was measured is not known: "
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
