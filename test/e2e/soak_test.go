// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"knative.dev/pkg/apis"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/services"
)

var (
	cleanRuns      = flag.Int("clean", 0, "runs of TestSoakClean")
	killedRuns     = flag.Int("killed", 0, "runs of TestSoakKilled")
	schedule       = flag.Bool("schedule", false, "run TestSoakSchedule, a quarter of an hour")
	rollingRuns    = flag.Int("rolling", 0, "runs of TestSoakRolling")
	regressionRuns = flag.Int("regression", 0, "runs of TestSoakRegression before something becomes slower")
)

// atOnce is how many runs a soak test has at the same time.
const atOnce = 6

// soak calls run for each number below n, some at the same time.
func soak(n int, run func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				run(int(i))
			}
		})
	}
	wg.Wait()
}

// A clean network never fails, however busy the machine is. Pairs that were not measured are counted apart.
func TestSoakClean(t *testing.T) {
	if *cleanRuns == 0 {
		t.Skip("-clean is 0")
	}
	var over atomic.Bool
	defer over.Store(true)
	for range runtime.NumCPU() {
		go func() { // keeps a core busy
			for !over.Load() {
			}
		}()
	}
	var pass, fail, other, unmeasured, undecided atomic.Int64
	soak(*cleanRuns, func(i int) {
		plan := []string{"full", "ring", "noise"}[i%3]
		c := start(t, "run", plans, "--plan", plan, "--output", "json")
		_ = c.Wait()
		r, err := readReport(c)
		if err != nil {
			t.Errorf("run %d of plan %s: %v\n%s", i, plan, err, c.stderr.String())
			return
		}
		unmeasured.Add(int64(r.Counts.Unmeasured))
		undecided.Add(int64(r.Counts.Undecided))
		switch {
		case r.Verdict == checkup.RunFail || r.Counts.Fail > 0:
			fail.Add(1)
			t.Errorf("run %d of plan %s fails on a clean network:\n%s", i, plan, describe(t, r))
		case r.Verdict == checkup.RunPass:
			pass.Add(1)
		default:
			other.Add(1)
			t.Logf("run %d of plan %s is %s:\n%s", i, plan, r.Verdict, describe(t, r))
		}
	})
	t.Logf("%d runs: %d pass, %d fail, %d other; %d pairs unmeasured, %d undecided",
		*cleanRuns, pass.Load(), fail.Load(), other.Load(), unmeasured.Load(), undecided.Load())
	nothingLeft(t)
}

