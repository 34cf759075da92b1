// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
)

// Limits of the server.
const (
	// requestTime is how long a request may take, with all that it reads from the cluster.
	requestTime = 30 * time.Second
	// fresh is how long a page is served again without a look at the cluster.
	fresh = 10 * time.Second
	// cacheBytes is the size of all pages that are kept.
	cacheBytes = 32 << 20
	// reportBytes is the size of the largest report that is read, as JSON.
	reportBytes = 128 << 20
	// nameBytes is the length of a name in a URL: no object of Kubernetes has a longer one.
	nameBytes = 253
)

// Server answers requests. Its fields do not change once it answers.
type Server struct {
	// Namespace of the reports, for headings.
	Namespace string
	// ConfigMaps and Metadata read the ConfigMaps of the namespace.
	ConfigMaps corev1client.ConfigMapInterface
	Metadata   record.Lister
	// Local refuses requests whose Host is not this machine's loopback. Else a page of an attacker whose name resolves to
	// 127.0.0.1 could read the reports with the browser of a person (DNS rebinding).
	Local bool
	// Now is the clock.
	Now func() time.Time

	once  sync.Once
	busy  chan struct{} // holds the one request that reads from the cluster
	cache cache
	// The newest list and when it was read; for the holder of busy.
	listed listing
	at     time.Time
}

// listing is what the namespace has.
type listing struct {
	reports []record.StoredReport
	plans   []string
}

// newest is the newest report of a plan.
func (l *listing) newest(plan string) (record.StoredReport, bool) {
	i := slices.IndexFunc(l.reports, func(r record.StoredReport) bool { return r.Plan == plan })
	if i < 0 {
		return record.StoredReport{}, false
	}
	return l.reports[i], true
}

// writer writes a page.
type writer func(ctx context.Context, b *bytes.Buffer, r *http.Request) error

// HTTP returns the HTTP server of the handler, with limits on time and headers.
func (s *Server) HTTP() *http.Server {
	return &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 2 * requestTime, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
}

// Handler answers GET and HEAD.
func (s *Server) Handler() http.Handler {
	s.once.Do(func() { s.busy = make(chan struct{}, 1) })
	mux := http.NewServeMux()
	page := func(pattern string, write writer) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.page(w, r, write) })
	}
	page("GET /{$}", s.plans)
	page("GET /plans/{plan}", s.plan)
	page("GET /runs/{uid}", s.run)
	page("GET /metrics", s.metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", print.HTMLPolicy()+"; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case s.Local && !Loopback(r.Host):
			http.Error(w, "this server answers for localhost only", http.StatusMisdirectedRequest)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "read-only: want GET or HEAD", http.StatusMethodNotAllowed)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// Loopback reports whether a host, with or without port, is this machine, as the Host of a request names it.
func Loopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// problem is an error with the status that says so.
type problem struct {
	status int
	err    error
}

func (p problem) Error() string { return p.err.Error() }
func (p problem) Unwrap() error { return p.err }

func missing(format string, args ...any) error {
	return problem{http.StatusNotFound, fmt.Errorf(format, args...)}
}

// page answers with what write writes, or with that of a moment ago.
func (s *Server) page(w http.ResponseWriter, r *http.Request, write writer) {
	contentType := "text/html; charset=utf-8"
	if r.URL.Path == "/metrics" {
		contentType = "application/openmetrics-text; version=1.0.0; charset=utf-8"
	}
	query := r.URL.Query()
	key := r.URL.Path + "?" + url.Values{"source": {query.Get("source")}, "target": {query.Get("target")}}.Encode()
	body, ok := s.cache.get(key, s.Now())
	if !ok {
		ctx, cancel := context.WithTimeout(r.Context(), requestTime)
		defer cancel()
		var err error
		if body, err = s.write(ctx, key, r, write); err != nil {
			status := http.StatusBadGateway
			var p problem
			switch {
			case errors.As(err, &p):
				status = p.status
			case ctx.Err() != nil:
				status = http.StatusServiceUnavailable
			}
			http.Error(w, checkup.Clean(err.Error()), status)
			return
		}
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(body) // the client may be gone
}

// write makes a page while no other request makes one.
func (s *Server) write(ctx context.Context, key string, r *http.Request, write writer) ([]byte, error) {
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-ctx.Done():
		return nil, fmt.Errorf("busy: other requests took more than %s", requestTime)
	}
	if body, ok := s.cache.get(key, s.Now()); ok { // another request has made it
		return body, nil
	}
	if s.at.IsZero() || s.Now().Sub(s.at) >= fresh {
		reports, plans, err := record.Reports(ctx, s.Metadata)
		if err != nil {
			return nil, err
		}
		s.listed, s.at = listing{reports, plans}, s.Now()
	}
	var b bytes.Buffer
	if err := write(ctx, &b, r); err != nil {
		return nil, err
	}
	s.cache.put(key, b.Bytes(), s.Now().Add(fresh))
	return b.Bytes(), nil
}

