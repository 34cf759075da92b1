// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/dataplane/detect"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/nodestate/server"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/run"
)

// stateOptions are the flags of state.
type stateOptions struct {
	access            run.Access
	node              string
	file              string
	nodePortAddresses []string
	all               bool
	watch, diff       bool
	output            string
}

func newState(env *environment) *cobra.Command {
	var o stateOptions
	cmd := &cobra.Command{
		Use:   "state --node NODE [SERVICE...]",
		Short: "Print what a node's service proxy has to serve",
		Long: `state prints what the service proxy of a node has to serve, Service by Service:
addresses, and to which endpoints each kind of traffic goes, or whether it is
rejected or dropped. It is what kube-proxy 1.35 would program on that node, after
traffic policies, hints and readiness. An endpoint with a star is on the node.

It reads the cluster, which needs the right to list and watch Services,
EndpointSlices and Nodes, or a file that kubectl wrote:

  kubectl get nodes,services,endpointslices -A -o yaml > cluster.yaml

With names, it prints only these Services. Without --namespace, it prints all that
are in the file.

With --diff, it prints instead how the rules of the machine on which it runs differ
from that: this must be the node. It needs the capability NET_ADMIN in the node's
network, and reads only. Rules that differ are read twice, because rules follow
changes of the cluster by a second or so.

Exit codes: 0; 1 the cluster, or with --diff a rule, could not be read, or nothing
was compared; 2 wrong usage, or a wrong file; with --diff 3: the rules differ.`,
		RunE: func(cmd *cobra.Command, args []string) error { return env.state(cmd.Context(), args, o) },
	}
	addAccess(cmd, &o.access)
	cmd.ValidArgsFunction = completeNames(&o.access, 0, serviceNames)
	cmd.Flags().StringVar(&o.node, "node", "", "name of the node")
	// The only error is a missing flag, and the line above adds it.
	_ = cmd.RegisterFlagCompletionFunc("node", completeNames(&o.access, 0, nodeNames))
	cmd.Flags().StringVarP(&o.file, "filename", "f", "", "read this file, or - for standard input, not the cluster")
	cmd.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "the Services of all namespaces")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "print what changes, until interrupted")
	cmd.Flags().BoolVar(&o.diff, "diff", false, "print how the rules of this machine, which must be the node, differ")
	cmd.Flags().StringSliceVar(&o.nodePortAddresses, "nodeport-addresses", nil,
		`kube-proxy's option of this name: prefixes, or "primary"; if empty, node ports answer on all addresses of the node`)
	enumVar(cmd, &o.output, "output", "text", "output format", "text", "json")
	return cmd
}

func (e *environment) state(ctx context.Context, names []string, o stateOptions) error {
	if o.node == "" {
		return usage("state: want --node NODE")
	}
	if err := oneOrAll(o.access, o.all); err != nil {
		return err
	}
	if o.watch && o.diff {
		return usage("--diff and --watch: want one of them")
	}
	if o.watch && o.file != "" {
		return usage("--watch: a file does not change; leave out --filename")
	}
	objects, err := nodestate.New(nodestate.Options{NodePortAddresses: o.nodePortAddresses})
	if err != nil {
		return usage("--nodeport-addresses: %w", err)
	}
	s := &services{
		env: e, options: o, names: names, objects: objects, changed: make(chan struct{}, 1),
		machine: machine{net.InterfaceAddrs, detect.Read},
	}
	ctx, stop := e.interruptible(ctx)
	defer stop()
	if o.file != "" {
		s.namespace = o.access.Namespace
		text, err := e.readAll(ctx, o.file)
		if err != nil {
			return fmt.Errorf("read %s: %w", o.file, err)
		}
		if err := s.parse(text); err != nil {
			return usage("%s: %w", o.file, err)
		}
		s.view = objects.View(o.node)
		return s.show(ctx)
	}
	cluster, err := run.Connect(o.access)
	if err != nil {
		return err
	}
	if s.namespace = cluster.Namespace; o.all {
		s.namespace = metav1.NamespaceAll
	}
	err = s.follow(ctx, cluster.Kube)
	if o.watch && errors.Is(err, errInterrupted) {
		return nil
	}
	return err
}

