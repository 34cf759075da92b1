// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// A udp packet starts with this header, big endian:
//
//	 0  magic     4 bytes, "ckp1"
//	 4  kind      1 byte, 1 request or 2 answer
//	 5  family    1 byte, '4' or '6'
//	 6  size      2 bytes, of the whole payload
//	 8  nonce     8 bytes, of the agent; the first byte is the look
//	16  sequence  4 bytes
//	20  source    4 bytes
//	24  target    4 bytes
//	28  residence 4 bytes, in nanoseconds
//	32  seen      16 bytes, an IPv6 address or an IPv4-mapped one; only if the size has room for it
//	48  own       16 bytes, likewise; only if the agent asks for it by 16 bytes of zero
//
// followed by padding up to its size. An answer is its request with the other kind, the residence time and the address
// seen. The residence time is how long the responder kept the request, 0 if unknown (or more than the 4.29 s that fit).
// The address seen is the source address of the request at the responder, own its destination there, both all zeros if
// unknown: an older responder sends back what it received. A responder answers only requests: otherwise two responders
// could be made to answer each other forever.
const (
	headerSize      = checkup.MinUDPSize
	packetMagic     = "ckp1"
	kindOffset      = 4
	residenceOffset = 28
	seenOffset      = 32
	seenEnd         = checkup.MinWitnessSize
	ownOffset       = seenEnd
	ownEnd          = checkup.MinIdentifySize
)

type packetKind byte

const (
	request packetKind = 1
	answer  packetKind = 2
)

// packet is a decoded header.
type packet struct {
	kind      packetKind
	nonce     uint64
	sequence  uint32
	pair      checkup.Pair
	residence time.Duration
	// identify asks the responder for its own address.
	identify bool
}

// newNonce returns a random nonce of an agent that carries its look: responders count each look for itself.
func newNonce(look int) uint64 {
	var b [8]byte
	rand.Read(b[:])
	b[0] = byte(look)
	return binary.BigEndian.Uint64(b[:])
}

// look returns the look of the agent that sent a request.
func (p packet) look() int { return int(p.nonce >> 56) }

// appendPacket appends the packet with its pair's size, but never shorter than its header.
func appendPacket(b []byte, p packet) []byte {
	start := len(b)
	b = append(b, packetMagic...)
	b = append(b, byte(p.kind), familyDigit(p.pair.Family))
	b = binary.BigEndian.AppendUint16(b, uint16(p.pair.Size))
	b = binary.BigEndian.AppendUint64(b, p.nonce)
	b = binary.BigEndian.AppendUint32(b, p.sequence)
	b = binary.BigEndian.AppendUint32(b, uint32(int32(p.pair.Source)))
	b = binary.BigEndian.AppendUint32(b, uint32(int32(p.pair.Target)))
	b = binary.BigEndian.AppendUint32(b, 0)
	setResidence(b[start:], p.residence)
	if p.pair.Size >= seenEnd {
		b = append(b, make([]byte, seenEnd-seenOffset)...)
	}
	if p.identify && p.pair.Size >= ownEnd {
		b = append(b, make([]byte, ownEnd-ownOffset)...)
	}
	return appendFill(b, p.nonce+uint64(p.sequence), p.pair.Size-(len(b)-start))
}

// setAddress writes an address into the field of an answer at an offset, if there is room. That of a request which asks
// for it is zero; otherwise it has padding, which the agent expects back.
func setAddress(b []byte, offset int, a netip.Addr) {
	if end := offset + 16; a.IsValid() && len(b) >= end && [16]byte(b[offset:end]) == [16]byte{} {
		address := a.As16()
		copy(b[offset:end], address[:])
	}
}

// takeAddress reads the address that setAddress wrote, and clears it. It is invalid if there is none.
func takeAddress(b []byte, offset int) netip.Addr {
	end := offset + 16
	if len(b) < end {
		return netip.Addr{}
	}
	a := seenAddress([16]byte(b[offset:end]))
	clear(b[offset:end])
	return a
}

// seenAddress decodes an address that a responder saw; invalid if it saw none.
func seenAddress(b [16]byte) netip.Addr {
	a := netip.AddrFrom16(b).Unmap()
	if a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

// setResidence writes the residence time into a packet.
func setResidence(b []byte, d time.Duration) {
	if d < 0 || d > math.MaxUint32 {
		d = 0
	}
	binary.BigEndian.PutUint32(b[residenceOffset:], uint32(d))
}

// appendFill appends n bytes that depend on the seed.
func appendFill(b []byte, seed uint64, n int) []byte {
	for i := range n {
		b = append(b, byte(seed)+byte(i)+byte(i>>8))
	}
	return b
}

var errNotOurs = errors.New("not a packet of ours")

// parsePacket decodes the header of a packet. The packet may be truncated after its header, as in an ICMP error.
func parsePacket(b []byte) (packet, error) {
	if len(b) < headerSize || string(b[:4]) != packetMagic {
		return packet{}, errNotOurs
	}
	p := packet{
		kind:     packetKind(b[kindOffset]),
		nonce:    binary.BigEndian.Uint64(b[8:]),
		sequence: binary.BigEndian.Uint32(b[16:]),
		pair: checkup.Pair{
			Source:    int(int32(binary.BigEndian.Uint32(b[20:]))),
			Target:    int(int32(binary.BigEndian.Uint32(b[24:]))),
			Transport: checkup.UDP,
			Size:      int(binary.BigEndian.Uint16(b[6:])),
		},
		residence: time.Duration(binary.BigEndian.Uint32(b[residenceOffset:])),
	}
	switch b[5] {
	case '4':
		p.pair.Family = checkup.IPv4
	case '6':
		p.pair.Family = checkup.IPv6
	default:
		return packet{}, errNotOurs
	}
	if p.kind != request && p.kind != answer || p.pair.Size < headerSize {
		return packet{}, errNotOurs
	}
	return p, nil
}

func familyDigit(f checkup.IPFamily) byte {
	if f == checkup.IPv6 {
		return '6'
	}
	return '4'
}
