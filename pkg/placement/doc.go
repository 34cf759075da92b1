// SPDX-License-Identifier: Apache-2.0

// Package placement is the kind placement: a dry run of which nodes would take the pods of OpenShift's network
// diagnostics, or of anything that is placed in the same way. It starts nothing.
//
//	cluster --Survey--> cluster.Snapshot --Expand (pure)--> Sheet --Ask--> []checkup.Fact
//	facts   --Judge (pure)--> checkup.CheckReport
//
// There are two sides. Sources are a Deployment of one replica: its pod runs on one of the eligible nodes; without any
// it stays Pending. Targets are a DaemonSet: a pod runs on each eligible node. Their names, fields and defaults are
// those of network.config.openshift.io, spec.networkDiagnostics (OpenShift's enhancement "configurable network
// diagnostics pod placement").
//
// # Rules
//
// Mode "" is All. In mode Disabled nothing is placed, and there are no sides; placements with this mode are an error,
// with the message of the API's own rule.
//
// An unset placement is the default: Linux nodes, no toleration for sources, every toleration for targets. In a given
// placement, each unset field has its default:
//
//   - nodeSelector. In a plan, an empty one counts as unset. In the cluster's
//     object it is literal, as for OpenShift's operator: "nodeSelector: {}" removes
//     the default kubernetes.io/os: linux, and counts as a setting, with which
//     disableNetworkDiagnostics has no effect. Expand warns about it.
//   - tolerations. An empty list is not unset: it tolerates nothing. In the
//     cluster's object, a missing field and null are unset. In a plan the schema
//     has already set the default of a missing field: a list is used as it is, nil
//     or not.
//
// With networkConfig: true, mode and placements are those of the cluster's network.config.openshift.io/cluster. It
// takes precedence over the legacy flag spec.disableNetworkDiagnostics of network.operator.openshift.io/cluster,
// unless spec.networkDiagnostics is missing or completely empty: then the flag, if true, disables the diagnostics.
// If the object cannot be read, or the flag cannot be read and is needed, Expand returns an error. A missing
// operator's object disables nothing. Node affinity, resource requests and priority class are those of the
// operator's live Deployment and DaemonSet in openshift-network-diagnostics; if one does not exist or cannot be
// read, those of the operator's manifests, with a warning. A field of a wrong type is an error with the field's
// path. Values that the API server would reject in a pod are errors of Expand, all together, each with its path.
//
// # Prediction
//
// pkg/scheduling predicts which nodes take the pod, and all reasons of every other node; its comment lists the covered
// predicates. The pod of a DaemonSet has the tolerations that its controller adds. The pods meet restricted pod
// security, except for host ports. The free resources of nodes need the right to list all pods of the cluster; without
// it, PlacementSide.Unknown lists the predicates that could not be evaluated.
//
// Not predicted are preemption (a pod of high priority may evict others; Expand warns on how many nodes that is
// possible) and changes of the pod by admission.
//
// # Decision of the API server
//
// Ask has the API server create each side's pod with dryRun=All: authentication,
// authorization, mutating and validating admission run as for a real pod, and
// nothing is stored or counted against a quota. A pod that admission or
// validation rejects is not allowed, with the API server's message. If the API server
// did not decide (no right to create pods, no such namespace, an API server or a
// webhook that does not answer, a webhook that does not support dry runs), that is the
// Fact's Cause, and the side is not measured. Admission.Changed says what
// admission did to the pod that affects where it lands, beyond the prediction:
// not the tolerations that every pod gets for nodes that are not ready or
// unreachable, which the prediction includes.
//
// The image is a placeholder that is never pulled, but image policies check it.
//
// # How a placement is judged
//
// The units of a dry run are its sides, not pairs. For each side, the first rule that
// applies decides:
//
//  1. The plan demands more nodes than are eligible: fail.
//  2. The API server was not asked whether it admits the pod, did not decide, or
//     gave two different answers: unmeasured.
//  3. The plan demands a node, and the pod is not admitted: fail.
//  4. Some predicates could not be evaluated: unmeasured.
//  5. Else: pass.
//
// Therefore nothing fails that the plan does not demand. If the diagnostics are
// disabled, there are no sides, and the check passes.
//
// The condition NetworkDiagnosticsAvailable is as the enhancement "configurable network diagnostics pod placement"
// of OpenShift has it. It is False with NoSources if no node is eligible for the source, or its pod is not admitted:
// then no source pod runs. Without targets it is not False, "since that may be intended", and the platform's
// endpoints are still verified. The operator does not know what a plan demands: if only minTargets is missed, the
// check fails and the condition is True. If rules 2 or 4 apply to the source, it is Unknown with NotEvaluated, a
// reason that the operator does not have. If the diagnostics are disabled, no source pod runs, and it is False with
// NoSources.
package placement
