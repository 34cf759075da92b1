// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestStreamedLists: an API server of Kubernetes 1.34 and newer sends a list as the beginning of a watch. The server
// takes it over when it is whole. Each request has the selectors that leave out what no state depends on: with AnyNode,
// that is no Node.
func TestStreamedLists(t *testing.T) {
	t.Run("own node", func(t *testing.T) { streamedLists(t, false, "metadata.name=worker-1 true;") })
	t.Run("any node", func(t *testing.T) { streamedLists(t, true, " true;") })
}

func streamedLists(t *testing.T, anyNode bool, nodes string) {
	kinds := map[string]string{"services": "Service", "endpointslices": "EndpointSlice", "nodes": "Node"}
	objects := map[string][]metav1.Object{"services": {service("db"), service("web")},
		"endpointslices": {slice("web", "10.0.0.1")}, "nodes": {node()}}
	var (
		mu       sync.Mutex
		requests = map[string]string{}
		half     = make(chan struct{})
		release  = make(chan struct{})
	)
	apiServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resource, q := path.Base(r.URL.Path), r.URL.Query()
		mu.Lock()
		requests[resource] += fmt.Sprintf("%s%s %s;", q.Get("labelSelector"), q.Get("fieldSelector"), q.Get("sendInitialEvents"))
		mu.Unlock()
		version := map[string]string{"endpointslices": "discovery.k8s.io/v1"}[resource]
		if version == "" {
			version = "v1"
		}
		w.Header().Set("Content-Type", "application/json")
		send := func(event string, object metav1.Object) {
			text, err := json.Marshal(object)
			if err != nil {
				t.Error(err)
			}
			head := fmt.Sprintf(`{"type":%q,"object":{"apiVersion":%q,"kind":%q,`, event, version, kinds[resource])
			fmt.Fprintf(w, "%s%s}\n", head, strings.TrimPrefix(string(text), "{"))
			http.NewResponseController(w).Flush()
		}
		for i, object := range objects[resource] {
			if resource == "services" && i > 0 {
				close(half)
				<-release
			}
			object.SetResourceVersion("5")
			send("ADDED", object)
		}
		end := node()
		end.Name, end.ResourceVersion, end.Annotations = "", "9", map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		send("BOOKMARK", end)
		<-r.Context().Done()
	}))
	defer apiServer.Close()
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: apiServer.URL})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Node: nodeName, AnyNode: anyNode, Client: kube, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { s.Run(ctx) })
	l := &lab{T: t, Server: s}
	<-half
	l.until("the others are read", func() bool { return len(s.missing()) == 1 })
	if missing := s.missing(); missing[0] != "services" || s.published().rev != 0 {
		t.Errorf("missing %q, revision %d, want services and no state", missing, s.published().rev)
	}
	if s.Age() == 0 {
		t.Error("a list that has not ended counts as followed")
	}
	close(release)
	l.until("a state", func() bool { return s.published().rev == 1 })
	if now := s.published(); len(now.items) != 2 || now.endpoints() != 1 {
		t.Errorf("%d Services with %d endpoints, want 2 with 1", len(now.items), now.endpoints())
	}
	l.until("everything is followed", func() bool { return s.Age() == 0 })
	mu.Lock()
	defer mu.Unlock()
	selector := "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless true;"
	for resource, want := range map[string]string{"services": selector, "endpointslices": selector, "nodes": nodes} {
		if requests[resource] != want {
			t.Errorf("requests of %s: %q, want %q", resource, requests[resource], want)
		}
	}
}
