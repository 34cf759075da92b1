// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// Ports of the nodes' loopback addresses at which the sandbox has this project's programs answer.
const (
	nodeStatePort    = 10261
	serviceProxyPort = 10256
	nodeStateSocket  = "/run/node-state.sock"
)

// TestServiceProxyFaults: whatever happens to the programs behind the rules, new connections work from every node all the
// time, and at the end the rules of every node equal the state exactly, by planner state --diff. The faults share one
// cluster, with Services of all kinds whose endpoints the test writes.
func TestServiceProxyFaults(t *testing.T) {
	proxy := sandboxState(t).ServiceProxy
	if proxy == "userspace" {
		t.Skip("the mode userspace has no rules to compare")
	}
	own := serviceProxy(t) == "service-proxy"
	c := newChurn(t)
	c.settled(t)

	t.Run("the server is killed", func(t *testing.T) {
		if !own {
			t.Skipf("%s has no server of the node's state", proxy)
		}
		old := objects(t)
		watcher := nodeClient(t, c.nodes[0], nodeStateSocket)
		fetch := func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if _, err := watcher.Fetch(ctx); err != nil {
				t.Fatal(err)
			}
		}
		fetch()
		instance := watcher.InstanceID
		proxies, states := map[string]int{}, map[string]float64{}
		visited := c.visit(t)
		var stopped []string
		for _, node := range c.nodes {
			proxies[node] = component(t, node, "service-proxy")
			states[node] = metric(t, node, serviceProxyPort, "checkplan_service_proxy_states_total")
			signal(t, component(t, node, "node-state"), syscall.SIGKILL)
			id, _ := faultID(t, "stop", "node-state", "--node", node) // nobody starts it again before the fault is cleared
			stopped = append(stopped, id)
		}
		c.changeAll(t)
		time.Sleep(10 * time.Second) // the outage itself
		c.equal(t, old, "without the server")
		for _, id := range stopped {
			clearFault(t, id)
		}
		c.settled(t)
		visited()
		fetch() // the filter names a state of the killed server
		if watcher.InstanceID == instance {
			t.Error("a server that was killed has the instance of its predecessor")
		}
		for _, node := range c.nodes {
			if pid := component(t, node, "service-proxy"); pid != proxies[node] {
				t.Errorf("%s: service-proxy is process %d, and was %d", node, pid, proxies[node])
			}
			// The whole state of the new instance, and that of each change since: heartbeats are no changes.
			if got := metric(t, node, serviceProxyPort, "checkplan_service_proxy_states_total") - states[node]; got < 1 || got > 10 {
				t.Errorf("%s: %g states since the server was killed, want few", node, got)
			}
		}
	})

	t.Run("no API server for a minute", func(t *testing.T) {
		old := objects(t)
		visited := c.visit(t)
		begin := time.Now()
		var stopped []string
		for _, node := range c.nodes {
			if strings.HasPrefix(node, "control-plane") {
				// Not "stop", which waits for a minute until containerd has removed the container: of the only API server,
				// that took longer.
				id, _ := faultID(t, "silence", "kube-apiserver", "--node", node)
				stopped = append(stopped, id)
			}
		}
		time.Sleep(time.Until(begin.Add(time.Minute))) // the outage itself
		c.equal(t, old, "without the API server")
		if own {
			for _, node := range c.nodes {
				within(t, 30*time.Second, func() error { // silent connections are noticed after 50 s
					if age := metric(t, node, nodeStatePort, "checkplan_node_state_age_seconds"); age < 45 {
						return fmt.Errorf("%s: after a minute or more, the server says that its state is %gs old", node, age)
					}
					return nil
				})
			}
		}
		for _, id := range stopped {
			clearFault(t, id)
		}
		c.changeAll(t)
		c.settled(t)
		visited()
		available(t) // what ended without the API server, for other tests
	})

	t.Run("a frozen client, and 1,000 changes of endpoints a second", func(t *testing.T) {
		frozen := c.nodes[len(c.nodes)-1]
		visited := c.visit(t)
		var followed atomic.Int64 // states that another client of the same server received
		if own {
			other := nodeClient(t, frozen, nodeStateSocket)
			go func() {
				for range other.States(t.Context()) {
					followed.Add(1)
				}
			}()
		}
		stop := c.run(t)
		time.Sleep(10 * time.Second) // so that the server's memory is that of a server under churn
		pid, server := component(t, frozen, serviceProxy(t)), 0
		var memory, states float64
		if own {
			server = component(t, frozen, "node-state")
			memory = mostMemory(t, server)
			states = metric(t, frozen, serviceProxyPort, "checkplan_service_proxy_states_total")
			followed.Store(0)
		}
		signal(t, pid, syscall.SIGSTOP)
		thaw := sync.OnceFunc(func() { signal(t, pid, syscall.SIGCONT) })
		t.Cleanup(thaw)
		time.Sleep(time.Minute) // the churn itself
		rate := stop()
		t.Logf("%.0f changes of endpoints a second", rate)
		if rate < 1000 {
			t.Errorf("%.0f changes of endpoints a second, want 1,000 or more: the API server is too slow", rate)
		}
		if own {
			missed, size := float64(followed.Load()), c.size(t, frozen)
			grown := mostMemory(t, server) - memory
			t.Logf("the server had %.1f MiB, and grew by %.1f MiB while its client was frozen and missed %.0f states of %.2f MiB",
				memory/(1<<20), grown/(1<<20), missed, size/(1<<20))
			// A server that kept the states for its client would have grown by more than all of them.
			if grown > missed*size/4 || missed < 60 {
				t.Errorf("the server grew by %.0f bytes while its client missed %.0f states of %.0f bytes", grown, missed, size)
			}
		}
		thaw()
		c.settled(t)
		if own {
			// What it was receiving, what waited, and the newest one: it resumes by InstanceID and Rev.
			if got := metric(t, frozen, serviceProxyPort, "checkplan_service_proxy_states_total") - states; got < 1 || got > 5 {
				t.Errorf("%s received %g states since it was frozen, want few", frozen, got)
			}
		}
		visited()
	})
}

