// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/checkplan/checkplan/pkg/nodestate"
)

// resource feeds the cluster with one kind of object. It is the store of a reflector, but keeps only the objects' keys.
type resource struct {
	server  *Server
	name    string // services, endpointslices, nodes
	example runtime.Object
	lists   *cache.ListWatch
	set     func(*nodestate.Cluster, any)
	remove  func(*nodestate.Cluster, types.NamespacedName)

	// Guarded by the server's mutex:

	keys   map[types.NamespacedName]bool
	synced bool      // the first list was read
	heard  time.Time // when the API server last sent something
	since  time.Time // the API server has not sent anything since then; zero: it is being followed
}

// Lists returns what lists and watches the objects that a node's state is computed from: Services and EndpointSlices of
// a namespace, empty: all, and the Node of this name, empty: all. Objects that change no state are left out.
func Lists(client kubernetes.Interface, namespace, node string) (services, endpointSlices, nodes *cache.ListWatch) {
	served := metav1.ListOptions{LabelSelector: nodestate.Selector}
	var some metav1.ListOptions
	if node != "" {
		some.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()
	}
	ofServices, ofSlices := client.CoreV1().Services(namespace), client.DiscoveryV1().EndpointSlices(namespace)
	ofNodes := client.CoreV1().Nodes()
	return lists(served, ofServices.List, ofServices.Watch), lists(served, ofSlices.List, ofSlices.Watch),
		lists(some, ofNodes.List, ofNodes.Watch)
}

// watched are the three resources that a state is computed from. Without Options.AnyNode, the one Node is the server's.
func (s *Server) watched() []*resource {
	node := s.options.Node
	if s.options.AnyNode {
		node = ""
	}
	services, endpointSlices, nodes := Lists(s.options.Client, metav1.NamespaceAll, node)
	resources := []*resource{
		{name: "services", example: &corev1.Service{}, lists: services,
			set:    func(c *nodestate.Cluster, o any) { c.SetService(o.(*corev1.Service)) },
			remove: func(c *nodestate.Cluster, k types.NamespacedName) { c.DeleteService(k.Namespace, k.Name) }},
		{name: "endpointslices", example: &discoveryv1.EndpointSlice{}, lists: endpointSlices,
			set:    func(c *nodestate.Cluster, o any) { c.SetSlice(o.(*discoveryv1.EndpointSlice)) },
			remove: func(c *nodestate.Cluster, k types.NamespacedName) { c.DeleteSlice(k.Namespace, k.Name) }},
		{name: "nodes", example: &corev1.Node{}, lists: nodes,
			set:    func(c *nodestate.Cluster, o any) { c.SetNode(o.(*corev1.Node)) },
			remove: func(c *nodestate.Cluster, k types.NamespacedName) { c.DeleteNode(k.Name) }},
	}
	for _, r := range resources {
		r.server, r.since, r.keys = s, time.Now(), map[types.NamespacedName]bool{}
	}
	return resources
}

// lists returns a client's functions with the selectors of the options.
func lists[List runtime.Object](selectors metav1.ListOptions,
	list func(context.Context, metav1.ListOptions) (List, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error)) *cache.ListWatch {
	selected := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = selectors.LabelSelector, selectors.FieldSelector
		return o
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return list(ctx, selected(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return follow(ctx, selected(o))
		},
	}
}

// patience is how long a request may take before the API server counts as away. The client itself tries one watch for
// minutes if the API server accepts connections and says nothing: rest.Request.Watch.
const patience = 5 * time.Second

var (
	errSlow   = fmt.Errorf("no answer for %s", patience)
	errSilent = errors.New("no answer")
)

// emptyWatch is what the client returns when it has given such a request up.
var emptyWatch = reflect.TypeOf(watch.NewEmptyWatch())

// follow lists and watches until ctx ends, and tries again for as long as the API server is away.
func (r *resource) follow(ctx context.Context) {
	noted := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			answered := r.waiting(ctx)
			list, err := r.lists.ListWithContextFunc(ctx, o)
			answered()
			r.note(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			answered := r.waiting(ctx)
			events, err := r.lists.WatchFuncWithContext(ctx, o)
			answered()
			switch {
			case err != nil:
				r.note(ctx, err)
				return nil, err
			case reflect.TypeOf(events) == emptyWatch:
				r.note(ctx, errSilent)
				return events, nil
			case o.SendInitialEvents == nil || !*o.SendInitialEvents:
				r.note(ctx, nil) // a watch that begins with a list has reached the state when that has ended: Replace
			}
			return r.noted(events), nil
		},
	}
	source := cache.ToListWatcherWithWatchListSemantics(noted, r.server.options.Client)
	reflector := cache.NewReflectorWithOptions(source, r.example, r, cache.ReflectorOptions{Name: r.name})
	reflector.RunWithContext(ctx)
}

