// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/guest"
	"github.com/checkplan/checkplan/pkg/judge"
	"github.com/checkplan/checkplan/pkg/kiagnose"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/vmlatency"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

// In a Job without Tekton, this image is a checkup as kiagnose runs one. It reads its
// input from the environment or a ConfigMap, runs all phases in one process, and writes
// the outcome to the ConfigMap. docs/kiagnose.md has the manifest.

// latency is the name of the checkup's only check.
const latency = "latency"

// configMapVariables are the variables with namespace and name of the ConfigMap. The first
// pair, for results only, is of releases before v0.3, the second of v0.3 and later.
var configMapVariables = [][2]string{
	{"RESULT_CONFIGMAP_NAMESPACE", "RESULT_CONFIGMAP_NAME"},
	{"CONFIGMAP_NAMESPACE", "CONFIGMAP_NAME"},
}

// isCheckup reports whether the environment is that of a checkup without Tekton, complete or not.
func isCheckup(getenv func(string) string) bool {
	return getenv("RUN_UID") == "" // a step of a Tekton task has it
}

// hasParams reports whether the environment has any parameter of the checkup.
func hasParams(getenv func(string) string) bool {
	return slices.ContainsFunc(kiagnose.Variables(), func(name string) bool { return getenv(name) != "" })
}

// checkupMain runs a checkup without Tekton and returns its exit code.
func checkupMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	t := &task.Task{
		PodName: cmp.Or(os.Getenv("POD_NAME"), os.Getenv("HOSTNAME")), PodUID: os.Getenv("POD_UID"),
		Namespace: os.Getenv(
			"NAMESPACE",
		), AgentImage: os.Getenv("AGENT_IMAGE"), GuestImage: os.Getenv("GUEST_IMAGE"), Stdout: os.Stdout,
	}
	if t.Namespace == "" {
		b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
		if err != nil {
			t.Logf("error: read the namespace of this pod: %v: set the environment variable NAMESPACE", err)
			return 1
		}
		t.Namespace = strings.TrimSpace(string(b))
	}
	err := t.Connect()
	if err == nil {
		err = runCheckup(ctx, t, os.Getenv)
	}
	if err != nil {
		if !errors.Is(err, task.ErrSaid) {
			t.Logf("error: %v", err)
		}
		return 1
	}
	return 0
}

// runCheckup runs a checkup, from reading its input to its teardown. It prints the report
// and writes the outcome to the ConfigMap. It returns an error if the checkup failed.
func runCheckup(ctx context.Context, t *task.Task, getenv func(string) string) error {
	started := time.Now()
	var cm kiagnose.ConfigMap // Name is empty if the environment names no ConfigMap
	for _, v := range configMapVariables {
		if name := getenv(v[1]); name != "" && cm.Name == "" {
			cm = kiagnose.ConfigMap{Client: t.Kubernetes, Namespace: cmp.Or(getenv(v[0]), t.Namespace), Name: name}
		}
	}
	check, pods, err := begin(ctx, t, getenv, cm)
	if cm.Name != "" {
		if errors.Is(err, errConfigMap) {
			return err
		}
		if err := cm.Start(ctx, started); err != nil {
			return err
		}
	}
	plan := &checkup.Plan{
		Name: kiagnose.CheckupType, Gate: checkup.Gate{Require: checkup.RequirePass}, Teardown: checkup.TeardownAlways,
		Retention: checkup.Retention{Reports: 1}, Checks: map[string]checkup.Check{latency: {Spec: &vmlatency.Spec{}}},
	}
	var result checkup.CheckReport
	teardown := ""
	if err == nil {
		err = self(ctx, t, pods)
	}
	if err == nil {
		plan.Checks[latency] = checkup.Check{Spec: check}
		guests := t.Guests(plan.Name)
		guests.Fleet.Alone, guests.NoPods = true, !pods
		result, err = measure(ctx, t, plan, guests)
		teardown = remove(ctx, guests)
	}
	if err != nil {
		cause := checkup.Cause{Stage: checkup.StageSetup, Message: strings.Join(strings.Fields(err.Error()), " ")}
		result = judge.NotMeasured(latency, vmlatency.Name, cause)
	}

	now := time.Now()
	run := judge.Run{
		Namespace: t.Namespace, Name: t.PodName, UID: t.RunUID, Started: started.UTC(), Finished: now.UTC(),
	}
	r := judge.Join(plan, run, []checkup.CheckReport{result}, nil)
	if err := print.Text(t.Stdout, &r, print.TextOptions{}); err != nil {
		return err
	}
	outcome := kiagnose.Outcome{Report: result, Started: started, Finished: now, Teardown: teardown}
	status := outcome.Status()
	t.Logf("")
	for _, key := range slices.Sorted(maps.Keys(status)) {
		t.Logf("%s: %s", key, status[key])
	}
	if cm.Name != "" {
		writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTime)
		defer cancel()
		if err := cm.Write(writing, outcome); err != nil {
			return err
		}
	}
	if status[kiagnose.KeySucceeded] != "true" {
		return task.ErrSaid
	}
	return nil
}

