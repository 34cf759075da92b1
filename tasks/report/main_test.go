// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/connectivity"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/kiagnose"
	"github.com/checkplan/checkplan/pkg/networkhealth"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/vmlatency"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// newTask is the report step of a run whose only pair was measured: it passed,
// or nothing came through.
func newTask(t *testing.T, passed bool, plan string) (*task.Task, *fake.Clientset, *strings.Builder) {
	client := fake.NewSimpleClientset()
	log := &strings.Builder{}
	tk := &task.Task{
		Kubernetes: client, Namespace: "ns", RunName: "run", RunUID: "uid-1", Stdout: log, Results: t.TempDir(), PlanJSON: plan,
		Outcomes: map[string]task.Outcome{},
	}
	store := tk.Store("day-2")
	frozen := record.Frozen{
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Worksheet: checkup.Worksheet{
			Plan: "day-2", Check: "mesh", Kind: podmesh.Name, Rounds: 1, Degree: 1, Possible: 1, Round: 4,
			Sources: []checkup.Endpoint{{Node: "n0"}}, Targets: []checkup.Endpoint{{Node: "n1"}}, Assignments: [][]int{{0}},
			IPFamilies: []checkup.IPFamily{checkup.IPv4},
			Probes:     []checkup.TransportProbe{{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 1}}},
			Expect:     checkup.Expect{Regression: &checkup.Regression{Runs: 3, MinFactor: 2, Fail: true}},
		},
		Roster: checkup.Roster{Targets: []checkup.RosterEntry{{Pod: "ns/r", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "198.18.0.1"}}}},
	}
	if err := store.Save(t.Context(), record.Worksheet("mesh"), frozen); err != nil {
		t.Fatal(err)
	}
	w := store.Writer("mesh")
	o := checkup.Observation{Sent: 1, Received: 1, RTTs: []int64{100}}
	if !passed {
		o = checkup.Observation{Sent: 1, Failure: &checkup.Cause{Stage: checkup.StageConnect, Message: "timed out"}}
	}
	for p := range frozen.Worksheet.Pairs() {
		o.Pair = p
		w.Observation(o)
	}
	w.Source(checkup.Source{
		End:      &checkup.AgentEnd{Observations: 1},
		Controls: []checkup.Control{{Family: checkup.IPv4, Name: "self", OK: true}, {Family: checkup.IPv4, Name: "closed", OK: true}},
	})
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return tk, client, log
}

func planOf(gate checkup.Requirement, teardown checkup.Teardown) string {
	return `{"name":"day-2","gate":{"require":"` + string(gate) + `","maxUnmeasured":"0%"},"teardown":"` + string(teardown) + `","retention":{"reports":2},"checks":{"mesh":{"podMesh":{
		"probes":{"tcp":{"sizes":[0],"count":1,"interval":"1s","timeout":"1s"}},"sample":{"degree":1,"budget":10},
		"limits":{"packetsPerSecond":10,"concurrency":1,"startJitter":"1s"},"timeouts":{"setup":"1m","probe":"1m"}}}}}`
}

