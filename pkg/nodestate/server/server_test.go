// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
	"github.com/checkplan/checkplan/pkg/nodestate/client"
	"github.com/checkplan/checkplan/pkg/nodestate/nodestatetest"
)

const (
	nodeName  = "worker-1"
	namespace = "shop"
)

// lab is a server and the API server that it follows, which can be away, or hold back lists.
type lab struct {
	*testing.T
	*Server
	objects *fake.Clientset
	target  string
	logged  *logs
	stop    func() // ends the server, and waits until it has

	mu      sync.Mutex
	away    error // the answer to all requests; nil: the true ones
	silent  bool
	watches map[string]watch.Interface

	held map[string]chan struct{} // of resources whose lists wait
}

// start starts a server. Lists of the held resources wait until they are released.
func start(t *testing.T, held []string, objects ...runtime.Object) *lab {
	t.Helper()
	l := &lab{T: t, objects: fake.NewSimpleClientset(objects...), logged: &logs{}, held: map[string]chan struct{}{},
		watches: map[string]watch.Interface{}}
	for _, resource := range held {
		l.held[resource] = make(chan struct{})
	}
	l.objects.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.away != nil, nil, l.away
	})
	l.objects.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case l.silent:
			return true, watch.NewEmptyWatch(), nil // as client-go's client does when nothing answers
		case l.away != nil:
			return true, nil, l.away
		}
		w, err := l.objects.Tracker().Watch(a.GetResource(), a.GetNamespace())
		l.watches[a.GetResource().Resource] = w
		return true, w, err
	})
	server, err := New(Options{Node: nodeName, Client: l.objects, Log: slog.New(slog.NewTextHandler(l.logged, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range server.resources { // not in the reactor, which would hold back all lists
		if list, wait := r.lists.ListWithContextFunc, l.held[r.name]; wait != nil {
			r.lists.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				<-wait
				return list(ctx, o)
			}
		}
	}
	l.Server = server
	l.target = "unix://" + filepath.Join(t.TempDir(), "s")
	listener, err := Listen(l.target, Certificates{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { server.Run(ctx) })
	wg.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	l.stop = sync.OnceFunc(func() {
		for resource := range l.held {
			l.release(resource)
		}
		cancel()
		wg.Wait()
	})
	t.Cleanup(l.stop)
	return l
}

func (l *lab) release(resource string) {
	if l.held[resource] != nil {
		close(l.held[resource])
		l.held[resource] = nil
	}
}

// following waits until all watches run: the fake clientset would lose a change between a list and its watch.
func (l *lab) following() *lab {
	l.Helper()
	l.until("all watches run", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.watches) == 3
	})
	return l
}

// leave makes the API server go away: its watches end, and requests fail; or only watches get no answer.
func (l *lab) leave(silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent = silent; !silent {
		l.away = errors.New("connection refused by the test")
	}
	for _, w := range l.watches {
		w.Stop()
	}
	clear(l.watches)
}

func (l *lab) comeBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away, l.silent = nil, false
}

// until waits for a condition.
func (l *lab) until(what string, met func() bool) {
	l.Helper()
	for start := time.Now(); !met(); time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			l.Fatalf("never happened: %s", what)
		}
	}
}

// waiting waits until that many clients wait for a state.
func (l *lab) waiting(clients int) {
	l.Helper()
	want := fmt.Sprintf(`checkplan_node_state_clients{doing="waiting"} %d`, clients)
	l.until(want, func() bool { return strings.Contains(l.get("/metrics"), want+"\n") })
}

// get returns the status and the body of an answer of Handler.
func (l *lab) get(path string) string {
	answer := httptest.NewRecorder()
	l.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return fmt.Sprintf("%d %s", answer.Code, answer.Body)
}

func (l *lab) client(instance, rev uint64) *client.EndpointsClient {
	c := &client.EndpointsClient{Target: l.target, InstanceID: instance, Rev: rev, ErrorDelay: time.Millisecond}
	l.Cleanup(c.Cancel)
	return c
}

