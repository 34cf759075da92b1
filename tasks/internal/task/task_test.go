// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/placement"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/record"
)

var environment = map[string]string{
	"NAMESPACE": "ns", "RUN_NAME": "day-2-run-1", "RUN_UID": "uid-1", "POD_NAME": "pod", "POD_UID": "uid-2",
	"PLAN": `{"name":"day-2"}`, "AGENT_IMAGE": "registry.example/agent:v1", "GUEST_IMAGE": "registry.example/guest:v1", "TEARDOWN_EXIT_CODE_FILE": "/tekton/code",
}

func getenv(of map[string]string) func(string) string {
	return func(name string) string { return of[name] }
}

func TestNew(t *testing.T) {
	got, err := New([]string{
		"--check", "mesh", "--timeout", "4m", "--results=/r",
		"--task=setup-mesh=Succeeded/Succeeded", "--task=probe-mesh=None/", "mesh.degree=3", "mesh.latency.p99=", "gate=Pass",
	}, getenv(environment), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := &Task{
		Namespace: "ns", RunName: "day-2-run-1", RunUID: "uid-1", PodName: "pod", PodUID: "uid-2",
		AgentImage: "registry.example/agent:v1", GuestImage: "registry.example/guest:v1", PlanJSON: `{"name":"day-2"}`, TeardownExitCode: "/tekton/code",
		Settings: []string{"mesh.degree=3", "mesh.latency.p99=", "gate=Pass"},
		Check:    "mesh", Timeout: 4 * time.Minute, Results: "/r",
		Outcomes: map[string]Outcome{"setup-mesh": {"Succeeded", "Succeeded"}, "probe-mesh": {"None", ""}},
		Stdout:   io.Discard,
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Task{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNewWrong(t *testing.T) {
	for _, tt := range []struct {
		name    string
		args    []string
		without []string
		want    []string
	}{
		{"no timeout", nil, nil, []string{"--timeout: want a duration, such as 4m"}},
		{"bad timeout", []string{"--timeout=soon"}, nil, []string{`invalid value "soon" for flag -timeout`}},
		{"unknown flag", []string{"--timeout=4m", "--chek=x"}, nil, []string{"not defined: -chek"}},
		{"bad outcome", []string{"--timeout=4m", "--task=setup-mesh"}, nil, []string{"want TASK=STATUS/REASON"}},
		{"several at once", nil, []string{"NAMESPACE", "RUN_NAME", "RUN_UID", "POD_NAME", "POD_UID"},
			[]string{"--timeout", "variable NAMESPACE", "variable RUN_NAME", "variable RUN_UID", "variable POD_NAME", "variable POD_UID"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env := maps.Clone(environment)
			for _, name := range tt.without {
				delete(env, name)
			}
			_, err := New(tt.args, getenv(env), io.Discard)
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want it to say %q", err, want)
				}
			}
		})
	}
}

func TestOutcome(t *testing.T) {
	for _, tt := range []struct {
		outcome Outcome
		want    string
	}{
		{Outcome{"Succeeded", "Succeeded"}, "succeeded"},
		{Outcome{"Failed", "TaskRunTimeout"}, "failed (TaskRunTimeout)"},
		{Outcome{"None", "None"}, "did not run"},
		{Outcome{"None", ""}, "did not run"},
		{Outcome{"", ""}, "ended in an unknown way"},
	} {
		if got := tt.outcome.String(); got != tt.want {
			t.Errorf("%+v reads %q, want %q", tt.outcome, got, tt.want)
		}
	}
}

func TestRemoves(t *testing.T) {
	want := map[checkup.Teardown]map[checkup.RunVerdict]bool{
		checkup.TeardownAlways: {checkup.RunPass: true, checkup.RunFail: true, checkup.RunInconclusive: true},
		checkup.TeardownOnPass: {checkup.RunPass: true, checkup.RunFail: false, checkup.RunInconclusive: false},
		checkup.TeardownNever:  {checkup.RunPass: false, checkup.RunFail: false, checkup.RunInconclusive: false},
	}
	for _, when := range checkup.Teardowns {
		for _, verdict := range checkup.RunVerdicts {
			if got := Removes(when, verdict); got != want[when][verdict] {
				t.Errorf("teardown %s, verdict %s: %v", when, verdict, got)
			}
		}
	}
}

func TestTeardownTrouble(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct{ content, want string }{
		{"0", ""}, {"0\n", ""}, {"1", "exit code 1"}, {"", "exit code"}, {"absent", "did not finish"},
	} {
		path := filepath.Join(dir, "code")
		os.Remove(path)
		if tt.content != "absent" {
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := (&Task{TeardownExitCode: path}).TeardownTrouble()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.content, err, tt.want)
		}
	}
	if err := (&Task{}).TeardownTrouble(); err != nil {
		t.Errorf("without a file: %v, want nothing", err)
	}
}

// sheet has two sources and targets, all pairs by TCP.
func sheet() *checkup.Worksheet {
	return &checkup.Worksheet{
		Plan: "day-2", Check: "mesh", Kind: "podMesh", Rounds: 1, Degree: 1, Possible: 2,
		Sources: []checkup.Endpoint{{Node: "n0"}, {Node: "n1"}}, Targets: []checkup.Endpoint{{Node: "n0"}, {Node: "n1"}},
		Assignments: [][]int{{1}, {0}}, IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes: []checkup.TransportProbe{{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 1}}},
	}
}

