// SPDX-License-Identifier: Apache-2.0

package checkup

import "time"

// NetworkRef names a NetworkAttachmentDefinition.
type NetworkRef struct {
	// Namespace is empty for the run's namespace.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String returns "namespace/name", or only the name if the namespace is empty.
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
	// Namespace is empty for the run's namespace.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Guest describes the guest system of the VMs.
type Guest struct {
	// Memory of the guest, as a Kubernetes quantity.
	Memory string `json:"memory"`
	// Image is the containerDisk to boot. Empty means checkplan's own guest: a kernel and
	// an agent, without login.
	Image string `json:"image,omitempty"`
	// Login on the serial console of Image; nil for checkplan's own guest.
	Login *GuestLogin `json:"login,omitempty"`
}

// GuestLogin is the login for a guest's serial console. It is not secret: the Pipeline
// contains the plan.
type GuestLogin struct {
	User     string `json:"user"`
	Password string `json:"password"`
}

// Parameters of the measurement between VMs.
const (
	// VMEchoSize is the payload of an echo request in bytes, the default of ping.
	VMEchoSize = 56
	// VMConnectivityCount is the number of echo requests by which the target VM checks
	// that it reaches the source.
	VMConnectivityCount = 5
	// VMConnectivityInterval is the longest interval between these echo requests.
	VMConnectivityInterval = Duration(time.Second)
)

// VMConnectivity returns the number of echo requests from the target to the source and
// their interval, for a measurement from the source with the given count and interval.
func VMConnectivity(count int, interval Duration) (int, Duration) {
	return min(VMConnectivityCount, count), min(VMConnectivityInterval, interval)
}

// GuestSheet is the part of a worksheet whose endpoints are VMs. VM 2i is the source and
// VM 2i+1 the target of a pair. Each VM is in both lists of the worksheet, at the same
// index, and the two VMs of a pair are assigned to each other: the source measures the
// delay, the target measures connectivity only.
type GuestSheet struct {
	Guest Guest `json:"guest"`
	// Duration of the measurement, for reports.
	Duration Duration `json:"duration"`
}

// VM is the virtual machine that is started for an endpoint.
type VM struct {
	// Name of the VM, unique in its network: its node if the plan names one, otherwise
	// its side of the pair. Further VMs of the same node or side have a number.
	Name    string     `json:"name,omitempty"`
	Network NetworkRef `json:"network"`
	// NetworkType is the CNI type of the network's first plugin, such as bridge; empty
	// if the network's config has none.
	NetworkType string `json:"networkType,omitempty"`
	// Bridge in the network's config; empty for other types.
	Bridge string `json:"bridge,omitempty"`
	// Resource is the extended resource of the node that the network requires for its
	// pods, for example SR-IOV devices; empty if it requires none.
	Resource string           `json:"resource,omitempty"`
	Binding  InterfaceBinding `json:"binding"`
	MAC      string           `json:"mac"`
	// Addresses of the guest with their prefix length, such as 10.37.4.1/29.
	Addresses map[IPFamily]string `json:"addresses"`
	// Unused addresses of the same prefixes, which no VM has. If one of them answers, the
	// answer does not come from the network under test.
	Unused map[IPFamily]string `json:"unused"`
	// Target says that this is the second VM of its pair.
	Target bool `json:"target,omitempty"`
}

// InterfaceBinding is how KubeVirt connects a VM to a network.
type InterfaceBinding string

const (
	BindingBridge InterfaceBinding = "bridge"
	BindingSRIOV  InterfaceBinding = "sriov"
)

// Measurements is the number of measurements of a pair that its source must make. In a
// further look it is 0 for a pair that Again does not list.
func (w *Worksheet) Measurements(p Pair) int {
	if w.Again != nil {
		if a := w.AgainOf(p); a != nil {
			return a.Count
		}
		return 0
	}
	probe, _ := w.Probe(p.Transport)
	if w.ConnectivityOnly(p) {
		probe.Count, _ = VMConnectivity(probe.Count, probe.Interval)
	}
	return probe.Count
}

// ExpectOf returns the expectation of a pair. It has no limits if only connectivity is
// measured: then at least one answer is enough.
func (w *Worksheet) ExpectOf(p Pair) Expect {
	if w.ConnectivityOnly(p) {
		return Expect{}
	}
	return w.Expect
}

// ConnectivityOnly reports whether a pair is measured only for an answer: from the second VM of a pair to the first.
func (w *Worksheet) ConnectivityOnly(p Pair) bool {
	return p.Source >= 0 && p.Source < len(w.Sources) && w.Sources[p.Source].VM != nil && w.Sources[p.Source].VM.Target
}
