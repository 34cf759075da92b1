// SPDX-License-Identifier: Apache-2.0

// Package scheduling predicts where Kubernetes' scheduler would put a pod, from
// the pod and a cluster.Snapshot alone, and says of every other node every
// reason why not.
//
// The scheduler stops at the first predicate (filter plugin) that rejects a
// node; here all of them speak, in the scheduler's order, so that the first
// reason of a node is the one that the scheduler would give. Which labels,
// fields, taints and requests meet a demand is decided by
// k8s.io/component-helpers, which the scheduler itself uses. What is covered are
// the plugins of the default profile of kube-scheduler 1.35 that look at nodes
// and at one pod:
//
//	NodeUnschedulable  spec.unschedulable (cordoned)
//	NodeName           spec.nodeName
//	TaintToleration    taints of effect NoSchedule and NoExecute
//	NodeAffinity       spec.nodeSelector, spec.affinity.nodeAffinity (required)
//	NodePorts          host ports that are taken
//	NodeResourcesFit   requests, and how many pods a node takes
//	PodTopologySpread  constraints of DoNotSchedule on a node without the key
//
// Not covered are volumes, affinity between pods, resource claims and the skew
// of a topology spread: a pod that stands alone, as those of checks do, has
// none of the first three, and meets every skew. What a snapshot does not tell
// is in Outcome.Unknown; it counts neither for nor against a node.
//
// A pod is taken as the API server's default admission leaves it, with the
// tolerations that DefaultTolerationSeconds adds.
package scheduling
