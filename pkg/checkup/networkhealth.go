// SPDX-License-Identifier: Apache-2.0

package checkup

// Features are the alpha features of a plan. Each is off by default.
type Features struct {
	// PodNetworkHealth makes each run write PodNetworkHealth objects.
	PodNetworkHealth bool `json:"PodNetworkHealth,omitempty"`
}

// PodNetworkHealth configures the PodNetworkHealth objects (networkhealth.checkplan.dev/v1alpha1) of a plan. They are
// in the run's namespace.
type PodNetworkHealth struct {
	// InstallCRD allows setup to create their CustomResourceDefinition, or to add what an older one of checkplan lacks.
	// If it is false and there is none, no objects are written.
	InstallCRD bool `json:"installCRD"`
	// MaxObjects is the maximum number of objects of the plan, from 1 to 1000.
	MaxObjects int `json:"maxObjects"`
	// StaleAfter is the age of the last observation at which an object becomes Unknown.
	StaleAfter Duration `json:"staleAfter"`
	// ExpireAfter is the age of the last observation at which an object is deleted, at least StaleAfter.
	ExpireAfter Duration `json:"expireAfter"`
	// PodGoneGrace is how long the objects of a pod that is gone are kept.
	PodGoneGrace Duration `json:"podGoneGrace"`
}

// NetworkHealth returns the configuration of the plan's PodNetworkHealth objects; nil if the plan writes none.
func (p *Plan) NetworkHealth() *PodNetworkHealth {
	if !p.Features.PodNetworkHealth {
		return nil
	}
	return p.PodNetworkHealth
}