func result(t *testing.T, tk *task.Task, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(tk.Results, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestLabel: the run's label separates a failed network from a tool that failed.
func TestLabel(t *testing.T) {
	broken := map[string]task.Outcome{"setup-mesh": {Status: "Failed", Reason: "Failed"}}
	good := map[string]task.Outcome{"setup-mesh": {Status: "Succeeded"}}
	for _, tt := range []struct {
		verdict  checkup.RunVerdict
		failed   error
		outcomes map[string]task.Outcome
		want     string
	}{
		{checkup.RunPass, nil, good, "pass"},
		{checkup.RunFail, nil, good, "fail"},
		{checkup.RunInconclusive, nil, good, "inconclusive"},
		{checkup.RunInconclusive, nil, broken, "error"},
		{checkup.RunPass, errors.New("left behind"), good, "error"},
		{checkup.RunFail, errors.New("left behind"), broken, "fail"},
	} {
		if got := label(&checkup.Report{Verdict: tt.verdict}, tt.failed, tt.outcomes); got != tt.want {
			t.Errorf("verdict %s, error %v, tasks %v: label %s, want %s", tt.verdict, tt.failed, tt.outcomes, got, tt.want)
		}
	}
}

// TestGate: the step fails when the gate does not admit the verdict, and not
// otherwise; results and report are there either way.
func TestGate(t *testing.T) {
	for _, tt := range []struct {
		passed  bool
		gate    checkup.Requirement
		verdict string
		err     error
	}{
		{true, checkup.RequirePass, "pass", nil},
		{false, checkup.RequirePass, "fail", task.ErrFailed},
		{false, checkup.RequireNoFailure, "fail", task.ErrFailed},
		{false, checkup.RequireNothing, "fail", nil},
	} {
		t.Run(string(tt.gate)+" "+tt.verdict, func(t *testing.T) {
			tk, _, log := newTask(t, tt.passed, planOf(tt.gate, checkup.TeardownAlways))
			if err := run(t.Context(), tk); !errors.Is(err, tt.err) {
				t.Fatalf("%v, want %v; log:\n%s", err, tt.err, log)
			}
			if got := result(t, tk, "verdict"); got != tt.verdict {
				t.Errorf("result verdict is %q, want %q", got, tt.verdict)
			}
			entries, err := os.ReadDir(tk.Results)
			if err != nil {
				t.Fatal(err)
			}
			if len(entries) != len(print.ResultNames) {
				t.Errorf("%d result files, want %d: %v", len(entries), len(print.ResultNames), entries)
			}
			kept, err := record.FindReport(t.Context(), tk.Store("").ConfigMaps, "run")
			if err != nil {
				t.Fatal(err)
			}
			if string(kept.Verdict) != tt.verdict || kept.RunUID != "uid-1" || kept.Namespace != "ns" || kept.Started.IsZero() || kept.Finished.IsZero() {
				t.Errorf("report %+v, want the verdict and which run it is of", kept)
			}
			where := result(t, tk, "report")
			name, ok := strings.CutPrefix(where, "ns/")
			cm, err := tk.Store("").ConfigMaps.Get(t.Context(), name, metav1.GetOptions{})
			if !ok || err != nil {
				t.Fatalf("result report is %q: %v", where, err)
			}
			if got := cm.Annotations[checkup.AnnotationRound+"mesh"]; got != "4" {
				t.Errorf("round is %q, want 4", got)
			}
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if last := lines[len(lines)-1]; !strings.Contains(last, tt.verdict) {
				t.Errorf("the last line is %q, want the verdict", last)
			}
		})
	}
}

// TestHistory: the run is in the history of its plan, and the report says what all runs have covered.
func TestHistory(t *testing.T) {
	tk, _, log := newTask(t, true, planOf(checkup.RequirePass, checkup.TeardownAlways))
	if err := run(t.Context(), tk); err != nil {
		t.Fatalf("%v; log:\n%s", err, log)
	}
	h, err := record.LoadHistory(t.Context(), tk.Store("").ConfigMaps, "day-2")
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Runs) != 1 || h.Runs[0].UID != "uid-1" || h.Runs[0].Checks[0].Pairs == nil || len(h.Digests) != 3 {
		t.Errorf("history %+v, want the run with its pair, and three digests: of the check, n0 and n1", h)
	}
	kept, err := record.FindReport(t.Context(), tk.Store("").ConfigMaps, "run")
	if err != nil {
		t.Fatal(err)
	}
	if c := kept.Checks[0].Cumulative; c == nil || c.Measured != 1 || c.Possible != 1 || c.Runs != 1 || c.Oldest != "n0 -> n1" {
		t.Errorf("coverage of all runs %+v, want the pair", c)
	}
	if !strings.Contains(log.String(), "100% of all pairs measured since 2026-01-02 03:04 UTC, by 1 run: 1 of 1 pairs") {
		t.Errorf("log lacks the coverage of all runs:\n%s", log)
	}
}

// TestRegression: the run is compared with the history, fails as the plan demands, and is known to be worse from then
// on. The step gives the same report when it is retried.
func TestRegression(t *testing.T) {
	tk, _, log := newTask(t, true, planOf(checkup.RequirePass, checkup.TeardownAlways))
	store := tk.Store("day-2")
	var frozen record.Frozen
	if err := store.Load(t.Context(), record.Worksheet("mesh"), &frozen); err != nil {
		t.Fatal(err)
	}
	pair := slices.Collect(frozen.Worksheet.Pairs())[0]
	for i := range 3 {
		earlier := checkup.Report{Plan: "day-2", RunUID: fmt.Sprint("earlier-", i), Finished: time.Unix(int64(i), 0).UTC(),
			Verdict: checkup.RunPass, Checks: []checkup.CheckReport{{Name: "mesh", Verdict: checkup.RunPass,
				Counts: checkup.Counts{Expected: 1, Pass: 1}, Coverage: &checkup.Coverage{Possible: 1}}}}
		entry := history.EntryOf(&earlier, map[string]history.Sheet{"mesh": {
			Worksheet: &frozen.Worksheet,
			Record:    &checkup.Record{Observations: []checkup.Observation{{Pair: pair, Sent: 1, Received: 1, RTTs: []int64{10}}}},
		}})
		if err := store.AddHistory(t.Context(), entry); err != nil {
			t.Fatal(err)
		}
	}
	for try := range 2 {
		if err := run(t.Context(), tk); err == nil {
			t.Errorf("try %d: the step succeeded, want a failed gate; log:\n%s", try, log)
		}
		r, err := record.FindReport(t.Context(), store.ConfigMaps, "run")
		if err != nil {
			t.Fatal(err)
		}
		c := r.Checks[0]
		if r.Verdict != checkup.RunFail || len(c.Findings) != 1 || c.Findings[0].Change == nil || c.Compared == nil || c.Compared.Runs != 3 {
			t.Errorf("try %d: verdict %s, findings %+v, compared %+v; want fail by one finding, with 3 runs",
				try, r.Verdict, c.Findings, c.Compared)
		}
	}
	h, err := record.LoadHistory(t.Context(), store.ConfigMaps, "day-2")
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Runs) != 4 || !h.Runs[3].Checks[0].Regressed || !strings.Contains(h.Findings[0].Finding, "slower than before") {
		t.Errorf("history %+v, want four runs, the last one worse", h)
	}
}

