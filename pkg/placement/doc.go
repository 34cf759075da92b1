// SPDX-License-Identifier: Apache-2.0

// Package placement is the kind placement: a dry run of where the pods of
// OpenShift's network diagnostics, or of anything placed in the same way, would
// land. It starts nothing.
//
//	cluster --Survey--> cluster.Snapshot --Expand (pure)--> Sheet --Ask--> []checkup.Fact
//	facts   --Judge (pure)--> checkup.CheckReport
//
// There are two sides. Sources are a Deployment of one replica: its pod lands on
// one of the eligible nodes, and without any it stays Pending. Targets are a
// DaemonSet: there is a pod on each eligible node. Their names, fields and
// defaults are those of network.config.openshift.io, spec.networkDiagnostics
// (OpenShift's enhancement "configurable network diagnostics pod placement").
//
// # What decides
//
// Mode "" is All. In mode Disabled nothing is placed, and there are no sides; to
// give placements with it is an error, in the words of the API's own rule.
//
// A placement that is not given is the default one: nodes of Linux, no toleration
// for sources, every toleration for targets. In one that is given, each field
// that is left out has its default:
//
//   - nodeSelector. An empty one counts as left out, in the plan and in the
//     cluster's object. (OpenShift's operator takes an empty selector literally:
//     "nodeSelector: {}" drops the default kubernetes.io/os: linux, and counts as
//     a setting by which disableNetworkDiagnostics loses its effect. That is a
//     fault, and not done here.)
//   - tolerations. An empty list is not left out: it tolerates nothing. In the
//     cluster's object that is told by presence; null is as left out. In a plan
//     the schema has filled in the default where the field is left out, so that
//     here a list is what it is, nil or not.
//
// With networkConfig: true mode and placements are those of the cluster's
// network.config.openshift.io/cluster. It takes precedence over the legacy flag
// spec.disableNetworkDiagnostics of network.operator.openshift.io/cluster, unless
// spec.networkDiagnostics is missing or empty all the way down: then the flag,
// if it is true, disables. Where the object is not to be seen, or the flag is
// not where it decides, Expand says so and guesses nothing. An operator's object
// that is not there disables nothing. An object with a field of another type
// than the API gives it is an error with the field's path; values that the API
// server would refuse in a pod are errors of Expand, all at once, each with its
// path.
//
// # What is predicted
//
// Which nodes take the pod, and every reason of every other node, is predicted
// by pkg/scheduling, whose comment says which of the scheduler's predicates are
// covered. The pod of a DaemonSet has the tolerations that its controller adds.
// The pods are made as typed objects and meet restricted pod security, but for
// host ports if the placement has any. What the nodes have left needs the right
// to list all pods of the cluster; without it, PlacementSide.Unknown tells the
// predicates that could not be evaluated.
//
// Not predicted are preemption (a pod of high priority may evict others to make
// room; Expand's warnings tell on how many nodes that could be) and what
// admission changes in the pod.
//
// # What the API server says
//
// Ask has the API server create each side's pod with dryRun=All: authentication,
// authorization, mutating and validating admission run as for a real pod, and
// nothing is stored, nor counted against a quota. A pod that admission or
// validation refuses is not allowed, with the API server's message. Where there
// was no decision (no right to create pods, no such namespace, an API server or a
// webhook that does not answer, a webhook that knows no dry run), that is the
// Fact's Cause, and the side is not measured. Admission.Changed says what
// admission did to the pod that affects where it lands, beyond the prediction:
// not the tolerations that every pod gets for nodes that are not ready or
// unreachable, with which the prediction reckons.
//
// The image is a stand-in, which nothing pulls; a policy on images judges it all
// the same.
//
// # How a placement is judged
//
// A dry run counts its sides, not pairs. Of each, the first of these that holds
// decides:
//
//  1. The plan demands more nodes than are eligible: fail.
//  2. The API server was not asked whether it admits the pod, did not decide, or
//     gave two different answers: unmeasured.
//  3. The plan demands a node, and the pod is not admitted: fail.
//  4. Some predicates could not be evaluated: unmeasured.
//  5. Else: pass.
//
// So nothing fails that the plan does not demand. Without a side, because the
// diagnostics are disabled, the check passes.
//
// The condition NetworkDiagnosticsAvailable is as the enhancement "configurable
// network diagnostics pod placement" of OpenShift has it. It is False with
// NoSources if no node is eligible for the source, or its pod is not admitted: then
// there is no source pod. That there is no target does not make it False by
// itself, "since that may be intended", and the platform's endpoints are verified
// all the same; it is False with NoTargets only if the plan demands a target, and
// no node is eligible for one or its pod is not admitted. Fewer targets than
// demanded, but some, fail the check and leave the condition True: "No targets
// available" would be wrong. Where rules 2 or 4 hold of a side that matters, it is
// Unknown with NotEvaluated, which the operator does not have. Disabled diagnostics
// have none.
package placement
