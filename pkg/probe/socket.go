// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket is a connected datagram socket that reports when the kernel sent and received packets, and ICMP errors.
type socket struct {
	file *os.File
	raw  syscall.RawConn
	buf  []byte // for received packets
	oob  []byte
}

// event is a report of a socket.
type event struct {
	kind eventKind
	// data of an arrival, or the part of our packet that an ICMP error quotes. It is valid only until the next event.
	data []byte
	// at is when the agent read the event; kernel is the kernel's timestamp of the arrival or departure, zero if
	// unknown.
	at, kernel time.Time
	// id is the number of the departed packet, counted per socket from 0.
	id uint32
	// errno of a failure.
	errno syscall.Errno
}

type eventKind int

const (
	arrival   eventKind = iota // a packet arrived
	departure                  // a packet left
	failure                    // an ICMP error arrived, or the local stack gave up
)

// openSocket opens a socket of the protocol (IPPROTO_UDP, IPPROTO_ICMP, ...) that sends from the source port, or from
// any if it is 0, to the address, and receives packets of up to size bytes.
func openSocket(address netip.AddrPort, port, protocol, size int) (*socket, error) {
	family, level, recverr := unix.AF_INET, unix.SOL_IP, unix.IP_RECVERR
	var from unix.Sockaddr = &unix.SockaddrInet4{Port: port}
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: int(address.Port()), Addr: [4]byte(address.Addr().AsSlice()[:4])}
	if address.Addr().Is6() {
		family, level, recverr = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_RECVERR
		from = &unix.SockaddrInet6{Port: port}
		to = &unix.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// All options are optional. Without the first, bursts may be lost here; without the second, ICMP errors that the
	// kernel treats as transient appear as loss; without the third, the agent times packets.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, agentBuffer)
	_ = unix.SetsockoptInt(fd, level, recverr, 1)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, timestamping); err != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	}
	if port != 0 {
		if err := unix.Bind(fd, from); err != nil {
			unix.Close(fd)
			return nil, os.NewSyscallError("bind", err)
		}
	}
	if err := unix.Connect(fd, to); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	s := &socket{
		file: os.NewFile(uintptr(fd), "socket"), // closes fd, and waits with Go's poller as fd does not block
		buf:  make([]byte, size),
		oob:  make([]byte, 512),
	}
	s.raw, err = s.file.SyscallConn()
	if err != nil {
		s.file.Close()
		return nil, os.NewSyscallError("socket", err)
	}
	return s, nil
}

// name returns the source address and port; the zero value if the socket has none.
func (s *socket) name() (name netip.AddrPort) {
	_ = s.raw.Control(func(fd uintptr) { name = nameOf(int(fd)) }) // fails only when closed
	return name
}

// nameOf returns the source address and port of a TCP or UDP socket; the zero value if it has none.
func nameOf(fd int) netip.AddrPort {
	switch a, _ := unix.Getsockname(fd); a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// timestamping requests software timestamps of received packets and, on the error queue, of sent packets; the latter
// with the packet's number instead of its data.
const timestamping = unix.SOF_TIMESTAMPING_SOFTWARE |
	unix.SOF_TIMESTAMPING_RX_SOFTWARE | unix.SOF_TIMESTAMPING_TX_SOFTWARE |
	unix.SOF_TIMESTAMPING_OPT_ID | unix.SOF_TIMESTAMPING_OPT_TSONLY

// keepTimestamps makes the kernel timestamp arrivals until the file is closed. The kernel does so while any socket
// requests it, but starts a moment after the first request: without this, the first packets of a socket may lack
// timestamps.
func keepTimestamps() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, timestamping)
	return os.NewFile(uintptr(fd), "timestamps"), nil
}

// send sends one packet. If the buffer is full, it waits until the deadline.
func (s *socket) send(b []byte, deadline time.Time) error {
	var err error
	waited := false
	werr := s.raw.Write(func(fd uintptr) bool {
		if _, err = unix.Write(int(fd), b); err != unix.EAGAIN {
			return true
		}
		if !waited {
			waited = true
			s.file.SetWriteDeadline(deadline)
		}
		return false
	})
	if waited {
		s.file.SetWriteDeadline(time.Time{})
	}
	if werr != nil {
		return werr
	}
	return os.NewSyscallError("send", err)
}

// receive calls handle for every event until interrupt is called.
func (s *socket) receive(handle func(event)) {
	for {
		err := s.raw.Read(func(fd uintptr) bool {
			s.drain(int(fd), handle)
			return false // never done: wait for more
		})
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) {
			return
		}
		// Go's poller does not wait on a socket whose last event was only an error, for example a full error queue
		// while the send buffer is full: try again a little later.
		time.Sleep(time.Millisecond)
	}
}

// resume lets receive be called again after interrupt.
func (s *socket) resume() { s.file.SetReadDeadline(time.Time{}) }

// interrupt ends receive.
func (s *socket) interrupt() { s.file.SetReadDeadline(time.Unix(1, 0)) }

// rest calls handle for the events that are already available.
func (s *socket) rest(handle func(event)) {
	_ = s.raw.Control(func(fd uintptr) { s.drain(int(fd), handle) }) // fails only when closed
}

func (s *socket) close() { s.file.Close() }

// drain calls handle for the available events.
func (s *socket) drain(fd int, handle func(event)) {
	for {
		reported := false
		for _, flags := range [...]int{unix.MSG_ERRQUEUE, 0} {
			n, oobn, _, _, err := unix.Recvmsg(fd, s.buf, s.oob, flags|unix.MSG_DONTWAIT)
			if err == unix.EAGAIN {
				continue
			}
			reported = true
			if err != nil {
				continue // the error queue reports the same, with the packet
			}
			e := event{kind: arrival, at: time.Now(), data: s.buf[:n]}
			s.readControl(&e, s.oob[:oobn])
			handle(e)
		}
		if !reported {
			return
		}
	}
}

// readControl reads the control messages of a packet.
func (s *socket) readControl(e *event, oob []byte) {
	for len(oob) >= unix.CmsgLen(0) {
		header, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return
		}
		oob = rest
		switch {
		case header.Level == unix.SOL_SOCKET && (header.Type == unix.SCM_TIMESTAMPING || header.Type == unix.SCM_TIMESTAMPNS):
			e.kernel = timespec(data)
		case header.Level == unix.SOL_IP && header.Type == unix.IP_RECVERR,
			header.Level == unix.SOL_IPV6 && header.Type == unix.IPV6_RECVERR:
			if len(data) < int(unsafe.Sizeof(unix.SockExtendedErr{})) {
				continue
			}
			var ee unix.SockExtendedErr
			ee.Errno = binary.NativeEndian.Uint32(data)
			ee.Origin, ee.Data = data[4], binary.NativeEndian.Uint32(data[12:])
			e.kind, e.id, e.errno = failure, 0, syscall.Errno(ee.Errno)
			if ee.Origin == unix.SO_EE_ORIGIN_TIMESTAMPING {
				e.kind, e.id, e.errno = departure, ee.Data, 0
			}
		}
	}
}

// timespec reads the first timespec of a control message; the zero time if it is 0.
func timespec(data []byte) time.Time {
	var ts unix.Timespec
	if len(data) < int(unsafe.Sizeof(ts)) {
		return time.Time{}
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&ts)), unsafe.Sizeof(ts)), data)
	if ts.Sec == 0 && ts.Nsec == 0 {
		return time.Time{}
	}
	return time.Unix(ts.Unix())
}