// TestHistoryIsNeverFatal: a corrupt history is set aside with a note in the report, a foreign one is left alone, and
// the verdict stands.
func TestHistoryIsNeverFatal(t *testing.T) {
	ours := map[string]string{checkup.LabelRole: string(checkup.RoleHistory), checkup.LabelPlan: "day-2"}
	for _, tt := range []struct {
		name   string
		labels map[string]string
		note   string
		runs   int
	}{
		{"corrupt", ours, "is not an index", 1},
		{"foreign", nil, "rename or delete it", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tk, client, log := newTask(t, true, planOf(checkup.RequirePass, checkup.TeardownAlways))
			if err := client.Tracker().Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Name: record.HistoryName("day-2"), Namespace: "ns", Labels: tt.labels,
			}}); err != nil {
				t.Fatal(err)
			}
			if err := run(t.Context(), tk); err != nil {
				t.Fatalf("%v; log:\n%s", err, log)
			}
			if got := result(t, tk, "verdict"); got != "pass" {
				t.Errorf("verdict %q, want pass", got)
			}
			kept, err := record.FindReport(t.Context(), tk.Store("").ConfigMaps, "run")
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(kept.Notes, "\n"), tt.note) {
				t.Errorf("notes %q, want %q", kept.Notes, tt.note)
			}
			h, err := record.LoadHistory(t.Context(), tk.Store("").ConfigMaps, "day-2")
			if tt.runs > 0 && (err != nil || len(h.Runs) != tt.runs) || tt.runs == 0 && err == nil {
				t.Errorf("history %+v, %v; want %d runs", h, err, tt.runs)
			}
		})
	}
}

