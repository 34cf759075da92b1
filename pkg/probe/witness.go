// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A Responder reports the source address that it sees: in the answer to a udp packet, in a header of each HTTP
// response, and on a TCP echo connection if the first data that arrive begin with a question. It also reports how long
// it kept a request of tcp or http, from its arrival in the kernel: in a header of each HTTP response, and after the
// echo of as many bytes as the question says. If asked, it also reports its own address, which says who answered behind
// a Service. Questions, answers and report have the same length and begin like a udp packet:
//
//	0  magic  4 bytes, "ckp1"
//	4  kind   1 byte: 3 question, 4 answer, 5 report; 6 question with two answers, 4 and then 7, the own address
//	5  zero   3 bytes
//	8  value  16 bytes: of the answers, the address as in a udp packet; otherwise 8 bytes of a number and 8 of zero: of
//	          the questions, the size of the echo; of the report, milliseconds
//
// An older responder sends the question back: the addresses are then unknown.
const (
	witnessSize             = 24
	witnessValue            = 8
	askSource    packetKind = 3
	sourceSeen   packetKind = 4
	echoHeld     packetKind = 5
	askBoth      packetKind = 6
	ownAddress   packetKind = 7
	sourceHeader            = "Checkplan-Source"
	heldHeader              = "Checkplan-Held" // in milliseconds
)

// witness returns a message with a value.
func witness(kind packetKind, value [16]byte) (b [witnessSize]byte) {
	copy(b[:], packetMagic)
	b[kindOffset] = byte(kind)
	copy(b[witnessValue:], value[:])
	return b
}

// readWitness reads a message. Its value is not ok if the message is of another kind.
func readWitness(b []byte, kind packetKind) (value [16]byte, ok bool) {
	if len(b) < witnessSize {
		return value, false
	}
	value = [16]byte(b[witnessValue:witnessSize])
	return value, witness(kind, value) == [witnessSize]byte(b[:witnessSize])
}

// number and numberOf encode the value of questions and reports.
func number(n uint64) (b [16]byte) {
	binary.BigEndian.PutUint64(b[:], n)
	return b
}

func numberOf(value [16]byte) uint64 { return binary.BigEndian.Uint64(value[:]) }

// ask asks a Responder which source address it sees on a new TCP echo connection, on which an echo of size bytes will
// follow, and, to identify it, for its own address. The sample's seen and answerer stay invalid if the answer is not
// one of a Responder. The error is one of the connection.
func (s *sample) ask(conn *net.TCPConn, size int, identify bool) error {
	kind := askSource
	if identify {
		kind = askBoth
	}
	question := witness(kind, number(uint64(size)))
	if _, err := conn.Write(question[:]); err != nil {
		return err
	}
	var answer [witnessSize]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	value, ok := readWitness(answer[:], sourceSeen)
	if !ok {
		return nil
	}
	s.seen = seenAddress(value)
	if !identify {
		return nil
	}
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	if value, ok := readWitness(answer[:], ownAddress); ok {
		s.answerer = seenAddress(value)
	}
	return nil
}

// hold reads after an echo how long the Responder kept the data; 0 if it does not report it.
func hold(conn *net.TCPConn) time.Duration {
	var report [witnessSize]byte
	if _, err := io.ReadFull(conn, report[:]); err != nil {
		return 0
	}
	value, ok := readWitness(report[:], echoHeld)
	if !ok {
		return 0
	}
	return millis(numberOf(value))
}

// parseHeld reads a time that a responder reported as text; 0 if the text is invalid.
func parseHeld(text string) time.Duration {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return millis(n)
}

// millis is a number of milliseconds that another process reported, at most an hour.
func millis(n uint64) time.Duration { return time.Duration(min(n, 3_600_000)) * time.Millisecond }

// echoed is a Responder's part of the conversation on a TCP echo connection.
type echoed struct {
	left uint64        // bytes of the echo until the report; 0 if none is due
	held time.Duration // the longest time that data waited
}

// answer answers the question at the beginning of the first data. It returns the data after it, or all if there is
// none.
func (e *echoed) answer(conn net.Conn, first []byte) (rest []byte, err error) {
	question, ok := readWitness(first, askSource)
	both, identify := readWitness(first, askBoth)
	from, own := addressOf(conn.RemoteAddr()), addressOf(conn.LocalAddr())
	if !ok && !identify || !from.IsValid() || !own.IsValid() {
		return first, nil
	}
	answer := witness(sourceSeen, from.As16())
	answers := answer[:]
	if identify {
		question = both
		more := witness(ownAddress, own.As16())
		answers = append(answers, more[:]...)
	}
	e.left = numberOf(question)
	_, err = conn.Write(answers)
	return first[witnessSize:], err
}

// add counts echoed bytes, which had waited for some time, and reports when they are complete.
func (e *echoed) add(conn net.Conn, n int, waited time.Duration) error {
	if e.left == 0 || n == 0 {
		return nil
	}
	e.held = max(e.held, waited)
	if e.left -= min(uint64(n), e.left); e.left > 0 {
		return nil
	}
	report := witness(echoHeld, number(uint64(e.held.Milliseconds())))
	_, err := conn.Write(report[:])
	return err
}

// connKey is the key of the connection in the context of an HTTP request.
type connKey struct{}

// waited returns how long ago the kernel received the newest data of a connection, with a resolution of milliseconds;
// 0 if unknown.
func waited(conn net.Conn) time.Duration {
	if m, ok := conn.(*member); ok {
		conn = m.Conn
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	var info *unix.TCPInfo
	if err := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil || info == nil {
		return 0
	}
	return time.Duration(info.Last_data_recv) * time.Millisecond
}

// addressOf returns the IP address of an end of a TCP connection, without a zone; invalid if it has none.
func addressOf(end net.Addr) netip.Addr {
	a, ok := end.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return a.AddrPort().Addr().Unmap().WithZone("")
}

// parseSeen reads an address that a responder reported as text; invalid if the text is.
func parseSeen(text string) netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a.Unmap()
}
