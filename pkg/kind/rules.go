// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Problem is a broken rule of a plan whose fields each match the schema.
type Problem struct {
	// Rule is the name of the rule that the plan breaks.
	Rule string
	// Path to the field, by JSON names, an index of a list as "[0]"; empty for the
	// plan as a whole.
	Path []string
	// Message is one line, without the path.
	Message string
}

// String prints the path, if there is one, and the message.
func (p Problem) String() string {
	if len(p.Path) == 0 {
		return p.Message
	}
	return strings.ReplaceAll(strings.Join(p.Path, "."), ".[", "[") + ": " + p.Message
}

// Rule is one rule of a kind. One of Check and Plan is set. Several kinds may have a
// rule of the same name.
type Rule struct {
	Name string
	// Check reports what is wrong with the parameters of one check. Paths begin in
	// them.
	Check func(checkup.Spec, Reporter)
	// Plan reports what is wrong between checks. Paths begin at the plan.
	Plan func(*checkup.Plan, Reporter)
}

// Reporter takes one problem: where it is, and a message of one line.
type Reporter func(path []string, format string, args ...any)

// RuleOf is a rule about the parameters of one kind.
func RuleOf[S checkup.Spec](name string, check func(S, Reporter)) Rule {
	return Rule{Name: name, Check: func(spec checkup.Spec, report Reporter) {
		if s, ok := spec.(S); ok {
			check(s, report)
		}
	}}
}

// Index is an element of a list in a path.
func Index(i int) string { return fmt.Sprintf("[%d]", i) }

// dnsLabel is a DNS label as RFC 1123 allows it, in lower case as Kubernetes
// demands it.
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// DNSLabel reports whether a name is a DNS label, and a problem if it is not. It does not
// check the length.
func DNSLabel(name string, path []string, report Reporter) bool {
	if dnsLabel.MatchString(name) {
		return true
	}
	report(
		path,
		"name %q is not a DNS label: want lower-case letters, digits and hyphens, with no hyphen at either end",
		name,
	)
	return false
}

// Duration reports a duration that is below the least, which is 0 or 1, or above
// checkup.MaxTimeout.
func Duration(d, least checkup.Duration, report Reporter, path ...string) {
	switch {
	case d < least && least == 0:
		report(path, "%s is less than 0s", d)
	case d < least:
		report(path, "%s is not more than 0s", d)
	case d > checkup.MaxTimeout:
		report(path, "%s is more than a day", d)
	}
}

// Timeouts reports phases without a valid timeout.
func Timeouts(t checkup.Timeouts, report Reporter) {
	Duration(t.Setup, 1, report, "timeouts", "setup")
	Duration(t.Probe, 1, report, "timeouts", "probe")
}

// LatencyDurations reports limits in expect.latency that are not valid durations.
func LatencyDurations(limits checkup.LatencyLimits, report Reporter) {
	for _, l := range limits.Ordered() {
		if l.Limit != nil {
			Duration(*l.Limit, 1, report, "expect", "latency", l.Name)
		}
	}
}

// Duplicates reports elements of a list at path that are in the list before.
func Duplicates[T comparable](list []T, report Reporter, path ...string) {
	for i, v := range list {
		if slices.Contains(list[:i], v) {
			report(append(slices.Clone(path), Index(i)), "duplicate: %v", v)
		}
	}
}

// AtLeastOne reports a list at path that is empty or has duplicates. all names what it may contain.
func AtLeastOne[T comparable](list []T, noun, all string, report Reporter, path ...string) {
	if len(list) == 0 {
		report(path, "no %s: want at least one of %s", noun, all)
	}
	Duplicates(list, report, path...)
}

// FamiliesTwice reports IP families that are duplicates in ipFamilies.
func FamiliesTwice(families []checkup.IPFamily, report Reporter) {
	Duplicates(families, report, "ipFamilies")
}

// LatencyOrder reports limits in expect.latency that are below one on a lower
// percentile.
func LatencyOrder(limits checkup.LatencyLimits, report Reporter) {
	var lower *checkup.LatencyLimit
	for _, l := range limits.Ordered() {
		if l.Limit == nil {
			continue
		}
		if lower != nil && *lower.Limit > *l.Limit {
			report(
				[]string{"expect", "latency", l.Name},
				"%s limit %s is below the %s limit %s",
				l.Name,
				*l.Limit,
				lower.Name,
				*lower.Limit,
			)
		}
		lower = &l
	}
}

// LossAll reports a limit on loss, expect.loss.max, that no pair can exceed.
func LossAll(limit checkup.LossLimit, report Reporter) {
	if max := limit.Max; max != nil && *max >= 100 {
		report(
			[]string{"expect", "loss", "max"},
			"%s is no limit: a pair without any answer fails in any case; want less than 100%%",
			*max,
		)
	}
}

// Regression checks expect.regression of a kind that compares with earlier runs; nil has no problem.
func Regression(r *checkup.Regression, report Reporter) {
	if r == nil {
		return
	}
	at := func(field string) []string { return []string{"expect", "regression", field} }
	if r.Runs < checkup.LeastRegressionRuns || r.Runs > checkup.MostRegressionRuns {
		report(at("runs"), "%d: want from %d to %d", r.Runs, checkup.LeastRegressionRuns, checkup.MostRegressionRuns)
	}
	if !(r.MinFactor >= checkup.LeastRegressionFactor && r.MinFactor <= checkup.MostRegressionFactor) {
		report(at("minFactor"), "%g: want from %g to %g", r.MinFactor,
			checkup.LeastRegressionFactor, checkup.MostRegressionFactor)
	}
	Duration(r.MinDelay, 0, report, at("minDelay")...)
}
