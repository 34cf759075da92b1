// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/userspace"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
	"github.com/checkplan/checkplan/pkg/nodestate/client"
)

// fakeWriter records what it was asked for.
type fakeWriter struct {
	mode    dataplane.Mode
	written chan string
	err     error
}

func (w *fakeWriter) Write(_ context.Context, state *proxy.State, node proxy.Node) error {
	if w.err != nil {
		return w.err
	}
	text := string(w.mode)
	for _, p := range state.Ports {
		text += " " + p.String()
	}
	if node.MasqueradeAll {
		text += " masquerade-all"
	}
	for _, p := range node.Pods.Prefixes {
		text += " " + p.String()
	}
	w.written <- text
	return nil
}
func (w *fakeWriter) Tidy(context.Context) (bool, error) { return false, nil }
func (w *fakeWriter) Present(context.Context) error      { return nil }
func (w *fakeWriter) Cleanup(context.Context) error {
	w.written <- "cleanup " + string(w.mode)
	return w.err
}

// lab is a node that does not exist.
func lab() (node, chan string) {
	written := make(chan string, 100)
	return node{
		addresses: func() ([]netip.Addr, error) { return nil, nil },
		lookPath:  func(program string) (string, error) { return "/usr/sbin/" + program, nil },
		forget:    func(proxy.Stale) (int, error) { return 0, nil },
		chroot:    func(dir string) error { written <- "chroot " + dir; return nil },
		writers: map[dataplane.Mode]func(*slog.Logger) writer{
			dataplane.NFTables:  func(*slog.Logger) writer { return &fakeWriter{mode: dataplane.NFTables, written: written} },
			dataplane.IPTables:  func(*slog.Logger) writer { return &fakeWriter{mode: dataplane.IPTables, written: written} },
			dataplane.IPVS:      func(*slog.Logger) writer { return &fakeWriter{mode: dataplane.IPVS, written: written} },
			dataplane.Userspace: func(*slog.Logger) writer { return &fakeWriter{mode: dataplane.Userspace, written: written} },
		},
	}, written
}

// TestUsage: wrong command lines have exit status 2, and what the node lacks has 1.
func TestUsage(t *testing.T) {
	for _, row := range []struct {
		name, args, err string
		usage           bool
	}{
		{"unknown flag", "--modus x", "unknown flag: --modus", true},
		{"argument", "x", `unexpected argument "x"`, true},
		{"mode", "--mode ebpf", `--mode "ebpf": want nftables, iptables, ipvs or userspace`, true},
		{"pods", "--pod-cidr 10.0.0.1", `prefix of pods "10.0.0.1": want one like`, true},
		{"two ways to know pods", "--pod-cidr 10.0.0.0/8 --pod-interface cni0", "and no prefixes", true},
		{"interface", `--pod-interface cni0"`, "want a name", true},
		{"pods by interface", "--mode userspace --pod-interface cni0", "--pod-interface: the mode userspace", true},
		{"HTTP", "--http-listen x", "--http-listen: ", false},
		{"root", "--root /none", "--root /none: not permitted", false},
		{"no nft", "--mode nftables", "mode nftables runs the program nft: not found", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			on, _ := lab()
			switch row.name {
			case "root":
				on.chroot = func(string) error { return errors.New("not permitted") }
			case "no nft":
				on.lookPath = func(string) (string, error) { return "", errors.New("not found") }
			}
			err := run(t.Context(), &bytes.Buffer{}, strings.Fields(row.args), on)
			if err == nil || !strings.Contains(err.Error(), row.err) || errors.As(err, new(usageError)) != row.usage {
				t.Errorf("error %v, want %q", err, row.err)
			}
		})
	}
}

// server serves the API: one state after another.
type server struct {
	api.UnimplementedEndpointsServer
	instance uint64
	mu       sync.Mutex
	rev      uint64
	items    []*api.ServiceEndpoints
	changed  chan struct{} // closed at the next change
	asked    chan uint64   // the revision that each client has, if not nil
}

func (s *server) set(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items = nil
	for _, name := range names {
		s.items = append(s.items, &api.ServiceEndpoints{Namespace: "shop", Name: name, Families: []*api.Family{{
			Family: api.IPFamily_IPv4, ClusterIP: "10.96.0." + name[len(name)-1:],
			Ports: []*api.Port{{Name: "http", Protocol: api.Protocol_TCP, Port: 80, Internal: api.Action_REJECT}},
		}}})
	}
	s.rev++
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
}

func (s *server) Next(filter *api.NextFilter, stream grpc.ServerStreamingServer[api.NextItem]) error {
	if s.asked != nil {
		s.asked <- filter.Rev
	}
	s.mu.Lock()
	for filter.InstanceID == s.instance && filter.Rev == s.rev {
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		s.mu.Lock()
	}
	items := []*api.NextItem{{Next: &api.NextFilter{InstanceID: s.instance, Rev: s.rev}}}
	for _, item := range s.items {
		items = append(items, &api.NextItem{Endpoints: item})
	}
	s.mu.Unlock()
	for _, item := range items {
		if err := stream.Send(item); err != nil {
			return err
		}
	}
	return nil
}

