// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// MaxWatch is the most measurements of one pair: each is kept, with its time.
const MaxWatch = 50_000

// MaxResults is the most measurements of all pairs of a check that are told one
// by one: they take about 15 bytes each in the record's ConfigMaps, and conclude
// reads them all.
const MaxResults = 1_000_000

func controlDurations(c *ControlPlane, report reporter) {
	check := func(d Duration, least Duration, path ...string) { checkDuration(report, d, least, path...) }
	if c.For != nil {
		check(*c.For, 1, "for")
	}
	check(c.Interval, 1, "interval")
	check(c.Probe.Deadlines.Resolve, 1, "probe", "deadlines", "resolve")
	check(c.Probe.Deadlines.Connect, 1, "probe", "deadlines", "connect")
	check(c.Probe.Deadlines.Handshake, 1, "probe", "deadlines", "handshake")
	check(c.Probe.Deadlines.Response, 1, "probe", "deadlines", "response")
	for _, l := range c.Expect.Latency.Ordered() {
		if l.Limit != nil {
			check(*l.Limit, 1, "expect", "latency", l.Name)
		}
	}
	if max := c.Expect.Outage.Max; max != nil {
		check(*max, 1, "expect", "outage", "max")
	}
	if c.ConnectivityChecks.Retention < 0 {
		report([]string{"connectivityChecks", "retention"}, "%s is less than 0s", c.ConnectivityChecks.Retention)
	}
	check(c.ConnectivityChecks.StaleAfter, 1, "connectivityChecks", "staleAfter")
	check(c.Limits.StartJitter, 0, "limits", "startJitter")
	timeouts(c.Timeouts, report)
}

func placementDurations(c *PlacementCheck, report reporter) { timeouts(c.Timeouts, report) }

// controlTimeout compares the time that one pair takes when every stage of its
// last measurement takes all of its deadline with the timeout.
func controlTimeout(c *ControlPlane, report reporter) {
	if c.Timeouts.Probe <= 0 || c.Interval <= 0 || c.Interval > MaxTimeout || c.Probe.Deadlines.Sum() > 4*MaxTimeout {
		return
	}
	need := c.Probe.Deadlines.Sum()
	if c.For == nil {
		need += Duration(min(c.Probe.Count, MaxCount)-1) * c.Interval
	}
	if have := c.Timeouts.Probe / 4 * 3; need > have {
		report([]string{"timeouts", "probe"}, "agents have three quarters of it, %s, which is less than the %s that a pair takes that answers at no stage", have, need)
	}
}

// eachRole yields the plan's roles by name.
func eachRole(c *ControlPlane, yield func(name string, r ComponentRole, path []string)) {
	for _, name := range slices.Sorted(maps.Keys(c.Roles)) {
		yield(name, c.Roles[name], []string{"roles", name})
	}
}

func roleName(c *ControlPlane, report reporter) {
	eachRole(c, func(name string, _ ComponentRole, path []string) {
		switch {
		case !dnsLabel.MatchString(name):
			report(path, "name %q is not a DNS label: want %s", name, dnsLabelWords)
		case len(name) > 63:
			report(path, "name has %d characters, and a DNS label at most 63", len(name))
		}
	})
}

func roleWhere(c *ControlPlane, report reporter) {
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
			report(path, "want one of pods, service and hosts to say where its instances are; only a role of a preset (%s) does without", presetNames())
		}
	})
}

func roleHost(c *ControlPlane, report reporter) {
	eachRole(c, func(_ string, r ComponentRole, path []string) {
		for i, h := range r.Hosts {
			host, port, err := net.SplitHostPort(h)
			n, portErr := strconv.Atoi(port)
			switch at := append(slices.Clone(path), "hosts", index(i)); {
			case err != nil || portErr != nil || host == "" || n < 1 || n > 65535 || strings.ContainsAny(host, " /"):
				report(at, "%q: want host:port, an IPv6 address in brackets, such as etcd.example.com:2379 or [2001:db8::1]:2379", h)
			case slices.Contains(r.Hosts[:i], h):
				report(at, "%q is there twice", h)
			}
		}
	})
}

func roleTLS(c *ControlPlane, report reporter) {
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
	ComponentKubeAPIServer: true, ComponentAggregatedAPIServer: true, ComponentEtcd: false, ComponentNode: false,
	ComponentLoadBalancerIn: false, ComponentLoadBalancerOut: false,
}

