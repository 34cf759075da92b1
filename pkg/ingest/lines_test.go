// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

const (
	startLine = `{"start":{"source":1,"version":"v1","pairs":2}}` + "\n"
	endLine   = `{"end":{"observations":2,"selfDoubt":{"schedulingDelayMax":1,"schedulingDelayP99":1}}}` + "\n"
)

func TestLines(t *testing.T) {
	for _, tt := range []struct {
		name     string
		in       string
		messages int
		garbage  int
	}{
		{"nothing", "", 0, 0},
		{"two", startLine + endLine, 2, 0},
		{"garbage between", startLine + "panic: oh\n\n" + endLine, 2, 2},
		{"no field", "{}\nnull\n", 0, 2},
		{"unknown field", `{"other":{}}` + "\n", 0, 1},
		{"two fields", `{"start":{},"end":{}}` + "\n", 0, 1},
		{"cut in its last line", startLine + endLine[:20], 1, 0},
		{"last line without a line end", startLine + strings.TrimSuffix(endLine, "\n"), 1, 0},
		{"too long a line", startLine + `{"start":{"version":"` + strings.Repeat("x", MaxLine) + `"}}` + "\n" + endLine, 2, 1},
		{"10,000 flows", startLine + `{"observation":{"flows":[` + strings.Repeat(`{"port":1,"sent":1,"received":1},`, 9_999) + `{}]}}` + "\n" + endLine, 2, 1},
		{"a line longer than any buffer", `{"start":{"version":"` + strings.Repeat("x", MaxLine/2) + `"}}` + "\n", 1, 0},
		{"refused", `{"reception":{"s":9,"t":9,"f":"IPv4","p":"udp","z":1,"packets":1}}` + "\n", 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := 0
			garbage, err := Lines(strings.NewReader(tt.in), func(m checkup.Message) bool {
				n++
				return m.Reception == nil
			})
			if n != tt.messages || garbage != tt.garbage || err != nil {
				t.Errorf("%d messages, %d garbage, %v; want %d, %d, no error", n, garbage, err, tt.messages, tt.garbage)
			}
		})
	}
}

// TestEndlessGarbage: a log that holds anything but messages is not read to its end.
func TestEndlessGarbage(t *testing.T) {
	garbage, err := Lines(endless{}, func(checkup.Message) bool { return true })
	if garbage != MaxGarbage+1 || !errors.Is(err, ErrGarbage) {
		t.Errorf("%d lines of garbage, %v; want %d and ErrGarbage", garbage, err, MaxGarbage+1)
	}
}

// TestEndlessReports: an agent that repeats what it may say is not read on for ever.
func TestEndlessReports(t *testing.T) {
	s := NewSource(&checkup.Worksheet{
		Sources: []checkup.Endpoint{{}, {}}, Targets: []checkup.Endpoint{{}}, Assignments: [][]int{nil, {0}}, IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes: []checkup.TransportProbe{{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 5}}},
	}, 1)
	read := int64(0)
	garbage, err := Lines(Limited(&repeated{line: startLine}, s.MaxLog()), func(m checkup.Message) bool {
		read += int64(len(startLine))
		_, ok := s.Take(m)
		return ok
	})
	if most := s.MaxLog(); garbage != 0 || !errors.Is(err, ErrGarbage) || read > most || read < most-int64(MaxLine) {
		t.Errorf("%d bytes read, %d garbage, %v; want at most %d bytes, no garbage, ErrGarbage", read, garbage, err, most)
	}
}

// repeated is a log of one line, for ever.
type repeated struct {
	line string
	at   int
}

func (r *repeated) Read(b []byte) (int, error) {
	n := copy(b, r.line[r.at:])
	r.at = (r.at + n) % len(r.line)
	return n, nil
}

// endless is a log of empty lines.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '\n'
	}
	return len(b), nil
}

func TestLinesBrokenReader(t *testing.T) {
	broken := errors.New("connection reset")
	r := io.MultiReader(strings.NewReader(startLine+endLine[:10]), iotest.ErrReader(broken))
	n := 0
	garbage, err := Lines(r, func(checkup.Message) bool { n++; return true })
	if n != 1 || garbage != 0 || !errors.Is(err, broken) {
		t.Errorf("%d messages, %d garbage, %v; want 1, 0, the reader's error", n, garbage, err)
	}
}

// hostileTimes can be read from JSON, but some of them not be written, or not in UTC.
var hostileTimes = []string{
	"2026-01-02T03:04:05+24:00", "2026-01-02T03:04:05-23:60", "9999-12-31T23:59:59-01:00", "0000-01-01T00:30:00+01:00",
	"0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "2201-01-01T00:00:00Z",
}

// resultLine is the line of a result of connection(0).
func resultLine(at string) string {
	return `{"results":[{"s":0,"t":0,"f":"IPv4","p":"tls","z":0,"at":"` + at + `","d":{"c":5}}]}` + "\n"
}

// FuzzLines: whatever a log holds, no line is read twice or lost, and what is passed on
// is one message.
func FuzzLines(f *testing.F) {
	f.Add([]byte(startLine + endLine))
	f.Add([]byte(startLine + "x\n" + endLine[:30]))
	f.Add([]byte(`{"start":{},"end":{}}` + "\n{}\nnull\n[]\n"))
	f.Add([]byte("\n\n\x00\xff\n"))
	for _, at := range hostileTimes {
		f.Add([]byte(resultLine(at)))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		taken := 0
		garbage, err := Lines(bytes.NewReader(in), func(m checkup.Message) bool {
			taken++
			for i := range m.Results {
				m.Results[i].At = time.Time{} // Source refuses the times that cannot be encoded
			}
			b, err := json.Marshal(m)
			if err != nil {
				t.Fatalf("a message that cannot be encoded: %v", err)
			}
			if _, ok := message(b); !ok {
				t.Fatalf("%s was passed on but is not one message", b)
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(in, []byte("\n")); taken+garbage != lines {
			t.Fatalf("%d messages + %d garbage, of %d lines", taken, garbage, lines)
		}
	})
}
