// SPDX-License-Identifier: Apache-2.0

package checkup

import "encoding/json"

// EvidenceKind is the kind of Evidence.
const EvidenceKind = "Evidence"

// Evidence is what the tasks of a run kept of its pods and VMs that went wrong, for people: no verdict depends on it.
// It belongs to the PipelineRun, and is deleted with it.
type Evidence struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Run        string `json:"run"`
	// Pods, VMs and Consoles are empty if nothing of them was kept.
	Pods     []PodEvidence     `json:"pods,omitempty"`
	VMs      []VMEvidence      `json:"vms,omitempty"`
	Consoles []ConsoleEvidence `json:"consoles,omitempty"`
}

// PodEvidence is what teardown keeps of a fixture pod that went wrong.
type PodEvidence struct {
	Pod     string `json:"pod"`
	Check   string `json:"check"`
	Node    string `json:"node,omitempty"` // empty: it was not scheduled
	Problem string `json:"problem"`
	// Warning is the last warning event about the pod; empty if there was none.
	Warning string `json:"warning,omitempty"`
	// Log is the end of its log, at most 64 KiB; empty if it did not start.
	Log string `json:"log,omitempty"`
	// Manifest is the Pod as the API server had it.
	Manifest json.RawMessage `json:"manifest,omitempty"`
}

// VMEvidence is what teardown keeps of a VM of a check that did not pass.
type VMEvidence struct {
	VM    string `json:"vm"` // the name of its object
	Check string `json:"check"`
	Node  string `json:"node,omitempty"` // empty: it was not scheduled
	Phase string `json:"phase,omitempty"`
	// Events about the VM and its pod, oldest first, a line each; the last 50.
	Events []string `json:"events,omitempty"`
	// Logs holds the ends of the logs of the pod's containers, at most 64 KiB each: compute is virt-launcher's,
	// guest-console-log that of the serial console since the VM began.
	Logs map[string]string `json:"logs,omitempty"`
	// Manifest and Pod are the VirtualMachineInstance and its Pod as the API server had them; Pod is empty if the VM
	// had none.
	Manifest json.RawMessage `json:"manifest,omitempty"`
	Pod      json.RawMessage `json:"pod,omitempty"`
}

// ConsoleEvidence is what one task received from the consoles of a check's VMs.
type ConsoleEvidence struct {
	Check string `json:"check"`
	// Phase is PhaseSetup or PhaseProbe.
	Phase       Phase        `json:"phase"`
	Transcripts []Transcript `json:"transcripts"`
}

// Transcript is the end of what one task received from the console of a VM, at most 64 KiB.
type Transcript struct {
	// Name of the VM's object, and VM the name that people call it.
	Name string `json:"name"`
	VM   string `json:"vm"`
	Text string `json:"text"`
}