// endpointsOf are how many endpoints each slice has that a churn changes, and each that it does not.
const (
	changingEndpoints = 100
	constantEndpoints = 1000
)

// churn is a cluster whose endpoints change: Services of several kinds without a selector, and one with pods.
type churn struct {
	kube  kubernetes.Interface // without a limit of requests
	nodes []string
	// web are the addresses and port of the Service with pods.
	web []string
	// slices are those that change: all of their endpoints at once.
	slices []*discoveryv1.EndpointSlice

	mu     sync.Mutex
	rounds []int // of each slice: how often it changed
}

// newChurn makes the cluster until the test ends.
func newChurn(t *testing.T) *churn {
	t.Helper()
	config := placementConfig(t)
	config.ContentType = k8sruntime.ContentTypeProtobuf
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c := &churn{kube: kube}
	nodes, err := kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		c.nodes = append(c.nodes, n.Name)
	}
	slices.Sort(c.nodes)
	makeNamespace(t, servicesNamespace)
	deploy(t, "web", 2)
	// After a minute without the API server, the control plane takes all nodes for lost, and their pods for not ready.
	web := c.service(t, "web", corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, PublishNotReadyAddresses: true})
	for _, ip := range web.Spec.ClusterIPs {
		c.web = append(c.web, net.JoinHostPort(ip, "80"))
	}
	const ipv4, ipv6 = discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	for _, of := range []struct {
		name   string
		spec   corev1.ServiceSpec
		slices []discoveryv1.AddressType
	}{
		{"plain-0", corev1.ServiceSpec{}, []discoveryv1.AddressType{ipv4}},
		{"plain-1", corev1.ServiceSpec{}, []discoveryv1.AddressType{ipv4}},
		{"plain-2", corev1.ServiceSpec{}, []discoveryv1.AddressType{ipv4}},
		{"slices", corev1.ServiceSpec{}, []discoveryv1.AddressType{ipv4, ipv4}},
		{"families", corev1.ServiceSpec{}, []discoveryv1.AddressType{ipv4, ipv6}},
		{"local", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal},
			[]discoveryv1.AddressType{ipv4}},
		{"sticky", corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP}, []discoveryv1.AddressType{ipv4}},
		{"udp", corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "tcp", Port: 80, Protocol: corev1.ProtocolUDP}}},
			[]discoveryv1.AddressType{ipv4}},
	} {
		c.service(t, of.name, of.spec)
		for _, kind := range of.slices {
			c.slices = append(c.slices, c.slice(of.name, kind))
		}
	}
	c.rounds = make([]int, len(c.slices))
	for i := range c.slices {
		if err := c.change(t.Context(), i, func(s *discoveryv1.EndpointSlice) error {
			_, err := kube.DiscoveryV1().EndpointSlices(servicesNamespace).Create(t.Context(), s, metav1.CreateOptions{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 { // so that a whole state is large, compared with what the churn changes of it
		name := fmt.Sprintf("constant-%d", i)
		c.service(t, name, corev1.ServiceSpec{})
		s := c.slice(name, ipv4)
		for k := range constantEndpoints {
			s.Endpoints = append(s.Endpoints, c.endpoint(k, fmt.Sprintf("10.%d.%d.%d", 128+i, k/250, k%250+1)))
		}
		if _, err := kube.DiscoveryV1().EndpointSlices(servicesNamespace).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	deployed(t)
	return c
}

// service makes a Service with the port tcp.
func (c *churn) service(t *testing.T, name string, spec corev1.ServiceSpec) *corev1.Service {
	t.Helper()
	spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	if spec.Ports == nil {
		spec.Ports = []corev1.ServicePort{{Name: "tcp", Port: 80, TargetPort: intstr.FromString("http")}}
	}
	service, err := c.kube.CoreV1().Services(servicesNamespace).Create(t.Context(),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return service
}

// slice returns a slice of a Service, without endpoints.
func (c *churn) slice(service string, kind discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	protocol := corev1.ProtocolTCP
	if service == "udp" {
		protocol = corev1.ProtocolUDP
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%s-%d", service, strings.ToLower(string(kind)), len(c.slices)),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "e2e.checkplan.dev",
			},
		},
		AddressType: kind, Ports: []discoveryv1.EndpointPort{{Name: new("tcp"), Protocol: &protocol, Port: new(int32(8080))}},
	}
}

// endpoint is on one node after another.
func (c *churn) endpoint(k int, address string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{address}, NodeName: &c.nodes[k%len(c.nodes)],
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
	}
}

// change gives a slice other endpoints, none of which it had, and writes it.
func (c *churn) change(ctx context.Context, i int, write func(*discoveryv1.EndpointSlice) error) error {
	c.mu.Lock()
	c.rounds[i]++
	round := c.rounds[i]
	c.mu.Unlock()
	s := c.slices[i].DeepCopy()
	for k := range changingEndpoints {
		address := fmt.Sprintf("10.%d.%d.%d", 64+i, round%250, k+1)
		if s.AddressType == discoveryv1.AddressTypeIPv6 {
			address = fmt.Sprintf("fd00:64:%x:%x::%x", i, round, k+1)
		}
		s.Endpoints = append(s.Endpoints, c.endpoint(k, address))
	}
	if write != nil {
		return write(s)
	}
	_, err := c.kube.DiscoveryV1().EndpointSlices(servicesNamespace).Update(ctx, s, metav1.UpdateOptions{})
	return err
}

// changeAll changes every slice once.
func (c *churn) changeAll(t *testing.T) {
	t.Helper()
	for i := range c.slices {
		eventually(t, time.Minute, func() error { return c.change(t.Context(), i, nil) })
	}
}

// changeInterval is the time between two changes of a slice: with ten slices, 1,111 endpoints change in a second.
const changeInterval = 900 * time.Millisecond

// run changes the slices, one after another, until the function that it returns is called. That one returns how many
// endpoints changed in a second.
func (c *churn) run(t *testing.T) (stop func() float64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	done, errs := make([]int, len(c.slices)), make([]error, len(c.slices))
	begin := time.Now()
	for i := range c.slices {
		changing.Go(func() {
			first := begin.Add(time.Duration(i) * changeInterval / time.Duration(len(c.slices)))
			for at := first; ; at = at.Add(changeInterval) {
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Until(at)): // what is late is not left out
				}
				switch err := c.change(context.WithoutCancel(ctx), i, nil); {
				case err != nil:
					errs[i] = err
				default:
					done[i]++
				}
			}
		})
	}
	return func() float64 {
		seconds := time.Since(begin).Seconds()
		cancel()
		changing.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Errorf("change endpoints: %v", err)
		}
		changes := 0
		for _, n := range done {
			changes += n * changingEndpoints
		}
		return float64(changes) / seconds
	}
}

