// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e runs the built planner against the sandbox: real Kubernetes, real Tekton, real packets, with faults
// injected between nodes. `make e2e` starts the sandbox, loads the images and runs the tests.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cost"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/networkhealth"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/run"
)

const (
	plannerBin = "../../bin/planner"
	sandboxBin = "../../bin/sandbox"
	plans      = "testdata/plans.cue"
)

// cluster connects to the sandbox by the kubeconfig that `make e2e` sets.
func cluster(t *testing.T) *run.Cluster {
	t.Helper()
	c, err := run.Connect(run.Access{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// stateDir returns the directory of the sandbox that the tests run on, which contains the kubeconfig. Other sandboxes
// may run on the same machine.
func stateDir() string { return filepath.Dir(os.Getenv("KUBECONFIG")) }

// sandboxCommand returns a subcommand of the sandbox that the tests run on.
func sandboxCommand(args ...string) *exec.Cmd {
	return exec.Command(sandboxBin, append([]string{"--state", stateDir()}, args...)...)
}

// sandbox runs a subcommand of the sandbox and returns its output.
func sandbox(t *testing.T, args ...string) string {
	t.Helper()
	out, err := sandboxCommand(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("sandbox %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// fault adds a fault to the sandbox until the test ends.
func fault(t *testing.T, args ...string) {
	t.Helper()
	t.Cleanup(func() { sandbox(t, "fault", "clear") })
	sandbox(t, append([]string{"fault", "add"}, args...)...)
}

// portForward starts `kubectl port-forward` to an object, which ends with the test, and returns its output.
func portForward(t *testing.T, namespace, object, ports string) *buffer {
	t.Helper()
	forward := sandboxCommand("kubectl", "-n", namespace, "port-forward", object, ports)
	var out buffer
	forward.Stdout, forward.Stderr = &out, &out
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = forward.Process.Kill() // it may have ended
		_ = forward.Wait()         // the error is that it was killed
	})
	return &out
}

// command is a started planner.
type command struct {
	*exec.Cmd
	stdout, stderr buffer
}

// buffer can be read while the command writes to it.
type buffer struct {
	mu    sync.Mutex
	bytes []byte // guarded by mu
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes = append(b.bytes, p...)
	return len(p), nil
}

func (b *buffer) Bytes() []byte  { b.mu.Lock(); defer b.mu.Unlock(); return slices.Clone(b.bytes) }
func (b *buffer) String() string { return string(b.Bytes()) }

func start(t *testing.T, args ...string) *command {
	t.Helper()
	c := &command{Cmd: exec.Command(plannerBin, args...)}
	c.Stdout, c.Stderr = &c.stdout, &c.stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// It explains what the test did not wait for. Standard error is last: it has why tasks failed.
		if t.Failed() && c.ProcessState == nil {
			t.Logf("planner %s has printed:\n%s\n%s", strings.Join(args, " "), c.stdout.String(), c.stderr.String())
		}
		c.Process.Kill()
	})
	return c
}

// wait returns the exit code.
func (c *command) wait(t *testing.T) int {
	t.Helper()
	err := c.Cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode()
}

// started waits until the run exists and returns its name.
func (c *command) started(t *testing.T) string {
	t.Helper()
	var name string
	eventually(t, 2*time.Minute, func() error {
		for line := range strings.Lines(c.stderr.String()) {
			if _, err := fmt.Sscanf(line, "started PipelineRun %s in namespace", &name); err == nil {
				return nil
			}
		}
		return fmt.Errorf("no PipelineRun was started: %s", c.stderr.String())
	})
	return name
}

// edited returns a copy of a file of plans in which a text, which must be there once, is replaced.
func edited(t *testing.T, file, was, is string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), was); n != 1 {
		t.Fatalf("%s contains %q %d times, want once", file, was, n)
	}
	copied := filepath.Join(t.TempDir(), filepath.Base(file))
	if err := os.WriteFile(copied, []byte(strings.Replace(string(b), was, is, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return copied
}

// runPlan runs a plan to its end and returns its report.
func runPlan(t *testing.T, plan string, wantCode int, args ...string) *checkup.Report {
	t.Helper()
	return runFile(t, plans, plan, wantCode, args...)
}

// runFile runs a plan of a file.
func runFile(t *testing.T, file, plan string, wantCode int, args ...string) *checkup.Report {
	t.Helper()
	c := start(t, append([]string{"run", file, "--plan", plan, "--output", "json"}, args...)...)
	if code := c.wait(t); code != wantCode {
		t.Errorf("planner run --plan %s: exit code %d, want %d\n%s\n%s", plan, code, wantCode, c.stderr.String(), text(t, c.stdout.Bytes()))
	}
	return reportOf(t, c)
}

func reportOf(t *testing.T, c *command) *checkup.Report {
	t.Helper()
	r, err := print.Read(bytes.NewReader(c.stdout.Bytes()))
	if err != nil {
		t.Fatalf("no report: %v\n%s", err, c.stderr.String())
	}
	return r
}

// text returns a JSON report as text; data itself if it is not a report.
func text(t *testing.T, data []byte) string {
	r, err := print.Read(bytes.NewReader(data))
	if err != nil {
		return string(data)
	}
	var b strings.Builder
	if err := print.Text(&b, r, print.TextOptions{Width: 120}); err != nil {
		t.Error(err)
	}
	return b.String()
}

func describe(t *testing.T, r *checkup.Report) string {
	t.Helper()
	var b strings.Builder
	if err := print.Text(&b, r, print.TextOptions{Width: 120}); err != nil {
		t.Error(err)
	}
	return b.String()
}

// pipelineRun reads a PipelineRun from any of the tests' namespaces.
func pipelineRun(t *testing.T, name string) *pipelinev1.PipelineRun {
	t.Helper()
	c := cluster(t)
	var (
		r   *pipelinev1.PipelineRun
		err error
	)
	for _, namespace := range []string{c.Namespace, hostNamespace, kiagnoseNamespace, servicesNamespace, runsNamespace} {
		if r, err = c.Tekton.TektonV1().PipelineRuns(namespace).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func result(r *pipelinev1.PipelineRun, name string) string {
	for _, res := range r.Status.Results {
		if res.Name == name {
			return res.Value.StringVal
		}
	}
	return ""
}

// checkResults compares the PipelineRun's status with the report. The results must exist whatever the verdict.
func checkResults(t *testing.T, r *checkup.Report) {
	t.Helper()
	pr := pipelineRun(t, r.Run)
	if pr.IsSuccessful() != r.Passed {
		t.Errorf("PipelineRun %s: succeeded is %v, but passed in the report is %v: %+v", r.Run, pr.IsSuccessful(), r.Passed, pr.Status.Conditions)
	}
	want := map[string]string{
		"verdict": string(r.Verdict), "summary": r.Summary,
		"expected": fmt.Sprint(r.Counts.Expected), "pass": fmt.Sprint(r.Counts.Pass),
		"fail": fmt.Sprint(r.Counts.Fail), "unmeasured": fmt.Sprint(r.Counts.Unmeasured),
	}
	for name, value := range want {
		if got := result(pr, name); got != value {
			t.Errorf("result %s of PipelineRun %s is %q, want %q", name, r.Run, got, value)
		}
	}
	if got := pr.Labels[checkup.LabelVerdict]; got != string(r.Verdict) && (got != checkup.VerdictError || r.Passed) {
		t.Errorf("PipelineRun %s has the label %s: %q, want %q", r.Run, checkup.LabelVerdict, got, r.Verdict)
	}
	if result(pr, "report") == "" {
		t.Errorf("result report of PipelineRun %s is empty, want the place of the report", r.Run)
	}
	if (result(pr, "findings") == "") != (len(findings(r)) == 0) {
		t.Errorf("result findings is %q, but the report has %d findings", result(pr, "findings"), len(findings(r)))
	}
}

func findings(r *checkup.Report) []checkup.Finding {
	var all []checkup.Finding
	for _, c := range r.Checks {
		all = append(all, c.Findings...)
	}
	return all
}

// nothingLeft waits until no fixture of these runs exists, or of any run if none is given: the garbage collector
// deletes the fixtures of a cancelled run within seconds. Parallel tests pass the UIDs of their runs.
func nothingLeft(t *testing.T, runUIDs ...string) {
	t.Helper()
	if len(runUIDs) == 0 {
		runUIDs = []string{""}
	}
	for _, uid := range runUIDs {
		within(t, 90*time.Second, func() error { return remains(t, uid) })
	}
}

// remains returns an error with the fixtures that exist, of one run or, for "", of any run: pods, ConfigMaps, Services,
// VMs and their pods.
func remains(t *testing.T, runUID string) error {
	t.Helper()
	c := cluster(t)
	roles := make([]string, len(checkup.FixtureRoles))
	for i, role := range checkup.FixtureRoles {
		roles[i] = string(role)
	}
	selector := fmt.Sprintf("%s in (%s)", checkup.LabelRole, strings.Join(roles, ","))
	if runUID != "" {
		selector += fmt.Sprintf(",%s=%s", checkup.LabelRun, runUID)
	}
	var left []string
	list := func(resource schema.GroupVersionResource, selector string) error {
		objects, err := c.Metadata.Resource(resource).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
		if apierrors.IsNotFound(err) {
			return nil // KubeVirt is not installed
		}
		if err != nil {
			return err
		}
		for _, o := range objects.Items {
			if name := resource.Resource + "/" + o.Name; !slices.Contains(left, name) {
				left = append(left, name)
			}
		}
		return nil
	}
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	err := errors.Join(list(pods, selector), list(corev1.SchemeGroupVersion.WithResource("configmaps"), selector),
		list(corev1.SchemeGroupVersion.WithResource("services"), selector), list(vmiResource, selector))
	if runUID == "" {
		// The VMs' pods by KubeVirt's own label, in case ours is missing.
		err = errors.Join(err, list(pods, "kubevirt.io=virt-launcher"))
	}
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("fixtures are left: %s", strings.Join(left, ", "))
	}
	return err
}

var patience = flag.Int("patience", 1, "how many times as long tests and plans wait: for machines with slow cores")

// patient returns a time of a plan, as long as -patience wants it. Like eventually, it is for what a test needs.
func patient(d time.Duration) time.Duration { return d * time.Duration(*patience) }

// eventually calls f until it returns nil. The test fails if f still returns an error after the limit times the flag
// -patience. It is for what a test needs before it goes on. For what a test promises, see within.
func eventually(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	within(t, patient(limit), f)
}

// within is eventually with the same limit on every machine.
func within(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %s: %v", limit, err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

var turns = flag.String("turns", "",
	"a directory of files: all processes with this flag together run at most one test for each file at once")

// own is the turn that this process has until it ends: tests that run one after the other never wait. A parallel test
// takes it from the channel, and puts it back at its end.
var own = make(chan *os.File, 1)

func TestMain(m *testing.M) {
	flag.Parse()
	if *turns != "" {
		f, err := turn()
		for ; f == nil && err == nil; f, err = turn() {
			time.Sleep(time.Second / 2)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "wait for a turn:", err)
			os.Exit(1)
		}
		own <- f
	}
	os.Exit(m.Run())
}

// turn locks a file of -turns, until the file is closed. It returns nil if all are locked.
func turn() (*os.File, error) {
	files, err := filepath.Glob(filepath.Join(*turns, "*"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no file in directory %s", *turns)
	}
	for _, name := range files {
		f, openErr := os.OpenFile(name, os.O_RDWR, 0)
		if openErr != nil {
			return nil, openErr
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			return f, nil
		}
		err = errors.Join(err, f.Close())
	}
	return nil, err
}

// parallel runs a test beside others, when it has a turn. Parents of parallel subtests need none: their subtests do.
func parallel(t *testing.T) {
	t.Helper()
	t.Parallel()
	if *turns == "" {
		return
	}
	for started := time.Now(); ; {
		// A new test sleeps first. Else it takes the turn of the test that just ended before other processes see it free.
		time.Sleep(time.Second / 2)
		select {
		case f := <-own:
			t.Cleanup(func() { own <- f })
		default:
			f, err := turn()
			if err != nil {
				t.Fatal(err)
			}
			if f == nil {
				continue
			}
			t.Cleanup(func() { _ = f.Close() })
		}
		t.Logf("waited %.1f s for its turn", time.Since(started).Seconds()) // .ci/run reads it
		return
	}
}

// Explains and runs a plan twice: both runs pass, measure what explain predicted, and together measure the full mesh.
func TestCleanNetwork(t *testing.T) {
	type explanation struct {
		Checks []struct {
			cost.Cost
			Round, Rounds int
		} `json:"checks"`
	}
	measured := map[string]int{} // ordered pair of nodes: how often
	for i := range 2 {
		explain := start(t, "explain", plans, "--plan", "ring", "--output", "json")
		if code := explain.wait(t); code != 0 {
			t.Fatalf("explain: exit code %d, want 0: %s", code, explain.stderr.String())
		}
		var explained explanation
		if err := json.Unmarshal(explain.stdout.Bytes(), &explained); err != nil {
			t.Fatal(err)
		}
		c := start(t, "run", plans, "--plan", "ring", "--output", "json")
		name := c.started(t)
		pods := watchPods(t, string(pipelineRun(t, name).UID))
		if code := c.wait(t); code != 0 {
			t.Fatalf("run %d: exit code %d, want 0: %s\n%s", i, code, c.stderr.String(), text(t, c.stdout.Bytes()))
		}
		r := reportOf(t, c)
		if r.Verdict != checkup.RunPass || len(findings(r)) > 0 {
			t.Errorf("run %d:\n%s", i, describe(t, r))
		}
		checkResults(t, r)
		got, want := r.Checks[0], explained.Checks[0]
		if got.Counts.Expected != want.Pairs || got.Counts.Pass != want.Pairs {
			t.Errorf("explain predicts %d pairs; %d were expected and %d passed", want.Pairs, got.Counts.Expected, got.Counts.Pass)
		}
		if got.Sent != want.Packets {
			t.Errorf("explain predicts %d packets; %d were sent", want.Packets, got.Sent)
		}
		if ran := pods(); len(ran) != want.Agents+want.Responders {
			var names []string
			for _, p := range ran {
				names = append(names, p.Name)
			}
			t.Errorf("explain predicts %d agents and %d responders; these pods ran: %q", want.Agents, want.Responders, names)
		}
		if got.Coverage.Round != want.Round || got.Coverage.Rounds != 2 || want.Rounds != 2 {
			t.Errorf("round %d of %d; explain predicts %d of %d, want 2 rounds", got.Coverage.Round, got.Coverage.Rounds, want.Round, want.Rounds)
		}
		if c := got.Cumulative; c == nil || c.Possible != 6 || i == 1 && c.Measured != 6 {
			t.Errorf("run %d: all runs together have covered %+v; want all 6 pairs after two rounds", i, c)
		}
		for s, row := range got.Matrix.Cells {
			for target, cell := range row {
				if cell != ' ' {
					measured[got.Matrix.Sources[s]+" -> "+got.Matrix.Targets[target]]++
				}
			}
		}
	}
	// A sandbox that is used again has older runs of the plan, too.
	shown := start(t, "history", "ring", "--output", "json")
	if code := shown.wait(t); code != 0 {
		t.Fatalf("history: exit code %d, want 0: %s", code, shown.stderr.String())
	}
	var overview history.Overview
	if err := json.Unmarshal(shown.stdout.Bytes(), &overview); err != nil {
		t.Fatal(err)
	}
	if len(overview.Runs) < 2 || len(overview.Coverage) != 1 || overview.Coverage[0].Measured != 6 || len(overview.SetAside) > 0 {
		t.Errorf("history has %d runs, coverage %+v, set aside %q; want both runs, all 6 pairs, nothing set aside",
			len(overview.Runs), overview.Coverage, overview.SetAside)
	}
	if len(measured) != 6 {
		t.Errorf("two rounds of three workers measured %d ordered pairs, want all 6: %v", len(measured), measured)
	}
	for pair, n := range measured {
		if n != 1 {
			t.Errorf("%s was measured %d times in two rounds, want once", pair, n)
		}
	}
	nothingLeft(t)
}

// watchPods collects the agents and responders of a run, in any namespace, until the returned function is called.
func watchPods(t *testing.T, runUID string) (pods func() []corev1.Pod) {
	t.Helper()
	c := cluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []corev1.Pod, 1)
	go func() {
		var seen []corev1.Pod
		for ctx.Err() == nil {
			pods, err := c.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
				LabelSelector: fmt.Sprintf("%s=%s,%s in (%s,%s)", checkup.LabelRun, runUID, checkup.LabelRole, checkup.RoleResponder, checkup.RoleAgent)})
			if err == nil {
				for _, p := range pods.Items {
					if !slices.ContainsFunc(seen, func(s corev1.Pod) bool { return s.UID == p.UID }) {
						seen = append(seen, p)
					}
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		done <- seen
	}()
	return func() []corev1.Pod { cancel(); return <-done }
}

// Each fault alone fails the run, and the only finding names it.
func TestFaults(t *testing.T) {
	type want struct {
		cause   checkup.FindingCause
		subject string // part of it
		message string // a regular expression for all of it
	}
	tests := []struct {
		name  string
		plan  string
		fault []string
		want  want
	}{
		{"ingress of a node", "full", []string{"drop", "--node", "worker-2", "--direction", "ingress"}, want{checkup.CauseNodeIngress, "worker-2", "into the pods of worker-2: nothing gets through"}},
		{"egress of a node", "full", []string{"drop", "--node", "worker-2", "--direction", "egress"}, want{checkup.CauseNodeEgress, "worker-2", "out of the pods of worker-2: nothing gets through"}},
		{"one ordered pair", "full", []string{"drop", "--from", "worker-1", "--to", "worker-3"}, want{checkup.CausePair, "worker-1 -> worker-3", "from worker-1 to worker-3: nothing gets through"}},
		{"UDP only", "full", []string{"drop", "--protocol", "udp"}, want{checkup.CauseTransport, "udp", "udp everywhere: nothing gets through"}},
		{"IPv6 only", "full", []string{"drop", "--family", "ipv6"}, want{checkup.CauseFamily, "IPv6", "IPv6 everywhere: nothing gets through"}},
		{"MTU black hole", "full", []string{"mtu", "--max-bytes", "1000"}, want{checkup.CauseSize, "1400", "payloads of 1400 bytes and more: nothing gets through"}},
		{"20% loss of a node", "full", []string{"loss", "--percent", "20", "--node", "worker-3"}, want{checkup.CauseNode, "worker-3", `into and out of the pods of worker-3: about [0-9.]+% of the measurements are lost`}},
		{"30 ms delay against a 10 ms limit", "full", []string{"delay", "--by", "30ms", "--node", "worker-1"}, want{checkup.CauseNode, "worker-1", `to or from the pods of worker-1: too slow, median round trip \S+, elsewhere \S+`}},
		{"source NAT of a node", "full", []string{"snat", "--node", "worker-2"}, want{checkup.CauseSourceAddress, "worker-2", ".+"}},
		{"one of eight parallel paths", "flows", []string{"drop", "--flows", "1/8"}, want{checkup.CausePaths, "", `\d+ of \d+ flows .+: one of several parallel paths`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fault(t, tt.fault...)
			r := runPlan(t, tt.plan, 3)
			if r.Verdict != checkup.RunFail {
				t.Fatalf("verdict %s, want fail:\n%s", r.Verdict, describe(t, r))
			}
			all := findings(r)
			message := regexp.MustCompile("^(" + tt.want.message + ")$")
			if len(all) != 1 || all[0].Cause != tt.want.cause || !strings.Contains(all[0].Subject, tt.want.subject) ||
				!message.MatchString(all[0].Message) {
				t.Errorf("want one finding, %s of %s: %s\n%s", tt.want.cause, tt.want.subject, tt.want.message, describe(t, r))
			}
			checkResults(t, r)
			nothingLeft(t)
		})
	}
}

// A node that becomes slower, within all limits, is a finding of the first run after it, and fails nothing.
func TestRegression(t *testing.T) { becomesSlower(t, 3) }

// becomesSlower has some runs without a fault, and then one with it.
func becomesSlower(t *testing.T, before int) {
	t.Helper()
	for range before {
		if r := runPlan(t, "regression", 0); len(findings(r)) > 0 {
			t.Fatalf("findings without a fault:\n%s", describe(t, r))
		}
	}
	fault(t, "delay", "--by", "30ms", "--node", "worker-1")
	r := runPlan(t, "regression", 0)
	all := findings(r)
	if len(all) != 1 || all[0].Cause != checkup.CauseNode || all[0].Subject != "worker-1" || all[0].Change == nil ||
		all[0].Change.Now-all[0].Change.Usual < 15_000 || all[0].Change.Runs < before {
		t.Errorf("want one finding, of worker-1, with at least 15ms more than in %d runs:\n%s", before, describe(t, r))
	}
	for _, f := range all { // the other pairs are not slower
		if slices.Contains(f.Alternatives, string(checkup.CauseNetwork)) {
			t.Errorf("the network is among the alternatives:\n%s", describe(t, r))
		}
	}
	checkResults(t, r)
	nothingLeft(t)
}

// inconclusive checks that the run is inconclusive with unmeasured and without failed pairs, that it does not pass its
// gate, and that the report contains the words.
func inconclusive(t *testing.T, r *checkup.Report, words string) {
	t.Helper()
	if r.Verdict != checkup.RunInconclusive || r.Passed || r.Counts.Unmeasured == 0 || r.Counts.Fail != 0 {
		t.Errorf("verdict %s, want inconclusive without failures:\n%s", r.Verdict, describe(t, r))
	}
	if !strings.Contains(describe(t, r), words) {
		t.Errorf("the report does not contain %q:\n%s", words, describe(t, r))
	}
	checkResults(t, r)
}

// The pairs of a killed agent are unmeasured, and those of an agent that reports what nobody requested. Neither costs the
// third agent its pairs.
func TestKilledAgent(t *testing.T) {
	parallel(t)
	c := start(t, "run", plans, "--plan", "slow", "--output", "json")
	uid := string(pipelineRun(t, c.started(t)).UID)
	eventually(t, 2*time.Minute, func() error {
		pids := agents(t, uid)
		if len(pids) < 3 {
			return fmt.Errorf("%d agents run", len(pids))
		}
		lie(t, pids[1])
		return syscall.Kill(pids[0], syscall.SIGKILL)
	})
	if code := c.wait(t); code != 1 {
		t.Errorf("exit code %d, want 1: %s", code, c.stderr.String())
	}
	r := reportOf(t, c)
	inconclusive(t, r, "137")
	lied := map[string]int{} // pairs that are unmeasured because of it, by source
	for _, u := range r.Checks[0].Units {
		if u.Verdict == checkup.Unmeasured && u.Cause.Reason == checkup.ReasonUnrequested {
			lied[u.Source]++
		}
	}
	each := r.Counts.Expected / 3
	if len(lied) != 1 || slices.Collect(maps.Values(lied))[0] != each || r.Counts.Unmeasured != 2*each || r.Counts.Pass != each {
		t.Errorf("unmeasured because their agent lied: %v; want %d pairs of one agent, %d unmeasured, and %d that pass:\n%s",
			lied, each, 2*each, each, describe(t, r))
	}
	nothingLeft(t, uid)
}

// lie has an agent report a pair that nobody requested: it writes to the agent's standard output.
func lie(t *testing.T, pid int) {
	t.Helper()
	line, err := json.Marshal(checkup.Message{Observation: &checkup.Observation{
		Pair: checkup.Pair{Source: 0, Target: 1, Family: checkup.IPv4, Transport: checkup.UDP, Size: 77}, Sent: 300, Received: 300,
	}})
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", pid), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	if _, err := stdout.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
}

// agents returns the processes of a run's agents that probe.
func agents(t *testing.T, runUID string) []int {
	t.Helper()
	pods, err := cluster(t).Kube.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{
		LabelSelector: fmt.Sprintf("%s=%s,%s=%s", checkup.LabelRun, runUID, checkup.LabelRole, checkup.RoleAgent)})
	if err != nil {
		t.Fatal(err)
	}
	return processesOf(t, func(words []string, mounts string) bool {
		return len(words) > 1 && strings.HasSuffix(words[0], "/agent") && words[1] == "probe" &&
			slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return strings.Contains(mounts, "/pods/"+string(p.UID)+"/") })
	})
}

// processesOf returns the processes in pods of this sandbox with such a command line and such mounts, on any node: its
// nodes are namespaces of this machine.
func processesOf(t *testing.T, is func(words []string, mounts string) bool) []int {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	// Each container mounts a file of its pod's directory, which is in the sandbox's directory.
	inSandbox := "/" + filepath.Base(stateDir()) + "/nodes/"
	var pids []int
	for _, path := range paths {
		cmdline, err := os.ReadFile(path)
		var pid int
		if _, scanErr := fmt.Sscanf(path, "/proc/%d/cmdline", &pid); err != nil || scanErr != nil {
			continue // the process has ended
		}
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
		if err != nil {
			continue // the process has ended
		}
		if strings.Contains(string(mounts), inSandbox) && is(strings.Split(string(cmdline), "\x00"), string(mounts)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A kubelet that stops while its node is probed costs nothing that was measured before. In the next run, the pairs of
// that node are unmeasured, and the report names it.
func TestStoppedKubelet(t *testing.T) {
	c := start(t, "run", plans, "--plan", "slow", "--output", "json")
	name := c.started(t)
	uid := string(pipelineRun(t, name).UID)
	eventually(t, 2*time.Minute, func() error {
		if n := len(agents(t, uid)); n < 3 {
			return fmt.Errorf("%d agents run", n)
		}
		return nil
	})
	// Not the node on which the collecting task runs.
	probing := taskPod(t, name, "probe-mesh").Spec.NodeName
	stopped := "worker-3"
	if probing == stopped {
		stopped = "worker-2"
	}
	fault(t, "stop", "kubelet", "--node", stopped)
	code := c.wait(t)
	r := reportOf(t, c)
	if r.Verdict == checkup.RunFail {
		t.Errorf("a stopped kubelet is not a broken network:\n%s", describe(t, r))
	}
	if (r.Verdict == checkup.RunPass) != (r.Counts.Unmeasured == 0) || (code == 0) != (r.Verdict == checkup.RunPass) {
		t.Errorf("exit code %d, verdict %s with %d pairs unmeasured:\n%s", code, r.Verdict, r.Counts.Unmeasured, describe(t, r))
	}

	notReady(t, stopped) // otherwise a task's own pod may be scheduled there
	inconclusive(t, runPlan(t, "full", 1), stopped)
	sandbox(t, "fault", "clear")
	nothingLeft(t)
}

// taskPod returns the pod of one task of a run.
func taskPod(t *testing.T, run, task string) corev1.Pod {
	t.Helper()
	c := cluster(t)
	pods, err := c.Kube.CoreV1().Pods(c.Namespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: fmt.Sprintf("tekton.dev/pipelineRun=%s,tekton.dev/pipelineTask=%s", run, task)})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods of task %s, %v", len(pods.Items), task, err)
	}
	return pods.Items[0]
}

// notReady waits until the API server reports that the node is not ready.
func notReady(t *testing.T, node string) {
	t.Helper()
	c := cluster(t)
	eventually(t, time.Minute, func() error {
		n, err := c.Kube.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return fmt.Errorf("node %s is still Ready", node)
			}
		}
		return nil
	})
}

// No fixture is left, in whatever way a run is cancelled.
func TestCancel(t *testing.T) {
	t.Parallel()
	t.Run("Ctrl-C", func(t *testing.T) {
		parallel(t)
		c := start(t, "run", plans, "--plan", "slow", "--output", "json")
		uid := string(pipelineRun(t, c.started(t)).UID)
		eventually(t, 2*time.Minute, func() error { return probing(t, uid) })
		if err := c.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := c.wait(t); code != 1 {
			t.Errorf("exit code %d, want 1: %s", code, c.stderr.String())
		}
		if !strings.Contains(c.stderr.String(), "its teardown still runs") {
			t.Errorf("stderr does not report that teardown still runs: %s", c.stderr.String())
		}
		inconclusive(t, reportOf(t, c), "unmeasured")
		nothingLeft(t, uid)
	})
	t.Run("Ctrl-C twice", func(t *testing.T) {
		parallel(t)
		c := start(t, "run", plans, "--plan", "slow")
		uid := string(pipelineRun(t, c.started(t)).UID)
		eventually(t, 2*time.Minute, func() error { return probing(t, uid) })
		for range 2 {
			if err := c.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			within(t, 10*time.Second, func() error {
				if !strings.Contains(c.stderr.String(), "interrupted") {
					return errors.New("the first Ctrl-C is not reported yet")
				}
				return nil
			})
		}
		if code := c.wait(t); code != 1 {
			t.Errorf("exit code %d, want 1: %s", code, c.stderr.String())
		}
		if !strings.Contains(c.stderr.String(), "interrupted before the run ended") {
			t.Errorf("stderr does not list the pods that remain: %s", c.stderr.String())
		}
		nothingLeft(t, uid)
	})
	for _, status := range []pipelinev1.PipelineRunSpecStatus{pipelinev1.PipelineRunSpecStatusCancelled, pipelinev1.PipelineRunSpecStatusCancelledRunFinally} {
		for _, when := range []string{"setup", "probe"} {
			t.Run(string(status)+" during "+when, func(t *testing.T) {
				parallel(t)
				c := start(t, "run", plans, "--plan", "slow")
				name := c.started(t)
				uid := string(pipelineRun(t, name).UID)
				eventually(t, 2*time.Minute, func() error {
					if when == "probe" {
						return probing(t, uid)
					}
					return fixturesOf(t, uid)
				})
				cancel(t, name, status)
				if code := c.wait(t); code != 1 {
					t.Errorf("exit code %d, want 1: %s", code, c.stderr.String())
				}
				nothingLeft(t, uid)
			})
		}
	}
}

// probing returns nil if an agent of the run is running.
func probing(t *testing.T, uid string) error {
	if len(agents(t, uid)) == 0 {
		return errors.New("no agent runs")
	}
	return nil
}

// fixturesOf returns nil if the run has a fixture.
func fixturesOf(t *testing.T, uid string) error {
	c := cluster(t)
	left, err := c.Remaining(t.Context(), uid)
	if err == nil && len(left) == 0 {
		err = errors.New("no fixture yet")
	}
	return err
}

func cancel(t *testing.T, name string, status pipelinev1.PipelineRunSpecStatus) {
	t.Helper()
	c := cluster(t)
	r := pipelineRun(t, name)
	r.Spec.Status = status
	if _, err := c.Tekton.TektonV1().PipelineRuns(r.Namespace).Update(t.Context(), r, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A run that exceeds its timeout is still torn down and reported. Its 850 packets take 85 s: its tasks have 60 s, and
// its agents 67 s, however late conclude starts on a busy machine.
func TestRunTimesOut(t *testing.T) {
	parallel(t)
	r := runPlan(t, "slow", 1, "--set", "mesh.udp.count=850", "--timeout", "11m")
	inconclusive(t, r, "unmeasured")
	if reason := pipelineRun(t, r.Run).Status.GetCondition(apis.ConditionSucceeded).GetReason(); reason != "PipelineRunTimeout" {
		t.Errorf("PipelineRun %s: reason %s, want PipelineRunTimeout", r.Run, reason)
	}
	nothingLeft(t, r.RunUID)
}

// Two runs of one plan at once do not disturb each other.
func TestTwoRunsAtOnce(t *testing.T) {
	parallel(t)
	a := start(t, "run", plans, "--plan", "full", "--output", "json", "--set", "mesh.latency.p50=")
	b := start(t, "run", plans, "--plan", "full", "--output", "json", "--set", "mesh.latency.p50=")
	for _, c := range []*command{a, b} {
		if code := c.wait(t); code != 0 {
			t.Errorf("exit code %d: %s\n%s", code, c.stderr.String(), text(t, c.stdout.Bytes()))
		}
	}
	first, second := reportOf(t, a).RunUID, reportOf(t, b).RunUID
	if first == second {
		t.Error("both reports are of the same run")
	}
	nothingLeft(t, first, second)
}

// Checks run one after the other, and the report contains both. It is the same again from the cluster as from a file,
// and planner serve shows it.
func TestChain(t *testing.T) {
	parallel(t)
	c := start(t, "run", plans, "--plan", "chain", "--output", "json")
	if code := c.wait(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, c.stderr.String())
	}
	r := reportOf(t, c)
	if len(r.Checks) != 2 || r.Checks[0].Name != "first" || r.Checks[1].Name != "second" {
		t.Fatalf("checks of the report:\n%s", describe(t, r))
	}
	checkResults(t, r)
	nothingLeft(t, r.RunUID)

	file := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(file, c.stdout.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	fromFile, fromCluster := start(t, "report", file), start(t, "report", r.Run)
	if a, b := fromFile.wait(t), fromCluster.wait(t); a != 0 || b != 0 {
		t.Fatalf("exit codes %d, %d: %s%s", a, b, fromFile.stderr.String(), fromCluster.stderr.String())
	}
	if fromFile.stdout.String() != fromCluster.stdout.String() {
		t.Errorf("from a file:\n%s\nfrom the cluster:\n%s", fromFile.stdout.String(), fromCluster.stdout.String())
	}
	gone := start(t, "report", "no-such-run")
	if code := gone.wait(t); code != 1 || !strings.Contains(gone.stderr.String(), "no-such-run") {
		t.Errorf("a run that does not exist: exit code %d, want 1 and its name: %s", code, gone.stderr.String())
	}
	served(t, r)
}

// Existing pods are probed without a responder, on their own port.
func TestExistingPods(t *testing.T) {
	parallel(t)
	r := runPlan(t, "existing", 0)
	if r.Counts.Pass == 0 || r.Counts.Pass != r.Counts.Expected {
		t.Errorf("want the cluster's DNS to answer every worker:\n%s", describe(t, r))
	}
	for _, target := range r.Checks[0].Matrix.Targets {
		if !strings.HasPrefix(target, "kube-system/") {
			t.Errorf("target %s is not a pod of kube-system", target)
		}
	}
	nothingLeft(t, r.RunUID)
}

// planner state prints where a node's proxy has to send the traffic of the cluster's API, and that its rules do that.
func TestState(t *testing.T) {
	parallel(t)
	c := start(t, "state", "--node", "worker-1", "-n", "default", "--output", "json", "kubernetes")
	if code := c.wait(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, c.stderr.String())
	}
	var state struct {
		Services []struct {
			Families []struct {
				Ports []struct{ Endpoints []struct{ Address string } }
			}
		}
	}
	if err := json.Unmarshal(c.stdout.Bytes(), &state); err != nil || len(state.Services) != 1 {
		t.Fatalf("%v: %s", err, c.stdout.String())
	}
	var got, want []string
	for _, e := range state.Services[0].Families[0].Ports[0].Endpoints {
		got = append(got, e.Address)
	}
	slices, err := cluster(t).Kube.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Endpoints {
		want = append(want, e.Addresses...)
	}
	if !cmp.Equal(got, want, cmpopts.SortSlices(strings.Compare)) || len(got) == 0 {
		t.Errorf("endpoints %v, want %v", got, want)
	}
	if code, out := stateDiff(t, "worker-1", "-n", "default", "kubernetes"); code != 0 || !strings.Contains(out, "\nno difference\n") {
		t.Errorf("planner state --diff: exit code %d, want 0:\n%s", code, out)
	}
}

// podNetworkHealths lists the PodNetworkHealths of a plan.
func podNetworkHealths(t *testing.T, plan string) map[string]networkhealth.Health {
	t.Helper()
	var list struct{ Items []networkhealth.Health }
	raw, err := cluster(t).Kube.Discovery().RESTClient().Get().
		AbsPath("/apis/"+networkhealth.Group+"/"+networkhealth.Version+"/namespaces/"+cluster(t).Namespace+"/podnetworkhealths").
		Param("labelSelector", checkup.LabelPlan+"="+plan).DoRaw(t.Context())
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]networkhealth.Health{}
	for _, h := range list.Items {
		by[h.Name] = h
	}
	return by
}

// A plan with the feature installs the CRD. During a fault between two nodes, the objects of their pairs are
// Unreachable, and after it the same objects are Reachable. kubectl selects them and explains them.
func TestPodNetworkHealth(t *testing.T) {
	between := func(h networkhealth.Health) bool {
		nodes := []string{h.Spec.Source.Node, h.Spec.Target.Node}
		return h.Spec.Observer.Check == "mesh" && slices.Contains(nodes, "worker-1") && slices.Contains(nodes, "worker-3")
	}
	fault(t, "drop", "--from", "worker-1", "--to", "worker-3")
	r := runPlan(t, "health", 3)
	during := podNetworkHealths(t, "health")
	workloads, cut := 0, 0
	for name, h := range during {
		want := networkhealth.Reachable
		if between(h) {
			want, cut = networkhealth.Unreachable, cut+1
		}
		if h.Status == nil {
			t.Errorf("%s has no status", name)
			continue
		}
		if h.Spec.Observer.Check == "mesh" && h.Status.Reachability != want {
			t.Errorf("during: %s is %s, want %s: %s", name, h.Status.Reachability, want, h.Status.Message)
		}
		if h.Spec.Target.Kind == networkhealth.Workload {
			workloads++
			if h.Spec.Target.Namespace != "kube-system" || h.Status.Target == nil || len(h.Status.Target.Addresses) == 0 {
				t.Errorf("%s: target %+v, %+v", name, h.Spec.Target, h.Status.Target)
			}
		}
		if s := h.Status; s.ObservedBy.Run != r.Run || s.Source == nil || s.Source.UID == "" || len(s.Source.Addresses) == 0 ||
			s.LastObservationTime.Before(r.Started) || s.LastObservationTime.After(r.Finished) || s.Coverage.Extent != networkhealth.Partial {
			t.Errorf("%s: status %+v", name, s)
		}
	}
	pairs := 0 // between two nodes, each way
	for _, c := range r.Checks {
		pairs += c.Coverage.Measured
	}
	if cut != 2 || workloads == 0 || len(during) == 0 || len(during) < pairs {
		t.Errorf("%d objects, %d of them cut off, %d of workloads, for %d measured pairs", len(during), cut, workloads, pairs)
	}
	unreachable := sandbox(t, "kubectl", "get", "podnetworkhealths", "--namespace", cluster(t).Namespace,
		"--field-selector", "status.reachability=Unreachable")
	t.Logf("kubectl get podnetworkhealths, during the fault:\n%s", unreachable)
	if !strings.Contains(unreachable, "worker-1-to-worker-3-") || strings.Contains(unreachable, "worker-1-to-worker-2-") {
		t.Errorf("want the pairs of worker-1 and worker-3 only")
	}
	explained := sandbox(t, "kubectl", "explain", "podnetworkhealths.status.coverage.extent")
	if !strings.Contains(explained, "always Partial") {
		t.Errorf("kubectl explain:\n%s", explained)
	}

	sandbox(t, "fault", "clear")
	r = runPlan(t, "health", 0)
	after := podNetworkHealths(t, "health")
	for name, h := range during {
		now, ok := after[name]
		switch {
		case !ok || now.UID != h.UID:
			t.Errorf("%s is another object after the fault", name)
		case now.Status.Reachability != networkhealth.Reachable || now.Status.ObservedBy.Run != r.Run:
			t.Errorf("after: %s is %s by run %s: %s", name, now.Status.Reachability, now.Status.ObservedBy.Run, now.Status.Message)
		case now.Status.LastTransitionTime.Equal(h.Status.LastTransitionTime) != (h.Status.Reachability == networkhealth.Reachable):
			t.Errorf("%s: changed at %s, before at %s", name, now.Status.LastTransitionTime, h.Status.LastTransitionTime)
		}
	}
	t.Logf("after it:\n%s", sandbox(t, "kubectl", "get", "podnetworkhealths", "--namespace", cluster(t).Namespace))
	nothingLeft(t)
}

// Pairs that must be unreachable pass when a fault drops all packets. At the same time, a run whose gate is
// informational fails, and passes its gate.
func TestUnreachable(t *testing.T) {
	fault(t, "drop")
	informational := start(t, "run", plans, "--plan", "ring", "--set", "gate=Nothing", "--output", "json")
	if r := runPlan(t, "isolated", 0); r.Counts.Pass != r.Counts.Expected {
		t.Errorf("all pairs are cut off: want every pair to pass:\n%s", describe(t, r))
	}
	if code := informational.wait(t); code != 0 {
		t.Errorf("exit code %d, want 0: %s", code, informational.stderr.String())
	}
	r := reportOf(t, informational)
	if r.Verdict != checkup.RunFail || !r.Passed {
		t.Errorf("want the verdict fail, and a passed gate:\n%s", describe(t, r))
	}
	checkResults(t, r)
	nothingLeft(t)
}

// Every task's image cannot be pulled. No other run is active, because the runs of a namespace share the Tasks.
func TestImageCannotBePulled(t *testing.T) {
	c := start(t, "run", plans, "--plan", "ring", "--image-tag", "v0.0.0-none")
	uid := string(pipelineRun(t, c.started(t)).UID)
	if code := c.wait(t); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !strings.Contains(c.stderr.String(), "ImagePull") {
		t.Errorf("stderr does not name the image pull: %s", c.stderr.String())
	}
	nothingLeft(t, uid)
}

// What cannot be measured is reported with the reason that Kubernetes gives.
func TestBadDays(t *testing.T) {
	t.Parallel()
	t.Run("no node matches", func(t *testing.T) {
		parallel(t)
		r := runPlan(t, "nowhere", 1)
		if r.Verdict != checkup.RunInconclusive || !strings.Contains(describe(t, r), "example.test/none") {
			t.Errorf("want inconclusive, with the selector that matches nothing:\n%s", describe(t, r))
		}
		nothingLeft(t, r.RunUID)
	})
	t.Run("unschedulable", func(t *testing.T) {
		parallel(t)
		r := runPlan(t, "unschedulable", 1)
		inconclusive(t, r, "Insufficient memory")
		kept := start(t, "evidence", r.Run)
		if code := kept.wait(t); code != 0 || !strings.Contains(kept.stdout.String(), "not scheduled: ") ||
			!strings.Contains(kept.stdout.String(), "Insufficient memory") {
			t.Errorf("evidence: exit code %d, want 0 and pods that were not scheduled:\n%s%s",
				code, kept.stdout.String(), kept.stderr.String())
		}
		nothingLeft(t, r.RunUID)
	})
	t.Run("reachable, and must not be", func(t *testing.T) {
		parallel(t)
		r := runPlan(t, "isolated", 3)
		if r.Counts.Fail != r.Counts.Expected {
			t.Errorf("all pairs are reachable: want every pair to fail:\n%s", describe(t, r))
		}
		nothingLeft(t, r.RunUID)
	})
	t.Run("kept on request", func(t *testing.T) {
		parallel(t)
		r := runPlan(t, "ring", 0, "--keep")
		if err := fixturesOf(t, r.RunUID); err != nil {
			t.Error(err)
		}
		c := cluster(t)
		remove := exec.Command("sh", "-c", strings.Replace(c.RemoveCommand(r.RunUID), "kubectl", sandboxBin+" --state "+stateDir()+" kubectl", 1))
		if out, err := remove.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		nothingLeft(t, r.RunUID)
	})
}
