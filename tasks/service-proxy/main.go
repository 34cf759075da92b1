// SPDX-License-Identifier: Apache-2.0

// Service-proxy serves Services on a node, as a client of KEP-2094's API (tasks/node-state); docs/service-proxy.md. It
// knows nothing of Kubernetes. It runs on each node, as a DaemonSet (catalog/service-proxy), instead of kube-proxy.
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
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/checkplan/checkplan/pkg/dataplane"
	iptables "github.com/checkplan/checkplan/pkg/dataplane/iptables/write"
	ipvs "github.com/checkplan/checkplan/pkg/dataplane/ipvs/write"
	nftables "github.com/checkplan/checkplan/pkg/dataplane/nftables/write"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/userspace"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
	"github.com/checkplan/checkplan/pkg/nodestate/client"
)

// version is set by the linker.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	writers := map[dataplane.Mode]func(*slog.Logger) writer{
		dataplane.NFTables:  func(log *slog.Logger) writer { return nftables.New(log) },
		dataplane.IPTables:  func(log *slog.Logger) writer { return iptables.New(log) },
		dataplane.IPVS:      func(log *slog.Logger) writer { return ipvs.New(log) },
		dataplane.Userspace: func(*slog.Logger) writer { return userspace.New() },
	}
	own := node{proxy.Addresses, exec.LookPath, proxy.Forget, syscall.Chroot, writers}
	err := run(ctx, os.Stderr, os.Args[1:], own)
	stop()
	var usage usageError
	switch {
	case err == nil, errors.Is(err, pflag.ErrHelp):
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "service-proxy: %v\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "service-proxy: %v\n", err)
		os.Exit(1)
	}
}

// usageError is the error of a wrong command line.
type usageError struct{ error }

// writer is that of one mode.
type writer interface {
	proxy.Writer
	Cleanup(ctx context.Context) error
}

// node is what the program does to its node; tests have another one.
type node struct {
	addresses proxyAddresses
	lookPath  func(program string) (string, error)
	forget    func(proxy.Stale) (int, error)
	chroot    func(dir string) error
	writers   map[dataplane.Mode]func(*slog.Logger) writer
}

// modes are all modes, in the order in which their rules are removed.
var modes = []dataplane.Mode{dataplane.NFTables, dataplane.IPTables, dataplane.IPVS, dataplane.Userspace}

// programs are what modes run.
var programs = map[dataplane.Mode]string{
	dataplane.NFTables: "nft", dataplane.IPTables: "iptables-restore", dataplane.IPVS: "nft",
}

