// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"regexp"
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
	// LabelPodSecurity is Kubernetes' own label by which a namespace says which pod
	// security standard is enforced in it.
	LabelPodSecurity = "pod-security.kubernetes.io/enforce"
)

// Role is what an object of a run is for.
type Role string

const (
	RoleResponder Role = "responder" // pod; fixture
	RoleAgent     Role = "agent"     // pod and its ConfigMap; fixture
	RolePreflight Role = "preflight" // pod that is attached to a network before VMs are; fixture
	RoleGuest     Role = "guest"     // VM, its pod, and the ConfigMap that owns the VMs; fixture
	RoleWorksheet Role = "worksheet" // ConfigMap: worksheet and roster; belongs to the PipelineRun
	RoleRecord    Role = "record"    // ConfigMaps: observations; belong to the PipelineRun
	RoleReport    Role = "report"    // ConfigMaps: the report; kept for the plan's history
	RoleEvidence  Role = "evidence"  // ConfigMaps: logs and manifests of what went wrong; belong to the PipelineRun
)

// FixtureRoles are the roles of objects that teardown removes.
var FixtureRoles = []Role{RoleResponder, RoleAgent, RolePreflight, RoleGuest}

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

// ConnectivityName names the PodNetworkConnectivityCheck of a pair: a DNS
// subdomain "<source>-to-<target>-<port>", as OpenShift's are but for the port,
// without which two ports of one target would share an object. It depends on the
// two endpoints only, so that it stays the same from run to run; where it does
// not say everything (a label that is no DNS name, is too long, or has "-to-" in
// it), a hash of all
// that tells the pair apart stands at its end.
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

// maxSubdomain is the longest DNS subdomain that Kubernetes takes as a name.
const maxSubdomain = 253

// dnsSubdomain is a DNS subdomain as RFC 1123 allows it, in lower case.
var dnsSubdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// Count is a number with its noun, in the plural unless it is one: "1 node", "2 nodes".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