// waiting notes that the API server is away if a request is not answered in time.
func (r *resource) waiting(ctx context.Context) (answered func()) {
	ctx, cancel := context.WithCancel(ctx)
	slow := time.AfterFunc(patience, func() { r.note(ctx, errSlow) })
	return func() {
		cancel()
		slow.Stop()
	}
}

// noted returns a watch with the same events, which records when they arrive. Unlike the goroutine of watch.Filter, its
// own also ends if the watch is stopped while nobody reads.
func (r *resource) noted(events watch.Interface) watch.Interface {
	to := make(chan watch.Event)
	proxy := watch.NewProxyWatcher(to)
	go func() {
		defer close(to)
		defer events.Stop()
		for {
			select {
			case event, open := <-events.ResultChan():
				if !open {
					return
				}
				r.hear()
				select {
				case to <- event:
				case <-proxy.StopChan():
					return
				}
			case <-proxy.StopChan():
				return
			}
		}
	}()
	return proxy
}

// hear records that the API server sent something: an event, or a bookmark.
func (r *resource) hear() {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	r.heard = time.Now()
}

// note records whether a request reached the API server. One that failed because ctx ended says nothing.
func (r *resource) note(ctx context.Context, err error) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	log := r.server.options.Log.With("resource", r.name)
	switch {
	case err == nil:
		if !r.since.IsZero() && r.synced {
			log.Info("the API server is being followed again", "age", time.Since(r.since))
		}
		r.heard, r.since = time.Now(), time.Time{}
	case r.since.IsZero():
		r.since = r.heard
		log.Warn("cannot follow the API server; clients get the last state", "error", err)
	}
}

// Transformer is for lists that a reflector gathers before Replace: it leaves out what no state depends on.
func (r *resource) Transformer() cache.TransformFunc { return trim }

func trim(object any) (any, error) {
	meta := func(m metav1.ObjectMeta) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, Labels: m.Labels, ResourceVersion: m.ResourceVersion}
	}
	switch o := object.(type) {
	case *corev1.Service:
		status := corev1.ServiceStatus{LoadBalancer: o.Status.LoadBalancer}
		return &corev1.Service{ObjectMeta: meta(o.ObjectMeta), Spec: o.Spec, Status: status}, nil
	case *discoveryv1.EndpointSlice:
		for i, e := range o.Endpoints {
			o.Endpoints[i] = discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, NodeName: e.NodeName,
				Hints: e.Hints}
		}
		o.ObjectMeta = meta(o.ObjectMeta)
		return o, nil
	case *corev1.Node:
		status := corev1.NodeStatus{Addresses: o.Status.Addresses}
		return &corev1.Node{ObjectMeta: meta(o.ObjectMeta), Status: status}, nil
	}
	return object, nil
}

func keyOf(object any) types.NamespacedName {
	m := object.(metav1.Object)
	return types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
}

// Add, Update and Delete take over an event of the watch.

func (r *resource) Add(object any) error {
	r.put(object, added)
	return nil
}

func (r *resource) Update(object any) error {
	r.put(object, modified)
	return nil
}

func (r *resource) put(object any, event string) {
	r.server.metrics.events.WithLabelValues(r.name, event).Inc()
	r.server.change(func(c *nodestate.Cluster) {
		r.keys[keyOf(object)] = true
		r.set(c, object)
	})
}

func (r *resource) Delete(object any) error {
	r.server.metrics.events.WithLabelValues(r.name, deleted).Inc()
	r.server.change(func(c *nodestate.Cluster) {
		delete(r.keys, keyOf(object))
		r.remove(c, keyOf(object))
	})
	return nil
}

// Replace takes over a list: one change, whatever the list changes.
func (r *resource) Replace(list []any, _ string) error {
	r.server.metrics.events.WithLabelValues(r.name, listed).Inc()
	r.note(context.Background(), nil)
	r.server.change(func(c *nodestate.Cluster) {
		gone := r.keys
		r.keys = make(map[types.NamespacedName]bool, len(list))
		for _, object := range list {
			key := keyOf(object)
			r.keys[key] = true
			delete(gone, key)
			r.set(c, object)
		}
		for key := range gone {
			r.remove(c, key)
		}
		r.synced = true
	})
	return nil
}

// Resync has nothing to do: a reflector calls it only with a resync period.
func (r *resource) Resync() error { return nil }
