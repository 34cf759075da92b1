// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// The library github.com/moby/ipvs, which kube-proxy uses, is not: it runs modprobe when it only reads, looks for IPVS
// once in the life of a process, and if the kernel has none, its requests are no-operations, which succeed.

// ErrNone means that the kernel has no IPVS: the module ip_vs is not loaded.
var ErrNone = errors.New("the kernel has no IPVS (the module ip_vs is not loaded)")

// Commands and attributes: linux/ip_vs.h.
const (
	familyName    = "IPVS"
	familyVersion = 1

	newService     = 1
	setService     = 2
	delService     = 3
	getService     = 4
	newDestination = 5
	setDestination = 6
	delDestination = 7
	getDestination = 8

	ofService     = 1
	ofDestination = 2

	serviceFamily    = 1
	serviceProtocol  = 2
	serviceAddress   = 3
	servicePort      = 4
	serviceMark      = 5
	serviceScheduler = 6
	serviceFlags     = 7
	serviceTimeout   = 8
	serviceNetmask   = 9

	destinationAddress  = 1
	destinationPort     = 2
	destinationMethod   = 3
	destinationWeight   = 4
	destinationUpper    = 5
	destinationLower    = 6
	destinationActive   = 7
	destinationInactive = 8

	flagPersistent = 0x1
	flagHashed     = 0x2 // the kernel's own
	methodMask     = 0x7
	typeMask       = 0x3fff // of the types of attributes, without flags
)

var protocols = map[uint16]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_SCTP: "SCTP"}

// Servers returns all virtual servers of a family, sorted. The error is ErrNone if the kernel has no IPVS. The list is
// not of one moment: the kernel has no way to read it so.
func Servers(family dataplane.Family) ([]VirtualServer, error) {
	k, servers, err := list(family)
	for i := range servers {
		if servers[i].Destinations, err = k.destinations(&servers[i]); err != nil {
			return nil, err
		}
	}
	Sort(servers)
	return servers, err
}

// Bare returns all virtual servers of a family without their destinations, sorted. The error is as that of Servers.
func Bare(family dataplane.Family) ([]VirtualServer, error) {
	_, servers, err := list(family)
	Sort(servers)
	return servers, err
}

func list(family dataplane.Family) (kernel, []VirtualServer, error) {
	k, err := dial(family)
	if err != nil {
		return k, nil, err
	}
	answers, err := k.ask(getService, unix.NLM_F_DUMP)
	if err != nil {
		return k, nil, fmt.Errorf("read the virtual servers of IPVS: %w", err)
	}
	var servers []VirtualServer
	for _, answer := range answers {
		s, mine, err := k.server(answer)
		if err != nil {
			return k, nil, fmt.Errorf("read a virtual server of IPVS: %w", err)
		}
		if mine {
			servers = append(servers, s)
		}
	}
	return k, servers, nil
}

// Destinations returns those of one server, sorted; none if the server does not exist.
func Destinations(family dataplane.Family, s *VirtualServer) ([]Destination, error) {
	k, err := dial(family)
	if err != nil {
		return nil, err
	}
	list, err := k.destinations(s)
	if err != nil {
		return nil, err
	}
	Sort([]VirtualServer{{Destinations: list}})
	return list, nil
}

// Add makes a server without destinations.
func Add(family dataplane.Family, s *VirtualServer) error {
	return set(family, newService, s, nil, "add")
}

// Update changes how a server chooses among its destinations.
func Update(family dataplane.Family, s *VirtualServer) error {
	return set(family, setService, s, nil, "change")
}

// Delete removes a server with all of its destinations, if it exists.
func Delete(family dataplane.Family, s *VirtualServer) error {
	return absent(set(family, delService, s, nil, "delete"))
}

// AddDestination adds one to a server.
func AddDestination(family dataplane.Family, s *VirtualServer, d Destination) error {
	return set(family, newDestination, s, &d, "add")
}

// UpdateDestination changes the weight of one.
func UpdateDestination(family dataplane.Family, s *VirtualServer, d Destination) error {
	return set(family, setDestination, s, &d, "change")
}

// DeleteDestination removes one from a server, if both exist.
func DeleteDestination(family dataplane.Family, s *VirtualServer, d Destination) error {
	return absent(set(family, delDestination, s, &d, "delete"))
}

