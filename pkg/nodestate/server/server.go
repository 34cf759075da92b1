// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/kubernetes"

	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

// Options say what is served.
type Options struct {
	// Node is the name of the node.
	Node string
	// State has the settings of the node's proxy.
	State nodestate.Options
	// Client needs the right to get, list and watch Services, EndpointSlices and Nodes.
	Client kubernetes.Interface
	// MinSyncPeriod is the shortest time between two states. A change after a quiet time is not delayed. It bounds the
	// work under churn, as kube-proxy's setting of this name does (1s by default there). 0: every change is a state.
	MinSyncPeriod time.Duration
	// Log is where outages of the API server are written. nil: slog.Default().
	Log *slog.Logger
}

// Server serves one node's state.
type Server struct {
	api.UnimplementedEndpointsServer
	options  Options
	instance uint64
	metrics  metrics
	stopped  chan struct{} // closed when Run ends

	mu        sync.Mutex // guards the fields below
	cluster   *nodestate.Cluster
	view      *nodestate.View // nil until everything was read
	resources []*resource
	now       published
	next      time.Time     // the earliest time for the next state
	timer     *time.Timer   // nil, or publishes then
	changed   chan struct{} // closed when now changes
}

// published is the state that clients get. Its revision is 0 before there is one.
type published struct {
	rev   uint64
	items []*nodestate.ServiceEndpoints // not written to
}

// New returns a server, which does nothing before Run. It fails if the options of the state are wrong.
func New(o Options) (*Server, error) {
	cluster, err := nodestate.New(o.State)
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &Server{options: o, instance: 1 + rand.Uint64N(1<<64-1), stopped: make(chan struct{}),
		cluster: cluster, changed: make(chan struct{})}
	s.resources = s.watched()
	s.metrics = newMetrics(s)
	return s, nil
}

// Run follows the API server until ctx ends. It runs once.
func (s *Server) Run(ctx context.Context) {
	defer close(s.stopped)
	var wg sync.WaitGroup
	for _, r := range s.resources {
		wg.Go(func() { r.follow(ctx) })
	}
	wg.Wait()
}

// change changes the cluster, and what clients get if the node's result is another one.
func (s *Server) change(do func(*nodestate.Cluster)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s.cluster)
	s.publish()
}

// publish makes the state of the view the one that clients get, now or after MinSyncPeriod. s.mu is locked.
func (s *Server) publish() {
	if s.view == nil {
		for _, r := range s.resources {
			if !r.synced {
				return
			}
		}
		s.view = s.cluster.View(s.options.Node)
		s.options.Log.Info("everything was read", "node", s.options.Node, "services", len(s.view.State()))
	}
	if s.view.Rev() == s.now.rev || s.timer != nil {
		return
	}
	if early := time.Until(s.next); early > 0 {
		s.timer = time.AfterFunc(early, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.timer = nil
			s.publish()
		})
		return
	}
	s.now = published{rev: s.view.Rev(), items: s.view.State()}
	s.next = time.Now().Add(s.options.MinSyncPeriod)
	close(s.changed)
	s.changed = make(chan struct{})
}

// wait returns the state after the one that the filter names, when there is one.
func (s *Server) wait(ctx context.Context, filter *api.NextFilter) (published, error) {
	for {
		s.mu.Lock()
		now, changed := s.now, s.changed
		s.mu.Unlock()
		if now.rev != 0 && (filter.InstanceID != s.instance || filter.Rev != now.rev) {
			return now, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return published{}, status.FromContextError(ctx.Err()).Err()
		case <-s.stopped:
			return published{}, status.Error(codes.Unavailable, "the server stops")
		}
	}
}

// Next is the API's function. It returns an error, after some items or none, if the client goes away or the server
// stops.
func (s *Server) Next(filter *api.NextFilter, stream grpc.ServerStreamingServer[api.NextItem]) error {
	s.metrics.clients.WithLabelValues(waiting).Inc()
	state, err := s.wait(stream.Context(), filter)
	s.metrics.clients.WithLabelValues(waiting).Dec()
	if err != nil {
		return err
	}
	s.metrics.clients.WithLabelValues(receiving).Inc()
	defer s.metrics.clients.WithLabelValues(receiving).Dec()
	if err := stream.Send(&api.NextItem{Next: &api.NextFilter{InstanceID: s.instance, Rev: state.rev}}); err != nil {
		return err
	}
	for _, item := range state.items {
		if err := stream.Send(&api.NextItem{Endpoints: message(item)}); err != nil {
			return err
		}
		s.metrics.items.Inc()
	}
	s.metrics.states.Inc()
	return nil
}

// Limits of what clients can make the server use. A client has one connection and one call.
const (
	maxConnections = 64 // of each address
	maxCalls       = 4  // of a connection
	maxRequest     = 1 << 10

	// A client that does not answer a ping is frozen or gone, and so is its connection after this time. Until then the
	// server holds the state that it was receiving, of which most is the present one, too.
	pingInterval, pingTimeout = 20 * time.Second, 10 * time.Second
	// minPing is the shortest time between two pings of a client.
	minPing = 10 * time.Second
)

// Serve answers clients on the listeners until Run ends, and closes the listeners.
func (s *Server) Serve(listeners ...net.Listener) error {
	server := grpc.NewServer(
		grpc.MaxConcurrentStreams(maxCalls), grpc.MaxRecvMsgSize(maxRequest), grpc.ConnectionTimeout(pingTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}))
	api.RegisterEndpointsServer(server, s)
	errs := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { errs <- server.Serve(netutil.LimitListener(l, maxConnections)) }()
	}
	defer server.Stop()
	go func() {
		<-s.stopped
		server.Stop()
	}()
	var all []error
	for range listeners {
		err := <-errs
		server.Stop() // the other ones, too
		all = append(all, err)
	}
	select {
	case <-s.stopped:
		return nil
	default:
		return errors.Join(all...)
	}
}
