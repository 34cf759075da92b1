// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// ReadOrder decodes an order from JSON and checks it. The error lists all problems.
func ReadOrder(r io.Reader) (checkup.Order, error) {
	var o checkup.Order
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return checkup.Order{}, fmt.Errorf("cannot read the order: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return checkup.Order{}, errors.New("cannot read the order: trailing data")
	}
	if err := checkOrder(o); err != nil {
		return checkup.Order{}, fmt.Errorf("the order is not valid:\n%w", err)
	}
	return o, nil
}

// ReadOrderText reads and checks the order in a text, such as the value of the environment variable of that name.
func ReadOrderText(name, text string) (checkup.Order, error) {
	order, err := ReadOrder(strings.NewReader(text))
	return order, of(name, err)
}

// maxOrder limits the size of an order, in bytes: many times what a budget of pairs can make.
const maxOrder = 256 << 20

// ReadOrderFile reads and checks the order in a file. If there is no such file, it is compressed: the parts are the
// files of that name with .gz, .gz.1, .gz.2 and so on.
func ReadOrderFile(name string) (checkup.Order, error) {
	f, err := os.Open(name)
	if err == nil {
		defer f.Close()
		order, err := ReadOrder(f)
		return order, of(name, err)
	}
	var parts []io.Reader
	for {
		part := name + ".gz"
		if n := len(parts); n > 0 {
			part = fmt.Sprintf("%s.%d", part, n)
		}
		f, missing := os.Open(part)
		if missing != nil {
			break
		}
		defer f.Close()
		parts = append(parts, f)
	}
	if len(parts) == 0 {
		return checkup.Order{}, fmt.Errorf("cannot read the order: %w", err)
	}
	raw, err := gzip.NewReader(io.MultiReader(parts...))
	if err != nil {
		return checkup.Order{}, of(name+".gz", err)
	}
	order, err := ReadOrder(io.LimitReader(raw, maxOrder))
	return order, of(name+".gz", err)
}

