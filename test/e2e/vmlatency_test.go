// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kvcorev1 "kubevirt.io/client-go/kubevirt/typed/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	survey "github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/cost"
)

// The tests of VMs run on a sandbox of their own: `sandbox up --worker-names node01,node02 --with multus,kubevirt`.
const vms = "testdata/vms.cue"

// silentImage is created by silentDisk.
const silentImage = "ghcr.io/checkplan/checkplan/silent:v1"

var (
	vmiResource = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}
	nadResource = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
)

// vm is what was observed of one VirtualMachineInstance. The time of what did not happen is zero.
type vm struct {
	namespace, name, node string
	labels                map[string]string
	created, gone         time.Time
	deleting              time.Time
	phases                map[kubevirtv1.VirtualMachineInstancePhase]time.Time
}

// watchVMs watches every VirtualMachineInstance that is created or deleted in the cluster, until the returned function
// is called. That function returns the VMs of one run, or all for "".
func watchVMs(t *testing.T) (seen func(runUID string) []vm) {
	t.Helper()
	vmis := cluster(t).Dynamic.Resource(vmiResource)
	list, err := vmis.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("want a sandbox with --with multus,kubevirt: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFunc: func(options metav1.ListOptions) (watch.Interface, error) { return vmis.Watch(ctx, options) }})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan struct{})
	var all []*vm
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			u, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				t.Errorf("watching VMs: %v", apierrors.FromObject(event.Object))
				return
			}
			var vmi kubevirtv1.VirtualMachineInstance
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &vmi); err != nil {
				t.Errorf("watching VMs: %v", err)
				return
			}
			i := slices.IndexFunc(all, func(v *vm) bool { return v.namespace == vmi.Namespace && v.name == vmi.Name })
			if i < 0 {
				i = len(all)
				all = append(all, &vm{namespace: vmi.Namespace, name: vmi.Name, labels: vmi.Labels, created: time.Now(),
					phases: map[kubevirtv1.VirtualMachineInstancePhase]time.Time{}})
			}
			v, now := all[i], time.Now()
			if vmi.Status.NodeName != "" {
				v.node = vmi.Status.NodeName
			}
			if _, ok := v.phases[vmi.Status.Phase]; !ok {
				v.phases[vmi.Status.Phase] = now
			}
			if vmi.DeletionTimestamp != nil && v.deleting.IsZero() {
				v.deleting = now
			}
			if event.Type == watch.Deleted {
				v.gone = now
			}
		}
	}()
	return func(runUID string) []vm {
		time.Sleep(time.Second) // for the last events
		cancel()
		<-done
		var of []vm
		for _, v := range all {
			if runUID == "" || v.labels[checkup.LabelRun] == runUID {
				of = append(of, *v)
			}
		}
		return of
	}
}

// vmRun is a run of a plan of VMs.
type vmRun struct {
	*command
	started time.Time
	report  *checkup.Report
	uid     string
	vms     []vm
}

// runVMs runs a plan to its end and watches its VMs. It checks what is true of every run: the exit code, the results,
// and that nothing is left.
func runVMs(t *testing.T, plan string, wantCode int, args ...string) vmRun {
	t.Helper()
	seen := watchVMs(t)
	r := vmRun{started: time.Now(), command: start(t, append([]string{"run", vms, "--plan", plan, "--output", "json"}, args...)...)}
	r.end(t, wantCode, seen)
	return r
}

// handlerErrors returns the last errors that each virt-handler logged.
func handlerErrors(t *testing.T, since time.Time) string {
	t.Helper()
	pods := cluster(t).Kube.CoreV1().Pods("kubevirt")
	list, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "kubevirt.io=virt-handler"})
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, pod := range list.Items {
		out, err := pods.GetLogs(pod.Name, &corev1.PodLogOptions{Container: "virt-handler", SinceTime: &metav1.Time{Time: since}}).DoRaw(t.Context())
		lines := slices.DeleteFunc(strings.Split(string(out), "\n"), func(l string) bool { return !strings.Contains(l, "error") && !strings.Contains(l, "not yet ready") })
		all = append(all, fmt.Sprintf("%s, %d lines with errors, read: %v", pod.Name, len(lines), err))
		all = append(all, lines[max(0, len(lines)-10):]...)
	}
	return strings.Join(all, "\n")
}

