// SPDX-License-Identifier: Apache-2.0

package checkup

// ControlPlane probes connections between components of the control plane, and
// from them to what they depend on.
type ControlPlane struct {
	// Preset says which roles there are and which pairs of them are probed.
	Preset Preset `json:"preset"`
	// Roles by name, beside those of the preset. One of the same name replaces the
	// preset's, or, where it does not say where its instances are, refines it: TLS,
	// ServerName, Path and ClientCertificate are then for the preset's instances.
	Roles map[string]ComponentRole `json:"roles,omitempty"`
	// Pairs of roles. Empty means those of the preset; else it takes their place.
	Pairs []ComponentPair `json:"pairs,omitempty"`
	// IPFamilies to probe. Empty means every family that a target has an address of.
	IPFamilies []IPFamily `json:"ipFamilies,omitempty"`
	// MaxNodes bounds how many nodes the role "node" has.
	MaxNodes int             `json:"maxNodes"`
	Probe    ConnectionProbe `json:"probe"`
	// For is how long the pairs are probed, each every Interval; nil means one round of
	// Probe.Count measurements.
	For *Duration `json:"for,omitempty"`
	// Interval between the starts of two measurements of one pair.
	Interval Duration         `json:"interval"`
	Expect   ConnectionExpect `json:"expect"`
	// ConnectivityChecks says what becomes of the PodNetworkConnectivityCheck
	// objects of the pairs.
	ConnectivityChecks ConnectivityChecks `json:"connectivityChecks"`
	Limits             Limits             `json:"limits"`
	// Resources of every agent pod.
	Resources Resources `json:"resources"`
	// Timeouts of the phases. That of probing is beside For.
	Timeouts Timeouts `json:"timeouts"`
}

// Preset is a set of roles and pairs.
type Preset string

const (
	PresetAuto      Preset = "auto"      // openshift or kubeadm, whichever the cluster shows, else generic
	PresetKubeadm   Preset = "kubeadm"   // API servers and etcd members as static pods with kubeadm's labels
	PresetOpenShift Preset = "openshift" // OpenShift's operators and Infrastructure
	PresetGeneric   Preset = "generic"   // a control plane of which only the API is visible
)

// Presets lists every Preset.
var Presets = []Preset{PresetAuto, PresetKubeadm, PresetOpenShift, PresetGeneric}

// ComponentRole is a component of the control plane: where its instances are, and how
// they are spoken to. At most one of Pods, Service and Hosts is set; none only
// in one that refines a preset's.
type ComponentRole struct {
	// Pods that are instances; they can be sources, too.
	Pods *ComponentPods `json:"pods,omitempty"`
	// Service whose endpoints are instances; where these are pods, they can be
	// sources, too.
	Service *ComponentService `json:"service,omitempty"`
	// Hosts are addresses or DNS names with a port, "10.0.0.5:2379"; never sources.
	Hosts []string `json:"hosts,omitempty"`
	// TLS says whether instances speak TLS; else only a TCP connection is made.
	TLS bool `json:"tls"`
	// ServerName for TLS' server name indication. Empty means the host.
	ServerName string `json:"serverName,omitempty"`
	// Path of a GET after the TLS handshake, such as /readyz; empty means none.
	Path string `json:"path,omitempty"`
	// ClientCertificate names a Secret of the type kubernetes.io/tls in the run's
	// namespace with which agents identify themselves. Empty means none.
	ClientCertificate string `json:"clientCertificate,omitempty"`
}

// ComponentPods chooses the pods of a role.
type ComponentPods struct {
	Namespace string        `json:"namespace"`
	Selector  LabelSelector `json:"selector"`
	// Port to probe.
	Port int `json:"port"`
}

// ComponentService names the Service of a role.
type ComponentService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Port of the Service. 0 means each of its ports.
	Port int `json:"port,omitempty"`
}

// ComponentPair says that every source of one role probes every target of another.
type ComponentPair struct {
	// From is the name of a role that has pods.
	From string `json:"from"`
	// To is the name of a role for its instances; "<role>.service" for the cluster
	// IPs of its Service; "<role>.host" for the addresses of the nodes that its
	// instances are on.
	To string `json:"to"`
}

