// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"time"

	"slices"
	"strings"
	"unicode"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// rules are those of a vmLatency check, in the order in which their problems are
// reported.
func rules() []kind.Rule {
	return slices.Concat([]kind.Rule{
		kind.RuleOf("durations", durations),
		kind.RuleOf("families-twice", func(v *Spec, r kind.Reporter) { kind.FamiliesTwice(v.IPFamilies, r) }),
		kind.RuleOf("latency-order", func(v *Spec, r kind.Reporter) { kind.LatencyOrder(v.Expect.Latency, r) }),
		kind.RuleOf("loss-all", func(v *Spec, r kind.Reporter) { kind.LossAll(v.Expect.Loss, r) }),
		kind.RuleOf("jitter-one", jitterOne),
		kind.RuleOf("regression", func(v *Spec, r kind.Reporter) { kind.Regression(v.Expect.Regression, r) }),
		kind.RuleOf("probe-timeout", probeTimeout),
		kind.RuleOf("no-network", noNetwork),
		kind.RuleOf("network-twice", networkTwice),
		kind.RuleOf("no-family", noFamily),
		kind.RuleOf("node-pair", nodePair),
		kind.RuleOf("too-many-vms", tooManyVMs),
		kind.RuleOf("measurements", measurements),
		kind.RuleOf("guest-login", guestLogin),
		{Name: "kiagnose-twice", Plan: kiagnoseTwice},
	}, kind.KubernetesRules(parts))
}

// parts are the fields to which Kubernetes' own rules apply.
func parts(v *Spec) kind.Parts {
	p := kind.Parts{Memories: []kind.Part[string]{kind.At(v.Guest.Memory, "guest", "memory")}}
	for i, n := range v.Networks {
		p.Names = append(p.Names, kind.At(n.Name, "networks", kind.Index(i), "name"))
		p.Namespaces = append(p.Namespaces, kind.At(n.Namespace, "networks", kind.Index(i), "namespace"))
	}
	for i, pair := range v.Pairs {
		p.Names = append(
			p.Names,
			kind.At(pair.Source, "pairs", kind.Index(i), "source"),
			kind.At(pair.Target, "pairs", kind.Index(i), "target"),
		)
	}
	if c := v.Kiagnose; c != nil {
		p.Names = append(p.Names, kind.At(c.Name, "kiagnose", "name"))
		p.Namespaces = append(p.Namespaces, kind.At(c.Namespace, "kiagnose", "namespace"))
	}
	return p
}

func durations(v *Spec, report kind.Reporter) {
	check := func(d checkup.Duration, path ...string) { kind.Duration(d, 1, report, path...) }
	check(v.Duration, "duration")
	check(v.Interval, "interval")
	kind.LatencyDurations(v.Expect.Latency, report)
	if max := v.Expect.Jitter.Max; max != nil {
		check(*max, "expect", "jitter", "max")
	}
	kind.Timeouts(v.Timeouts, report)
}

func noNetwork(v *Spec, report kind.Reporter) {
	if len(v.Networks) == 0 {
		report([]string{"networks"}, "no network: want at least one NetworkAttachmentDefinition")
	}
}

func networkTwice(v *Spec, report kind.Reporter) {
	kind.Duplicates(v.Networks, report, "networks")
}

func noFamily(v *Spec, report kind.Reporter) {
	if len(v.IPFamilies) == 0 {
		report([]string{"ipFamilies"}, "no IP family: want IPv4, IPv6 or both")
	}
}

func nodePair(v *Spec, report kind.Reporter) {
	for i, p := range v.Pairs {
		switch at := []string{"pairs", kind.Index(i)}; {
		case (p.Source == "") != (p.Target == ""):
			report(at, "illegal source and target nodes combination: want both, or no pair, which means any two nodes")
		case p.Source == "":
			report(at, "names no node: want source and target, or no pair, which means any two nodes")
		case slices.Contains(v.Pairs[:i], p):
			report(at, "duplicate: %s to %s", p.Source, p.Target)
		}
	}
}