// end waits for the end of a started run, and checks it as runVMs describes.
func (r *vmRun) end(t *testing.T, wantCode int, seen func(string) []vm) {
	t.Helper()
	if code := r.wait(t); code != wantCode {
		t.Errorf("%s: exit code %d, want %d\n%s\n%s\n%s", strings.Join(r.Args, " "), code, wantCode, r.stderr.String(), text(t, r.stdout.Bytes()),
			handlerErrors(t, r.started))
	}
	r.report = reportOf(t, r.command)
	r.uid = r.report.RunUID
	t.Logf("%s\n%s", strings.Join(r.Args[1:], " "), describe(t, r.report))
	checkResults(t, r.report)
	if len(r.report.Leftovers) > 0 {
		t.Errorf("left behind: %q", r.report.Leftovers)
	}
	// Everything is deleted when the run ends, not some time later.
	if err := remains(t, r.uid); err != nil {
		t.Errorf("after the run: %v", err)
	}
	r.vms = seen(r.uid)
}

// unmeasuredBecause checks that every pair of a run is unmeasured, and that one cause of the report contains all of the
// words.
func (r vmRun) unmeasuredBecause(t *testing.T, words ...string) {
	t.Helper()
	inconclusive(t, r.report, words[0])
	if c := r.report.Counts; c.Pass != 0 {
		t.Errorf("%d pairs passed, want none", c.Pass)
	}
	r.caused(t, words...)
}

// caused checks that one cause of the report contains all of the words.
func (r vmRun) caused(t *testing.T, words ...string) {
	t.Helper()
	var causes []string
	for _, c := range r.report.Checks {
		if c.Cause != nil {
			causes = append(causes, c.Cause.String())
		}
		for _, u := range c.Units {
			if u.Cause != nil {
				causes = append(causes, u.Cause.String())
			}
		}
	}
	slices.Sort(causes)
	causes = slices.Compact(causes)
	if !slices.ContainsFunc(causes, func(cause string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(cause, w) })
	}) {
		t.Errorf("no cause contains all of %q:\n%s", words, strings.Join(causes, "\n"))
	}
}

// noVM checks that no VM was created.
func (r vmRun) noVM(t *testing.T) {
	t.Helper()
	if len(r.vms) > 0 {
		t.Errorf("VMs were created: %+v", r.vms)
	}
}

// waysOf returns the units of a check of VMs that have this direction.
func waysOf(c checkup.CheckReport, way string) []checkup.Unit {
	return slices.DeleteFunc(slices.Clone(c.Units), func(u checkup.Unit) bool { return u.Labels[checkup.UnitWay] != way })
}

// durationOf returns how long a unit was measured; 0 if it was not.
func durationOf(u checkup.Unit) time.Duration {
	for _, v := range u.Values {
		if v.Name == checkup.UnitDuration {
			return time.Duration(v.Value * float64(time.Microsecond))
		}
	}
	return 0
}

// onePair checks that a run passed with one pair of VMs: on which nodes the VMs ran, by the report and by KubeVirt, how
// much was sent, and that the delays are plausible. It returns the first unit from source to target.
func (r vmRun) onePair(t *testing.T, sent int, interval time.Duration, families ...checkup.IPFamily) checkup.Unit {
	t.Helper()
	if r.report.Verdict != checkup.RunPass || len(findings(r.report)) > 0 {
		t.Errorf("want a pass:\n%s", describe(t, r.report))
	}
	if len(r.report.Checks) != 1 || len(r.report.Checks[0].Units) != 2*len(families) {
		t.Fatalf("want one pair of VMs, both ways in %q: %+v", families, r.report.Checks)
	}
	there, back := waysOf(r.report.Checks[0], checkup.WayThere), waysOf(r.report.Checks[0], checkup.WayBack)
	if len(there) != len(families) || len(back) != len(families) {
		t.Fatalf("there %+v, back %+v, want %q", there, back, families)
	}
	nodes := []string{there[0].Labels[checkup.UnitSourceNode], there[0].Labels[checkup.UnitTargetNode]}
	var ran []string
	for _, v := range r.vms {
		ran = append(ran, v.node)
	}
	slices.Sort(ran)
	slices.Sort(nodes)
	if !slices.Equal(nodes, ran) || !slices.Equal(ran, []string{"node01", "node02"}) {
		t.Errorf("by the report the VMs ran on %q, by KubeVirt on %q: want node01 and node02", nodes, ran)
	}
	for i, f := range there {
		if f.Family != families[i] || f.Verdict != checkup.Pass || f.Cause != nil {
			t.Errorf("%s: want a pass there: %+v", families[i], f)
		}
		if b := back[i]; b.Family != families[i] || b.Verdict != checkup.Pass || b.Cause != nil || b.Source != f.Target || b.Target != f.Source {
			t.Errorf("%s: want a pass back: %+v", families[i], b)
		}
		if took := time.Duration(sent) * interval; f.Sent != sent || f.Received != sent || f.Duplicates != 0 || durationOf(f) != took {
			t.Errorf("%s: sent %d, received %d, %d duplicates, in %s; want %d in %s, and none lost", f.Family, f.Sent, f.Received, f.Duplicates, durationOf(f), sent, took)
		}
		sane(t, f)
	}
	return there[0]
}

