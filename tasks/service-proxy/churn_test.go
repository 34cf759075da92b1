// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy/proxytest"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/nodestate/nodestatetest"
	nodestateserver "github.com/checkplan/checkplan/pkg/nodestate/server"
)

// freezer is a writer that can be frozen: while mu is locked.
type freezer struct {
	writer

	mu     sync.Mutex
	writes int
	last   *proxy.State // written
}

func (f *freezer) Write(ctx context.Context, state *proxy.State, at proxy.Node) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.writer.Write(ctx, state, at)
	if f.writes++; err == nil {
		f.last = state
	}
	return err
}

// TestChurn: endpoints change all the time, and during the second half of the changes the writer is frozen. When the
// changes end, the last state is the one that is written, and the writer was not asked for those that it missed.
func TestChurn(t *testing.T) {
	on, _ := lab()
	on.writers[dataplane.NFTables] = func(*slog.Logger) writer {
		return &fakeWriter{mode: dataplane.NFTables, written: make(chan string, 100_000)}
	}
	churn(t, dataplane.NFTables, on)
}

// churn changes endpoints a thousand times a second, and returns the state of the node after the changes, which has
// been written. All but the API server and the node is the true one: the server of the node's state, the client and the
// proxy. With CHECKPLAN_LONG=1 it takes a minute, and the cluster has 10,000 endpoints.
func churn(t *testing.T, mode dataplane.Mode, on node) []*nodestate.ServiceEndpoints {
	t.Helper()
	fleet, least, period := nodestatetest.NewFleet(40, 400, 10), 200, time.Millisecond
	if os.Getenv("CHECKPLAN_LONG") != "" {
		fleet, least, period = nodestatetest.NewFleet(1_000, 10_000, 100), 60_000, 100*time.Millisecond
	}
	objects := []runtime.Object{fleet.Nodes[0]}
	for i := range fleet.Services {
		objects = append(objects, fleet.Services[i], fleet.Slices[i])
	}
	api := fake.NewSimpleClientset(objects...)
	events := make(chan watch.Event)
	api.PrependWatchReactor("endpointslices", clienttesting.DefaultWatchReactor(watch.NewProxyWatcher(events), nil))
	var changes []*discoveryv1.EndpointSlice
	for len(changes) < least {
		for e := range fleet.Day() {
			if e.Slice != nil {
				changes = append(changes, e.Slice)
			}
		}
	}

	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if t.Failed() {
			t.Logf("logged:\n%s", &log)
		}
	})
	server, err := nodestateserver.New(nodestateserver.Options{Node: fleet.Nodes[0].Name, Client: api,
		MinSyncPeriod: period, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	target := "unix://" + filepath.Join(t.TempDir(), "s")
	listener, err := nodestateserver.Listen(target, nodestateserver.Certificates{})
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() { server.Run(ctx) })
	running.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	})

	f := &freezer{}
	start := on.writers[mode]
	on.writers[mode] = func(log *slog.Logger) writer {
		f.writer = start(log)
		return f
	}
	running.Go(func() {
		args := []string{"--mode", string(mode), "--target", target, "--http-listen", "", "--pod-cidr", "10.244.1.0/24"}
		if err := run(ctx, &log, args, on); err != nil {
			t.Error(err)
		}
	})
	until := func(what string, met func() bool) {
		t.Helper()
		for start := time.Now(); ; time.Sleep(time.Millisecond) {
			f.mu.Lock()
			done := met()
			f.mu.Unlock()
			if done {
				return
			}
			if time.Since(start) > 2*time.Minute {
				t.Fatalf("never happened: %s", what)
			}
		}
	}
	until("the first state is written", func() bool { return f.last != nil })

	thaw := sync.OnceFunc(f.mu.Unlock)
	writes := 1
	for i, slice := range changes {
		switch half := len(changes) / 2; {
		case i == half:
			f.mu.Lock()
			t.Cleanup(thaw)
		case i < half && i%(half/8) == half/16: // so that some states in between are written, too
			before := writes
			until("another state is written", func() bool { writes = f.writes; return writes > before })
		}
		select {
		case events <- watch.Event{Type: watch.Modified, Object: slice}:
		case <-time.After(time.Minute):
			t.Fatal("the server does not follow the API server")
		}
		time.Sleep(time.Millisecond)
	}
	thaw()

	cluster, err := nodestate.New(nodestate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cluster.SetNode(fleet.Nodes[0])
	for i := range fleet.Services {
		cluster.SetService(fleet.Services[i])
		cluster.SetSlice(fleet.Slices[i])
	}
	state := cluster.State(fleet.Nodes[0].Name)
	last := proxy.Check(proxytest.Messages(state))
	until("the last state is written", func() bool { writes = f.writes; return reflect.DeepEqual(f.last, last) })
	// Of the second half: what was being written, what waited, what was on its way, and the last one.
	if most := 1 + len(changes)/2 + 4; writes > most {
		t.Errorf("%d states were written, want at most %d", writes, most)
	}
	t.Logf("%d changes, %d states written", len(changes), writes)
	return state
}
