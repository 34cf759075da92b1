// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// attributes are those of a netlink message or of one of its attributes, by type. Of several of one type, all.
type attributes map[uint16][][]byte

var errShort = errors.New("a netlink message ends within an attribute")

// Flags in an attribute's type: nested, and in network byte order.
const attributeType = 0x3fff

func parse(data []byte) (attributes, error) {
	all := attributes{}
	for len(data) > 0 {
		if len(data) < 4 {
			return nil, errShort
		}
		size, kind := int(binary.NativeEndian.Uint16(data)), binary.NativeEndian.Uint16(data[2:])&attributeType
		if size < 4 || size > len(data) {
			return nil, errShort
		}
		all[kind] = append(all[kind], data[4:size])
		data = data[min(align(size), len(data)):]
	}
	return all, nil
}

func align(n int) int { return (n + 3) &^ 3 }

// raw is the first attribute of a type; nil if there is none.
func (a attributes) raw(kind uint16) []byte {
	if len(a[kind]) == 0 {
		return nil
	}
	return a[kind][0]
}

func (a attributes) text(kind uint16) string {
	text, _, _ := bytes.Cut(a.raw(kind), []byte{0})
	return string(text)
}

// number is of four bytes in network byte order, as all numbers of nftables are.
func (a attributes) number(kind uint16) uint32 {
	if b := a.raw(kind); len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (a attributes) long(kind uint16) uint64 {
	if b := a.raw(kind); len(b) == 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// nested are the attributes in an attribute. What is malformed is empty.
func (a attributes) nested(kind uint16) attributes {
	inner, err := parse(a.raw(kind))
	if err != nil {
		return attributes{}
	}
	return inner
}

// attribute writes one.
func attribute(kind uint16, data []byte) []byte {
	b := make([]byte, 4, align(4+len(data)))
	binary.NativeEndian.PutUint16(b, uint16(4+len(data)))
	binary.NativeEndian.PutUint16(b[2:], kind)
	return append(append(b, data...), make([]byte, align(len(data))-len(data))...)
}
