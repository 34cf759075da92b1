// SPDX-License-Identifier: Apache-2.0

// Package vmlatency is the kind vmLatency: it decides which VMs a check starts, on which networks and nodes and with which
// addresses, and checks the prerequisites.
//
//	cluster  --Survey-->  cluster.Snapshot  --Expand(plan, check)-->  checkup.Worksheet
//
// Only Survey reads a cluster, with the verbs of Rights and those that every user has. Expand is a pure function of the
// snapshot.
//
// # Prerequisites
//
// Each missing prerequisite is reported with its own reason before anything is started. If one is missing for a pair of
// VMs, the pair is on the worksheet with all reasons, as the Cause of both VMs; nothing is started for it, and it is
// unmeasured.
//
//	KubeVirt   installed (kubevirt.io/v1 has VirtualMachineInstances), deployed and available
//	Multus     installed (API k8s.cni.cncf.io/v1)
//	network    the NetworkAttachmentDefinition exists, may be read, and its config is
//	           a CNI configuration or a list of them
//	node       exists; is not cordoned, is ready, has no taint that VMs do not tolerate; has the
//	           label kubevirt.io/schedulable=true; has devices.kubevirt.io/tun and, unless
//	           KubeVirt may emulate, kvm and vhost-net; has the resource that the network's
//	           annotation k8s.v1.cni.cncf.io/resourceName names
//	bridge     if nodes announce their bridges as resources (KubeVirt's bridge-marker, OVS CNI's
//	           marker): the node has the network's bridge
//	two nodes  if the plan names no nodes: two nodes with all of this
//
// Nodes are checked only with the right to list them, which no plan grants to a check of this kind. Without it, and for
// everything that a survey cannot check, a preflight pod that is attached to the network on each node is started before
// the VMs (package guest).
//
// # Networks
//
// The interface of a VM is bound by SR-IOV if the network's config has a plugin of type sriov (also in a list), otherwise
// by a bridge.
//
// # Addresses
//
// Guests are given their addresses by the check, of ranges that are its own: of
// each pair a /29 of a private IPv4 range, and a /64 of a unique local IPv6 prefix
// (RFC 4193). They come from a hash of run, check and pair, so that two runs at
// once do not share any, and keep clear of what is known of the ranges of pods,
// Services, nodes, and of every range that the network's own config names. MAC
// addresses are unicast and locally administered, from the same hash.
//
// # How a pair of VMs is judged
//
// The rules of pkg/judge hold, with the guest in the place of the agent, and these
// beside them:
//
//   - Both VMs must run, or what kept either from it is the pair's cause (rule 1).
//   - From the target VM only connectivity is measured: one answer is enough there, and
//     limits do not hold (rule 8).
//   - A loss that breaks no limit does not fail a pair, and is a note.
//
// Each pair of VMs has two units for each family: there and back. kiagnose's words for
// what failed are made by pkg/kiagnose, from the units' breaches.
//
// # How failures are explained
//
// Each network is looked at by itself, and of what fails on it each damage by itself:
// nothing comes back; more is lost than the limit allows; it is too slow. Every failed
// pair gets one finding (see findings):
//
//  1. All pairs of nodes that were measured suffer from it, there are several, and not
//     just one node is common to them: network, by its name.
//  2. All pairs of a node that were measured suffer from it, and there are several:
//     node. If no pair of other nodes was measured, the network is its alternative.
//  3. What is left: pair. The network and the two nodes are its alternatives where
//     nothing else that was measured tells them apart.
//
// A finding is narrowed to a family if no pair of the other one fails there. That echo
// requests from one of two nodes are answered, and from the other are not, is reported
// as one way: both are round trips, so the path itself is open both ways. What this
// cannot do: tell a network from a node by a single pair of nodes, or a fault of one
// direction from one that began between the two measurements.
package vmlatency
