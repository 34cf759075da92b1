// SPDX-License-Identifier: Apache-2.0

package nodestatetest

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fleet is a large cluster for benchmarks: IPv4, three zones, one slice for each Service. Of ten Services, two have
// hints of zones (PreferSameZone), one has node ports, one a load balancer with externalTrafficPolicy Local, one has
// internalTrafficPolicy Local, and five are plain.
type Fleet struct {
	Nodes    []*corev1.Node
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice // of the Service with the same index
	random   *rand.Rand
}

// NewFleet makes a cluster with that many Services, endpoints and nodes, always the same.
func NewFleet(services, endpoints, nodes int) *Fleet {
	f := &Fleet{random: rand.New(rand.NewPCG(2094, 14))}
	for i := range nodes {
		f.Nodes = append(f.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%04d", i),
				Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3)}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
				Address: fmt.Sprintf("192.168.%d.%d", i/250, i%250+1)}}},
		})
	}
	left := endpoints
	for i := range services {
		f.Services = append(f.Services, f.service(i))
		size := 1 + i%(2*endpoints/services-1) // on average, endpoints/services
		if i == services-1 || size > left {
			size = left
		}
		left -= size
		f.Slices = append(f.Slices, f.slice(i, size))
	}
	return f
}

func (f *Fleet) service(i int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: fmt.Sprintf("service-%05d", i)}}
	ip := fmt.Sprintf("10.%d.%d.%d", 96+i/60000, i/250%240, i%250+1)
	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, SessionAffinity: corev1.ServiceAffinityNone,
		Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}}
	switch i % 10 {
	case 0, 1:
		s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameZone)
	case 2:
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, int32(30000+i/10)
	case 3:
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeLoadBalancer, int32(31100+i/10)
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, int32(33000+i/10)
		address := fmt.Sprintf("203.%d.%d.%d", i/60000, i/250, i%250+1)
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	case 4:
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	return s
}

func (f *Fleet) slice(i, size int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: f.Services[i].Name + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: f.Services[i].Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))},
		},
	}
	for range size {
		s.Endpoints = append(s.Endpoints, f.endpoint(i))
	}
	return s
}

// endpoint is a new, ready pod of a Service on a random node.
func (f *Fleet) endpoint(i int) discoveryv1.Endpoint {
	node := f.random.IntN(len(f.Nodes))
	e := discoveryv1.Endpoint{
		Addresses: []string{fmt.Sprintf("10.%d.%d.%d", node/250, node%250, 1+f.random.IntN(254))},
		NodeName:  &f.Nodes[node].Name, Zone: new(f.Nodes[node].Labels[corev1.LabelTopologyZone]),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
	}
	if f.Services[i].Spec.TrafficDistribution != nil {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: *e.Zone}}}
	}
	return e
}

// Event is one event of the API server: one field but Second is set.
type Event struct {
	Second  int // of the day
	Node    *corev1.Node
	Service *corev1.Service
	Slice   *discoveryv1.EndpointSlice
}

// The day's rates. Rollouts, restarts and annotations are assumptions; a node's status is what kubelets do.
const (
	// heartbeat is how often a kubelet writes the status of a Node that did not change: nodeStatusReportFrequency, 5
	// minutes by default.
	heartbeat = 300
	// rollouts: one Service of five replaces all of its pods, one after another, in a day.
	rollouts = 5
	// restarts: one pod of a hundred is not ready for some seconds, in a day.
	restarts = 100
	// annotations: one Service of ten has an annotation changed by some controller, in a day.
	annotations = 10
)

// Day yields the events of a generated day, in the order of time. The events change the fleet. A pod is replaced in
// four events of its slice, as by a rolling update: the new pod, not ready; it is ready; the old one is being deleted;
// it is gone.
func (f *Fleet) Day() iter.Seq[Event] {
	type step struct {
		second, service int
		do              func(*discoveryv1.EndpointSlice) // nil: an annotation of the Service
	}
	var steps []step
	const day = int(24 * time.Hour / time.Second)
	for i := range f.Services {
		if f.random.IntN(rollouts) == 0 {
			at := f.random.IntN(day)
			for range f.Slices[i].Endpoints {
				steps = append(steps,
					step{at, i, func(s *discoveryv1.EndpointSlice) {
						e := f.endpoint(i)
						e.Conditions.Ready, e.Conditions.Serving = new(false), new(false)
						s.Endpoints = append(s.Endpoints, e)
					}},
					step{at + 5, i, func(s *discoveryv1.EndpointSlice) { s.Endpoints[len(s.Endpoints)-1].Conditions = ready() }},
					step{at + 6, i, func(s *discoveryv1.EndpointSlice) {
						s.Endpoints[0].Conditions.Ready, s.Endpoints[0].Conditions.Terminating = new(false), new(true)
					}},
					step{at + 36, i, func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[1:] }})
				at += 37
			}
			continue // one thing happens to a Service in a day
		}
		for pod := range f.Slices[i].Endpoints {
			if f.random.IntN(restarts) == 0 {
				at := f.random.IntN(day)
				steps = append(steps,
					step{at, i, func(s *discoveryv1.EndpointSlice) {
						s.Endpoints[pod].Conditions.Ready, s.Endpoints[pod].Conditions.Serving = new(false), new(false)
					}},
					step{at + 20, i, func(s *discoveryv1.EndpointSlice) { s.Endpoints[pod].Conditions = ready() }})
			}
		}
		if f.random.IntN(annotations) == 0 {
			steps = append(steps, step{f.random.IntN(day), i, nil})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return a.second - b.second })
	return func(yield func(Event) bool) {
		for second := range day + 3600 { // a rollout that began in the day ends
			for i := second % heartbeat; i < len(f.Nodes) && second < day; i += heartbeat {
				n := f.Nodes[i].DeepCopy()
				n.ResourceVersion = fmt.Sprint(second)
				if !yield(Event{Second: second, Node: n}) {
					return
				}
			}
			for ; len(steps) > 0 && steps[0].second == second; steps = steps[1:] {
				e := Event{Second: second}
				if i := steps[0].service; steps[0].do == nil {
					e.Service = f.Services[i].DeepCopy()
					e.Service.Annotations = map[string]string{"changed": fmt.Sprint(second)}
				} else {
					f.Slices[i] = f.Slices[i].DeepCopy()
					steps[0].do(f.Slices[i])
					e.Slice = f.Slices[i]
				}
				if !yield(e) {
					return
				}
			}
		}
	}
}

func ready() discoveryv1.EndpointConditions {
	return discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
}
