// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/checkplan/checkplan/pkg/nodestate/api"
	"github.com/checkplan/checkplan/pkg/nodestate/client"
)

// random is a state of up to three Services with names, families, ports and endpoints from small sets. Cluster IPs
// are unique in a state, and are often those that another Service had.
func random(r *rand.Rand) []*api.ServiceEndpoints {
	some := func(of ...string) []string {
		r.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
		of = of[:r.IntN(len(of)+1)]
		slices.Sort(of)
		return of
	}
	var state []*api.ServiceEndpoints
	ips := r.Perm(4)
	for i, name := range some("a", "b", "c") {
		s := &api.ServiceEndpoints{Namespace: "ns", Name: name, AffinitySeconds: r.Int32N(2)}
		for _, family := range some("1", "2") {
			f := &api.Family{Family: api.IPFamily(family[0] - '0'), ClusterIP: fmt.Sprint(family, "-", ips[i])}
			for _, port := range some("x", "y") {
				p := &api.Port{Name: port, Protocol: api.Protocol_TCP, Port: 80 + r.Int32N(2)}
				for _, address := range some("10.0.0.1", "10.0.0.2", "10.0.0.3") {
					p.Endpoints = append(p.Endpoints, &api.Endpoint{Address: address, Port: 8080, Local: r.IntN(2) == 0})
				}
				for _, address := range some("10.0.0.4") {
					p.Established = append(p.Established, &api.Endpoint{Address: address, Port: 8080})
				}
				f.Ports = append(f.Ports, p)
			}
			s.Families = append(s.Families, f)
		}
		state = append(state, s)
	}
	return state
}

// model is what a proxy that follows changes has: the objects of each level by their keys, without what is below them.
type model map[string]proto.Message

func keys(c client.Change) (parent, key string, object proto.Message) {
	service := c.Service.Namespace + "/" + c.Service.Name
	if c.Port == nil {
		s := proto.CloneOf(c.Service)
		for _, f := range s.Families {
			f.Ports = nil
		}
		return "", service, s
	}
	port := fmt.Sprint(service, " ", c.Family.Family, " ", c.Port.Name, c.Port.Protocol)
	if c.Endpoint == nil {
		p := proto.CloneOf(c.Port)
		p.Endpoints = nil
		return service, port, p
	}
	return port, fmt.Sprint(port, " ", c.Endpoint.Address, " ", c.Endpoint.Port), c.Endpoint
}

// apply applies a change. It fails if the change is not possible, or leaves something without what it belongs to.
func (m model) apply(c client.Change) error {
	parent, key, object := keys(c)
	switch have := m[key]; {
	case (c.Op == client.Create) != (have == nil):
		return fmt.Errorf("%s exists: %t", key, have != nil)
	case c.Op == client.Update && proto.Equal(have, object):
		return fmt.Errorf("%s is the same", key)
	case c.Op == client.Delete:
		for other := range m {
			if strings.HasPrefix(other, key+" ") {
				return fmt.Errorf("%s remains", other)
			}
		}
		delete(m, key)
		return nil
	case parent != "" && m[parent] == nil:
		return fmt.Errorf("%s does not exist", parent)
	}
	if c.Port != nil && c.Endpoint == nil {
		service, _ := m[parent].(*api.ServiceEndpoints)
		if !slices.ContainsFunc(service.Families, func(f *api.Family) bool { return f.Family == c.Family.Family }) {
			return fmt.Errorf("%s has no %s", parent, c.Family.Family)
		}
	}
	m[key] = object
	return nil
}

func of(state []*api.ServiceEndpoints) model {
	m := model{}
	put := func(c client.Change) {
		_, key, object := keys(c)
		m[key] = object
	}
	for _, s := range state {
		put(client.Change{Service: s})
		for _, f := range s.Families {
			for _, p := range f.Ports {
				put(client.Change{Service: s, Family: f, Port: p})
				for _, e := range p.Endpoints {
					put(client.Change{Service: s, Family: f, Port: p, Endpoint: e})
				}
			}
		}
	}
	return m
}

