// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// State is what checkplan's own guest reports about itself.
type State struct {
	// Version of the agent, and release of the kernel.
	Version string `json:"version"`
	Kernel  string `json:"kernel,omitempty"`
	// Boot is another number each time the guest is started. Serve sets it. (Uptime is no proof of a restart: the clock
	// of a guest may be slow.)
	Boot uint64 `json:"boot,omitempty"`
	// Uptime in milliseconds since the kernel was started.
	Uptime int64 `json:"uptime,omitempty"`
	// Clock is the kernel's clock source, such as kvm-clock.
	Clock string `json:"clock,omitempty"`
	// Problems that keep the guest from measuring, one line each.
	Problems []string `json:"problems,omitempty"`
}

// request is what the host sends.
type request struct {
	ID string `json:"id"`
	// Order is a checkup.Order; empty asks for the state.
	Order json.RawMessage `json:"order,omitempty"`
	// From is the number of the first message to send.
	From int `json:"from,omitempty"`
}

// reply is what the guest sends: exactly one of State, Message and Status.
type reply struct {
	ID      string           `json:"id"`
	State   *State           `json:"state,omitempty"`
	Number  int              `json:"number,omitempty"`
	Message *checkup.Message `json:"message,omitempty"`
	Status  *status          `json:"status,omitempty"`
}

// status of an order.
type status struct {
	// Messages is the number of messages so far.
	Messages int `json:"messages"`
	// Done says that there will be no more.
	Done bool `json:"done,omitempty"`
	// Error of the guest's agent; it is done then.
	Error string `json:"error,omitempty"`
	// Unknown says that the guest does not know the order whose messages were
	// requested: it restarted since.
	Unknown bool `json:"unknown,omitempty"`
}

// Marks of frames.
const (
	requestMark = "checkplan? "
	replyMark   = "checkplan! "
)

// frame encodes a frame. The newline before it ends whatever else is on the line.
func frame(mark string, value any) ([]byte, error) {
	content, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode a frame for the console: %w", err)
	}
	return fmt.Appendf(nil, "\n%s%08x %s\n", mark, crc32.ChecksumIEEE(content), content), nil
}

// unframe reads the JSON of a frame into value, and reports whether there is an
// undamaged one at the end of the line.
func unframe(mark string, line []byte, value any) bool {
	at := bytes.LastIndex(line, []byte(mark))
	if at < 0 {
		return false
	}
	sum, content, _ := bytes.Cut(line[at+len(mark):], []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	return err == nil && len(sum) == 8 && crc32.ChecksumIEEE(content) == uint32(want) &&
		json.Unmarshal(content, value) == nil
}

// maxLine is the longest line, in bytes: frames are much shorter.
const maxLine = 1 << 20

// splitter cuts input into lines, without their ends.
type splitter struct{ partial []byte }

// feed adds input and calls line for each complete line. The line is valid until line
// returns.
func (s *splitter) feed(b []byte, line func([]byte)) {
	for {
		head, tail, ended := bytes.Cut(b, []byte("\n"))
		if len(s.partial)+len(head) <= maxLine {
			s.partial = append(s.partial, head...)
		} else {
			s.partial = s.partial[:0]
		}
		if !ended {
			return
		}
		line(bytes.TrimRight(s.partial, "\r"))
		s.partial = s.partial[:0]
		b = tail
	}
}
