// SPDX-License-Identifier: Apache-2.0

package localise

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge/judgetest"
)

// Rewritten source addresses are found where they are rewritten, and nothing else is found.
func TestRewritten(t *testing.T) {
	both := func(p judgetest.Packet, v4, v6 string) string {
		if p.Family == checkup.IPv6 {
			return v6
		}
		return v4
	}
	for _, tt := range []struct {
		name  string
		nodes int
		seen  func(judgetest.Packet) string
		want  []string // findings with their messages
	}{
		{"nowhere", 3, func(judgetest.Packet) string { return "" }, nil},
		{"at a node", 3, func(p judgetest.Packet) string { return when(p.From == 1, both(p, "10.1.2.3", "fd00::3")) },
			[]string{"sourceAddress worker-2: worker-2 rewrites the source address of its pods to 10.1.2.3, fd00::3: masquerade"}},
		{"at a node, in one family", 3, func(p judgetest.Packet) string { return when(p.From == 1, both(p, "10.1.2.3", "")) },
			[]string{"sourceAddress worker-2 (IPv4 only): worker-2 rewrites the source address of its pods to 10.1.2.3: masquerade, IPv4 only"}},
		{"at a node, of one transport", 8, func(p judgetest.Packet) string {
			return when(p.From == 1 && p.Transport == checkup.TCP, both(p, "10.1.2.3", "fd00::3"))
		}, []string{"sourceAddress worker-2 (tcp only): worker-2 rewrites the source address of its pods to 10.1.2.3, fd00::3: masquerade, tcp only"}},
		{"at two of eight nodes", 8, func(p judgetest.Packet) string {
			return when(p.From == 1, "10.1.2.3") + when(p.From == 4, "10.1.2.6")
		}, []string{
			"sourceAddress worker-2: worker-2 rewrites the source address of its pods to 10.1.2.3: source NAT",
			"sourceAddress worker-5: worker-5 rewrites the source address of its pods to 10.1.2.6: source NAT",
		}},
		{"into a node", 8, func(p judgetest.Packet) string { return when(p.To == 4, both(p, "10.9.9.9", "fd00::9")) },
			[]string{"sourceAddress into worker-5: packets into the pods of worker-5 arrive with the source address 10.9.9.9, fd00::9: masquerade"}},
		{"from one node to another", 8, func(p judgetest.Packet) string { return when(p.From == 1 && p.To == 4, both(p, "10.9.9.9", "fd00::9")) },
			[]string{"sourceAddress worker-2 -> worker-5: packets from worker-2 to worker-5 arrive with the source address 10.9.9.9, fd00::9: masquerade"}},
		{"at every node", 3, func(p judgetest.Packet) string { return []string{"10.1.2.1", "10.1.2.2", "10.1.2.3"}[p.From] },
			[]string{"sourceAddress: every node rewrites the source address of its pods, to 10.1.2.1, 10.1.2.2, 10.1.2.3: source NAT"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := judgetest.NewMesh(1, tt.nodes, 0, 0, judgetest.FourTransports())
			n.Worksheet.Expect.SourceAddress, n.Worksheet.Expect.Loss.Max = checkup.PreservedSource, new(checkup.Percent(1))
			n.Seen = tt.seen
			r := judged(n)
			var got []string
			for _, f := range r.Findings {
				got = append(got, judgetest.Kind(f)+": "+f.Message)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s%s", diff, judgetest.Show(r.Findings))
			}
			explains := 0
			for _, f := range r.Findings {
				explains += f.OnlyThis
			}
			if explains != r.Counts.Fail {
				t.Errorf("the findings explain %d of %d failed pairs", explains, r.Counts.Fail)
			}
		})
	}
}

// A node that loses packets and rewrites those that arrive has two findings.
func TestRewrittenAndLost(t *testing.T) {
	n := judgetest.NewMesh(1, 6, 0, 0, judgetest.FourTransports())
	n.Worksheet.Expect.SourceAddress, n.Worksheet.Expect.Loss.Max = checkup.PreservedSource, new(checkup.Percent(1))
	n.Seen = func(p judgetest.Packet) string { return when(p.From == 1, "10.1.2.3") }
	n.Drop = func(p judgetest.Packet) float64 { return judgetest.When(p.To == 3) }
	var got []string
	for _, f := range judged(n).Findings {
		got = append(got, judgetest.Kind(f))
	}
	if diff := cmp.Diff([]string{"nodeIngress worker-4", "sourceAddress worker-2"}, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func when(holds bool, s string) string { return strings.Repeat(s, int(judgetest.When(holds))) }
