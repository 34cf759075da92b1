// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

// TestNow: the time is that of the API server, whether it grants the request or not.
func TestNow(t *testing.T) {
	at := time.Date(2026, 11, 25, 12, 3, 10, 0, time.UTC)
	for _, tt := range []struct {
		name, date string
		code       int
		want       string // part of the error
	}{
		{"granted", at.Format(http.TimeFormat), http.StatusOK, ""},
		{"denied", at.Format(http.TimeFormat), http.StatusForbidden, ""},
		{"no time", "", http.StatusOK, "read the API server's time: parsing time"},
		{"not a time", "yesterday", http.StatusOK, "read the API server's time: parsing time"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/version" || r.Header.Get("Authorization") != "Bearer secret" {
					t.Errorf("request for %s with %q", r.URL, r.Header)
				}
				w.Header()["Date"] = []string{tt.date}
				w.WriteHeader(tt.code)
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, BearerToken: "secret"})
			if err != nil {
				t.Fatal(err)
			}
			got, err := Reader{Kubernetes: client}.Now(t.Context())
			switch {
			case tt.want == "" && (err != nil || !got.Equal(at)):
				t.Errorf("%s, %v; want %s", got, err, at)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	if at, err := (Reader{Kubernetes: fake.NewSimpleClientset()}).Now(t.Context()); err == nil {
		t.Errorf("a fake client: %s", at)
	}
}

// TestWrittenAt: the latest time counts, and what is no time does not. It is kept of what ServiceObjects lists.
func TestWrittenAt(t *testing.T) {
	at := func(second int) *metav1.Time {
		return &metav1.Time{Time: time.Date(2026, 11, 25, 12, 3, second, 0, time.UTC)}
	}
	const annotation = corev1.EndpointsLastChangeTriggerTime
	for _, tt := range []struct {
		name string
		meta metav1.ObjectMeta
		want time.Time
	}{
		{"none", metav1.ObjectMeta{CreationTimestamp: *at(1)}, time.Time{}},
		{"managed fields", metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Time: at(1)}, {Time: at(3)}, {}, {Time: at(2)}}}, at(3).Time},
		{"an annotation", metav1.ObjectMeta{Annotations: map[string]string{annotation: "2026-11-25T13:03:04+01:00"}}, at(4).Time},
		{"both", metav1.ObjectMeta{
			ManagedFields: []metav1.ManagedFieldsEntry{{Time: at(5)}}, Annotations: map[string]string{annotation: "2026-11-25T12:03:04Z"},
		}, at(5).Time},
		{"not a time", metav1.ObjectMeta{Annotations: map[string]string{annotation: "12:03"}}, time.Time{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := WrittenAt(tt.meta); !got.Equal(tt.want) || got.Location() != time.UTC {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if got := WrittenAt(identity(tt.meta)); !got.Equal(tt.want) {
				t.Errorf("what is kept of it: %s, want %s", got, tt.want)
			}
		})
	}
}
