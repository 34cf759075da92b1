// SPDX-License-Identifier: Apache-2.0

// Package scheduling predicts from a pod and a cluster.Snapshot which nodes the Kubernetes scheduler could assign the
// pod to. For every other node it reports all reasons why not.
//
// The scheduler stops at the first predicate (filter plugin) that rejects a node. This package evaluates all of them,
// in the scheduler's order: the first reason of a node is the one that the scheduler would report.
// k8s.io/component-helpers, which the scheduler itself uses, decides which labels, fields, taints and requests meet a
// demand. Covered are the plugins of the default profile of kube-scheduler 1.35 that look at nodes and at one pod:
//
//	NodeUnschedulable  spec.unschedulable (cordoned)
//	NodeName           spec.nodeName
//	TaintToleration    taints of effect NoSchedule and NoExecute
//	NodeAffinity       spec.nodeSelector, spec.affinity.nodeAffinity (required)
//	NodePorts          host ports that are in use
//	NodeResourcesFit   requests, and the maximum number of pods of a node
//	PodTopologySpread  constraints of DoNotSchedule on a node without the key
//
// Not covered are volumes, affinity between pods, resource claims and the skew of a topology spread: the pods of checks
// have none of the first three, and a single pod satisfies every skew. Predicates that the snapshot has no data for are
// in Outcome.Unknown; they do not reject a node.
//
// A pod is evaluated as it is after the API server's default admission, with the tolerations that
// DefaultTolerationSeconds adds.
package scheduling