// fetch returns the next state of a client, in short.
func (l *lab) fetch(c *client.EndpointsClient) string {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), time.Minute) // a server that does not answer
	defer cancel()
	items, err := c.Fetch(ctx)
	if err != nil {
		l.Error(err)
	}
	return short(items)
}

// logs is a buffer for several goroutines.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// short is a state as text: "web 10.0.0.1, db".
func short(items []*api.ServiceEndpoints) string {
	var all []string
	for _, s := range items {
		text := s.Name
		for _, f := range s.Families {
			for _, p := range f.Ports {
				for _, e := range p.Endpoints {
					text += " " + e.Address
				}
			}
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func service(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}}}
}

func slice(of string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: of + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: of}},
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}}}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func node() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}} }

// set updates or creates objects of the API server.
func (l *lab) set(objects ...runtime.Object) {
	l.Helper()
	for _, o := range objects {
		var err error
		switch o := o.(type) {
		case *corev1.Service:
			if _, err = l.objects.CoreV1().Services(o.Namespace).Update(l.Context(), o, metav1.UpdateOptions{}); err != nil {
				_, err = l.objects.CoreV1().Services(o.Namespace).Create(l.Context(), o, metav1.CreateOptions{})
			}
		case *discoveryv1.EndpointSlice:
			of := l.objects.DiscoveryV1().EndpointSlices(o.Namespace)
			if _, err = of.Update(l.Context(), o, metav1.UpdateOptions{}); err != nil {
				_, err = of.Create(l.Context(), o, metav1.CreateOptions{})
			}
		case *corev1.Node:
			_, err = l.objects.CoreV1().Nodes().Update(l.Context(), o, metav1.UpdateOptions{})
		}
		if err != nil {
			l.Fatal(err)
		}
	}
}

// received waits until the server has received that many events of a resource.
func (l *lab) received(resource string, events int) {
	l.Helper()
	want := fmt.Sprintf(`checkplan_node_state_events_total{resource="%s",type="modified"} %d`, resource, events)
	l.until(want, func() bool { return strings.Contains(l.get("/metrics"), want+"\n") })
}

// TestSync: there is no answer before all three resources were read, and the first state has revision 1, empty or not.
func TestSync(t *testing.T) {
	for _, test := range []struct {
		name    string
		objects []runtime.Object
		want    string
	}{
		{"empty", nil, ""},
		{"a Service", []runtime.Object{service("web"), slice("web", "10.0.0.1"), node()}, "web 10.0.0.1"},
	} {
		for _, last := range []string{"services", "endpointslices", "nodes"} {
			t.Run(test.name+", "+last+" last", func(t *testing.T) {
				t.Parallel()
				l := start(t, []string{last}, test.objects...)
				l.until("the others are read", func() bool { return slices.Equal(l.missing(), []string{last}) })
				if want := "503 not read yet: " + last + "\n"; l.get("/readyz") != want {
					t.Errorf("ready: %q, want %q", l.get("/readyz"), want)
				}
				c := l.client(0, 0)
				got := make(chan string)
				go func() { got <- l.fetch(c) }()
				l.waiting(1)
				if rev := l.published().rev; rev != 0 {
					t.Errorf("revision %d, want 0", rev)
				}
				l.release(last)
				if state := <-got; state != test.want || c.Rev != 1 || c.InstanceID != l.own.instance {
					t.Errorf("state %q, instance %d, revision %d, want %q, %d, 1", state, c.InstanceID, c.Rev, test.want, l.own.instance)
				}
				if ready := l.get("/readyz"); !strings.HasPrefix(ready, "200 ok: revision 1, ") {
					t.Errorf("ready: %q", ready)
				}
			})
		}
	}
}

