// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"cmp"
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

	"github.com/munnerz/goautoneg"
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
	// planTime is how long what a page has of one plan may be read, and writeTime what is left of requestTime when no
	// further plan is read. The largest report takes seconds to decode, on one core.
	planTime  = 8 * time.Second
	writeTime = 5 * time.Second
	// fresh is how long a page is served again without a look at the cluster.
	fresh = 10 * time.Second
	// cacheBytes is the size of all pages that are kept.
	cacheBytes = 32 << 20
	// reportBytes is the size of the largest report that is read, as JSON: one in which 250,000 pairs fail. Reading it
	// takes about four times as much.
	reportBytes = 96 << 20
	// nodeReportBytes is the same for the pages of nodes, which have the history of the plan in memory, too.
	nodeReportBytes = 48 << 20
	// mostPlans is the number of plans on the list of plans, and in the metrics: each costs a request to the API server.
	mostPlans = 500
	// nodePlans is the number of plans of the pages of nodes: each costs its whole history.
	nodePlans = 50
	// metricsBytes is about the memory of all metrics, as print.Metrics counts it.
	metricsBytes = 96 << 20
	// nameBytes is the length of a name in a URL: no object of Kubernetes has a longer one.
	nameBytes = 253
)

// Server answers requests. Its fields do not change once it answers.
type Server struct {
	// Namespace of the reports; empty serves those of all namespaces.
	Namespace string
	// ConfigMaps reads the ConfigMaps of a namespace, and Metadata lists those of Namespace, or of all.
	ConfigMaps corev1client.ConfigMapsGetter
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
	// The first plan for which a page had no time; the next page begins with it.
	late ref
}

// listing is what was listed.
type listing struct {
	runs  map[ref]record.StoredReport // by UID
	plans []record.StoredPlan
}

// ref is a name, or a UID, in a namespace. A UID alone does not do: a label with it can be in any namespace.
type ref struct{ namespace, name string }

// plan returns a plan of the list.
func (l *listing) plan(namespace, name string) (record.StoredPlan, bool) {
	i := slices.IndexFunc(l.plans, func(p record.StoredPlan) bool { return p.Namespace == namespace && p.Plan == name })
	if i < 0 {
		return record.StoredPlan{}, false
	}
	return l.plans[i], true
}

// share returns at most n plans, and how many it leaves out. Each namespace has the same share, and of a namespace the
// plans with the newest reports are taken: one that has thousands of plans does not displace those of others. They are
// in the order in which they are taken.
func share(plans []record.StoredPlan, n int) (taken []record.StoredPlan, leftOut int) {
	finished := func(p record.StoredPlan) (t time.Time) {
		if p.Newest != nil {
			t = p.Newest.Finished
		}
		return t
	}
	sorted := slices.Clone(plans)
	slices.SortFunc(sorted, func(a, b record.StoredPlan) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), finished(b).Compare(finished(a)), cmp.Compare(a.Plan, b.Plan))
	})
	type ranked struct {
		record.StoredPlan
		rank int // within its namespace
	}
	all := make([]ranked, len(sorted))
	for i, p := range sorted {
		all[i].StoredPlan = p
		if i > 0 && sorted[i-1].Namespace == p.Namespace {
			all[i].rank = all[i-1].rank + 1
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	for _, p := range all[:min(n, len(all))] {
		taken = append(taken, p.StoredPlan)
	}
	return taken, len(all) - len(taken)
}

// byName orders plans by namespace and name.
func byName(a, b record.StoredPlan) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Plan, b.Plan))
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
	page("GET /plans/{namespace}/{plan}", s.plan)
	page("GET /runs/{namespace}/{uid}", s.run)
	page("GET /nodes", s.nodes)
	page("GET /nodes/{node}", s.node)
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
	query := r.URL.Query()
	key := r.URL.Path + "?" + url.Values{"source": {query.Get("source")}, "target": {query.Get("target")}}.Encode()
	contentType := "text/html; charset=utf-8"
	if r.URL.Path == "/metrics" {
		contentType = metricsType(r)
		key = r.URL.Path + " " + contentType
		w.Header().Set("Vary", "Accept")
	}
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
		s.listed, s.at = listing{map[ref]record.StoredReport{}, plans}, s.Now()
		for _, r := range reports {
			s.listed.runs[ref{r.Namespace, r.RunUID}] = r
		}
	}
	var b bytes.Buffer
	if err := write(ctx, &b, r); err != nil {
		return nil, err
	}
	s.cache.put(key, b.Bytes(), s.Now().Add(fresh))
	return b.Bytes(), nil
}

