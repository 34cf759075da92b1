// SPDX-License-Identifier: Apache-2.0

package print

import (
	"cmp"
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
// bytes for the same report. It is for Prometheus and others that scrape.
//
// Names that begin with pod_network_connectivity_check are those of OpenShift's
// cluster-network-operator (pkg/cmd/checkendpoints/controller/metrics.go), for
// every unit whose history a PodNetworkConnectivityCheck keeps. The count, a counter
// there, is written as of type unknown, because OpenMetrics wants the name of a
// counter to end in _total. As there, component is the namespace, and an established
// connection is a successful tcpConnect, whatever came after it. The latencies
// are medians, in nanoseconds: a report does not hold single ones. Prometheus does
// not write these names.
//
// Names that begin with checkplan are gauges, about the one run. Of the units of a
// check those are written that the report lists, where it lists all of them
// (CheckReport.Complete): a mesh of thousands of pairs is read by its delays. Their
// labels are plan, check, unit, source, target, family and those of the units
// (Unit.Labels), which are empty where a unit has no such label.
//
// Earlier versions named each kind's metrics apart. They have become:
//
//	checkplan_pairs, checkplan_placements           checkplan_units{noun}
//	checkplan_connection_verdict,
//	checkplan_vm_verdict, checkplan_vm_back_verdict checkplan_unit_verdict
//	checkplan_connection_measurements,
//	checkplan_vm_measurements                       checkplan_unit_measurements{stage}
//	checkplan_vm_loss_ratio                         checkplan_unit_loss_ratio
//	checkplan_vm_duplicates                         checkplan_unit_duplicates
//	checkplan_vm_delay_seconds                      checkplan_unit_delay_seconds{statistic,stage}
//	checkplan_outages                               checkplan_unit_outages
//	checkplan_longest_outage_seconds                checkplan_unit_longest_outage_seconds
//	checkplan_placement_nodes                       checkplan_unit_value{name}
//	checkplan_delay_seconds{quantile}               checkplan_delay_seconds{statistic}: min, p50 ... max
func OpenMetrics(w io.Writer, r *checkup.Report) error {
	var m Metrics
	m.Add(r, 0)
	return m.OpenMetrics(w)
}

// Prometheus writes the report in Prometheus' text format 0.0.4, sorted, the same bytes for the same report. It is for
// what does not read OpenMetrics: node_exporter's textfile collector, a Pushgateway, and promtool check metrics.
// It has all names that begin with checkplan, see OpenMetrics.
func Prometheus(w io.Writer, r *checkup.Report) error {
	var m Metrics
	m.Add(r, 0)
	return m.Prometheus(w)
}

// Metrics are the metrics of several reports, each of another plan. The zero value is empty.
type Metrics struct {
	// Namespaces adds the label namespace to all samples that begin with checkplan: plans of several namespaces may
	// have the same name.
	Namespaces bool
	m          metrics
}

// Bytes is about how much memory the metrics take.
func (x *Metrics) Bytes() int { return x.m.bytes }

// Add adds the metrics of a report. The report is not kept. They may take about so many bytes of memory; 0 is no limit.
// If they would take more, those of single units are left out; if that does not suffice, all of them, and Add returns
// false.
func (x *Metrics) Add(r *checkup.Report, most int) bool {
	for _, units := range []bool{true, false} {
		trial := metrics{namespace: x.namespace(r.Namespace), most: most}
		if most > 0 {
			trial.report(r, units)
		}
		if !trial.full {
			x.m.namespace = trial.namespace
			x.m.report(r, units)
			return true
		}
	}
	return false
}

func (x *Metrics) namespace(name string) string {
	if !x.Namespaces {
		return ""
	}
	return name
}

// Readable adds whether the newest report of a plan could be read: metrics that are missing must not look like a plan
// that is gone.
func (x *Metrics) Readable(namespace, plan, run string, readable bool) {
	x.m.namespace = x.namespace(namespace)
	x.m.top("checkplan_report_readable", "Whether the newest report of the plan could be read.", truth(readable),
		"plan", plan, "run", run)
}

// LeftOut adds how many plans have no metrics, because there are too many.
func (x *Metrics) LeftOut(plans int) {
	x.m.namespace = ""
	x.m.top("checkplan_plans_left_out", "Plans without metrics, because there are too many plans.", float64(plans))
}

// OpenMetrics writes all that was added, in the OpenMetrics text format. Its error is the writer's.
func (x *Metrics) OpenMetrics(w io.Writer) error {
	for _, name := range slices.Sorted(maps.Keys(x.m.families)) {
		if _, err := expfmt.MetricFamilyToOpenMetrics(w, x.m.families[name].proto(name)); err != nil {
			return fmt.Errorf("write metrics as OpenMetrics: %w", err)
		}
	}
	if _, err := expfmt.FinalizeOpenMetrics(w); err != nil {
		return fmt.Errorf("write metrics as OpenMetrics: %w", err)
	}
	return nil
}

// Prometheus writes all that was added, in Prometheus' text format, except the names of the reference: promtool refuses
// them, because of "_count", "_gauge" and labels in camelCase. Its error is the writer's.
func (x *Metrics) Prometheus(w io.Writer) error {
	for _, name := range slices.Sorted(maps.Keys(x.m.families)) {
		if slices.Contains(reference, name) {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(w, x.m.families[name].proto(name)); err != nil {
			return fmt.Errorf("write metrics as Prometheus text: %w", err)
		}
	}
	return nil
}

// The names of the reference.
const (
	checkCount     = "pod_network_connectivity_check_count"
	connectLatency = "pod_network_connectivity_check_tcp_connect_latency_gauge"
	resolveLatency = "pod_network_connectivity_check_dns_resolve_latency_gauge"
)

var reference = []string{checkCount, connectLatency, resolveLatency}

// metrics are families by name.
type metrics struct {
	families map[string]*family
	// namespace is the value of the label; empty for none.
	namespace string
	// bytes is about what the samples take, and most what they may take; 0 is no limit. full says that samples are
	// missing because of it.
	bytes, most int
	full        bool
}

// labelBytes is the longest value of a label: longer names come from nobody who means well.
const labelBytes = 1024

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

func (m *metrics) at(name, help string, labels []string) *sample {
	if m.namespace != "" && strings.HasPrefix(name, "checkplan_") {
		labels = append([]string{"namespace", m.namespace}, labels...)
	}
	var key strings.Builder
	for i := 1; i < len(labels); i += 2 {
		labels[i] = checkup.Clean(labels[i][:min(len(labels[i]), labelBytes)])
		key.WriteString(strconv.Quote(labels[i]))
	}
	f := m.families[name]
	if f == nil {
		f = &family{help: help, samples: map[string]*sample{}}
	}
	s := f.samples[key.String()]
	if s != nil {
		return s
	}
	s = &sample{labels: labels}
	// Values are in the key, and once more where Clean or a caller has made them.
	size := 2*key.Len() + 16*len(labels) + 200
	if m.most > 0 && m.bytes+size > m.most {
		m.full = true
		return s
	}
	if m.families == nil {
		m.families = map[string]*family{}
	}
	m.bytes += size
	m.families[name] = f
	f.samples[key.String()] = s
	return s
}

// add adds to a sample, which is 0 before.
func (m *metrics) add(name, help string, value float64, labels ...string) {
	m.at(name, help, labels).value += value
}

// top makes a sample at least so high.
func (m *metrics) top(name, help string, value float64, labels ...string) {
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

// report adds a report; units says whether with those of its single units.
func (m *metrics) report(r *checkup.Report, units bool) {
	m.run(r)
	labels := labelsOf(r)
	for i := range r.Checks {
		if m.full {
			return
		}
		m.check(r, &r.Checks[i])
		if units {
			m.units(r, &r.Checks[i], labels)
		}
	}
}

func (m *metrics) run(r *checkup.Report) {
	for _, v := range checkup.RunVerdicts {
		m.add(
			"checkplan_run_verdict",
			"Whether the run has this verdict.",
			truth(r.Verdict == v),
			"plan",
			r.Plan,
			"run",
			r.Run,
			"verdict",
			string(v),
		)
	}
	m.add("checkplan_run_passed", "Whether the run passes the plan's gate.", truth(r.Passed), "plan", r.Plan, "run", r.Run)
	for _, t := range []struct {
		name, help string
		time       time.Time
	}{
		{"checkplan_run_started_timestamp_seconds", "When the run started.", r.Started},
		{"checkplan_run_finished_timestamp_seconds", "When the run had finished.", r.Finished},
	} {
		if !t.time.IsZero() {
			m.add(t.name, t.help, float64(t.time.UnixMilli())/1000, "plan", r.Plan, "run", r.Run)
		}
	}
	m.add(
		"checkplan_leftovers",
		"Objects that teardown could not remove.",
		float64(len(r.Leftovers)),
		"plan",
		r.Plan,
		"run",
		r.Run,
	)
}

func (m *metrics) check(r *checkup.Report, c *checkup.CheckReport) {
	of := checkLabels(r, c)
	for _, v := range checkup.RunVerdicts {
		m.add(
			"checkplan_check_verdict",
			"Whether the check has this verdict.",
			truth(c.Verdict == v),
			of("kind", string(c.Kind), "verdict", string(v))...)
	}
	for _, v := range []struct {
		verdict checkup.Verdict
		n       int
	}{{checkup.Pass, c.Counts.Pass}, {checkup.Fail, c.Counts.Fail},
		{checkup.Undecided, c.Counts.Undecided}, {checkup.Unmeasured, c.Counts.Unmeasured}} {
		m.add(
			"checkplan_units",
			"Expected units by verdict; the noun is what the check counts.",
			float64(v.n),
			of("noun", nounOf(c), "verdict", string(v.verdict))...)
	}
	again, _ := lookedAgain(c)
	for _, found := range checkup.Confirmations {
		if n := again[found]; n > 0 {
			m.add(
				"checkplan_units_again",
				"Units of the second look by what it found.",
				float64(n),
				of("noun", nounOf(c), "confirmation", string(found))...)
		}
	}
	for _, f := range c.Findings {
		if f.Change != nil {
			m.add("checkplan_regressions", "Findings of what is worse than in earlier runs, by the kind of their cause.", 1,
				of("cause", string(f.Cause))...)
			continue
		}
		for _, cause := range f.Causes() {
			m.add("checkplan_findings", "Findings by the kind of their cause.", 1, of("cause", string(cause))...)
		}
	}
	m.add("checkplan_measurements", "Measurements that were made.", float64(c.Sent), of()...)
	if v := c.Coverage; v != nil && v.Noun == "" {
		m.add(
			"checkplan_coverage_ratio",
			"Share of the possible source-target pairs that were measured.",
			float64(v.Measured)/float64(max(1, v.Possible)),
			of()...)
	}
	if v := c.Cumulative; v != nil {
		m.add(
			"checkplan_cumulative_coverage_ratio",
			"Share of all pairs that all runs of the plan have measured.",
			float64(v.Measured)/float64(max(1, v.Possible)),
			of()...)
		m.add("checkplan_cumulative_failing_pairs", "Pairs that failed when they were measured last.",
			float64(v.Failing), of()...)
		if v.FailingUpperBound != nil {
			m.add(
				"checkplan_cumulative_failing_upper_bound_ratio",
				"Upper bound of the share of failing pairs, with 95% confidence.",
				*v.FailingUpperBound,
				of()...)
		}
	}
	m.delays(c.Delays, of)
	for _, k := range c.Conditions {
		for _, status := range []string{"True", "False", "Unknown"} {
			m.top(
				"checkplan_condition",
				"Whether the condition has this status.",
				truth(k.Status == status),
				of("type", k.Type, "status", status)...)
		}
	}
}

// checkLabels returns a function that returns the labels of a sample of a check.
func checkLabels(r *checkup.Report, c *checkup.CheckReport) func(labels ...string) []string {
	return func(labels ...string) []string { return append([]string{"plan", r.Plan, "check", c.Name}, labels...) }
}

// units adds what the report has of single units.
func (m *metrics) units(r *checkup.Report, c *checkup.CheckReport, unitLabels []string) {
	of := checkLabels(r, c)
	for i := range c.Units {
		u := &c.Units[i]
		if m.full {
			return
		}
		if u.Object != "" {
			m.reference(r, u)
		}
		if c.Complete {
			labels := of("unit", u.Name, "source", u.Source, "target", u.Target, "family", string(u.Family))
			for _, name := range unitLabels {
				labels = append(labels, name, u.Labels[name])
			}
			m.unit(u, c.Sent > 0, func(more ...string) []string { return append(labels[:len(labels):len(labels)], more...) })
		}
	}
}

// unitLabels are the labels of units that no Unit.Labels may have.
var unitLabels = []string{
	"plan",
	"check",
	"unit",
	"source",
	"target",
	"family",
	"verdict",
	"stage",
	"statistic",
	"name",
	"namespace",
}

// labelsOf lists the names of all labels of the units that are written, sorted: all
// samples of a name have the same labels.
func labelsOf(r *checkup.Report) []string {
	names := map[string]bool{}
	for i := range r.Checks {
		if !r.Checks[i].Complete {
			continue
		}
		for k := range r.Checks[i].Units {
			for name := range r.Checks[i].Units[k].Labels {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (m *metrics) delays(rows []checkup.DelayRow, of func(...string) []string) {
	for _, d := range rows {
		row := func(labels ...string) []string {
			return append(
				of(
					"transport",
					string(d.Transport),
					"family",
					string(d.Family),
					"size",
					strconv.Itoa(d.Size),
					"stage",
					string(d.Stage),
				),
				labels...)
		}
		if d.Sent > 0 {
			m.top(
				"checkplan_loss_ratio",
				"Share of the measurements of all pairs that failed, at the stage if there is one.",
				float64(d.Sent-d.Received)/float64(d.Sent),
				row()...)
		}
		if d.Delay != nil {
			for _, q := range []struct {
				statistic string
				micros    int64
			}{
				{"min", d.Delay.Min}, {"p50", d.Delay.P50}, {"p90", d.Delay.P90}, {"p95", d.Delay.P95},
				{"p99", d.Delay.P99}, {"max", d.Delay.Max},
			} {
				m.top(
					"checkplan_delay_seconds",
					"Round-trip delay, or delay of the stage, of all pairs by statistic.",
					float64(q.micros)/1e6,
					row("statistic", q.statistic)...)
			}
		}
	}
}

// unit writes what the report has of one unit; sent says that the check sends
// measurements.
func (m *metrics) unit(u *checkup.Unit, sent bool, of func(...string) []string) {
	for _, v := range checkup.Verdicts {
		m.top(
			"checkplan_unit_verdict",
			"Whether the unit has this verdict.",
			truth(u.Verdict == v),
			of("verdict", string(v))...)
	}
	if sent {
		measurements := func(n int, stage checkup.Stage) {
			m.add(
				"checkplan_unit_measurements",
				"Measurements of the unit by the stage that failed; empty: none did.",
				float64(n),
				of("stage", string(stage))...)
		}
		measurements(u.Received, "")
		lost := u.Sent - u.Received
		for stage, n := range u.Failures {
			measurements(n, stage)
			lost -= n
		}
		if lost > 0 { // of a unit whose measurements are not counted by stage
			measurements(lost, cmp.Or(cause(u).Stage, checkup.StageEcho))
		}
	}
	if u.Sent > 0 {
		m.top(
			"checkplan_unit_loss_ratio",
			"Share of the unit's measurements that failed.",
			float64(u.Sent-u.Received)/float64(u.Sent),
			of()...)
		m.add("checkplan_unit_duplicates", "Answers beyond the first to one measurement.", float64(u.Duplicates), of()...)
	}
	m.unitDelay(u.Delay, "", of)
	for stage, d := range u.Delays {
		m.unitDelay(d, stage, of)
	}
	if len(u.Failures)+len(u.Delays)+len(u.Outages) > 0 {
		m.add("checkplan_unit_outages", "Outages of the unit.", float64(len(u.Outages)), of()...)
	}
	for i := range u.Outages {
		m.top(
			"checkplan_unit_longest_outage_seconds",
			"How long the longest outage of the unit lasted, as far as it was measured.",
			u.Outages[i].Duration().Seconds(),
			of()...)
	}
	for _, v := range u.Values {
		value := v.Value
		switch v.Measure {
		case checkup.MeasureMicroseconds:
			value /= 1e6
		case checkup.MeasurePercent:
			value /= 100
		}
		m.at("checkplan_unit_value", "Further statistics of the unit by name, in seconds, bytes, ratios or numbers.", of("name", v.Name)).value = value
	}
}

func (m *metrics) unitDelay(d *checkup.Delay, stage checkup.Stage, of func(...string) []string) {
	if d == nil {
		return
	}
	for _, s := range []struct {
		name   string
		micros int64
	}{
		{"min", d.Min}, {"mean", d.Mean}, {"p50", d.P50}, {"p90", d.P90}, {"p95", d.P95}, {"p99", d.P99},
		{"max", d.Max}, {"stddev", d.StdDev}, {"jitter", d.Jitter},
	} {
		m.top(
			"checkplan_unit_delay_seconds",
			"Delay of the unit by statistic: of the round trip, or of the stage.",
			float64(s.micros)/1e6,
			of("statistic", s.name, "stage", string(stage))...)
	}
}

// reference writes the unit as OpenShift's cluster-network-operator would. Name
// resolution is counted apart only where there was one.
func (m *metrics) reference(r *checkup.Report, u *checkup.Unit) {
	labels := func(more ...string) []string {
		return append(
			[]string{"component", r.Namespace, "checkName", u.Object, "targetEndpoint", u.Labels["address"]},
			more...)
	}
	resolved := ""
	if u.Delays[checkup.StageResolve] != nil {
		resolved = "success"
	}
	unresolved, refused := u.Failures[checkup.StageResolve], u.Failures[checkup.StageConnect]
	for _, v := range []struct {
		connect, resolve string
		n                int
	}{{"success", resolved, u.Sent - unresolved - refused}, {"failure", resolved, refused}, {"", "failure", unresolved}} {
		if v.n > 0 {
			m.add(
				checkCount,
				"Report status of pod network connectivity checks over time.",
				float64(v.n),
				labels("tcpConnect", v.connect, "dnsResolve", v.resolve)...)
		}
	}
	for _, v := range []struct {
		name, help string
		stage      checkup.Stage
	}{
		{connectLatency, "Report latency of TCP connect to target endpoint over time.", checkup.StageConnect},
		{resolveLatency, "Report latency of DNS resolve of target endpoint over time.", checkup.StageResolve},
	} {
		if d := u.Delays[v.stage]; d != nil {
			m.top(v.name, v.help, float64(d.P50)*1000, labels()...)
		}
	}
}