// A run of which a part is killed at a random moment does not fail a clean network, and leaves nothing behind. Without
// a teardown, because its pod was killed, pods end at their own deadline.
func TestSoakKilled(t *testing.T) {
	if *killedRuns == 0 {
		t.Skip("-killed is 0")
	}
	type kill struct {
		victim string
		after  time.Duration
	}
	kills := make([]kill, *killedRuns+1)
	for i := range kills {
		victim := "task pod"
		switch p := rand.IntN(100); {
		case p < 3:
			victim = "API server"
		case p < 6:
			victim = "controller"
		case p < 30:
			victim = "planner"
		case p < 50:
			victim = "fixture"
		}
		kills[i] = kill{victim: victim, after: time.Duration(rand.Int64N(int64(40 * time.Second)))}
	}
	var (
		outage  sync.Mutex // one of the API server or the controller at a time
		mu      sync.Mutex
		results = map[string]int{}
	)
	soak(*killedRuns, func(i int) {
		k := kills[i]
		c := start(t, "run", plans, "--plan", "ring", "--output", "json")
		ended := make(chan struct{})
		go func() { _ = c.Wait(); close(ended) }()
		select {
		case <-time.After(k.after):
		case <-ended:
		}
		switch k.victim {
		case "planner":
			_ = c.Process.Kill()
		case "API server":
			outage.Lock()
			sandbox(t, "fault", "add", "restart", "kube-apiserver", "--node", "control-plane", "--for", "3s")
			outage.Unlock()
		case "controller":
			outage.Lock()
			killPod(t, "tekton-pipelines", "app.kubernetes.io/name=controller")
			outage.Unlock()
		case "fixture":
			killPod(t, cluster(t).Namespace, checkup.LabelRun+","+checkup.LabelRole)
		default:
			killPod(t, cluster(t).Namespace, "tekton.dev/pipelineRun")
		}
		<-ended
		r, err := readReport(c)
		outcome := "no report"
		if err == nil {
			outcome = string(r.Verdict)
			if r.Verdict == checkup.RunFail {
				t.Errorf("run %d, %s killed after %s, fails on a clean network:\n%s", i, k.victim, k.after, describe(t, r))
			}
		}
		mu.Lock()
		results[k.victim+": "+outcome]++
		mu.Unlock()
	})
	t.Logf("%d runs: %v", *killedRuns, results)

	c := cluster(t)
	eventually(t, 15*time.Minute, func() error {
		runs, err := c.Tekton.TektonV1().PipelineRuns(c.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, r := range runs.Items {
			if r.Status.GetCondition(apis.ConditionSucceeded).IsUnknown() {
				return fmt.Errorf("PipelineRun %s has not ended", r.Name)
			}
		}
		return nil
	})
	eventually(t, 3*time.Minute, func() error { return beyondDesign(t) })
	if err := remains(t, ""); err != nil {
		t.Logf("left by design, each within its own deadline: %v", err)
	}
	eventually(t, 15*time.Minute, func() error { return running(t) })
}

// readReport returns the report that a planner which has ended printed.
func readReport(c *command) (*checkup.Report, error) {
	if len(c.stdout.Bytes()) == 0 {
		return nil, fmt.Errorf("exit code %d without a report", c.ProcessState.ExitCode())
	}
	return print.Read(strings.NewReader(c.stdout.String()))
}

// killPod deletes one pod of these at once, as the loss of its node would.
func killPod(t *testing.T, namespace, selector string) {
	t.Helper()
	pods, err := cluster(t).Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Logf("list pods %s: %v", selector, err)
		return
	}
	var active []corev1.Pod
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodPending {
			active = append(active, p)
		}
	}
	if len(active) == 0 {
		return
	}
	victim := active[rand.IntN(len(active))]
	now := int64(0)
	err = cluster(t).Kube.CoreV1().Pods(namespace).Delete(t.Context(), victim.Name,
		metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &victim.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Logf("delete pod %s: %v", victim.Name, err)
	}
}

// fixturePods returns the pods that runs made, of any run.
func fixturePods(t *testing.T) ([]corev1.Pod, error) {
	t.Helper()
	roles := make([]string, len(checkup.FixtureRoles))
	for i, role := range checkup.FixtureRoles {
		roles[i] = string(role)
	}
	pods, err := cluster(t).Kube.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{
		LabelSelector: fmt.Sprintf("%s in (%s)", checkup.LabelRole, strings.Join(roles, ","))})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

// beyondDesign returns an error if a pod is left that has no deadline of its own.
func beyondDesign(t *testing.T) error {
	t.Helper()
	pods, err := fixturePods(t)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Spec.ActiveDeadlineSeconds == nil {
			return fmt.Errorf("pod %s is left, without a deadline", p.Name)
		}
	}
	return nil
}

// running returns an error if a fixture still runs after its own deadline, or before it.
func running(t *testing.T) error {
	t.Helper()
	pods, err := fixturePods(t)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodPending {
			continue
		}
		ends := p.CreationTimestamp.Add(time.Duration(*p.Spec.ActiveDeadlineSeconds) * time.Second)
		if over := time.Since(ends); over > time.Minute {
			t.Errorf("pod %s runs %s after its deadline of %d s", p.Name, over, *p.Spec.ActiveDeadlineSeconds)
		}
		return fmt.Errorf("pod %s runs until %s", p.Name, ends.Format(time.TimeOnly))
	}
	return nil
}