// links are the addresses of the pages, each part of which is a name. A run whose report is gone has none.
func (s *Server) links() print.Links {
	path := func(parts ...string) string {
		address := ""
		for _, p := range parts {
			address += "/" + url.PathEscape(p)
		}
		return address
	}
	return print.Links{
		Plans: "/", Nodes: "/nodes", Namespace: s.Namespace, Namespaces: s.Namespace == "",
		Plan: func(namespace, plan string) string { return path("plans", namespace, plan) },
		Run: func(namespace, uid string) string {
			if _, ok := s.listed.runs[ref{namespace, uid}]; !ok {
				return ""
			}
			return path("runs", namespace, uid)
		},
		Node: func(node string) string { return path("nodes", node) },
	}
}

// where says in words what is served.
func (s *Server) where() string {
	if s.Namespace == "" {
		return "all namespaces"
	}
	return "namespace " + s.Namespace
}

// visit calls read for each plan, with a context in which the plan has planTime. It begins with the plan for which
// there was no time before. The context of a plan for which there is no time has ended. If that is the first one, or
// the request ended, visit returns an error.
func (s *Server) visit(
	ctx context.Context, plans []record.StoredPlan, read func(ctx context.Context, plan record.StoredPlan),
) error {
	end, _ := ctx.Deadline() // page has set it
	end = end.Add(-writeTime)
	at := max(0, slices.IndexFunc(plans, func(p record.StoredPlan) bool { return ref{p.Namespace, p.Plan} == s.late }))
	s.late = ref{}
	for i, plan := range slices.Concat(plans[at:], plans[:at]) {
		until := time.Now().Add(planTime)
		if end.Before(until) {
			until = end
		}
		of, cancel := context.WithDeadline(ctx, until)
		late := of.Err() != nil
		if late && s.late == (ref{}) {
			s.late = ref{plan.Namespace, plan.Plan}
		}
		if !late || i > 0 {
			read(of, plan)
		}
		cancel()
		if err := ctx.Err(); err != nil || late && i == 0 {
			return fmt.Errorf("read the reports of %s: %w", checkup.Count(len(plans), "plan"),
				cmp.Or(err, context.DeadlineExceeded))
		}
	}
	return nil
}

// load reads a report of at most so many bytes of JSON. Its namespace, plan and run are those of its ConfigMap: a
// report that says others would pass for one of somebody else.
func (s *Server) load(ctx context.Context, stored record.StoredReport, most int) (*checkup.Report, error) {
	r, err := record.LoadReport(ctx, s.ConfigMaps.ConfigMaps(stored.Namespace), stored.RunUID, most)
	if err != nil {
		return nil, err
	}
	r.Namespace, r.Plan, r.Run, r.RunUID = stored.Namespace, stored.Plan, stored.Run, stored.RunUID
	if err := print.Valid(r); err != nil {
		return nil, fmt.Errorf("the report is not valid: %w", err)
	}
	return r, nil
}

// newest reads the newest report of a plan, and returns its row in a list. The report is nil if there is none, or if it
// could not be read; the row then says why.
func (s *Server) newest(ctx context.Context, plan record.StoredPlan, most int) (print.PlanRow, *checkup.Report) {
	row := print.PlanRow{Namespace: plan.Namespace, Plan: plan.Plan}
	if plan.Newest == nil {
		return row, nil
	}
	row.Run, row.UID, row.Ended = plan.Newest.Run, plan.Newest.RunUID, plan.Newest.Finished
	if ctx.Err() != nil {
		row.Problem = "not read: this page reached its time limit with other plans; reload it to begin with this plan"
		return row, nil
	}
	r, err := s.load(ctx, *plan.Newest, most)
	if err != nil {
		row.Problem = err.Error()
		return row, nil
	}
	row.Verdict, row.Summary = r.Verdict, r.Summary
	return row, r
}

