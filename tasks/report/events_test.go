// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/record"
)

// hourly is a plan of which a run is due every hour.
func hourly() string {
	plan := planOf(checkup.RequirePass, checkup.TeardownAlways)
	return strings.Replace(plan, `{"name":"day-2",`, `{"name":"day-2","schedule":{"cron":"0 * * * *","timeZone":"Etc/UTC",`+
		`"concurrencyPolicy":"Forbid","startingDeadlineSeconds":100},`, 1)
}

// TestEvents: a verdict that changes and runs that are missing are events on the run and on the plan's schedule; a run
// like the one before is no event.
func TestEvents(t *testing.T) {
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) // of the run
	ago := func(hours int, v checkup.RunVerdict) *history.Entry {
		at := started.Add(-time.Duration(hours) * time.Hour)
		name := fmt.Sprintf("day-2-%d-h-ago", hours)
		return &history.Entry{Plan: "day-2", Run: history.Run{Name: name, UID: name, Started: at, Finished: at.Add(time.Minute), Verdict: v}}
	}
	pass, fail := checkup.RunPass, checkup.RunFail
	regular := func(v checkup.RunVerdict) []*history.Entry {
		return []*history.Entry{ago(5, v), ago(4, v), ago(3, v), ago(2, v), ago(1, v)}
	}
	bySchedule := func(entries ...*history.Entry) []*history.Entry {
		for _, e := range entries {
			e.Schedule = &checkup.Schedule{Cron: "0 * * * *", TimeZone: "Etc/UTC"}
			e.Run.Name = fmt.Sprintf("day-2-%d", e.Run.Started.Unix()/60)
		}
		return entries
	}
	broken := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("an older role"))
	for _, tt := range []struct {
		name   string
		plan   string
		before []*history.Entry
		passed bool
		broken error
		want   []string // "KIND type reason"
		words  string   // of the first message
		log    string
	}{
		{name: "first run passes", passed: true},
		{name: "first run fails", want: []string{"PipelineRun Warning VerdictFail"}, words: "this is the first run"},
		{name: "passes still", before: regular(pass), passed: true},
		{name: "fails still", before: regular(fail)},
		{name: "fails now", before: regular(pass), want: []string{"PipelineRun Warning VerdictFail"},
			words: "from n0 to n1: nothing gets through; before pass (run day-2-1-h-ago)"},
		{name: "passes again", before: regular(fail), passed: true, want: []string{"PipelineRun Normal VerdictPass"}, words: "before fail"},
		{name: "was inconclusive", before: regular(checkup.RunInconclusive), passed: true, want: []string{"PipelineRun Normal VerdictPass"}},
		{name: "on the schedule, too", plan: hourly(), before: regular(pass),
			want: []string{"CronJob Warning VerdictFail", "PipelineRun Warning VerdictFail"}},
		{name: "runs missing", plan: hourly(), before: bySchedule(ago(7, pass), ago(6, pass), ago(5, pass), ago(4, pass)), passed: true,
			want: []string{"CronJob Warning RunsMissing", "PipelineRun Warning RunsMissing"}, words: "3 runs missing before run run"},
		{name: "the schedule never started a run", plan: hourly(), before: []*history.Entry{ago(7, pass), ago(6, pass), ago(5, pass), ago(4, pass)}, passed: true},
		{name: "the schedule is gone", before: bySchedule(ago(7, pass), ago(6, pass), ago(5, pass), ago(4, pass)), passed: true},
		{name: "no right to events", before: regular(pass), broken: broken, log: "::warning::no event on PipelineRun run: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plan := tt.plan
			if plan == "" {
				plan = planOf(checkup.RequirePass, checkup.TeardownAlways)
			}
			synctest.Test(t, func(t *testing.T) { // a missing right is tried for a while
				tk, client, log := newTask(t, tt.passed, plan)
				for _, entry := range tt.before {
					if err := tk.Store("day-2").AddHistory(t.Context(), entry); err != nil {
						t.Fatal(err)
					}
				}
				if tt.plan != "" {
					job := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{
						Name: "day-2", Namespace: "ns", UID: "uid-of-job", Labels: map[string]string{checkup.LabelPlan: "day-2"},
					}}
					if err := client.Tracker().Add(job); err != nil {
						t.Fatal(err)
					}
				}
				client.PrependReactor("create", "events", func(k8stesting.Action) (bool, runtime.Object, error) {
					return tt.broken != nil, nil, tt.broken
				})
				for range 2 { // an event is written once, however often the step is tried
					err := run(t.Context(), tk)
					if got := result(t, tk, "verdict"); (err == nil) != tt.passed || (got == "pass") != tt.passed {
						t.Fatalf("%v, verdict %q; want passed %v; log:\n%s", err, got, tt.passed, log)
					}
				}
				list, err := client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, e := range list.Items {
					got = append(got, fmt.Sprintf("%s %s %s", e.InvolvedObject.Kind, e.Type, e.Reason))
					if !strings.Contains(e.Message, tt.words) || e.InvolvedObject.UID == "" || e.FirstTimestamp.IsZero() {
						t.Errorf("event %+v, want %q, and the object's UID", e, tt.words)
					}
				}
				slices.Sort(got)
				if !slices.Equal(got, tt.want) {
					t.Errorf("events %q, want %q", got, tt.want)
				}
				if !strings.Contains(log.String(), tt.log) {
					t.Errorf("log lacks %q:\n%s", tt.log, log)
				}
				if h, err := record.LoadHistory(t.Context(), tk.Store("").ConfigMaps, "day-2"); err != nil || len(h.Runs) != len(tt.before)+1 {
					t.Errorf("%d runs in the history, %v; want %d", len(h.Runs), err, len(tt.before)+1)
				}
			})
		})
	}
}

// TestEventOf: a message of any length and content is one clean line of at most 1024 bytes.
func TestEventOf(t *testing.T) {
	on := corev1.ObjectReference{Kind: "PipelineRun", Namespace: "ns", Name: "run"}
	for _, message := range []string{"", "short", "\x1b[31mred\n::error::", strings.Repeat("ü", 5000), strings.Repeat("a", maxEvent+1)} {
		e := eventOf(history.News{Reason: history.VerdictFail, Message: message}, on, "uid", metav1.Now())
		if len(e.Message) > maxEvent || !utf8.ValidString(e.Message) || strings.ContainsAny(e.Message, "\n\x1b") {
			t.Errorf("message of %d bytes %.40q, want one clean line of at most %d", len(e.Message), e.Message, maxEvent)
		}
		if other := eventOf(history.News{Reason: history.RunsMissing}, on, "uid", metav1.Now()); other.Name == e.Name {
			t.Errorf("two events have the name %s", e.Name)
		}
	}
}