// visit connects from the network of each node to web, over and over, until the function that it returns is called: the
// test fails if a connection failed.
func (c *churn) visit(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		made   int
		failed []string
	}
	results := make([]result, len(c.nodes))
	var visiting sync.WaitGroup
	for i, node := range c.nodes {
		pid := firstProcess(t, node)
		visiting.Go(func() {
			for ctx.Err() == nil {
				r := &results[i]
				conn, err := dialFrom(pid, c.web[r.made%len(c.web)])
				if r.made++; err != nil {
					r.failed = append(r.failed, fmt.Sprintf("%s: %v", time.Now().Format(time.TimeOnly), err))
				} else {
					conn.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(200 * time.Millisecond):
				}
			}
		})
	}
	return func() {
		t.Helper()
		cancel()
		visiting.Wait()
		for i, r := range results {
			if len(r.failed) > 0 {
				t.Errorf("%s: %d of %d connections to %q failed, such as %s", c.nodes[i], len(r.failed), r.made, c.web,
					strings.Join(r.failed[:min(3, len(r.failed))], "; "))
			}
			if r.made < 10 {
				t.Errorf("%s: %d connections to %q, want 10 or more", c.nodes[i], r.made, c.web)
			}
		}
	}
}

// equal fails unless the rules of every node are those of the objects.
func (c *churn) equal(t *testing.T, objects []byte, when string) {
	t.Helper()
	for _, node := range c.nodes {
		if code, out := stateDiffOf(t, objects, node); code != 0 {
			t.Errorf("%s, %s: planner state --diff: exit code %d, want 0:\n%.2000s", when, node, code, out)
		}
	}
}