// Names of roles that the presets know. Aggregated API servers together are one
// role; ComponentNode has one instance per node: as source a pod in the pod network,
// as target the kubelet.
const (
	ComponentKubeAPIServer       = "kube-apiserver"
	ComponentAggregatedAPIServer = "aggregated-apiserver"
	ComponentEtcd                = "etcd"
	ComponentNode                = "node"
	ComponentLoadBalancerIn      = "load-balancer-internal"
	ComponentLoadBalancerOut     = "load-balancer-external"
)

// ConnectionProbe is how a connection is measured: name resolution, TCP connect,
// TLS handshake, GET, each a stage with a deadline of its own.
type ConnectionProbe struct {
	// Count is how many measurements of each pair are made where there is no For.
	Count int `json:"count"`
	// Deadlines of the stages, each from the end of the one before it.
	Deadlines StageDeadlines `json:"deadlines"`
}

// StageDeadlines bound the stages of a connection.
type StageDeadlines struct {
	Resolve   Duration `json:"resolve"`
	Connect   Duration `json:"connect"`
	Handshake Duration `json:"handshake"`
	Response  Duration `json:"response"`
}

// Sum is how long one measurement may take.
func (d StageDeadlines) Sum() Duration { return d.Resolve + d.Connect + d.Handshake + d.Response }

// ConnectionExpect is what a pair must achieve. A nil limit is not checked.
type ConnectionExpect struct {
	// Loss limits the share of measurements that failed, at whatever stage.
	Loss LossLimit `json:"loss"`
	// Latency limits percentiles of the time that the TCP connect took.
	Latency LatencyLimits `json:"latency"`
	// Outage limits how long any one outage may last.
	Outage MaxDuration `json:"outage"`
}

// ConnectivityChecks says what becomes of the pairs' objects of OpenShift's kind
// PodNetworkConnectivityCheck (controlplane.operator.openshift.io/v1alpha1), in
// the run's namespace.
type ConnectivityChecks struct {
	// Write says whether they are written at all.
	Write bool `json:"write"`
	// InstallCRD allows setup to create their CustomResourceDefinition if the
	// cluster has none. Without it, and without the CRD, none are written.
	InstallCRD bool `json:"installCRD"`
	// Retention is how long the object of a pair that is not expected any more
	// stays after its last result.
	Retention Duration `json:"retention"`
	// StaleAfter is the age of the last result from which on an object says that
	// it is unknown whether its target is reachable.
	StaleAfter Duration `json:"staleAfter"`
}

// params lists the tunables of the check.
func (c *ControlPlane) params() []Param {
	params := []Param{
		enumParam("preset", "Roles and pairs to probe, where the plan names none", &c.Preset, Presets),
		limitParam("for", "How long to keep probing, such as 30m; empty: one round", &c.For),
		durationParam("interval", "Time between two measurements of a pair, at least 1s where it is watched", &c.Interval),
		countParam("count", "How many measurements of each pair make one round", &c.Probe.Count),
		limitParam("loss.max", "Highest share of measurements of a pair that may fail, from 0% to 100%; empty: only a pair that never connects fails", &c.Expect.Loss.Max),
		limitParam("outage.max", "Longest outage of a pair, such as 30s; empty: no limit", &c.Expect.Outage.Max),
	}
	return append(params, latencyParams(&c.Expect.Latency, "TCP connect")...)
}

// phaseTimeouts are those of the plan, with the time of watching.
func (c *ControlPlane) phaseTimeouts() Timeouts {
	t := c.Timeouts
	if c.For != nil {
		t.Probe += *c.For
	}
	return t
}

func (c *ControlPlane) fixtures() []Role { return []Role{RoleAgent} }

// Measurements is how many measurements of each pair are made.
func (c *ControlPlane) Measurements() int {
	if c.For == nil || c.Interval <= 0 {
		return c.Probe.Count
	}
	return max(1, int(*c.For/c.Interval))
}
