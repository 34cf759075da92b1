// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// apiServer is as much of an API server as a service proxy needs: it lists and watches the objects of set, in protobuf.
type apiServer struct {
	tb      testing.TB
	encoder runtime.Encoder

	mu      sync.Mutex
	version int
	objects map[string]map[string]runtime.Object // by resource and name
	events  map[string][]event                   // by resource, in the order of their versions
	changed chan struct{}                        // closed at the next event
}

type event struct {
	version int
	name    string
	frame   []byte
}

// lists has the resources that exist. Those that are not set are empty.
var lists = map[string]func() runtime.Object{
	"nodes":          func() runtime.Object { return &corev1.NodeList{} },
	"services":       func() runtime.Object { return &corev1.ServiceList{} },
	"endpointslices": func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
	"servicecidrs":   func() runtime.Object { return &networkingv1.ServiceCIDRList{} },
}

func newAPIServer(tb testing.TB) *apiServer {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		tb.Fatal("no protobuf")
	}
	groups := schema.GroupVersions{corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion, networkingv1.SchemeGroupVersion}
	return &apiServer{tb: tb, encoder: scheme.Codecs.EncoderForVersion(info.Serializer, groups),
		objects: map[string]map[string]runtime.Object{}, events: map[string][]event{}, changed: make(chan struct{})}
}

// set adds or changes objects: watches get all of them at once.
func (a *apiServer) set(objects ...runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, object := range objects {
		object = object.DeepCopyObject()
		of, err := meta.Accessor(object)
		if err != nil {
			a.tb.Fatal(err)
		}
		resource := ""
		switch object.(type) {
		case *corev1.Node:
			resource = "nodes"
		case *corev1.Service:
			resource = "services"
		case *discoveryv1.EndpointSlice:
			resource = "endpointslices"
		}
		a.version++
		of.SetResourceVersion(strconv.Itoa(a.version))
		what := watch.Modified
		if a.objects[resource] == nil {
			a.objects[resource] = map[string]runtime.Object{}
		}
		if a.objects[resource][of.GetName()] == nil {
			what = watch.Added
		}
		a.objects[resource][of.GetName()] = object
		frame := metav1.WatchEvent{Type: string(what), Object: runtime.RawExtension{Raw: a.encode(object)}}
		body, err := frame.Marshal()
		if err != nil {
			a.tb.Fatal(err)
		}
		a.events[resource] = append(a.events[resource],
			event{a.version, of.GetName(), append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)})
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *apiServer) encode(object runtime.Object) []byte {
	text, err := runtime.Encode(a.encoder, object)
	if err != nil {
		a.tb.Error(err)
	}
	return text
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	dir, last := path.Split(r.URL.Path)
	query := r.URL.Query()
	only, named := strings.CutPrefix(query.Get("fieldSelector"), "metadata.name=")
	selects := func(name string) bool { return !named || name == only }
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	switch list := lists[last]; {
	case r.Method == http.MethodGet && list == nil && path.Base(dir) == "nodes":
		a.mu.Lock()
		object := a.objects["nodes"][last]
		a.mu.Unlock()
		if object == nil {
			refuse(w, metav1.StatusReasonNotFound, http.StatusNotFound)
			return
		}
		w.Write(a.encode(object))
	case r.Method != http.MethodGet || list == nil: // events, for example
		refuse(w, metav1.StatusReasonNotFound, http.StatusNotFound)
	case query.Get("sendInitialEvents") == "true": // clients list then
		refuse(w, metav1.StatusReasonInvalid, http.StatusUnprocessableEntity)
	case query.Get("watch") != "":
		since, err := strconv.Atoi(query.Get("resourceVersion"))
		if err != nil {
			refuse(w, metav1.StatusReasonInvalid, http.StatusUnprocessableEntity)
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		a.watch(w, r, last, since, selects)
	default:
		object := list()
		var items []runtime.Object
		a.mu.Lock()
		for name, item := range a.objects[last] {
			if selects(name) {
				items = append(items, item)
			}
		}
		version := strconv.Itoa(a.version)
		a.mu.Unlock()
		if err := meta.SetList(object, items); err != nil {
			a.tb.Error(err)
		}
		of, err := meta.ListAccessor(object)
		if err != nil {
			a.tb.Error(err)
			return
		}
		of.SetResourceVersion(version)
		w.Write(a.encode(object))
	}
}

func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string, since int, selects func(string) bool) {
	flusher := w.(http.Flusher)
	for next := 0; ; {
		a.mu.Lock()
		events, changed := a.events[resource][next:], a.changed
		a.mu.Unlock()
		next += len(events)
		for _, e := range events {
			if e.version > since && selects(e.name) {
				w.Write(e.frame)
			}
		}
		flusher.Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func refuse(w http.ResponseWriter, reason metav1.StatusReason, code int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code),
		Message: fmt.Sprintf("the benchmark's API server: %s", reason),
	}); err != nil {
		return // the client has gone
	}
}