// absent: the kernel answers ESRCH for a server that does not exist, and ENOENT for a destination.
func absent(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func set(family dataplane.Family, command uint8, s *VirtualServer, d *Destination, verb string) error {
	k, err := dial(family)
	if err != nil {
		return err
	}
	data := []nl.NetlinkRequestData{k.encode(s)}
	what := "virtual server " + s.String()
	if d != nil {
		data = append(data, encode(*d))
		what = fmt.Sprintf("destination %s of %s", d.Address, what)
	}
	if _, err := k.ask(command, unix.NLM_F_ACK, data...); err != nil {
		return fmt.Errorf("%s %s of IPVS: %w", verb, what, err)
	}
	return nil
}

// kernel is IPVS of one family of addresses.
type kernel struct {
	id     int // of IPVS among the families of generic netlink
	family uint16
}

func dial(family dataplane.Family) (kernel, error) {
	k := kernel{family: unix.AF_INET}
	if family == dataplane.IPv6 {
		k.family = unix.AF_INET6
	}
	request := nl.NewNetlinkRequest(nl.GENL_ID_CTRL, 0)
	request.AddData(&nl.Genlmsg{Command: nl.GENL_CTRL_CMD_GETFAMILY, Version: nl.GENL_CTRL_VERSION})
	request.AddData(nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(familyName)))
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if errors.Is(err, unix.ENOENT) {
		return k, ErrNone
	}
	if err != nil {
		return k, fmt.Errorf("look for IPVS in the kernel: %w", err)
	}
	for _, answer := range answers {
		a, err := attributes(answer, nl.SizeofGenlmsg)
		if err != nil {
			return k, fmt.Errorf("look for IPVS in the kernel: %w", err)
		}
		if id := a.number(nl.GENL_CTRL_ATTR_FAMILY_ID); id != 0 {
			k.id = int(id)
			return k, nil
		}
	}
	return k, ErrNone
}

func (k kernel) ask(command uint8, flags int, data ...nl.NetlinkRequestData) ([][]byte, error) {
	request := nl.NewNetlinkRequest(k.id, flags)
	request.AddData(&nl.Genlmsg{Command: command, Version: familyVersion})
	for _, d := range data {
		request.AddData(d)
	}
	return request.Execute(unix.NETLINK_GENERIC, 0)
}

func (k kernel) destinations(s *VirtualServer) ([]Destination, error) {
	answers, err := k.ask(getDestination, unix.NLM_F_DUMP, k.encode(s))
	if err != nil {
		return nil, fmt.Errorf("read the destinations of virtual server %s of IPVS: %w", s, err)
	}
	var list []Destination
	for _, answer := range answers {
		d, err := k.destination(answer)
		if err != nil {
			return nil, fmt.Errorf("read a destination of virtual server %s of IPVS: %w", s, err)
		}
		list = append(list, d)
	}
	return list, nil
}

// encode is a server as the kernel wants it.
func (k kernel) encode(s *VirtualServer) nl.NetlinkRequestData {
	data := nl.NewRtAttr(ofService|unix.NLA_F_NESTED, nil)
	data.AddRtAttr(serviceFamily, nl.Uint16Attr(k.family))
	if s.Mark != 0 {
		data.AddRtAttr(serviceMark, nl.Uint32Attr(s.Mark))
	} else {
		for number, name := range protocols {
			if name == s.Protocol {
				data.AddRtAttr(serviceProtocol, nl.Uint16Attr(number))
			}
		}
		data.AddRtAttr(serviceAddress, s.Address.AsSlice())
		data.AddRtAttr(servicePort, nl.BEUint16Attr(s.Port))
	}
	flags := s.Flags
	if s.AffinitySeconds > 0 {
		flags |= flagPersistent
	}
	data.AddRtAttr(serviceScheduler, nl.ZeroTerminated(s.Scheduler))
	data.AddRtAttr(serviceFlags, append(nl.Uint32Attr(flags), nl.Uint32Attr(^uint32(0))...)) // a value and its mask
	data.AddRtAttr(serviceTimeout, nl.Uint32Attr(s.AffinitySeconds))
	data.AddRtAttr(serviceNetmask, k.netmask(s.ClientBits))
	return data
}

// netmask is in IPv4 a mask in the order of the network, in IPv6 the length of a prefix.
func (k kernel) netmask(length int) []byte {
	switch {
	case k.family == unix.AF_INET6 && length == 0:
		return nl.Uint32Attr(128)
	case k.family == unix.AF_INET6:
		return nl.Uint32Attr(uint32(length))
	case length == 0:
		return nl.BEUint32Attr(^uint32(0))
	}
	return nl.BEUint32Attr(^uint32(0) << (32 - length))
}

