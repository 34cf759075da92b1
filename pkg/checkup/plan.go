// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// APIVersion is the API group and version of plans and reports in YAML and JSON.
const APIVersion = "checkplan.dev/v1alpha1"

// Plan is a named set of checks. Its defaults are filled in: they come from the CUE
// schema, and only pkg/load reads a user's file.
type Plan struct {
	// Name is a DNS label of at most MaxPlanName characters.
	Name string `json:"name"`
	// Description is free text about the plan, in one or more lines.
	Description string `json:"description,omitempty"`
	// Gate decides which verdicts make the PipelineRun fail.
	Gate Gate `json:"gate"`
	// Teardown decides when the fixtures of a run are removed.
	Teardown Teardown `json:"teardown"`
	// Retention limits what is kept in the cluster after a run.
	Retention Retention `json:"retention"`
	// Limits are what a run may use; nil if they are not limited.
	Limits *PlanLimits `json:"limits,omitempty"`
	// Schedule starts runs; nil if runs are started by hand only.
	Schedule *Schedule `json:"schedule,omitempty"`
	// Features are alpha features.
	Features Features `json:"features,omitzero"`
	// PodNetworkHealth configures the objects of the feature of that name; nil if it is off.
	PodNetworkHealth *PodNetworkHealth `json:"podNetworkHealth,omitempty"`
	// Checks are keyed by name, a DNS label of at most MaxCheckName characters.
	Checks map[string]Check `json:"checks"`
}

// MaxPlanName is the longest plan name, in characters. The dashboard names a run
// "<pipeline>-run-<milliseconds>" (18 more characters), and Kubernetes label values
// have at most 63.
const MaxPlanName = 45

// MaxCheckName is the longest check name, in characters. "setup-<check>" is the name of
// a pipeline task. Tekton makes the names of TaskRuns and pods from it and the plan's
// name, and shortens names of more than 63 characters.
const MaxCheckName = 20

// Gate decides whether a finished run counts as succeeded.
type Gate struct {
	// Require is the verdict that the run needs for the PipelineRun to succeed.
	Require Requirement `json:"require"`
	// MaxUnmeasured is the largest share of expected pairs that may be unmeasured. A run
	// without failures that exceeds it is inconclusive.
	MaxUnmeasured Percent `json:"maxUnmeasured"`
	// Confirm says that only a failure that a further look confirms fails a run, for kinds
	// of check that look again. Without it, the first look decides.
	Confirm bool `json:"confirm"`
}

// Requirement says which verdicts of a run pass the gate.
type Requirement string

const (
	RequirePass      Requirement = "Pass"      // only pass (the default)
	RequireNoFailure Requirement = "NoFailure" // pass and inconclusive
	RequireNothing   Requirement = "Nothing"   // every verdict: the run is for information only
)

// Requirements lists every Requirement, strictest first.
var Requirements = []Requirement{RequirePass, RequireNoFailure, RequireNothing}

// Admits reports whether a run with the given verdict passes the gate.
func (r Requirement) Admits(v RunVerdict) bool {
	switch r {
	case RequireNothing:
		return true
	case RequireNoFailure:
		return v == RunPass || v == RunInconclusive
	default:
		return v == RunPass
	}
}

// Teardown decides when the fixtures of a run are removed.
type Teardown string

const (
	TeardownAlways Teardown = "Always" // after every run (the default)
	TeardownOnPass Teardown = "OnPass" // kept for debugging unless the verdict is pass
	TeardownNever  Teardown = "Never"  // always kept; they end at their active deadline
)

// Teardowns lists every Teardown.
var Teardowns = []Teardown{TeardownAlways, TeardownOnPass, TeardownNever}

// Retention limits what is kept in the cluster after a run.
type Retention struct {
	// Reports is the number of reports of the plan that are kept, at least 1. The oldest
	// are deleted first. Of the finished PipelineRuns that a schedule started, as many are kept.
	Reports int `json:"reports"`
}

// Check is one check of a plan, of one kind.
type Check struct {
	// After names the checks whose probing must end before this check's setup starts.
	After []string
	// Spec holds the parameters of the check's kind; nil if the plan sets no kind.
	Spec Spec
	// Others are the further kinds that an invalid plan sets in this check, besides the
	// kind of Spec. It is empty in a valid plan.
	Others []Kind
}

// Kind is the name of a kind of check. It is the name of the check's field in CUE and
// JSON.
type Kind string

