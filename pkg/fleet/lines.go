// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// maxLine is the longest line that is taken for a message. An observation of
// checkup.MaxCount round-trip delays is about 10 KiB, and agents cut results into
// lines that are not much longer.
const maxLine = 256 << 10

// lines reads messages, one a line, and calls told with each. Lines that are not
// one message, or of which told says that they make no sense, are counted as
// garbage and passed over. A last line without an end is not read: it is half of
// one. The error is that of the reader, and nil at its end.
func lines(r *bufio.Reader, told func(checkup.Message) bool) (garbage int, err error) {
	var line []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
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
		if long || !ok || !told(m) {
			garbage++
		}
		long, line = false, line[:0]
	}
}

// message reads one line; ok says that exactly one field of it is set.
func message(line []byte) (m checkup.Message, ok bool) {
	if json.Unmarshal(line, &m) != nil {
		return checkup.Message{}, false
	}
	set := 0
	for _, is := range []bool{m.Start != nil, m.Observation != nil, len(m.Results) > 0, m.Control != nil, m.Reception != nil, m.End != nil} {
		if is {
			set++
		}
	}
	return m, set == 1
}
