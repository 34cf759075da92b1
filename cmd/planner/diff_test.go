// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/run"
)

// TestDiffOfRunsInTheCluster: the history of the plan adds nodes, zones and single pairs; if it cannot be read, the
// reports are compared without it.
func TestDiffOfRunsInTheCluster(t *testing.T) {
	client := fake.NewSimpleClientset()
	store := record.Store{ConfigMaps: client.CoreV1().ConfigMaps("ns"), Plan: "p"}
	nodes := []checkup.Endpoint{{Node: "a", Zone: "east"}, {Node: "b", Zone: "west"}}
	w := &checkup.Worksheet{Plan: "p", Check: "mesh", Possible: 2, Rounds: 1, Sources: nodes, Targets: nodes, Assignments: [][]int{{1}, {0}},
		IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes:     []checkup.TransportProbe{{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 2}}}}
	var reports [2]*checkup.Report
	for i, us := range []int64{400, 9000} {
		record := &checkup.Record{}
		for p := range w.Pairs() {
			o := checkup.Observation{Pair: p, Sent: 2, Received: 2, RTTs: []int64{400, 400}}
			if p.Source == 0 {
				o.RTTs = []int64{us, us}
			}
			record.Observations = append(record.Observations, o)
		}
		reports[i] = &checkup.Report{Plan: "p", Run: fmt.Sprint("run-", i), RunUID: fmt.Sprint("uid-", i), Started: time.Unix(int64(i), 0), Verdict: checkup.RunPass,
			Checks: []checkup.CheckReport{{Name: "mesh", Noun: "pair", Verdict: checkup.RunPass, Counts: checkup.Counts{Expected: 2, Pass: 2}}}}
		entry := history.EntryOf(reports[i], map[string]history.Sheet{"mesh": {Worksheet: w, Record: record}})
		if err := store.AddHistory(t.Context(), entry); err != nil {
			t.Fatal(err)
		}
	}
	compare := func() (out, warnings string) {
		var stdout, stderr strings.Builder
		env := &environment{stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }}
		d := checkup.Compare(reports[0], reports[1])
		env.slower(t.Context(), &run.Cluster{Kube: client, Namespace: "ns"}, d, reports)
		if err := print.Diff(&stdout, d, print.TextOptions{}); err != nil {
			t.Fatal(err)
		}
		_, out, _ = strings.Cut(stdout.String(), "\n\n")
		return out, stderr.String()
	}
	const want = `Check mesh: pass in both
  slower, or with more loss: nodes and zones (delays to 10%)
    from a udp IPv4 64B: p50 8.557ms, was 368µs; p90 8.557ms, was 368µs; loss 0%, was 0%
    to b udp IPv4 64B: p50 8.557ms, was 368µs; p90 8.557ms, was 368µs; loss 0%, was 0%
    zone east to zone west udp IPv4 64B: p50 8.557ms, was 368µs; p90 8.557ms, was 368µs; loss 0%, was 0%
  slower, or with more loss: pairs that do not fail
    a -> b udp IPv4 64B: p50 9.412ms, was 405µs; loss 0%, was 0%
`
	if out, warnings := compare(); out != want || warnings != "" {
		t.Errorf("printed\n%s\nwant\n%s\nwarnings %q", out, want, warnings)
	}
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.ConfigMap{}, errors.New("no right\x1b[2J")
	})
	out, warnings := compare()
	if !strings.Contains(out, "nothing is new, gone or slower") || !strings.Contains(warnings, "warning: nodes, zones and single pairs are not compared") ||
		strings.Contains(warnings, "\x1b") {
		t.Errorf("without a history: printed\n%s\nwarnings %q", out, warnings)
	}
}

// TestHostileReport: a report that the cluster holds is an error if no printer can print it, or if it is of another
// version.
func TestHostileReport(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*checkup.Report)
		want  string
	}{
		{"as it was written", func(*checkup.Report) {}, ""},
		{"a matrix without cells", func(r *checkup.Report) { r.Checks[0].Matrix = &checkup.Matrix{Sources: []string{"a", "b"}} }, "0 rows for 2 sources"},
		{"another version", func(r *checkup.Report) { r.APIVersion = "checkplan.dev/v2" }, `apiVersion "checkplan.dev/v2"`},
		{"another kind", func(r *checkup.Report) { r.Kind = "Plan" }, `kind "Plan"`},
	} {
		client := fake.NewSimpleClientset()
		store := record.Store{ConfigMaps: client.CoreV1().ConfigMaps("ns"), Plan: "p", Run: "p-1", RunUID: "u"}
		r := &checkup.Report{
			APIVersion: checkup.APIVersion, Kind: checkup.ReportKind, Plan: "p", Run: "p-1", RunUID: "u", Verdict: checkup.RunPass,
			Checks: []checkup.CheckReport{{Name: "mesh", Verdict: checkup.RunPass}},
		}
		tt.spoil(r)
		if err := store.SaveReport(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		_, err := storedReport(t.Context(), &run.Cluster{Kube: client, Namespace: "ns"}, "p-1")
		if got := fmt.Sprint(err); tt.want == "" && err != nil || !strings.Contains(got, tt.want) ||
			err != nil && !strings.Contains(got, "is not valid") {
			t.Errorf("%s: got %v, want that the report is not valid: %q", tt.name, err, tt.want)
		}
	}
}
