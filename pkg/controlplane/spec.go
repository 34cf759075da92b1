// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Spec selects the connections to probe between components of the control plane, and
// from them to their dependencies.
type Spec struct {
	// Preset selects the roles and the pairs of them.
	Preset Preset `json:"preset"`
	// Roles by name, in addition to those of the preset. A role with a preset's name
	// replaces the preset's role or, without pods, Service and hosts, refines it: TLS,
	// ServerName, Path and ClientCertificate then apply to the preset's instances.
	Roles map[string]ComponentRole `json:"roles,omitempty"`
	// Pairs of roles. Empty means those of the preset.
	Pairs []ComponentPair `json:"pairs,omitempty"`
	// IPFamilies to probe. Empty means every family that a target has an address of.
	IPFamilies []checkup.IPFamily `json:"ipFamilies,omitempty"`
	// Placement selects the nodes that are sources of the role "node". It does not
	// select targets: these are the kubelets of any nodes.
	Placement checkup.Placement `json:"placement"`
	// MaxNodes bounds how many nodes the role "node" has.
	MaxNodes int             `json:"maxNodes"`
	Probe    ConnectionProbe `json:"probe"`
	// For is how long the pairs are probed, each every Interval; nil means one round of
	// Probe.Count measurements.
	For *checkup.Duration `json:"for,omitempty"`
	// Interval between the starts of two measurements of one pair.
	Interval checkup.Duration `json:"interval"`
	Expect   ConnectionExpect `json:"expect"`
	// ConnectivityChecks configures the PodNetworkConnectivityCheck objects of the
	// pairs.
	ConnectivityChecks checkup.ConnectivityChecks `json:"connectivityChecks"`
	Limits             checkup.Limits             `json:"limits"`
	// Resources of every agent pod.
	Resources checkup.Resources `json:"resources"`
	// Timeouts of the phases. That of probing is added to For.
	Timeouts checkup.Timeouts `json:"timeouts"`
}

// Preset is a set of roles and pairs.
type Preset string

const (
	PresetAuto      Preset = "auto"      // openshift or kubeadm if detected, else generic
	PresetKubeadm   Preset = "kubeadm"   // API servers and etcd members as static pods with kubeadm's labels
	PresetOpenShift Preset = "openshift" // OpenShift's operators and Infrastructure
	PresetGeneric   Preset = "generic"   // a control plane of which only the API is visible
)

// Presets lists every Preset.
var Presets = []Preset{PresetAuto, PresetKubeadm, PresetOpenShift, PresetGeneric}

// ComponentRole is a component of the control plane: its instances, and how they are
// probed. At most one of Pods, Service and Hosts is set; none only in a role that
// refines a preset's.
type ComponentRole struct {
	// Pods are instances; they can be sources, too.
	Pods *ComponentPods `json:"pods,omitempty"`
	// Service whose endpoints are instances; endpoints that are pods can be sources,
	// too.
	Service *ComponentService `json:"service,omitempty"`
	// Hosts are addresses or DNS names with a port, "10.0.0.5:2379"; never sources.
	Hosts []string `json:"hosts,omitempty"`
	// TLS says that instances speak TLS; else only a TCP connection is made.
	TLS bool `json:"tls"`
	// ServerName for TLS' server name indication. Empty means the host.
	ServerName string `json:"serverName,omitempty"`
	// Path of a GET after the TLS handshake, such as /readyz; empty means none.
	Path string `json:"path,omitempty"`
	// ClientCertificate names a Secret of the type kubernetes.io/tls in the run's
	// namespace with which agents identify themselves. Empty means none.
	ClientCertificate string `json:"clientCertificate,omitempty"`
}

// ComponentPods selects the pods of a role.
type ComponentPods struct {
	Namespace string                `json:"namespace"`
	Selector  checkup.LabelSelector `json:"selector"`
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
	// instances run on.
	To string `json:"to"`
}

// ConnectionProbe is how a connection is measured: name resolution, TCP connect,
// TLS handshake, GET, each a stage with a deadline of its own.
type ConnectionProbe struct {
	// Count is how many measurements of each pair are made if For is nil.
	Count int `json:"count"`
	// Deadlines of the stages, each from the end of the one before it.
	Deadlines checkup.StageDeadlines `json:"deadlines"`
}

// ConnectionExpect is what a pair must achieve. A nil limit is not checked.
type ConnectionExpect struct {
	// Loss limits the share of measurements that failed, at any stage.
	Loss checkup.LossLimit `json:"loss"`
	// Latency limits percentiles of the time that the TCP connect took.
	Latency checkup.LatencyLimits `json:"latency"`
	// Outage limits how long any one outage may last.
	Outage checkup.MaxDuration `json:"outage"`
}

// Params lists the tunables of the check.
func (c *Spec) Params() []checkup.Param {
	params := checkup.AsRare(
		checkup.EnumParam("preset", "Roles and pairs to probe, where the plan names none", &c.Preset, Presets),
	)
	params = append(params, kind.LimitParam("for", "How long to keep probing, such as 30m; empty: one round", &c.For))
	params = append(params, checkup.AsRare(
		kind.DurationParam(
			"interval",
			"Time between two measurements of a pair, at least 1s where it is watched",
			&c.Interval,
		),
		kind.CountParam("count", "How many measurements of each pair make one round", &c.Probe.Count),
	)...)
	params = append(params,
		kind.LimitParam(
			"loss.max",
			"Highest share of measurements of a pair that may fail, from 0% to 100%; empty: only a pair that never connects fails",
			&c.Expect.Loss.Max,
		),
		kind.LimitParam("outage.max", "Longest outage of a pair, such as 30s; empty: no limit", &c.Expect.Outage.Max),
	)
	return append(params, kind.LatencyParams(&c.Expect.Latency, "TCP connect")...)
}

// Kind is Name.
func (c *Spec) Kind() checkup.Kind { return Name }

// PhaseTimeouts are those of the plan, with the time of watching.
func (c *Spec) PhaseTimeouts() checkup.Timeouts {
	t := c.Timeouts
	if c.For != nil {
		t.Probe += *c.For
	}
	return t
}

// Fixtures are agents.
func (c *Spec) Fixtures() []checkup.Role { return []checkup.Role{checkup.RoleAgent} }

// Measurements is how many measurements of each pair are made.
func (c *Spec) Measurements() int {
	if c.For == nil || c.Interval <= 0 {
		return c.Probe.Count
	}
	return max(1, int(*c.For/c.Interval))
}