// TestFilters: which filters are answered at once, and which waits.
func TestFilters(t *testing.T) {
	l := start(t, nil, service("web"), node()).following()
	instance := l.own.instance
	c := l.client(0, 0)
	l.fetch(c)
	l.set(slice("web", "10.0.0.1"))
	if state := l.fetch(c); state != "web 10.0.0.1" || c.Rev != 2 {
		t.Fatalf("state %q, revision %d, want 2", state, c.Rev)
	}
	for _, test := range []struct {
		name          string
		instance, rev uint64
		waits         bool
	}{
		{"first call", 0, 0, false},
		{"no instance, the revision by chance", 0, 2, false},
		{"another instance", instance + 1, 2, false},
		{"another instance, its revision ahead", instance + 1, 9, false},
		{"no revision", instance, 0, false},
		{"earlier revision", instance, 1, false},
		{"later revision", instance, 3, false},
		{"present revision", instance, 2, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := l.client(test.instance, test.rev)
			got := make(chan string, 1)
			go func() { got <- l.fetch(c) }()
			want, rev := "web 10.0.0.1", uint64(2)
			if test.waits {
				l.waiting(1)
				want, rev = "web 10.0.0.1 10.0.0.2", 3
				l.set(slice("web", "10.0.0.1", "10.0.0.2"))
			}
			if state := <-got; state != want || c.InstanceID != instance || c.Rev != rev {
				t.Errorf("state %q, instance %d, revision %d, want %q, %d, %d", state, c.InstanceID, c.Rev, want, instance, rev)
			}
		})
	}
}

