// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/userspace"
)

// proxyAddresses returns the node's addresses.
type proxyAddresses func() ([]netip.Addr, error)

// handler serves /metrics, /livez (200 while the process answers) and /readyz (200 if the rules are those of the newest
// state).
func handler(p *proxy.Proxy, mode dataplane.Mode, counts func() userspace.Counts) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics(p, counts), promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := p.Status()
		if s.Written.IsZero() {
			w.WriteHeader(http.StatusServiceUnavailable)
			why := "they are being written"
			if s.States == 0 {
				why = "no state arrived yet"
			}
			fmt.Fprintf(w, "not ready: the rules of the newest state are not written: %s\n", cmp.Or(s.Error, why))
			return
		}
		fmt.Fprintf(w, "ok: %s\n", summary(s, mode))
	})
	return mux
}

// counts returns what a mode counts of its connections; nil: the kernel has them.
func counts(w writer) func() userspace.Counts {
	if s, ok := w.(*userspace.Server); ok {
		return s.Counts
	}
	return nil
}

// metrics is what Prometheus can read.
func metrics(p *proxy.Proxy, counts func() userspace.Counts) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, m := range []struct {
		name, help string
		value      func(proxy.Status) float64
	}{
		{"states_total", "States that arrived.", func(s proxy.Status) float64 { return float64(s.States) }},
		{"writes_total", "How often the rules were made those of a state.", func(s proxy.Status) float64 { return float64(s.Writes) }},
		{"write_failures_total", "Attempts to write rules that failed.", func(s proxy.Status) float64 { return float64(s.Failures) }},
		{"rewrites_total", "How often the rules were found removed by somebody, and written again.",
			func(s proxy.Status) float64 { return float64(s.Rewritten) }},
		{"udp_connections_forgotten_total", "UDP connections removed from conntrack, because their endpoint ended or they had none.",
			func(s proxy.Status) float64 { return float64(s.Forgotten) }},
	} {
		r.MustRegister(prometheus.NewCounterFunc(
			prometheus.CounterOpts{Name: "checkplan_service_proxy_" + m.name, Help: m.help},
			func() float64 { return m.value(p.Status()) }))
	}
	for _, m := range []struct {
		name, help string
		value      func(proxy.Status) float64
	}{
		{"ports", "Ports of Services in the newest state, of both families.", func(s proxy.Status) float64 { return float64(s.Ports) }},
		{"endpoints", "Endpoints of these ports.", func(s proxy.Status) float64 { return float64(s.Endpoints) }},
		{"problems", "Parts of the newest state that are not served: see the log.", func(s proxy.Status) float64 { return float64(len(s.Problems)) }},
		{"written", "1: the rules are those of the newest state.", func(s proxy.Status) float64 {
			if s.Written.IsZero() {
				return 0
			}
			return 1
		}},
		{"write_seconds", "How long it took to write rules the last time that it did not fail.",
			func(s proxy.Status) float64 { return s.WriteTime.Seconds() }},
	} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "checkplan_service_proxy_" + m.name, Help: m.help},
			func() float64 { return m.value(p.Status()) }))
	}
	if counts == nil {
		return r
	}
	r.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "checkplan_service_proxy_tcp_connections", Help: "TCP connections of clients (mode userspace).",
		}, func() float64 { return float64(counts().Connections) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "checkplan_service_proxy_udp_sessions", Help: "UDP sessions of clients (mode userspace).",
		}, func() float64 { return float64(counts().Sessions) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "checkplan_service_proxy_turned_away_total",
			Help: "Clients whose connection or session was ended or not begun, because there were too many (mode userspace).",
		}, func() float64 { return float64(counts().TurnedAway) }))
	return r
}
