// SPDX-License-Identifier: Apache-2.0

// Package podmesh is the kind podMesh: which nodes a check measures from and
// to, and which of the possible pairs one run takes.
//
//	cluster  --Survey-->  cluster.Snapshot  --Expand(plan, check, round)-->  checkup.Worksheet
//
// Survey is the only part that reads a cluster. What it fills in is a plain
// value that can be kept in a file, and Expand is a pure function of it: what
// `planner explain` shows for a snapshot is what a run on that cluster does.
//
// # Nodes
//
// A node is a source, or gets a responder, where a pod with the placement's
// nodeSelector, affinity and tolerations could be scheduled, as Kubernetes' own
// predicates decide. Fixture pods are treated as the pods of a DaemonSet are:
// to the placement's tolerations come those for a node that is not ready,
// unreachable, under pressure or cordoned. So a node that breaks stays an
// expected source and target, and its pairs are unmeasured, instead of falling
// silently out of the mesh; scheduling.FixtureTolerations tells the two places in
// which this differs from a DaemonSet.
//
// Where the targets are pods that exist already, they are the pods that the
// selector matches, on nodes that the targets' placement admits, and pods that
// are not on a node yet. A pod that is not ready, or has no address, is an
// expected target as well.
//
// # Sample
//
// See sample.go for the construction and its guarantees. A source never probes
// a target on its own node, because no network between nodes is on that path;
// the one exception is a check of existing pods with one source only, where the
// pods of that node would otherwise have none.
package podmesh