// sane checks that the delays of a unit are plausible.
func sane(t *testing.T, f checkup.Unit) {
	t.Helper()
	d := f.Delay
	if d == nil {
		t.Errorf("%s: no delay", f.Family)
		return
	}
	if d.Min <= 0 || d.Min > d.P50 || d.P50 > d.P90 || d.P90 > d.P95 || d.P95 > d.P99 || d.P99 > d.Max || d.Mean < d.Min || d.Mean > d.Max {
		t.Errorf("%s: delays are out of order: %+v", f.Family, *d)
	}
	// The standard deviation of values between min and max is at most half the range.
	if d.StdDev <= 0 || d.StdDev > (d.Max-d.Min)/2+1 || d.Jitter <= 0 {
		t.Errorf("%s: standard deviation %d, jitter %d of delays from %d to %d", f.Family, d.StdDev, d.Jitter, d.Min, d.Max)
	}
}

// phases logs how long the phases of a run took.
func (r vmRun) phases(t *testing.T, title string) {
	t.Helper()
	pr := pipelineRun(t, r.report.Run)
	var b strings.Builder
	from := r.started
	line := func(what string, until time.Time) {
		if until.IsZero() {
			fmt.Fprintf(&b, "  %-38s never\n", what)
			return
		}
		fmt.Fprintf(&b, "  %-38s %5.1fs\n", what, until.Sub(r.started).Seconds())
	}
	latest := func(of func(vm) time.Time) (last time.Time) {
		for _, v := range r.vms {
			if at := of(v); at.After(last) {
				last = at
			}
		}
		return last
	}
	fmt.Fprintf(&b, "%s, seconds since %s:\n", title, from.Format(time.TimeOnly))
	line("run created", pr.CreationTimestamp.Time)
	line("VMs created", latest(func(v vm) time.Time { return v.created }))
	line("VMs scheduled", latest(func(v vm) time.Time { return v.phases[kubevirtv1.Scheduled] }))
	line("VMs running", latest(func(v vm) time.Time { return v.phases[kubevirtv1.Running] }))
	steps := map[string][2]time.Time{}
	taskRuns, err := cluster(t).Tekton.TektonV1().TaskRuns(pr.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "tekton.dev/pipelineRun=" + pr.Name})
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range taskRuns.Items {
		for _, s := range tr.Status.Steps {
			if s.Terminated != nil {
				steps[tr.Labels["tekton.dev/pipelineTask"]+" "+s.Name] = [2]time.Time{s.Terminated.StartedAt.Time, s.Terminated.FinishedAt.Time}
			}
		}
	}
	for _, step := range slices.SortedFunc(maps.Keys(steps), func(a, b string) int { return steps[a][0].Compare(steps[b][0]) }) {
		line(step+" starts", steps[step][0])
		line(step+" ends", steps[step][1])
	}
	line("VMs deleted", latest(func(v vm) time.Time { return v.deleting }))
	line("VMs gone", latest(func(v vm) time.Time { return v.gone }))
	if done := pr.Status.CompletionTime; done != nil {
		line("run ended", done.Time)
	}
	t.Log(b.String())
}

