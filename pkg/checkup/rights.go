// SPDX-License-Identifier: Apache-2.0

package checkup

// Phase is a part of a run with a task and a ServiceAccount of its own.
type Phase string

const (
	PhaseSetup    Phase = "setup"    // surveys, writes the worksheet, makes the fixtures
	PhaseProbe    Phase = "probe"    // starts the agents and collects what they measured
	PhaseConclude Phase = "conclude" // tears down and reports; runs always
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
	// Group of the resource; empty is Kubernetes' core group.
	Group string `json:"group,omitempty"`
	// Resource, with a subresource behind a slash.
	Resource string `json:"resource"`
	// Names of the objects that the verb is used on; empty means any.
	Names []string `json:"names,omitempty"`
	Verb  string   `json:"verb"`
	// Why says which code needs it.
	Why string `json:"why"`
}

// Scope is where a right holds.
type Scope string

const (
	ScopeRun       Scope = "run"       // the namespace of the run
	ScopeCluster   Scope = "cluster"   // everywhere: for what has no namespace
	ScopeNamespace Scope = "namespace" // another namespace than the run's, by name
)
