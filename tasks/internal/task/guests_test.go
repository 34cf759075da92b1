// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	kvcorev1 "kubevirt.io/client-go/kubevirt/typed/core/v1"
)

// TestConsoles: why a console cannot be opened is reported with its status, and nobody waits
// longer than wanted.
func TestConsoles(t *testing.T) {
	hang := make(chan struct{})
	asked := make(chan string, 2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		if strings.Contains(r.URL.Path, "slow") {
			<-hang
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	defer close(hang)
	connect := consoles(&rest.Config{Host: server.URL}, "ns")
	_, err := connect(t.Context(), "vm")
	var status *kvcorev1.AsyncSubresourceError
	if !errors.As(err, &status) || status.GetStatusCode() != http.StatusForbidden || !strings.Contains(err.Error(), "console of VM vm: ") {
		t.Errorf("%v, want that it is forbidden", err)
	}
	if path := <-asked; path != "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/console" {
		t.Errorf("asked for %s", path)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-asked
		cancel(errors.New("terminated"))
	}()
	if _, err := connect(ctx, "slow"); err == nil || !strings.Contains(err.Error(), "console of VM slow: terminated") {
		t.Errorf("%v, want that it was stopped", err)
	}
}
