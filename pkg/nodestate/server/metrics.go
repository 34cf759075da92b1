// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The values of labels.
const (
	waiting, receiving               = "waiting", "receiving"
	added, modified, deleted, listed = "added", "modified", "deleted", "listed"
)

// metrics is what Prometheus can read.
type metrics struct {
	registry *prometheus.Registry
	events   *prometheus.CounterVec
	clients  *prometheus.GaugeVec
	states   prometheus.Counter
	items    prometheus.Counter
}

func newMetrics(s *Server) metrics {
	name := func(n string) string { return "checkplan_node_state_" + n }
	m := metrics{
		registry: prometheus.NewRegistry(),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: name("events_total"),
			Help: "Events received from the API server; listed is one for each whole list."}, []string{"resource", "type"}),
		clients: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name("clients"),
			Help: "Clients that wait for the next state, or are receiving one."}, []string{"doing"}),
		states: prometheus.NewCounter(prometheus.CounterOpts{Name: name("states_sent_total"),
			Help: "Whole states sent to clients."}),
		items: prometheus.NewCounter(prometheus.CounterOpts{Name: name("items_sent_total"),
			Help: "Services sent to clients, as parts of states."}),
	}
	gauge := func(n, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name(n), Help: help}, value)
	}
	m.registry.MustRegister(m.events, m.clients, m.states, m.items,
		gauge("age_seconds", "For how long the API server has not been followed: the age of the state. 0: it is followed.",
			func() float64 { return s.Age().Seconds() }),
		gauge("revision", "Revision of the state; 0 until everything was read.",
			func() float64 { return float64(s.published().rev) }),
		gauge("services", "Services that the server's own node serves.",
			func() float64 { return float64(len(s.published().items)) }),
		gauge("endpoints", "Endpoints of the Services' ports, of both families.",
			func() float64 { return float64(s.published().endpoints()) }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, doing := range []string{waiting, receiving} {
		m.clients.WithLabelValues(doing)
	}
	for _, r := range s.resources {
		for _, event := range []string{added, modified, deleted, listed} {
			m.events.WithLabelValues(r.name, event)
		}
	}
	return m
}

// published is the state of the server's own node.
func (s *Server) published() published {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own.now
}

func (p published) endpoints() int {
	n := 0
	for _, s := range p.items {
		for _, f := range s.Families {
			for _, port := range f.Ports {
				n += len(port.Endpoints)
			}
		}
	}
	return n
}

// Age is for how long the server has not heard of the API server, and so how old the state may be. 0: the watches run.
// An API server that vanishes without closing connections is noticed after at most 50 s: by the pings of client-go
// after 45 s, and the request that is not answered then. The age counts from the last event all the same.
func (s *Server) Age() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var age time.Duration
	for _, r := range s.resources {
		if !r.since.IsZero() {
			age = max(age, time.Since(r.since))
		}
	}
	return age
}

// missing are the resources that have not been read yet.
func (s *Server) missing() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, r := range s.resources {
		if !r.synced {
			names = append(names, r.name)
		}
	}
	return names
}

// Handler serves /metrics, /livez (200 if the server is not stuck) and /readyz (200 once everything was read, without
// the API server, too: the last state is worth more than none).
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		s.published() // waits for the mutex
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if missing := s.missing(); len(missing) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "not read yet: %s\n", strings.Join(missing, " "))
			return
		}
		now, following := s.published(), "following the API server"
		if age := s.Age(); age > 0 {
			following = "the API server has not been followed for " + age.Round(time.Second).String()
		}
		fmt.Fprintf(w, "ok: revision %d, %d Services; %s\n", now.rev, len(now.items), following)
	})
	return mux
}