// Show 1: two VMs on a bridge network between two nodes, with both families. What explain predicts is what runs.
func TestVMLatency(t *testing.T) {
	explain := start(t, "explain", vms, "--plan", "nodes", "--output", "json")
	if code := explain.wait(t); code != 0 {
		t.Fatalf("explain: exit code %d, want 0: %s", code, explain.stderr.String())
	}
	var explained struct {
		Checks []cost.Cost `json:"checks"`
	}
	if err := json.Unmarshal(explain.stdout.Bytes(), &explained); err != nil {
		t.Fatal(err)
	}
	r := runVMs(t, "nodes", 0)
	pair := r.onePair(t, 50, 100*time.Millisecond, checkup.IPv4, checkup.IPv6)
	if l := pair.Labels; l[checkup.UnitSourceNode] != "node01" || l[checkup.UnitTargetNode] != "node02" || l[checkup.UnitNetwork] != "default/br10" {
		t.Errorf("measured %v, want node01 to node02 on default/br10", l)
	}
	got, want := r.report.Checks[0], explained.Checks[0]
	if got.Counts.Expected != want.Pairs || want.Pairs != 4 {
		t.Errorf("explain predicts %d pairs; %d were expected: want 4, two families in both directions", want.Pairs, got.Counts.Expected)
	}
	if got.Sent != want.Packets || want.Packets != 2*(50+checkup.VMConnectivityCount) {
		t.Errorf("explain predicts %d packets; %d were sent", want.Packets, got.Sent)
	}
	if want.VMs != len(r.vms) || want.VMs != 2 {
		t.Errorf("explain predicts %d VMs; %d ran: want 2", want.VMs, len(r.vms))
	}
	r.phases(t, "own guest")
	nothingLeft(t)
}

// Show 2: faults of the second network are reported. The pod network is not affected.
func TestVMFaults(t *testing.T) {
	over := regexp.MustCompile(`^max ([^,]+), limit 200ms$`)
	t.Run("delay", func(t *testing.T) {
		fault(t, "delay", "--by", "400ms", "--network", "br10", "--from", "node01", "--to", "node02")
		pods := start(t, "run", plans, "--plan", "ring", "--output", "json")
		r := runVMs(t, "limited", 3)
		if code := pods.wait(t); code != 0 {
			t.Errorf("the pod network is affected: exit code %d, want 0: %s\n%s", code, pods.stderr.String(), text(t, pods.stdout.Bytes()))
		}
		if r.report.Verdict != checkup.RunFail {
			t.Errorf("verdict %s of 400 ms with a limit of 200 ms, want fail", r.report.Verdict)
		}
		for _, f := range waysOf(r.report.Checks[0], checkup.WayThere) {
			if f.Verdict != checkup.Fail || f.Cause == nil || f.Received != f.Sent || len(f.Breaches) != 1 || f.Breaches[0].Limit != checkup.LimitMax {
				t.Errorf("want a slow pair without loss: %+v", f)
				continue
			}
			m := over.FindStringSubmatch(f.Cause.Message)
			if m == nil {
				t.Errorf("cause %q, want %s", f.Cause.Message, over)
				continue
			}
			actual, err := time.ParseDuration(m[1])
			if err != nil || actual.Microseconds() != f.Delay.Max {
				t.Errorf("cause %q, but the maximum delay is %d µs, %v", f.Cause.Message, f.Delay.Max, err)
			}
			if f.Delay.Min < 400_000 || f.Delay.Min > 600_000 {
				t.Errorf("%s: minimum %d µs of a delay of 400 ms, want 400 to 600 ms", f.Family, f.Delay.Min)
			}
			sane(t, f)
		}
	})
	t.Run("loss", func(t *testing.T) {
		fault(t, "loss", "--percent", "20", "--network", "br10", "--from", "node01", "--to", "node02")
		// One check has no limit, the other has a limit of 5%.
		r := runVMs(t, "lossy", 3)
		if got := fmt.Sprintf("%s %s %s", r.report.Verdict, r.report.Checks[0].Verdict, r.report.Checks[1].Verdict); got != "fail pass fail" {
			t.Errorf("verdicts of the run, the check without a limit and the check with a limit: %s, want fail pass fail", got)
		}
		r.caused(t, "limit 5%")
		const p, n = 0.2, 4 * 150
		sent, received := 0, 0
		for _, c := range r.report.Checks {
			for _, f := range waysOf(c, checkup.WayThere) {
				sent, received = sent+f.Sent, received+f.Received
				want := 100 * float64(f.Sent-f.Received) / float64(f.Sent)
				for _, b := range f.Breaches {
					if b.Limit != checkup.LimitLoss || math.Abs(b.Measured-want) > 0.05 {
						t.Errorf("%s: %d of %d received, but the breach is %+v", f.Family, f.Received, f.Sent, b)
					}
				}
			}
		}
		// Five standard deviations: exceeded by chance once in two million runs.
		lost := float64(sent-received) / float64(sent)
		if bound := 5 * math.Sqrt(p*(1-p)/n); sent != n || math.Abs(lost-p) > bound {
			t.Errorf("measured %.1f%% of %d for a loss of 20%%, want %d, and 20%% to within %.1f%%", 100*lost, sent, n, 100*bound)
		}
	})
	t.Run("cut", func(t *testing.T) {
		fault(t, "drop", "--network", "br10")
		cutCheckup(t)
	})
	nothingLeft(t)
}

