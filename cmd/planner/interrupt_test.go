// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
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
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"

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
	} {
		interrupts := make(chan os.Signal, 1)
		interrupts <- os.Interrupt
		if err := read(t.Context(), &environment{stdin: silent, interrupts: interrupts}); !errors.Is(err, errInterrupted) {
			t.Errorf("%s: %v, want that it is interrupted", verb, err)
		}
	}
}

// TestSecondInterrupt: it ends run at once, also while the API server does not answer the request that cancels the run.
func TestSecondInterrupt(t *testing.T) {
	started := &pipelinev1.PipelineRun{
		TypeMeta: metav1.TypeMeta{APIVersion: "tekton.dev/v1", Kind: "PipelineRun"}, ObjectMeta: metav1.ObjectMeta{Name: "p-1", Namespace: "ns", UID: "u"},
	}
	asked, hang := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			close(asked)
			<-hang
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(started); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	defer close(hang)
	client, err := versioned.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cluster := &run.Cluster{Tekton: client, Metadata: metadatafake.NewSimpleMetadataClient(scheme), Namespace: "ns"}
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
		if err == nil || !strings.Contains(err.Error(), "left before the end") {
			t.Errorf("%v, want that it left before the end", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for the API server")
	}
}