// TestNewerHistory: a history that a newer checkplan wrote stays as it is, with a warning in the log, and the verdict
// stands.
func TestNewerHistory(t *testing.T) {
	text, err := os.ReadFile("../../pkg/record/testdata/history-newer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var stored corev1.ConfigMapList
	if err := yaml.Unmarshal(text, &stored); err != nil {
		t.Fatal(err)
	}
	tk, client, log := newTask(t, true, planOf(checkup.RequirePass, checkup.TeardownAlways))
	for i := range stored.Items {
		stored.Items[i].Namespace = "ns"
		if err := client.Tracker().Add(stored.Items[i].DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(t.Context(), tk); err != nil {
		t.Fatalf("%v; log:\n%s", err, log)
	}
	if got := result(t, tk, "verdict"); got != "pass" {
		t.Errorf("verdict %q, want pass", got)
	}
	if want := "::warning::the history of the plan lacks this run: " + record.ErrNewer.Error(); !strings.Contains(log.String(), want) {
		t.Errorf("log lacks %q:\n%s", want, log)
	}
	kept, err := record.FindReport(t.Context(), tk.Store("").ConfigMaps, "run")
	if err != nil || !strings.Contains(strings.Join(kept.Notes, "\n"), record.ErrNewer.Error()) {
		t.Errorf("report %+v, %v; want a note", kept, err)
	}
	list, err := tk.Store("").ConfigMaps.List(t.Context(), metav1.ListOptions{LabelSelector: checkup.LabelRole + "=" + string(checkup.RoleHistory)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range stored.Items {
		if !slices.ContainsFunc(list.Items, func(cm corev1.ConfigMap) bool { return reflect.DeepEqual(cm, stored.Items[i]) }) {
			t.Errorf("ConfigMap %s was changed", stored.Items[i].Name)
		}
	}
	if len(list.Items) != len(stored.Items) {
		t.Errorf("%d ConfigMaps, want %d", len(list.Items), len(stored.Items))
	}
}

// TestLeftovers: fixtures that are left fail a run that passed, and are named,
// unless the plan keeps them.
func TestLeftovers(t *testing.T) {
	for _, tt := range []struct {
		teardown checkup.Teardown
		err      error
	}{
		{checkup.TeardownAlways, task.ErrSaid}, {checkup.TeardownOnPass, task.ErrSaid}, {checkup.TeardownNever, nil},
	} {
		t.Run(string(tt.teardown), func(t *testing.T) {
			tk, client, log := newTask(t, true, planOf(checkup.RequirePass, tt.teardown))
			if err := client.Tracker().Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: "agent", Namespace: "ns", Labels: map[string]string{checkup.LabelRun: "uid-1", checkup.LabelRole: "agent"},
			}}); err != nil {
				t.Fatal(err)
			}
			if err := run(t.Context(), tk); !errors.Is(err, tt.err) {
				t.Errorf("%v, want %v", err, tt.err)
			}
			if named := strings.Contains(log.String(), "::error::left behind: pod/agent"); named != (tt.err != nil) {
				t.Errorf("named: %v; log:\n%s", named, log)
			}
			if got := result(t, tk, "verdict"); got != "pass" {
				t.Errorf("verdict %q: leftovers are no fact about the network", got)
			}
		})
	}
}

// TestPlaceholders: whatever goes wrong, each result is there, and none says
// pass.
func TestPlaceholders(t *testing.T) {
	tk, _, _ := newTask(t, true, "{")
	if err := run(t.Context(), tk); err == nil || errors.Is(err, task.ErrSaid) {
		t.Errorf("%v, want that there is no plan", err)
	}
	for _, name := range print.ResultNames {
		result(t, tk, name)
	}
	if got := result(t, tk, "verdict"); got != "inconclusive" {
		t.Errorf("verdict %q", got)
	}
}

// TestNotKept: a report that cannot be kept is an error, and the results still
// have the verdict.
func TestNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the retries of 40 s pass at once
		tk, client, log := newTask(t, true, planOf(checkup.RequirePass, checkup.TeardownAlways))
		client.PrependReactor("create", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("etcd: no space")
		})
		if err := run(t.Context(), tk); !errors.Is(err, task.ErrSaid) {
			t.Errorf("%v, want failure", err)
		}
		if !strings.Contains(log.String(), "::error::store the report: ") {
			t.Errorf("log:\n%s", log)
		}
		if v, where := result(t, tk, "verdict"), result(t, tk, "report"); v != "pass" || where != "" {
			t.Errorf("verdict %q, report %q; want pass, and nowhere", v, where)
		}
	})
}

// TestNotPruned: if old reports cannot be deleted, the results name the new one, and the error says what is left.
func TestNotPruned(t *testing.T) {
	tk, client, log := newTask(t, true, planOf(checkup.RequirePass, checkup.TeardownAlways))
	reports := labels.Set{checkup.LabelRole: string(checkup.RoleReport), checkup.LabelPlan: "day-2"}
	client.PrependReactor("list", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		return a.(k8stesting.ListAction).GetListRestrictions().Labels.Matches(reports), nil, errors.New("etcd: timeout")
	})
	if err := run(t.Context(), tk); !errors.Is(err, task.ErrSaid) {
		t.Errorf("%v, want failure", err)
	}
	if !strings.Contains(log.String(), "::error::delete reports beyond retention.reports: ") {
		t.Errorf("log:\n%s", log)
	}
	where := "ns/" + tk.Store("day-2").ReportName()
	if v, got := result(t, tk, "verdict"), result(t, tk, "report"); v != "pass" || got != where {
		t.Errorf("verdict %q, report %q; want pass, and %s", v, got, where)
	}
}

