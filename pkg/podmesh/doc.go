// SPDX-License-Identifier: Apache-2.0

// Package podmesh is the kind podMesh: it decides from and to which nodes a check measures, and which of the possible
// pairs one run measures.
//
//	cluster  --Survey-->  cluster.Snapshot  --Expand(plan, check, round)-->  checkup.Worksheet
//
// Only Survey reads a cluster. The snapshot is a plain value that can be saved to a file, and Expand is a pure function
// of it: `planner explain` shows for a snapshot what a run on that cluster does.
//
// # Nodes
//
// A node is a source, or gets a responder, if a pod with the placement's nodeSelector, affinity and tolerations could
// be scheduled to it, by Kubernetes' own predicates. Fixture pods are treated like the pods of a DaemonSet: they also
// tolerate a node that is not ready, unreachable, under pressure or cordoned. Therefore a broken node stays an expected
// source and target, and its pairs are unmeasured, instead of silently leaving the mesh; scheduling.FixtureTolerations
// describes the two differences from a DaemonSet.
//
// Targets that are existing pods are the pods that match the selector and run on nodes that match the targets'
// placement, and pods that are not scheduled yet. A pod that is not ready or has no address is also an expected target.
//
// # Sample
//
// See sample.go for the construction and its guarantees. A source never probes a target on its own node, because that
// path does not use the network between nodes. The only exception is a check of existing pods with a single source: the
// pods on that node would otherwise have no source.
package podmesh
