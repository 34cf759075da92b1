// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
	"github.com/checkplan/checkplan/pkg/nodestate/client"
)

// TestNodeState: the DaemonSet of catalog/node-state serves to a client on each node what pkg/nodestate computes from
// the cluster. A server that is killed comes back, and its client gets what has changed meanwhile.
func TestNodeState(t *testing.T) {
	parallel(t)
	const namespace = "checkplan-node-state"
	sandbox(t, "kubectl", "apply", "-k", "../../catalog/node-state")
	t.Cleanup(func() { sandbox(t, "kubectl", "delete", "--wait=false", "-k", "../../catalog/node-state") })
	sandbox(t, "kubectl", "rollout", "status", "-n", namespace, "daemonset/node-state", "--timeout", "2m")

	nodes, err := cluster(t).Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		c := nodeClient(t, n.Name, "/run/checkplan/node-state.sock")
		// Other tests change Services all the time.
		within(t, 30*time.Second, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			c.Rev = 0 // the present one
			items, err := c.Fetch(ctx)
			if err != nil {
				return err
			}
			if diff := cmp.Diff(computed(t, n.Name), received(t, items), cmpopts.EquateEmpty()); diff != "" {
				return fmt.Errorf("the state of %s (-computed +received):\n%s", n.Name, diff)
			}
			return nil
		})
	}

	node := nodes.Items[0].Name
	c := nodeClient(t, node, "/run/checkplan/node-state.sock")
	type got struct {
		items    []*api.ServiceEndpoints
		instance uint64
	}
	states := make(chan got)
	go func() {
		for items := range c.States(t.Context()) {
			select {
			case states <- got{items, c.InstanceID}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	before := <-states
	pods, err := cluster(t).Kube.CoreV1().Pods(namespace).List(t.Context(),
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods on %s: %v", len(pods.Items), node, err)
	}
	pids := processesOf(t, func(words []string, mounts string) bool {
		return words[0] == "/ko-app/node-state" && strings.Contains(mounts, "/pods/"+string(pods.Items[0].UID)+"/")
	})
	if len(pids) != 1 {
		t.Fatalf("%d processes of the server of %s, want 1", len(pids), node)
	}
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	made, err := cluster(t).Kube.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.After(time.Minute)
	for {
		select {
		case now := <-states:
			i := slices.IndexFunc(now.items, func(s *api.ServiceEndpoints) bool {
				return s.Namespace == namespace && s.Name == "new"
			})
			if i < 0 {
				continue
			}
			if f := now.items[i].Families[0]; f.ClusterIP != made.Spec.ClusterIP || f.Ports[0].Internal != api.Action_REJECT {
				t.Errorf("the new Service is %v", now.items[i])
			}
			if now.instance == before.instance {
				t.Error("a server that was killed has the instance of its predecessor")
			}
			return
		case <-deadline:
			t.Fatal("a minute after the server was killed, its client has no newer state")
		}
	}
}

// nodeClient returns a client at a socket of a node, which is in the file system of the node's first process.
func nodeClient(t *testing.T, node, socket string) *client.EndpointsClient {
	t.Helper()
	c := &client.EndpointsClient{
		Target:     fmt.Sprintf("unix:///proc/%d/root%s", firstProcess(t, node), socket),
		ErrorDelay: 200 * time.Millisecond,
	}
	t.Cleanup(c.Cancel)
	return c
}

// computed is the state of a node from the objects of the API server.
func computed(t *testing.T, node string) []*nodestate.ServiceEndpoints {
	t.Helper()
	ctx, kube := t.Context(), cluster(t).Kube
	state, err := nodestate.New(nodestate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	services, err := kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slices, err := kube.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes.Items {
		state.SetNode(&nodes.Items[i])
	}
	for i := range services.Items {
		state.SetService(&services.Items[i])
	}
	for i := range slices.Items {
		state.SetSlice(&slices.Items[i])
	}
	return state.State(node)
}

// received is a state that a client got, in the types of pkg/nodestate: the API has fields of the same names.
func received(t *testing.T, items []*api.ServiceEndpoints) []*nodestate.ServiceEndpoints {
	t.Helper()
	var state []*nodestate.ServiceEndpoints
	for _, item := range items {
		var s nodestate.ServiceEndpoints
		text, err := protojson.Marshal(item)
		if err == nil {
			err = json.Unmarshal(text, &s) // whatever the case of the names
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range s.Families {
			for j := range s.Families[i].Ports {
				port := &s.Families[i].Ports[j]
				for _, action := range []*nodestate.Action{&port.Internal, &port.External, &port.Inside} {
					*action = nodestate.Action(strings.ToLower(string(*action)))
				}
			}
		}
		state = append(state, &s)
	}
	return state
}
