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
	"sync"
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

// Without Tekton, in a Job of its own, this image is a checkup as kiagnose runs one:
// it is told by the environment or by a ConfigMap what to measure, does all phases
// in one process, and writes the outcome into the ConfigMap. docs/kiagnose.md has
// the manifest.

// latency is the name of the checkup's only check.
const latency = "latency"

// Variables that name the ConfigMap: as kiagnose has had them since v0.3, and, of
// results alone, before.
var configMapVariables = [][2]string{
	{"RESULT_CONFIGMAP_NAMESPACE", "RESULT_CONFIGMAP_NAME"},
	{"CONFIGMAP_NAMESPACE", "CONFIGMAP_NAME"},
}

// isCheckup reports whether the environment is that of a checkup without Tekton.
func isCheckup(getenv func(string) string) bool {
	if getenv("RUN_UID") != "" { // a step of a Tekton task
		return false
	}
	for _, v := range configMapVariables {
		if getenv(v[1]) != "" {
			return true
		}
	}
	return hasParams(getenv)
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
		PodName: cmp.Or(os.Getenv("POD_NAME"), os.Getenv("HOSTNAME")), PodUID: os.Getenv("POD_UID"), Namespace: os.Getenv("NAMESPACE"),
		AgentImage: os.Getenv("AGENT_IMAGE"), GuestImage: os.Getenv("GUEST_IMAGE"), Stdout: os.Stdout,
	}
	if t.Namespace == "" {
		b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
		if err != nil {
			t.Logf("error: which namespace this is: %v; set the environment variable NAMESPACE", err)
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

// runCheckup runs a checkup from its input to the end of its teardown, prints its
// report and writes its ConfigMap. It fails if the checkup does.
func runCheckup(ctx context.Context, t *task.Task, getenv func(string) string) error {
	started := time.Now()
	var cm kiagnose.ConfigMap // Name is empty where there is none
	for _, v := range configMapVariables {
		if name := getenv(v[1]); name != "" && cm.Name == "" {
			cm = kiagnose.ConfigMap{Client: t.Kubernetes, Namespace: cmp.Or(getenv(v[0]), t.Namespace), Name: name}
		}
	}
	if cm.Name != "" {
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
	check, err := input(ctx, t, getenv, cm)
	if err == nil {
		err = self(ctx, t)
	}
	if err == nil {
		plan.Checks[latency] = checkup.Check{Spec: check}
		result, err = measure(ctx, t, plan)
		teardown = remove(ctx, t, plan)
	}
	if err != nil {
		cause := checkup.Cause{Stage: checkup.StageSetup, Message: strings.Join(strings.Fields(err.Error()), " ")}
		result = judge.NotMeasured(latency, vmlatency.Name, cause)
	}

	now := time.Now()
	r := judge.Join(plan, judge.Run{Namespace: t.Namespace, Name: t.PodName, UID: t.RunUID, Started: started.UTC(), Finished: now.UTC()}, []checkup.CheckReport{result}, nil)
	if err := print.Text(t.Stdout, &r, print.TextOptions{Width: 100}); err != nil {
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

// input reads what to measure: from the environment, if it has any parameter, and
// else from the ConfigMap. The error tells everything that is wrong at once.
func input(ctx context.Context, t *task.Task, getenv func(string) string, cm kiagnose.ConfigMap) (*vmlatency.Spec, error) {
	var check *vmlatency.Spec
	var warnings, problems []kiagnose.Note
	if hasParams(getenv) || getenv("CONFIGMAP_NAME") == "" {
		check, problems = kiagnose.FromEnvironment(getenv)
	} else {
		data, err := cm.Read(ctx)
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

// self fills in who this is and which images to use, where the environment does not
// say it, from the pod that this runs in.
func self(ctx context.Context, t *task.Task) error {
	if t.PodUID == "" || t.AgentImage == "" || t.GuestImage == "" {
		pod, err := t.Kubernetes.CoreV1().Pods(t.Namespace).Get(ctx, t.PodName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("which pod this is: %w; set the environment variables POD_NAME and POD_UID, AGENT_IMAGE and GUEST_IMAGE", err)
		}
		t.PodUID = cmp.Or(t.PodUID, string(pod.UID))
		for _, c := range pod.Spec.Containers {
			t.AgentImage = cmp.Or(t.AgentImage, sibling(c.Image, "agent"))
			t.GuestImage = cmp.Or(t.GuestImage, sibling(c.Image, "guest"))
		}
		if t.AgentImage == "" || t.GuestImage == "" {
			return fmt.Errorf("no container of pod %s has an image .../probe:TAG, beside which agent and guest would be: set the environment variables AGENT_IMAGE and GUEST_IMAGE", t.PodName)
		}
	}
	t.RunName, t.RunUID = t.PodName, t.PodUID
	return nil
}

// sibling is the image of a name beside that of the probe task: of the same
// repository and tag; empty if image is no such one, or has no tag.
func sibling(image, name string) string {
	image, _, _ = strings.Cut(image, "@")
	repository, probe := path.Split(image)
	tag, ok := strings.CutPrefix(probe, "probe:")
	if !ok {
		return ""
	}
	return repository + name + ":" + tag
}

// measure does everything between input and teardown. An error says that nothing
// was measured.
func measure(ctx context.Context, t *task.Task, plan *checkup.Plan) (checkup.CheckReport, error) {
	none := checkup.CheckReport{}
	reader := cluster.Reader{Kubernetes: t.Kubernetes, Metadata: t.Metadata, Dynamic: t.Dynamic, Namespace: t.Namespace, Run: t.RunUID}
	surveying, done := context.WithTimeout(ctx, time.Duration(plan.Checks[latency].Spec.(*vmlatency.Spec).Timeouts.Setup))
	w, roster, err := kinds.Prepare(surveying, reader, plan, latency)
	done()
	if err != nil {
		return none, err
	}
	guests := t.Guests(plan.Name)
	if err := guests.Start(ctx, w, roster, func(ready, of int) { t.Logf("%d of %d VMs answer", ready, of) }); err != nil {
		evidence(ctx, t, guests)
		return none, err
	}
	var got collected
	if err := guests.Measure(ctx, w, roster, &got, nil); err != nil {
		t.Logf("warning: %v", err) // which is the cause of every pair, too
	}
	result := vmlatency.Judge(w, roster, &got.record, plan.Gate)
	if result.Verdict != checkup.RunPass {
		evidence(ctx, t, guests)
	}
	return result, nil
}

// collected is what came in of a measurement.
type collected struct {
	mu     sync.Mutex // guards following
	record checkup.Record
}

func (c *collected) Observation(o checkup.Observation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.Observations = append(c.record.Observations, o)
}

func (c *collected) Results(r []checkup.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.Results = append(c.record.Results, r...)
}

func (c *collected) Source(s checkup.Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.Sources = append(c.record.Sources, s)
}

// evidence prints what there is to see of VMs that did not do well, for whoever
// reads the log of the Job: nothing else keeps it.
func evidence(ctx context.Context, t *task.Task, guests *guest.Guests) {
	if ctx.Err() != nil { // there is no time left for it
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keepTime)
	defer cancel()
	kept, err := guests.Evidence(ctx, []string{latency})
	if err != nil {
		t.Logf("warning: there is no evidence of the VMs: %v", err)
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

// remove removes what the checkup made, on time of its own, and says what went
// wrong with that.
func remove(ctx context.Context, t *task.Task, plan *checkup.Plan) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	left, err := t.Remove(ctx, plan)
	if len(left) > 0 {
		err = errors.Join(fmt.Errorf("left behind: %s", strings.Join(left, " ")), err)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// removeTime is the time for removing VMs. With keepTime, for telling so, it is
// what the Job's manifest gives the pod to end.
const removeTime = 90 * time.Second
