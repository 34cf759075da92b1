// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/run"
)

// TestInterruptedInput: an interrupt ends a verb that waits for standard input.
func TestInterruptedInput(t *testing.T) {
	silent, writer := io.Pipe()
	defer writer.Close()
	for verb, read := range map[string]func(context.Context, *environment) error{
		"report": func(ctx context.Context, e *environment) error {
			_, _, err := e.findReport(ctx, "-", run.Access{})
			return err
		},
		"history": func(ctx context.Context, e *environment) error {
			_, _, err := e.readHistory(ctx, "-", run.Access{})
			return err
		},
		"state": func(ctx context.Context, e *environment) error {
			return e.state(ctx, nil, stateOptions{node: "a", file: "-"})
		},
	} {
		interrupts := make(chan os.Signal, 1)
		interrupts <- os.Interrupt
		if err := read(t.Context(), &environment{stdin: silent, interrupts: interrupts}); !errors.Is(err, errInterrupted) {
			t.Errorf("%s: %v, want that it is interrupted", verb, err)
		}
	}
}

// deaf returns a cluster whose API server answers with this run, but never to requests that it is deaf to.
func deaf(t *testing.T, started *pipelinev1.PipelineRun, to func(*http.Request) bool) *run.Cluster {
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to(r) {
			<-hang
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(started); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(hang) })
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{Host: server.URL}
	return &run.Cluster{
		Kube: kubernetes.NewForConfigOrDie(config), Tekton: versioned.NewForConfigOrDie(config),
		Metadata: metadatafake.NewSimpleMetadataClient(scheme), Namespace: "ns",
	}
}

func startedRun() *pipelinev1.PipelineRun {
	return &pipelinev1.PipelineRun{
		TypeMeta: metav1.TypeMeta{APIVersion: "tekton.dev/v1", Kind: "PipelineRun"}, ObjectMeta: metav1.ObjectMeta{Name: "p-1", Namespace: "ns", UID: "u"},
	}
}

// TestInterruptedReport: an interrupt ends run while the API server does not answer the request for the report. If it
// does not answer the request for the history of the plan, the interrupt is a warning.
func TestInterruptedReport(t *testing.T) {
	started := startedRun()
	started.Status.MarkSucceeded("Succeeded", "all tasks")
	interrupts := make(chan os.Signal, 1)
	cluster := deaf(t, started, func(r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "configmaps") {
			return false
		}
		interrupts <- os.Interrupt
		return true
	})
	var stderr strings.Builder
	e := &environment{stderr: &stderr, interrupts: interrupts}
	ended := make(chan error, 1)
	go func() {
		_, err := e.finish(t.Context(), cluster, started, newScreen(io.Discard, terminal{}))
		ended <- err
		e.past(t.Context(), cluster, &checkup.Report{Plan: "p"}, "html")
		ended <- nil
	}()
	for _, want := range []string{"PipelineRun p-1 ended, and its report cannot be read: ", "<nil>"} {
		select {
		case err := <-ended:
			if !strings.HasPrefix(fmt.Sprint(err), want) || err != nil && !errors.Is(err, errInterrupted) {
				t.Errorf("got %v, want %q, and that it is interrupted", err, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("it waits for the API server, want %q", want)
		}
	}
	if got := stderr.String(); !strings.Contains(got, "warning: cannot read the history") {
		t.Errorf("printed %q, want a warning", got)
	}
}

// TestSecondInterrupt: it ends run at once, also while the API server does not answer the request that cancels the run.
func TestSecondInterrupt(t *testing.T) {
	started, asked := startedRun(), make(chan struct{})
	cluster := deaf(t, started, func(r *http.Request) bool {
		if r.Method != http.MethodPatch {
			return false
		}
		close(asked)
		return true
	})
	interrupts := make(chan os.Signal, 1)
	e := &environment{interrupts: interrupts}
	ended := make(chan error, 1)
	go func() {
		_, _, err := e.follow(t.Context(), cluster, started, newScreen(io.Discard, terminal{}))
		ended <- err
	}()
	interrupts <- os.Interrupt
	<-asked
	interrupts <- os.Interrupt
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "interrupted before the run ended") {
			t.Errorf("%v, want that it was interrupted", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for the API server")
	}
}