// begin reviews the rights and reads what to measure. pods reports whether all rights to pods are granted. The error
// has every missing right. It wraps errConfigMap if one of them is a right to the ConfigMap for the outcome.
func begin(
	ctx context.Context, t *task.Task, getenv func(string) string, outcome kiagnose.ConfigMap,
) (check *vmlatency.Spec, pods bool, err error) {
	var from kiagnose.ConfigMap // Name is empty if the parameters are in the environment
	if name := getenv("CONFIGMAP_NAME"); name != "" && !hasParams(getenv) {
		namespace := cmp.Or(getenv("CONFIGMAP_NAMESPACE"), t.Namespace)
		from = kiagnose.ConfigMap{Client: t.Kubernetes, Namespace: namespace, Name: name}
	}
	missing, err := lacking(ctx, t, required(t.Namespace, from, outcome))
	if err != nil {
		return nil, false, err
	}
	var problem error
	if !slices.ContainsFunc(missing, func(r checkup.Right) bool { return isRight(r, "get", from) }) {
		if check, problem = input(ctx, t, getenv, from); check != nil {
			more, err := lacking(ctx, t, vmlatency.NetworkRights(check))
			if err != nil {
				return nil, false, err
			}
			missing = append(missing, more...)
		}
	}
	if len(missing) > 0 {
		problem = errors.Join(problem, fmt.Errorf("missing rights of the service account of pod %s: %s; "+
			"docs/kiagnose.md has the roles", t.PodName, words(missing)))
	}
	for _, r := range missing {
		if isRight(r, "get", outcome) || isRight(r, "update", outcome) {
			problem = fmt.Errorf("%w: %w", errConfigMap, problem)
			break
		}
	}
	if problem != nil {
		return nil, false, problem
	}
	refused, err := lacking(ctx, t, optional(t.Namespace))
	if err != nil {
		return nil, false, err
	}
	for _, r := range refused {
		t.Logf("warning: without the right to %s: %s", words([]checkup.Right{r}), r.Why)
	}
	return check, !slices.ContainsFunc(refused, func(r checkup.Right) bool { return r.Resource == "pods" }), nil
}

// input reads what to measure: from the ConfigMap if it has a name, else from the environment. The error lists all
// problems at once.
func input(
	ctx context.Context, t *task.Task, getenv func(string) string, from kiagnose.ConfigMap,
) (*vmlatency.Spec, error) {
	var check *vmlatency.Spec
	var warnings, problems []kiagnose.Note
	if from.Name == "" {
		check, problems = kiagnose.FromEnvironment(getenv)
	} else {
		data, err := from.Read(ctx)
		if err != nil {
			return nil, err
		}
		check, warnings, problems = kiagnose.FromData(data)
	}
	for _, w := range warnings {
		t.Logf("warning: %s", w)
	}
	words := make([]string, len(problems))
	for i, p := range problems {
		words[i] = p.String()
	}
	if check == nil {
		return nil, errors.New(strings.Join(words, "; "))
	}
	return check, nil
}

