// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/checkplan/checkplan/pkg/checkup"
)

const (
	// MaxLine is the longest line, in bytes, that is read as a message. An observation
	// of checkup.MaxCount round-trip delays is about 10 KiB, and agents write results
	// in lines that are not much longer.
	MaxLine = 256 << 10
	// MaxGarbage is how many lines of one reading of a log may be no messages.
	MaxGarbage = 10_000
)

// ErrGarbage is wrapped by the error of Lines about a log whose rest is not read.
var ErrGarbage = errors.New("the rest of the log is discarded")

// Limited reads so many bytes of a log. Then its error wraps ErrGarbage.
func Limited(log io.Reader, most int64) io.Reader { return &limited{log: log, left: most, most: most} }

type limited struct {
	log        io.Reader
	left, most int64
}

func (l *limited) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("%w: more than %d bytes, several times the expected amount", ErrGarbage, l.most)
	}
	n, err := l.log.Read(b[:min(int64(len(b)), l.left)])
	l.left -= int64(n)
	return n, err
}

// Lines reads messages, one in each line, and calls take with each. A line that is
// not one message, or that take refuses, is garbage: Lines counts it and goes on. A
// last line without a line end is incomplete and is not read.
//
// The error is that of the reader, nil at its end, or wraps ErrGarbage after
// MaxGarbage lines of garbage.
func Lines(r io.Reader, take func(checkup.Message) bool) (garbage int, err error) {
	buffered := bufio.NewReader(r)
	var line []byte
	long := false
	for {
		part, err := buffered.ReadSlice('\n')
		if len(line)+len(part) > MaxLine {
			long, line = true, line[:0]
		}
		if !long {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return garbage, nil
		case err != nil:
			return garbage, err
		}
		m, ok := message(line)
		if long || !ok || !take(m) {
			if garbage++; garbage > MaxGarbage {
				return garbage, fmt.Errorf("%w: more than %d lines that are not messages", ErrGarbage, MaxGarbage)
			}
		}
		long, line = false, line[:0]
	}
}

// message decodes one line. ok is true if exactly one field of the message is set.
func message(line []byte) (m checkup.Message, ok bool) {
	if json.Unmarshal(line, &m) != nil {
		return checkup.Message{}, false
	}
	set := 0
	for _, is := range []bool{
		m.Start != nil, m.Observation != nil, len(m.Results) > 0, m.Control != nil, m.Reception != nil, m.Table != nil,
		m.End != nil,
	} {
		if is {
			set++
		}
	}
	return m, set == 1
}
