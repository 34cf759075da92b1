// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kiagnose"
)

// kiagnoseNamespace is the namespace in kiagnose's document.
const kiagnoseNamespace = "kiagnose"

// kiagnoseUser creates the namespace of a kiagnose user. It is never deleted.
func kiagnoseUser(t *testing.T) {
	t.Helper()
	_, err := cluster(t).Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kiagnoseNamespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// checkupData reads the data of a checkup's ConfigMap.
func checkupData(t *testing.T, name string) map[string]string {
	t.Helper()
	cm, err := cluster(t).Kube.CoreV1().ConfigMaps(kiagnoseNamespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cm.Data
}

// checkupFile returns a file with the ConfigMap of a checkup. The file is deleted when the test ends.
func checkupFile(t *testing.T, name string, params map[string]string) string {
	t.Helper()
	data := map[string]string{kiagnose.KeyTimeout: "3m"}
	for key, value := range params {
		data[kiagnose.ParamPrefix+key] = value
	}
	file := filepath.Join(t.TempDir(), "checkup.yaml")
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: %s\n  namespace: %s\ndata:\n", name, kiagnoseNamespace)
	for key, value := range data {
		fmt.Fprintf(&b, "  %s: %q\n", key, value)
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// bridge10 returns the parameters of a checkup over br10 from node01 to another node.
func bridge10(target string) map[string]string {
	return map[string]string{
		kiagnose.ParamNetworkNamespace: "default", kiagnose.ParamNetworkName: "br10",
		kiagnose.ParamSourceNode: "node01", kiagnose.ParamTargetNode: target,
	}
}

// runCheckup runs the checkup of a ConfigMap in a file.
func runCheckup(t *testing.T, file string, wantCode int) vmRun {
	t.Helper()
	seen := watchVMs(t)
	r := vmRun{started: time.Now(), command: start(t, "run", file, "--namespace", kiagnoseNamespace, "--output", "json")}
	r.end(t, wantCode, seen)
	return r
}

// outcome checks the keys that every finished checkup has, in a ConfigMap that had the data spec before.
func outcome(t *testing.T, data, spec map[string]string) (succeeded bool, reason string) {
	t.Helper()
	for key, value := range spec {
		if got, ok := data[key]; !ok || got != value {
			t.Errorf("%s is %q, want %q as before", key, got, value)
		}
	}
	started, errStarted := time.Parse(time.RFC3339, data[kiagnose.KeyStartTimestamp])
	completed, errCompleted := time.Parse(time.RFC3339, data[kiagnose.KeyCompletionTimestamp])
	if err := errors.Join(errStarted, errCompleted); err != nil || completed.Before(started) || time.Since(started) > time.Hour {
		t.Errorf("start %s, completion %s, %v: want both in order and within the last hour", started, completed, err)
	}
	succeeded, err := strconv.ParseBool(data[kiagnose.KeySucceeded])
	if err != nil {
		t.Error(err)
	}
	reason, ok := data[kiagnose.KeyFailureReason]
	if !ok || succeeded != (reason == "") {
		t.Errorf("succeeded is %q, but the reason is %q", data[kiagnose.KeySucceeded], reason)
	}
	return succeeded, reason
}

// measuredKeys checks the keys of a measurement from node01 to node02.
func measuredKeys(t *testing.T, data map[string]string, seconds int) {
	t.Helper()
	number := func(key string) int64 {
		n, err := strconv.ParseInt(data[key], 10, 64)
		if err != nil {
			t.Errorf("%s: %v", key, err)
		}
		return n
	}
	least, mean, most := number(kiagnose.KeyMinLatency), number(kiagnose.KeyAvgLatency), number(kiagnose.KeyMaxLatency)
	if least <= 0 || least > mean || mean > most || most > int64(time.Minute) {
		t.Errorf("latency: min %d, max %d, average %d: want them above 0, in order, and at most a minute", least, most, mean)
	}
	// The document's spelling, and the key that kiagnose writes.
	for _, key := range []string{"status.results.measurementDurationSec", "status.result.measurementDurationSec"} {
		if data[key] != strconv.Itoa(seconds) {
			t.Errorf("%s is %q, want %d", key, data[key], seconds)
		}
	}
	if data[kiagnose.KeySourceNode] != "node01" || data[kiagnose.KeyTargetNode] != "node02" {
		t.Errorf("source node %q, target node %q: want node01 and node02", data[kiagnose.KeySourceNode], data[kiagnose.KeyTargetNode])
	}
}

// unmeasuredKeys checks that there is no key of a measurement.
func unmeasuredKeys(t *testing.T, data map[string]string) {
	t.Helper()
	for key, value := range data {
		if strings.HasPrefix(key, "status.result") {
			t.Errorf("%s is %q, but nothing was measured", key, value)
		}
	}
}

// Show 4: the document's unchanged example, with its Job. It takes five minutes, during which another client changes
// the ConfigMap. It needs no turn: most of the time it only sends one packet a second.
func TestVMKiagnoseExample(t *testing.T) {
	t.Parallel()
	kiagnoseUser(t)
	const file, name = "testdata/kiagnose-example.yaml", "kubevirt-latency-checkup-config"
	// The user's ConfigMap already exists. The document's has numbers as values, which Kubernetes does not accept.
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	example, _, _ := strings.Cut(strings.TrimPrefix(string(b), "---\n"), "---\n")
	forgetCheckup(t, name)
	kubectlApply(t, regexp.MustCompile(`: (\d+)\n`).ReplaceAllString(example, ": \"$1\"\n"))
	maps10 := cluster(t).Kube.CoreV1().ConfigMaps(kiagnoseNamespace)
	seen := watchVMs(t)
	r := vmRun{started: time.Now(), command: start(t, "run", file, "--namespace", kiagnoseNamespace, "--output", "json")}
	eventually(t, 2*time.Minute, func() error {
		cm, err := maps10.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && cm.Data[kiagnose.KeyStartTimestamp] == "" {
			err = fmt.Errorf("no start timestamp: %v", cm.Data)
		}
		return err
	})
	spec := checkupData(t, name)
	maps.DeleteFunc(spec, func(key, _ string) bool { return strings.HasPrefix(key, kiagnose.StatusPrefix) })
	if spec["spec.param.sample_duration_seconds"] != "300" || spec["spec.param.network_attachment_definition_name"] != "br10" {
		t.Errorf("the ConfigMap is not the document's ConfigMap: %v", spec)
	}
	spec["note"] = "somebody was here"
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		cm, err := maps10.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		cm.Data["note"] = spec["note"]
		_, err = maps10.Update(t.Context(), cm, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	code := r.wait(t)
	r.report = reportOf(t, r.command)
	t.Logf("%s", describe(t, r.report))
	checkResults(t, r.report)
	if err := remains(t, r.report.RunUID); err != nil {
		t.Errorf("after the run: %v", err)
	}
	if ran := seen(r.report.RunUID); len(ran) != 2 {
		t.Errorf("%d VMs ran, want 2: %+v", len(ran), ran)
	}
	data := checkupData(t, name)
	t.Logf("%v", data)
	succeeded, reason := outcome(t, data, spec)
	measuredKeys(t, data, 300)
	// An answer of an emulated guest on a busy machine may take longer than 50 ms.
	over := regexp.MustCompile(`^(,?run: actual max latency "[0-9.]+(ms|s)" is greater than desired "50ms"( over IPv[46])?)+$`)
	if most, err := strconv.ParseInt(data[kiagnose.KeyMaxLatency], 10, 64); err != nil || succeeded != (most <= (50*time.Millisecond).Nanoseconds()) || !succeeded && !over.MatchString(reason) {
		t.Errorf("max latency %s ns with a limit of 50 ms, but succeeded is %t, reason %q", data[kiagnose.KeyMaxLatency], succeeded, reason)
	}
	if (code == 0) != succeeded {
		t.Errorf("exit code %d, but succeeded is %t: %s", code, succeeded, r.stderr.String())
	}
}

// cutCheckup runs a checkup over a network that is cut, with the current parameter names, in a ConfigMap that has the
// results of an earlier, successful one.
func cutCheckup(t *testing.T) {
	t.Helper()
	kiagnoseUser(t)
	const name = "cut"
	t.Cleanup(func() { forgetCheckup(t, name) })
	params := bridge10("node02")
	params[kiagnose.ParamSampleDuration] = "2"
	file := checkupFile(t, name, params)
	sandbox(t, "kubectl", "apply", "-f", file)
	sandbox(t, "kubectl", "patch", "configmap", "--namespace", kiagnoseNamespace, name, "-p",
		`{"data":{"status.succeeded":"true","status.failureReason":"","status.startTimestamp":"2020-01-01T00:00:00Z","status.completionTimestamp":"2020-01-01T00:00:00Z","status.result.minLatencyNanoSec":"1","status.result.maxLatencyNanoSec":"1","status.result.avgLatencyNanoSec":"1"}}`)
	r := runCheckup(t, file, 3)
	if r.report.Verdict != checkup.RunFail || r.report.Counts.Fail != r.report.Counts.Expected {
		t.Errorf("want every pair to fail:\n%s", describe(t, r.report))
	}
	for _, f := range waysOf(r.report.Checks[0], checkup.WayThere) {
		if f.Received != 0 || f.Sent == 0 || f.Delay != nil {
			t.Errorf("want nothing received and no delay: %+v", f)
		}
	}
	data := checkupData(t, name)
	if succeeded, reason := outcome(t, data, nil); succeeded || !strings.HasPrefix(reason, "run: no connectivity - 100% packet loss") {
		t.Errorf("succeeded is %t, reason %q, want no connectivity", succeeded, reason)
	}
	for _, key := range []string{kiagnose.KeyMinLatency, kiagnose.KeyAvgLatency, kiagnose.KeyMaxLatency} {
		if value, ok := data[key]; ok {
			t.Errorf("%s is %q, but nothing was received", key, value)
		}
	}
}

func forgetCheckup(t *testing.T, name string) {
	t.Helper()
	sandbox(t, "kubectl", "delete", "configmap", "--namespace", kiagnoseNamespace, "--ignore-not-found", name)
}

// Show 3: a checkup that is impossible fails before any VM is created. The log has the time that it takes.
func TestVMKiagnoseWrong(t *testing.T) {
	parallel(t)
	kiagnoseUser(t)
	other := func(network string) map[string]string {
		params := bridge10("node02")
		params[kiagnose.ParamNetworkName] = network
		return params
	}
	tests := []struct {
		name   string
		params map[string]string
		words  []string
	}{
		{"unknown-node", bridge10("node-that-is-not"), []string{"setup: ", "node-that-is-not"}},
		{"missing-bridge", other("missing-bridge"), []string{"setup: ", "node node01 has no bridge br-missing"}},
		{"missing-master", other("missing-master"), []string{"setup: ", "node01", "missing-master"}},
	}
	var runs []string
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Cleanup(func() { forgetCheckup(t, tt.name) })
			r := runCheckup(t, checkupFile(t, tt.name, tt.params), 1)
			data := checkupData(t, tt.name)
			succeeded, reason := outcome(t, data, nil)
			for _, w := range tt.words {
				if succeeded || !strings.Contains(reason, w) {
					t.Errorf("succeeded is %t, want a failure with %q in the reason: %s", succeeded, w, reason)
				}
			}
			unmeasuredKeys(t, data)
			runs = append(runs, r.uid)
			r.noVM(t)
			completed, _ := time.Parse(time.RFC3339, data[kiagnose.KeyCompletionTimestamp])
			t.Logf("reported after %s: %s", completed.Sub(r.started).Round(time.Second), reason)
		})
	}
	// Invalid parameters are rejected before anything is created.
	for name, change := range map[string][2]string{
		"only one node":         {kiagnose.ParamTargetNode, ""},
		"negative duration":     {kiagnose.ParamSampleDuration, "-5"},
		"overflowing duration":  {kiagnose.ParamSampleDuration, "99999999999999999999"},
		"limit that is no time": {kiagnose.ParamMaxLatency, "soon"},
	} {
		t.Run(name, func(t *testing.T) {
			params := bridge10("node02")
			params[change[0]] = change[1]
			c := start(t, "run", checkupFile(t, "wrong", params), "--namespace", kiagnoseNamespace)
			if code := c.wait(t); code != 2 || !strings.Contains(c.stderr.String(), change[0]) {
				t.Errorf("exit code %d, want 2 and a message that names %s: %s", code, change[0], c.stderr.String())
			}
			if _, err := cluster(t).Kube.CoreV1().ConfigMaps(kiagnoseNamespace).Get(t.Context(), "wrong", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the ConfigMap was created: %v", err)
			}
		})
	}
	nothingLeft(t, runs...)
}

// The probe image alone, as a Job with the environment variables of the document. The one that succeeds has the rights
// of kiagnose's own checkup only, and so no preflight pods; the other has all rights of the manifest.
func TestVMKiagnoseJob(t *testing.T) {
	parallel(t)
	kiagnoseUser(t)
	for _, tt := range []struct {
		name, target string
		succeeds     bool
	}{{"job-good", "node02", true}, {"job-bad", "node-that-is-not", false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Cleanup(func() {
				forgetCheckup(t, tt.name)
				sandbox(t, "kubectl", "delete", "job", "--namespace", kiagnoseNamespace, "--ignore-not-found", tt.name)
			})
			seen := watchVMs(t)
			began := time.Now()
			// The document's ConfigMap for results, which kiagnose would have created before.
			sandbox(t, "kubectl", "create", "configmap", "--namespace", kiagnoseNamespace, tt.name)
			manifest := jobManifest(t, tt.name, map[string]string{
				"NETWORK_ATTACHMENT_DEFINITION_NAMESPACE": "default", "NETWORK_ATTACHMENT_DEFINITION_NAME": "br10",
				"SOURCE_NODE": "node01", "TARGET_NODE": tt.target, "SAMPLE_DURATION_SECONDS": "3",
			})
			if tt.succeeds {
				upstream, rest, found := strings.Cut(manifest, "# What follows is more than kiagnose's own checkup has.")
				_, rest, ends := strings.Cut(rest, "---\n")
				if !found || !ends {
					t.Fatalf("the manifest of docs/kiagnose.md has changed: adapt this test to it:\n%s", manifest)
				}
				manifest = upstream + "---\n" + rest
			}
			kubectlApply(t, manifest)
			finished := jobFinished(t, tt.name)
			log := sandbox(t, "kubectl", "logs", "--namespace", kiagnoseNamespace, "job/"+tt.name)
			t.Logf("after %s:\n%s", time.Since(began).Round(time.Second), log)
			if want := map[bool]batchv1.JobConditionType{true: batchv1.JobComplete, false: batchv1.JobFailed}[tt.succeeds]; finished != want {
				t.Errorf("the Job's condition is %s, want %s", finished, want)
			}
			data := checkupData(t, tt.name)
			succeeded, reason := outcome(t, data, nil)
			if succeeded != tt.succeeds || !tt.succeeds && !strings.Contains(reason, tt.target) {
				t.Errorf("succeeded is %t, want %t; reason %q", succeeded, tt.succeeds, reason)
			}
			if tt.succeeds {
				measuredKeys(t, data, 3)
			} else {
				unmeasuredKeys(t, data)
			}
			pods, err := cluster(t).Kube.CoreV1().Pods(kiagnoseNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "job-name=" + tt.name})
			if err != nil || len(pods.Items) != 1 {
				t.Fatalf("%d pods of the Job, %v", len(pods.Items), err)
			}
			uid := string(pods.Items[0].UID)
			if ran := seen(uid); tt.succeeds != (len(ran) == 2) || !tt.succeeds && len(ran) > 0 {
				t.Errorf("these VMs ran: %+v, want 2 if the checkup succeeds, otherwise none", ran)
			}
			if err := remains(t, uid); err != nil {
				t.Errorf("after the Job: %v", err)
			}
		})
	}
}

