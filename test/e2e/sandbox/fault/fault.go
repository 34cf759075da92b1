// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Kind is what a fault does with the packets that it selects.
type Kind string

const (
	Drop  Kind = "drop"  // it is dropped
	Loss  Kind = "loss"  // it is dropped with a probability
	MTU   Kind = "mtu"   // it is dropped if it is too long, without an ICMP error
	Delay Kind = "delay" // it arrives later
	SNAT  Kind = "snat"  // it arrives with the address of its node as source address
	Stale Kind = "stale" // it stays with an endpoint of a Service
)

// Direction is which traffic of one node a fault affects.
type Direction string

const (
	Both    Direction = ""        // ingress and egress
	Ingress Direction = "ingress" // from other nodes' pods to this node's pods
	Egress  Direction = "egress"  // from this node's pods to other nodes' pods
)

// Family is an IP family.
type Family string

const (
	AnyFamily Family = "" // IPv4 and IPv6
	IPv4      Family = "ipv4"
	IPv6      Family = "ipv6"
)

// Protocol is a protocol above IP.
type Protocol string

const (
	AnyProtocol Protocol = "" // every protocol, including those not listed here
	TCP         Protocol = "tcp"
	UDP         Protocol = "udp"
	ICMP        Protocol = "icmp" // ICMP in IPv4, ICMPv6 in IPv6
)

// End selects senders or receivers of packets: one of the following, or the IP address of a pod or
// a node.
type End string

const (
	Pods  End = ""      // the pods of a node
	Hosts End = "hosts" // the node itself and its pods on the host network
	Any   End = "any"   // both of the above
)