// Spec holds the parameters of a check of one kind. Its JSON is the value of the
// check's field.
type Spec interface {
	// Kind returns the kind that the parameters belong to.
	Kind() Kind
	// Params lists the parameters of the check, with names without the check's name.
	// Param.Write changes the Spec; a Spec is therefore a pointer.
	Params() []Param
	// PhaseTimeouts returns the longest times that setup and probing of the check may
	// take in all.
	PhaseTimeouts() Timeouts
	// Fixtures returns the roles of the pods and VMs that a run of the check may start.
	Fixtures() []Role
}

// MarshalJSON writes {"after": [...], "<kind>": {...}}. pkg/kinds reads it, because
// reading needs the map of kinds.
func (c Check) MarshalJSON() ([]byte, error) {
	fields := [][]byte{}
	add := func(name string, value any) error {
		key, err := json.Marshal(name)
		if err != nil {
			return err
		}
		b, err := json.Marshal(value)
		fields = append(fields, slices.Concat(key, []byte{':'}, b))
		return err
	}
	if len(c.After) > 0 {
		if err := add("after", c.After); err != nil {
			return nil, err
		}
	}
	if c.Spec != nil {
		if err := add(string(c.Spec.Kind()), c.Spec); err != nil {
			return nil, err
		}
	}
	return slices.Concat([]byte{'{'}, bytes.Join(fields, []byte{','}), []byte{'}'}), nil
}

// UnmarshalJSON always fails: only pkg/kinds knows all kinds.
func (c *Check) UnmarshalJSON([]byte) error {
	return errors.New("decode check: use pkg/kinds, which knows all kinds")
}

// Kind returns the kind of the check, or "" if none is set.
func (c Check) Kind() Kind {
	if c.Spec == nil {
		return ""
	}
	return c.Spec.Kind()
}

// PhaseTimeouts returns the longest times that setup and probing of the check may take
// in all; zero if no kind is set.
func (c Check) PhaseTimeouts() Timeouts {
	if c.Spec == nil {
		return Timeouts{}
	}
	return c.Spec.PhaseTimeouts()
}

// Fixtures returns the roles of the pods and VMs that a run of the check may start; nil
// if no kind is set.
func (c Check) Fixtures() []Role {
	if c.Spec == nil {
		return nil
	}
	return c.Spec.Fixtures()
}

// LabelSelector is metav1.LabelSelector of Kubernetes, with the same JSON.
type LabelSelector struct {
	MatchLabels      map[string]string     `json:"matchLabels,omitempty"`
	MatchExpressions []SelectorRequirement `json:"matchExpressions,omitempty"`
}

// IsZero reports whether the selector sets nothing.
func (s LabelSelector) IsZero() bool { return len(s.MatchLabels)+len(s.MatchExpressions) == 0 }

// SelectorRequirement is metav1.LabelSelectorRequirement.
type SelectorRequirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"` // In, NotIn, Exists, DoesNotExist
	Values   []string `json:"values,omitempty"`
}

// Placement selects nodes like the fields of the same names in a pod's spec.
type Placement struct {
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	Tolerations  []Toleration      `json:"tolerations,omitempty"`
	// Affinity is a corev1.NodeAffinity; empty means none. Only
	// requiredDuringSchedulingIgnoredDuringExecution is used. It is JSON because this
	// package does not import the types of Kubernetes.
	Affinity json.RawMessage `json:"affinity,omitempty"`
}

