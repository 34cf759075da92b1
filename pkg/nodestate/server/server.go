// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
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
	// AnyNode: a client whose certificate names another node gets that node's state. It costs a watch of all Nodes.
	AnyNode bool
	// MinSyncPeriod is the shortest time between two states. A change after a quiet time is not delayed. It bounds the
	// work under churn, as kube-proxy's setting of this name does (1s by default there). 0: every change is a state.
	MinSyncPeriod time.Duration
	// Log is where outages of the API server are written. nil: slog.Default().
	Log *slog.Logger
}

// Server serves one node's state, and with Options.AnyNode those of others.
type Server struct {
	api.UnimplementedEndpointsServer
	options Options
	metrics metrics
	stopped chan struct{} // closed when Run ends

	mu        sync.Mutex // guards the fields below
	cluster   *nodestate.Cluster
	resources []*resource
	own       *feed
	feeds     map[string]*feed // by node; own is one of them
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
	s := &Server{options: o, stopped: make(chan struct{}), cluster: cluster, own: newFeed(o.Node)}
	s.feeds = map[string]*feed{o.Node: s.own}
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

// change changes the cluster, and what clients get if a node's result is another one.
func (s *Server) change(do func(*nodestate.Cluster)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s.cluster)
	for _, f := range s.feeds {
		s.publish(f)
	}
}

// publish makes the state of a feed's view the one that clients get, now or after MinSyncPeriod. s.mu is locked.
func (s *Server) publish(f *feed) {
	if f.view == nil {
		for _, r := range s.resources {
			if !r.synced {
				return
			}
		}
		f.view = s.cluster.View(f.node)
		s.options.Log.Info("the state is known", "node", f.node, "services", len(f.view.State()))
	}
	if f.view.Rev() == f.now.rev || f.timer != nil {
		return
	}
	if early := time.Until(f.next); early > 0 {
		f.timer = time.AfterFunc(early, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			f.timer = nil
			s.publish(f)
		})
		return
	}
	f.now = published{rev: f.view.Rev(), items: f.view.State()}
	f.next = time.Now().Add(s.options.MinSyncPeriod)
	close(f.changed)
	f.changed = make(chan struct{})
}

// wait returns the state after the one that the filter names, when there is one.
func (s *Server) wait(ctx context.Context, f *feed, filter *api.NextFilter) (published, error) {
	for {
		s.mu.Lock()
		now, changed, known := f.now, f.changed, f == s.own || s.known(f.node)
		s.mu.Unlock()
		switch {
		case now.rev != 0 && !known:
			return published{}, status.Errorf(codes.NotFound,
				"node %q, which the client's certificate names, does not exist", f.node)
		case now.rev != 0 && (filter.InstanceID != f.instance || filter.Rev != now.rev):
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
	f := s.enter(s.nodeOf(stream.Context()))
	defer s.leave(f)
	s.metrics.clients.WithLabelValues(waiting).Inc()
	state, err := s.wait(stream.Context(), f, filter)
	s.metrics.clients.WithLabelValues(waiting).Dec()
	if err != nil {
		return err
	}
	s.metrics.clients.WithLabelValues(receiving).Inc()
	defer s.metrics.clients.WithLabelValues(receiving).Dec()
	if err := stream.Send(&api.NextItem{Next: &api.NextFilter{InstanceID: f.instance, Rev: state.rev}}); err != nil {
		return err
	}
	for _, item := range state.items {
		if err := stream.Send(&api.NextItem{Endpoints: Message(item)}); err != nil {
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
	// maxAge is for connections with certificates: a client needs a valid one again for its first call after this time.
	maxAge = time.Hour
)

// Serve answers clients on listeners that Listen returned until Run ends, and closes the listeners.
func (s *Server) Serve(listeners ...net.Listener) error {
	var servers []*grpc.Server
	errs := make(chan error, len(listeners))
	for _, l := range listeners {
		pings := keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout}
		protection := insecure.NewCredentials()
		if secure, ok := l.(secureListener); ok {
			pings.MaxConnectionAge = maxAge
			protection = credentials.NewTLS(secure.config(s.options.Log))
		}
		server := grpc.NewServer(grpc.Creds(protection),
			grpc.MaxConcurrentStreams(maxCalls), grpc.MaxRecvMsgSize(maxRequest), grpc.ConnectionTimeout(pingTimeout),
			grpc.KeepaliveParams(pings),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}))
		api.RegisterEndpointsServer(server, s)
		servers = append(servers, server)
		go func() { errs <- server.Serve(netutil.LimitListener(l, maxConnections)) }()
	}
	var err error
	select {
	case <-s.stopped:
	case err = <-errs: // one is enough: the others end, too
	}
	for _, server := range servers {
		server.Stop()
	}
	return err
}
