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

// Kind is what happens to a packet that a fault selects.
type Kind string

const (
	Drop  Kind = "drop"  // it vanishes
	Loss  Kind = "loss"  // it vanishes with a probability
	MTU   Kind = "mtu"   // it vanishes if it is too long, with no ICMP error
	Delay Kind = "delay" // it arrives later
)

// Direction is a side of one node.
type Direction string

const (
	Both    Direction = ""        // both of the following
	Ingress Direction = "ingress" // from other nodes' pods to this node's pods
	Egress  Direction = "egress"  // from this node's pods to other nodes' pods
)

// Family is an IP family.
type Family string

const (
	AnyFamily Family = "" // both of the following
	IPv4      Family = "ipv4"
	IPv6      Family = "ipv6"
)

// Protocol is a protocol above IP.
type Protocol string

const (
	AnyProtocol Protocol = "" // every protocol, also those not named here
	TCP         Protocol = "tcp"
	UDP         Protocol = "udp"
	ICMP        Protocol = "icmp" // ICMP in IPv4, ICMPv6 in IPv6
)

// End is what sends or receives the packets of a fault: one of the following, or
// an IP address of a pod or a node.
type End string

const (
	Pods  End = ""      // the pods of a node
	Hosts End = "hosts" // the node itself and its pods on the host network
	Any   End = "any"   // both of the above
)

