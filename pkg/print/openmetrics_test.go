// SPDX-License-Identifier: Apache-2.0

package print

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/ecosystem"
)

// parse reads what OpenMetrics wrote: as "name{label="value",...}" to value. Prometheus' own parser must take it as it
// is. The labels are in the order in which they were written, which parseText keeps.
func parse(t *testing.T, text string) map[string]float64 {
	t.Helper()
	parser := textparse.NewOpenMetricsParser([]byte(text), labels.NewSymbolTable())
	read := 0
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("Prometheus' parser of OpenMetrics: %v in\n%s", err, text)
		}
		if entry == textparse.EntrySeries {
			read++
		}
	}
	if !strings.HasSuffix(text, "# EOF\n") {
		t.Fatalf("does not end with # EOF:\n%s", text)
	}
	samples := parseText(t, strings.ReplaceAll(text, " unknown\n", " untyped\n"))
	if read != len(samples) {
		t.Errorf("Prometheus reads %d samples of %d", read, len(samples))
	}
	return samples
}

// parseText reads Prometheus' text format with the parser of node_exporter's textfile collector
// (collector/textfile.go, processFile) and of the Pushgateway (handler/push.go, Push), and has the checks that these
// make besides: no timestamps. A duplicate family or sample is an error of the parser or of this function.
func parseText(t *testing.T, text string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	samples := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if m.TimestampMs != nil {
				t.Errorf("%s has a timestamp", name)
			}
			key := name + "{" + strings.Join(labels, ",") + "}"
			if _, twice := samples[key]; twice {
				t.Errorf("duplicate: %s", key)
			}
			switch f.GetType() {
			case dto.MetricType_GAUGE:
				samples[key] = m.GetGauge().GetValue()
			default:
				samples[key] = m.GetUntyped().GetValue()
			}
		}
	}
	return samples
}

// TestOpenMetrics reads back what is written of every scenario.
func TestOpenMetrics(t *testing.T) {
	for name, r := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := OpenMetrics(&b, &r); err != nil {
				t.Fatal(err)
			}
			samples := parse(t, b.String())
			if got := samples[fmt.Sprintf("checkplan_run_verdict{plan=%q,run=%q,verdict=%q}", r.Plan, r.Run, r.Verdict)]; got != 1 {
				t.Errorf("the verdict %s is %v", r.Verdict, got)
			}
			for _, c := range r.Checks {
				for v, want := range map[checkup.Verdict]int{checkup.Pass: c.Counts.Pass, checkup.Fail: c.Counts.Fail, checkup.Unmeasured: c.Counts.Unmeasured} {
					key := fmt.Sprintf("checkplan_units{plan=%q,check=%q,noun=%q,verdict=%q}", r.Plan, checkup.Clean(c.Name), nounOf(&c), v)
					if got, ok := samples[key]; !ok || got != float64(want) {
						t.Errorf("%s is %v, want %d", key, got, want)
					}
				}
			}
			lines := strings.Split(b.String(), "\n")
			var names []string
			for _, l := range lines {
				if strings.HasPrefix(l, "# TYPE ") {
					names = append(names, strings.Fields(l)[2])
				}
			}
			if !slices.IsSorted(names) {
				t.Errorf("names are not sorted: %q", names)
			}
		})
	}
}