// of adds the name of a file to an error; nil without one.
func of(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

func checkOrder(o checkup.Order) error {
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	must(o.Source >= 0, "source: is negative")
	must(o.Deadline > 0, "deadline: must be more than 0")
	if o.Tables != nil {
		must(o.Tables.Interval > 0, "tables.interval: must be more than 0")
		must(len(o.Targets) == 0, "tables: cannot be combined with targets")
		must(len(o.IPFamilies) > 0, "ipFamilies: is empty")
	}
	must(o.Tables != nil || o.Limits.PacketsPerSecond > 0, "limits.packetsPerSecond: must be at least 1")
	must(o.Tables != nil || o.Limits.Concurrency > 0, "limits.concurrency: must be at least 1")
	must(o.Limits.StartJitter >= 0, "limits.startJitter: is negative")
	for _, f := range o.IPFamilies {
		must(slices.Contains(checkup.IPFamilies, f), "ipFamilies: %q is unknown", f)
	}
	if o.Own != nil || o.Unused != nil {
		must(o.Connections == nil, "own: cannot be combined with connections")
		for _, f := range o.IPFamilies {
			must(isAddressOf(o.Own[f], f), "own: %q is not an address of %s", o.Own[f], f)
			must(isAddressOf(o.Unused[f], f), "unused: %q is not an address of %s", o.Unused[f], f)
		}
	}
	maxCount := checkup.MaxCount
	if o.Own != nil { // of a guest
		maxCount = checkup.MaxEchoes
	}
	if c := o.Connections; c != nil {
		maxCount = checkup.MaxWatch
		for _, d := range []struct {
			stage    string
			deadline checkup.Duration
		}{
			{"resolve", c.Deadlines.Resolve}, {"connect", c.Deadlines.Connect},
			{"handshake", c.Deadlines.Handshake}, {"response", c.Deadlines.Response},
		} {
			must(d.deadline > 0, "connections.deadlines.%s: must be more than 0", d.stage)
		}
	}
	for i, p := range o.Probes {
		at := fmt.Sprintf("probes[%d]", i)
		least, most := sizeLimits(p.Transport)
		must(Funcs[p.Transport] != nil, "%s.transport: %q is unknown", at, p.Transport)
		must(
			!slices.ContainsFunc(o.Probes[:i], func(q checkup.TransportProbe) bool { return q.Transport == p.Transport }),
			"%s.transport: %q: duplicate",
			at,
			p.Transport,
		)
		must(
			o.Connections != nil || p.Transport != checkup.TLS,
			"%s.transport: tls needs connections, and targets with a peer",
			at,
		)
		must(
			o.Connections == nil || slices.Contains(peerTransports, p.Transport),
			"%s.transport: connections cannot be made by %s",
			at,
			p.Transport,
		)
		must(p.Count >= 1 && p.Count <= maxCount, "%s.count: must be from 1 to %d", at, maxCount)
		must(p.Interval >= 0, "%s.interval: is negative", at)
		must(p.Timeout > 0, "%s.timeout: must be more than 0", at)
		must(p.Path == "" || strings.HasPrefix(p.Path, "/"), "%s.path: must start with /", at)
		must(len(p.Sizes) > 0, "%s.sizes: is empty", at)
		for _, z := range p.Sizes {
			must(z >= least && z <= most, "%s.sizes: %d is not from %d to %d", at, z, least, most)
		}
	}
	must(o.Look >= 0 && o.Look <= checkup.MaxLook, "look: must be from 0 to %d", checkup.MaxLook)
	must(o.Again == nil || o.Connections == nil, "again: cannot be combined with connections")
	for i, a := range o.Again {
		at := fmt.Sprintf("again[%d]", i)
		least, most := sizeLimits(a.Transport)
		must(a.Source == o.Source, "%s.s: is not %d, the source", at, o.Source)
		resolver := a.Family == checkup.AnyIPFamily && slices.Contains(questionTransports, a.Transport)
		must(resolver || slices.Contains(checkup.IPFamilies, a.Family), "%s.f: %q is unknown", at, a.Family)
		must(
			slices.ContainsFunc(o.Probes, func(p checkup.TransportProbe) bool { return p.Transport == a.Transport }),
			"%s.p: %q has no probe",
			at,
			a.Transport,
		)
		must(a.Size >= least && a.Size <= most, "%s.z: %d is not from %d to %d", at, a.Size, least, most)
		must(a.Count >= 1 && a.Count <= checkup.MaxCount, "%s.n: must be from 1 to %d", at, checkup.MaxCount)
		for _, port := range a.Ports {
			must(port >= 1 && port <= 65535, "%s.ports: %d is not from 1 to 65535", at, port)
		}
		before := 0
		for _, s := range a.Stops {
			must(s.After > before && s.After < a.Count, "%s.stops: %d is not from %d to %d", at, s.After, before+1, a.Count-1)
			must(s.Lost >= 1 && s.Lost <= s.After, "%s.stops: %d of %d lost is impossible", at, s.Lost, s.After)
			before = s.After
		}
	}
	for i, t := range o.Targets {
		at := fmt.Sprintf("targets[%d]", i)
		must(t.Target >= 0, "%s.target: is negative", at)
		must(t.Settle >= 0, "%s.settle: is negative", at)
		must(t.Turn >= 0, "%s.turn: is negative", at)
		must(t.Idle >= 0, "%s.idle: is negative", at)
		must(t.Turn+t.Idle == 0 || t.Identify && t.Peer == nil, "%s: turn and idle need identify, and no peer", at)
		for f, a := range t.Addresses {
			must(slices.Contains(checkup.IPFamilies, f), "%s.addresses: family %q is unknown", at, f)
			must(isAddressOf(a, f), "%s.addresses: %q is not an address of %s", at, a, f)
		}
		for t, port := range t.Ports {
			must(port >= 1 && port <= 65535, "%s.ports: %s: %d is not from 1 to 65535", at, t, port)
		}
		must(o.Connections == nil || t.Peer != nil, "%s.peer: missing: connections need one", at)
		must(
			o.Connections != nil || t.Peer == nil || t.Peer.Question != nil || isPlain(*t.Peer),
			"%s.peer: needs connections, unless it is an IP address by tcp, or a question", at,
		)
		switch {
		case t.Peer == nil:
		case t.Peer.Question != nil:
			checkQuestion(o, *t.Peer, func(ok bool, format string, args ...any) { must(ok, at+".peer."+format, args...) })
		default:
			checkPeer(o, *t.Peer, func(ok bool, format string, args ...any) { must(ok, at+".peer."+format, args...) })
		}
	}
	return errors.Join(errs...)
}

// peerTransports are the transports of connections to peers.
var peerTransports = []checkup.Transport{checkup.TLS, checkup.TCP}

// questionTransports are the transports of questions to DNS servers.
var questionTransports = []checkup.Transport{checkup.DNSUDP, checkup.DNSTCP}

func checkQuestion(o checkup.Order, p checkup.Peer, must func(ok bool, format string, args ...any)) {
	q := *p.Question
	if q.Resolver {
		must(p.Host == "" && p.Family == checkup.AnyIPFamily, "host: %q: resolv.conf names the servers", p.Host)
	} else {
		must(isAddressOf(p.Host, p.Family), "host: %q is not an address of %q", p.Host, p.Family)
		must(strings.HasSuffix(q.Name, "."), "question.name: %q must end with a dot", q.Name)
	}
	must(p.Port >= 1 && p.Port <= 65535, "port: %d is not from 1 to 65535", p.Port)
	must(slices.Contains(questionTransports, p.Transport), "transport: %q: must be dns-udp or dns-tcp", p.Transport)
	must(
		slices.ContainsFunc(o.Probes, func(t checkup.TransportProbe) bool { return t.Transport == p.Transport }),
		"transport: %q has no probe",
		p.Transport,
	)
	must(isName(q.Name), "question.name: %q is not a DNS name", q.Name)
	must(questionTypes[q.Type] != 0, "question.type: %q is unknown", q.Type)
	must(slices.Contains(checkup.DNSAnswers, q.Answer), "question.answer: %q is unknown", q.Answer)
	must(
		len(q.Records) <= checkup.MaxRecords && (len(q.Records) > 0) == (q.Answer == checkup.AnswerRecords),
		"question.records: %d do not fit the answer %q", len(q.Records), q.Answer,
	)
}

func checkPeer(o checkup.Order, p checkup.Peer, must func(ok bool, format string, args ...any)) {
	if address, err := netip.ParseAddr(p.Host); err == nil {
		must(address.Zone() == "" && familyOf(address) == p.Family, "host: %q is not an address of %q", p.Host, p.Family)
	} else {
		must(isName(p.Host), "host: %q is neither an IP address nor a DNS name", p.Host)
	}
	must(
		p.Family == checkup.AnyIPFamily || slices.Contains(checkup.IPFamilies, p.Family),
		"family: %q is unknown",
		p.Family,
	)
	must(p.Port >= 1 && p.Port <= 65535, "port: %d is not from 1 to 65535", p.Port)
	must(slices.Contains(peerTransports, p.Transport), "transport: %q: must be tls or tcp", p.Transport)
	must(
		slices.ContainsFunc(o.Probes, func(t checkup.TransportProbe) bool { return t.Transport == p.Transport }),
		"transport: %q has no probe",
		p.Transport,
	)
	must(
		p.ServerName == "" || isName(p.ServerName) || isAddress(p.ServerName),
		"serverName: %q is neither a DNS name nor an IP address",
		p.ServerName,
	)
	_, err := url.ParseRequestURI(p.Path)
	must(p.Path == "" || strings.HasPrefix(p.Path, "/") && err == nil, "path: %q is not the path of a URL", p.Path)
	must(
		p.ClientCertificate == "" || isName(p.ClientCertificate),
		"clientCertificate: %q is not the name of a Secret",
		p.ClientCertificate,
	)
	must(
		p.Transport == checkup.TLS || p.ServerName+p.Path+p.ClientCertificate == "",
		"transport: %q does not use serverName, path and clientCertificate",
		p.Transport,
	)
}

// isPlain reports whether a peer can be measured as a pair: by TCP to an IP address.
func isPlain(p checkup.Peer) bool { return p.Transport == checkup.TCP && isAddressOf(p.Host, p.Family) }

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// isAddressOf reports whether a string is an address of a family.
func isAddressOf(s string, f checkup.IPFamily) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Zone() == "" && familyOf(a) == f
}

