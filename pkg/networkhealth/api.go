// SPDX-License-Identifier: Apache-2.0

package networkhealth

import (
	_ "embed"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/checkplan/checkplan/pkg/crd"
)

// The API of the objects.
const (
	Group   = "networkhealth.checkplan.dev"
	Version = "v1alpha1"
	Kind    = "PodNetworkHealth"
)

// Resource is the API resource of the objects.
var Resource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "podnetworkhealths"}

//go:embed crd.yaml
var crdYAML []byte

// definition of PodNetworkHealths. crd.yaml documents each field; the types below have the same ones.
var definition = crd.Definition{
	YAML: crdYAML, Name: "podnetworkhealths." + Group, Version: Version,
	Setting: "podNetworkHealth.installCRD", Whose: "compatible", Own: true,
}

// CRD is the CustomResourceDefinition of PodNetworkHealths, as YAML.
func CRD() []byte { return crdYAML }

// Health is a PodNetworkHealth. crd.yaml documents the fields, and their limits.
type Health struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   Spec    `json:"spec"`
	Status *Status `json:"status,omitempty"`
}

// Spec identifies observer and pair. It is comparable: two objects of one Spec are the same.
type Spec struct {
	Observer Observer `json:"observer"`
	Source   Endpoint `json:"source"`
	Target   Endpoint `json:"target"`
}

// Observer is who measures.
type Observer struct {
	Name  string `json:"name"`
	Plan  string `json:"plan,omitempty"`
	Check string `json:"check,omitempty"`
}

// ObserverName is the name of this observer.
const ObserverName = "checkplan"

// EndpointKind says what a pod is for.
type EndpointKind string

const (
	// Workload is a pod that exists for its own purpose.
	Workload EndpointKind = "Workload"
	// StandIn is a pod that a run starts on a node only to measure: an agent or a responder.
	StandIn EndpointKind = "StandIn"
)

// EndpointKinds lists every EndpointKind.
var EndpointKinds = []EndpointKind{Workload, StandIn}

// Endpoint is one side of a pair. Namespace, Name and UID are empty for a StandIn.
type Endpoint struct {
	Kind      EndpointKind `json:"kind"`
	Namespace string       `json:"namespace,omitempty"`
	Name      string       `json:"name,omitempty"`
	UID       string       `json:"uid,omitempty"`
	Node      string       `json:"node"`
}

// Reachability is what was observed last.
type Reachability string

const (
	Reachable   Reachability = "Reachable"
	Unreachable Reachability = "Unreachable"
	Unknown     Reachability = "Unknown"
)

// Reachabilities lists every Reachability, worst first.
var Reachabilities = []Reachability{Unreachable, Unknown, Reachable}

// Reasons of a Reachability.
const (
	ReasonAnswered     = "Answered"
	ReasonNoAnswer     = "NoAnswer"              // to no probe
	ReasonSomeNoAnswer = "SomeProbesNotAnswered" // at least one probe was answered, and at least one was not
	ReasonNotMeasured  = "NotMeasured"           // the run expected the pair, and could not measure it
	ReasonSomeMissing  = "SomeProbesNotMeasured" // the measured ones were answered
	ReasonStale        = "Stale"                 // not measured for too long
	ReasonSourceGone   = "SourceGone"
	ReasonTargetGone   = "TargetGone"
)

// Reasons lists every reason.
var Reasons = []string{
	ReasonAnswered, ReasonNoAnswer, ReasonSomeNoAnswer, ReasonNotMeasured, ReasonSomeMissing, ReasonStale,
	ReasonSourceGone, ReasonTargetGone,
}

// Status is the last observation.
type Status struct {
	Reachability        Reachability `json:"reachability"`
	Reason              string       `json:"reason"`
	Message             string       `json:"message"`
	LastTransitionTime  time.Time    `json:"lastTransitionTime"`
	LastObservationTime time.Time    `json:"lastObservationTime,omitzero"`
	StaleTime           time.Time    `json:"staleTime"`
	ExpireTime          time.Time    `json:"expireTime"`
	PodGoneTime         time.Time    `json:"podGoneTime,omitzero"`
	ObservedBy          ObservedBy   `json:"observedBy"`
	Source              *ObservedPod `json:"source,omitempty"`
	Target              *ObservedPod `json:"target,omitempty"`
	Loss                *Loss        `json:"loss,omitempty"`
	Latency             *Latency     `json:"latency,omitempty"`
	Probes              []Probe      `json:"probes,omitempty"`
	Coverage            Coverage     `json:"coverage"`
}

// ObservedBy is the run that wrote a status.
type ObservedBy struct {
	Run    string `json:"run"`
	RunUID string `json:"runUID,omitempty"`
}

// ObservedPod is a pod as it was when it measured, or was measured to.
type ObservedPod struct {
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	UID       string   `json:"uid,omitempty"`
	Node      string   `json:"node,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
}

// Window is the time in which measurements were made.
type Window struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
}

// Loss of all probes together.
type Loss struct {
	Window  Window `json:"window"`
	Sent    int64  `json:"sent"`
	Lost    int64  `json:"lost"`
	Percent string `json:"percent"`
}

// Latency of one probe, in microseconds.
type Latency struct {
	Window Window `json:"window"`
	Probe  string `json:"probe"`
	Count  int64  `json:"count"`
	Min    int64  `json:"minMicroseconds"`
	Mean   int64  `json:"meanMicroseconds"`
	P50    int64  `json:"p50Microseconds"`
	P90    int64  `json:"p90Microseconds"`
	P99    int64  `json:"p99Microseconds"`
	Max    int64  `json:"maxMicroseconds"`
}

// Probe is one way in which a pair is measured. Sent and Lost are nil if it was not measured, P50 and Max if nothing
// was answered.
type Probe struct {
	Name         string       `json:"name"`
	Reachability Reachability `json:"reachability"`
	Message      string       `json:"message,omitempty"`
	Sent         *int64       `json:"sent,omitempty"`
	Lost         *int64       `json:"lost,omitempty"`
	P50          *int64       `json:"p50Microseconds,omitempty"`
	Max          *int64       `json:"maxMicroseconds,omitempty"`
}

// Coverage says how the pair was chosen and measured.
type Coverage struct {
	Extent         string `json:"extent"` // Partial
	Sampling       string `json:"sampling"`
	MeasuredPairs  int64  `json:"measuredPairs,omitempty"`
	PossiblePairs  int64  `json:"possiblePairs,omitempty"`
	ObjectsOmitted int64  `json:"objectsOmitted,omitempty"`
}

// Partial is the only Coverage.Extent.
const Partial = "Partial"

// Limits of crd.yaml, in characters and items, that texts and lists are cut to.
const (
	maxMessage      = 1024
	maxProbeMessage = 256
	maxSampling     = 512
	maxProbes       = 32
	maxName         = 253
	maxLabel        = 63
	maxUID          = 128
	maxProbeName    = 63
)
