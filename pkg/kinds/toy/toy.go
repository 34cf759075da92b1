// SPDX-License-Identifier: Apache-2.0

// Package toy is a kind of check for tests: does every node have a label? It proves
// that a kind needs one package and one line in kinds.All. Only tests import it.
package toy

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/kinds"
)

// Name of the kind.
const Name checkup.Kind = "toy"

// Kind has one unit per node, and one block.
var Kind = kind.Kind{
	Name: Name, New: func() checkup.Spec { return &Spec{} },
	Schema: []byte(`package schema

#Check: toy?: #Toy

// A check of the labels of nodes.
#Toy: {
	// Name of the label that each node must have. Default rack.
	label: *"rack" | string
}
`),
	Rules: []kind.Rule{kind.RuleOf("toy-label", func(s *Spec, report kind.Reporter) {
		if s.Label == "" {
			report([]string{"label"}, "is empty: want the name of a label")
		}
	})},
	Survey: func(context.Context, cluster.Reader, *checkup.Plan, *cluster.Snapshot) error { return nil },
	Expand: expand,
	Roster: func(*checkup.Plan, *checkup.Worksheet, *cluster.Snapshot) *checkup.Roster { return &checkup.Roster{} },
	Explain: func(e kind.Explained) kind.Explanation {
		var x kind.Explanation
		x.Field("nodes", checkup.Count(len(e.Worksheet.Units), "node"))
		return x
	},
	Judge: judged,
	Nodes: true,
}

// Add puts the kind into kinds.All until the test ends.
func Add(t testing.TB) {
	before := kinds.All
	t.Cleanup(func() { kinds.All = before })
	kinds.All = append(before[:len(before):len(before)], Kind)
}

// Spec is the parameters of a check.
type Spec struct {
	Label string `json:"label"`
}

// Kind returns Name.
func (s *Spec) Kind() checkup.Kind { return Name }

// Params returns the only tunable, label.
func (s *Spec) Params() []checkup.Param {
	return []checkup.Param{{
		Name: "label", Description: "Name of the label that each node must have", Default: s.Label,
		Write: func(value string) error { s.Label = value; return nil },
	}}
}

// PhaseTimeouts are constant.
func (s *Spec) PhaseTimeouts() checkup.Timeouts {
	const minute = checkup.Duration(60_000_000_000)
	return checkup.Timeouts{Setup: minute, Probe: minute}
}

// Fixtures returns nil: the kind starts nothing.
func (s *Spec) Fixtures() []checkup.Role { return nil }

// details of a worksheet: the value of the label by node, without the nodes that do
// not have it.
type details map[string]string

func expand(p *checkup.Plan, check string, s *cluster.Snapshot) (*checkup.Worksheet, []string, error) {
	spec := p.Checks[check].Spec.(*Spec)
	w := &checkup.Worksheet{Plan: p.Name, Check: check, Kind: Name, Timeouts: spec.PhaseTimeouts()}
	values := details{}
	for _, n := range s.Nodes {
		w.Units = append(w.Units, n.Name)
		if v, ok := n.Labels[spec.Label]; ok {
			values[n.Name] = v
		}
	}
	var err error
	w.Details, err = json.Marshal(values)
	return w, nil, err
}

func judged(w *checkup.Worksheet, _ *checkup.Roster, _ *checkup.Record, gate checkup.Gate) checkup.CheckReport {
	var values details
	if err := json.Unmarshal(w.Details, &values); err != nil {
		return judge.NotMeasured(w.Check, w.Kind, checkup.Cause{Stage: checkup.StageSetup, Message: err.Error()})
	}
	r := checkup.CheckReport{Name: w.Check, Kind: w.Kind, Noun: "node", Complete: true}
	table := &checkup.Table{Noun: "node", Columns: []checkup.Column{{Name: "node"}, {Name: "label"}}}
	for _, node := range w.Units {
		u := checkup.Unit{Name: node, Verdict: checkup.Pass}
		value, ok := values[node]
		if !ok {
			u.Verdict, u.Cause = checkup.Fail, &checkup.Cause{
				Stage:   checkup.StageSetup,
				Message: "the node does not have the label",
			}
			r.Findings = append(r.Findings, checkup.Finding{
				Cause: checkup.CauseNode, Subject: node, Nodes: []string{node}, Explains: 1, OnlyThis: 1,
				Message: fmt.Sprintf("node %s does not have the label", node),
			})
		}
		r.Units = append(r.Units, u)
		r.Counts = judge.Sum(r.Counts, judge.Counted(u.Verdict))
		table.Rows = append(table.Rows, []checkup.Cell{checkup.Text(node), checkup.Text(value)})
	}
	r.Blocks = []checkup.Block{{Title: "Labels", Table: table}}
	r.Verdict = judge.Verdict(r.Counts, gate.MaxUnmeasured)
	return r
}