// settled waits until the rules of every node are those of the API server's objects.
func (c *churn) settled(t *testing.T) {
	t.Helper()
	begin := time.Now()
	summary := map[string]string{}
	eventually(t, 2*time.Minute, func() error {
		now := objects(t)
		for _, node := range c.nodes {
			code, out := stateDiffOf(t, now, node)
			if code != 0 || !strings.Contains(out, "\nno difference\n") {
				return fmt.Errorf("%s: planner state --diff: exit code %d, want 0:\n%.2000s", node, code, out)
			}
			summary[node], _, _ = strings.Cut(out, "\n")
		}
		return nil
	})
	t.Logf("after %s, the rules equal the state:\n%s", time.Since(begin).Round(time.Second),
		strings.Join(slices.Sorted(maps.Values(summary)), "\n"))
}

// available waits until all pods of Deployments are ready.
func available(t *testing.T) {
	t.Helper()
	eventually(t, 3*time.Minute, func() error {
		list, err := cluster(t).Kube.AppsV1().Deployments(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, d := range list.Items {
			if d.Status.ReadyReplicas < *d.Spec.Replicas {
				return fmt.Errorf("%s/%s: %d of %d pods are ready", d.Namespace, d.Name, d.Status.ReadyReplicas, *d.Spec.Replicas)
			}
		}
		return nil
	})
}

// size is how many bytes one whole state of a node has on its way to a client.
func (c *churn) size(t *testing.T, node string) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	items, err := nodeClient(t, node, nodeStateSocket).Fetch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, item := range items {
		size += proto.Size(item)
	}
	return float64(size)
}

// component returns the process of a component of a node, by the mark that the sandbox gives to its processes.
func component(t *testing.T, node, name string) int {
	t.Helper()
	mark := []byte("CHECKPLAN_SANDBOX=" + stateDir() + " " + node + " " + name)
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		environ, err := os.ReadFile(path)
		if err != nil || !slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(v []byte) bool { return bytes.Equal(v, mark) }) {
			continue // or it has ended
		}
		// Its children have the mark, too.
		program, err := os.Readlink(filepath.Join(filepath.Dir(path), "exe"))
		if err != nil || filepath.Base(program) != name {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatalf("%s does not run on %s", name, node)
	return 0
}

func signal(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatalf("send %s to process %d: %v", signal, pid, err)
	}
}

// mostMemory is the most resident memory that a process ever had, in bytes.
func mostMemory(t *testing.T, pid int) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kilobytes int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kilobytes); err == nil {
			return float64(kilobytes << 10)
		}
	}
	t.Fatalf("no VmHWM of process %d", pid)
	return 0
}

// dialFrom connects to an address from the network of a process.
func dialFrom(pid int, address string) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread is in another network, and ends with the goroutine
		var network *os.File
		if network, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil {
			return
		}
		defer network.Close()
		if err = unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
			return
		}
		conn, err = net.DialTimeout("tcp", address, 5*time.Second)
	}()
	<-done
	return conn, err
}

// metric reads a metric without labels of a program that answers at a port of a node's loopback address.
func metric(t *testing.T, node string, port int, name string) float64 {
	t.Helper()
	pid := firstProcess(t, node)
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) { return dialFrom(pid, address) }}}
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return number
		}
	}
	t.Fatalf("%s: no metric %s at port %d", node, name, port)
	return 0
}
