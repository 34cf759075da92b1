// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
	"github.com/checkplan/checkplan/pkg/nodestate/client"
	"github.com/checkplan/checkplan/pkg/nodestate/nodestatetest"
)

// TestMessage: the API has each field of nodestate's messages, with its name, and no other; and each value arrives.
func TestMessage(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(500) {
		for _, s := range stateOf(t, nodestatetest.Generate(seed), nil) {
			compare(t, reflect.ValueOf(*s), Message(s).ProtoReflect(), seen)
		}
	}
	for _, m := range []protoreflect.Message{(&api.ServiceEndpoints{}).ProtoReflect(), (&api.Family{}).ProtoReflect(),
		(&api.Port{}).ProtoReflect(), (&api.Endpoint{}).ProtoReflect()} {
		for i := range m.Descriptor().Fields().Len() {
			if f := m.Descriptor().Fields().Get(i); !seen[string(f.FullName())] {
				t.Errorf("%s was never set", f.FullName())
			}
		}
	}
}

// compare compares a struct with a message, and notes which fields were set.
func compare(t *testing.T, have reflect.Value, m protoreflect.Message, seen map[string]bool) {
	t.Helper()
	if n := m.Descriptor().Fields().Len(); n != have.NumField() {
		t.Fatalf("%s has %d fields, want %d", m.Descriptor().FullName(), n, have.NumField())
	}
	for i := range have.NumField() {
		name := have.Type().Field(i).Name
		f := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		if f == nil {
			t.Fatalf("%s has no field %s", m.Descriptor().FullName(), name)
		}
		field, value := have.Field(i), m.Get(f)
		seen[string(f.FullName())] = seen[string(f.FullName())] || m.Has(f)
		switch {
		case f.IsList():
			list := value.List()
			if list.Len() != field.Len() {
				t.Fatalf("%s has %d elements, want %d", f.FullName(), list.Len(), field.Len())
			}
			for j := range list.Len() {
				if f.Message() != nil {
					compare(t, field.Index(j), list.Get(j).Message(), seen)
				} else if list.Get(j).String() != field.Index(j).String() {
					t.Errorf("%s: %v, want %v", f.FullName(), list.Get(j), field.Index(j))
				}
			}
		case f.Enum() != nil:
			word := string(f.Enum().Values().ByNumber(value.Enum()).Name())
			if strings.HasSuffix(word, "_UNSPECIFIED") {
				word = ""
			}
			if !strings.EqualFold(word, field.String()) {
				t.Errorf("%s: %s, want %s", f.FullName(), word, field)
			}
		default:
			if fmt.Sprint(value) != fmt.Sprint(field) {
				t.Errorf("%s: %v, want %v", f.FullName(), value, field)
			}
		}
	}
}

// stateOf is the state of a case, whose objects pass through a function if there is one.
func stateOf(t *testing.T, c nodestatetest.Case, through func(any) (any, error)) []*nodestate.ServiceEndpoints {
	t.Helper()
	cluster, err := nodestate.New(nodestate.Options{NodePortAddresses: c.NodePortAddresses})
	if err != nil {
		t.Fatal(err)
	}
	put := func(o apiruntime.Object) any {
		if through == nil {
			return o
		}
		out, err := through(o.DeepCopyObject())
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if c.Node != nil {
		cluster.SetNode(put(c.Node).(*corev1.Node))
	}
	for i := range c.Services {
		cluster.SetService(put(&c.Services[i]).(*corev1.Service))
	}
	for i := range c.Slices {
		cluster.SetSlice(put(&c.Slices[i]).(*discoveryv1.EndpointSlice))
	}
	return cluster.State(c.NodeName)
}

// TestTrim: what is left out of objects changes no state.
func TestTrim(t *testing.T) {
	for seed := range uint64(500) {
		c := nodestatetest.Generate(seed)
		want, have := stateOf(t, c, nil), stateOf(t, c, trim)
		if !reflect.DeepEqual(want, have) {
			t.Fatalf("seed %d: trimmed objects have another state:\n%v\nwant\n%v", seed, have, want)
		}
	}
}

// BenchmarkServe is a server of 10,000 Services with 100,000 endpoints, and one client on a Unix socket.
//
//   - start: from lists to the first state, with what the server holds afterwards
//   - change: from an event to the whole new state at the client, both in this process
//   - store: the same, and what is different
func BenchmarkServe(b *testing.B) {
	f := nodestatetest.NewFleet(10_000, 100_000, 5_000)
	node := f.Nodes[0].Name
	fill := func(b *testing.B) *Server {
		b.Helper()
		s, err := New(Options{Node: node, Client: fake.NewSimpleClientset()})
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range s.resources {
			var list []any
			switch r.name {
			case "services":
				for _, o := range f.Services {
					list = append(list, o)
				}
			case "endpointslices":
				for _, o := range f.Slices {
					list = append(list, o)
				}
			case "nodes":
				list = append(list, f.Nodes[0])
			}
			if err := r.Replace(list, ""); err != nil {
				b.Fatal(err)
			}
		}
		return s
	}
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	b.Run("start", func(b *testing.B) {
		b.ReportAllocs()
		before := heap()
		var s *Server
		for b.Loop() {
			s = fill(b)
		}
		b.ReportMetric((heap()-before)/(1<<20), "MiB-held")
		runtime.KeepAlive(s)
	})

	s := fill(b)
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	l, err := net.Listen("unix", b.TempDir()+"/s")
	if err != nil {
		b.Fatal(err)
	}
	context.AfterFunc(ctx, func() { close(s.stopped) })
	go func() {
		if err := s.Serve(l); err != nil {
			b.Error(err)
		}
	}()
	change := func(b *testing.B, each func([]*api.ServiceEndpoints) error) {
		b.ReportAllocs()
		c := &client.EndpointsClient{Target: "unix://" + l.Addr().String()}
		defer c.Cancel()
		items, err := c.Fetch(b.Context())
		if err != nil || len(items) != len(f.Services) {
			b.Fatalf("%d Services (%v)", len(items), err)
		}
		n := 0
		for b.Loop() {
			slice := f.Slices[n/2%len(f.Slices)].DeepCopy()
			slice.Endpoints[0].Conditions.Ready = new(n%2 == 1)
			n++
			rev := s.published().rev
			if err := s.resources[1].Update(slice); err != nil {
				b.Fatal(err)
			}
			if s.published().rev == rev {
				continue // an endpoint that this node does not use
			}
			if items, err = c.Fetch(b.Context()); err == nil {
				err = each(items)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("change", func(b *testing.B) { change(b, func([]*api.ServiceEndpoints) error { return nil }) })
	b.Run("store", func(b *testing.B) {
		var store client.Store
		calls := 0
		change(b, func(items []*api.ServiceEndpoints) error {
			if changes := store.Set(items); calls > 0 && len(changes) == 0 {
				return io.ErrUnexpectedEOF
			}
			calls++
			return nil
		})
	})
}