// TestPrometheusText: the text format is what the textfile collector and a Pushgateway take, promtool's linter has no
// remark, and it has the metrics of OpenMetrics except those with names of the reference. (make e2e-pages runs
// promtool.)
func TestPrometheusText(t *testing.T) {
	left := map[string]bool{}
	reports, samples, remarks := 0, 0, 0
	for name, r := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			var open, text bytes.Buffer
			if err := errors.Join(OpenMetrics(&open, &r), Prometheus(&text, &r)); err != nil {
				t.Fatal(err)
			}
			want := parse(t, open.String())
			reports, samples = reports+1, samples+len(want)
			for key := range want {
				if family, _, _ := strings.Cut(key, "{"); !strings.HasPrefix(family, "checkplan_") {
					left[family] = true
					delete(want, key)
				}
			}
			if diff := cmp.Diff(want, parseText(t, text.String())); diff != "" {
				t.Errorf("not the samples of OpenMetrics (-OpenMetrics +text):\n%s", diff)
			}
			problems, err := promlint.New(&text).Lint()
			if err != nil {
				t.Fatal(err)
			}
			remarks += len(problems)
			for _, p := range problems {
				t.Errorf("promtool: %s %s", p.Metric, p.Text)
			}
		})
	}
	if len(left) != len(reference) {
		t.Errorf("only OpenMetrics has %v, want %v", left, reference)
	}
	const section = "Prometheus and other formats"
	all := fmt.Sprintf("of %d reports", reports)
	common := ecosystem.Version(t, "github.com/prometheus/common")
	ecosystem.Row(t, section, "Prometheus' parser of OpenMetrics (`model/textparse`)", ecosystem.Version(t, "github.com/prometheus/prometheus"),
		"`--output openmetrics` "+all, fmt.Sprintf("%d samples, no error", samples))
	ecosystem.Row(t, section, "parser of the textfile collector and the Pushgateway (`expfmt.TextParser`)", common,
		"`--output prometheus` "+all, "the same samples of checkplan, no error, no timestamp")
	ecosystem.Row(t, section, "promtool's linter (`promlint`)", ecosystem.Version(t, "github.com/prometheus/client_golang"),
		"`--output prometheus` "+all, checkup.Count(remarks, "remark"))
}

