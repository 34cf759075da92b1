// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// rules are those of a controlPlane check, in the order in which their problems are
// reported.
func rules() []kind.Rule {
	return append([]kind.Rule{
		kind.RuleOf("durations", durations),
		kind.RuleOf("families-twice", func(c *Spec, r kind.Reporter) { kind.FamiliesTwice(c.IPFamilies, r) }),
		kind.RuleOf("latency-order", func(c *Spec, r kind.Reporter) { kind.LatencyOrder(c.Expect.Latency, r) }),
		kind.RuleOf("loss-all", func(c *Spec, r kind.Reporter) { kind.LossAll(c.Expect.Loss, r) }),
		kind.RuleOf("probe-timeout", probeTimeout),
		kind.RuleOf("role-name", roleName),
		kind.RuleOf("role-where", roleWhere),
		kind.RuleOf("role-host", roleHost),
		kind.RuleOf("role-tls", roleTLS),
		kind.RuleOf("pair-role", pairRole),
		kind.RuleOf("pair-twice", pairTwice),
		kind.RuleOf("watch-interval", watchInterval),
		kind.RuleOf("watch-length", watchLength),
	}, kind.KubernetesRules(parts)...)
}

// parts are the fields to which Kubernetes' own rules apply.
func parts(c *Spec) kind.Parts {
	p := kind.Parts{
		Placements: []kind.Part[checkup.Placement]{kind.At(c.Placement, "placement")},
		Resources:  []kind.Part[checkup.Resources]{kind.At(c.Resources, "resources")},
	}
	for _, name := range slices.Sorted(maps.Keys(c.Roles)) {
		role := c.Roles[name]
		if pods := role.Pods; pods != nil {
			p.Selectors = append(p.Selectors, kind.At(pods.Selector, "roles", name, "pods", "selector"))
			p.NeededNamespaces = append(p.NeededNamespaces, kind.At(pods.Namespace, "roles", name, "pods", "namespace"))
		}
		if service := role.Service; service != nil {
			p.Names = append(p.Names, kind.At(service.Name, "roles", name, "service", "name"))
			p.NeededNamespaces = append(
				p.NeededNamespaces,
				kind.At(service.Namespace, "roles", name, "service", "namespace"),
			)
		}
		p.Names = append(p.Names, kind.At(role.ClientCertificate, "roles", name, "clientCertificate"))
	}
	return p
}

func durations(c *Spec, report kind.Reporter) {
	check := func(d checkup.Duration, least checkup.Duration, path ...string) {
		kind.Duration(d, least, report, path...)
	}
	if c.For != nil {
		check(*c.For, 1, "for")
	}
	check(c.Interval, 1, "interval")
	check(c.Probe.Deadlines.Resolve, 1, "probe", "deadlines", "resolve")
	check(c.Probe.Deadlines.Connect, 1, "probe", "deadlines", "connect")
	check(c.Probe.Deadlines.Handshake, 1, "probe", "deadlines", "handshake")
	check(c.Probe.Deadlines.Response, 1, "probe", "deadlines", "response")
	kind.LatencyDurations(c.Expect.Latency, report)
	if max := c.Expect.Outage.Max; max != nil {
		check(*max, 1, "expect", "outage", "max")
	}
	if c.ConnectivityChecks.Retention < 0 {
		report([]string{"connectivityChecks", "retention"}, "%s is less than 0s", c.ConnectivityChecks.Retention)
	}
	check(c.ConnectivityChecks.StaleAfter, 1, "connectivityChecks", "staleAfter")
	check(c.Limits.StartJitter, 0, "limits", "startJitter")
	kind.Timeouts(c.Timeouts, report)
}

// probeTimeout compares the timeout with the time that one pair takes if every stage
// of its last measurement takes its whole deadline.
func probeTimeout(c *Spec, report kind.Reporter) {
	if c.Timeouts.Probe <= 0 || c.Interval <= 0 || c.Interval > checkup.MaxTimeout ||
		c.Probe.Deadlines.Sum() > 4*checkup.MaxTimeout {
		return
	}
	need := c.Probe.Deadlines.Sum()
	if c.For == nil {
		need += checkup.Duration(min(c.Probe.Count, checkup.MaxCount)-1) * c.Interval
	}
	if have := c.Timeouts.Probe / 4 * 3; need > have {
		report(
			[]string{"timeouts", "probe"},
			"agents have three quarters of it, %s: less than the %s that a pair takes if every stage times out",
			have,
			need,
		)
	}
}

// eachRole yields the plan's roles by name.
func eachRole(c *Spec, yield func(name string, r ComponentRole, path []string)) {
	for _, name := range slices.Sorted(maps.Keys(c.Roles)) {
		yield(name, c.Roles[name], []string{"roles", name})
	}
}

func roleName(c *Spec, report kind.Reporter) {
	eachRole(c, func(name string, _ ComponentRole, path []string) {
		if kind.DNSLabel(name, path, report) && len(name) > 63 {
			report(path, "name has %d characters: a DNS label has at most 63", len(name))
		}
	})
}