// links are the addresses of the pages. A run whose report is gone has none.
func (s *Server) links() print.Links {
	known := make(map[string]bool, len(s.listed.reports))
	for _, r := range s.listed.reports {
		known[r.RunUID] = true
	}
	return print.Links{
		Plans: "/",
		Plan:  func(plan string) string { return "/plans/" + url.PathEscape(plan) },
		Run: func(uid string) string {
			if !known[uid] {
				return ""
			}
			return "/runs/" + url.PathEscape(uid)
		},
	}
}

func (s *Server) load(ctx context.Context, uid string) (*checkup.Report, error) {
	return record.LoadReport(ctx, s.ConfigMaps, uid, reportBytes)
}

func (s *Server) plans(ctx context.Context, b *bytes.Buffer, _ *http.Request) error {
	var rows []print.PlanRow
	for _, plan := range s.listed.plans {
		row := print.PlanRow{Plan: plan}
		if newest, ok := s.listed.newest(plan); ok {
			row.Run, row.UID, row.Ended = newest.Run, newest.RunUID, newest.Finished
			if r, err := s.load(ctx, newest.RunUID); err != nil {
				row.Problem = err.Error()
			} else {
				row.Verdict, row.Summary = r.Verdict, r.Summary
			}
		}
		rows = append(rows, row)
	}
	var notes []string
	if len(rows) == 0 {
		notes = append(notes, "No run of a plan has reported yet in namespace "+s.Namespace+".")
	}
	return print.HTMLPlans(b, "Plans in namespace "+s.Namespace, rows, notes, s.links())
}

func (s *Server) plan(ctx context.Context, b *bytes.Buffer, r *http.Request) error {
	plan := r.PathValue("plan")
	if !slices.Contains(s.listed.plans, plan) {
		return missing("no run of this plan has reported in namespace %s", s.Namespace)
	}
	source, target := r.URL.Query().Get("source"), r.URL.Query().Get("target")
	if len(source) > nameBytes || len(target) > nameBytes || (source == "") != (target == "") {
		return problem{http.StatusBadRequest, errors.New("want the names of a pair: ?source=A&target=B")}
	}
	h, err := record.LoadHistory(ctx, s.ConfigMaps, plan)
	if err != nil && !errors.Is(err, record.ErrNewer) {
		return err
	}
	if err != nil {
		h.Note(s.Now(), "%v: this is the part that could be read", err)
	}
	view := h.Overview(history.Filter{Source: source, Target: target, Now: s.Now()})
	return print.HTMLHistory(b, view, source, target, s.links())
}

func (s *Server) run(ctx context.Context, b *bytes.Buffer, r *http.Request) error {
	uid := r.PathValue("uid")
	if !slices.ContainsFunc(s.listed.reports, func(r record.StoredReport) bool { return r.RunUID == uid }) {
		return missing("no report of this run in namespace %s: the plan's retention may have deleted it", s.Namespace)
	}
	report, err := s.load(ctx, uid)
	if apierrors.IsNotFound(err) {
		return missing("the report of this run was deleted")
	}
	if err != nil {
		return err
	}
	return print.HTML(b, report, print.HTMLOptions{Links: s.links()})
}

func (s *Server) metrics(ctx context.Context, b *bytes.Buffer, _ *http.Request) error {
	var m print.Metrics
	for _, plan := range s.listed.plans {
		newest, ok := s.listed.newest(plan)
		if !ok {
			continue
		}
		r, err := s.load(ctx, newest.RunUID)
		if m.Readable(plan, newest.Run, err == nil); err == nil {
			m.Add(r)
		}
	}
	return m.Write(b)
}
