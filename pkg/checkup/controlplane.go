// SPDX-License-Identifier: Apache-2.0

package checkup

// Names of the component roles in the presets. All aggregated API servers together
// are one role. ComponentNode has one instance per node: as source it is a pod in the
// pod network, as target it is the kubelet.
const (
	ComponentKubeAPIServer       = "kube-apiserver"
	ComponentAggregatedAPIServer = "aggregated-apiserver"
	ComponentEtcd                = "etcd"
	ComponentNode                = "node"
	ComponentLoadBalancerIn      = "load-balancer-internal"
	ComponentLoadBalancerOut     = "load-balancer-external"
)

// StageDeadlines bound the stages of a connection.
type StageDeadlines struct {
	Resolve   Duration `json:"resolve"`
	Connect   Duration `json:"connect"`
	Handshake Duration `json:"handshake"`
	Response  Duration `json:"response"`
}

// Sum is the longest time that one measurement may take.
func (d StageDeadlines) Sum() Duration { return d.Resolve + d.Connect + d.Handshake + d.Response }

// ConnectivityChecks configures the PodNetworkConnectivityCheck objects
// (controlplane.operator.openshift.io/v1alpha1, a kind of OpenShift) of the pairs. They
// are in the run's namespace.
type ConnectivityChecks struct {
	// Write enables writing of the objects.
	Write bool `json:"write"`
	// InstallCRD allows setup to create their CustomResourceDefinition if the
	// cluster has none. If it is false and the CRD is missing, no objects are written.
	InstallCRD bool `json:"installCRD"`
	// Retention is how long the object of a pair is kept after its last result, once
	// the pair is no longer expected.
	Retention Duration `json:"retention"`
	// StaleAfter is the age of the last result at which the object's condition
	// Reachable becomes Unknown.
	StaleAfter Duration `json:"staleAfter"`
}