// TestRetire: the objects of pairs that nobody expects any more go when their
// retention is over; where none are written, nobody looks.
func TestRetire(t *testing.T) {
	old := func(name string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetGroupVersionKind(connectivity.Resource.GroupVersion().WithKind(connectivity.Kind))
		u.SetName(name)
		u.SetNamespace("ns")
		u.SetLabels(map[string]string{checkup.LabelManagedBy: checkup.ManagedBy, checkup.LabelPlan: "day-2", checkup.LabelCheck: "mesh"})
		u.SetCreationTimestamp(metav1.Date(1998, 1, 1, 0, 0, 0, 0, time.UTC)) // in the test below, it is 2000
		return u
	}
	for _, tt := range []struct {
		name   string
		sheet  *checkup.ConnectionSheet
		broken error
		left   int
		err    string
	}{
		{name: "of another kind", left: 1},
		{name: "none are written", sheet: &checkup.ConnectionSheet{}, left: 1},
		{name: "none could be written", sheet: &checkup.ConnectionSheet{Unwritten: "no CRD", Checks: checkup.ConnectivityChecks{Write: true}}, left: 1},
		{name: "retention is over", sheet: &checkup.ConnectionSheet{Checks: checkup.ConnectivityChecks{Write: true}}},
		{name: "the API server is away", sheet: &checkup.ConnectionSheet{Checks: checkup.ConnectivityChecks{Write: true}}, left: 1,
			broken: errors.New("no route to host"), err: "::error::retire objects of pairs: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tk, _, log := newTask(t, true, planOf(checkup.RequireNothing, checkup.TeardownAlways))
			var frozen record.Frozen
			store := tk.Store("day-2")
			if err := store.Load(t.Context(), record.Worksheet("mesh"), &frozen); err != nil {
				t.Fatal(err)
			}
			frozen.Worksheet.Connections = tt.sheet
			if err := store.Save(t.Context(), record.Worksheet("mesh"), frozen); err != nil {
				t.Fatal(err)
			}
			objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{connectivity.Resource: connectivity.Kind + "List"}, old("gone"))
			objects.PrependReactor("delete", "*", func(k8stesting.Action) (bool, runtime.Object, error) { return tt.broken != nil, nil, tt.broken })
			tk.Dynamic = objects
			synctest.Test(t, func(t *testing.T) { // trouble lasts for as long as retiring may take
				if err := run(t.Context(), tk); (err != nil) != (tt.err != "") {
					t.Errorf("%v, want failure: %v; log:\n%s", err, tt.err != "", log)
				}
			})
			if !strings.Contains(log.String(), tt.err) {
				t.Errorf("the log does not say %q:\n%s", tt.err, log)
			}
			result(t, tk, "verdict")
			left, err := objects.Resource(connectivity.Resource).Namespace("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(left.Items) != tt.left {
				t.Errorf("%d objects are left, want %d", len(left.Items), tt.left)
			}
		})
	}
}