func run(ctx context.Context, stderr io.Writer, args []string, on node) error {
	flags := pflag.NewFlagSet("service-proxy", pflag.ContinueOnError)
	flags.SetOutput(stderr)
	mode := flags.String("mode", string(dataplane.NFTables), "how rules are written: nftables (runs nft), iptables (runs iptables-restore and -save), "+
		"ipvs (the kernel's IPVS, and runs nft), or userspace: no rules, the program takes the connections itself")
	podCIDRs := flags.StringSlice("pod-cidr", nil,
		"prefix of the addresses of pods: one of IPv4, one of IPv6; connections from elsewhere to cluster IPs get the node's address as their source; "+
			"in the mode userspace, of the node's own pods")
	podInterface := flags.String("pod-interface", "", `instead of --pod-cidr: name of the interface from which packets of pods come, `+
		`or the beginning of the names and *`)
	masqueradeAll := flags.Bool("masquerade-all", false, "all connections to cluster IPs get the node's address as their source")
	httpListen := flags.String("http-listen", "127.0.0.1:12347", "address of /readyz, /livez and /metrics; empty: none")
	cleanup := flags.Bool("cleanup", false, "remove the rules and interfaces of all modes, and exit")
	root := flags.String("root", "", "use this directory as the root of the file system, for the programs of a node whose root is mounted there")
	c := client.New(flags)
	if err := flags.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return err
	} else if err != nil {
		return usageError{err}
	}
	pods, err := proxy.ParsePods(*podCIDRs, *podInterface)
	own := dataplane.Mode(*mode)
	switch {
	case flags.NArg() > 0:
		return usageError{fmt.Errorf("unexpected argument %q", flags.Arg(0))}
	case on.writers[own] == nil:
		return usageError{fmt.Errorf("--mode %q: want nftables, iptables, ipvs or userspace", *mode)}
	case err != nil:
		return usageError{err}
	case own == dataplane.Userspace && *podInterface != "":
		return usageError{errors.New("--pod-interface: the mode userspace recognises pods by their addresses: use --pod-cidr")}
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	slog.SetDefault(log) // the client's
	if *root != "" {
		if err := on.chroot(*root); err != nil {
			return fmt.Errorf("--root %s: %w", *root, err)
		}
	}
	if *cleanup {
		return on.cleanup(ctx, modes, log)
	}
	if program := programs[own]; program != "" {
		if _, err := on.lookPath(program); err != nil {
			return fmt.Errorf("mode %s runs the program %s: %w", own, program, err)
		}
	}
	others := slices.DeleteFunc(slices.Clone(modes), func(mode dataplane.Mode) bool { return mode == own })
	writes := on.writers[own](log)
	p := &proxy.Proxy{
		Writer: &first{
			Writer: writes, log: log, cleanup: func(ctx context.Context) error { return on.cleanup(ctx, others, log) },
		},
		Node: func() (proxy.Node, error) {
			addresses, err := on.addresses()
			return proxy.Node{Addresses: addresses, Pods: pods, MasqueradeAll: *masqueradeAll}, err
		},
		Forget: on.forget, Health: &proxy.HealthPorts{}, Log: log,
	}
	defer p.Health.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if *httpListen != "" {
		l, err := net.Listen("tcp", *httpListen)
		if err != nil {
			return fmt.Errorf("--http-listen: %w", err)
		}
		h := &http.Server{Handler: handler(p, own, counts(writes)), ReadTimeout: httpTimeout, WriteTimeout: httpTimeout}
		defer h.Close()
		go func() { cancel(fmt.Errorf("--http-listen: %w", h.Serve(l))) }()
	}
	log.Info("starting", "mode", own, "target", c.Target, "http", *httpListen, "version", version)
	states := make(chan []*api.ServiceEndpoints, 1)
	var wg sync.WaitGroup
	wg.Go(func() { follow(ctx, c, states) })
	p.Run(ctx, states)
	wg.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// httpTimeout is for requests of a kubelet or of Prometheus, and for the answers to them.
const httpTimeout = 30 * time.Second

// follow sends each state to a channel with one place, in which a newer one replaces an older one: while rules are
// written, states do not wait.
func follow(ctx context.Context, c *client.EndpointsClient, states chan []*api.ServiceEndpoints) {
	for state := range c.States(ctx) {
		select {
		case <-states:
		default:
		}
		states <- state
	}
}

// cleanup removes the rules of modes. Without a mode's program, it has none: nobody could have written them.
func (on node) cleanup(ctx context.Context, of []dataplane.Mode, log *slog.Logger) error {
	var errs []error
	for _, mode := range of {
		if program := programs[mode]; program != "" {
			if _, err := on.lookPath(program); err != nil {
				log.Info("no rules of this mode to remove: its program is not installed", "mode", mode, "program", program)
				continue
			}
		}
		if err := on.writers[mode](log).Cleanup(ctx); err != nil {
			errs = append(errs, fmt.Errorf("remove the rules of mode %s: %w", mode, err))
		}
	}
	return errors.Join(errs...)
}

// first is a Writer that removes what a predecessor in another mode left, once its own rules are there: in between,
// packets meet both, which lead to the same endpoints. If that fails, it tries again after the next Write, and logs the
// same error once.
type first struct {
	proxy.Writer
	log     *slog.Logger
	cleanup func(context.Context) error // nil: done
	said    string                      // the last error of cleanup
}

func (f *first) Write(ctx context.Context, state *proxy.State, node proxy.Node) error {
	err := f.Writer.Write(ctx, state, node)
	if f.cleanup == nil || err != nil && !errors.As(err, new(proxy.Unserved)) {
		return err
	}
	if failed := f.cleanup(ctx); failed != nil {
		if f.said != failed.Error() {
			f.said = failed.Error()
			f.log.Warn("cannot remove the rules of another mode; trying again", "error", failed)
		}
		return err
	}
	f.cleanup = nil
	return err
}

// summary words a status in one line.
func summary(s proxy.Status, mode dataplane.Mode) string {
	text := fmt.Sprintf("mode %s, %d ports of Services, %d endpoints", mode, s.Ports, s.Endpoints)
	if n := len(s.Problems); n > 0 {
		text += fmt.Sprintf("; %d not served: %s", n, strings.Join(s.Problems[:min(n, 5)], "; "))
	}
	return text
}
