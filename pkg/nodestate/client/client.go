// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

const (
	// DefaultTarget is the socket of the server's DaemonSet.
	DefaultTarget = "unix:///run/checkplan/node-state.sock"
	// DefaultErrorDelay is the time between two attempts.
	DefaultErrorDelay = time.Second

	// maxMessage is the largest message that is received, in bytes: one Service with more than a million endpoints.
	maxMessage = 64 << 20
	// A server that does not answer pings is dead. The server permits one ping in ten seconds.
	pingInterval, pingTimeout = 30 * time.Second, 20 * time.Second
)

// EndpointsClient gets the states of one node. The zero value of each field is usable. One goroutine at a time may call
// Next, Fetch or States; any may call Cancel.
type EndpointsClient struct {
	// Target is the server's address: unix:///PATH, or tcp://HOST:PORT or HOST:PORT, all without encryption, for a server
	// on the same node; or tls://HOST:PORT, which needs Certificates. Empty: DefaultTarget.
	Target string
	// InstanceID and Rev name the last state that was returned. A client that begins with those of another, or of its
	// own predecessor, gets the state after that one. 0: the present one.
	InstanceID uint64
	Rev        uint64
	// ErrorDelay is the delay before retrying after an error. 0: DefaultErrorDelay.
	ErrorDelay time.Duration
	// Certificates are for a Target tls://HOST:PORT.
	Certificates Certificates

	start  sync.Once
	ctx    context.Context // until Cancel
	cancel context.CancelFunc
	conn   *grpc.ClientConn // nil: not connected yet
}

// FlagSet is what this package calls of *flag.FlagSet; github.com/spf13/pflag has the same functions.
type FlagSet interface {
	StringVar(variable *string, name, value, usage string)
	Uint64Var(variable *uint64, name string, value uint64, usage string)
	DurationVar(variable *time.Duration, name string, value time.Duration, usage string)
}

// New returns a client whose fields are the flags of the set. Without flags, &EndpointsClient{...} does.
func New(flags FlagSet) *EndpointsClient {
	c := &EndpointsClient{}
	c.DefaultFlags(flags)
	return c
}

// DefaultFlags adds the client's flags to the set.
func (c *EndpointsClient) DefaultFlags(flags FlagSet) {
	flags.StringVar(&c.Target, "target", DefaultTarget, "address of the server: unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT")
	flags.Uint64Var(&c.InstanceID, "instance-id", 0, "instance of the server, to resume a watch")
	flags.Uint64Var(&c.Rev, "rev", 0, "last known revision, to resume a watch")
	flags.DurationVar(&c.ErrorDelay, "error-delay", DefaultErrorDelay, "delay before retrying after an error")
	flags.StringVar(&c.Certificates.Cert, "tls-cert", "", "file with the client's certificate, for tls://")
	flags.StringVar(&c.Certificates.Key, "tls-key", "", "file with its key")
	flags.StringVar(&c.Certificates.ServerCA, "server-ca", "", "file with the CA of the server's certificate")
}

// Next returns the next state: the present one first, then one after each change; states between two calls are left
// out. It never fails: it logs an error, and tries again after ErrorDelay. canceled means that Cancel was called; there
// is no state then.
func (c *EndpointsClient) Next() (items []*api.ServiceEndpoints, canceled bool) {
	c.prepare()
	items, err := c.next(c.ctx)
	return items, err != nil
}

// States yields what Next returns, until ctx ends or Cancel is called.
func (c *EndpointsClient) States(ctx context.Context) iter.Seq[[]*api.ServiceEndpoints] {
	return func(yield func([]*api.ServiceEndpoints) bool) {
		for {
			items, err := c.next(ctx)
			if err != nil || !yield(items) {
				return
			}
		}
	}
}

// next fetches until a state arrives. The only errors are those of contexts that ended.
func (c *EndpointsClient) next(ctx context.Context) ([]*api.ServiceEndpoints, error) {
	logged := ""
	for {
		items, err := c.Fetch(ctx)
		if err == nil {
			return items, nil
		}
		if ended := errors.Join(ctx.Err(), c.ctx.Err()); ended != nil {
			return nil, ended
		}
		if err.Error() != logged {
			logged = err.Error()
			slog.Warn("cannot get the node's state; trying again", "error", err, "delay", c.delay())
		}
		select {
		case <-time.After(c.delay()):
		case <-ctx.Done():
		case <-c.ctx.Done():
		}
	}
}