// jobFinished waits for the end of a Job and returns its condition: Complete or Failed.
func jobFinished(t *testing.T, name string) (how batchv1.JobConditionType) {
	t.Helper()
	eventually(t, 3*time.Minute, func() error {
		job, err := cluster(t).Kube.BatchV1().Jobs(kiagnoseNamespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range job.Status.Conditions {
			if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
				how = c.Type
				return nil
			}
		}
		return errors.New("the Job has not finished")
	})
	return how
}

// jobManifest returns the manifest of docs/kiagnose.md. Its Job has another name, and the variables of kiagnose's
// document.
func jobManifest(t *testing.T, name string, variables map[string]string) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/kiagnose.md")
	if err != nil {
		t.Fatal(err)
	}
	_, manifest, ok := strings.Cut(string(doc), "## As a Job, without Tekton")
	_, manifest, found := strings.Cut(manifest, "```yaml\n")
	manifest, _, ended := strings.Cut(manifest, "```\n")
	rights, job, isJob := strings.Cut(manifest, "---\napiVersion: batch/v1\nkind: Job\n")
	if !ok || !found || !ended || !isJob {
		t.Fatal("docs/kiagnose.md does not contain the manifest of a Job")
	}
	named := strings.NewReplacer("metadata:\n  name: vm-latency\n", "metadata:\n  name: "+name+"\n", "value: vm-latency\n", "value: "+name+"\n",
		"name: CONFIGMAP_N", "name: RESULT_CONFIGMAP_N").Replace(job)
	env := "        env:\n"
	for _, key := range slices.Sorted(maps.Keys(variables)) {
		env += fmt.Sprintf("        - name: %s\n          value: %q\n", key, variables[key])
	}
	with := strings.Replace(named, "        env:\n", env, 1)
	if named == job || with == named {
		t.Fatalf("the manifest of docs/kiagnose.md has changed: adapt this test to it:\n%s", manifest)
	}
	return rights + "---\napiVersion: batch/v1\nkind: Job\n" + with
}
