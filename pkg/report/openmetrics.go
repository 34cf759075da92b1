// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// OpenMetrics writes the report in the OpenMetrics text format, sorted, the same
// bytes for the same report.
//
// Names that begin with pod_network_connectivity_check are those of OpenShift's
// cluster-network-operator (pkg/cmd/checkendpoints/controller/metrics.go), for
// every pair that was told measurement by measurement. The count, a counter
// there, is written as of type unknown, because OpenMetrics wants the name of a
// counter to end in _total. As there, component is the namespace, and a connection
// that stands is a successful tcpConnect, whatever came after it. The latencies
// are medians, in nanoseconds: a report does not hold single ones.
//
// Names that begin with checkplan are gauges, about the one run.
func OpenMetrics(w io.Writer, r *checkup.Report) error {
	m := metrics{}
	m.run(r)
	for i := range r.Checks {
		m.check(r, &r.Checks[i])
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if _, err := expfmt.MetricFamilyToOpenMetrics(w, m[name].proto(name)); err != nil {
			return fmt.Errorf("write report as OpenMetrics: %w", err)
		}
	}
	if _, err := expfmt.FinalizeOpenMetrics(w); err != nil {
		return fmt.Errorf("write report as OpenMetrics: %w", err)
	}
	return nil
}

const checkCount = "pod_network_connectivity_check_count"

// metrics are families by name.
type metrics map[string]*family

// family is the samples of one name, by their labels: no two have the same, as
// OpenMetrics demands.
type family struct {
	help    string
	samples map[string]*sample
}

type sample struct {
	labels []string // names and values by turns
	value  float64
}

func (m metrics) at(name, help string, labels []string) *sample {
	f := m[name]
	if f == nil {
		f = &family{help: help, samples: map[string]*sample{}}
		m[name] = f
	}
	var key strings.Builder
	for i := 1; i < len(labels); i += 2 {
		labels[i] = clean(labels[i])
		key.WriteString(strconv.Quote(labels[i]))
	}
	s := f.samples[key.String()]
	if s == nil {
		s = &sample{labels: labels}
		f.samples[key.String()] = s
	}
	return s
}

// add adds to a sample, which is 0 before.
func (m metrics) add(name, help string, value float64, labels ...string) {
	m.at(name, help, labels).value += value
}

// top makes a sample at least so high.
func (m metrics) top(name, help string, value float64, labels ...string) {
	s := m.at(name, help, labels)
	s.value = max(s.value, value)
}

func (f *family) proto(name string) *dto.MetricFamily {
	kind := dto.MetricType_GAUGE
	if name == checkCount {
		kind = dto.MetricType_COUNTER
	}
	p := &dto.MetricFamily{Name: &name, Help: &f.help, Type: &kind}
	for _, key := range slices.Sorted(maps.Keys(f.samples)) {
		s := f.samples[key]
		metric := &dto.Metric{}
		for i := 0; i+1 < len(s.labels); i += 2 {
			metric.Label = append(metric.Label, &dto.LabelPair{Name: &s.labels[i], Value: &s.labels[i+1]})
		}
		if kind == dto.MetricType_COUNTER {
			metric.Counter = &dto.Counter{Value: &s.value}
		} else {
			metric.Gauge = &dto.Gauge{Value: &s.value}
		}
		p.Metric = append(p.Metric, metric)
	}
	return p
}

// truth is 1 where something holds.
func truth(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

func (m metrics) run(r *checkup.Report) {
	for _, v := range checkup.RunVerdicts {
		m.add("checkplan_run_verdict", "Whether the run has this verdict.", truth(r.Verdict == v), "plan", r.Plan, "run", r.Run, "verdict", string(v))
	}
	m.add("checkplan_run_passed", "Whether the run passes the plan's gate.", truth(r.Passed), "plan", r.Plan, "run", r.Run)
	for _, t := range []struct {
		name, help string
		time       time.Time
	}{{"checkplan_run_started_timestamp_seconds", "When the run started.", r.Started}, {"checkplan_run_finished_timestamp_seconds", "When the run had finished.", r.Finished}} {
		if !t.time.IsZero() {
			m.add(t.name, t.help, float64(t.time.UnixMilli())/1000, "plan", r.Plan, "run", r.Run)
		}
	}
	m.add("checkplan_leftovers", "Objects that teardown could not remove.", float64(len(r.Leftovers)), "plan", r.Plan, "run", r.Run)
}

func (m metrics) check(r *checkup.Report, c *checkup.CheckReport) {
	of := func(labels ...string) []string { return append([]string{"plan", r.Plan, "check", c.Name}, labels...) }
	for _, v := range checkup.RunVerdicts {
		m.add("checkplan_check_verdict", "Whether the check has this verdict.", truth(c.Verdict == v), of("kind", string(c.Kind), "verdict", string(v))...)
	}
	counted, help := "checkplan_units", "Expected units by verdict."
	for _, v := range []struct {
		verdict checkup.Verdict
		n       int
	}{{checkup.Pass, c.Counts.Pass}, {checkup.Fail, c.Counts.Fail}, {checkup.Unmeasured, c.Counts.Unmeasured}} {
		m.add(counted, help, float64(v.n), of("verdict", string(v.verdict))...)
	}
	for _, f := range c.Findings {
		m.add("checkplan_findings", "Findings by the kind of their cause.", 1, of("cause", string(f.Cause))...)
	}
	m.add("checkplan_measurements", "Measurements that were made.", float64(c.Sent), of()...)
	if v := c.Coverage; v != nil {
		m.add("checkplan_coverage_ratio", "Share of the possible source-target pairs that were measured.", float64(v.Measured)/float64(max(1, v.Possible)), of()...)
	}
	m.delays(c.Delays, of)
}

func (m metrics) delays(rows []checkup.DelayRow, of func(...string) []string) {
	for _, d := range rows {
		row := func(labels ...string) []string {
			return append(of("transport", string(d.Transport), "family", string(d.Family), "size", strconv.Itoa(d.Size), "stage", string(d.Stage)), labels...)
		}
		if d.Sent > 0 {
			m.add("checkplan_loss_ratio", "Share of the measurements of all pairs that failed, at the stage if there is one.", float64(d.Sent-d.Received)/float64(d.Sent), row()...)
		}
		if d.Delay != nil {
			for _, q := range []struct {
				quantile string
				micros   int64
			}{{"0", d.Delay.Min}, {"0.5", d.Delay.P50}, {"0.9", d.Delay.P90}, {"0.95", d.Delay.P95}, {"0.99", d.Delay.P99}, {"1", d.Delay.Max}} {
				m.add("checkplan_delay_seconds", "Quantiles of the round-trip delays, or of the delays of the stage, of all pairs.", float64(q.micros)/1e6, row("quantile", q.quantile)...)
			}
		}
	}
}
