// SPDX-License-Identifier: Apache-2.0

// Node-state serves the state of one node over KEP-2094's API; docs/node-state.md. It runs on each node, as a
// DaemonSet (catalog/node-state).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/nodestate/server"
)

// version is set by the linker.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stderr, os.Args[1:], connect)
	stop()
	var usage usageError
	switch {
	case err == nil, errors.Is(err, pflag.ErrHelp):
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "node-state: %v\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "node-state: %v\n", err)
		os.Exit(1)
	}
}

// usageError is the error of a wrong command line.
type usageError struct{ error }

// connect returns a client of the cluster that a kubeconfig names, or of the pod's own one if it is empty.
func connect(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, err
	}
	config.UserAgent = "node-state/" + version
	return kubernetes.NewForConfig(config)
}

func run(ctx context.Context, stderr io.Writer, args []string,
	connect func(kubeconfig string) (kubernetes.Interface, error)) error {
	flags := pflag.NewFlagSet("node-state", pflag.ContinueOnError)
	flags.SetOutput(stderr)
	var o server.Options
	flags.StringVar(&o.Node, "node-name", os.Getenv("NODE_NAME"), "name of the node; default: $NODE_NAME")
	flags.StringSliceVar(&o.State.NodePortAddresses, "nodeport-addresses", nil, `kube-proxy's option of this name: `+
		`prefixes, or "primary"; if empty, node ports answer on all addresses of the node`)
	flags.DurationVar(&o.MinSyncPeriod, "min-sync-period", time.Second,
		"shortest time between two states; a change after a quiet time is not delayed")
	kubeconfig := flags.String("kubeconfig", "", "path of a kubeconfig; default: the pod's service account")
	listen := flags.StringSlice("listen", []string{"unix:///run/checkplan/node-state.sock"},
		"where clients connect: unix:///PATH (mode 0660), tcp://127.0.0.1:PORT, or tls://ADDRESS:PORT; may be repeated")
	var c server.Certificates
	flags.StringVar(&c.Cert, "tls-cert", "", "file with the server's certificate, for tls://; read again for each connection")
	flags.StringVar(&c.Key, "tls-key", "", "file with its key")
	flags.StringVar(&c.ClientCA, "client-ca", "", "file with the CA of clients; "+
		"one whose certificate has the common name system:node:NODE gets the state of that node")
	httpListen := flags.String("http-listen", "127.0.0.1:12346",
		"address of /readyz, /livez and /metrics; they show no Service; empty: none")
	own := flags.String("own-directory", "",
		"give this directory to user and group 65532 with mode 0750, and exit: for an init container with CAP_CHOWN")
	if err := flags.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return err
	} else if err != nil {
		return usageError{err}
	}
	switch {
	case flags.NArg() > 0:
		return usageError{fmt.Errorf("unexpected argument %q", flags.Arg(0))}
	case *own != "":
		return ownDirectory(*own)
	case o.Node == "":
		return usageError{errors.New("want --node-name NODE, or NODE_NAME in the environment")}
	case len(*listen) == 0:
		return usageError{errors.New("want --listen ADDRESS: without one, nobody can connect")}
	}
	if _, err := nodestate.New(o.State); err != nil {
		return usageError{err}
	}
	var err error
	if o.Client, err = connect(*kubeconfig); err != nil {
		return fmt.Errorf("configure the client of the API server: %w", err)
	}
	o.Log = slog.New(slog.NewTextHandler(stderr, nil))
	o.AnyNode = slices.ContainsFunc(*listen, func(a string) bool { return strings.HasPrefix(a, "tls://") })
	return serve(ctx, o, *listen, c, *httpListen)
}

// serve serves until ctx ends.
func serve(
	ctx context.Context, o server.Options, addresses []string, c server.Certificates, httpAddress string,
) error {
	s, err := server.New(o)
	if err != nil {
		return err
	}
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	for _, address := range addresses {
		l, err := server.Listen(address, c)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if httpAddress != "" {
		l, err := net.Listen("tcp", httpAddress)
		if err != nil {
			return fmt.Errorf("--http-listen: %w", err)
		}
		h := &http.Server{Handler: s.Handler(), ReadTimeout: httpTimeout, WriteTimeout: httpTimeout}
		defer h.Close()
		go func() { cancel(fmt.Errorf("--http-listen: %w", h.Serve(l))) }()
	}
	var wg sync.WaitGroup
	wg.Go(func() { cancel(s.Serve(listeners...)) })
	o.Log.Info("listening", "node", o.Node, "addresses", addresses, "http", httpAddress, "version", version)
	s.Run(ctx)
	wg.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// httpTimeout is for requests of a kubelet or of Prometheus, and for the answers to them.
const httpTimeout = 30 * time.Second

// nobody is the user and the group of the image.
const nobody = 65532

// ownDirectory lets the server, which is not root, make its socket in a directory of the node, and clients that are in
// its group reach it. One that it has owned before is left alone: it is another user's now, whose mode root may not
// change without more capabilities.
func ownDirectory(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid == nobody && owner.Gid == nobody {
		return nil
	}
	if err := os.Chmod(dir, 0o750); err != nil {
		return err
	}
	return os.Chown(dir, nobody, nobody)
}