// Toleration is corev1.Toleration, with the same JSON.
type Toleration struct {
	Key               string `json:"key,omitempty"`
	Operator          string `json:"operator,omitempty"` // Exists or Equal; empty is Equal
	Value             string `json:"value,omitempty"`
	Effect            string `json:"effect,omitempty"` // NoSchedule, PreferNoSchedule, NoExecute; empty is all
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// Probe is how one transport is measured.
type Probe struct {
	// Sizes are payload sizes in bytes; each size is a separate pair. For tcp, it is the
	// number of bytes sent and echoed after the connect (0: only the connect). For udp
	// and icmp, the number of bytes after the UDP or ICMP header. For http, the size of
	// the response body that is requested (0: the response of Path).
	Sizes []int `json:"sizes"`
	// Count is how many times each pair is measured: connects, datagrams, echo
	// requests, requests.
	Count int `json:"count"`
	// Interval between the starts of two measurements of one pair.
	Interval Duration `json:"interval"`
	// Timeout of each measurement. Without an answer by then, it counts as lost.
	Timeout Duration `json:"timeout"`
	// Path of an http GET; empty for other transports.
	Path string `json:"path,omitempty"`
}

// Expect is what a pair must achieve. A nil limit is not checked.
type Expect struct {
	// Unreachable inverts the expectation: a pair passes if nothing came through, and
	// fails if anything did. It excludes the other limits.
	Unreachable bool `json:"unreachable"`
	// Loss limits the share of measurements without an answer (RFC 7680, here of
	// round trips, as RFC 2681).
	Loss LossLimit `json:"loss"`
	// Latency limits round-trip delay percentiles (RFC 2681).
	Latency LatencyLimits `json:"latency"`
	// Jitter limits the mean absolute difference of consecutive round-trip
	// delays (RFC 3393's IPDV, absolute mean as in RFC 5481 section 1).
	Jitter MaxDuration `json:"jitter"`
	// SourceAddress says whether packets must arrive with the source's own address. Empty
	// means Any.
	SourceAddress SourceAddress `json:"sourceAddress,omitempty"`
	// Regression compares with earlier runs of the plan; nil compares nothing.
	Regression *Regression `json:"regression,omitempty"`
}

// Regression says when a run is worse than earlier runs of the plan. docs/regression.md has the tests.
type Regression struct {
	// Fail says that a regression fails the check. Otherwise it is only reported.
	Fail bool `json:"fail"`
	// Runs is the least number of earlier runs to compare with, from LeastRegressionRuns to MostRegressionRuns. A run
	// without any change has a false alarm in at most one of Runs+1 cases.
	Runs int `json:"runs"`
	// MinFactor is the smallest rise of a delay that counts, as a multiple of the usual one. MinDelay is the smallest
	// rise itself. Both must be reached.
	MinFactor float64  `json:"minFactor"`
	MinDelay  Duration `json:"minDelay"`
	// MinLoss is the smallest rise of a loss that counts, in percentage points.
	MinLoss Percent `json:"minLoss"`
}

// Bounds of Regression.Runs: with fewer runs, chance alone would be an alarm too often; the history does not keep the
// values of more.
const (
	LeastRegressionRuns = 3
	MostRegressionRuns  = 60
	// The history knows delays to 5%: a smaller rise than a tenth is not visible.
	LeastRegressionFactor = 1.1
	MostRegressionFactor  = 1000.0
)

// SourceAddress is what a plan expects of the source address with which packets arrive.
type SourceAddress string

const (
	// PreservedSource: the target sees the address that the source itself sees. Kubernetes'
	// network model demands it between pods ("without NAT").
	PreservedSource SourceAddress = "Preserved"
	AnySource       SourceAddress = "Any"
)

// LossLimit is an upper limit on loss. If Max is nil, only a pair without any answer
// fails.
type LossLimit struct {
	Max *Percent `json:"max,omitempty"`
}

// MaxDuration is an upper limit; nil Max means no limit.
type MaxDuration struct {
	Max *Duration `json:"max,omitempty"`
}

// LatencyLimits are upper limits on percentiles of the round-trip delay.
type LatencyLimits struct {
	P50 *Duration `json:"p50,omitempty"`
	P90 *Duration `json:"p90,omitempty"`
	P95 *Duration `json:"p95,omitempty"`
	P99 *Duration `json:"p99,omitempty"`
	Max *Duration `json:"max,omitempty"`
}

// LatencyLimit is one named percentile with its limit.
type LatencyLimit struct {
	Name     string  // "p50" ... "max"
	Quantile float64 // 0.5 ... 1
	Limit    *Duration
}

// Ordered returns all limits from the lowest quantile to the highest. The Limit of an
// unset one is nil.
func (l LatencyLimits) Ordered() []LatencyLimit {
	return []LatencyLimit{
		{"p50", 0.50, l.P50}, {"p90", 0.90, l.P90}, {"p95", 0.95, l.P95}, {"p99", 0.99, l.P99}, {"max", 1, l.Max},
	}
}

// Limits bound the load of one agent on its node and on the network.
type Limits struct {
	// PacketsPerSecond is the largest number of measurements that one agent starts per
	// second.
	PacketsPerSecond int `json:"packetsPerSecond"`
	// Concurrency is the largest number of pairs that one agent measures at once.
	Concurrency int `json:"concurrency"`
	// StartJitter is the longest random wait before an agent's first packet.
	StartJitter Duration `json:"startJitter"`
}

// Resources of a pod's only container, as Kubernetes quantities.
type Resources struct {
	Requests map[string]string `json:"requests,omitempty"`
	Limits   map[string]string `json:"limits,omitempty"`
}

// Timeouts of the phases of a check.
type Timeouts struct {
	// Setup is how long the fixtures may take to become ready. Pairs with a fixture that
	// is not ready by then are unmeasured.
	Setup Duration `json:"setup"`
	// Probe is the longest time for all agents together.
	Probe Duration `json:"probe"`
}

// Transport is the protocol by which a pair is measured.
type Transport string

const (
	TCP  Transport = "tcp"
	UDP  Transport = "udp"
	ICMP Transport = "icmp"
	HTTP Transport = "http"
	// TLS is a TCP connection with a TLS handshake and, if the peer has a path, a GET.
	TLS Transport = "tls"
	// DNSUDP and DNSTCP are a question to a DNS server.
	DNSUDP Transport = "dns-udp"
	DNSTCP Transport = "dns-tcp"
)

// Transports lists every Transport in the order in which they are measured and
// printed.
var Transports = []Transport{TCP, UDP, ICMP, HTTP, TLS, DNSUDP, DNSTCP}

// IPFamily is Kubernetes' name of an IP family.
type IPFamily string

const (
	IPv4 IPFamily = "IPv4"
	IPv6 IPFamily = "IPv6"
	// AnyIPFamily is the family of a pair whose target is a DNS name. The family that
	// connects first is used.
	AnyIPFamily IPFamily = ""
)

// IPFamilies lists both families, without AnyIPFamily, in the order in which they are
// measured.
var IPFamilies = []IPFamily{IPv4, IPv6}

// Duration is a time.Duration. Its text form is that of metav1.Duration of Kubernetes:
// "5ms", "1m30s".
type Duration time.Duration

// MarshalText writes the duration as time.Duration prints it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText parses a duration as time.ParseDuration does.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("duration %q: want a number and a unit, such as 5ms or 1m30s", b)
	}
	*d = Duration(v)
	return nil
}

