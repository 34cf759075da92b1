// SPDX-License-Identifier: Apache-2.0

package checkup

import "time"

// NetworkRef names a NetworkAttachmentDefinition.
type NetworkRef struct {
	// Namespace is empty for the run's own.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String is "namespace/name", or the name alone.
func (n NetworkRef) String() string {
	if n.Namespace == "" {
		return n.Name
	}
	return n.Namespace + "/" + n.Name
}

// NodePair names the nodes of two VMs; they may be the same.
type NodePair struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// ConfigMapRef names a ConfigMap.
type ConfigMapRef struct {
	// Namespace is empty for the run's own.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Guest is what runs in the VMs.
type Guest struct {
	// Memory of the guest, as a Kubernetes quantity.
	Memory string `json:"memory"`
	// Image of a containerDisk to boot. Empty means checkplan's own guest: a kernel
	// and an agent, which needs no login.
	Image string `json:"image,omitempty"`
	// Login on the serial console of Image; nil for checkplan's own guest.
	Login *GuestLogin `json:"login,omitempty"`
}

// GuestLogin is how a guest is logged in to on its serial console. It is no
// secret: the plan is in the Pipeline.
type GuestLogin struct {
	User     string `json:"user"`
	Password string `json:"password"`
}

// How VMs are measured.
const (
	// VMEchoSize is the payload of an echo request in bytes: what ping sends.
	VMEchoSize = 56
	// VMConnectivityCount is how many echo requests tell whether the target VM
	// reaches the source.
	VMConnectivityCount = 5
	// VMConnectivityInterval is the longest time between these, where that of the
	// measurement is longer.
	VMConnectivityInterval = Duration(time.Second)
	// VMEchoTimeout is how long an answer is waited for: far longer than any limit
	// that makes sense, so that a slow network reads as slow and not as lossy.
	VMEchoTimeout = Duration(5 * time.Second)
)

// VMConnectivity is with how many echo requests, and with what time between them,
// connectivity from the target is asked for beside a measurement from the source.
func VMConnectivity(count int, interval Duration) (int, Duration) {
	return min(VMConnectivityCount, count), min(VMConnectivityInterval, interval)
}

// GuestSheet is what a worksheet says where its endpoints are VMs. VM 2i is the
// source and VM 2i+1 the target of a pair; each VM is on both lists of the
// worksheet, at the same index, and each of a pair is assigned to the other: from
// the source the delay is measured, from the target connectivity alone.
type GuestSheet struct {
	Guest Guest `json:"guest"`
	// Duration of the measurement, for reports.
	Duration Duration `json:"duration"`
}

// VM is a virtual machine that is started for an endpoint.
type VM struct {
	// Name of the VM among those of its network: its node if the plan names one, else
	// its side of the pair. A second one of the same node or side has a number.
	Name    string     `json:"name,omitempty"`
	Network NetworkRef `json:"network"`
	// NetworkType is the CNI type of the network's first plugin, such as bridge;
	// empty where its config does not tell.
	NetworkType string `json:"networkType,omitempty"`
	// Bridge that the network's config names; empty for other types.
	Bridge string `json:"bridge,omitempty"`
	// Resource that the network says its pods need of their node, such as one of
	// SR-IOV devices; empty where it says none.
	Resource string           `json:"resource,omitempty"`
	Binding  InterfaceBinding `json:"binding"`
	MAC      string           `json:"mac"`
	// Addresses of the guest with their prefix length, such as 10.37.4.1/29.
	Addresses map[IPFamily]string `json:"addresses"`
	// Unused addresses of the same prefixes, which nobody has: what answers there
	// is not the network under test.
	Unused map[IPFamily]string `json:"unused"`
	// Target says that this is the second VM of its pair.
	Target bool `json:"target,omitempty"`
}

// InterfaceBinding is how KubeVirt plugs a VM into a network.
type InterfaceBinding string

const (
	BindingBridge InterfaceBinding = "bridge"
	BindingSRIOV  InterfaceBinding = "sriov"
)

// InterfaceBindings lists every InterfaceBinding.
var InterfaceBindings = []InterfaceBinding{BindingBridge, BindingSRIOV}

// Measurements is how many measurements of a pair are ordered.
func (w *Worksheet) Measurements(p Pair) int {
	probe, _ := w.Probe(p.Transport)
	if w.connectivityOnly(p) {
		probe.Count, _ = VMConnectivity(probe.Count, probe.Interval)
	}
	return probe.Count
}

// ExpectOf is what a pair must achieve: no limit where only connectivity is
// measured, but for the rule that something must come through.
func (w *Worksheet) ExpectOf(p Pair) Expect {
	if w.connectivityOnly(p) {
		return Expect{}
	}
	return w.Expect
}

func (w *Worksheet) connectivityOnly(p Pair) bool {
	return p.Source >= 0 && p.Source < len(w.Sources) && w.Sources[p.Source].VM != nil && w.Sources[p.Source].VM.Target
}
