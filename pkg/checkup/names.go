// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// Labels on every object that a run makes. Values are valid label values by
// the limits on plan and check names.
const (
	// LabelPlan holds the plan's name. It is on Pipelines too, and so on runs,
	// TaskRuns and their pods, to which Tekton copies it.
	LabelPlan = "checkplan.dev/plan"
	// LabelCheck holds the check's name.
	LabelCheck = "checkplan.dev/check"
	// LabelRun holds the UID of the PipelineRun.
	LabelRun = "checkplan.dev/run"
	// LabelRole holds what the object is for: a Role.
	LabelRole = "checkplan.dev/role"
	// LabelRound holds the round that a report's check measured, on report
	// objects: "<LabelRound>.<check>" as annotation.
	AnnotationRound = "round.checkplan.dev/"
	// LabelManagedBy is Kubernetes' own recommended label; its value is ManagedBy.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "checkplan"
)

// Role is what an object of a run is for.
type Role string

const (
	RoleResponder Role = "responder" // pod; fixture
	RoleAgent     Role = "agent"     // pod and its ConfigMap; fixture
	RoleWorksheet Role = "worksheet" // ConfigMap: worksheet and roster; belongs to the PipelineRun
	RoleRecord    Role = "record"    // ConfigMaps: observations; belong to the PipelineRun
	RoleReport    Role = "report"    // ConfigMaps: the report; kept for the plan's history
	RoleEvidence  Role = "evidence"  // ConfigMaps: logs and manifests of what went wrong; belong to the PipelineRun
)

// FixtureRoles are the roles of objects that teardown removes.
var FixtureRoles = []Role{RoleResponder, RoleAgent}

// ObjectName names an object of a run: the same for the same arguments, so that
// a retry finds what an earlier try made. It is a DNS label of at most 63
// characters: "<check>-<role>-<hash of run UID and part>". part tells objects
// of one role apart (a node's name, a chunk's number) and may be empty.
func ObjectName(runUID, check string, role Role, part string) string {
	sum := sha256.Sum256([]byte(runUID + "\x00" + check + "\x00" + string(role) + "\x00" + part))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:12])
	name := string(role) + "-" + hash
	if check != "" {
		name = check + "-" + name
	}
	return name
}
