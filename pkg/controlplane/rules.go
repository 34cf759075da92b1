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

// parts are what Kubernetes' own rules are about.
func parts(c *Spec) kind.Parts {
	p := kind.Parts{Resources: []kind.Part[checkup.Resources]{kind.At(c.Resources, "resources")}}
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

// probeTimeout compares the time that one pair takes when every stage of its
// last measurement takes all of its deadline with the timeout.
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
			"agents have three quarters of it, %s, which is less than the %s that a pair takes that answers at no stage",
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
			report(path, "name has %d characters, and a DNS label at most 63", len(name))
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
			report(path, "want one of pods, service and hosts to say where its instances are, have %d", n)
		case n == 0 && !refines:
			report(
				path,
				"want one of pods, service and hosts to say where its instances are; only a role of a preset (%s) does without",
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
					"%q: want host:port, an IPv6 address in brackets, such as etcd.example.com:2379 or [2001:db8::1]:2379",
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
		for _, field := range []struct{ name, value string }{{"serverName", r.ServerName}, {"path", r.Path}, {"clientCertificate", r.ClientCertificate}} {
			if field.value != "" && !r.TLS {
				report(append(slices.Clone(path), field.name), "has no meaning where tls is false")
			}
		}
		if r.Path != "" && !strings.HasPrefix(r.Path, "/") {
			report(append(slices.Clone(path), "path"), "%q: want a path that begins with a slash", r.Path)
		}
	})
}

// presetComponents are the roles that a preset may bring, and whether each has a
// Service.
var presetComponents = map[string]bool{
	checkup.ComponentKubeAPIServer: true, checkup.ComponentAggregatedAPIServer: true, checkup.ComponentEtcd: false, checkup.ComponentNode: false,
	checkup.ComponentLoadBalancerIn: false, checkup.ComponentLoadBalancerOut: false,
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
			report(from, "unknown role %q; there are %s", p.From, names)
		case own && len(role.Hosts) > 0,
			!own && (p.From == checkup.ComponentLoadBalancerIn || p.From == checkup.ComponentLoadBalancerOut):
			report(from, "role %q has hosts and no pods: no agent can probe from it", p.From)
		}
		name, facet, _ := strings.Cut(p.To, ".")
		role, own = c.Roles[name]
		service := own && role.Service != nil ||
			presetComponents[name] && (!own || role.Pods == nil && len(role.Hosts) == 0)
		switch {
		case !known(name):
			report(to, "unknown role %q; there are %s", name, names)
		case facet == "service" && !service:
			report(to, "role %q has no Service", name)
		case facet == "host" && own && len(role.Hosts) > 0:
			report(to, "role %q has hosts already, and no pods on nodes", name)
		case facet != "" && facet != "service" && facet != "host":
			report(to, "%q: want the name of a role, alone or with .service or .host behind it", p.To)
		case strings.HasSuffix(p.To, "."):
			report(to, "%q: want the name of a role, alone or with .service or .host behind it", p.To)
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
		report([]string{"interval"}, "%s: a pair is watched once a second at the most", c.Interval)
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
			"%s at intervals of %s are %d measurements of each pair, and each is kept: at most %d",
			*c.For,
			c.Interval,
			n,
			checkup.MaxWatch,
		)
	}
}
