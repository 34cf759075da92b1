// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// APIVersion is the API group and version of plans and reports in YAML and JSON.
const APIVersion = "checkplan.dev/v1alpha1"

// Plan is a named set of checks. Defaults are already filled in: they are the
// CUE schema's, and pkg/load is the only place that reads a user's file.
type Plan struct {
	// Name is a DNS label of at most MaxPlanName characters.
	Name string `json:"name"`
	// Description says what the plan is for, in one line or more.
	Description string `json:"description,omitempty"`
	// Gate says which verdicts make the PipelineRun fail.
	Gate Gate `json:"gate"`
	// Teardown says when the fixtures of a run are removed.
	Teardown Teardown `json:"teardown"`
	// Retention bounds what stays in the cluster after a run.
	Retention Retention `json:"retention"`
	// Checks are keyed by name, a DNS label of at most MaxCheckName characters.
	Checks map[string]Check `json:"checks"`
}

// MaxPlanName is the longest plan name. The dashboard names a run
// "<pipeline>-run-<milliseconds>" (18 more characters), and Kubernetes label
// values end at 63.
const MaxPlanName = 45

// MaxCheckName is the longest check name: with "setup-" before it, it is a
// Tekton pipeline task name, and those with the plan's name make TaskRun and
// pod names that Tekton shortens from 63.
const MaxCheckName = 20

// Gate decides whether a finished run counts as succeeded.
type Gate struct {
	// Require is what the run's verdict must be for the PipelineRun to succeed.
	Require Requirement `json:"require"`
	// MaxUnmeasured is the share of expected pairs that may be unmeasured before
	// a run without failures is inconclusive instead of pass.
	MaxUnmeasured Percent `json:"maxUnmeasured"`
}

// Requirement is the gate's demand on the verdict of a run.
type Requirement string

const (
	RequirePass      Requirement = "Pass"      // only verdict pass succeeds (the default)
	RequireNoFailure Requirement = "NoFailure" // pass and inconclusive succeed
	RequireNothing   Requirement = "Nothing"   // informational: the run succeeds whatever the network did
)

// Requirements lists every Requirement, strictest first.
var Requirements = []Requirement{RequirePass, RequireNoFailure, RequireNothing}

// Admits reports whether a run of the given verdict succeeds.
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

// Teardown says when the fixtures of a run are removed.
type Teardown string

const (
	TeardownAlways Teardown = "Always" // after every run (the default)
	TeardownOnPass Teardown = "OnPass" // kept for debugging unless the verdict is pass
	TeardownNever  Teardown = "Never"  // kept always; they end by themselves at their active deadline
)

// Teardowns lists every Teardown.
var Teardowns = []Teardown{TeardownAlways, TeardownOnPass, TeardownNever}

// Retention bounds what stays in the cluster.
type Retention struct {
	// Reports is how many reports of the plan are kept, newest first; at least 1.
	Reports int `json:"reports"`
}

// Check is one question of one kind.
type Check struct {
	// After names the checks whose probing must be over before this one sets up.
	After []string
	// Spec has the parameters of the check's kind; nil in a plan that sets no kind.
	Spec Spec
	// Others are further kinds that a plan sets in this check, beside that of Spec. A
	// plan without problems has none.
	Others []Kind
}

// Kind is the name of a kind of check: the field of a check in CUE and JSON.
type Kind string

// Spec is the parameters of one kind of check. Its JSON is the value of the check's
// field.
type Spec interface {
	// Kind that the parameters are of.
	Kind() Kind
	// Params lists the tunables of the check, with names that begin behind the
	// check's own. Setting one writes into the Spec, which is why a Spec is a pointer.
	Params() []Param
	// PhaseTimeouts are how long setup and probing of the check may take, all
	// included.
	PhaseTimeouts() Timeouts
	// Fixtures are the roles of the pods and VMs that a run of the check may start.
	Fixtures() []Role
}

// MarshalJSON writes {"after": [...], "<kind>": {...}}. pkg/kinds reads it, because
// that takes the map of kinds.
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

// UnmarshalJSON always fails: only pkg/kinds knows the kinds that a check may be of.
func (c *Check) UnmarshalJSON([]byte) error {
	return errors.New("a check is decoded by pkg/kinds")
}

// Kind returns the kind of the check, or "" when none is set.
func (c Check) Kind() Kind {
	if c.Spec == nil {
		return ""
	}
	return c.Spec.Kind()
}

// PhaseTimeouts are how long setup and probing of the check may take, all
// included; zero when no kind is set.
func (c Check) PhaseTimeouts() Timeouts {
	if c.Spec == nil {
		return Timeouts{}
	}
	return c.Spec.PhaseTimeouts()
}

// Fixtures are the roles of the pods and VMs that a run of the check may start; none
// when no kind is set.
func (c Check) Fixtures() []Role {
	if c.Spec == nil {
		return nil
	}
	return c.Spec.Fixtures()
}

// LabelSelector is Kubernetes' metav1.LabelSelector in its own JSON spelling.
type LabelSelector struct {
	MatchLabels      map[string]string     `json:"matchLabels,omitempty"`
	MatchExpressions []SelectorRequirement `json:"matchExpressions,omitempty"`
}

// SelectorRequirement is metav1.LabelSelectorRequirement.
type SelectorRequirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"` // In, NotIn, Exists, DoesNotExist
	Values   []string `json:"values,omitempty"`
}