// String prints the duration as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }

// Percent is a share in percent. Its text form is "1%" or "0.5%".
type Percent float64

// PercentOf is part of whole, rounded to a thousandth; 0 of 0 is 0.
func PercentOf(part, whole int) Percent {
	if whole == 0 {
		return 0
	}
	return Percent(math.Round(100_000*float64(part)/float64(whole)) / 1000)
}

// MarshalText writes "1%".
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses "1%" or "0.5%", from 0% to 100%.
func (p *Percent) UnmarshalText(b []byte) error {
	number, ok := strings.CutSuffix(string(b), "%")
	v, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(v >= 0 && v <= 100) {
		return fmt.Errorf("percentage %q: want a number from 0 to 100 and a percent sign, such as 1%% or 0.5%%", b)
	}
	*p = Percent(v)
	return nil
}

// String prints "1%" or "0.5%".
func (p Percent) String() string { return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%" }

// Starts reports whether a run of the plan may create fixtures of a role.
func (p *Plan) Starts(role Role) bool {
	for _, c := range p.Checks {
		if slices.Contains(c.Fixtures(), role) {
			return true
		}
	}
	return false
}

// CheckNames returns the names of the plan's checks. A check comes after the checks in
// its After; otherwise the order is alphabetical. Names in a cycle come last.
func (p *Plan) CheckNames() []string {
	left := slices.Sorted(maps.Keys(p.Checks))
	var order []string
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(name string) bool {
			return !slices.ContainsFunc(p.Checks[name].After, func(a string) bool { return slices.Contains(left, a) })
		})
		if i < 0 {
			return append(order, left...)
		}
		order = append(order, left[i])
		left = slices.Delete(left, i, i+1)
	}
	return order
}

// TopologySpreadConstraint is corev1.TopologySpreadConstraint without a selector: it
// counts the pods of the workload itself.
type TopologySpreadConstraint struct {
	MaxSkew           int    `json:"maxSkew"`
	TopologyKey       string `json:"topologyKey"`
	WhenUnsatisfiable string `json:"whenUnsatisfiable"` // DoNotSchedule or ScheduleAnyway
}