// TestResult: a client that has the present state waits for one that differs for this node. Nothing else wakes it.
func TestResult(t *testing.T) {
	l := start(t, nil, service("web"), slice("web", "10.0.0.1"), node()).following()
	c := l.client(0, 0)
	l.fetch(c)
	got := make(chan string, 1)
	go func() { got <- l.fetch(c) }()
	l.waiting(1)

	beat := node()
	beat.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
	annotated := service("web")
	annotated.Annotations = map[string]string{"changed": "yes"}
	unready := slice("web", "10.0.0.1", "10.0.0.2")
	unready.Endpoints[1].Conditions.Ready = new(false)
	l.set(beat, annotated, unready)
	for _, resource := range []string{"nodes", "services", "endpointslices"} {
		l.received(resource, 1)
	}
	if rev := l.published().rev; rev != 1 {
		t.Errorf("revision %d after events that change nothing here, want 1", rev)
	}
	l.waiting(1)
	l.set(slice("web", "10.0.0.1", "10.0.0.2"))
	if state := <-got; state != "web 10.0.0.1 10.0.0.2" || c.Rev != 2 {
		t.Errorf("state %q, revision %d, want 2", state, c.Rev)
	}
	if err := l.objects.CoreV1().Services(namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if state := l.fetch(c); state != "" || c.Rev != 3 {
		t.Errorf("state %q, revision %d after the last Service went, want none, 3", state, c.Rev)
	}
}

// TestOrder: two answers have the same bytes.
func TestOrder(t *testing.T) {
	l := start(t, nil, service("b"), service("a"), slice("a", "10.0.0.2", "10.0.0.1"), slice("b", "10.0.0.3"))
	var answers [2][]byte
	for i := range answers {
		items, err := l.client(0, 0).Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := "a 10.0.0.1 10.0.0.2, b 10.0.0.3"; short(items) != want {
			t.Fatalf("state %q, want %q", short(items), want)
		}
		for _, item := range items {
			if answers[i], err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(answers[i], item); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.Equal(answers[0], answers[1]) {
		t.Error("the answers differ")
	}
}

// TestFrozen: clients that stop reading in the middle of a state keep none but their own waiting. Each costs one state,
// however long the changes go on. When one goes on, it gets the rest of that same state, and the newest one with its
// next call.
func TestFrozen(t *testing.T) {
	const services = 1000 // more than the windows of a connection hold
	var objects []runtime.Object
	addresses := make([]string, 20)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("10.0.0.%d", 101+i)
	}
	for i := range services {
		name := fmt.Sprintf("service-%04d", i)
		objects = append(objects, service(name), slice(name, addresses...))
	}
	l := start(t, nil, objects...).following()
	l.until("everything is read", func() bool { return len(l.missing()) == 0 })
	freeze := func() (grpc.ServerStreamingClient[api.NextItem], *api.NextItem) {
		conn, err := grpc.NewClient(l.target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		stream, err := api.NewEndpointsClient(conn).Next(t.Context(), &api.NextFilter{})
		if err != nil {
			t.Fatal(err)
		}
		first, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return stream, first
	}
	// made is what changes, in each state, without keeping it.
	var made []weak.Pointer[nodestate.ServiceEndpoints]
	note := func() { made = append(made, weak.Make(l.published().items[services-1])) }
	frozen, first := freeze()
	note()

	c := l.client(0, 0)
	l.fetch(c)
	const changes, second = 50, 20
	for i := range changes { // each is a state of its own: the client takes part in all of them
		l.set(slice("service-0999", fmt.Sprintf("10.9.%d.1", i)))
		l.fetch(c)
		if note(); i == second {
			freeze()
		}
	}
	l.until("only two frozen clients' states and the newest one are kept", func() bool {
		goruntime.GC()
		var kept []int
		for i, state := range made {
			if state.Value() != nil {
				kept = append(kept, i)
			}
		}
		return slices.Equal(kept, []int{0, 1 + second, changes})
	})
	if c.Rev != 1+changes {
		t.Errorf("the other client has revision %d, want %d", c.Rev, 1+changes)
	}
	metrics := l.get("/metrics")
	for _, want := range []string{`clients{doing="receiving"} 2`, fmt.Sprintf("states_sent_total %d", 1+changes)} {
		if !strings.Contains(metrics, "checkplan_node_state_"+want+"\n") {
			t.Errorf("want %s in:\n%s", want, metrics)
		}
	}

	var items []*api.ServiceEndpoints
	for {
		item, err := frozen.Recv()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		items = append(items, item.Endpoints)
	}
	if len(items) != services || first.Next.Rev != 1 || short(items[services-1:]) != "service-0999 "+strings.Join(addresses, " ") {
		t.Errorf("revision %d with %d items, the last one %q, want the whole revision 1", first.Next.Rev, len(items), short(items[services-1:]))
	}
	late := l.client(first.Next.InstanceID, first.Next.Rev)
	if state := l.fetch(late); late.Rev != 1+changes || !strings.HasSuffix(state, fmt.Sprintf("service-0999 10.9.%d.1", changes-1)) {
		t.Errorf("then revision %d, want %d", late.Rev, 1+changes)
	}
}

// TestChurn: a client that gets states while the cluster changes all the time ends with exactly the state that is
// computed from scratch. Each state that it gets is a later one.
func TestChurn(t *testing.T) {
	f := nodestatetest.NewFleet(200, 2000, 20)
	var objects []runtime.Object
	for i := range f.Services {
		objects = append(objects, f.Services[i], f.Slices[i])
	}
	l := start(t, nil, objects...).following()
	c := l.client(0, 0)
	type state struct {
		rev   uint64
		items []*api.ServiceEndpoints
	}
	states := make(chan state)
	go func() {
		for items := range c.States(t.Context()) {
			select {
			case states <- state{c.Rev, items}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	last, got, changes := <-states, 1, 0
	receive := func(next state) {
		if next.rev <= last.rev {
			t.Errorf("revision %d after %d", next.rev, last.rev)
		}
		last = next
		got++
	}
	for e := range f.Day() {
		var err error
		switch {
		case e.Slice != nil:
			err = l.resources[1].Update(e.Slice)
		case e.Service != nil:
			err = l.resources[0].Update(e.Service)
		default:
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		changes++
		select {
		case next := <-states:
			receive(next)
		default:
		}
	}
	for last.rev != l.published().rev {
		receive(<-states)
	}
	t.Logf("%d states of %d revisions, %d changes", got, last.rev, changes)
	if got < 2 {
		t.Errorf("%d states of %d changes", got, changes)
	}
	want := l.cluster.State(nodeName)
	if len(last.items) != len(want) {
		t.Fatalf("%d Services, want %d", len(last.items), len(want))
	}
	for i, item := range last.items {
		if !proto.Equal(item, Message(want[i])) {
			t.Errorf("%v, want %v", item, want[i])
		}
	}
}

// TestAway: without the API server, clients get the last state, and its age is known. Afterwards the new list is one
// change, whatever happened meanwhile.
func TestAway(t *testing.T) {
	t.Parallel()
	l := start(t, nil, service("db"), service("web"), slice("web", "10.0.0.1"), node()).following()
	c := l.client(0, 0)
	if state := l.fetch(c); state != "db, web 10.0.0.1" || l.Age() != 0 {
		t.Fatalf("state %q, age %v, want 0", state, l.Age())
	}
	heard := time.Now() // at the latest
	time.Sleep(100 * time.Millisecond)
	l.leave(false)
	l.until("the server notices", func() bool { return l.Age() > 0 })
	if least, age := time.Since(heard), l.Age(); age < least {
		t.Errorf("age %v, but nothing was heard of the API server for %v", age, least)
	}
	if state := l.fetch(l.client(0, 0)); state != "db, web 10.0.0.1" {
		t.Errorf("state %q while the API server is away", state)
	}
	if ready := l.get("/readyz"); !strings.HasPrefix(ready, "200 ok: revision 1, 2 Services; the API server has not been followed for ") {
		t.Errorf("ready: %q", ready)
	}
	if strings.Contains(l.get("/metrics"), "checkplan_node_state_age_seconds 0\n") {
		t.Error("the metric says that the state is new")
	}
	if !strings.Contains(l.logged.String(), "cannot follow the API server; clients get the last state") {
		t.Errorf("logged %s", l.logged)
	}

	got := make(chan string, 1)
	go func() { got <- l.fetch(c) }()
	l.waiting(1)
	if err := l.objects.CoreV1().Services(namespace).Delete(t.Context(), "db", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.set(service("api"), service("cache"))
	l.comeBack()
	// The Services' list is one state. Nothing else has changed.
	if state := <-got; state != "api, cache, web 10.0.0.1" {
		t.Errorf("state %q after the outage", state)
	}
	l.until("the server follows again", func() bool { return l.Age() == 0 })
	l.following()
	l.set(slice("api", "10.0.0.2"))
	if state := l.fetch(c); state != "api 10.0.0.2, cache, web 10.0.0.1" {
		t.Errorf("state %q, want the change after the outage", state)
	}
}

// TestSilent: an API server that does not answer is away, although client-go's client says nothing of it.
func TestSilent(t *testing.T) {
	l := start(t, nil, service("web")).following()
	l.until("the server follows", func() bool { return l.Age() == 0 })
	l.leave(true)
	l.until("the server notices", func() bool { return strings.Contains(l.logged.String(), errSilent.Error()) && l.Age() > 0 })
}

// TestStopUnread: a watch that is stopped ends, although an event waits for a reader.
func TestStopUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
		s, err := New(Options{Node: nodeName, Client: fake.NewSimpleClientset(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		from := watch.NewFake()
		w := s.resources[0].noted(from)
		from.Add(service("web"))
		w.Stop()
		synctest.Wait()
		if !from.IsStopped() {
			t.Error("the watch of the API server goes on")
		}
	})
}

// TestNoAnswer: a request that is not answered in time counts as an API server that is away, while it waits.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged := &logs{}
		s, err := New(Options{Node: nodeName, Client: fake.NewSimpleClientset(), Log: slog.New(slog.NewTextHandler(logged, nil))})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range s.resources {
			r.note(t.Context(), nil)
		}
		r := s.resources[0]
		time.Sleep(20 * time.Second)
		r.hear()
		time.Sleep(10 * time.Second)
		answered := r.waiting(t.Context())
		time.Sleep(patience - time.Second)
		answered()
		time.Sleep(time.Minute)
		if age := s.Age(); age != 0 {
			t.Errorf("age %v after an answer in time", age)
		}
		r.hear()
		time.Sleep(10 * time.Second)
		answered = r.waiting(t.Context())
		time.Sleep(patience + time.Second)
		if age := s.Age(); age != 11*time.Second+patience {
			t.Errorf("age %v, want the time since the last event", age)
		}
		if !strings.Contains(logged.String(), "no answer for 5s") {
			t.Errorf("logged %s", logged)
		}
		answered()
		r.note(t.Context(), nil)
		if age := s.Age(); age != 0 {
			t.Errorf("age %v after an answer", age)
		}
	})
}

// TestReplace: a list is taken over at once. No client can get a part of it.
func TestReplace(t *testing.T) {
	s, err := New(Options{Node: nodeName, Client: fake.NewSimpleClientset(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range s.resources {
		if err := r.Replace(nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	r, changed, objects := s.resources[0], s.own.changed, 0
	put := r.set
	r.set = func(c *nodestate.Cluster, o any) {
		put(c, o)
		if objects++; s.mu.TryLock() || s.own.changed != changed {
			t.Errorf("clients can get a state with %d of 3 Services", objects)
		}
	}
	if err := r.Replace([]any{service("a"), service("b"), service("c")}, ""); err != nil {
		t.Fatal(err)
	}
	if now := s.published(); len(now.items) != 3 || objects != 3 {
		t.Errorf("%d Services after %d objects, want 3", len(now.items), objects)
	}
	r.set = put
	if err := r.Replace([]any{service("b")}, ""); err != nil {
		t.Fatal(err)
	}
	if now := s.published(); len(now.items) != 1 || now.items[0].Name != "b" {
		t.Errorf("%d Services after a list of one", len(now.items))
	}
}

// TestStop: a client that waits gets an error when the server ends, and the next instance's state afterwards.
func TestStop(t *testing.T) {
	l := start(t, nil, service("web"))
	c := l.client(0, 0)
	l.fetch(c)
	before := c.InstanceID
	failed := make(chan error, 1)
	go func() {
		_, err := c.Fetch(t.Context())
		failed <- err
	}()
	l.waiting(1)
	l.stop()
	if err := <-failed; err == nil {
		t.Error("a state from a server that stopped")
	}
	if c.InstanceID != before || c.Rev != 1 {
		t.Errorf("instance %d, revision %d, want %d, 1", c.InstanceID, c.Rev, before)
	}
	next := start(t, nil, service("web"))
	c = next.client(before, 1)
	if state := next.fetch(c); state != "web" || c.InstanceID == before {
		t.Errorf("state %q of instance %d, want one of another instance than %d", state, c.InstanceID, before)
	}
}

// TestMinSyncPeriod: the first change after a quiet time is a state at once. Those that follow are one state together,
// when the period is over.
func TestMinSyncPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{Node: nodeName, Client: fake.NewSimpleClientset(), MinSyncPeriod: time.Second, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for _, r := range s.resources {
			if err := r.Replace(nil, ""); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		want := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got = append(got, fmt.Sprintf("%v: %d", time.Since(start), len(s.published().items))); !slices.Equal(got[len(got)-1:], want) {
				t.Errorf("got %q, want %q", got[len(got)-1:], want)
			}
		}
		add := func(name string) { s.change(func(c *nodestate.Cluster) { c.SetService(service(name)) }) }
		want("0s: 0")
		time.Sleep(10 * time.Second)
		add("a")
		want("10s: 1")
		add("b")
		time.Sleep(900 * time.Millisecond)
		add("c")
		want("10.9s: 1")
		time.Sleep(100 * time.Millisecond)
		want("11s: 3")
		add("d")
		want("11s: 3")
		time.Sleep(time.Second)
		want("12s: 4")
	})
}

// TestListen: where the server listens, and where it refuses to.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct{ address, err string }{
		{"unix://" + dir + "/s", ""},
		{"tcp://127.0.0.1:0", ""},
		{"tcp://127.8.8.8:0", ""},
		{"tcp://[::ffff:127.0.0.1]:0", ""},
		{"unix://s", "want an absolute path"},
		{"unix://" + dir + "/none/s", "no such file or directory"},
		{"tcp://0.0.0.0:0", "not a loopback address"},
		{"tcp://[::]:0", "not a loopback address"},
		{"tcp://192.0.2.1:12345", "not a loopback address: anyone on the network could read the state: want tcp://127.0.0.1:12345"},
		{"tcp://:12345", "want an IP address and a port"},
		{"tcp://localhost:12345", "want an IP address and a port"},
		{"127.0.0.1:12345", "want unix:///PATH, tcp://ADDRESS:PORT or tls://ADDRESS:PORT"},
		{"", "want unix:///PATH, tcp://ADDRESS:PORT or tls://ADDRESS:PORT"},
	} {
		l, err := Listen(test.address, Certificates{})
		if err == nil {
			l.Close()
		}
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: error %v, want %q", test.address, err, test.err)
		}
	}
}

// TestSocket: the socket's mode, and what happens to one that exists.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := Listen("unix://"+path, Certificates{})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode %v (%v), want 0660", info.Mode(), err)
	}
	if _, err := Listen("unix://"+path, Certificates{}); err == nil || !strings.Contains(err.Error(), "another server is listening") {
		t.Errorf("error %v beside a server", err)
	}
	first.(interface{ SetUnlinkOnClose(bool) }).SetUnlinkOnClose(false) // as if it was killed
	first.Close()
	second, err := Listen("unix://"+path, Certificates{})
	if err != nil {
		t.Fatalf("after a killed server: %v", err)
	}
	second.Close()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("unix://"+path, Certificates{}); err == nil {
		t.Error("a file that is no socket was replaced")
	}
}

// TestMetrics: docs/node-state.md has each metric of the server itself, and their values are those of the state.
func TestMetrics(t *testing.T) {
	web := slice("web", "10.0.0.1", "10.0.0.2")
	l := start(t, nil, service("db"), service("web"), web, node()).following()
	l.fetch(l.client(0, 0))
	l.until("the state was sent", func() bool { return strings.Contains(l.get("/metrics"), "states_sent_total 1\n") })
	metrics := l.get("/metrics")
	for _, want := range []string{"age_seconds 0", "revision 1", "services 2", "endpoints 2", "states_sent_total 1",
		"items_sent_total 2", `clients{doing="waiting"} 0`, `clients{doing="receiving"} 0`,
		`events_total{resource="services",type="listed"} 1`, `events_total{resource="nodes",type="deleted"} 0`} {
		if !strings.Contains(metrics, "\ncheckplan_node_state_"+want+"\n") {
			t.Errorf("want %s in:\n%s", want, metrics)
		}
	}
	doc, err := os.ReadFile("../../../docs/node-state.md")
	if err != nil {
		t.Fatal(err)
	}
	families, err := l.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if name, own := strings.CutPrefix(f.GetName(), "checkplan_node_state"); own && !bytes.Contains(doc, []byte(name)) {
			t.Errorf("docs/node-state.md lacks checkplan_node_state%s", name)
		}
	}
	if live := l.get("/livez"); live != "200 ok\n" {
		t.Errorf("live: %q", live)
	}
}
