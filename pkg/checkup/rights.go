// SPDX-License-Identifier: Apache-2.0

package checkup

// Phase is a part of a run. Each phase has its own task and ServiceAccount.
type Phase string

const (
	PhaseSetup    Phase = "setup"    // surveys the cluster, writes the worksheet, creates the fixtures
	PhaseProbe    Phase = "probe"    // starts the agents and collects their reports
	PhaseConclude Phase = "conclude" // removes the fixtures and writes the report; always runs
)

// Phases lists every Phase in the order in which they run.
var Phases = []Phase{PhaseSetup, PhaseProbe, PhaseConclude}

// Right is one verb that a phase uses, on one resource.
type Right struct {
	Phase Phase `json:"phase"`
	// Scope is where the verb is used.
	Scope Scope `json:"scope"`
	// Namespace is set when Scope is ScopeNamespace.
	Namespace string `json:"namespace,omitempty"`
	// Group of the resource; empty means the core group of Kubernetes.
	Group string `json:"group,omitempty"`
	// Resource, for a subresource as resource/subresource.
	Resource string `json:"resource"`
	// Names of the objects that the verb is used on; empty means any.
	Names []string `json:"names,omitempty"`
	Verb  string   `json:"verb"`
	// Why says what the code needs the right for.
	Why string `json:"why"`
}

// Scope is the scope of a right.
type Scope string

const (
	ScopeRun       Scope = "run"       // the namespace of the run
	ScopeCluster   Scope = "cluster"   // the whole cluster: for resources without a namespace
	ScopeNamespace Scope = "namespace" // a named namespace other than the run's
)
