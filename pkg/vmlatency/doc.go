// SPDX-License-Identifier: Apache-2.0

// Package vmlatency is the kind vmLatency: it decides which VMs a check starts, on which networks and nodes and with
// which addresses, and checks the prerequisites.
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
// The interface of a VM is bound by SR-IOV if the network's config has a plugin of type sriov (also in a list),
// otherwise by a bridge. A network that may not carry the frames of such a VM (macvlan, ipvlan, macvtap, and types that
// route) gives a warning, and a finding about it says so. A network of OVN-Kubernetes with subnets is not measured: it
// drops packets from the addresses that a check assigns. Nor is a primary user-defined network.
//
// # Addresses
//
// The check assigns the guests' addresses: to each pair a /29 of a private IPv4 range,
// and a /64 of a unique local IPv6 prefix (RFC 4193). They come from a hash of run,
// check and pair: two runs at once do not share addresses. They do not overlap with
// the known ranges of pods, Services and nodes, nor with any range that the network's
// config names. MAC addresses are unicast and locally administered, from the same
// hash.
//
// # How a pair of VMs is judged
//
// The rules of pkg/judge apply, with the guest in the place of the agent, and these in
// addition:
//
//   - Both VMs must run; else the reason why one does not is the pair's cause (rule 1).
//   - From the target VM only connectivity is measured: one answer is enough, and
//     limits do not apply (rule 8).
//   - A loss that breaks no limit does not fail a pair, and is a note.
//
// Each pair of VMs has two units for each family: there and back. pkg/kiagnose writes
// kiagnose's messages for failures, from the units' breaches.
//
// # How failures are explained
//
// Each network is evaluated separately, and on it each kind of damage: no answer; more
// loss than the limit allows; too slow. Every failed pair gets one finding (see
// findings):
//
//  1. All of several measured pairs of nodes have the damage, and no single node is in
//     all of them: network, by its name.
//  2. All of several measured pairs of a node have the damage: node. If no pair of
//     other nodes was measured, the network is its alternative.
//  3. The remaining pairs: pair. The network and the two nodes are its alternatives if
//     no other measured pair excludes them.
//
// A finding names a family if no pair of the other family fails there. If echo requests
// from one of two nodes are answered, and from the other are not, it is reported as one
// way: both are round trips, so the path itself is open both ways. What this cannot
// distinguish: a network and a node with a single pair of nodes; a fault of one
// direction and one that began between the two measurements.
//
// What became worse since earlier runs (Compare) is explained by the same procedure. Only pairs from the source VM are
// compared, because back one answer is enough.
package vmlatency
