// SPDX-License-Identifier: Apache-2.0

package checkup

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

// StageDeadlines bound the stages of a connection.
type StageDeadlines struct {
	Resolve   Duration `json:"resolve"`
	Connect   Duration `json:"connect"`
	Handshake Duration `json:"handshake"`
	Response  Duration `json:"response"`
}

// Sum is how long one measurement may take.
func (d StageDeadlines) Sum() Duration { return d.Resolve + d.Connect + d.Handshake + d.Response }

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
