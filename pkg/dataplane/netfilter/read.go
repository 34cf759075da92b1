// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// How often Read starts again if the rules change while it reads, and how long one answer may take.
const (
	attempts = 10
	patience = 10 * time.Second
)

// Read reads tables of one family. Tables that do not exist are absent from the Dump. All of it is of one moment: if
// rules change meanwhile, Read starts again, a few times.
func Read(ipv6 bool, tables ...string) (*Dump, error) {
	c, err := dial()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return &Dump{IPv6: ipv6}, nil // the kernel has no netfilter netlink
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(c.fd)
	if _, err := c.generation(); errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return &Dump{IPv6: ipv6}, nil // the kernel has no nftables
	}
	return steady(func() (*Dump, bool, error) { return c.read(ipv6, tables) })
}

// ReadIPSets adds all ipsets to a dump.
func ReadIPSets(dump *Dump) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer unix.Close(c.fd)
	of := attribute(ipsetAttrProtocol, []byte{ipsetProtocol})
	_, err = steady(func() (*Dump, bool, error) {
		dump.IPSets = nil
		err := c.request(unix.NFNL_SUBSYS_IPSET, ipsetList, unix.NLM_F_DUMP, unix.AF_INET, of, dump.addSet)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT):
			return nil, false, errChanged
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
			return dump, true, nil // the kernel has no ipsets
		case err != nil:
			return nil, false, fmt.Errorf("read ipsets: %w", err)
		}
		return dump, true, nil
	})
	return err
}

// steady calls read again, a few times, while the rules change during it.
func steady(read func() (dump *Dump, same bool, err error)) (*Dump, error) {
	for range attempts {
		dump, same, err := read()
		if errors.Is(err, errChanged) || err == nil && !same {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		return dump, err
	}
	return nil, fmt.Errorf("read rules: they changed %d times while they were read", attempts)
}

var errChanged = errors.New("the rules changed")

type conn struct {
	fd  int
	seq uint32
	buf []byte
}

func dial() (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	timeout := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("set the timeout of a netlink socket: %w", err)
	}
	return &conn{fd: fd, buf: make([]byte, 1<<20)}, nil
}

// read reads everything once. It is not the same if the rules' generation changed meanwhile.
func (c *conn) read(ipv6 bool, tables []string) (*Dump, bool, error) {
	before, err := c.generation()
	if err != nil {
		return nil, false, err
	}
	dump := &Dump{IPv6: ipv6}
	family := uint8(unix.NFPROTO_IPV4)
	if ipv6 {
		family = unix.NFPROTO_IPV6
	}
	for _, kind := range []uint16{getChain, getRule, getSet} {
		if err := c.dump(dump, kind, family, nil, tables); err != nil {
			return nil, false, err
		}
	}
	for _, s := range dump.Sets {
		if s.Flags&(setTimeout|setEval) != 0 {
			continue // what the packets wrote
		}
		of := append(attribute(1, append([]byte(s.Table), 0)), attribute(2, append([]byte(s.Name), 0))...)
		if err := c.dump(dump, getSetElement, family, of, tables); err != nil {
			return nil, false, err
		}
	}
	after, err := c.generation()
	return dump, err == nil && before == after, err
}

func (c *conn) dump(dump *Dump, kind uint16, family uint8, of []byte, tables []string) error {
	add := func(m message) error { return dump.add(m, tables) }
	err := c.request(unix.NFNL_SUBSYS_NFTABLES, kind, unix.NLM_F_DUMP, family, of, add)
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT):
		return errChanged
	case err != nil:
		return fmt.Errorf("read nftables: %w", err)
	}
	return nil
}

func (c *conn) generation() (uint32, error) {
	var id uint32
	err := c.request(unix.NFNL_SUBSYS_NFTABLES, getGeneration, unix.NLM_F_ACK, unix.AF_UNSPEC, nil, func(m message) error {
		a, err := parse(m.data)
		id = a.number(1)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read nftables: %w", err)
	}
	return id, nil
}

// request sends one to a part of netfilter, and calls add for each message of the answer.
func (c *conn) request(
	subsystem, kind, flags uint16, family uint8, data []byte, add func(message) error,
) error {
	c.seq++
	header := make([]byte, 20, 20+len(data))
	binary.NativeEndian.PutUint32(header, uint32(20+len(data)))
	binary.NativeEndian.PutUint16(header[4:], subsystem<<8|kind)
	binary.NativeEndian.PutUint16(header[6:], unix.NLM_F_REQUEST|flags)
	binary.NativeEndian.PutUint32(header[8:], c.seq)
	header[16] = family
	if err := unix.Sendto(c.fd, append(header, data...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask the kernel: %w", err)
	}
	interrupted := false
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive the kernel's answer: %w", err)
		}
		for rest := c.buf[:n]; len(rest) >= 16; {
			size := int(binary.NativeEndian.Uint32(rest))
			if size < 16 || size > len(rest) {
				return errShort
			}
			kind, flags := binary.NativeEndian.Uint16(rest[4:]), binary.NativeEndian.Uint16(rest[6:])
			seq, body := binary.NativeEndian.Uint32(rest[8:]), rest[16:size]
			rest = rest[min(align(size), len(rest)):]
			if seq != c.seq {
				continue // of a request before
			}
			interrupted = interrupted || flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case kind == unix.NLMSG_DONE || kind == unix.NLMSG_ERROR:
				if len(body) >= 4 {
					if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
						return unix.Errno(-code)
					}
				}
				if interrupted {
					return unix.EINTR
				}
				return nil
			case len(body) < 4:
				return errShort
			case kind>>8 == subsystem:
				if err := add(message{kind & 0xff, body[4:]}); err != nil {
					return err
				}
			}
		}
	}
}
