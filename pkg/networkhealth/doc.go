// SPDX-License-Identifier: Apache-2.0

// Package networkhealth writes objects of the alpha kind PodNetworkHealth (networkhealth.checkplan.dev/v1alpha1): what
// was observed last between a source pod and a target pod. docs/pod-network-health.md has the semantics, for readers
// and for other tools that write them.
//
//	EnsureCRD  setup     checks for the CustomResourceDefinition, or creates it
//	Reconcile  pure      worksheets, records, reports and existing objects -> changes
//	Sync       conclude  reads the existing objects, and makes the changes
//	Rights               the rights that all of this needs
//
//	$ kubectl get podnetworkhealths
//	NAME                              REACHABILITY   LOSS   OBSERVED   COVERAGE
//	worker-1-to-cart-0-crqghrjvd3     Unreachable    100%   12s        Partial
//	worker-1-to-worker-3-b7ytn5lmqe   Reachable      0%     12s        Partial
//
// # Which pods
//
// An existing pod (sources.pods and targets.pods of a mesh) is a Workload, named by namespace, name and UID. Agents and
// responders are StandIns: they are deleted with the run, so an object that named them would say nothing a minute
// later, and no two runs would write the same object. A StandIn is identified by its node. The status names the pods
// that measured.
//
// # Bounded
//
// A plan has at most podNetworkHealth.maxObjects objects. A run writes each at most twice (the object, its status), and
// never reads single ones. Texts of agents are cleaned and cut to the limits of the schema; names are not cut: a pair
// with a name that does not fit has no object. Writes are limited to crd.PerSecond, shared by crd.AtOnce requests.
//
// Two runs of one plan that end at once: the newer observation of a pair stays.
package networkhealth