// Without KubeVirt and Multus, the report names what is missing. It runs on the sandbox of the tests that need neither.
func TestNoKubeVirt(t *testing.T) {
	parallel(t)
	r := runFile(t, vms, "anywhere", 1)
	vmRun{report: r}.unmeasuredBecause(t, "KubeVirt", "not installed")
	nothingLeft(t, r.RunUID)
}

// What can be measured is measured. The report names what cannot.
func TestVMPrerequisites(t *testing.T) {
	parallel(t)
	r := runVMs(t, "wanting", 1)
	inconclusive(t, r.report, "node-that-is-not")
	r.caused(t, "node-that-is-not")
	r.caused(t, "no-such-network")
	r.caused(t, "broken")
	if r.report.Counts.Pass != 2 || len(r.vms) != 2 {
		t.Errorf("%d pairs passed with %d VMs, want 2 pairs with 2 VMs: those that can be measured:\n%s", r.report.Counts.Pass, len(r.vms), describe(t, r.report))
	}
	nothingLeft(t, r.uid)
}

// A run that may not read the network of another namespace reports the missing right.
func TestVMForbiddenNetwork(t *testing.T) {
	parallel(t)
	c := cluster(t)
	placementNamespace(t, c.Kube, "vm-elsewhere", nil)
	theirs := c.Dynamic.Resource(nadResource).Namespace("vm-elsewhere")
	if _, err := theirs.Create(t.Context(), bridgeNetwork("theirs"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if compiled := start(t, "compile", vms, "--output-dir", dir); compiled.wait(t) != 0 {
		t.Fatal(compiled.stderr.String())
	}
	// What an administrator of only the run's namespace can do: apply everything except objects of another namespace.
	var own []string
	var sample string
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		switch {
		case err != nil || !strings.HasSuffix(path, ".yaml") || strings.HasPrefix(d.Name(), "kustomiz"):
		case strings.Contains(path, "/samples/"):
			if strings.Contains(path, "foreign") {
				sample = string(b)
			}
		default:
			for document := range strings.SplitSeq(string(b), "\n---\n") {
				if !strings.Contains(document, "namespace: vm-elsewhere") {
					own = append(own, document)
				}
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	kubectlApply(t, strings.Join(own, "\n---\n"))
	create := sandboxCommand("kubectl", "create", "-f", "-", "-o", "name")
	create.Stdin = strings.NewReader(sample)
	out, err := create.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl create: %v\n%s\n%s", err, out, sample)
	}
	_, name, _ := strings.Cut(strings.TrimSpace(string(out)), "/")
	seen := watchVMs(t)
	eventually(t, 2*time.Minute, func() error {
		if !pipelineRun(t, name).IsDone() {
			return errors.New("the run has not finished")
		}
		return nil
	})
	again := start(t, "report", name, "--output", "json")
	again.wait(t)
	r := vmRun{command: again, report: reportOf(t, again)}
	r.vms = seen(r.report.RunUID)
	r.unmeasuredBecause(t, "vm-elsewhere", "network-attachment-definitions", "get")
	r.noVM(t)
	nothingLeft(t, r.report.RunUID)
}

// bridgeNetwork returns a NetworkAttachmentDefinition of the bridge br10 with another name.
func bridgeNetwork(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"config": fmt.Sprintf(`{"cniVersion":"0.4.0","name":%q,"type":"bridge","bridge":"br10","ipam":{}}`, name)},
	}}
}