func roleWhere(c *Spec, report kind.Reporter) {
	eachRole(c, func(name string, r ComponentRole, path []string) {
		n := 0
		for _, is := range []bool{r.Pods != nil, r.Service != nil, len(r.Hosts) > 0} {
			if is {
				n++
			}
		}
		switch _, refines := presetComponents[name]; {
		case n > 1:
			report(path, "want only one of pods, service and hosts, have %d", n)
		case n == 0 && !refines:
			report(
				path,
				"want one of pods, service and hosts: only a role of a preset (%s) needs none",
				presetNames(),
			)
		}
	})
}

func roleHost(c *Spec, report kind.Reporter) {
	eachRole(c, func(_ string, r ComponentRole, path []string) {
		for i, h := range r.Hosts {
			host, port, err := net.SplitHostPort(h)
			n, portErr := strconv.Atoi(port)
			switch at := append(slices.Clone(path), "hosts", kind.Index(i)); {
			case err != nil || portErr != nil || host == "" || n < 1 || n > 65535 || strings.ContainsAny(host, " /"):
				report(
					at,
					"%q: want host:port, with an IPv6 address in brackets, such as etcd.example.com:2379 or [2001:db8::1]:2379",
					h,
				)
			case slices.Contains(r.Hosts[:i], h):
				report(at, "duplicate: %q", h)
			}
		}
	})
}

func roleTLS(c *Spec, report kind.Reporter) {
	eachRole(c, func(_ string, r ComponentRole, path []string) {
		for _, field := range []struct{ name, value string }{
			{"serverName", r.ServerName}, {"path", r.Path}, {"clientCertificate", r.ClientCertificate},
		} {
			if field.value != "" && !r.TLS {
				report(append(slices.Clone(path), field.name), "has no effect: tls is false")
			}
		}
		if r.Path != "" && !strings.HasPrefix(r.Path, "/") {
			report(append(slices.Clone(path), "path"), "%q: want a path that begins with a slash", r.Path)
		}
	})
}

// presetComponents are the roles that a preset may have, and whether each has a
// Service.
var presetComponents = map[string]bool{
	componentKubeAPIServer:       true,
	componentAggregatedAPIServer: true,
	componentEtcd:                false,
	componentNode:                false,
	componentLoadBalancerIn:      false,
	componentLoadBalancerOut:     false,
}

func presetNames() string { return strings.Join(slices.Sorted(maps.Keys(presetComponents)), ", ") }

func pairRole(c *Spec, report kind.Reporter) {
	known := func(name string) bool {
		_, preset := presetComponents[name]
		_, own := c.Roles[name]
		return preset || own
	}
	all := slices.Sorted(maps.Keys(presetComponents))
	for name := range c.Roles {
		all = append(all, name)
	}
	slices.Sort(all)
	names := strings.Join(slices.Compact(all), ", ")
	for i, p := range c.Pairs {
		from, to := []string{"pairs", kind.Index(i), "from"}, []string{"pairs", kind.Index(i), "to"}
		role, own := c.Roles[p.From]
		switch {
		case !known(p.From):
			report(from, "unknown role %q: want one of %s", p.From, names)
		case own && len(role.Hosts) > 0,
			!own && (p.From == componentLoadBalancerIn || p.From == componentLoadBalancerOut):
			report(from, "role %q has hosts and no pods: no agent can probe from it", p.From)
		}
		name, facet, _ := strings.Cut(p.To, ".")
		role, own = c.Roles[name]
		service := own && role.Service != nil ||
			presetComponents[name] && (!own || role.Pods == nil && len(role.Hosts) == 0)
		switch {
		case !known(name):
			report(to, "unknown role %q: want one of %s", name, names)
		case facet == "service" && !service:
			report(to, "role %q has no Service", name)
		case facet == "host" && own && len(role.Hosts) > 0:
			report(to, "role %q has hosts: it has no pods on nodes", name)
		case facet != "" && facet != "service" && facet != "host":
			report(to, "%q: want <role>, <role>.service or <role>.host", p.To)
		case strings.HasSuffix(p.To, "."):
			report(to, "%q: want <role>, <role>.service or <role>.host", p.To)
		}
	}
}

func pairTwice(c *Spec, report kind.Reporter) {
	for i, p := range c.Pairs {
		if slices.Contains(c.Pairs[:i], p) {
			report([]string{"pairs", kind.Index(i)}, "duplicate: %s to %s", p.From, p.To)
		}
	}
}

func watchInterval(c *Spec, report kind.Reporter) {
	if c.For == nil {
		return
	}
	switch least := checkup.Duration(time.Second); {
	case c.Interval > 0 && c.Interval < least:
		report([]string{"interval"}, "%s: want at least 1s where for is set", c.Interval)
	case c.Interval > *c.For:
		report([]string{"interval"}, "%s is longer than for, %s", c.Interval, *c.For)
	}
}

func watchLength(c *Spec, report kind.Reporter) {
	if c.For == nil || c.Interval < checkup.Duration(time.Second) || *c.For > checkup.MaxTimeout {
		return
	}
	if n := c.Measurements(); n > checkup.MaxWatch {
		report(
			[]string{"for"},
			"%s at intervals of %s are %d measurements of each pair: want at most %d",
			*c.For,
			c.Interval,
			n,
			checkup.MaxWatch,
		)
	}
}
