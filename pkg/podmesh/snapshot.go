// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// SnapshotKind is the kind of a recorded snapshot; its apiVersion is
// checkup.APIVersion.
const SnapshotKind = "Snapshot"

// Snapshot is what Expand needs to know of a cluster, and no more. Its slices
// are sorted, so that the same cluster gives the same bytes.
type Snapshot struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// ServerVersion of the API server, such as v1.35.0. Empty where the survey
	// had no right to ask; nothing depends on it.
	ServerVersion string `json:"serverVersion,omitempty"`
	// Nodes by name: every node of the cluster.
	Nodes []Node `json:"nodes"`
	// Selections of existing pods, one for each targets.pods of the plan that
	// was surveyed. A selection that is missing was not looked up; one without
	// pods matched nothing.
	Selections []Selection `json:"selections,omitempty"`
	// Rounds that the reports in the cluster tell, oldest first. Empty where no
	// check of the plan rotates.
	Rounds []RecordedRound `json:"rounds,omitempty"`
}

// Node is one node of the cluster, in the words of corev1.Node.
type Node struct {
	Name          string            `json:"name"`
	Labels        map[string]string `json:"labels,omitempty"`
	Taints        []corev1.Taint    `json:"taints,omitempty"` // without timeAdded
	Unschedulable bool              `json:"unschedulable,omitempty"`
	// Ready is the status of the condition Ready: True, False or Unknown, which
	// it is too where the node has no such condition.
	Ready       corev1.ConditionStatus `json:"ready"`
	PodCIDRs    []string               `json:"podCIDRs,omitempty"`
	InternalIPs []string               `json:"internalIPs,omitempty"`
	// Pods is how many pods the node takes (status.allocatable.pods); nil where
	// the node does not tell.
	Pods *int64 `json:"pods,omitempty"`
}

// Selection is what one targets.pods chose. Namespace and Selector are as in
// the plan: an empty namespace is the run's own.
type Selection struct {
	Namespace string `json:"namespace,omitempty"`
	// Selector in the spelling of kubectl's --selector.
	Selector string `json:"selector"`
	// Pods by namespace/name, without those that have ended.
	Pods []Pod `json:"pods,omitempty"`
}

// Pod is an existing pod.
type Pod struct {
	Name string `json:"name"` // namespace/name
	// Node is empty while the pod is not scheduled.
	Node  string   `json:"node,omitempty"`
	IPs   []string `json:"ips,omitempty"`
	Ready bool     `json:"ready,omitempty"`
}

// RecordedRound is the round that one report tells of one check.
type RecordedRound struct {
	Plan    string    `json:"plan"`
	Check   string    `json:"check"`
	Round   int       `json:"round"`
	Created time.Time `json:"created"`
}

// EncodeSnapshot writes a snapshot as indented JSON: the same bytes for the
// same snapshot.
func EncodeSnapshot(s *Snapshot) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(s); err != nil {
		return nil, fmt.Errorf("write snapshot: %w", err)
	}
	return b.Bytes(), nil
}

// DecodeSnapshot reads what EncodeSnapshot wrote. It is strict: it reports
// every unknown, misspelled or repeated field, and whatever Expand could not
// work with, all at once.
func DecodeSnapshot(data []byte) (*Snapshot, error) {
	const attempt = "read snapshot"
	// The version first: fields that another version has are not the problem
	// that its reader wants to hear of.
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		return nil, fmt.Errorf("%s: not a JSON object of a snapshot: %w", attempt, err)
	}
	if head.Kind != SnapshotKind {
		return nil, fmt.Errorf("%s: kind is %q, want %q: such a file is written by planner explain --record", attempt, head.Kind, SnapshotKind)
	}
	if head.APIVersion != checkup.APIVersion {
		return nil, fmt.Errorf("%s: apiVersion is %q, but this planner reads %q: record it again with planner explain --record", attempt, head.APIVersion, checkup.APIVersion)
	}
	var s Snapshot
	problems, err := kjson.UnmarshalStrict(data, &s, kjson.DisallowUnknownFields, kjson.DisallowDuplicateFields)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", attempt, err)
	}
	problems = append(problems, s.problems()...)
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s: %w", attempt, errors.Join(problems...))
	}
	s.sort()
	return &s, nil
}

// problems returns what makes the snapshot unusable.
func (s *Snapshot) problems() []error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	nodes := map[string]int{}
	for i, n := range s.Nodes {
		if n.Name == "" {
			add("nodes[%d].name: missing", i)
			continue
		}
		if first, ok := nodes[n.Name]; ok {
			add("nodes[%d].name: %q is already the name of nodes[%d]", i, n.Name, first)
			continue
		}
		nodes[n.Name] = i
		switch n.Ready {
		case corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown:
		default:
			add("nodes[%d].ready: %q is none of True, False, Unknown", i, n.Ready)
		}
	}
	selections := map[[2]string]int{}
	for i, sel := range s.Selections {
		key := [2]string{sel.Namespace, sel.Selector}
		if first, ok := selections[key]; ok {
			add("selections[%d]: the same namespace and selector as selections[%d]", i, first)
		}
		selections[key] = i
		pods := map[string]int{}
		for j, p := range sel.Pods {
			if p.Name == "" {
				add("selections[%d].pods[%d].name: missing", i, j)
			} else if first, ok := pods[p.Name]; ok {
				add("selections[%d].pods[%d].name: %q is already the name of pods[%d]", i, j, p.Name, first)
			} else {
				pods[p.Name] = j
			}
			if _, ok := nodes[p.Node]; p.Node != "" && !ok {
				add("selections[%d].pods[%d].node: no node is named %q", i, j, p.Node)
			}
		}
	}
	for i, r := range s.Rounds {
		if r.Round < 0 {
			add("rounds[%d].round: is %d, want 0 or more", i, r.Round)
		}
	}
	return problems
}

// sort puts the snapshot's slices in their order.
func (s *Snapshot) sort() {
	slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Selections, func(a, b Selection) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Selector, b.Selector))
	})
	for _, sel := range s.Selections {
		slices.SortFunc(sel.Pods, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	}
	slices.SortFunc(s.Rounds, compareRounds)
}

// compareRounds orders recorded rounds from the oldest to the newest.
func compareRounds(a, b RecordedRound) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Plan, b.Plan), cmp.Compare(a.Check, b.Check), cmp.Compare(a.Round, b.Round))
}