// Placement admits nodes, as the fields of the same names of a pod's spec do.
type Placement struct {
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	Tolerations  []Toleration      `json:"tolerations,omitempty"`
	// Affinity is a corev1.NodeAffinity; only what is required during scheduling
	// decides. Empty means none. It is kept as JSON because this package does not
	// import Kubernetes' types.
	Affinity json.RawMessage `json:"affinity,omitempty"`
}

// Toleration is corev1.Toleration in its own JSON spelling.
type Toleration struct {
	Key               string `json:"key,omitempty"`
	Operator          string `json:"operator,omitempty"` // Exists or Equal; empty is Equal
	Value             string `json:"value,omitempty"`
	Effect            string `json:"effect,omitempty"` // NoSchedule, PreferNoSchedule, NoExecute; empty is all
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// Probe is how one transport is measured.
type Probe struct {
	// Sizes are payload sizes in bytes; each is a pair of its own. For tcp, the
	// bytes sent and echoed after the connect (0: the connect alone). For udp and
	// icmp, the bytes behind the UDP or ICMP header. For http, the bytes of the
	// response body that the responder is asked for (0: whatever Path gives).
	Sizes []int `json:"sizes"`
	// Count is how many times each pair is measured: connects, datagrams, echo
	// requests, requests.
	Count int `json:"count"`
	// Interval between the starts of two measurements of one pair.
	Interval Duration `json:"interval"`
	// Timeout of each measurement, after which it is lost.
	Timeout Duration `json:"timeout"`
	// Path of an http GET; other transports have none.
	Path string `json:"path,omitempty"`
}

// Expect is what a pair must achieve. A nil limit is not checked.
type Expect struct {
	// Unreachable turns the expectation round: a pair passes if nothing at all
	// came through, and fails if anything did. It excludes the other limits.
	Unreachable bool `json:"unreachable"`
	// Loss limits the share of measurements without an answer (RFC 7680, here of
	// round trips, as RFC 2681).
	Loss LossLimit `json:"loss"`
	// Latency limits round-trip delay percentiles (RFC 2681).
	Latency LatencyLimits `json:"latency"`
	// Jitter limits the mean absolute difference of consecutive round-trip
	// delays (RFC 3393's IPDV, absolute mean as in RFC 5481 section 1).
	Jitter MaxDuration `json:"jitter"`
}

// LossLimit is an upper limit on loss; nil Max means loss is not judged, beyond
// the rule that a pair through which nothing came fails.
type LossLimit struct {
	Max *Percent `json:"max,omitempty"`
}

// MaxDuration is an upper limit, or none when Max is nil.
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

// Ordered returns the limits from the lowest quantile to the highest, the unset
// ones with a nil Limit.
func (l LatencyLimits) Ordered() []LatencyLimit {
	return []LatencyLimit{
		{"p50", 0.50, l.P50}, {"p90", 0.90, l.P90}, {"p95", 0.95, l.P95}, {"p99", 0.99, l.P99}, {"max", 1, l.Max},
	}
}

// Limits bound what one agent does to its node and to the network.
type Limits struct {
	// PacketsPerSecond is the most measurements that one agent starts per second.
	PacketsPerSecond int `json:"packetsPerSecond"`
	// Concurrency is the most pairs that one agent measures at once.
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
	// Setup is how long the fixtures may take to be ready; what is not ready by
	// then is unmeasured.
	Setup Duration `json:"setup"`
	// Probe is how long all agents together may take.
	Probe Duration `json:"probe"`
}

// Transport is what a pair is measured with.
type Transport string

const (
	TCP  Transport = "tcp"
	UDP  Transport = "udp"
	ICMP Transport = "icmp"
	HTTP Transport = "http"
	// TLS is a TCP connection with a TLS handshake on it and, where it has a path,
	// a GET.
	TLS Transport = "tls"
)

// Transports lists every Transport in the order in which they are measured and
// printed.
var Transports = []Transport{TCP, UDP, ICMP, HTTP, TLS}

// IPFamily is Kubernetes' name of an IP family.
type IPFamily string

const (
	IPv4 IPFamily = "IPv4"
	IPv6 IPFamily = "IPv6"
	// AnyIPFamily is the family of a pair whose target is a DNS name: whichever
	// family connects first.
	AnyIPFamily IPFamily = ""
)

// IPFamilies lists both families, not AnyIPFamily, in the order in which they
// are measured.
var IPFamilies = []IPFamily{IPv4, IPv6}

// Duration is a time.Duration that reads and writes itself as Kubernetes'
// metav1.Duration does: "5ms", "1m30s".
type Duration time.Duration

// MarshalText writes the duration as time.Duration prints it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
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

// Percent is a share written "1%" or "0.5%"; its value is in percent.
type Percent float64

// MarshalText writes "1%".
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads "1%" or "0.5%", from 0% to 100%.
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

// CheckNames returns the names of the plan's checks, each behind the ones that
// it comes after, else in alphabetical order. Names in a cycle come last.
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

// TopologySpreadConstraint is corev1.TopologySpreadConstraint. It counts the pods of
// the workload itself.
type TopologySpreadConstraint struct {
	MaxSkew           int    `json:"maxSkew"`
	TopologyKey       string `json:"topologyKey"`
	WhenUnsatisfiable string `json:"whenUnsatisfiable"` // DoNotSchedule or ScheduleAnyway
}
