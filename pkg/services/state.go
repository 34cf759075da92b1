// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/servicecheck"
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
func (s *states) internal(node string) map[portKey]servicecheck.Expectation {
	of := map[portKey]servicecheck.Expectation{}
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
func expectation(a nodestate.Action) servicecheck.Expectation {
	switch a {
	case nodestate.Reject:
		return servicecheck.Refused
	case nodestate.Drop:
		return servicecheck.Dropped
	}
	return servicecheck.Works
}

// AskAfter reads the Services again, after everything was measured: one fact, which names the targets of which
// something changed since setup.
func AskAfter(ctx context.Context, c kubernetes.Interface, w *checkup.Worksheet) []checkup.Fact {
	sheet, err := SheetOf(w)
	if err != nil {
		return servicecheck.Unknown(err)
	}
	return servicecheck.AskAgain(ctx, c, sheet.Listings, len(w.Targets), func(now servicecheck.States, i int) bool {
		t := sheet.Targets[i]
		return w.Targets[i].Peer == nil || now.Of(t.Service, w.Targets[i].Peer.Family) != t.State
	})
}
