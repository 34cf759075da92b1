// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/checkup/hostile"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/record"
)

const namespace = "checks"

// metadata lists what the API server would answer to a request for metadata.
type metadata struct {
	maps corev1client.ConfigMapInterface
}

func (m metadata) List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list, err := m.maps.List(ctx, o)
	if err != nil {
		return nil, err
	}
	all := &metav1.PartialObjectMetadataList{}
	for _, cm := range list.Items {
		all.Items = append(all.Items, metav1.PartialObjectMetadata{ObjectMeta: cm.ObjectMeta})
	}
	return all, nil
}

// site is a server over a cluster that has the history of plan day-2 and two of its reports, with a clock.
type site struct {
	*Server
	client *fake.Clientset
	now    time.Time
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{client: fake.NewSimpleClientset(), now: time.Date(2026, 1, 1, 0, 13, 0, 0, time.UTC)}
	maps := s.client.CoreV1().ConfigMaps(namespace)
	text, err := os.ReadFile("../record/testdata/history.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var stored corev1.ConfigMapList
	if err := yaml.Unmarshal(text, &stored); err != nil {
		t.Fatal(err)
	}
	for i := range stored.Items {
		stored.Items[i].Namespace = namespace
		if _, err := maps.Create(t.Context(), &stored.Items[i], metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.Server = &Server{Namespace: namespace, ConfigMaps: s.client.CoreV1(), Metadata: metadata{maps}, Local: true, Now: func() time.Time { return s.now }}
	s.save(t, reportOf(t, "pass"), "day-2", "day-2-run-11", "uid-11", s.now.Add(-2*time.Minute))
	s.save(t, reportOf(t, "ingress"), "day-2", "day-2-run-12", "uid-12", s.now.Add(-time.Minute))
	return s
}

func reportOf(t *testing.T, name string) *checkup.Report {
	t.Helper()
	f, err := os.Open("../print/testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := print.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *site) save(t *testing.T, r *checkup.Report, plan, run, uid string, finished time.Time) {
	t.Helper()
	s.saveIn(t, namespace, r, plan, run, uid, finished)
}

func (s *site) saveIn(t *testing.T, namespace string, r *checkup.Report, plan, run, uid string, finished time.Time) {
	t.Helper()
	r.Plan, r.Run, r.RunUID, r.Finished = plan, run, uid, finished
	store := record.Store{ConfigMaps: s.ConfigMaps.ConfigMaps(namespace), Plan: plan, Run: run, RunUID: uid}
	if err := store.SaveReport(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// ask sends a request and returns status and body.
func (s *site) ask(method, target string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://localhost:8080/", nil)
	r.URL.Path, r.URL.RawQuery, _ = strings.Cut(target, "?")
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

// TestPages: what each page shows, and the status of what does not exist.
func TestPages(t *testing.T) {
	s := newSite(t)
	for _, tt := range []struct {
		target string
		status int
		want   []string
	}{
		{"/", 200, []string{"Plans in namespace checks", `href="/plans/checks/day-2"`, `href="/runs/checks/uid-12"`, "into the pods of worker-2: nothing gets through"}},
		{"/plans/checks/day-2", 200, []string{"Plan day-2: 12 runs", "nodeIngress node-d", "100% of all pairs", "Median round trips", `action="/plans/checks/day-2"`}},
		{"/plans/checks/day-2?source=node-a&target=node-b", 200, []string{"From node-a to node-b"}},
		{"/plans/checks/day-2?source=node-a&target=no-node", 200, []string{"no run that is remembered has measured this pair"}},
		{"/plans/checks/day-2?source=node-a", 400, []string{"want the names of a pair"}},
		{"/plans/checks/day-2?target=a&source=" + strings.Repeat("a", nameBytes+1), 400, []string{"want the names of a pair"}},
		{"/runs/checks/uid-12", 200, []string{"Plan day-2, run day-2-run-12", `href="/plans/checks/day-2"`, "fail"}},
		{"/runs/checks/uid-11", 200, []string{"day-2-run-11", "pass"}},
		{"/nodes", 200, []string{"Nodes in plans of namespace checks", `href="/nodes/node-a"`, `<a href="/">Plans</a>`}},
		{"/nodes/node-a", 200, []string{"Node node-a", `href="/plans/checks/day-2?source=node-a&amp;target=node-b"`, "Pairs to the node", "udp IPv4"}},
		{"/nodes/worker-2", 200, []string{"into the pods of worker-2: nothing gets through"}},
		{"/nodes/no-node", 404, []string{"no plan has measured this node"}},
		{"/nodes/" + strings.Repeat("a", nameBytes+1), 404, []string{"no plan has measured this node"}},
		{"/metrics", 200, []string{
			`checkplan_run_verdict{plan="day-2",run="day-2-run-12",verdict="fail"} 1`, `checkplan_report_readable{plan="day-2",run="day-2-run-12"} 1`,
		}},
		{"/healthz", 200, []string{"ok"}},
		{"/plans/checks/other", 404, []string{"no run of this plan"}},
		{"/plans/checks/..%2f..%2fsecrets", 404, nil},
		{"/plans/checks/\x1b[31m::error::forged", 404, nil},
		{"/runs/checks/day-2-history", 404, []string{"no report of this run"}},
		{"/plans/other/day-2", 404, []string{"no run of this plan"}},
		{"/runs/other/uid-12", 404, []string{"no report of this run"}},
		{"/runs/", 404, nil},
		{"/favicon.ico", 404, nil},
		{"/api/v1/secrets", 404, nil},
	} {
		t.Run(tt.target[:min(len(tt.target), 60)], func(t *testing.T) {
			w := s.ask(http.MethodGet, tt.target)
			if w.Code != tt.status {
				t.Errorf("status %d, want %d: %s", w.Code, tt.status, w.Body)
			}
			for _, want := range tt.want {
				if !strings.Contains(w.Body.String(), want) {
					t.Errorf("does not have %q:\n%s", want, w.Body)
				}
			}
			if w.Code != 200 && strings.Contains(w.Body.String(), "forged") {
				t.Error("an error repeats what was requested")
			}
		})
	}
}

// TestOverdue: the page of a plan whose next run is overdue says how many are missing.
func TestOverdue(t *testing.T) {
	s := newSite(t)
	const open = "gap: no report for 1h0m0s, 59 runs missing"
	if page := s.ask(http.MethodGet, "/plans/checks/day-2").Body.String(); strings.Contains(page, open) {
		t.Errorf("a run is missing when none is due:\n%s", page)
	}
	s.now = s.now.Add(59 * time.Minute) // the newest run began at 00:12
	if page := s.ask(http.MethodGet, "/plans/checks/day-2").Body.String(); !strings.Contains(page, open) {
		t.Errorf("does not have %q:\n%s", open, page)
	}
}

// everywhere makes the server serve all namespaces.
func (s *site) everywhere() {
	s.Namespace, s.Metadata = "", metadata{s.client.CoreV1().ConfigMaps(metav1.NamespaceAll)}
}

// TestAllNamespaces: plans and runs of the same names in several namespaces are kept apart, on pages and in metrics,
// and a report is that of its ConfigMap, whatever it says.
func TestAllNamespaces(t *testing.T) {
	s := newSite(t)
	s.saveIn(t, "shop", reportOf(t, "pass"), "day-2", "day-2-run-1", "uid-12", s.now)
	forged := reportOf(t, "pass")
	forged.Namespace = namespace
	s.saveIn(t, "forger", forged, "day-2", "day-2-run-12", "uid-12", s.now)
	s.everywhere()
	for target, want := range map[string][]string{
		"/": {"Plans in all namespaces", `<a href="/plans/shop/day-2">shop/day-2</a>`, `<a href="/plans/checks/day-2">checks/day-2</a>`,
			`<a href="/runs/shop/uid-12">day-2-run-1</a>`, `<a href="/plans/forger/day-2">forger/day-2</a>`},
		"/plans/checks/day-2": {"12 runs", "/ checks/day-2</nav>"},
		"/plans/shop/day-2":   {"0 runs"},
		"/runs/shop/uid-12":   {"run day-2-run-1", `<a href="/plans/shop/day-2">shop/day-2</a>`},
		"/runs/checks/uid-12": {"run day-2-run-12", "into the pods of worker-2: nothing gets through"},
		"/runs/forger/uid-12": {`<a href="/plans/forger/day-2">forger/day-2</a>`, "pass"},
		"/nodes":              {"Nodes in plans of all namespaces"},
		"/nodes/worker-2":     {`<a href="/plans/checks/day-2">checks/day-2</a>`},
		"/metrics": {
			`checkplan_run_verdict{namespace="checks",plan="day-2",run="day-2-run-12",verdict="fail"} 1`,
			`checkplan_run_verdict{namespace="shop",plan="day-2",run="day-2-run-1",verdict="pass"} 1`,
			`checkplan_run_verdict{namespace="forger",plan="day-2",run="day-2-run-12",verdict="pass"} 1`,
			`checkplan_report_readable{namespace="shop",plan="day-2",run="day-2-run-1"} 1`, "checkplan_plans_left_out 0",
		},
	} {
		w := s.ask(http.MethodGet, target)
		for _, want := range want {
			if w.Code != 200 || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: status %d, does not have %q:\n%s", target, w.Code, want, w.Body)
			}
		}
	}
	if metrics := s.ask(http.MethodGet, "/metrics").Body.String(); strings.Contains(metrics, `verdict="fail"} 2`) ||
		strings.Contains(metrics, `namespace="checks",plan="day-2",run="day-2-run-12",verdict="pass"} 1`) {
		t.Errorf("a forged report counts:\n%s", metrics)
	}
}

// TestShare: a namespace with thousands of plans leaves the plans of others on the pages.
func TestShare(t *testing.T) {
	at := func(minute int) *record.StoredReport {
		return &record.StoredReport{Finished: time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)}
	}
	plans := []record.StoredPlan{{Namespace: "b", Plan: "old", Newest: at(1)}, {Namespace: "b", Plan: "no-report"}, {Namespace: "b", Plan: "new", Newest: at(2)}}
	for i := range 3000 {
		plans = append(plans, record.StoredPlan{Namespace: "a", Plan: fmt.Sprint(i), Newest: at(i)})
	}
	taken, leftOut := share(plans, 5)
	var names []string
	for _, p := range taken {
		names = append(names, p.Namespace+"/"+p.Plan)
	}
	if want := "a/2999 b/new a/2998 b/old a/2997"; strings.Join(names, " ") != want || leftOut != 2998 {
		t.Errorf("%v, %d left out, want %s", names, leftOut, want)
	}
	if taken, leftOut := share(plans[:2], 5); len(taken) != 2 || leftOut != 0 {
		t.Errorf("%v, %d left out of two", taken, leftOut)
	}
}

// TestNodeWithoutHistory: pairs of a run that the history does not have are those of the run before, or those of the
// report that did not pass; the page says so.
func TestNodeWithoutHistory(t *testing.T) {
	s := newSite(t)
	s.save(t, reportOf(t, "ingress"), "day-2", "day-2-run-13", "uid-13", s.now)
	s.saveIn(t, "shop", reportOf(t, "ingress"), "other", "other-run-1", "uid-1", s.now)
	s.saveIn(t, "shop", reportOf(t, "vms-cut"), "vms", "vms-run-1", "uid-2", s.now)
	s.everywhere()
	for target, want := range map[string][]string{
		"/nodes/node-a":   {"The history does not have this run: pairs are those of run day-2-run-", "node-b"},
		"/nodes/worker-2": {"The plan has no history: pairs that passed are not listed.", "Pairs to the node", "worker-1", "100%"},
		"/nodes":          {`href="/nodes/node-a"`, `href="/nodes/worker-1"`, `href="/nodes/node01"`},
		"/nodes/node01":   {"vms-run-1", "Pairs from the node"},
	} {
		w := s.ask(http.MethodGet, target)
		for _, want := range want {
			if w.Code != 200 || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: status %d, does not have %q:\n%s", target, w.Code, want, w.Body)
			}
		}
	}
}

// flood adds many plans to what is listed, whose reports cannot be read.
type flood struct{ record.Lister }

func (f flood) List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	all, err := f.Lister.List(ctx, o)
	for i := range mostPlans + 10 {
		all.Items = append(all.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "flood", Labels: map[string]string{
			checkup.LabelRole: string(checkup.RoleReport), checkup.LabelPlan: fmt.Sprint("plan-", i), checkup.LabelRun: fmt.Sprint("uid-", i),
			record.LabelRunName: "run",
		}}})
	}
	return all, err
}

// TestBounded: whatever is in the cluster, a page reads a bounded number of reports, and says what it leaves out. So do
// the metrics, which never leave out whether a plan failed before its single units.
func TestBounded(t *testing.T) {
	s := newSite(t)
	s.everywhere()
	s.Metadata = flood{s.Metadata}
	for target, most := range map[string]int{"/": mostPlans, "/metrics": mostPlans, "/nodes": 2 * nodePlans, "/nodes/node-a": 2 * nodePlans} {
		s.client.ClearActions()
		w := s.ask(http.MethodGet, target)
		reads := 0
		for _, a := range s.client.Actions() {
			if get, ok := a.(clienttesting.GetAction); ok && get.GetVerb() == "get" && get.GetNamespace() == "flood" {
				reads++
			}
		}
		if w.Code != 200 || reads == 0 || reads > most {
			t.Errorf("%s: status %d after %d reads, want at most %d", target, w.Code, reads, most)
		}
		want := map[string]string{
			"/": "11 plans left out", "/metrics": "checkplan_plans_left_out 11", "/nodes": "461 plans left out", "/nodes/node-a": "461 plans left out",
		}[target]
		if !strings.Contains(w.Body.String(), want) || !strings.Contains(w.Body.String(), "day-2") && target != "/nodes" {
			t.Errorf("%s does not say %q, or has no plan of other namespaces", target, want)
		}
	}
}

// TestMetricsFormats: who accepts OpenMetrics gets it, as Prometheus does, and all others get Prometheus' text format.
// Both are kept apart, and have the same metrics of checkplan.
func TestMetricsFormats(t *testing.T) {
	s := newSite(t)
	s.save(t, reportOf(t, "connections-endpoint"), "control-plane", "control-plane-run-1", "uid-cp", s.now)
	names := map[bool][]string{}
	for _, tt := range []struct {
		who, accept string
		open        bool
	}{
		{"Prometheus 3", "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5," +
			"application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3," +
			"text/plain;version=0.0.4;q=0.2,*/*;q=0.1", true},
		{"Prometheus 3 with native histograms", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;" +
			"encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1", true},
		{"curl", "*/*", false},
		{"a browser", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", false},
		{"nothing", "", false},
		{"nonsense", ";;,/,q=x", false},
	} {
		t.Run(tt.who, func(t *testing.T) {
			w := s.ask(http.MethodGet, "/metrics", func(r *http.Request) { r.Header.Set("Accept", tt.accept) })
			open := strings.HasPrefix(w.Header().Get("Content-Type"), "application/openmetrics-text; version=1.0.0")
			if open != tt.open || w.Header().Get("Vary") != "Accept" {
				t.Errorf("headers %v", w.Header())
			}
			body := w.Body.String()
			if strings.HasSuffix(body, "\n# EOF\n") != tt.open || strings.Contains(body, "pod_network_connectivity_check_count") != tt.open {
				t.Errorf("the body is that of the other format: %s", w.Header().Get("Content-Type"))
			}
			names[tt.open] = regexp.MustCompile(`(?m)^# TYPE checkplan_\S+`).FindAllString(body, -1)
		})
	}
	if len(names[true]) < 10 || !slices.Equal(names[true], names[false]) {
		t.Errorf("OpenMetrics has %q, and the text format %q", names[true], names[false])
	}
}

// TestReadOnly: nothing but GET and HEAD is answered, and nothing but get and list of ConfigMaps is requested.
func TestReadOnly(t *testing.T) {
	s := newSite(t)
	s.client.ClearActions()
	for _, target := range []string{"/", "/plans/checks/day-2", "/runs/checks/uid-12", "/nodes", "/nodes/node-a", "/metrics", "/healthz", "/nothing"} {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"} {
			if w := s.ask(method, target); w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: status %d", method, target, w.Code)
			}
		}
		s.ask(http.MethodGet, target)
		if w := s.ask(http.MethodHead, target); w.Code != 200 && target != "/nothing" {
			t.Errorf("HEAD %s: status %d", target, w.Code)
		}
	}
	for _, a := range s.client.Actions() {
		if a.GetResource().Resource != "configmaps" || a.GetVerb() != "get" && a.GetVerb() != "list" {
			t.Errorf("requests %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

// TestHeaders: each answer, errors included, forbids scripts, frames and guesses of its type.
func TestHeaders(t *testing.T) {
	s := newSite(t)
	for _, target := range []string{"/", "/plans/checks/day-2", "/runs/checks/uid-12", "/nodes", "/nodes/node-a", "/metrics", "/healthz", "/nothing"} {
		h := s.ask(http.MethodGet, target).Header()
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Content-Type": "; charset=utf-8",
		} {
			if !strings.Contains(h.Get(name), want) {
				t.Errorf("%s: header %s is %q, want %q", target, name, h.Get(name), want)
			}
		}
		if policy := h.Get("Content-Security-Policy"); strings.Contains(policy, "script") || strings.Contains(policy, "unsafe") ||
			!strings.Contains(policy, "frame-ancestors 'none'") {
			t.Errorf("%s: policy %q", target, policy)
		}
	}
	server := s.HTTP()
	if server.ReadHeaderTimeout == 0 || server.ReadTimeout == 0 || server.WriteTimeout == 0 || server.IdleTimeout == 0 || server.MaxHeaderBytes == 0 {
		t.Errorf("the server has no limit on something: %+v", server)
	}
}

// TestHost: on loopback, only names of loopback are answered.
func TestHost(t *testing.T) {
	s := newSite(t)
	for host, ok := range map[string]bool{
		"localhost": true, "LOCALHOST:8080": true, "127.0.0.1:8080": true, "127.0.0.1": true, "[::1]:8080": true, "[::1]": true, "127.1.2.3:1": true,
		"attacker.example": false, "attacker.example:8080": false, "localhost.attacker.example": false, "10.0.0.1:8080": false, "": false,
	} {
		for _, local := range []bool{true, false} {
			s.Local = local
			w := s.ask(http.MethodGet, "/healthz", func(r *http.Request) { r.Host = host })
			if want := ok || !local; (w.Code == http.StatusOK) != want {
				t.Errorf("host %q, local %v: status %d", host, local, w.Code)
			}
		}
	}
}

// TestHostile: names and texts of the cluster are harmless on every page.
func TestHostile(t *testing.T) {
	s := newSite(t)
	r := reportOf(t, "toy")
	version, kind := r.APIVersion, r.Kind
	hostile.Fill(r, false)
	r.APIVersion, r.Kind = version, kind
	for i := range r.Checks { // what is no valid report is not read
		c := &r.Checks[i]
		c.Blocks = slices.DeleteFunc(c.Blocks, func(b checkup.Block) bool { return b.Grid != nil })
		for k := range c.Blocks {
			if c.Blocks[k].Table != nil || c.Blocks[k].List != nil {
				c.Blocks[k].Note = ""
			}
		}
	}
	s.save(t, r, "toys", "toys-run-1", "uid-toys", s.now)
	for _, target := range []string{"/", "/runs/checks/uid-toys", "/metrics"} {
		w := s.ask(http.MethodGet, target)
		hostile.Check(t, target, w.Body.String())
	}
	if w := s.ask(http.MethodGet, "/plans/checks/toys"); w.Code != 200 {
		t.Errorf("a plan without a history: status %d", w.Code)
	}
}

// TestOtherVersion: a report of another version is not read, because its values may mean something else. The page says
// so, and /metrics has no metric of it.
func TestOtherVersion(t *testing.T) {
	s := newSite(t)
	r := reportOf(t, "toy")
	r.APIVersion = "checkplan.dev/v0"
	s.save(t, r, "toys", "toys-run-1", "uid-toys", s.now)
	if page := s.ask(http.MethodGet, "/").Body.String(); !strings.Contains(page, "as this version of checkplan writes") {
		t.Errorf("the page does not say that the report is of another version:\n%s", page)
	}
	metrics := s.ask(http.MethodGet, "/metrics").Body.String()
	if want := `checkplan_report_readable{plan="toys",run="toys-run-1"} 0`; !strings.Contains(metrics, want) {
		t.Errorf("no line %s in\n%s", want, metrics)
	}
}

// replace makes the report of a run other bytes, with the digest of the text that they are of.
func (s *site) replace(t *testing.T, uid string, content []byte, text string) {
	t.Helper()
	list, err := s.ConfigMaps.ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: checkup.LabelRun + "=" + uid})
	if err != nil || len(list.Items) == 0 {
		t.Fatal("no ConfigMap", err)
	}
	cm := &list.Items[0]
	for k := range cm.BinaryData {
		cm.BinaryData[k] = content
	}
	cm.Data["sha256"] = fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	if _, err := s.ConfigMaps.ConfigMaps(namespace).Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestUnreadable: a report that cannot be read, or that takes gigabytes of memory although it is small, is shown as
// such, on the list of plans and as a metric, and the others are shown.
func TestUnreadable(t *testing.T) {
	bomb := `{"checks":[{}` + strings.Repeat(",{}", 1_000_000) + `]}`
	var small bytes.Buffer
	w := gzip.NewWriter(&small)
	if _, err := w.Write([]byte(bomb)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		content []byte
		text    string
		want    string
	}{
		{"no gzip", []byte("not gzip"), "", "is corrupt"},
		{"millions of checks", small.Bytes(), bomb, "takes too much memory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.save(t, reportOf(t, "pass"), "broken", "broken-run-1", "uid-broken", s.now)
			s.replace(t, "uid-broken", tt.content, tt.text)
			body := s.ask(http.MethodGet, "/").Body.String()
			for _, want := range []string{"not read: load report", tt.want, "day-2-run-12"} {
				if !strings.Contains(body, want) {
					t.Errorf("the list does not have %q:\n%s", want, body)
				}
			}
			metrics := s.ask(http.MethodGet, "/metrics").Body.String()
			for _, want := range []string{`checkplan_report_readable{plan="broken",run="broken-run-1"} 0`, `checkplan_report_readable{plan="day-2",run="day-2-run-12"} 1`} {
				if !strings.Contains(metrics, want) {
					t.Errorf("the metrics do not have %s", want)
				}
			}
			if w := s.ask(http.MethodGet, "/runs/checks/uid-broken"); w.Code != http.StatusBadGateway {
				t.Errorf("status %d", w.Code)
			}
		})
	}
}

// TestSlow: plans whose reports take all the time of a page do not make the page fail. Plans for which there was no time
// are shown as such, and the next page begins with them.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		for _, namespace := range []string{"a", "a2", "b", "c"} {
			s.saveIn(t, namespace, reportOf(t, "pass"), "slow", "slow-run-1", "uid-slow", s.now)
		}
		s.everywhere()
		s.client.PrependReactor("get", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetNamespace() == namespace {
				return false, nil, nil
			}
			time.Sleep(planTime - time.Second)
			return true, nil, apierrors.NewBadRequest("slow")
		})
		const late = "not read: this page reached its time limit"
		for _, tt := range []struct{ target, first, then string }{
			{"/metrics", `checkplan_report_readable{namespace="checks",plan="day-2",run="day-2-run-12"} 0`,
				`checkplan_report_readable{namespace="checks",plan="day-2",run="day-2-run-12"} 1`},
			{"/", late, "into the pods of worker-2: nothing gets through"},
			{"/nodes", "Plan checks/day-2 is left out: " + late, `href="/nodes/node-a"`},
			{"/nodes/worker-2", late, "into the pods of worker-2: nothing gets through"},
		} {
			s.late = ref{"a", "slow"}
			for _, want := range []string{tt.first, tt.then} {
				w := s.ask(http.MethodGet, tt.target)
				if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
					t.Errorf("%s: status %d, does not have %q:\n%s", tt.target, w.Code, want, w.Body)
				}
				s.now = s.now.Add(fresh)
			}
		}
	})
}

