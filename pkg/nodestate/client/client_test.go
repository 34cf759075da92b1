// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"context"
	"flag"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/checkplan/checkplan/pkg/nodestate/api"
	"github.com/checkplan/checkplan/pkg/nodestate/client"
)

// service is a Service with one port in one family.
func service(name string, endpoints ...string) *api.ServiceEndpoints {
	p := &api.Port{Name: "http", Protocol: api.Protocol_TCP, Port: 80, Internal: api.Action_FORWARD}
	for _, e := range endpoints {
		address, _, _ := strings.Cut(e, ":")
		p.Endpoints = append(p.Endpoints, &api.Endpoint{Address: address, Port: 8080, Internal: true})
	}
	return &api.ServiceEndpoints{Namespace: "shop", Name: name, Type: "ClusterIP",
		Families: []*api.Family{{Family: api.IPFamily_IPv4, ClusterIP: "10.96.0.1", Ports: []*api.Port{p}}}}
}

// An answer is what the server does with one call. The last one is repeated.
type answer struct {
	items []*api.NextItem
	err   error
	hang  bool // until the client goes away
}

// scripted answers calls by a script, and keeps their filters.
type scripted struct {
	api.UnimplementedEndpointsServer
	mu     sync.Mutex
	script []answer
	asked  []string
	called chan struct{}
}

func (s *scripted) Next(filter *api.NextFilter, stream grpc.ServerStreamingServer[api.NextItem]) error {
	s.mu.Lock()
	s.asked = append(s.asked, strings.Join(strings.Fields(filter.String()), " ")) // its spaces are random
	now := s.script[0]
	if len(s.script) > 1 {
		s.script = s.script[1:]
	}
	s.mu.Unlock()
	s.called <- struct{}{}
	for _, item := range now.items {
		if err := stream.Send(item); err != nil {
			return err
		}
	}
	if now.hang {
		<-stream.Context().Done()
	}
	return now.err
}

// serve starts a server on a new listener, and returns its target.
func serve(t *testing.T, network string, script ...answer) (*scripted, string) {
	t.Helper()
	s := &scripted{script: script, called: make(chan struct{}, 100)}
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterEndpointsServer(server, s)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return s, network + "://" + listener.Addr().String()
}

func state(instance, rev uint64, services ...*api.ServiceEndpoints) []*api.NextItem {
	items := []*api.NextItem{{Next: &api.NextFilter{InstanceID: instance, Rev: rev}}}
	for _, s := range services {
		items = append(items, &api.NextItem{Endpoints: s})
	}
	return items
}

func names(items []*api.ServiceEndpoints) string {
	var all []string
	for _, i := range items {
		all = append(all, i.Name)
	}
	return strings.Join(all, " ")
}

// quiet discards what the client logs in a test.
func quiet(t *testing.T) {
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old) })
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
}

// TestNext: what is asked for, and that a state is either whole or not there at all.
func TestNext(t *testing.T) {
	quiet(t)
	web, db := service("web", "10.0.0.1:8080"), service("db")
	for _, test := range []struct {
		name          string
		instance, rev uint64
		script        []answer
		states        []string // of as many calls
		asked         []string
	}{
		{"first and second state", 0, 0,
			[]answer{{items: state(7, 1, db, web)}, {items: state(7, 2, web)}},
			[]string{"db web", "web"}, []string{"", "InstanceID:7 Rev:1"}},
		{"resumed", 7, 3, []answer{{items: state(7, 4, web)}}, []string{"web"}, []string{"InstanceID:7 Rev:3"}},
		{"another server", 7, 3, []answer{{items: state(9, 1, web)}, {items: state(9, 2)}},
			[]string{"web", ""}, []string{"InstanceID:7 Rev:3", "InstanceID:9 Rev:1"}},
		{"no Services", 0, 0, []answer{{items: state(7, 1)}}, []string{""}, []string{""}},
		{"an error in the middle: asks for the same again", 7, 3,
			[]answer{{items: state(7, 4, db), err: status.Error(codes.Unavailable, "stops")}, {items: state(7, 4, db, web)}},
			[]string{"db web"}, []string{"InstanceID:7 Rev:3", "InstanceID:7 Rev:3"}},
		{"an empty answer is no state", 7, 3, []answer{{}, {items: state(7, 4, web)}},
			[]string{"web"}, []string{"InstanceID:7 Rev:3", "InstanceID:7 Rev:3"}},
		{"Services without a filter", 7, 3, []answer{{items: state(7, 4, web)[1:]}, {items: state(7, 4, web)}},
			[]string{"web"}, []string{"InstanceID:7 Rev:3", "InstanceID:7 Rev:3"}},
		{"two filters", 7, 3, []answer{{items: append(state(7, 4), state(7, 5)...)}, {items: state(7, 6, web)}},
			[]string{"web"}, []string{"InstanceID:7 Rev:3", "InstanceID:7 Rev:3"}},
		{"an item with neither", 7, 3, []answer{{items: append(state(7, 4), &api.NextItem{})}, {items: state(7, 6, web)}},
			[]string{"web"}, []string{"InstanceID:7 Rev:3", "InstanceID:7 Rev:3"}},
	} {
		for _, network := range []string{"tcp", "unix"} {
			t.Run(test.name+"/"+network, func(t *testing.T) {
				server, target := serve(t, network, test.script...)
				c := &client.EndpointsClient{Target: target, InstanceID: test.instance, Rev: test.rev, ErrorDelay: time.Millisecond}
				defer c.Cancel()
				for i, want := range test.states {
					items, canceled := c.Next()
					if canceled || names(items) != want {
						t.Fatalf("state %d: %q, canceled %t, want %q", i, names(items), canceled, want)
					}
				}
				if !slices.Equal(server.asked, test.asked) {
					t.Errorf("asked for %q, want %q", server.asked, test.asked)
				}
			})
		}
	}
}