func encode(d Destination) nl.NetlinkRequestData {
	data := nl.NewRtAttr(ofDestination|unix.NLA_F_NESTED, nil)
	data.AddRtAttr(destinationAddress, d.Address.Addr().AsSlice())
	data.AddRtAttr(destinationPort, nl.BEUint16Attr(d.Address.Port()))
	data.AddRtAttr(destinationMethod, nl.Uint32Attr(d.Method))
	data.AddRtAttr(destinationWeight, nl.Uint32Attr(d.Weight))
	data.AddRtAttr(destinationUpper, nl.Uint32Attr(0))
	data.AddRtAttr(destinationLower, nl.Uint32Attr(0))
	return data
}

// server decodes one. Mine: it is of the family.
func (k kernel) server(answer []byte) (s VirtualServer, mine bool, err error) {
	outer, err := attributes(answer, nl.SizeofGenlmsg)
	if err != nil {
		return s, false, err
	}
	a, err := attributes(outer[ofService], 0)
	if err != nil || a.number(serviceFamily) != uint32(k.family) {
		return s, false, err
	}
	s.Mark, s.Scheduler = a.number(serviceMark), strings.TrimRight(string(a[serviceScheduler]), "\x00")
	if s.Mark == 0 {
		number := uint16(a.number(serviceProtocol))
		if s.Protocol = protocols[number]; s.Protocol == "" {
			return s, false, fmt.Errorf("protocol %d", number)
		}
		if s.Address, err = k.address(a[serviceAddress]); err != nil {
			return s, false, err
		}
		if s.Port, err = port(a[servicePort]); err != nil {
			return s, false, err
		}
	}
	flags := a.number(serviceFlags) // the value; its mask is after it
	s.Flags = flags &^ (flagPersistent | flagHashed)
	if flags&flagPersistent != 0 {
		s.AffinitySeconds = a.number(serviceTimeout)
		s.ClientBits = k.length(a[serviceNetmask])
	}
	return s, true, nil
}

// length is what netmask was made of; 0: a whole address.
func (k kernel) length(mask []byte) int {
	whole, length := 128, 0
	switch {
	case len(mask) != 4:
	case k.family == unix.AF_INET6:
		length = int(binary.NativeEndian.Uint32(mask))
	default:
		whole, length = 32, bits.LeadingZeros32(^binary.BigEndian.Uint32(mask))
	}
	if length == whole {
		return 0
	}
	return length
}

func (k kernel) destination(answer []byte) (Destination, error) {
	outer, err := attributes(answer, nl.SizeofGenlmsg)
	if err != nil {
		return Destination{}, err
	}
	a, err := attributes(outer[ofDestination], 0)
	if err != nil {
		return Destination{}, err
	}
	address, err := k.address(a[destinationAddress])
	if err != nil {
		return Destination{}, err
	}
	number, err := port(a[destinationPort])
	return Destination{
		Address: netip.AddrPortFrom(address, number), Weight: a.number(destinationWeight),
		Method:      a.number(destinationMethod) & methodMask,
		Connections: a.number(destinationActive) + a.number(destinationInactive),
	}, err
}

// address decodes one: the kernel's has 16 bytes, of which IPv4 has the first four.
func (k kernel) address(b []byte) (netip.Addr, error) {
	size := 16
	if k.family == unix.AF_INET {
		size = 4
	}
	if len(b) < size {
		return netip.Addr{}, fmt.Errorf("address of %d bytes", len(b))
	}
	address, _ := netip.AddrFromSlice(b[:size])
	return address, nil
}

func port(b []byte) (uint16, error) {
	if len(b) < 2 {
		return 0, fmt.Errorf("port of %d bytes", len(b))
	}
	return binary.BigEndian.Uint16(b), nil
}

// values are the attributes of a message, by their numbers.
type values map[uint16][]byte

func attributes(message []byte, header int) (values, error) {
	if len(message) < header {
		return nil, fmt.Errorf("message of %d bytes", len(message))
	}
	list, err := nl.ParseRouteAttr(message[header:])
	if err != nil {
		return nil, err
	}
	a := values{}
	for _, attribute := range list {
		a[attribute.Attr.Type&typeMask] = attribute.Value
	}
	return a, nil
}

// number is an attribute of the machine's byte order; 0 if it does not exist.
func (a values) number(attribute uint16) uint32 {
	switch b := a[attribute]; {
	case len(b) >= 4:
		return binary.NativeEndian.Uint32(b)
	case len(b) >= 2:
		return uint32(binary.NativeEndian.Uint16(b))
	}
	return 0
}