// TestReferenceMetrics checks names, labels and values against those that
// OpenShift's cluster-network-operator exposes.
func TestReferenceMetrics(t *testing.T) {
	connection := checkup.Unit{
		Name: "a-to-b-443", Object: "a-to-b-443", Source: "a", Target: "b", Labels: map[string]string{"address": "api.example.com:443"}, Verdict: checkup.Fail, Sent: 10, Received: 4,
		Failures: map[checkup.Stage]int{checkup.StageResolve: 1, checkup.StageConnect: 2, checkup.StageHandshake: 3},
		Delays:   map[checkup.Stage]*checkup.Delay{checkup.StageResolve: {P50: 1500}, checkup.StageConnect: {P50: 2241}},
		Outages:  []checkup.Outage{{Start: time.Unix(10, 0), End: time.Unix(40, 0), Last: time.Unix(39, 0), Failures: 6}},
	}
	address := connection
	address.Name, address.Object, address.Failures = "a-to-c-443", "a-to-c-443", nil
	address.Labels = map[string]string{"address": "10.0.0.1:443"}
	address.Delays = map[checkup.Stage]*checkup.Delay{checkup.StageConnect: {P50: 3}}
	address.Received = 10
	r := &checkup.Report{Plan: "p", Namespace: "ns", Checks: []checkup.CheckReport{
		{Name: "one", Complete: true, Sent: 20, Units: []checkup.Unit{connection, address}},
		{Name: "two", Complete: true, Sent: 10, Units: []checkup.Unit{address}}, // the same pair in two checks
	}}
	var b bytes.Buffer
	if err := OpenMetrics(&b, r); err != nil {
		t.Fatal(err)
	}
	samples := parse(t, b.String())
	for key, want := range map[string]float64{
		`pod_network_connectivity_check_count{component="ns",checkName="a-to-b-443",targetEndpoint="api.example.com:443",tcpConnect="success",dnsResolve="success"}`: 7,
		`pod_network_connectivity_check_count{component="ns",checkName="a-to-b-443",targetEndpoint="api.example.com:443",tcpConnect="failure",dnsResolve="success"}`: 2,
		`pod_network_connectivity_check_count{component="ns",checkName="a-to-b-443",targetEndpoint="api.example.com:443",tcpConnect="",dnsResolve="failure"}`:        1,
		`pod_network_connectivity_check_count{component="ns",checkName="a-to-c-443",targetEndpoint="10.0.0.1:443",tcpConnect="success",dnsResolve=""}`:               20,
		`pod_network_connectivity_check_tcp_connect_latency_gauge{component="ns",checkName="a-to-b-443",targetEndpoint="api.example.com:443"}`:                       2_241_000,
		`pod_network_connectivity_check_dns_resolve_latency_gauge{component="ns",checkName="a-to-b-443",targetEndpoint="api.example.com:443"}`:                       1_500_000,
		`checkplan_unit_longest_outage_seconds{plan="p",check="one",unit="a-to-b-443",source="a",target="b",family="",address="api.example.com:443"}`:                30,
		`checkplan_unit_measurements{plan="p",check="one",unit="a-to-b-443",source="a",target="b",family="",address="api.example.com:443",stage="handshake"}`:        3,
	} {
		if got, ok := samples[key]; !ok || got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if !strings.Contains(b.String(), "# TYPE pod_network_connectivity_check_count unknown\n") {
		t.Error("the count has another type than unknown, or none")
	}
}

// TestUnitMetrics checks what is written of single units: base units, and the same
// labels for all.
func TestUnitMetrics(t *testing.T) {
	r := toy()
	var b bytes.Buffer
	if err := OpenMetrics(&b, &r); err != nil {
		t.Fatal(err)
	}
	samples := parse(t, b.String())
	of := func(unit, labels string) string {
		return `{plan="day-2",check="toys",unit="` + unit + `",source="",target="",family="",` + labels + `}`
	}
	for key, want := range map[string]float64{
		"checkplan_unit_verdict" + of("drum", `material="wood",place="",verdict="fail"`):                 1,
		"checkplan_unit_verdict" + of("kite", `material="",place="attic",verdict="unmeasured"`):          1,
		"checkplan_unit_verdict" + of("top", `material="",place="",verdict="pass"`):                      1,
		"checkplan_unit_measurements" + of("drum", `material="wood",place="",stage=""`):                  2,
		"checkplan_unit_measurements" + of("drum", `material="wood",place="",stage="echo"`):              1,
		"checkplan_unit_duplicates" + of("drum", `material="wood",place=""`):                             1,
		"checkplan_unit_delay_seconds" + of("drum", `material="wood",place="",statistic="max",stage=""`): 3e-6,
		"checkplan_unit_value" + of("drum", `material="wood",place="",name="beat"`):                      .5,
		"checkplan_unit_value" + of("drum", `material="wood",place="",name="noise"`):                     .5,
		"checkplan_unit_value" + of("drum", `material="wood",place="",name="skins"`):                     2,
		`checkplan_condition{plan="day-2",check="toys",type="ToysTidy",status="False"}`:                  1,
		`checkplan_units{plan="day-2",check="balls",noun="ball",verdict="unmeasured"}`:                   6,
	} {
		if got, ok := samples[key]; !ok || got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if strings.Contains(b.String(), `check="balls",unit=`) {
		t.Error("units of a check that does not list all of them")
	}
}

// TestMetricsAreBounded: a report that needs more memory than it may take has no metrics of single units, then none at
// all. What it leaves out takes nothing from the others.
func TestMetricsAreBounded(t *testing.T) {
	one := scenarios(t)["connections-service"]
	one.Namespace = "checks"
	size := func(most int) (Metrics, bool) {
		m := Metrics{Namespaces: true}
		return m, m.Add(&one, most)
	}
	whole, _ := size(0)
	verdict := fmt.Sprintf("checkplan_run_verdict{namespace=%q,plan=%q,run=%q,verdict=%q}", "checks", one.Plan, one.Run, one.Verdict)
	for _, tt := range []struct {
		most        int
		units, runs bool
	}{{whole.Bytes(), true, true}, {whole.Bytes() - 1, false, true}, {1000, false, false}} {
		m, ok := size(tt.most)
		var b bytes.Buffer
		if err := m.OpenMetrics(&b); err != nil {
			t.Fatal(err)
		}
		_, runs := parse(t, b.String())[verdict]
		if units := strings.Contains(b.String(), "checkplan_unit_verdict{namespace="); ok != tt.runs || runs != tt.runs || units != tt.units || m.Bytes() > tt.most {
			t.Errorf("%d bytes of %d: units %v, runs %v, %v:\n%s", m.Bytes(), tt.most, units, runs, ok, b.String())
		}
	}
	long := one
	long.Plan = strings.Repeat("\u202e", labelBytes)
	var b bytes.Buffer
	if err := OpenMetrics(&b, &long); err != nil {
		t.Fatal(err)
	}
	for key := range parse(t, b.String()) {
		if len(key) > 8*labelBytes {
			t.Errorf("a sample has %d bytes of labels", len(key))
		}
	}
}