func roster() *checkup.Roster {
	return &checkup.Roster{Targets: []checkup.RosterEntry{
		{Pod: "ns/r0", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "198.18.0.1"}},
		{Pod: "ns/r1", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "198.18.0.2"}},
	}}
}

// TestReport: what is not there is not measured, and the report says why: in the
// words of the phase that failed, or else in Tekton's.
func TestReport(t *testing.T) {
	plan := &checkup.Plan{Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass}, Checks: map[string]checkup.Check{"mesh": {Spec: &podmesh.Spec{}}}}
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	freeze := func(t *testing.T, s *record.Store) {
		if err := s.Save(t.Context(), record.Worksheet("mesh"), record.Frozen{Started: started, Worksheet: *sheet(), Roster: *roster()}); err != nil {
			t.Fatal(err)
		}
	}
	measure := func(t *testing.T, s *record.Store, sources ...int) {
		w := s.Writer("mesh")
		for _, source := range sources {
			for p := range sheet().PairsOf(source) {
				w.Observation(checkup.Observation{Pair: p, Sent: 1, Received: 1, RTTs: []int64{100}})
			}
			w.Source(checkup.Source{
				Source: source, End: &checkup.AgentEnd{Observations: 1},
				Controls: []checkup.Control{{Family: checkup.IPv4, Name: "self", OK: true}, {Family: checkup.IPv4, Name: "closed", OK: true}},
			})
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name     string
		prepare  func(*testing.T, *Task, *record.Store)
		outcomes map[string]Outcome
		verdict  checkup.RunVerdict
		counts   checkup.Counts
		cause    string // of the check
		pair     string // cause of the unmeasured pairs
		err      string
	}{
		{name: "all measured", prepare: func(t *testing.T, _ *Task, s *record.Store) { freeze(t, s); measure(t, s, 0, 1) },
			verdict: checkup.RunPass, counts: checkup.Counts{Expected: 2, Pass: 2}},
		{name: "setup did not run", outcomes: map[string]Outcome{"setup-mesh": {"None", "None"}},
			verdict: checkup.RunInconclusive, cause: "setup: task setup-mesh did not run: the run was stopped, or a task before it failed"},
		{name: "setup timed out", outcomes: map[string]Outcome{"setup-mesh": {"Failed", "TaskRunTimeout"}},
			verdict: checkup.RunInconclusive, cause: "setup: task setup-mesh failed (TaskRunTimeout)"},
		{name: "setup said why", outcomes: map[string]Outcome{"setup-mesh": {"Failed", "Failed"}},
			prepare: func(t *testing.T, task *Task, _ *record.Store) {
				task.Explain(t.Context(), "setup", checkup.StageSetup, "day-2", errors.New("no node\nmatches"))
			},
			verdict: checkup.RunInconclusive, cause: "setup: no node matches"},
		{name: "nothing recorded", verdict: checkup.RunInconclusive, cause: "setup: task setup-mesh did not finish"},
		{name: "probe did not run", prepare: func(t *testing.T, _ *Task, s *record.Store) { freeze(t, s) }, outcomes: map[string]Outcome{"probe-mesh": {"None", "None"}},
			verdict: checkup.RunInconclusive, counts: checkup.Counts{Expected: 2, Unmeasured: 2}, pair: "task probe-mesh did not run"},
		{name: "probe was stopped half-way", prepare: func(t *testing.T, _ *Task, s *record.Store) { freeze(t, s); measure(t, s, 1) }, outcomes: map[string]Outcome{"probe-mesh": {"Failed", "TaskRunTimeout"}},
			verdict: checkup.RunInconclusive, counts: checkup.Counts{Expected: 2, Pass: 1, Unmeasured: 1}, pair: "task probe-mesh failed (TaskRunTimeout)"},
		{name: "a target was lost", prepare: func(t *testing.T, _ *Task, s *record.Store) {
			freeze(t, s)
			measure(t, s, 1)
			w := s.Writer("mesh")
			for source := range 2 {
				w.Source(checkup.Source{
					Source: source, End: &checkup.AgentEnd{Observations: 1},
					Controls: []checkup.Control{{Family: checkup.IPv4, Name: "self", OK: true}, {Family: checkup.IPv4, Name: "closed", OK: true}},
				})
			}
			for p := range sheet().Pairs() {
				o := checkup.Observation{Pair: p, Sent: 1, Failure: &checkup.Cause{Stage: checkup.StageConnect, Message: "timed out"}}
				if p.Source == 1 {
					o = checkup.Observation{Pair: p, Sent: 1, Received: 1, RTTs: []int64{100}}
				}
				w.Observation(o)
			}
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			lost := roster()
			lost.Targets[1].Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "lost while probing"}
			if err := s.Save(t.Context(), record.Roster("mesh"), lost); err != nil {
				t.Fatal(err)
			}
		}, verdict: checkup.RunInconclusive, counts: checkup.Counts{Expected: 2, Pass: 1, Unmeasured: 1}, pair: "lost while probing"},
		{name: "corrupt worksheet", prepare: func(t *testing.T, _ *Task, s *record.Store) {
			if err := s.Save(t.Context(), record.Worksheet("mesh"), "not a worksheet"); err != nil {
				t.Fatal(err)
			}
		}, verdict: checkup.RunInconclusive, cause: "collect: load worksheet of check mesh: ConfigMap", err: "check mesh: load worksheet"},
		{name: "corrupt record", prepare: func(t *testing.T, task *Task, s *record.Store) {
			freeze(t, s)
			broken := record.Key{Role: checkup.RoleRecord, Check: "mesh"}
			if err := s.Save(t.Context(), broken, "not lines"); err != nil {
				t.Fatal(err)
			}
		}, verdict: checkup.RunInconclusive, counts: checkup.Counts{Expected: 2, Unmeasured: 2}, pair: "load record of check mesh", err: "check mesh: load record"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			task := &Task{Kubernetes: fake.NewSimpleClientset(), Namespace: "ns", RunName: "run", RunUID: "uid-1", Check: "mesh", Outcomes: tt.outcomes, Stdout: io.Discard}
			if tt.prepare != nil {
				tt.prepare(t, task, task.Store("day-2"))
			}
			r, err := task.Report(t.Context(), plan, time.Now())
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if r.Verdict != tt.verdict || r.Counts != tt.counts {
				t.Errorf("%s %+v, want %s %+v", r.Verdict, r.Counts, tt.verdict, tt.counts)
			}
			c := r.Checks[0]
			if (c.Cause == nil) != (tt.cause == "") || c.Cause != nil && !strings.Contains(c.Cause.String(), tt.cause) {
				t.Errorf("cause %v, want %q", c.Cause, tt.cause)
			}
			for _, p := range c.Units {
				if p.Verdict == checkup.Unmeasured && !strings.Contains(p.Cause.Message, tt.pair) {
					t.Errorf("%s -> %s: %s, want %q", p.Source, p.Target, p.Cause, tt.pair)
				}
			}
			if r.Counts.Expected > 0 && !r.Started.Equal(started) {
				t.Errorf("started %s, want %s", r.Started, started)
			}
		})
	}
}