// notes say that nothing is listed, or that plans are left out.
func (s *Server) notes(leftOut, most int) []string {
	switch {
	case len(s.listed.plans) == 0:
		return []string{"No run of a plan has reported yet in " + s.where() + "."}
	case leftOut > 0:
		return []string{fmt.Sprintf("%s left out: this page has at most %d, those with the newest reports, as many of each "+
			"namespace.", checkup.Count(leftOut, "plan"), most)}
	}
	return nil
}

func (s *Server) plans(ctx context.Context, b *bytes.Buffer, _ *http.Request) error {
	plans, leftOut := share(s.listed.plans, mostPlans)
	var rows []print.PlanRow
	err := s.visit(ctx, plans, func(ctx context.Context, plan record.StoredPlan) {
		row, _ := s.newest(ctx, plan, reportBytes)
		rows = append(rows, row)
	})
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b print.PlanRow) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Plan, b.Plan))
	})
	return print.HTMLPlans(b, "Plans in "+s.where(), rows, s.notes(leftOut, mostPlans), s.links())
}

func (s *Server) plan(ctx context.Context, b *bytes.Buffer, r *http.Request) error {
	plan, ok := s.listed.plan(r.PathValue("namespace"), r.PathValue("plan"))
	if !ok {
		return missing("no run of this plan has reported in %s", s.where())
	}
	source, target := r.URL.Query().Get("source"), r.URL.Query().Get("target")
	if len(source) > nameBytes || len(target) > nameBytes || (source == "") != (target == "") {
		return problem{http.StatusBadRequest, errors.New("want the names of a pair: ?source=A&target=B")}
	}
	h, err := s.history(ctx, plan)
	if err != nil {
		return err
	}
	view := h.Overview(history.Filter{Source: source, Target: target, Now: s.Now()})
	links := s.links()
	links.Namespace = plan.Namespace
	return print.HTMLHistory(b, view, source, target, links)
}

// history reads the history of a plan, as far as it can be read.
func (s *Server) history(ctx context.Context, plan record.StoredPlan) (*history.History, error) {
	h, err := record.LoadHistory(ctx, s.ConfigMaps.ConfigMaps(plan.Namespace), plan.Plan)
	if errors.Is(err, record.ErrNewer) {
		h.Note(s.Now(), "%v: this is the part that could be read", err)
		err = nil
	}
	return h, err
}

func (s *Server) run(ctx context.Context, b *bytes.Buffer, r *http.Request) error {
	stored, ok := s.listed.runs[ref{r.PathValue("namespace"), r.PathValue("uid")}]
	if !ok {
		return missing("no report of this run in %s: the plan's retention may have deleted it", s.where())
	}
	report, err := s.load(ctx, stored, reportBytes)
	if apierrors.IsNotFound(err) {
		return missing("the report of this run was deleted")
	}
	if err != nil {
		return err
	}
	return print.HTML(b, report, print.HTMLOptions{Links: s.links()})
}

func (s *Server) metrics(ctx context.Context, b *bytes.Buffer, r *http.Request) error {
	plans, leftOut := share(s.listed.plans, mostPlans)
	m := print.Metrics{Namespaces: s.Namespace == ""}
	follow := len(plans)
	err := s.visit(ctx, plans, func(ctx context.Context, plan record.StoredPlan) {
		follow--
		row, report := s.newest(ctx, plan, reportBytes)
		if row.Run == "" {
			return
		}
		// No plan takes more than a quarter of what is left, if others follow.
		left := metricsBytes - m.Bytes()
		readable := report != nil && left > 0 && m.Add(report, left/min(follow+1, 4))
		m.Readable(plan.Namespace, plan.Plan, row.Run, readable)
	})
	if err != nil {
		return err
	}
	m.LeftOut(leftOut)
	if metricsType(r) == openMetricsType {
		return m.OpenMetrics(b)
	}
	return m.Prometheus(b)
}

// The two formats of /metrics.
const (
	openMetrics     = "application/openmetrics-text"
	openMetricsType = openMetrics + "; version=1.0.0; charset=utf-8"
	textType        = "text/plain; version=0.0.4; charset=utf-8"
)

// metricsType is the format that a request accepts: OpenMetrics where it names that, as Prometheus does, else
// Prometheus' text format, which every other scraper and a browser reads.
func metricsType(r *http.Request) string {
	if goautoneg.Negotiate(r.Header.Get("Accept"), []string{"text/plain", openMetrics}) == openMetrics {
		return openMetricsType
	}
	return textType
}