// In whatever way a run is cancelled, its VMs and their pods are deleted within a minute.
func TestVMCancel(t *testing.T) {
	parallel(t)
	cancelled := map[string]func(t *testing.T, c *command, run string){
		"Ctrl-C": func(t *testing.T, c *command, _ string) {
			if err := c.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		},
		"Cancelled": func(t *testing.T, _ *command, run string) { cancel(t, run, pipelinev1.PipelineRunSpecStatusCancelled) },
	}
	for _, how := range []string{"Ctrl-C", "Cancelled"} {
		for _, when := range []string{"boot", "measuring"} {
			if how == "Ctrl-C" && when == "measuring" {
				continue // teardown runs as without a cancellation
			}
			t.Run(how+" during "+when, func(t *testing.T) {
				c := start(t, "run", vms, "--plan", "long", "--output", "json")
				name := c.started(t)
				uid := string(pipelineRun(t, name).UID)
				if when == "boot" {
					eventually(t, 2*time.Minute, func() error { return vmsExist(t, uid, 2, "") })
				} else {
					measuring(t, name, uid)
				}
				cancelled[how](t, c, name)
				within(t, time.Minute, func() error { return remains(t, uid) })
				if code := c.wait(t); code != 1 {
					t.Errorf("exit code %d, want 1: %s", code, c.stderr.String())
				}
				if how == "Ctrl-C" {
					if r := reportOf(t, c); r.Verdict != checkup.RunInconclusive || r.Passed || r.Counts.Pass+r.Counts.Fail > 0 {
						t.Errorf("want inconclusive, without measured pairs:\n%s", describe(t, r))
					}
				}
			})
		}
	}
}

// vmsExist returns nil if a run has at least n VMs in a phase, or for "" in any.
func vmsExist(t *testing.T, runUID string, n int, phase kubevirtv1.VirtualMachineInstancePhase) error {
	t.Helper()
	if found := vmsIn(t, runUID, phase); len(found) < n {
		return fmt.Errorf("%d VMs in phase %q of run %s", len(found), phase, runUID)
	}
	return nil
}

func vmsIn(t *testing.T, runUID string, phase kubevirtv1.VirtualMachineInstancePhase) []unstructured.Unstructured {
	t.Helper()
	list, err := cluster(t).Dynamic.Resource(vmiResource).List(t.Context(), metav1.ListOptions{LabelSelector: checkup.LabelRun + "=" + runUID})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(u unstructured.Unstructured) bool {
		is, _, _ := unstructured.NestedString(u.Object, "status", "phase")
		return phase != "" && is != string(phase)
	})
}

// measuring waits until the VMs of a run have been measured for some seconds, so that there are first answers.
func measuring(t *testing.T, run, runUID string) {
	t.Helper()
	eventually(t, 4*time.Minute, func() error {
		if done := pipelineRun(t, run); done.IsDone() {
			t.Fatalf("PipelineRun %s ended before its VMs were measured: %v", run, done.Status.Conditions)
		}
		if err := vmsExist(t, runUID, 2, kubevirtv1.Running); err != nil {
			return err
		}
		pods, err := cluster(t).Kube.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{
			LabelSelector: fmt.Sprintf("tekton.dev/pipelineRun=%s,tekton.dev/pipelineTask=probe-vms", run)})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			for _, s := range p.Status.ContainerStatuses {
				if s.State.Running != nil && time.Since(s.State.Running.StartedAt.Time) > 6*time.Second {
					return nil
				}
			}
		}
		return errors.New("nothing is measured yet")
	})
}