func tooManyVMs(v *Spec, report kind.Reporter) {
	if n := 2 * len(v.Networks) * max(1, len(v.Pairs)); n > MaxVMs {
		report(
			[]string{"networks"},
			"%d networks and %d pairs of nodes are %d VMs at once: want at most %d: split the check, and run the parts one after the other",
			len(v.Networks),
			max(1, len(v.Pairs)),
			n,
			MaxVMs,
		)
	}
}

func measurements(v *Spec, report kind.Reporter) {
	if v.Duration <= 0 || v.Duration > checkup.MaxTimeout || v.Interval <= 0 {
		return
	}
	switch n := v.Measurements(); {
	case v.Interval > v.Duration:
		report([]string{"interval"}, "%s is longer than duration, %s", v.Interval, v.Duration)
	case n > checkup.MaxEchoes:
		report(
			[]string{"interval"},
			"%s for %s are %d measurements of each pair: want at most %d: an interval of %s or more",
			v.Interval,
			v.Duration,
			n,
			checkup.MaxEchoes,
			LeastInterval(v.Duration),
		)
	}
}

func jitterOne(v *Spec, report kind.Reporter) {
	if v.Expect.Jitter.Max != nil && v.Duration == v.Interval {
		report(
			[]string{"expect", "jitter", "max"},
			"jitter is a difference between two delays, but a pair sends one echo request",
		)
	}
}

// LeastProbe is the shortest timeouts.probe, in whole seconds, with which a check can end: guests have three quarters
// of it, in addition to the duration, for the measurement of connectivity back, and the waits for its answers, for the
// control that must have no answer, and for the last answer.
func LeastProbe(v *Spec) checkup.Duration {
	count, interval := checkup.VMConnectivity(v.Measurements(), v.Interval)
	need := checkup.Duration(count-1)*interval + 3*echoTimeout
	const second = checkup.Duration(time.Second)
	return (need*4/3 + second - 1) / second * second
}

func probeTimeout(v *Spec, report kind.Reporter) {
	if v.Timeouts.Probe <= 0 || v.Duration <= 0 || v.Interval <= 0 {
		return
	}
	if least := LeastProbe(v); v.Timeouts.Probe < least {
		report([]string{"timeouts", "probe"}, "%s is too short: want at least %s, which guests need if nothing answers",
			v.Timeouts.Probe, least)
	}
}

// kiagnoseTwice rejects checks that overwrite one another's outcome.
func kiagnoseTwice(p *checkup.Plan, report kind.Reporter) {
	first := map[checkup.ConfigMapRef]string{}
	for _, name := range p.CheckNames() {
		v, ok := p.Checks[name].Spec.(*Spec)
		if !ok || v.Kiagnose == nil {
			continue
		}
		if other, ok := first[*v.Kiagnose]; ok {
			report(
				[]string{"checks", name, string(Name), "kiagnose"},
				"check %s writes its outcome to the same ConfigMap",
				other,
			)
			continue
		}
		first[*v.Kiagnose] = name
	}
}

func guestLogin(v *Spec, report kind.Reporter) {
	switch login := v.Guest.Login; {
	case v.Guest.Image == "" && login != nil:
		report([]string{"guest", "login"}, "has no meaning without guest.image: checkplan's own guest needs no login")
	case v.Guest.Image != "" && (login == nil || login.User == ""):
		report(
			[]string{"guest"},
			"guest.image %q is measured from its serial console, which needs a login: want guest.login with user and password",
			v.Guest.Image,
		)
	case strings.ContainsFunc(v.Guest.Image, unicode.IsSpace):
		report([]string{"guest", "image"}, "%q: want the reference of an image, without a space", v.Guest.Image)
	case login != nil && strings.ContainsFunc(login.User+login.Password, unicode.IsControl):
		report([]string{"guest", "login"}, "has a control character, which a console would read as a key")
	}
}