// start serves at a socket until stop.
func (s *server) start(t *testing.T, path string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	api.RegisterEndpointsServer(g, s)
	done := make(chan struct{})
	go func() { _ = g.Serve(l); close(done) }()
	return func() { g.Stop(); <-done }
}

// TestServe: states become rules; another server goes on where the first one ended; what the other mode left is removed
// after the first write, and once.
func TestServe(t *testing.T) {
	on, written := lab()
	socket := filepath.Join(t.TempDir(), "s")
	one := &server{instance: 1}
	one.set("web1")
	stop := one.start(t, socket)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	go func() {
		ended <- run(ctx, &bytes.Buffer{}, []string{"--target", "unix://" + socket, "--error-delay", "10ms", "--http-listen", address,
			"--pod-cidr", "10.244.0.0/16,fd00:244::/56", "--masquerade-all", "--root", "/host"}, on)
	}()
	next := func(want string) {
		t.Helper()
		if have := <-written; have != want {
			t.Errorf("written %q, want %q", have, want)
		}
	}
	const options = " masquerade-all 10.244.0.0/16 fd00:244::/56"
	next("chroot /host")
	next("nftables shop/web1:http" + options)
	next("cleanup iptables")
	next("cleanup ipvs")
	next("cleanup userspace")
	one.set("web1", "web2")
	next("nftables shop/web1:http shop/web2:http" + options)
	stop()
	two := &server{instance: 2}
	two.set("web3")
	defer two.start(t, socket)()
	next("nftables shop/web3:http" + options)
	for !strings.HasPrefix(get(t, "http://"+address+"/readyz"), "ok") { // until Write has returned
	}
	for path, want := range map[string]string{
		"/readyz": "ok: mode nftables, 1 ports of Services, 0 endpoints\n", "/livez": "ok\n",
		"/metrics": "checkplan_service_proxy_states_total 3\n",
	} {
		if have := get(t, "http://"+address+path); !strings.Contains(have, want) {
			t.Errorf("%s: %q, want %q", path, have, want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("after a signal: %v", err)
	}
	if len(written) > 0 {
		t.Errorf("rules were changed at the end: %q", <-written)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestFollow: while rules are written, a newer state replaces the one that waits.
func TestFollow(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s := &server{instance: 1, asked: make(chan uint64, 10)}
	s.set("web1")
	defer s.start(t, socket)()
	ctx, cancel := context.WithCancel(t.Context())
	states, done := make(chan []*api.ServiceEndpoints, 1), make(chan struct{})
	go func() { follow(ctx, &client.EndpointsClient{Target: "unix://" + socket}, states); close(done) }()
	for want := range uint64(4) {
		if have := <-s.asked; have != want {
			t.Fatalf("asked for what follows %d, want %d", have, want)
		}
		if want == 1 || want == 2 {
			s.set(fmt.Sprint("web", want+1))
		}
	}
	if have := <-states; len(have) != 1 || have[0].Name != "web3" || len(states) > 0 {
		t.Errorf("%v", have)
	}
	cancel()
	<-done
}

// TestReady: a proxy whose rules are not those of the state says why.
func TestReady(t *testing.T) {
	p := &proxy.Proxy{
		Writer: &fakeWriter{err: errors.New("no memory")}, Health: &proxy.HealthPorts{}, Log: slog.New(slog.DiscardHandler),
		Node: func() (proxy.Node, error) { return proxy.Node{}, nil }, Forget: func(proxy.Stale) (int, error) { return 0, nil },
	}
	ready := func() string {
		r := httptest.NewRecorder()
		handler(p, dataplane.NFTables, nil).ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return fmt.Sprint(r.Code, " ", r.Body)
	}
	if have := ready(); have != "503 not ready: the rules of the newest state are not written: no state arrived yet\n" {
		t.Error(have)
	}
	ctx, cancel := context.WithCancel(t.Context())
	states := make(chan []*api.ServiceEndpoints)
	done := make(chan struct{})
	go func() { p.Run(ctx, states); close(done) }()
	states <- nil
	states <- nil // the first one was tried
	cancel()
	<-done
	if have := ready(); have != "503 not ready: the rules of the newest state are not written: no memory\n" {
		t.Error(have)
	}
}

// TestFirst: what a predecessor left in other modes is removed when a state is served, also if parts of it are not; and
// again, if that fails: the log has the same error once.
func TestFirst(t *testing.T) {
	w := &fakeWriter{written: make(chan string, 100)}
	cleanups, failed := 0, errors.New("locked")
	var log bytes.Buffer
	f := &first{
		Writer: w, log: slog.New(slog.NewTextHandler(&log, nil)),
		cleanup: func(context.Context) error { cleanups++; return failed },
	}
	for _, row := range []struct {
		name          string
		write, failed error
		cleanups, log int
	}{
		{"nothing is served", errors.New("no memory"), nil, 0, 0},
		{"cleanup fails", nil, errors.New("locked"), 1, 1},
		{"again", nil, errors.New("locked"), 2, 1},
		{"in another way", nil, errors.New("no memory"), 3, 2},
		{"a part is served", proxy.Unserved{Problems: []string{"TCP 10.0.0.1:80"}}, nil, 4, 2},
		{"once", nil, nil, 4, 2},
	} {
		w.err, failed = row.write, row.failed
		if err := f.Write(t.Context(), &proxy.State{}, proxy.Node{}); fmt.Sprint(err) != fmt.Sprint(row.write) || cleanups != row.cleanups {
			t.Errorf("%s: error %v after %d cleanups, want %v after %d", row.name, err, cleanups, row.write, row.cleanups)
		}
		if lines := strings.Count(log.String(), "\n"); lines != row.log {
			t.Errorf("%s: %d lines logged, want %d: %s", row.name, lines, row.log, &log)
		}
	}
}

// TestCleanup: all modes' rules are removed; a mode whose program is missing has none.
func TestCleanup(t *testing.T) {
	on, written := lab()
	if err := run(t.Context(), &bytes.Buffer{}, []string{"--cleanup"}, on); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace"} {
		if have := <-written; have != "cleanup "+mode {
			t.Errorf("%q, want the cleanup of %s", have, mode)
		}
	}
	on.lookPath = func(program string) (string, error) {
		if program == "nft" {
			return "", errors.New("not found")
		}
		return program, nil
	}
	if err := run(t.Context(), &bytes.Buffer{}, []string{"--cleanup"}, on); err != nil {
		t.Fatal(err)
	}
	if a, b := <-written, <-written; a != "cleanup iptables" || b != "cleanup userspace" || len(written) > 0 {
		t.Error(a, b)
	}
	on.writers[dataplane.IPTables] = func(*slog.Logger) writer {
		return &fakeWriter{mode: dataplane.IPTables, written: written, err: errors.New("locked")}
	}
	if err := run(t.Context(), &bytes.Buffer{}, []string{"--cleanup"}, on); err == nil || err.Error() != "remove the rules of mode iptables: locked" {
		t.Errorf("error %v", err)
	}
}

// TestManifest: the DaemonSet has no rights in the cluster, and the capabilities that it needs. Its arguments are
// accepted.
func TestManifest(t *testing.T) {
	text, err := os.ReadFile("../../catalog/service-proxy/service-proxy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatal(err)
		}
		kinds[head.Kind]++
		switch head.Kind {
		case "Namespace":
			if err := yaml.UnmarshalStrict([]byte(document), &corev1.Namespace{}); err != nil {
				t.Fatal(err)
			}
		case "DaemonSet":
			var d appsv1.DaemonSet
			if err := yaml.UnmarshalStrict([]byte(document), &d); err != nil {
				t.Fatal(err)
			}
			pod := d.Spec.Template.Spec
			if *pod.AutomountServiceAccountToken || !pod.HostNetwork || len(pod.Containers) != 1 || len(pod.InitContainers) != 0 {
				t.Errorf("pod %+v", pod)
			}
			c := pod.Containers[0]
			if s := c.SecurityContext; !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || s.Privileged != nil ||
				!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
				!slices.Equal(s.Capabilities.Add, []corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_CHROOT", "DAC_OVERRIDE"}) {
				t.Errorf("%+v", s)
			}
			on, _ := lab()
			refused := errors.New("accepted")
			on.chroot = func(string) error { return refused }
			if err := run(t.Context(), &bytes.Buffer{}, c.Args, on); !errors.Is(err, refused) {
				t.Errorf("arguments %q: %v", c.Args, err)
			}
		default:
			t.Errorf("unexpected %s", head.Kind)
		}
	}
	if len(kinds) != 2 {
		t.Errorf("kinds %v", kinds)
	}
}

// TestDocs: docs/service-proxy.md has each flag and each metric.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/service-proxy.md")
	if err != nil {
		t.Fatal(err)
	}
	var help bytes.Buffer
	on, _ := lab()
	if err := run(t.Context(), &help, []string{"--help"}, on); !errors.Is(err, pflag.ErrHelp) {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`(?m)^ +--([a-z-]+)`).FindAllStringSubmatch(help.String(), -1)
	if len(flags) < 10 {
		t.Fatalf("flags %q", flags)
	}
	for _, f := range flags {
		if !bytes.Contains(doc, []byte("`--"+f[1]+"`")) {
			t.Errorf("docs/service-proxy.md lacks --%s", f[1])
		}
	}
	families, err := metrics(&proxy.Proxy{}, (&userspace.Server{}).Counts).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if name, ok := strings.CutPrefix(f.GetName(), "checkplan_service_proxy"); ok && !bytes.Contains(doc, []byte(name+"`")) {
			t.Errorf("docs/service-proxy.md lacks checkplan_service_proxy%s", name)
		}
	}
}