// addr is the address of the end; invalid if the end is not an address.
func (e End) addr() netip.Addr {
	a, err := netip.ParseAddr(string(e))
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// Limits of a fault.
const (
	// minMTU is the shortest length that every IPv4 link must carry without fragmentation (RFC 791,
	// section 3.2).
	minMTU = 68
	// maxMTU is the greatest length of an IPv4 packet (RFC 791, section 3.1).
	maxMTU = 65535
	// maxDelay exceeds the timeout of every probe. A longer delay would only fill queues.
	maxDelay = time.Minute
	// maxFor exceeds every test.
	maxFor = time.Hour
	// maxBuckets is the greatest number of buckets of flows.
	maxBuckets = 256
)

// Fault is one fault of the network. The zero value is not valid. Its String is the command line
// that adds it.
type Fault struct {
	Kind Kind

	Percent  int           // Loss: hundredths of a percent, 1 to 10000; otherwise 0
	MaxBytes int           // MTU: longest IP packet that passes, with header, 68 to 65535; otherwise 0
	Delay    time.Duration // Delay: added one way, whole microseconds up to a minute; otherwise 0

	Node      string    // the node whose pods are affected; empty: see From, or all nodes
	Direction Direction // of Node; only with Node
	From, To  string    // one ordered pair of nodes, instead of Node; both or neither
	Src, Dst  End       // ends on the source's and on the destination's node

	// Network is an additional network. The fault affects its frames between nodes instead of
	// packets of pods. Empty: the pod network. Excludes Src and Dst.
	Network string

	Family   Family
	Protocol Protocol
	SrcPort  uint16 // of TCP and UDP; 0: every port
	DstPort  uint16 // of TCP and UDP; 0: every port

	// Flows of Buckets: only flows of TCP and UDP that fall into the first Flows of so many buckets, by
	// a hash of addresses, protocol and ports. At least one and not all; both 0: every packet.
	Flows, Buckets int

	// For is how long Drop, Loss and MTU act, whole milliseconds up to an hour; 0: until the fault is cleared. It begins
	// on each node when its rules are loaded. The kernel ends it, so that it is as long on a busy machine.
	For time.Duration

	// Stale: a UDP port of a Service, and of the endpoint with which its flows stay, each as IP:PORT. Otherwise empty.
	Service, Endpoint string
}

// Usage is the text that explains the arguments of [Parse].
const Usage = `drop  [WHERE] [WHICH]                 packets are dropped
loss  --percent P [WHERE] [WHICH]     P percent of packets are dropped, at random (0.01 to 100)
mtu   --max-bytes N [WHERE] [WHICH]   IP packets longer than N bytes are dropped (68 to 65535)
delay --by D [WHERE] [WHICH]          packets arrive D later, one way (1us to 1m, for example 30ms)
snat  --node NODE [WHICH]             packets of the pods of NODE to other nodes' pods arrive
                                      with an address of NODE as source address
stale --node NODE --service IP:PORT --endpoint IP:PORT
                                      flows of the pods of NODE to a UDP port of a Service
                                      stay with the endpoint that has answered them, also
                                      after its end: NODE keeps their conntrack entries

WHERE (default: between the pods of all nodes)
  --node NODE                         to and from the pods of NODE
  --direction ingress|egress          with --node: only to, or only from
  --from NODE --to NODE               from the pods of one to the pods of the other;
                                      the other direction is not affected
  --src pods|hosts|any|ADDRESS        who sends the packets: pods (default), nodes
                                      (components on the host network), both, or one
                                      IP address of a pod or a node
  --dst pods|hosts|any|ADDRESS        who receives the packets
                                      Packets within one node are affected only if it is
                                      both --from and --to or an end is an ADDRESS, and
                                      never packets between two of its pods.
  --network NETWORK                   frames of this network, whatever their
                                      addresses; drop includes ARP and neighbor
                                      discovery, all other faults let these pass

WHICH (default: all packets)
  --family ipv4|ipv6
  --protocol tcp|udp|icmp             icmp is ICMPv6 in IPv6
  --dport PORT, --sport PORT          of TCP and UDP
  --for D                             of drop, loss and mtu: only during the first D, for
                                      example 2s (1ms to 1h); list has it until clear
  --flows K/N                         of TCP and UDP: the flows in the first K of N
                                      buckets, by a hash of addresses and ports; a
                                      flow and its answers are in the same bucket
`

// Parse reads the arguments of `fault add`, the kind first, for example `loss --percent 20 --node
// w1`. The error lists every problem. It is [flag.ErrHelp] for a request for help: print [Usage]
// then.
func Parse(args []string) (Fault, error) {
	if len(args) == 0 {
		return Fault{}, errors.New("missing kind of fault: want one of drop, loss, mtu, delay, snat, stale")
	}
	var (
		f        Fault
		problems []error
	)
	switch args[0] {
	case "-h", "-help", "--help":
		return Fault{}, flag.ErrHelp
	}
	f.Kind = Kind(args[0])

	fs := flag.NewFlagSet("fault", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	// given defines a flag. An invalid value is recorded as a problem, and the next flag is still
	// parsed.
	given := func(name string, set func(string) error) {
		fs.Func(name, "", func(s string) error {
			if err := set(s); err != nil {
				problems = append(problems, fmt.Errorf("--%s %q: %w", name, s, err))
			}
			return nil
		})
	}
	port := func(p *uint16) func(string) error {
		return func(s string) error {
			n, err := strconv.ParseUint(s, 10, 16)
			if err != nil || n == 0 {
				return errors.New("want a port, 1 to 65535")
			}
			*p = uint16(n)
			return nil
		}
	}
	name := func(what string, p *string) func(string) error {
		return func(s string) error {
			if !nodeName(s) {
				return errors.New("want a " + what + " name")
			}
			*p = s
			return nil
		}
	}
	given("percent", func(s string) (err error) {
		f.Percent, err = parsePercent(s)
		return err
	})
	given("max-bytes", func(s string) (err error) {
		if f.MaxBytes, err = strconv.Atoi(s); err != nil || f.MaxBytes < minMTU || f.MaxBytes > maxMTU {
			f.MaxBytes = minMTU
			return fmt.Errorf("want a number of bytes, %d to %d", minMTU, maxMTU)
		}
		return nil
	})
	given("by", func(s string) (err error) {
		f.Delay, err = time.ParseDuration(s)
		if err != nil || f.Delay < time.Microsecond || f.Delay > maxDelay || f.Delay%time.Microsecond != 0 {
			f.Delay = time.Microsecond
			return errors.New("want a duration such as 30ms, in whole microseconds, 1us to 1m")
		}
		return nil
	})
	given("for", func(s string) (err error) {
		if f.For, err = time.ParseDuration(s); err != nil || !validFor(f.For) {
			f.For = 0
			return errFor
		}
		return nil
	})
	given("node", name("node", &f.Node))
	given("from", name("node", &f.From))
	given("to", name("node", &f.To))
	given("network", name("network", &f.Network))
	end := func(e *End) func(string) error {
		return func(s string) error {
			*e = End(s)
			if s == "pods" {
				*e = Pods
			}
			if a := e.addr(); a.IsValid() && s != "" {
				*e = End(a.Unmap().String())
			}
			if s == "" {
				*e = "nothing"
			}
			return validEnd(*e)
		}
	}
	given("src", end(&f.Src))
	given("dst", end(&f.Dst))
	given("direction", func(s string) error {
		f.Direction = Direction(s)
		return oneOf(f.Direction, Ingress, Egress)
	})
	given("family", func(s string) error {
		f.Family = Family(s)
		return oneOf(f.Family, IPv4, IPv6)
	})
	given("protocol", func(s string) error {
		f.Protocol = Protocol(s)
		return oneOf(f.Protocol, TCP, UDP, ICMP)
	})
	given("flows", func(s string) (err error) {
		f.Flows, f.Buckets, err = parseFlows(s)
		return err
	})
	given("dport", port(&f.DstPort))
	given("sport", port(&f.SrcPort))
	address := func(p *string) func(string) error {
		return func(s string) error {
			*p = s
			a, err := parseAddrPort(s)
			if err == nil {
				*p = a.String()
			}
			return err
		}
	}
	given("service", address(&f.Service))
	given("endpoint", address(&f.Endpoint))

	switch err := fs.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return Fault{}, err
	case err != nil:
		problems = append(problems, err)
	case fs.NArg() > 0:
		problems = append(problems, fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	}
	// The problems already name the values that are not valid. Validate would report them again, so
	// report only the conflicts between fields.
	if len(problems) == 0 {
		if err := f.Validate(); err != nil {
			return Fault{}, err
		}
		return f, nil
	}
	return Fault{}, fmt.Errorf("fault %s: %w", f.Kind, errors.Join(append(problems, f.conflicts()...)...))
}

// Validate reports all problems of a fault that do not depend on the nodes.
func (f Fault) Validate() error {
	var problems []error
	bad := func(format string, a ...any) { problems = append(problems, fmt.Errorf(format, a...)) }
	if f.Percent < 0 || f.Percent > 100_00 {
		bad("loss of %d hundredths of a percent: want 1 to 10000", f.Percent)
	}
	if f.MaxBytes != 0 && (f.MaxBytes < minMTU || f.MaxBytes > maxMTU) {
		bad("longest packet of %d bytes: want %d to %d", f.MaxBytes, minMTU, maxMTU)
	}
	if f.Delay != 0 && (f.Delay < time.Microsecond || f.Delay > maxDelay || f.Delay%time.Microsecond != 0) {
		bad("delay of %v: want whole microseconds, up to %v", f.Delay, maxDelay)
	}
	if f.For != 0 && !validFor(f.For) {
		bad("for %v: %w", f.For, errFor)
	}
	if f.Flows != 0 || f.Buckets != 0 {
		if err := validFlows(f.Flows, f.Buckets); err != nil {
			bad("flows %d/%d: %w", f.Flows, f.Buckets, err)
		}
	}
	for _, name := range []string{f.Node, f.From, f.To} {
		if name != "" && !nodeName(name) {
			bad("%q is not a node name", name)
		}
	}
	if f.Network != "" && !nodeName(f.Network) {
		bad("%q is not a network name", f.Network)
	}
	for _, e := range []End{f.Src, f.Dst} {
		if err := validEnd(e); err != nil {
			bad("end %q: %w", e, err)
		}
	}
	for _, s := range []string{f.Service, f.Endpoint} {
		if a, err := parseAddrPort(s); s != "" && (err != nil || a.String() != s) {
			bad("address %q: %w", s, errAddrPort)
		}
	}
	if err := oneOf(f.Direction, Both, Ingress, Egress); err != nil {
		bad("direction %q: %w", f.Direction, err)
	}
	if err := oneOf(f.Family, AnyFamily, IPv4, IPv6); err != nil {
		bad("family %q: %w", f.Family, err)
	}
	if err := oneOf(f.Protocol, AnyProtocol, TCP, UDP, ICMP); err != nil {
		bad("protocol %q: %w", f.Protocol, err)
	}
	problems = append(problems, f.conflicts()...)
	if len(problems) > 0 {
		return fmt.Errorf("fault %s: %w", f.Kind, errors.Join(problems...))
	}
	return nil
}

// conflicts returns the problems between fields that are each valid alone.
func (f Fault) conflicts() []error {
	var problems []error
	bad := func(format string, a ...any) { problems = append(problems, fmt.Errorf(format, a...)) }
	if err := oneOf(f.Kind, Drop, Loss, MTU, Delay, SNAT, Stale); err != nil {
		bad("unknown kind: %w", err)
	} else {
		for _, p := range []struct {
			kind Kind
			flag string
			set  bool
		}{
			{Loss, "--percent", f.Percent != 0},
			{MTU, "--max-bytes", f.MaxBytes != 0},
			{Delay, "--by", f.Delay != 0},
			{Stale, "--service", f.Service != ""},
			{Stale, "--endpoint", f.Endpoint != ""},
		} {
			if p.set && f.Kind != p.kind {
				bad("%s is a flag of %s, not of %s", p.flag, p.kind, f.Kind)
			}
			if !p.set && f.Kind == p.kind {
				bad("%s needs %s", f.Kind, p.flag)
			}
		}
	}
	if f.Kind == SNAT {
		if f.Node == "" {
			bad("snat needs --node")
		}
		if f.Direction != Both || f.Src != Pods || f.Dst != Pods || f.Network != "" || f.Buckets != 0 {
			bad("snat excludes --direction, --src, --dst, --network and --flows")
		}
	}
	if f.Kind == Stale {
		if f.Node == "" {
			bad("stale needs --node")
		}
		if f != (Fault{Kind: Stale, Node: f.Node, Service: f.Service, Endpoint: f.Endpoint}) {
			bad("stale excludes all flags but --node, --service and --endpoint")
		}
		service, err := parseAddrPort(f.Service)
		endpoint, err2 := parseAddrPort(f.Endpoint)
		if err == nil && err2 == nil && service.Addr().Is4() != endpoint.Addr().Is4() {
			bad("--service and --endpoint have different IP families")
		}
	}
	if f.For != 0 && f.Kind != Drop && f.Kind != Loss && f.Kind != MTU {
		bad("--for is a flag of drop, loss and mtu, not of %s", f.Kind)
	}
	if f.Direction != Both && f.Node == "" {
		bad("--direction needs --node")
	}
	if f.Node != "" && (f.From != "" || f.To != "") {
		bad("--node excludes --from and --to")
	}
	if (f.From == "") != (f.To == "") {
		bad("--from and --to need each other")
	}
	if f.From != "" && f.From == f.To {
		switch {
		case f.Network != "":
			bad("--from and --to are the same node: a fault cannot affect frames within a node")
		case f.Src == Pods && f.Dst == Pods:
			bad("--from and --to are the same node: a fault cannot affect packets between its pods")
		case f.Kind == Delay:
			bad("--from and --to are the same node: a delay cannot affect packets within a node")
		}
	}
	if f.Network != "" && (f.Src != Pods || f.Dst != Pods) {
		bad("--network excludes --src and --dst")
	}
	if src, dst := f.Src.addr(), f.Dst.addr(); src.IsValid() && dst.IsValid() && src.Is4() != dst.Is4() {
		bad("--src and --dst have different IP families")
	}
	for _, e := range []End{f.Src, f.Dst} {
		if a := e.addr(); a.IsValid() && f.Family != AnyFamily && a.Is4() != (f.Family == IPv4) {
			bad("%s is not an %s address", a, f.Family)
		}
	}
	if f.Protocol == ICMP && (f.SrcPort != 0 || f.DstPort != 0) {
		bad("icmp has no ports")
	}
	if f.Protocol == ICMP && f.Buckets != 0 {
		bad("icmp has no flows")
	}
	return problems
}

// String returns the arguments of `fault add` that make this fault: Parse of its words returns the
// same fault.
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(string(f.Kind))
	add := func(flag, value string) {
		if value != "" {
			b.WriteString(" --" + flag + " " + value)
		}
	}
	if f.Percent != 0 {
		add("percent", formatPercent(f.Percent))
	}
	if f.MaxBytes != 0 {
		add("max-bytes", strconv.Itoa(f.MaxBytes))
	}
	if f.Delay != 0 {
		add("by", f.Delay.String())
	}
	if f.For != 0 {
		add("for", f.For.String())
	}
	add("node", f.Node)
	add("direction", string(f.Direction))
	add("from", f.From)
	add("to", f.To)
	add("src", string(f.Src))
	add("dst", string(f.Dst))
	add("network", f.Network)
	add("family", string(f.Family))
	add("protocol", string(f.Protocol))
	if f.SrcPort != 0 {
		add("sport", strconv.Itoa(int(f.SrcPort)))
	}
	if f.DstPort != 0 {
		add("dport", strconv.Itoa(int(f.DstPort)))
	}
	if f.Buckets != 0 {
		add("flows", fmt.Sprintf("%d/%d", f.Flows, f.Buckets))
	}
	add("service", f.Service)
	add("endpoint", f.Endpoint)
	return b.String()
}

// MarshalText is String.
func (f Fault) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText is Parse of the text's words.
func (f *Fault) UnmarshalText(text []byte) (err error) {
	*f, err = Parse(strings.Fields(string(text)))
	return err
}

// nodeName reports whether s prints as one word and does not look like a flag. Add checks whether
// the node exists.
func nodeName(s string) bool {
	return s != "" && s[0] != '-' && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	})
}

