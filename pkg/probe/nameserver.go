// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// controlQuestion is the question of control pairs. The address is of TEST-NET-1 (RFC 5737), the name of a domain that
// nobody has (RFC 6761).
var controlQuestion = checkup.Question{
	Name: "checkplan.test.", Type: "A", Answer: checkup.AnswerRecords, Records: []string{"192.0.2.1"},
}

// nameserver is a DNS server on an address of the loopback, for control pairs.
type nameserver struct {
	datagrams net.PacketConn
	streams   net.Listener
	// answer returns the message that answers another; nil for none.
	answer func(dnsmessage.Message) []byte
}

// listenDNS opens a server for control pairs at free ports of the address, which has port 0.
func listenDNS(ctx context.Context, address string) (*nameserver, error) {
	var listen net.ListenConfig
	datagrams, err := listen.ListenPacket(ctx, "udp", address)
	if err != nil {
		return nil, err
	}
	streams, err := listen.Listen(ctx, "tcp", address)
	if err != nil {
		datagrams.Close()
		return nil, err
	}
	return &nameserver{datagrams, streams, answerControl}, nil
}

// ports of the server.
func (n *nameserver) ports() map[checkup.Transport]int {
	return map[checkup.Transport]int{
		checkup.DNSUDP: n.datagrams.LocalAddr().(*net.UDPAddr).Port,
		checkup.DNSTCP: n.streams.Addr().(*net.TCPAddr).Port,
	}
}

// serve answers until ctx ends, and closes the sockets.
func (n *nameserver) serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		n.datagrams.Close()
		n.streams.Close()
	})
	defer stop()
	var g sync.WaitGroup
	defer g.Wait()
	g.Go(func() {
		buf := make([]byte, maxDatagram)
		for {
			size, from, err := n.datagrams.ReadFrom(buf)
			if err != nil {
				return
			}
			if b := n.reply(buf[:size]); b != nil {
				_, _ = n.datagrams.WriteTo(b, from) // as if lost on the way
			}
		}
	})
	for {
		conn, err := n.streams.Accept()
		if err != nil {
			return
		}
		g.Go(func() {
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(controlTimeout))
			var size [2]byte
			if _, err := io.ReadFull(conn, size[:]); err != nil {
				return
			}
			b := make([]byte, binary.BigEndian.Uint16(size[:]))
			if _, err := io.ReadFull(conn, b); err != nil {
				return
			}
			if b = n.reply(b); b != nil {
				_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
			}
		})
	}
}

func (n *nameserver) reply(b []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(b) != nil || len(m.Questions) != 1 {
		return nil
	}
	return n.answer(m)
}

// answerControl answers the control question, and NXDOMAIN to every other one.
func answerControl(m dnsmessage.Message) []byte {
	q := m.Questions[0]
	m.Response, m.RCode = true, dnsmessage.RCodeNameError
	if lower(q.Name) == controlQuestion.Name && q.Type == dnsmessage.TypeA {
		m.RCode = dnsmessage.RCodeSuccess
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
			Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}},
		}}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}
