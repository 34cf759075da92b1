// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/serve"
)

func newServe(env *environment) *cobra.Command {
	var access run.Access
	var listen string
	var all bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the reports and histories of a namespace, or of all, as web pages and metrics",
		Long: `serve answers HTTP requests, read-only, until it is interrupted:

  /                       the plans, with the verdict of their newest runs
  /plans/NAMESPACE/PLAN   runs, gaps, trends and findings over time
  /runs/NAMESPACE/UID     a report
  /nodes, /nodes/NODE     pairs from and to each node, of all plans
  /metrics                the newest run of each plan, for Prometheus
  /healthz                the process answers

It needs the rights to get and list ConfigMaps in the namespace, with -A in all
namespaces, and no others. It has no login: whoever reaches the address can read
the reports.

Exit codes: 0 interrupted; 1 it could not serve; 2 wrong usage.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("%s: want no argument", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return env.serve(cmd.Context(), access, all, listen) },
	}
	addAccess(cmd, &access)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "serve the reports of all namespaces")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "address and port to listen on; :8080 is all addresses")
	return cmd
}

func (e *environment) serve(ctx context.Context, access run.Access, all bool, listen string) error {
	if err := oneOrAll(access, all); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return usage("--listen %q: want ADDRESS:PORT, such as 127.0.0.1:8080: %w", listen, err)
	}
	cluster, err := run.Connect(access)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	local := serve.Loopback(host)
	if !local {
		fmt.Fprintf(e.stderr,
			"warning: --listen %s: whoever reaches this address can read the reports; there is no login\n", listen)
	}
	s := &serve.Server{ConfigMaps: cluster.Kube.CoreV1(), Local: local, Now: time.Now}
	where := "all namespaces"
	if !all {
		s.Namespace = cluster.Namespace
		where = "namespace " + cluster.Namespace
	}
	s.Metadata = configMapsOf(cluster, s.Namespace)
	server := s.HTTP()
	fmt.Fprintf(e.stderr, "serving the reports of %s on http://%s/\n", where, listener.Addr())
	ctx, stop := e.interruptible(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve %s: %w", listen, err)
	case <-ctx.Done():
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(leave); err != nil {
		return errors.Join(err, server.Close())
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