func validEnd(e End) error {
	if a := e.addr(); a.IsValid() && a.Zone() == "" && a.String() == string(e) {
		return nil
	}
	if oneOf(e, Pods, Hosts, Any) != nil {
		return errors.New("want one of pods, hosts, any or an IP address")
	}
	return nil
}

func oneOf[T ~string](v T, allowed ...T) error {
	if slices.Contains(allowed, v) {
		return nil
	}
	var words []string
	for _, a := range allowed {
		if a != "" {
			words = append(words, string(a))
		}
	}
	return errors.New("want one of " + strings.Join(words, ", "))
}

// parseAddrPort parses IP:PORT, or [IP]:PORT for IPv6.
func parseAddrPort(s string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil || a.Port() == 0 || a.Addr().Zone() != "" {
		return netip.AddrPort{}, errAddrPort
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), nil
}

var errAddrPort = errors.New("want IP:PORT, such as 10.96.0.10:53 or [fd00:96::a]:53")

// parsePercent converts 20, 20% or 0.5 to hundredths of a percent.
func parsePercent(s string) (int, error) {
	whole, frac, point := strings.Cut(strings.TrimSuffix(s, "%"), ".")
	digits := func(r rune) bool { return r < '0' || r > '9' }
	if whole == "" || len(whole) > 3 || strings.ContainsFunc(whole+frac, digits) || point && frac == "" || len(frac) > 2 {
		return 1, errPercent
	}
	n, err := strconv.Atoi(whole + (frac + "00")[:2])
	if err != nil || n < 1 || n > 100_00 {
		return 1, errPercent
	}
	return n, nil
}

// parseFlows converts 1/8 to 1 and 8. Without an error, they are valid; with one, they do not cause
// another.
func parseFlows(s string) (flows, buckets int, err error) {
	k, n, _ := strings.Cut(s, "/")
	flows, err = strconv.Atoi(k)
	if err == nil {
		buckets, err = strconv.Atoi(n)
	}
	if err != nil || validFlows(flows, buckets) != nil {
		return 1, 2, errFlows
	}
	return flows, buckets, nil
}

func validFlows(flows, buckets int) error {
	if flows < 1 || buckets <= flows || buckets > maxBuckets {
		return errFlows
	}
	return nil
}

var errFlows = fmt.Errorf("want K/N, with K from 1 to N-1 and N up to %d", maxBuckets)

// errFor says which durations validFor accepts.
var errFor = errors.New("want a duration such as 2s, in whole milliseconds, 1ms to 1h")

func validFor(d time.Duration) bool {
	return d >= time.Millisecond && d <= maxFor && d%time.Millisecond == 0
}

var errPercent = errors.New("want a percentage with at most two decimals, 0.01 to 100")

func formatPercent(n int) string {
	s := fmt.Sprintf("%d.%02d", n/100, n%100)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
