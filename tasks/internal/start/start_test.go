// SPDX-License-Identifier: Apache-2.0

package start

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// run is a PipelineRun; done sets its completion time.
func run(name string, minute int, scheduled, done bool) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun"}}
	o.SetName(name)
	o.SetNamespace("ns")
	o.SetUID("uid-" + "0")
	o.SetCreationTimestamp(metav1.NewTime(noon.Add(time.Duration(minute) * time.Minute)))
	o.SetLabels(map[string]string{checkup.LabelPlan: "p"})
	if scheduled {
		o.SetLabels(map[string]string{checkup.LabelPlan: "p", checkup.LabelScheduled: "true"})
	}
	if done {
		o.Object["status"] = map[string]any{"completionTime": "2026-01-01T13:00:00Z"}
	}
	return o
}

func starter(policy checkup.ConcurrencyPolicy, existing ...*unstructured.Unstructured) (*Starter, *dynamicfake.FakeDynamicClient, *strings.Builder) {
	var objects []runtime.Object
	for _, o := range existing {
		objects = append(objects, o)
	}
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{pipelineRuns: "PipelineRunList"}, objects...)
	out := &strings.Builder{}
	return &Starter{
		Runs: client.Resource(pipelineRuns).Namespace("ns"), Plan: "p", Name: "p-100", Policy: policy, Keep: 2, Out: out,
		Run: &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
			"metadata": map[string]any{"generateName": "p-", "labels": map[string]any{checkup.LabelPlan: "p"}}}},
		Sleep: func(context.Context, time.Duration) error { return nil },
	}, client, out
}

