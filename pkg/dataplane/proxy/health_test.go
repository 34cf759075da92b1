// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

// listeners open ports of loopback instead of those that were asked for.
type listeners struct {
	t       *testing.T
	at      map[string]string // the address that was asked for: the one that was opened
	refused string
}

func (l *listeners) listen(network, address string) (net.Listener, error) {
	l.t.Helper()
	if address == l.refused {
		return nil, errors.New("address already in use")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.t.Fatal(err)
	}
	l.at[network+" "+address] = listener.Addr().String()
	return listener, nil
}

func (l *listeners) get(address string) string {
	l.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + l.at[address] + "/healthz")
	if err != nil {
		return "closed"
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return fmt.Sprint(response.StatusCode, " ", response.Header.Get("X-Load-Balancing-Endpoint-Weight"), " ", string(body))
}

func checked(number, local int32, prefixes ...string) func(*api.ServiceEndpoints) {
	return func(s *api.ServiceEndpoints) {
		s.HealthCheckNodePort, s.Families[0].HealthyEndpoints, s.Families[0].NodePortPrefixes = number, local, prefixes
	}
}

// TestHealthPorts: what health checks of load balancers are answered, and where.
func TestHealthPorts(t *testing.T) {
	l := &listeners{t: t, at: map[string]string{}}
	h := &proxy.HealthPorts{Listen: l.listen}
	defer h.Close()
	node := addresses("192.0.2.1", "192.0.2.2", "198.51.100.7", "2001:db8::1")
	set := func(items ...*api.ServiceEndpoints) error { return h.Set(proxy.Check(items), node) }
	is := func(address, want string) {
		t.Helper()
		if diff := cmp.Diff(want, l.get(address)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", address, diff)
		}
	}
	answer := func(status, local int, healthy bool) string {
		return fmt.Sprintf(`%d %d {"service":{"namespace":"shop","name":"web"},"localEndpoints":%d,"serviceProxyHealthy":%v}`+"\n", status, local, local, healthy)
	}
	if err := set(service("web", checked(32000, 2, "0.0.0.0/0"))); err != nil {
		t.Fatal(err)
	}
	is("tcp4 0.0.0.0:32000", answer(503, 2, false)) // rules are not written yet
	h.SetHealthy(true)
	is("tcp4 0.0.0.0:32000", answer(200, 2, true))
	if err := set(service("web", checked(32000, 0, "0.0.0.0/0"))); err != nil {
		t.Fatal(err)
	}
	is("tcp4 0.0.0.0:32000", answer(503, 0, true))
	if err := set(service("web", checked(32000, 1, "192.0.2.0/24"))); err != nil {
		t.Fatal(err)
	}
	is("tcp4 0.0.0.0:32000", "closed")
	is("tcp4 192.0.2.1:32000", answer(200, 1, true))
	is("tcp4 192.0.2.2:32000", answer(200, 1, true))
	l.refused = "192.0.2.2:32001"
	if err := set(service("web", checked(32001, 1, "192.0.2.0/24"))); err == nil || err.Error() != "health check node port of shop/web: address already in use" {
		t.Errorf("error %v", err)
	}
	is("tcp4 192.0.2.1:32001", answer(200, 1, true))
	is("tcp4 192.0.2.1:32000", "closed")
	l.refused = ""
	if err := set(service("web", checked(32001, 1, "192.0.2.0/24"))); err != nil {
		t.Errorf("the second attempt: %v", err)
	}
	is("tcp4 192.0.2.2:32001", answer(200, 1, true))
	six := service("web", checked(32001, 1, "::/0"), func(s *api.ServiceEndpoints) {
		s.Families[0] = &api.Family{Family: api.IPFamily_IPv6, ClusterIP: "fd00::1", HealthyEndpoints: 1, NodePortPrefixes: []string{"::/0"}}
	})
	if err := set(six); err != nil {
		t.Fatal(err)
	}
	is("tcp6 [::]:32001", answer(200, 1, true))
	if err := set(); err != nil {
		t.Fatal(err)
	}
	for _, address := range slices.Sorted(maps.Keys(l.at)) {
		is(address, "closed")
	}
}

// TestHealthPortsRefused: ports that cannot be opened are always listed in the same order: the log then has them
// once.
func TestHealthPortsRefused(t *testing.T) {
	h := &proxy.HealthPorts{Listen: func(_, address string) (net.Listener, error) {
		return nil, fmt.Errorf("%s: address already in use", address)
	}}
	var items []*api.ServiceEndpoints
	for port := range int32(8) {
		items = append(items, service(fmt.Sprint("web-", port), checked(32000+port, 1, "0.0.0.0/0")))
	}
	first := fmt.Sprint(h.Set(proxy.Check(items), nil))
	for range 5 {
		if again := fmt.Sprint(h.Set(proxy.Check(items), nil)); again != first {
			t.Fatalf("%s\nafter\n%s", again, first)
		}
	}
}