// TestHealth: the pairs of a run have PodNetworkHealths if the plan enables them and setup could prepare them; the run
// passes without them, too.
func TestHealth(t *testing.T) {
	on := strings.Replace(planOf(checkup.RequirePass, checkup.TeardownAlways), `"checks"`,
		`"features":{"PodNetworkHealth":true},"podNetworkHealth":{"maxObjects":5,"staleAfter":"1h","expireAfter":"2h"},"checks"`, 1)
	for _, tt := range []struct {
		name, plan, unwritten string
		broken                error
		want                  []string // what is applied, by subresource
		log                   string
	}{
		{name: "off", plan: planOf(checkup.RequirePass, checkup.TeardownAlways)},
		{name: "on", plan: on, want: []string{"", "status"}, log: "1 PodNetworkHealth of this plan, 0 objects deleted, 0 pairs without one"},
		{name: "setup could not install the CRD", plan: on, unwritten: "no right"},
		{name: "the API server refuses", plan: on, broken: errors.New("no route to host"),
			log: "::warning::PodNetworkHealths are not up to date: 1 of 1 changes of PodNetworkHealths could not be made: write PodNetworkHealth n0-to-n1-"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tk, _, log := newTask(t, true, tt.plan)
			var frozen record.Frozen
			store := tk.Store("day-2")
			if err := store.Load(t.Context(), record.Worksheet("mesh"), &frozen); err != nil {
				t.Fatal(err)
			}
			frozen.Worksheet.HealthUnwritten = tt.unwritten
			if err := store.Save(t.Context(), record.Worksheet("mesh"), frozen); err != nil {
				t.Fatal(err)
			}
			var applied []string
			objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{networkhealth.Resource: networkhealth.Kind + "List"})
			objects.PrependReactor("patch", networkhealth.Resource.Resource, func(a k8stesting.Action) (bool, runtime.Object, error) {
				if tt.broken == nil {
					applied = append(applied, a.GetSubresource())
				}
				return true, &unstructured.Unstructured{}, tt.broken
			})
			tk.Dynamic = objects
			synctest.Test(t, func(t *testing.T) {
				if err := run(t.Context(), tk); err != nil {
					t.Errorf("%v; log:\n%s", err, log)
				}
			})
			if !slices.Equal(applied, tt.want) {
				t.Errorf("applied %q, want %q; log:\n%s", applied, tt.want, log)
			}
			if !strings.Contains(log.String(), tt.log) {
				t.Errorf("the log does not say %q:\n%s", tt.log, log)
			}
			if said := strings.Contains(log.String(), networkhealth.Kind); said != (tt.log != "") {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}

// TestTeardownBroke: a teardown that failed is reported even if nothing is left.
func TestTeardownBroke(t *testing.T) {
	tk, _, log := newTask(t, true, planOf(checkup.RequirePass, checkup.TeardownAlways))
	tk.TeardownExitCode = filepath.Join(t.TempDir(), "absent")
	if err := run(t.Context(), tk); !errors.Is(err, task.ErrSaid) {
		t.Errorf("%v, want failure", err)
	}
	if !strings.Contains(log.String(), "::error::teardown did not finish") {
		t.Errorf("log:\n%s", log)
	}
}

// TestKiagnose: the ConfigMap of a kiagnose checkup gets its keys, also where setup
// failed or something is left behind, and one that is not there fails the step.
func TestKiagnose(t *testing.T) {
	const plan = `{"name":"day-2","gate":{"require":"Pass","maxUnmeasured":"0%"},"teardown":"Always","retention":{"reports":2},"checks":{"latency":{"vmLatency":{
		"networks":[{"namespace":"default","name":"br10"}],"ipFamilies":["IPv4"],"duration":"5s","interval":"200ms","guest":{"memory":"128Mi"},
		"timeouts":{"setup":"1m","probe":"1m"},"kiagnose":{"namespace":"team","name":"checkup"}}}}}`
	cause := &checkup.Cause{Stage: checkup.StageSetup, Message: "NetworkAttachmentDefinition default/br10 does not exist"}
	vm := func(target bool) checkup.Endpoint {
		return checkup.Endpoint{Label: map[bool]string{true: "target", false: "source"}[target], VM: &checkup.VM{Target: target}}
	}
	frozen := record.Frozen{
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Worksheet: checkup.Worksheet{
			Plan: "day-2", Check: "latency", Kind: vmlatency.Name, Rounds: 1, Degree: 1, Possible: 2,
			Sources: []checkup.Endpoint{vm(false), vm(true)}, Targets: []checkup.Endpoint{vm(false), vm(true)}, Assignments: [][]int{{1}, {0}},
			IPFamilies: []checkup.IPFamily{checkup.IPv4}, Guests: &checkup.GuestSheet{Duration: checkup.Duration(5 * time.Second)},
			Probes: []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{56}, Count: 25, Interval: checkup.Duration(200 * time.Millisecond)}}},
		},
	}
	unmet := frozen
	unmet.Worksheet.Sources = []checkup.Endpoint{{Label: "source", VM: &checkup.VM{}, Cause: cause}, {Label: "target", VM: &checkup.VM{Target: true}, Cause: cause}}
	unmet.Worksheet.Targets = unmet.Worksheet.Sources
	measured := frozen
	measured.Roster = checkup.Roster{Targets: []checkup.RosterEntry{
		{Pod: "ns/a", Node: "n1", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.1"}},
		{Pod: "ns/b", Node: "n2", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.2"}},
	}}
	for _, tt := range []struct {
		name   string
		frozen *record.Frozen
		pod    string // left behind
		gone   bool
		want   map[string]string // "" is that there is no such key
		log    string
		err    error
	}{
		{"setup did not finish", nil, "", false, map[string]string{
			kiagnose.KeySucceeded: "false", kiagnose.KeyFailureReason: "setup: task setup-latency did not finish", kiagnose.KeyMinLatency: "",
			"spec.timeout": "5m", kiagnose.KeyStartTimestamp: "2026-01-01T00:00:00Z",
		}, "the outcome is in ConfigMap team/checkup", task.ErrSaid},
		{"a prerequisite is not met", &unmet, "", false, map[string]string{
			kiagnose.KeySucceeded: "false", kiagnose.KeyFailureReason: "setup: NetworkAttachmentDefinition default/br10 does not exist", kiagnose.KeySourceNode: "", kiagnose.KeyDuration: "",
		}, "", task.ErrSaid},
		{"measured", &measured, "", false, map[string]string{
			kiagnose.KeySucceeded: "true", kiagnose.KeyFailureReason: "", kiagnose.KeyMinLatency: "1000000", kiagnose.KeyAvgLatency: "1000000", kiagnose.KeyMaxLatency: "1000000",
			kiagnose.KeyDuration: "5", kiagnose.KeyDurations: "5", kiagnose.KeySourceNode: "n1", kiagnose.KeyTargetNode: "n2",
		}, "", nil},
		{"measured, but left behind", &measured, "agent", false, map[string]string{
			kiagnose.KeySucceeded: "false", kiagnose.KeyFailureReason: "teardown: left behind: pod/agent", kiagnose.KeyMinLatency: "1000000",
		}, "", task.ErrSaid},
		{"the ConfigMap is gone", &measured, "", true, nil, "::error::check latency: read ConfigMap team/checkup of the checkup", task.ErrSaid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := fake.NewSimpleClientset()
			log := &strings.Builder{}
			tk := &task.Task{
				Kubernetes: client, KubeVirt: kubevirtfake.NewSimpleClientset().KubevirtV1(), Namespace: "ns", RunName: "run", RunUID: "uid-1",
				Stdout: log, Results: t.TempDir(), PlanJSON: plan, Outcomes: map[string]task.Outcome{},
			}
			if !tt.gone {
				if err := client.Tracker().Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "checkup", Namespace: "team"},
					Data: map[string]string{"spec.timeout": "5m", kiagnose.KeyStartTimestamp: "2026-01-01T00:00:00Z"}}); err != nil {
					t.Fatal(err)
				}
			}
			if tt.pod != "" {
				if err := client.Tracker().Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Name: tt.pod, Namespace: "ns", Labels: map[string]string{checkup.LabelRun: "uid-1", checkup.LabelRole: "agent"},
				}}); err != nil {
					t.Fatal(err)
				}
			}
			if tt.frozen != nil {
				store := tk.Store("day-2")
				if err := store.Save(t.Context(), record.Worksheet("latency"), tt.frozen); err != nil {
					t.Fatal(err)
				}
				w := store.Writer("latency")
				for source := range 2 {
					w.Source(checkup.Source{
						Source: source, End: &checkup.AgentEnd{Observations: 1},
						Controls: []checkup.Control{{Family: checkup.IPv4, Name: "self", OK: true}, {Family: checkup.IPv4, Name: "closed", OK: true}},
					})
				}
				for p := range tt.frozen.Worksheet.Pairs() {
					n := tt.frozen.Worksheet.Measurements(p)
					w.Observation(checkup.Observation{Pair: p, Sent: n, Received: n, RTTs: slices.Repeat([]int64{1000}, n)})
				}
				if err := w.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := run(t.Context(), tk); !errors.Is(err, tt.err) {
				t.Errorf("%v, want %v; log:\n%s", err, tt.err, log)
			}
			if !strings.Contains(log.String(), tt.log) {
				t.Errorf("the log does not say %q:\n%s", tt.log, log)
			}
			if tt.gone {
				return
			}
			cm, err := client.CoreV1().ConfigMaps("team").Get(t.Context(), "checkup", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for key, want := range tt.want {
				if cm.Data[key] != want {
					t.Errorf("%s is %q, want %q", key, cm.Data[key], want)
				}
			}
		})
	}
}