func names(t *testing.T, s *Starter) string {
	t.Helper()
	runs, err := s.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range runs {
		all = append(all, r.Name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestStart: what is in the cluster after the Job p-100, by policy and by what was there.
func TestStart(t *testing.T) {
	running, done := run("p-099", -1, true, false), run("p-098", -2, true, true)
	byHand := run("by-hand", -3, false, false)
	other := run("q-099", -1, true, false)
	other.SetLabels(map[string]string{checkup.LabelPlan: "q"})
	for _, tt := range []struct {
		name     string
		policy   checkup.ConcurrencyPolicy
		existing []*unstructured.Unstructured
		want     string
		says     string
	}{
		{"nothing before", checkup.ConcurrencyForbid, nil, "p-100", "run p-100 is started"},
		{"the last one finished", checkup.ConcurrencyForbid, []*unstructured.Unstructured{done}, "p-098 p-100", "is started"},
		{"the last one runs", checkup.ConcurrencyForbid, []*unstructured.Unstructured{running}, "p-099",
			"run p-100 is not started: run p-099 of plan p has not finished"},
		{"one by hand runs", checkup.ConcurrencyForbid, []*unstructured.Unstructured{byHand}, "by-hand", "is not started"},
		{"one of another plan runs", checkup.ConcurrencyForbid, []*unstructured.Unstructured{other}, "p-100", "is started"},
		{"allowed beside another", checkup.ConcurrencyAllow, []*unstructured.Unstructured{running}, "p-099 p-100", "is started"},
		{"replaces another", checkup.ConcurrencyReplace, []*unstructured.Unstructured{running, done}, "p-098 p-099 p-100",
			"run p-099 is cancelled: run p-100 replaces it"},
		{"a retried Job", checkup.ConcurrencyForbid, []*unstructured.Unstructured{run("p-100", 0, true, false)}, "p-100", "run p-100 exists"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _, out := starter(tt.policy, tt.existing...)
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := names(t, s); got != tt.want || !strings.Contains(out.String(), tt.says) {
				t.Errorf("runs %s, log %q; want %s, %q", got, out, tt.want, tt.says)
			}
		})
	}
	s, client, _ := starter(checkup.ConcurrencyReplace, running)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancelled, err := client.Resource(pipelineRuns).Namespace("ns").Get(t.Context(), "p-099", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if status, _, _ := unstructured.NestedString(cancelled.Object, "spec", "status"); status != "CancelledRunFinally" {
		t.Errorf("the replaced run has status %q, want CancelledRunFinally", status)
	}
	started, err := client.Resource(pipelineRuns).Namespace("ns").Get(t.Context(), "p-100", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if l := started.GetLabels(); l[checkup.LabelScheduled] != "true" || l[checkup.LabelPlan] != "p" || started.GetGenerateName() != "" {
		t.Errorf("the run has labels %v, generateName %q", l, started.GetGenerateName())
	}
}

// TestAtOnce: of two Jobs that both saw no run, the later one takes its run back.
func TestAtOnce(t *testing.T) {
	s, client, out := starter(checkup.ConcurrencyForbid)
	lists := 0
	client.PrependReactor("list", "pipelineruns", func(k8stesting.Action) (bool, runtime.Object, error) {
		if lists++; lists == 2 { // after our own create
			if err := client.Tracker().Add(run("p-099", -1, true, false)); err != nil {
				return true, nil, err
			}
			own := run("p-100", 0, true, false)
			if err := client.Tracker().Update(pipelineRuns, own, "ns"); err != nil {
				return true, nil, err
			}
		}
		return false, nil, nil
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := names(t, s); got != "p-099" || !strings.Contains(out.String(), "began at the same time") {
		t.Errorf("runs %s, log %q; want p-099 only", got, out)
	}
}

// clock is the PipelineRuns of a namespace at a fake time: a run finishes when its time is over.
type clock struct {
	dynamic.ResourceInterface // nil: a call of any other verb panics
	now                       time.Time
	runs                      map[string]*unstructured.Unstructured
	ends                      map[string]time.Time
	// takes is how long the next run takes.
	takes time.Duration
	// expired says that the API server has forgotten the list when its second page is read.
	expired bool
}

func (c *clock) Create(
	_ context.Context, o *unstructured.Unstructured, _ metav1.CreateOptions, _ ...string,
) (*unstructured.Unstructured, error) {
	if c.runs[o.GetName()] != nil {
		return nil, apierrors.NewAlreadyExists(pipelineRuns.GroupResource(), o.GetName())
	}
	o = o.DeepCopy()
	o.SetUID(types.UID("uid of " + o.GetName()))
	o.SetCreationTimestamp(metav1.NewTime(c.now))
	c.runs[o.GetName()], c.ends[o.GetName()] = o, c.now.Add(c.takes)
	return o, nil
}

func (c *clock) List(_ context.Context, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	selector, err := labels.Parse(options.LabelSelector)
	if err != nil {
		return nil, err
	}
	if options.Limit < 1 || options.Limit > listPage {
		return nil, fmt.Errorf("%d runs at once do not fit the memory of the Job", options.Limit)
	}
	if options.Continue != "" && c.expired {
		return nil, apierrors.NewResourceExpired("the continue token is too old")
	}
	list := &unstructured.UnstructuredList{}
	for _, name := range slices.Sorted(maps.Keys(c.runs)) {
		o := c.runs[name]
		if ends := c.ends[name]; !ends.After(c.now) {
			o.Object["status"] = map[string]any{"completionTime": ends.Format(time.RFC3339)}
		}
		if name <= options.Continue || !selector.Matches(labels.Set(o.GetLabels())) {
			continue
		}
		if n := len(list.Items); n == int(options.Limit) {
			list.SetContinue(list.Items[n-1].GetName())
			break
		}
		list.Items = append(list.Items, *o)
	}
	return list, nil
}

func (c *clock) Delete(_ context.Context, name string, options metav1.DeleteOptions, _ ...string) error {
	o := c.runs[name]
	if o == nil || *options.Preconditions.UID != o.GetUID() || *options.PropagationPolicy != metav1.DeletePropagationBackground {
		return apierrors.NewConflict(pipelineRuns.GroupResource(), name, errors.New("another run, or its TaskRuns would stay"))
	}
	delete(c.runs, name)
	return nil
}

// TestRetentionOfAMonth: at one Job a minute for 30 days, with runs that take 40 s, one in a hundred of which hangs for
// an hour, and some by hand, nothing piles up. Time is fake.
func TestRetentionOfAMonth(t *testing.T) {
	const keep = 10
	c := &clock{runs: map[string]*unstructured.Unstructured{}, ends: map[string]time.Time{}}
	s, _, _ := starter(checkup.ConcurrencyForbid)
	s.Runs, s.Keep = c, keep
	started, refused, byHand := 0, 0, 0
	for minute := range 30 * 24 * 60 {
		c.now, c.takes = noon.Add(time.Duration(minute)*time.Minute), 40*time.Second
		if minute%100 == 99 {
			c.takes = time.Hour
		}
		if minute%10000 == 5 {
			byHand++
			if _, err := c.Create(t.Context(), run(fmt.Sprint("by-hand-", minute), 0, false, false), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		out := &strings.Builder{}
		s.Name, s.Out = fmt.Sprintf("p-%d", minute), out
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		switch said := out.String(); {
		case strings.Contains(said, " is started") && c.runs[s.Name] != nil:
			started++
		case strings.Contains(said, "has not finished") && c.runs[s.Name] == nil:
			refused++
		default:
			t.Fatalf("minute %d: the Job says %q; run %v", minute, said, c.runs[s.Name])
		}
		if n := len(c.runs) - byHand; n > keep+1 {
			t.Fatalf("minute %d: %d runs of the schedule are in the cluster, want at most %d and the newest one", minute, n, keep)
		}
	}
	kept := 0
	for name := range c.runs {
		if strings.HasPrefix(name, "by-hand") {
			kept++
		}
	}
	if kept != byHand || started < 10000 || refused < 10000 {
		t.Errorf("%d of %d runs by hand are kept; %d started, %d refused", kept, byHand, started, refused)
	}
}

// TestPages: a Job reads any number of runs, a few at a time, and deletes those beyond the retention. If the API server
// forgets the list meanwhile, the Job fails and starts nothing: a run that it did not see may not have finished.
func TestPages(t *testing.T) {
	for _, expired := range []bool{false, true} {
		c := &clock{now: noon, runs: map[string]*unstructured.Unstructured{}, ends: map[string]time.Time{}, expired: expired}
		for i := range 5*listPage + 1 {
			earlier := run(fmt.Sprintf("p-%03d", i), 0, true, false)
			if _, err := c.Create(t.Context(), earlier, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		s, _, out := starter(checkup.ConcurrencyForbid)
		s.Runs, s.Name = c, "p-999"
		err := s.Start(t.Context())
		if expired {
			if !apierrors.IsResourceExpired(err) || len(c.runs) != 5*listPage+1 {
				t.Errorf("%v, %d runs; want that the list has expired, and no change", err, len(c.runs))
			}
			continue
		}
		if err != nil || len(c.runs) != s.Keep+1 || c.runs[s.Name] == nil {
			t.Errorf("%v, %d runs, log %q; want the newest %d and %s", err, len(c.runs), out, s.Keep, s.Name)
		}
	}
}

func TestExpired(t *testing.T) {
	of := func(name string, minute int, scheduled, finished bool) Run {
		return Run{Name: name, Created: noon.Add(time.Duration(minute) * time.Minute), Scheduled: scheduled, Finished: finished}
	}
	runs := []Run{
		of("newest", 9, true, true), of("running", 1, true, false), of("oldest", 2, true, true), of("by-hand", 0, false, true),
		of("old", 3, true, true), of("new", 8, true, true),
	}
	for _, tt := range []struct {
		keep int
		want string
	}{{1, "oldest old new"}, {2, "oldest old"}, {4, ""}, {9, ""}, {0, "oldest old new"}} {
		var got []string
		for _, r := range Expired(runs, tt.keep) {
			got = append(got, r.Name)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("keep %d: %q expire, want %q", tt.keep, got, tt.want)
		}
	}
}

// TestNew: the environment that planner compile writes, and everything that is wrong with another one.
func TestNew(t *testing.T) {
	env := map[string]string{"PLAN_NAME": "p", "JOB_NAME": "p-1", "NAMESPACE": "ns", "CONCURRENCY_POLICY": "Forbid",
		"JITTER": "30s", "KEEP": "10", "PIPELINE_RUN": `{"kind":"PipelineRun"}`}
	s, namespace, err := New(func(name string) string { return env[name] }, nil)
	if err != nil || namespace != "ns" || s.Jitter != 30*time.Second || s.Keep != 10 || s.Run.GetKind() != "PipelineRun" {
		t.Errorf("%+v in %s, %v", s, namespace, err)
	}
	_, _, err = New(func(string) string { return "" }, nil)
	for name := range env {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v does not name %s", err, name)
		}
	}
}

// TestJitter: the start waits for less than the jitter, and a Job that is stopped then starts nothing.
func TestJitter(t *testing.T) {
	s, _, _ := starter(checkup.ConcurrencyForbid)
	s.Jitter = time.Minute
	s.Sleep = func(_ context.Context, d time.Duration) error {
		if d < 0 || d >= time.Minute {
			t.Errorf("waits %s, want less than a minute", d)
		}
		return context.Canceled
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("no error")
	}
	if got := names(t, s); got != "" {
		t.Errorf("runs %s, want none", got)
	}
}
