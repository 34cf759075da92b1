// SPDX-License-Identifier: Apache-2.0

// Package vmlatency is the kind vmLatency: which VMs a check starts on which
// networks and nodes, with which addresses, and what must be so beforehand.
//
//	cluster  --Survey-->  cluster.Snapshot  --Expand(plan, check)-->  checkup.Worksheet
//
// Survey is the only part that reads a cluster, by the verbs that Rights states
// and by what every user may ask. Expand is a pure function of what it found.
//
// # Prerequisites
//
// Each of these has a reason of its own, told before anything is started. A pair
// of VMs for which one does not hold is on the worksheet with all of its reasons,
// as the Cause of both VMs; nothing is started for it, and it is unmeasured.
//
//	KubeVirt   installed (kubevirt.io/v1 has VirtualMachineInstances), deployed and available
//	Multus     installed (API k8s.cni.cncf.io/v1)
//	network    the NetworkAttachmentDefinition is there, may be read, and its config is
//	           a CNI configuration or a list of them
//	node       exists; is not cordoned, is ready, has no taint that VMs do not tolerate; has the
//	           label kubevirt.io/schedulable=true; has devices.kubevirt.io/tun and, unless
//	           KubeVirt may emulate, kvm and vhost-net; has the resource that the network's
//	           annotation k8s.v1.cni.cncf.io/resourceName names
//	bridge     where nodes tell their bridges as resources (KubeVirt's bridge-marker, OVS CNI's
//	           marker), that of the network is among them
//	two nodes  where the plan names none: two nodes for which all this holds
//
// Nodes are looked at where there is the right to list them, which no plan gives
// to a check of this kind: then, and for what no survey can see, a pod that is
// attached to the network on each node tells before a VM is started (package
// guest).
//
// # Networks
//
// The interface of a VM is bound by SR-IOV where the network's config has a plugin
// of type sriov, in a list too, and by a bridge else.
//
// # Addresses
//
// Guests are given their addresses by the check, of ranges that are its own: of
// each pair a /29 of a private IPv4 range, and a /64 of a unique local IPv6 prefix
// (RFC 4193). They come from a hash of run, check and pair, so that two runs at
// once do not share any, and keep clear of what is known of the ranges of pods,
// Services, nodes, and of every range that the network's own config names. MAC
// addresses are unicast and locally administered, from the same hash.
package vmlatency