// Endpoints that change all the time are no failure: a Deployment of 10 restarts through each run, and the rules of its
// Services, the connections to them, and the DNS answers about them are looked at, beside a canary. What changed
// meanwhile is unmeasured, and nothing else: all about other Services passes. Of the connections and answers, most are
// measured: their Services keep their addresses.
func TestSoakRolling(t *testing.T) {
	if *rollingRuns == 0 {
		t.Skip("-rolling is 0")
	}
	serveServices(t)
	makeNamespace(t, runsNamespace)
	deploy(t, "rolling", 10)
	deployed(t)
	core := cluster(t).Kube.CoreV1().Services(servicesNamespace)
	for name, spec := range map[string]corev1.ServiceSpec{
		"rolling":          {},
		"rolling-local":    {InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal)},
		"rolling-sticky":   {SessionAffinity: corev1.ServiceAffinityClientIP},
		"rolling-headless": {ClusterIP: corev1.ClusterIPNone},
	} {
		spec.Selector, spec.IPFamilyPolicy = map[string]string{"app": "rolling"}, new(corev1.IPFamilyPolicyPreferDualStack)
		spec.Ports = []corev1.ServicePort{{Name: "tcp", Port: 80, TargetPort: intstr.FromString("http")}}
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: spec.Selector}, Spec: spec}
		if _, err := core.Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// What each check expects of the Services that roll, in one run.
	rolling := map[string]int{}
	x := explain(t, "rolling", runsNamespace)
	sheet, err := services.SheetOf(x.check(t, "services").Worksheet)
	if err != nil {
		t.Fatal(err)
	}
	for p := range x.check(t, "services").Worksheet.Pairs() {
		if rolls(sheet.Service(p.Target)) {
			rolling["services"]++
		}
	}
	rolling["dns"] = x.check(t, "dns").Pairs // and a few of a name that does not exist
	over, restarts := make(chan struct{}), make(chan int)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-over:
				restarts <- n
				return
			default:
			}
			for _, args := range [][]string{{"restart"}, {"status", "--timeout", "2m"}} {
				args = append([]string{"kubectl", "-n", servicesNamespace, "rollout", args[0], "deployment/rolling"}, args[1:]...)
				if out, err := sandboxCommand(args...).CombinedOutput(); err != nil {
					t.Errorf("%v: %v\n%s", args, err, out)
				}
			}
		}
	}()
	var pass, other, runs int
	unmeasured := map[string]int{} // by check
	for i := range *rollingRuns {
		began := time.Now()
		c := start(t, "run", plans, "--plan", "rolling", "--output", "json", "--namespace", runsNamespace)
		_ = c.Wait()
		r, err := readReport(c)
		if err != nil {
			t.Errorf("run %d: %v\n%s", i+1, err, c.stderr.String())
			continue
		}
		runs++
		t.Logf("run %d: %s, after %s", i+1, r.Summary, time.Since(began).Round(time.Second))
		for _, check := range r.Checks {
			unmeasured[check.Name] += check.Counts.Unmeasured
			listed := 0
			for _, u := range check.Units {
				if u.Verdict == checkup.Unmeasured {
					listed++
				}
				if u.Verdict != checkup.Pass && !rolls(u.Labels["service"]) {
					t.Errorf("run %d, check %s: %s of %s, which does not roll: %v", i+1, check.Name, u.Verdict, u.Name, u.Cause)
				}
			}
			if listed != check.Counts.Unmeasured || check.Counts.Expected == 0 {
				t.Errorf("run %d, check %s: %d of %d unmeasured units are in the report, of %d expected", i+1, check.Name, listed,
					check.Counts.Unmeasured, check.Counts.Expected)
			}
		}
		switch {
		case r.Verdict == checkup.RunFail || r.Counts.Fail > 0 || len(findings(r)) > 0:
			t.Errorf("run %d fails, although endpoints only change:\n%s", i+1, describe(t, r))
		case r.Verdict == checkup.RunPass:
			pass++
		default:
			other++
		}
	}
	close(over)
	t.Logf("%d runs during %d restarts: %d pass, %d other; units unmeasured by check: %v; expected in a run of what rolls: %v",
		*rollingRuns, <-restarts, pass, other, unmeasured, rolling)
	for check, n := range rolling {
		if 2*unmeasured[check] > runs*n {
			t.Errorf("check %s: %d units of Services that roll are unmeasured, more than half of %d", check, unmeasured[check], runs*n)
		}
	}
	nothingLeft(t)
}

// rolls reports whether a Service, as namespace/name, is one of TestSoakRolling's that roll.
func rolls(service string) bool { return strings.HasPrefix(service, servicesNamespace+"/rolling") }