// addr is the address that the end is; invalid where it is none.
func (e End) addr() netip.Addr {
	a, err := netip.ParseAddr(string(e))
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// Limits of a fault.
const (
	// minMTU is the least length that every IPv4 link must carry whole
	// (RFC 791, section 3.2).
	minMTU = 68
	// maxMTU is the greatest length of an IPv4 packet (RFC 791, section 3.1).
	maxMTU = 65535
	// maxDelay is beyond the timeout of every probe; more would only fill
	// queues.
	maxDelay = time.Minute
)

// Fault is one thing wrong with the network. The zero value is not valid.
// Its String is the command line that makes it.
type Fault struct {
	Kind Kind

	Percent  int           // Loss: hundredths of a percent, 1 to 10000; otherwise 0
	MaxBytes int           // MTU: the longest IP packet that passes, header included, 68 to 65535; otherwise 0
	Delay    time.Duration // Delay: added one way, whole microseconds up to a minute; otherwise 0

	Node      string    // the node whose pods are affected; empty: see From, or all nodes
	Direction Direction // of Node; only with Node
	From, To  string    // one ordered pair of nodes, instead of Node; both or neither
	Src, Dst  End       // on the side of the source, and of the destination

	// Network is a further network, whose frames are affected, from one node to
	// another, instead of pods' packets; empty: the pods'. Without Src and Dst.
	Network string

	Family   Family
	Protocol Protocol
	SrcPort  uint16 // of TCP and UDP; 0: every port
	DstPort  uint16 // of TCP and UDP; 0: every port
}

// Usage is the text that explains the arguments of [Parse].
const Usage = `drop  [WHERE] [WHICH]                 packets vanish
loss  --percent P [WHERE] [WHICH]     P percent of them vanish, at random (0.01 to 100)
mtu   --max-bytes N [WHERE] [WHICH]   IP packets longer than N bytes vanish (68 to 65535)
delay --by D [WHERE] [WHICH]          they arrive D later, one way (1us to 1m, as in 30ms)

WHERE (default: between the pods of all nodes)
  --node NODE                         to and from the pods of NODE
  --direction ingress|egress          with --node: only to, or only from
  --from NODE --to NODE               from the pods of one to the pods of the other;
                                      the other direction is not touched
  --src pods|hosts|any|ADDRESS        what sends them, instead of pods: nodes themselves
                                      (components on the host network), both, or one
                                      IP address of a pod or a node
  --dst pods|hosts|any|ADDRESS        what they are sent to
                                      Packets within one node are touched only if it is
                                      both --from and --to or an end is an ADDRESS, and
                                      never those between two of its pods.
  --network NETWORK                   frames of this network instead, whatever their
                                      addresses; drop takes ARP and neighbor discovery
                                      too, everything else lets these pass

WHICH (default: all packets)
  --family ipv4|ipv6
  --protocol tcp|udp|icmp             icmp is ICMPv6 in IPv6
  --dport PORT, --sport PORT          of TCP and UDP
`

// Parse reads the arguments of `fault add`, the kind first, as in
// `loss --percent 20 --node w1`. The error names every problem; it is
// [flag.ErrHelp] if help was asked for. [Usage] is the text to print then.
func Parse(args []string) (Fault, error) {
	if len(args) == 0 {
		return Fault{}, errors.New("what fault? one of drop, loss, mtu, delay")
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
	// given sets a value that was parsed; a value that was not is a problem,
	// and the next flag is still read.
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
				return errors.New("want the name of a " + what)
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
		if f.Delay, err = time.ParseDuration(s); err != nil || f.Delay < time.Microsecond || f.Delay > maxDelay || f.Delay%time.Microsecond != 0 {
			f.Delay = time.Microsecond
			return errors.New("want a duration such as 30ms, in whole microseconds, 1us to 1m")
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
	given("dport", port(&f.DstPort))
	given("sport", port(&f.SrcPort))

	switch err := fs.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return Fault{}, err
	case err != nil:
		problems = append(problems, err)
	case fs.NArg() > 0:
		problems = append(problems, fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	}
	// A value that could not be read has been reported; Validate adds what is
	// wrong between the others.
	if len(problems) == 0 {
		if err := f.Validate(); err != nil {
			return Fault{}, err
		}
		return f, nil
	}
	return Fault{}, fmt.Errorf("fault %s: %w", f.Kind, errors.Join(append(problems, f.conflicts()...)...))
}

// Validate says everything that is wrong with a fault, whatever the nodes.
func (f Fault) Validate() error {
	var problems []error
	bad := func(format string, a ...any) { problems = append(problems, fmt.Errorf(format, a...)) }
	if f.Percent < 0 || f.Percent > 100_00 {
		bad("a loss of %d hundredths of a percent is not between 1 and 10000", f.Percent)
	}
	if f.MaxBytes != 0 && (f.MaxBytes < minMTU || f.MaxBytes > maxMTU) {
		bad("a longest packet of %d bytes is not between %d and %d", f.MaxBytes, minMTU, maxMTU)
	}
	if f.Delay != 0 && (f.Delay < time.Microsecond || f.Delay > maxDelay || f.Delay%time.Microsecond != 0) {
		bad("a delay of %v is not a number of whole microseconds up to %v", f.Delay, maxDelay)
	}
	for _, name := range []string{f.Node, f.From, f.To} {
		if name != "" && !nodeName(name) {
			bad("%q is not the name of a node", name)
		}
	}
	if f.Network != "" && !nodeName(f.Network) {
		bad("%q is not the name of a network", f.Network)
	}
	for _, e := range []End{f.Src, f.Dst} {
		if err := validEnd(e); err != nil {
			bad("end %q: %w", e, err)
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

// conflicts is what is wrong between the fields, each taken for itself being
// right.
func (f Fault) conflicts() []error {
	var problems []error
	bad := func(format string, a ...any) { problems = append(problems, fmt.Errorf(format, a...)) }
	if err := oneOf(f.Kind, Drop, Loss, MTU, Delay); err != nil {
		bad("no such kind: %w", err)
	} else {
		for _, p := range []struct {
			kind Kind
			flag string
			set  bool
		}{
			{Loss, "--percent", f.Percent != 0},
			{MTU, "--max-bytes", f.MaxBytes != 0},
			{Delay, "--by", f.Delay != 0},
		} {
			if p.set && f.Kind != p.kind {
				bad("%s goes with %s, not with %s", p.flag, p.kind, f.Kind)
			}
			if !p.set && f.Kind == p.kind {
				bad("%s needs %s", f.Kind, p.flag)
			}
		}
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
			bad("--from and --to are the same node; frames that do not leave it cannot be touched")
		case f.Src == Pods && f.Dst == Pods:
			bad("--from and --to are the same node; packets between its pods cannot be touched")
		case f.Kind == Delay:
			bad("--from and --to are the same node; packets within a node cannot be delayed")
		}
	}
	if f.Network != "" && (f.Src != Pods || f.Dst != Pods) {
		bad("--network excludes --src and --dst")
	}
	if src, dst := f.Src.addr(), f.Dst.addr(); src.IsValid() && dst.IsValid() && src.Is4() != dst.Is4() {
		bad("--src and --dst are of different IP families")
	}
	for _, e := range []End{f.Src, f.Dst} {
		if a := e.addr(); a.IsValid() && f.Family != AnyFamily && a.Is4() != (f.Family == IPv4) {
			bad("%s is not an address of the family %s", a, f.Family)
		}
	}
	if f.Protocol == ICMP && (f.SrcPort != 0 || f.DstPort != 0) {
		bad("icmp has no ports")
	}
	return problems
}

// String is the command line after `fault add`: Parse of its words is the same
// fault.
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
	return b.String()
}

// MarshalText is String.
func (f Fault) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText is Parse of the text's words.
func (f *Fault) UnmarshalText(text []byte) (err error) {
	*f, err = Parse(strings.Fields(string(text)))
	return err
}

// nodeName tells whether a string can be printed as one word that is no flag.
// Whether there is such a node is for Add to say.
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

// parsePercent reads 20, 20% or 0.5 into hundredths of a percent.
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

var errPercent = errors.New("want a percentage with at most two decimals, 0.01 to 100")

func formatPercent(n int) string {
	s := fmt.Sprintf("%d.%02d", n/100, n%100)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
