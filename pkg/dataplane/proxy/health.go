// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// Limits of a health check port, which anybody who reaches the node can connect to.
const (
	healthTimeout     = 5 * time.Second
	healthHeader      = 4 << 10
	healthConnections = 64 // of each port
)

// HealthPorts answers on health check node ports: 200 if the node has ready endpoints of the Service, else 503. Load
// balancers ask.
type HealthPorts struct {
	// Listen is net.Listen; tests have another one.
	Listen func(network, address string) (net.Listener, error)
	Log    *slog.Logger

	mu      sync.Mutex
	healthy bool
	open    map[healthPlace]*healthPort
}

// healthPlace is one listener. Address is invalid for all addresses of the family.
type healthPlace struct {
	family  dataplane.Family
	address netip.Addr
	number  uint16
}

func (p healthPlace) compare(q healthPlace) int {
	return cmp.Or(cmp.Compare(p.family, q.family), p.address.Compare(q.address), cmp.Compare(p.number, q.number))
}

type healthPort struct {
	state  Health
	server *http.Server
}

// Set opens, closes and changes ports until they are the state's. Node has the node's addresses. Ports that cannot be
// opened are in the error; all others are served, and the next call tries again.
func (h *HealthPorts) Set(state *State, node []netip.Addr) error {
	want := map[healthPlace]Health{}
	for _, health := range state.Health {
		at := state.NodePorts[health.Family]
		if at.All {
			want[healthPlace{health.Family, netip.Addr{}, health.Number}] = health
			continue
		}
		for _, a := range at.Addresses(node) {
			if a.Is4() == (health.Family == dataplane.IPv4) {
				want[healthPlace{health.Family, a, health.Number}] = health
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		h.open = map[healthPlace]*healthPort{}
	}
	for place, port := range h.open {
		if _, ok := want[place]; !ok {
			port.server.Close()
			delete(h.open, place)
		}
	}
	var errs []error
	for _, place := range slices.SortedFunc(maps.Keys(want), healthPlace.compare) { // so are the errors: see Proxy.say
		health := want[place]
		if port := h.open[place]; port != nil {
			port.state = health
			continue
		}
		if err := h.listen(place, health); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (h *HealthPorts) listen(place healthPlace, state Health) error {
	network, host := "tcp4", "0.0.0.0"
	if place.family == dataplane.IPv6 {
		network, host = "tcp6", "::"
	}
	if place.address.IsValid() {
		host = place.address.String()
	}
	listen := h.Listen
	if listen == nil {
		listen = net.Listen
	}
	l, err := listen(network, net.JoinHostPort(host, strconv.Itoa(int(place.number))))
	if err != nil {
		return fmt.Errorf("health check node port of %s/%s: %w", state.Namespace, state.Service, err)
	}
	port := &healthPort{state: state}
	port.server = &http.Server{
		Handler:     http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.answer(w, port) }),
		ReadTimeout: healthTimeout, WriteTimeout: healthTimeout, MaxHeaderBytes: healthHeader,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // of clients' mistakes
	}
	port.server.SetKeepAlivesEnabled(false) // no client keeps one of the connections
	h.open[place] = port
	go func() { _ = port.server.Serve(netutil.LimitListener(l, healthConnections)) }() // until Close
	return nil
}

// SetHealthy says whether the rules are those of the state. If not, each port answers 503.
func (h *HealthPorts) SetHealthy(healthy bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.healthy = healthy
}

// Close closes all ports.
func (h *HealthPorts) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for place, port := range h.open {
		port.server.Close()
		delete(h.open, place)
	}
}

// answer is kube-proxy's: some load balancers read more of it than the status.
func (h *HealthPorts) answer(w http.ResponseWriter, port *healthPort) {
	h.mu.Lock()
	state, healthy := port.state, h.healthy
	h.mu.Unlock()
	var body struct {
		Service struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"service"`
		LocalEndpoints      int32 `json:"localEndpoints"`
		ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
	}
	body.Service.Namespace, body.Service.Name = state.Namespace, state.Service
	body.LocalEndpoints, body.ServiceProxyHealthy = state.Local, healthy
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(int(state.Local)))
	if state.Local == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // the client is gone
}