// self sets the UID of this pod and the images to use: that of agents only if pods can be started. What the environment
// does not have, it takes from the pod.
func self(ctx context.Context, t *task.Task, pods bool) error {
	if t.PodUID == "" || t.GuestImage == "" || pods && t.AgentImage == "" {
		pod, err := t.Kubernetes.CoreV1().Pods(t.Namespace).Get(ctx, t.PodName, metav1.GetOptions{})
		if err != nil {
			// The message is a value of the ConfigMap (status.failureReason).
			return fmt.Errorf("read the pod of this process: %w; set the environment variables POD_NAME and POD_UID, "+
				"AGENT_IMAGE and GUEST_IMAGE", err)
		}
		t.PodUID = cmp.Or(t.PodUID, string(pod.UID))
		for _, c := range pod.Spec.Containers {
			t.AgentImage = cmp.Or(t.AgentImage, sibling(c.Image, "agent"))
			t.GuestImage = cmp.Or(t.GuestImage, sibling(c.Image, "guest"))
		}
		if t.GuestImage == "" || pods && t.AgentImage == "" {
			return fmt.Errorf("no container of pod %s has an image .../probe:TAG, beside which agent and guest would be: "+
				"set the environment variables AGENT_IMAGE and GUEST_IMAGE", t.PodName)
		}
	}
	t.RunName, t.RunUID = t.PodName, t.PodUID
	return nil
}

// sibling returns the image of that name in the repository of the probe image, with the
// same tag. It returns empty if image is not a probe image, or has no tag.
func sibling(image, name string) string {
	image, _, _ = strings.Cut(image, "@")
	repository, probe := path.Split(image)
	tag, ok := strings.CutPrefix(probe, "probe:")
	if !ok {
		return ""
	}
	return repository + name + ":" + tag
}

// measure runs all phases between input and teardown. After an error, nothing was
// measured.
func measure(
	ctx context.Context, t *task.Task, plan *checkup.Plan, guests *guest.Guests,
) (checkup.CheckReport, error) {
	none := checkup.CheckReport{}
	reader := cluster.Reader{
		Kubernetes: t.Kubernetes, Metadata: t.Metadata, Dynamic: t.Dynamic, Namespace: t.Namespace, Run: t.RunUID,
	}
	timeouts := plan.Checks[latency].Spec.(*vmlatency.Spec).Timeouts
	surveying, done := context.WithTimeout(ctx, time.Duration(timeouts.Setup))
	w, roster, err := kinds.Prepare(surveying, reader, plan, latency)
	done()
	if err != nil {
		return none, err
	}
	for _, warning := range w.Warnings {
		t.Logf("warning: %s", warning)
	}
	err = guests.Start(ctx, w, roster, func(ready, of int) { t.Logf("%d of %d VMs answer", ready, of) })
	if err != nil {
		evidence(ctx, t, guests)
		return none, err
	}
	var got collected
	if err := guests.Measure(ctx, w, roster, &got, nil); err != nil {
		t.Logf("warning: %v", err) // it is also the cause of every unmeasured pair
	}
	result := vmlatency.Judge(w, roster, &got.record, plan.Gate)
	if result.Verdict != checkup.RunPass {
		evidence(ctx, t, guests)
	}
	return result, nil
}

// evidence prints objects and consoles of VMs that failed to the log of the Job, because
// nothing else keeps them after teardown.
func evidence(ctx context.Context, t *task.Task, guests *guest.Guests) {
	if ctx.Err() != nil { // the Job is ending: teardown needs the time
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keepTime)
	defer cancel()
	kept, err := guests.Evidence(ctx, []string{latency})
	if err != nil {
		t.Logf("warning: cannot read evidence of the VMs: %v", err)
	}
	for _, e := range kept {
		b, err := yaml.Marshal(e)
		if err != nil {
			t.Logf("warning: evidence of VM %s: %v", e.VM, err)
			continue
		}
		t.Logf("--- VM %s\n%s", e.VM, b)
	}
	for _, console := range guests.Transcripts() {
		t.Logf("--- console of %s\n%s", console.VM, console.Text)
	}
}

// remove deletes the VMs and the preflight pods, with a timeout of its own. It returns the error as text, or empty.
func remove(ctx context.Context, guests *guest.Guests) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	left, err := guests.Remove(ctx)
	if !guests.NoPods {
		pods, problem := guests.Fleet.Remove(ctx)
		left, err = append(left, pods...), errors.Join(err, problem)
	}
	if len(left) > 0 {
		err = errors.Join(fmt.Errorf("left behind: %s", strings.Join(left, " ")), err)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// removeTime is the longest time for removing VMs. With keepTime, for writing the outcome,
// it is the terminationGracePeriodSeconds of the Job's manifest.
const removeTime = 90 * time.Second