// TestNobodyAsked: a side of a dry run of which the API server's word is not in the
// record is not measured, and the report says why.
func TestNobodyAsked(t *testing.T) {
	tk := &Task{Kubernetes: fake.NewSimpleClientset(), Namespace: "ns", RunName: "run", RunUID: "uid-1", Outcomes: map[string]Outcome{"probe-where": {"Failed", "TaskRunTimeout"}}, Stdout: io.Discard}
	store := tk.Store("day-2")
	side := func(name placement.SideName) placement.Side {
		return placement.Side{Side: name, Pod: json.RawMessage(`{}`), Eligible: []string{"n0"}}
	}
	sheet := placement.Sheet{Nodes: 1, Sides: []placement.Side{side(placement.SideSource), side(placement.SideTarget)}}
	frozen := record.Frozen{Worksheet: checkup.Worksheet{Plan: "day-2", Check: "where", Kind: placement.Name}}
	if err := sheet.Put(&frozen.Worksheet); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(t.Context(), record.Worksheet("where"), frozen); err != nil {
		t.Fatal(err)
	}
	w := store.Writer("where")
	w.Fact(checkup.Fact{Unit: "target", Content: json.RawMessage(`{"allowed":true}`)})
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	plan := &checkup.Plan{Name: "day-2", Checks: map[string]checkup.Check{"where": {Spec: &placement.Spec{}}}}
	r, err := tk.Report(t.Context(), plan, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if want := (checkup.Counts{Expected: 2, Pass: 1, Unmeasured: 1}); r.Counts != want {
		t.Errorf("counts %+v, want %+v", r.Counts, want)
	}
	units := r.Checks[0].Units
	i := slices.IndexFunc(units, func(u checkup.Unit) bool { return u.Name == "source" })
	if i < 0 || units[i].Cause == nil || !strings.Contains(units[i].Cause.Message, "task probe-where failed (TaskRunTimeout)") {
		t.Errorf("units %+v, want the source with what became of the task", units)
	}
}

// TestOutlasts: a setting that makes a check take longer than its Pipeline gives it
// is refused before anything is measured.
func TestOutlasts(t *testing.T) {
	const plan = `{"name":"p","gate":{"require":"Pass"},"teardown":"Always","retention":{"reports":1},"checks":{"api":{"controlPlane":{
		"preset":"auto","maxNodes":1,"for":"10m","interval":"1s","probe":{"count":1,"deadlines":{"resolve":"1s","connect":"1s","handshake":"1s","response":"1s"}},
		"connectivityChecks":{"write":true,"installCRD":true,"retention":"1h","staleAfter":"1m"},
		"limits":{"packetsPerSecond":1,"concurrency":1,"startJitter":"0s"},"timeouts":{"setup":"1m","probe":"1m"}}}}}`
	for setting, want := range map[string]string{
		"api.for=5m":  "",
		"api.for=10m": "",
		"api.for=11m": "check api would take up to 12m0s with these settings, but its Pipeline gives it 11m0s: write the settings into the plan, and compile it again",
	} {
		_, err := (&Task{PlanJSON: plan, Check: "api", Settings: []string{setting}}).Plan()
		if (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", setting, err, want)
		}
	}
}

func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		name, plan string
		settings   []string
		gate       checkup.Requirement // "" if there is no plan
		err        string
	}{
		{"no plan", "", nil, "", "environment variable PLAN"},
		{"not JSON", "{", nil, "", "environment variable PLAN"},
		{"unknown setting", `{"name":"p","gate":{"require":"Pass"}}`, []string{"gate=NoFailure", "mesh.degre=1"}, checkup.RequirePass, `no parameter "mesh.degre"`},
		{"bad value", `{"name":"p","gate":{"require":"Pass"}}`, []string{"gate=Perhaps"}, checkup.RequirePass, "want one of"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plan, err := (&Task{PlanJSON: tt.plan, Settings: tt.settings}).Plan()
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
			if (plan == nil) != (tt.gate == "") || plan != nil && plan.Gate.Require != tt.gate {
				t.Errorf("plan %+v, want the compiled one, with gate %q", plan, tt.gate)
			}
		})
	}
}