// Fetch asks once for the state after InstanceID and Rev, and waits for it. The fields change only when a state is
// whole: after an error, they are what they were.
func (c *EndpointsClient) Fetch(ctx context.Context) ([]*api.ServiceEndpoints, error) {
	c.prepare()
	conn, err := c.connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	stream, err := api.NewEndpointsClient(conn).Next(ctx, &api.NextFilter{InstanceID: c.InstanceID, Rev: c.Rev})
	if err != nil {
		return nil, fmt.Errorf("get the state from %s: %w", c.target(), err)
	}
	var next *api.NextFilter
	var items []*api.ServiceEndpoints
	for {
		switch item, err := stream.Recv(); {
		case errors.Is(err, io.EOF) && next != nil:
			c.InstanceID, c.Rev = next.InstanceID, next.Rev
			return items, nil
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("get the state from %s: the answer is empty: want a NextFilter first", c.target())
		case err != nil:
			return nil, fmt.Errorf("get the state from %s: %w", c.target(), err)
		case next == nil && item.Next != nil && item.Endpoints == nil:
			next = item.Next
		case next != nil && item.Next == nil && item.Endpoints != nil:
			items = append(items, item.Endpoints)
		default:
			return nil, fmt.Errorf("get the state from %s: item %d: want a NextFilter first, then ServiceEndpoints",
				c.target(), len(items))
		}
	}
}

// Cancel ends the client: a call of Next, Fetch or States returns soon, and so does each later one.
func (c *EndpointsClient) Cancel() {
	c.prepare()
	c.cancel()
}

// CancelOn calls Cancel at the first of the signals. The second one has its usual effect.
func (c *EndpointsClient) CancelOn(signals ...os.Signal) {
	c.prepare()
	ctx, stop := signal.NotifyContext(c.ctx, signals...)
	context.AfterFunc(ctx, func() {
		stop()
		c.Cancel()
	})
}

// CancelOnSignals calls Cancel at the signals that end a program: SIGINT and SIGTERM.
func (c *EndpointsClient) CancelOnSignals() { c.CancelOn(os.Interrupt, syscall.SIGTERM) }

func (c *EndpointsClient) prepare() {
	c.start.Do(func() { c.ctx, c.cancel = context.WithCancel(context.Background()) })
}

func (c *EndpointsClient) target() string {
	if c.Target == "" {
		return DefaultTarget
	}
	return c.Target
}

func (c *EndpointsClient) delay() time.Duration {
	if c.ErrorDelay == 0 {
		return DefaultErrorDelay
	}
	return c.ErrorDelay
}

// connect returns the connection, which gRPC establishes, and establishes again, when it is used. Cancel closes it.
func (c *EndpointsClient) connect() (*grpc.ClientConn, error) {
	if c.conn != nil {
		return c.conn, nil
	}
	target, protection := c.target(), insecure.NewCredentials()
	if address, secure := strings.CutPrefix(target, "tls://"); secure {
		target, protection = address, c.Certificates.transport()
	}
	if !strings.HasPrefix(target, "unix://") {
		target = "dns:///" + strings.TrimPrefix(target, "tcp://")
	}
	every := backoff.Config{BaseDelay: c.delay(), Multiplier: 1, MaxDelay: c.delay()}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(protection),
		grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: every, MinConnectTimeout: pingTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("target %s: want unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT: %w", c.target(), err)
	}
	c.conn = conn
	context.AfterFunc(c.ctx, func() { conn.Close() })
	return conn, nil
}

// HandlerFunc is called with each state, in the order of namespace and name.
type HandlerFunc func(items []*api.ServiceEndpoints)

// Run is the main function of a simple client: it parses the flags of the command line, those of New and --once, and
// calls the handlers with each state until a signal ends the program. With --once it returns after the first state, and
// prints the flags with which another run continues.
func Run(handlers ...HandlerFunc) {
	once := flag.Bool("once", false, "only one state")
	c := New(flag.CommandLine)
	flag.Parse()
	c.CancelOnSignals()
	defer c.Cancel()
	for {
		items, canceled := c.Next()
		if canceled {
			return
		}
		for _, handle := range handlers {
			handle(items)
		}
		if *once {
			fmt.Fprintf(os.Stderr, "to resume this watch, use --instance-id %d --rev %d\n", c.InstanceID, c.Rev)
			return
		}
	}
}