// A schedule of one minute: 12 runs are due. A node receives nothing in runs 5 to 7, and the API is away when run 9 is
// due. The history shows exactly that.
func TestSoakSchedule(t *testing.T) {
	if !*schedule {
		t.Skip("-schedule is false")
	}
	const plan, kept = "watched", 5
	dir := t.TempDir()
	if c := start(t, "compile", "testdata/watched.cue", "--output-dir", dir); c.wait(t) != 0 {
		t.Fatal(c.stderr.String())
	}
	sandbox(t, "kubectl", "apply", "--server-side", "--field-manager", run.FieldManager, "-k", dir)
	t.Cleanup(func() { sandbox(t, "kubectl", "delete", "-n", cluster(t).Namespace, "cronjob", plan) })
	overview := func() (o history.Overview) {
		c := start(t, "history", plan, "--output", "json")
		if c.wait(t) == 0 {
			if err := json.Unmarshal(c.stdout.Bytes(), &o); err != nil {
				t.Fatal(err)
			}
		}
		return o
	}
	ended := func(n int) (o history.Overview) {
		t.Helper()
		eventually(t, 5*time.Minute, func() error {
			if o = overview(); len(o.Runs) < n {
				return fmt.Errorf("%d runs are in the history, want %d", len(o.Runs), n)
			}
			return nil
		})
		return o
	}

	var covered []int
	cover := func(o history.Overview) { covered = append(covered, o.Coverage[0].Measured) }
	for n := 1; n <= 4; n++ {
		cover(ended(n))
	}
	sandbox(t, "fault", "add", "drop", "--node", "worker-2", "--direction", "ingress")
	ended(7)
	sandbox(t, "fault", "clear")
	o := ended(8)
	due := o.Runs[7].Started.Truncate(time.Minute).Add(time.Minute)
	time.Sleep(time.Until(due.Add(-10 * time.Second)))
	sandbox(t, "fault", "add", "restart", "kube-apiserver", "--node", "control-plane", "--for", "35s")
	o = ended(11)
	start(t, "schedule", "suspend", plan).wait(t)
	cover(o)

	var verdicts []checkup.RunVerdict
	for _, r := range o.Runs {
		verdicts = append(verdicts, r.Verdict)
	}
	pass, fail := checkup.RunPass, checkup.RunFail
	want := []checkup.RunVerdict{pass, pass, pass, pass, fail, fail, fail, pass, pass, pass, pass}
	if !slices.Equal(verdicts, want) {
		t.Errorf("verdicts %v, want %v", verdicts, want)
	}
	// The run after the outage may be late. Then the next one is due beside it, and does not start (Forbid): a second gap.
	events := []history.Reason{history.VerdictFail, history.VerdictPass, history.RunsMissing}
	after := o.Runs[8].Started
	late := after.Sub(after.Truncate(time.Minute)) > 20*time.Second
	switch between := func(g history.Gap, i int) bool {
		return g.After.Equal(o.Runs[i].Started) && g.Before.Equal(o.Runs[i+1].Started)
	}; {
	case len(o.Gaps) == 0 || o.Gaps[0].Missed > 2 || !between(o.Gaps[0], 7):
		t.Errorf("gaps %+v, want one of one or two runs after run 8", o.Gaps)
	case len(o.Gaps) == 2 && late && o.Gaps[1].Missed == 1 && between(o.Gaps[1], 8):
		events = append(events, history.RunsMissing)
	case len(o.Gaps) > 1:
		t.Errorf("gaps %+v, want one after run 8; and one after run 9, of one run, only if that was late", o.Gaps)
	}
	if len(o.Findings) == 0 {
		t.Error("the history has no findings")
	}
	for _, f := range o.Findings {
		if f.First.Before(o.Runs[4].Started) || f.Last.After(o.Runs[7].Started) {
			t.Errorf("finding %+v, want it in runs 5 to 7 only", f)
		}
	}
	if !slices.IsSorted(covered) || covered[0] >= o.Coverage[0].Possible || covered[len(covered)-1] != o.Coverage[0].Possible {
		t.Errorf("cumulative coverage %v, want it to grow to the full mesh, %d pairs", covered, o.Coverage[0].Possible)
	}
	if err := announced(t, plan, events...); err != nil {
		t.Error(err)
	}
	// When a run starts, those that finished before it are cut to the plan's number.
	if runs := scheduledRuns(t, plan); len(runs) != kept+1 {
		t.Errorf("%d runs are in the cluster, want the newest and %d before it: %v", len(runs), kept, runs)
	}
	text := start(t, "history", plan)
	text.wait(t)
	t.Logf("coverage %v\n%s", covered, text.stdout.String())
}

// TestSoakRegression is TestRegression after many runs: none of them finds anything.
func TestSoakRegression(t *testing.T) {
	if *regressionRuns == 0 {
		t.Skip("-regression is 0")
	}
	becomesSlower(t, *regressionRuns)
}