// services is the state of a node's Services: what was read, and what was printed of it.
type services struct {
	env       *environment
	options   stateOptions
	namespace string   // empty: all
	names     []string // empty: all
	machine   machine

	mu      sync.Mutex // guards the fields below
	objects *nodestate.Cluster
	known   bool // the node exists
	// addresses are those of the node.
	addresses []string
	view      *nodestate.View // nil until everything is there
	printed   map[string]*nodestate.ServiceEndpoints
	rev       uint64 // of printed

	changed chan struct{} // has an element if there may be something to print
}

// put adds, replaces or, if gone, removes an object. Kinds that are not Service, EndpointSlice or Node are ignored.
func (s *services) put(object any, gone bool) {
	s.mu.Lock()
	switch o := object.(type) {
	case *corev1.Node:
		if gone {
			s.objects.DeleteNode(o.Name)
		} else {
			s.objects.SetNode(o)
			if o.Name == s.options.node {
				s.known, s.addresses = true, nil
				for _, a := range o.Status.Addresses {
					s.addresses = append(s.addresses, a.Address)
				}
			}
		}
	case *corev1.Service:
		if gone {
			s.objects.DeleteService(o.Namespace, o.Name)
		} else {
			s.objects.SetService(o)
		}
	case *discoveryv1.EndpointSlice:
		if gone {
			s.objects.DeleteSlice(o.Namespace, o.Name)
		} else {
			s.objects.SetSlice(o)
		}
	}
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default: // there is one already
	}
}

// parse reads the file of --filename: a List of objects in YAML or JSON.
func (s *services) parse(text []byte) error {
	var list struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	data, err := yaml.YAMLToJSON(text)
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return fmt.Errorf("not a list of objects: %w", err)
	}
	if list.Items == nil {
		return fmt.Errorf("kind %q: want what kubectl get nodes,services,endpointslices -A -o yaml prints", list.Kind)
	}
	for i, item := range list.Items {
		var meta metav1.TypeMeta
		if err := json.Unmarshal(item, &meta); err != nil {
			return fmt.Errorf("items[%d]: %w", i, err)
		}
		var object any
		switch meta.APIVersion + " " + meta.Kind {
		case "v1 Node":
			object = &corev1.Node{}
		case "v1 Service":
			object = &corev1.Service{}
		case "discovery.k8s.io/v1 EndpointSlice":
			object = &discoveryv1.EndpointSlice{}
		default:
			return fmt.Errorf("items[%d]: %s %q: want Nodes, Services and EndpointSlices", i, meta.APIVersion, meta.Kind)
		}
		if err := json.Unmarshal(item, object); err != nil {
			return fmt.Errorf("items[%d]: %s: %w", i, meta.Kind, err)
		}
		s.put(object, false)
	}
	return nil
}