// isName reports whether a string can be a DNS name (or the name of a Secret, which is a DNS name): labels of up to 63
// letters, digits, hyphens and underscores.
func isName(s string) bool {
	labels := strings.Split(strings.TrimSuffix(s, "."), ".")
	return len(s) <= 253 && !slices.ContainsFunc(labels, func(label string) bool {
		return label == "" || len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
			return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		})
	})
}

// sizeLimits returns the smallest and the largest payload of a transport.
func sizeLimits(t checkup.Transport) (least, most int) {
	switch t {
	case checkup.UDP:
		return checkup.MinUDPSize, checkup.MaxDatagramSize
	case checkup.ICMP:
		return 0, checkup.MaxDatagramSize
	case checkup.TLS, checkup.DNSUDP, checkup.DNSTCP:
		return 0, 0
	}
	return 0, checkup.MaxStreamSize
}

// familyOf returns the family of an address; an IPv4-mapped IPv6 address is IPv4.
func familyOf(a netip.Addr) checkup.IPFamily {
	if a.Unmap().Is4() {
		return checkup.IPv4
	}
	return checkup.IPv6
}

// measurements returns the pairs of an order, each with an address or a peer, in the order of Worksheet.PairsOf; and
// the observations of pairs that cannot be measured because the target has no valid address or no port for the
// transport.
func measurements(o checkup.Order) (ms []Measurement, impossible []checkup.Observation) {
	add := func(t checkup.OrderTarget, m Measurement) {
		if t.Peer != nil {
			t.Addresses = map[checkup.IPFamily]string{t.Peer.Family: t.Peer.Host}
			t.Ports = map[checkup.Transport]int{t.Peer.Transport: t.Peer.Port}
			if t.Peer.Question != nil {
				m.Peer = t.Peer
			}
			if m.Peer != nil && m.Peer.Question.Resolver {
				ms = append(ms, m)
				return
			}
		}
		address, ok := t.Addresses[m.Pair.Family]
		if !ok {
			return
		}
		port := t.Ports[m.Pair.Transport]
		addr, err := netip.ParseAddr(address)
		switch {
		case err != nil:
			impossible = append(impossible, unmeasured(m, checkup.StageSetup, "the target's address is not an IP address"))
		case port == 0 && m.Pair.Transport != checkup.ICMP:
			impossible = append(
				impossible,
				unmeasured(m, checkup.StageSetup, fmt.Sprintf("the target has no %s port", m.Pair.Transport)),
			)
		default:
			m.Address = netip.AddrPortFrom(addr.Unmap(), uint16(port))
			ms = append(ms, m)
		}
	}
	if o.Again != nil {
		again(o, add)
		return ms, impossible
	}
	for _, t := range o.Targets {
		if t.Peer != nil {
			for _, p := range o.Probes {
				pair := checkup.Pair{Source: o.Source, Target: t.Target, Family: t.Peer.Family, Transport: p.Transport}
				switch {
				case p.Transport != t.Peer.Transport:
				case o.Connections == nil:
					add(t, Measurement{Pair: pair, Probe: p.Probe})
				default:
					ms = append(ms, Measurement{Pair: pair, Probe: p.Probe, Peer: t.Peer, Deadlines: o.Connections.Deadlines})
				}
			}
			continue
		}
		for _, f := range checkup.IPFamilies {
			for _, p := range o.Probes {
				for _, z := range p.Sizes {
					add(t, Measurement{
						Pair:  checkup.Pair{Source: o.Source, Target: t.Target, Family: f, Transport: p.Transport, Size: z},
						Probe: p.Probe, Witness: t.Witness, Identify: t.Identify,
						Settle: time.Duration(t.Settle), Turn: time.Duration(t.Turn), Keep: t.Keep,
						Idle: time.Duration(t.Idle),
					})
				}
			}
		}
	}
	return ms, impossible
}

// again calls add with the pairs of a further look whose targets are in the order: each has a count of its own, and may
// have source ports.
func again(o checkup.Order, add func(checkup.OrderTarget, Measurement)) {
	targets := map[int]checkup.OrderTarget{}
	for _, t := range o.Targets {
		targets[t.Target] = t
	}
	probes := map[checkup.Transport]checkup.Probe{}
	for _, p := range o.Probes {
		probes[p.Transport] = p.Probe
	}
	for _, a := range o.Again {
		probe := probes[a.Transport]
		probe.Count = a.Count
		add(targets[a.Target], Measurement{
			Pair: a.Pair, Probe: probe, Ports: a.Ports, Stops: a.Stops, Witness: targets[a.Target].Witness,
			Identify: targets[a.Target].Identify, Settle: time.Duration(targets[a.Target].Settle),
			Idle: time.Duration(targets[a.Target].Idle),
		})
	}
}
