// SPDX-License-Identifier: Apache-2.0

// Package placement is the kind placement: a dry run of which nodes would take the pods of OpenShift's network diagnostics,
// or of anything that is placed in the same way. It starts nothing.
//
//	cluster --Survey--> cluster.Snapshot --Expand (pure)--> checkup.PlacementSheet --Ask--> []checkup.Admission
//
// There are two sides. Sources are a Deployment of one replica: its pod runs on one of the eligible nodes; without any it
// stays Pending. Targets are a DaemonSet: a pod runs on each eligible node. Their names, fields and defaults are those of
// network.config.openshift.io, spec.networkDiagnostics (OpenShift's enhancement "configurable network diagnostics pod
// placement").
//
// # Rules
//
// Mode "" is All. In mode Disabled nothing is placed, and there are no sides; placements with this mode are an error, with
// the message of the API's own rule.
//
// An unset placement is the default: Linux nodes, no toleration for sources, every toleration for targets. In a given
// placement, each unset field has its default:
//
//   - nodeSelector. An empty one counts as unset, in the plan and in the
//     cluster's object. (OpenShift's operator uses an empty selector literally:
//     "nodeSelector: {}" removes the default kubernetes.io/os: linux, and counts as
//     a setting, with which disableNetworkDiagnostics has no effect. That is a
//     bug, and not copied here.)
//   - tolerations. An empty list is not unset: it tolerates nothing. In the
//     cluster's object, a missing field and null are unset. In a plan the schema
//     has already set the default of a missing field: a list is used as it is, nil
//     or not.
//
// With networkConfig: true, mode and placements are those of the cluster's network.config.openshift.io/cluster. It takes
// precedence over the legacy flag spec.disableNetworkDiagnostics of network.operator.openshift.io/cluster, unless
// spec.networkDiagnostics is missing or completely empty: then the flag, if true, disables the diagnostics. If the object
// cannot be read, or the flag cannot be read and is needed, Expand returns an error. A missing operator's object disables
// nothing. A field of a wrong type is an error with the field's path. Values that the API server would reject in a pod are
// errors of Expand, all together, each with its path.
//
// # Prediction
//
// pkg/scheduling predicts which nodes take the pod, and all reasons of every other node; its comment lists the covered
// predicates. The pod of a DaemonSet has the tolerations that its controller adds. The pods meet restricted pod security,
// except for host ports. The free resources of nodes need the right to list all pods of the cluster; without it,
// PlacementSide.Unknown lists the predicates that could not be evaluated.
//
// Not predicted are preemption (a pod of high priority may evict others; Expand warns on how many nodes that is possible)
// and changes of the pod by admission.
//
// # Decision of the API server
//
// Ask creates each side's pod with dryRun=All: authentication, authorization, mutating and validating admission run as for
// a real pod, but nothing is stored or counted against a quota. A pod that admission or validation rejects is not allowed,
// with the API server's message. Without a decision (no right to create pods, no such namespace, an API server or a
// webhook that does not answer, a webhook that does not support dry runs), the Admission has a Cause, and the side is not
// measured. Admission.Changed lists changes by admission that affect where the pod runs and are not predicted. It does not
// list the tolerations that every pod gets for nodes that are not ready or unreachable, which the prediction includes.
//
// The image is a placeholder, which is never pulled; an image policy still checks it.
package placement