// TestStore: changes lead from each state to the next. In between, every endpoint has its port, every port its Service
// and family; and a port that has endpoints before and after has one at all times.
func TestStore(t *testing.T) {
	r := rand.New(rand.NewPCG(2094, 15))
	var store client.Store
	m := model{}
	for range 2000 {
		state := random(r)
		before, after := maps.Clone(m), of(state)
		changes := store.Set(state)
		for i, c := range changes {
			if err := m.apply(c); err != nil {
				t.Fatalf("change %d of %v: %v", i, changes, err)
			}
			for key, object := range m {
				_, is := object.(*api.Port)
				if is && before.endpoints(key) && after.endpoints(key) && !m.endpoints(key) {
					t.Fatalf("change %d of %v: %s has no endpoint in between", i, changes, key)
				}
			}
			if c.Op == client.Create && c.Port == nil { // it may need the address of one that goes
				for key, object := range m {
					if _, is := object.(*api.ServiceEndpoints); is && after[key] == nil {
						t.Fatalf("change %d of %v: %s is created before %s goes", i, changes, c.Service.Name, key)
					}
				}
			}
		}
		if !maps.EqualFunc(m, after, func(a, b proto.Message) bool { return proto.Equal(a, b) }) {
			t.Fatalf("changes %v lead to %v, want %v", changes, m, after)
		}
		if more := store.Set(state); len(more) > 0 {
			t.Fatalf("the same state again: %v", more)
		}
	}
}

func (m model) endpoints(port string) bool {
	for key := range m {
		if strings.HasPrefix(key, port+" ") {
			return true
		}
	}
	return false
}

// TestStoreFields: a change of any field of any message is a change.
func TestStoreFields(t *testing.T) {
	full := func() *api.ServiceEndpoints { return service("web", "10.0.0.1:8080") }
	levels := map[string]func(*api.ServiceEndpoints) proto.Message{
		"ServiceEndpoints": func(s *api.ServiceEndpoints) proto.Message { return s },
		"Family":           func(s *api.ServiceEndpoints) proto.Message { return s.Families[0] },
		"Port":             func(s *api.ServiceEndpoints) proto.Message { return s.Families[0].Ports[0] },
		"Endpoint":         func(s *api.ServiceEndpoints) proto.Message { return s.Families[0].Ports[0].Endpoints[0] },
	}
	for name, level := range levels {
		fields := level(full()).ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			t.Run(name+"/"+string(field.Name()), func(t *testing.T) {
				var store client.Store
				store.Set([]*api.ServiceEndpoints{full()})
				changed := full()
				set(level(changed).ProtoReflect(), field)
				changes := store.Set([]*api.ServiceEndpoints{changed})
				if len(changes) == 0 {
					t.Error("not noticed")
				}
			})
		}
	}
}

// set gives a field another value.
func set(m protoreflect.Message, field protoreflect.FieldDescriptor) {
	switch {
	case field.IsList() && field.Kind() == protoreflect.MessageKind && m.Has(field):
		m.Clear(field)
	case field.IsList() && field.Kind() == protoreflect.MessageKind:
		m.Mutable(field).List().AppendMutable()
	case field.IsList():
		m.Mutable(field).List().Append(protoreflect.ValueOfString("192.0.2.1"))
	case field.Kind() == protoreflect.EnumKind:
		m.Set(field, protoreflect.ValueOfEnum(m.Get(field).Enum()+1))
	case field.Kind() == protoreflect.BoolKind:
		m.Set(field, protoreflect.ValueOfBool(!m.Get(field).Bool()))
	case field.Kind() == protoreflect.Int32Kind:
		m.Set(field, protoreflect.ValueOfInt32(int32(m.Get(field).Int())+1))
	case field.Kind() == protoreflect.StringKind:
		m.Set(field, protoreflect.ValueOfString(m.Get(field).String()+"1"))
	default:
		panic(field.FullName())
	}
}