func presetNames() string { return strings.Join(slices.Sorted(maps.Keys(presetComponents)), ", ") }

func pairRole(c *ControlPlane, report reporter) {
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
		from, to := []string{"pairs", index(i), "from"}, []string{"pairs", index(i), "to"}
		role, own := c.Roles[p.From]
		switch {
		case !known(p.From):
			report(from, "unknown role %q; there are %s", p.From, names)
		case own && len(role.Hosts) > 0, !own && (p.From == ComponentLoadBalancerIn || p.From == ComponentLoadBalancerOut):
			report(from, "role %q has hosts and no pods: nothing can stand there to probe from it", p.From)
		}
		name, facet, _ := strings.Cut(p.To, ".")
		role, own = c.Roles[name]
		service := own && role.Service != nil || presetComponents[name] && (!own || role.Pods == nil && len(role.Hosts) == 0)
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

func pairTwice(c *ControlPlane, report reporter) {
	for i, p := range c.Pairs {
		if slices.Contains(c.Pairs[:i], p) {
			report([]string{"pairs", index(i)}, "%s to %s is there twice", p.From, p.To)
		}
	}
}

func watchInterval(c *ControlPlane, report reporter) {
	if c.For == nil {
		return
	}
	switch least := Duration(time.Second); {
	case c.Interval > 0 && c.Interval < least:
		report([]string{"interval"}, "%s: a pair is watched once a second at the most", c.Interval)
	case c.Interval > *c.For:
		report([]string{"interval"}, "%s is longer than for, %s", c.Interval, *c.For)
	}
}

func watchLength(c *ControlPlane, report reporter) {
	if c.For == nil || c.Interval < Duration(time.Second) || *c.For > MaxTimeout {
		return
	}
	if n := c.Measurements(); n > MaxWatch {
		report([]string{"for"}, "%s at intervals of %s are %d measurements of each pair, and each is kept: at most %d", *c.For, c.Interval, n, MaxWatch)
	}
}

// disabledPlacement is the rule of config.openshift.io/v1 Network, in its words,
// and what follows of it for our own demands.
func disabledPlacement(c *PlacementCheck, report reporter) {
	if c.Mode == DiagnosticsDisabled && (c.SourcePlacement != nil || c.TargetPlacement != nil) {
		report(nil, "cannot set networkDiagnostics.sourcePlacement and networkDiagnostics.targetPlacement when networkDiagnostics.mode is Disabled")
	}
	for _, demand := range []struct {
		name string
		min  *int
	}{{"minSources", c.Expect.MinSources}, {"minTargets", c.Expect.MinTargets}} {
		if c.Mode == DiagnosticsDisabled && demand.min != nil {
			report([]string{"expect", demand.name}, "%d: in mode Disabled nothing is placed, so there is nothing to demand", *demand.min)
		}
	}
}

func networkConfig(c *PlacementCheck, report reporter) {
	if c.NetworkConfig && (c.Mode != DiagnosticsNoOpinion || c.SourcePlacement != nil || c.TargetPlacement != nil) {
		report([]string{"networkConfig"}, "mode and placements are taken from the cluster's network.config.openshift.io, and cannot be given here too")
	}
}

func vmDurations(v *VMLatency, report reporter) {
	check := func(d Duration, path ...string) { checkDuration(report, d, 1, path...) }
	check(v.Duration, "duration")
	check(v.Interval, "interval")
	for _, l := range v.Expect.Latency.Ordered() {
		if l.Limit != nil {
			check(*l.Limit, "expect", "latency", l.Name)
		}
	}
	if max := v.Expect.Jitter.Max; max != nil {
		check(*max, "expect", "jitter", "max")
	}
	timeouts(v.Timeouts, report)
}

func noNetwork(v *VMLatency, report reporter) {
	if len(v.Networks) == 0 {
		report([]string{"networks"}, "no network: want at least one NetworkAttachmentDefinition")
	}
}

func networkTwice(v *VMLatency, report reporter) {
	for i, n := range v.Networks {
		if slices.Contains(v.Networks[:i], n) {
			report([]string{"networks", index(i)}, "%s is there twice", n)
		}
	}
}

func noFamily(v *VMLatency, report reporter) {
	if len(v.IPFamilies) == 0 {
		report([]string{"ipFamilies"}, "no IP family, and so nothing to measure: want IPv4, IPv6 or both")
	}
}

func nodePair(v *VMLatency, report reporter) {
	for i, p := range v.Pairs {
		switch at := []string{"pairs", index(i)}; {
		case (p.Source == "") != (p.Target == ""):
			report(at, "illegal source and target nodes combination: want both, or no pair, which means any two nodes")
		case p.Source == "":
			report(at, "names no node: want source and target, or no pair, which means any two nodes")
		case slices.Contains(v.Pairs[:i], p):
			report(at, "%s to %s is there twice", p.Source, p.Target)
		}
	}
}

func tooManyVMs(v *VMLatency, report reporter) {
	if n := 2 * len(v.Networks) * max(1, len(v.Pairs)); n > MaxVMs {
		report([]string{"networks"}, "%d networks and %d pairs of nodes are %d VMs at once: at most %d; make several checks, one after the other", len(v.Networks), max(1, len(v.Pairs)), n, MaxVMs)
	}
}

func measurements(v *VMLatency, report reporter) {
	if v.Duration <= 0 || v.Duration > MaxTimeout || v.Interval <= 0 {
		return
	}
	switch n := v.Measurements(); {
	case v.Interval > v.Duration:
		report([]string{"interval"}, "%s is longer than duration, %s", v.Interval, v.Duration)
	case n > MaxCount:
		report([]string{"interval"}, "%s for %s are %d measurements of each pair, and every delay is kept: at most %d; want an interval of %s or more",
			v.Interval, v.Duration, n, MaxCount, LeastInterval(v.Duration))
	}
}

func vmJitterOne(v *VMLatency, report reporter) {
	if v.Expect.Jitter.Max != nil && v.Duration == v.Interval {
		report([]string{"expect", "jitter", "max"}, "a pair is sent one echo request, and jitter is a difference between two delays")
	}
}

// vmTimeout compares what comes before and after the measurement itself with the
// timeout, of which guests have three quarters: connectivity back, and the answers
// that are waited for of that, of the control that must have none, and of the last
// request.
func vmTimeout(v *VMLatency, report reporter) {
	if v.Timeouts.Probe <= 0 || v.Duration <= 0 || v.Interval <= 0 {
		return
	}
	count, interval := VMConnectivity(v.Measurements(), v.Interval)
	need := Duration(count-1)*interval + 3*VMEchoTimeout
	if have := v.Timeouts.Probe / 4 * 3; need > have {
		report([]string{"timeouts", "probe"}, "guests have three quarters of it beside duration, %s, which is less than the %s that they take where nothing answers: three times %s, and the intervals between %d requests",
			have, need, VMEchoTimeout, VMConnectivityCount)
	}
}

// kiagnoseTwice keeps checks from overwriting one another's outcome.
func kiagnoseTwice(p *Plan, report reporter) {
	first := map[ConfigMapRef]string{}
	for _, name := range p.CheckNames() {
		v := p.Checks[name].VMLatency
		if v == nil || v.Kiagnose == nil {
			continue
		}
		if other, ok := first[*v.Kiagnose]; ok {
			report([]string{"checks", name, string(KindVMLatency), "kiagnose"}, "check %s writes its outcome to the same ConfigMap", other)
			continue
		}
		first[*v.Kiagnose] = name
	}
}

// LeastInterval is the shortest interval, in whole milliseconds, at which a pair
// can be measured for so long.
func LeastInterval(duration Duration) Duration {
	const step = MaxCount * Duration(time.Millisecond)
	return max(1, (duration+step-1)/step) * Duration(time.Millisecond)
}

func guestLogin(v *VMLatency, report reporter) {
	switch login := v.Guest.Login; {
	case v.Guest.Image == "" && login != nil:
		report([]string{"guest", "login"}, "has no meaning without guest.image: checkplan's own guest needs no login")
	case v.Guest.Image != "" && (login == nil || login.User == ""):
		report([]string{"guest"}, "guest.image %q is measured from its serial console, which needs a login: want guest.login with user and password", v.Guest.Image)
	case strings.ContainsFunc(v.Guest.Image, unicode.IsSpace):
		report([]string{"guest", "image"}, "%q: want the reference of an image, without a space", v.Guest.Image)
	case login != nil && strings.ContainsFunc(login.User+login.Password, unicode.IsControl):
		report([]string{"guest", "login"}, "has a control character, which a console would take for a key")
	}
}