// TestServerComes: a client may start before its server, and outlives it.
func TestServerComes(t *testing.T) {
	quiet(t)
	path := filepath.Join(t.TempDir(), "s")
	c := &client.EndpointsClient{Target: "unix://" + path, ErrorDelay: time.Millisecond}
	defer c.Cancel()
	if items, err := c.Fetch(t.Context()); err == nil {
		t.Fatalf("got %v without a server", items)
	}
	for instance := range uint64(3) {
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		answers := &scripted{script: []answer{{items: state(instance, 1)}}, called: make(chan struct{}, 100)}
		api.RegisterEndpointsServer(server, answers)
		go server.Serve(listener)
		if _, canceled := c.Next(); canceled || c.InstanceID != instance {
			t.Fatalf("canceled %t, instance %d, want %d", canceled, c.InstanceID, instance)
		}
		server.Stop()
	}
}

// TestCancel: each way to end a client that waits for a state.
func TestCancel(t *testing.T) {
	for _, test := range []struct {
		name   string
		cancel func(*client.EndpointsClient)
	}{
		{"Cancel", (*client.EndpointsClient).Cancel},
		{"CancelOn", func(c *client.EndpointsClient) {
			c.CancelOn(syscall.SIGUSR1)
			syscall.Kill(os.Getpid(), syscall.SIGUSR1)
		}},
		{"CancelOnSignals", func(c *client.EndpointsClient) {
			c.CancelOnSignals()
			syscall.Kill(os.Getpid(), syscall.SIGTERM)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server, target := serve(t, "tcp", answer{hang: true})
			c := &client.EndpointsClient{Target: target}
			go func() {
				<-server.called
				test.cancel(c)
			}()
			if items, canceled := c.Next(); !canceled || items != nil {
				t.Errorf("got %v, canceled %t", items, canceled)
			}
			if _, canceled := c.Next(); !canceled {
				t.Error("a second call is not canceled")
			}
		})
	}
}

// TestStates: the iterator ends with its context, with Cancel, and with the loop.
func TestStates(t *testing.T) {
	web := service("web")
	_, target := serve(t, "tcp", answer{items: state(7, 1)}, answer{items: state(7, 2, web)}, answer{hang: true})
	c := &client.EndpointsClient{Target: target}
	defer c.Cancel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	for items := range c.States(ctx) {
		if got = append(got, names(items)); len(got) == 2 {
			cancel() // the third one waits
		}
	}
	if !slices.Equal(got, []string{"", "web"}) {
		t.Errorf("got %q", got)
	}
	for range c.States(ctx) {
		t.Error("a state after the end")
	}
}

// TestRun is Example with --once: the flags are those of the document, and those that are printed at the end resume.
func TestRun(t *testing.T) {
	server, target := serve(t, "tcp", answer{items: state(7, 5, service("web"))})
	defer func(args []string, set *flag.FlagSet, out, errs *os.File) {
		os.Args, flag.CommandLine, os.Stdout, os.Stderr = args, set, out, errs
	}(os.Args, flag.CommandLine, os.Stdout, os.Stderr)
	flag.CommandLine = flag.NewFlagSet("print", flag.PanicOnError)
	os.Args = []string{"print", "--target", target, "--instance-id", "7", "--rev", "4", "--error-delay", "1ms", "--once"}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout, os.Stderr = write, write
	client.Run(printState, func(items []*api.ServiceEndpoints) {
		if names(items) != "web" {
			t.Errorf("second handler: %q", names(items))
		}
	})
	write.Close()
	var said bytes.Buffer
	if _, err := said.ReadFrom(read); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# ", `ClusterIP:"10.96.0.1"`, "to resume this watch, use --instance-id 7 --rev 5\n"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("printed %q, want %q in it", said.String(), want)
		}
	}
	if !slices.Equal(server.asked, []string{"InstanceID:7 Rev:4"}) {
		t.Errorf("asked for %q", server.asked)
	}
}