// follow prints the state once all objects are there, and with --watch each change of it until ctx ends. The error is
// then the cause of that end.
func (s *services) follow(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ofServices, ofSlices, ofNodes := server.Lists(client, s.namespace, s.options.node)
	var synced []cache.InformerSynced
	for _, of := range []struct {
		what    string
		lists   *cache.ListWatch
		example runtime.Object
	}{
		{"Nodes", ofNodes, &corev1.Node{}},
		{"Services", ofServices, &corev1.Service{}},
		{"EndpointSlices", ofSlices, &discoveryv1.EndpointSlice{}},
	} {
		source := cache.ToListWatcherWithWatchListSemantics(of.lists, client)
		informer := cache.NewSharedIndexInformer(source, of.example, 0, cache.Indexers{})
		handled, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.put(o, false) },
			UpdateFunc: func(_, o any) { s.put(o, false) },
			DeleteFunc: func(o any) {
				if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = unknown.Obj
				}
				s.put(o, true)
			},
		})
		if err == nil {
			err = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
				if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || !s.ready() {
					cancel(fmt.Errorf("list and watch %s: %w", of.what, err))
				} // else the state stays the last one that is known, and the informer tries again
			})
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", of.what, err)
		}
		synced = append(synced, handled.HasSynced)
		go informer.RunWithContext(ctx)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	s.view = s.objects.View(s.options.node)
	s.mu.Unlock()
	for {
		if err := s.show(ctx); err != nil || !s.options.watch {
			return err
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ready reports whether all objects have been there.
func (s *services) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view != nil
}

// show prints the state, or how the rules differ from it.
func (s *services) show(ctx context.Context) error {
	if s.options.diff {
		return s.diff(ctx)
	}
	return s.print()
}

// nodeNames and serviceNames are for completion.
func nodeNames(ctx context.Context, cluster *run.Cluster) ([]string, error) {
	return namesOf(cluster.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{}))
}

func serviceNames(ctx context.Context, cluster *run.Cluster) ([]string, error) {
	return namesOf(cluster.Kube.CoreV1().Services(cluster.Namespace).List(ctx, metav1.ListOptions{}))
}

// print prints the state, and what has changed when it is called again.
func (s *services) print() error {
	s.mu.Lock()
	rev, state, known := s.view.Rev(), s.view.State(), s.known
	s.mu.Unlock()
	first := s.printed == nil
	if !known && first {
		return fmt.Errorf("node %s does not exist", s.options.node)
	}
	if rev == s.rev {
		return nil
	}
	s.rev = rev
	state = slices.DeleteFunc(state, func(of *nodestate.ServiceEndpoints) bool {
		return !s.selects(of.Namespace + "/" + of.Name)
	})
	if first {
		s.warnUnserved(state)
	}
	now := map[string]*nodestate.ServiceEndpoints{}
	var changed []*nodestate.ServiceEndpoints
	for _, of := range state {
		key := of.Namespace + "/" + of.Name
		if now[key] = of; s.printed[key] != of {
			changed = append(changed, of)
		}
	}
	var gone []string
	for key := range s.printed {
		if now[key] == nil {
			gone = append(gone, key)
		}
	}
	slices.Sort(gone)
	s.printed = now
	if !first && len(changed)+len(gone) == 0 {
		return nil // of the Services that are named
	}
	if s.options.output == "json" {
		return s.printJSON(state)
	}
	out := s.env.stdout
	if !first {
		fmt.Fprintf(out, "%s changed: %d, gone: %d %s\n", time.Now().Format(time.TimeOnly), len(changed), len(gone),
			checkup.Clean(strings.Join(gone, " ")))
	}
	return stateText(out, changed)
}

// warnUnserved names the Services of the command line that are not in a state.
func (s *services) warnUnserved(state []*nodestate.ServiceEndpoints) {
	for _, name := range s.names {
		if !slices.ContainsFunc(state, func(of *nodestate.ServiceEndpoints) bool {
			return of.Name == name && s.selects(of.Namespace+"/"+of.Name)
		}) {
			fmt.Fprintf(s.env.stderr, "warning: the proxy of node %s has no Service %s to serve\n", s.options.node, name)
		}
	}
}

// printJSON prints the whole state: one document, and with --watch one line for each state.
func (s *services) printJSON(state []*nodestate.ServiceEndpoints) error {
	document := struct {
		Node     string                        `json:"node"`
		Rev      uint64                        `json:"rev"`
		Services []*nodestate.ServiceEndpoints `json:"services"`
	}{s.options.node, s.rev, state}
	if !s.options.watch {
		return print.Encode(s.env.stdout, document)
	}
	var line bytes.Buffer
	if err := json.NewEncoder(&line).Encode(document); err != nil {
		return err
	}
	_, err := s.env.stdout.Write(checkup.EscapeJSON(line.Bytes()))
	return err
}