// TestCluster: an API server that refuses is an error, never an empty list.
func TestCluster(t *testing.T) {
	s := newSite(t)
	s.client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, fmt.Errorf("forbidden by policy")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	w := s.ask(http.MethodGet, "/metrics", func(r *http.Request) { *r = *r.WithContext(ctx) })
	if w.Code < 500 || strings.Contains(w.Body.String(), "checkplan_") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

// TestFresh: within ten seconds a page comes from the cache, later from the cluster; what is kept is bounded.
func TestFresh(t *testing.T) {
	s := newSite(t)
	before := s.ask(http.MethodGet, "/").Body.String()
	s.client.ClearActions()
	s.save(t, reportOf(t, "pass"), "later", "later-run-1", "uid-later", s.now)
	s.client.ClearActions()
	if s.ask(http.MethodGet, "/").Body.String() != before || len(s.client.Actions()) > 0 {
		t.Error("a page of a moment ago was read again")
	}
	s.now = s.now.Add(fresh)
	if !strings.Contains(s.ask(http.MethodGet, "/").Body.String(), "later-run-1") {
		t.Error("a page is too old")
	}
	var c cache
	for i := range 100 {
		c.put(fmt.Sprint(i), make([]byte, 1<<20), s.now.Add(time.Duration(i)))
		c.put(fmt.Sprint(i), make([]byte, 1<<20), s.now.Add(time.Duration(i)))
	}
	c.put("huge", make([]byte, cacheBytes), s.now.Add(time.Hour))
	if c.size > cacheBytes || len(c.pages) > 32 {
		t.Errorf("%d pages of %d bytes are kept", len(c.pages), c.size)
	}
	if _, ok := c.get("huge", s.now); ok {
		t.Error("a page larger than all is kept")
	}
}
