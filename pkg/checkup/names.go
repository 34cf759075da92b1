// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Labels on every object that a run creates. The limits on plan and check names make
// their values valid label values.
const (
	// LabelPlan holds the plan's name. Pipelines have it too. Tekton copies it to
	// PipelineRuns, TaskRuns and their pods.
	LabelPlan = "checkplan.dev/plan"
	// LabelCheck holds the check's name.
	LabelCheck = "checkplan.dev/check"
	// LabelVerdict holds the verdict on PipelineRuns, written by the report step: a RunVerdict, or VerdictError. The
	// dashboard shows the first four labels of a run in its header, in the order of their names; the others follow a
	// click (0.71, packages/components/src/components/LabelsWithOverflow). This one is the third, before LabelScheduled: a
	// run has no LabelManagedBy, to leave a place to Argo CD's app.kubernetes.io/instance. It also copies all labels to a
	// rerun, so setup removes it.
	LabelVerdict = "checkplan.dev/run-verdict"
	// LabelRun holds the UID of the PipelineRun.
	LabelRun = "checkplan.dev/run"
	// LabelRole holds the object's Role.
	LabelRole = "checkplan.dev/role"
	// LabelIn is the prefix of a label of fixtures. The label LabelIn + "<name>" is "true" on those that the Service of
	// that name selects.
	LabelIn = "in.checkplan.dev/"
	// LabelScheduled is "true" on PipelineRuns that the schedule of a plan started. Retention deletes them only.
	LabelScheduled = "checkplan.dev/scheduled"
	// AnnotationRound is the prefix of an annotation on report objects. The annotation
	// AnnotationRound + "<check>" holds the round that the check measured.
	AnnotationRound = "round.checkplan.dev/"
	// LabelManagedBy is a recommended label of Kubernetes; its value is ManagedBy.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "checkplan"
	// LabelPodSecurity is the label of a namespace that names the Pod Security Standard
	// which Kubernetes enforces in it.
	LabelPodSecurity = "pod-security.kubernetes.io/enforce"
)

// Role is the purpose of an object of a run.
type Role string

const (
	RoleResponder Role = "responder" // pod; fixture
	RoleAgent     Role = "agent"     // pod and its ConfigMap; fixture
	RolePreflight Role = "preflight" // pod that tests a network before VMs are attached to it; fixture
	RoleService   Role = "service"   // Service over responders; fixture
	RoleGuest     Role = "guest"     // VM, its pod, and the ConfigMap that owns the VMs; fixture
	RoleWorksheet Role = "worksheet" // ConfigMap: worksheet and roster; belongs to the PipelineRun
	RoleRecord    Role = "record"    // ConfigMaps: observations; belong to the PipelineRun
	RoleReport    Role = "report"    // ConfigMaps: the report; kept for the plan's history
	RoleHistory   Role = "history"   // ConfigMaps: what the runs of a plan hand to the next
	RoleEvidence  Role = "evidence"  // ConfigMaps: logs and manifests of failed pods and VMs; belong to the PipelineRun
)

// FixtureRoles are the roles of objects that teardown removes.
var FixtureRoles = []Role{RoleResponder, RoleAgent, RolePreflight, RoleService, RoleGuest}

// ObjectName returns the name of an object of a run. The same arguments give the same
// name; a retry thus finds the objects of an earlier try. The name is a DNS label of
// at most 63 characters: "<check>-<role>-<hash of all arguments>". part distinguishes
// the objects of one role (a node's name, a chunk's number) and may be empty.
func ObjectName(runUID, check string, role Role, part string) string {
	sum := sha256.Sum256([]byte(runUID + "\x00" + check + "\x00" + string(role) + "\x00" + part))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:12])
	name := string(role) + "-" + hash
	if check != "" {
		name = check + "-" + name
	}
	return name
}

// AccountName names the ServiceAccount of a phase of a plan.
func AccountName(plan string, phase Phase) string { return plan + "-" + string(phase) }

// PlanOfAccount returns the plan that has an account of this name, for a phase or for its schedule; empty if none can
// have one. No plan may have such a name: its own account would have the rights of both.
func PlanOfAccount(account string) string {
	for _, of := range append(slices.Clone(Phases), "schedule") {
		if plan, ok := strings.CutSuffix(account, AccountName("", of)); ok {
			return plan
		}
	}
	return ""
}

// ConnectivityName returns the name of the PodNetworkConnectivityCheck of a pair: a
// DNS subdomain "<source>-to-<target>-<port>". OpenShift's names have no port; with
// it, two ports of one target have an object each. The name depends on the two
// endpoints only and stays the same from run to run. It ends with a hash of all that
// identifies the pair if it would be invalid, too long or ambiguous (a label that
// contains "-to-").
func ConnectivityName(source, target Endpoint) string {
	raw := source.Name() + "-to-" + target.Name()
	if target.Peer != nil {
		raw += fmt.Sprintf("-%d", target.Peer.Port)
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, raw)
	ambiguous := strings.Contains(source.Name()+"-", "-to-") || strings.Contains("-"+target.Name(), "-to-")
	if name == raw && len(name) <= maxSubdomain && dnsSubdomain.MatchString(name) && !ambiguous {
		return name
	}
	sum := sha256.Sum256([]byte(source.Name() + "\x00" + raw))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:8])
	name = strings.Trim(name[:min(len(name), maxSubdomain-1-len(hash))], "-.")
	for _, dot := range []string{"..", ".-", "-."} {
		for strings.Contains(name, dot) {
			name = strings.ReplaceAll(name, dot, "-")
		}
	}
	return name + "-" + hash
}

// maxSubdomain is the longest DNS subdomain that Kubernetes accepts as a name.
const maxSubdomain = 253

// dnsSubdomain matches DNS subdomains (RFC 1123) in lower case.
var dnsSubdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