// Disturbances of a run while it measures.
func TestVMDisturbed(t *testing.T) {
	// disturb starts a plan and does something to it while it measures.
	disturb := func(t *testing.T, plan string, wantCode int, do func(t *testing.T, run, uid string)) vmRun {
		t.Helper()
		seen := watchVMs(t)
		r := vmRun{started: time.Now(), command: start(t, "run", vms, "--plan", plan, "--output", "json")}
		name := r.command.started(t)
		uid := string(pipelineRun(t, name).UID)
		measuring(t, name, uid)
		do(t, name, uid)
		r.end(t, wantCode, seen)
		return r
	}
	t.Run("VM deleted", func(t *testing.T) {
		r := disturb(t, "long", 1, func(t *testing.T, _, uid string) {
			for _, u := range vmsIn(t, uid, kubevirtv1.Running) {
				if node, _, _ := unstructured.NestedString(u.Object, "status", "nodeName"); node == "node01" { // the source
					err := cluster(t).Dynamic.Resource(vmiResource).Namespace(u.GetNamespace()).Delete(t.Context(), u.GetName(), metav1.DeleteOptions{})
					if err != nil {
						t.Fatal(err)
					}
				}
			}
		})
		inconclusive(t, r.report, "unmeasured")
		if f := waysOf(r.report.Checks[0], checkup.WayThere)[0]; f.Verdict != checkup.Unmeasured || f.Cause == nil {
			t.Errorf("the source was deleted: want unmeasured with a cause: %+v", f)
		}
	})
	t.Run("console taken and network deleted", func(t *testing.T) {
		c := cluster(t)
		doomed := c.Dynamic.Resource(nadResource).Namespace(c.Namespace)
		if _, err := doomed.Create(t.Context(), bridgeNetwork("doomed"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { doomed.Delete(context.Background(), "doomed", metav1.DeleteOptions{}) }) // if it still exists
		// A deleted network does not detach running VMs.
		r := disturb(t, "doomed", 0, func(t *testing.T, _, uid string) {
			for _, u := range vmsIn(t, uid, kubevirtv1.Running) {
				console(t, u.GetNamespace(), u.GetName(), 2*time.Second)
			}
			if err := doomed.Delete(t.Context(), "doomed", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		})
		r.onePair(t, 100, 200*time.Millisecond, checkup.IPv4)
		// The next run has no network from its start.
		r = runVMs(t, "doomed", 1)
		r.unmeasuredBecause(t, "doomed")
		r.noVM(t)
	})
	nothingLeft(t)
}

// console connects to a VM's serial console for a while, as `virtctl console` does.
func console(t *testing.T, namespace, name string, hold time.Duration) {
	t.Helper()
	stream, err := kvcorev1.AsyncSubresourceHelper(placementConfig(t), "virtualmachineinstances", namespace, name, "console", url.Values{})
	if err != nil {
		t.Fatalf("console of %s: %v", name, err)
	}
	conn := stream.AsConn()
	defer conn.Close()
	go io.Copy(io.Discard, conn) // ends with the connection
	time.Sleep(hold)
}

// A node is lost while it is measured: its pairs are unmeasured, and nothing is left after the node is back.
func TestVMNodeLost(t *testing.T) {
	// Four VMs start at once, which takes long beside other clusters.
	file := edited(t, vms, `setup: "90s", probe: "40s"`, fmt.Sprintf(`setup: %q, probe: "40s"`, patient(3*time.Minute)))
	c := start(t, "run", file, "--plan", "both", "--output", "json")
	name := c.started(t)
	uid := string(pipelineRun(t, name).UID)
	measuring(t, name, uid)
	// Not the node on which the collecting task runs.
	lost, other := "node01", "node02"
	if taskPod(t, name, "probe-vms").Spec.NodeName == lost {
		lost, other = other, lost
	}
	// Its kubelet and its virt-handler no longer reach the API server.
	fault(t, "drop", "--node", lost, "--src", "any", "--dst", "any")
	if code := c.wait(t); code != 1 {
		t.Errorf("exit code %d, want 1: %s", code, c.stderr.String())
	}
	r := vmRun{command: c, report: reportOf(t, c), uid: uid}
	t.Log(describe(t, r.report))
	if r.report.Counts.Fail != 0 || r.report.Verdict != checkup.RunInconclusive {
		t.Errorf("a node that is lost is not a broken network:\n%s", describe(t, r.report))
	}
	for _, f := range waysOf(r.report.Checks[0], checkup.WayThere) {
		node := f.Labels[checkup.UnitSourceNode]
		if want := map[string]checkup.Verdict{lost: checkup.Unmeasured, other: checkup.Pass}[node]; f.Verdict != want {
			t.Errorf("from %s: %s, want %s: %+v", node, f.Verdict, want, f)
		}
	}
	sandbox(t, "fault", "clear")
	nothingLeft(t)
	// No guest continues to run without its VM object.
	within(t, 90*time.Second, func() error {
		if pids := processesOf(t, func(words []string, _ string) bool { return strings.Contains(words[0], "qemu-system") }); len(pids) > 0 {
			return fmt.Errorf("guests still run, as processes %d", pids)
		}
		return nil
	})
	// The next tests need a virt-handler on every node.
	kubeVirtReady(t)
}

// kubeVirtReady waits until KubeVirt reports that it is available.
func kubeVirtReady(t *testing.T) {
	t.Helper()
	c := cluster(t)
	eventually(t, 3*time.Minute, func() error {
		k, err := survey.Reader{Kubernetes: c.Kube, Dynamic: c.Dynamic}.KubeVirt(t.Context())
		if err == nil && !k.Ready {
			err = fmt.Errorf("KubeVirt %s: phase %s: %s", k.Object, k.Phase, k.Message)
		}
		return err
	})
}

// A general-purpose system instead of our own guest: it is logged in to, and measured with its own ping.
func TestVMGeneralGuest(t *testing.T) {
	parallel(t)
	r := runVMs(t, "general", 0)
	r.onePair(t, 25, 200*time.Millisecond, checkup.IPv4, checkup.IPv6)
	r.phases(t, "general-purpose guest")
}

// The report gives the reason why a guest cannot measure.
func TestVMBadGuests(t *testing.T) {
	parallel(t)
	tests := []struct {
		plan  string
		words []string
	}{
		{"noping", []string{"ping"}},
		{"unbootable", []string{"containerDisk", "no such file"}},
		{"silent", []string{"console"}},
	}
	for _, tt := range tests {
		t.Run(tt.plan, func(t *testing.T) {
			if tt.plan == "silent" {
				sandbox(t, "load", silentDisk(t))
			}
			r := runVMs(t, tt.plan, 1)
			r.unmeasuredBecause(t, tt.words...)
		})
	}
}

// silentDisk returns the file of an image archive, in the format of `docker save`, with an empty disk.
func silentDisk(t *testing.T) string {
	t.Helper()
	archive := func(files map[string][]byte) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range slices.Sorted(maps.Keys(files)) {
			// The launcher runs as user 107.
			if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Uid: 107, Gid: 107}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(files[name]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	layer := archive(map[string][]byte{"disk/disk.img": make([]byte, 1<<20)})
	image := archive(map[string][]byte{
		"layer.tar":     layer,
		"config.json":   fmt.Appendf(nil, `{"os":"linux","architecture":%q,"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`, goruntime.GOARCH, sha256.Sum256(layer)),
		"manifest.json": fmt.Appendf(nil, `[{"Config":"config.json","RepoTags":[%q],"Layers":["layer.tar"]}]`, silentImage),
	})
	file := filepath.Join(t.TempDir(), "silent.tar")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Two runs of one plan at the same time on one network do not disturb each other. The plan names no nodes, and the VMs
// of each run are on different nodes.
func TestVMTwoRunsAtOnce(t *testing.T) {
	parallel(t)
	seen := watchVMs(t)
	var runs [2]vmRun
	for i := range runs {
		runs[i].started = time.Now()
		runs[i].command = start(t, "run", vms, "--plan", "anywhere", "--output", "json")
	}
	for i := range runs {
		r := &runs[i]
		if code := r.wait(t); code != 0 {
			t.Errorf("exit code %d: %s\n%s", code, r.stderr.String(), text(t, r.stdout.Bytes()))
		}
		r.report = reportOf(t, r.command)
		checkResults(t, r.report)
		if err := remains(t, r.report.RunUID); err != nil {
			t.Errorf("after the run: %v", err)
		}
	}
	all := seen("")
	for i := range runs {
		r := &runs[i]
		r.vms = slices.DeleteFunc(slices.Clone(all), func(v vm) bool { return v.labels[checkup.LabelRun] != r.report.RunUID })
		r.onePair(t, 10, 200*time.Millisecond, checkup.IPv4)
	}
	if runs[0].report.RunUID == runs[1].report.RunUID {
		t.Error("both reports are of the same run")
	}
}
