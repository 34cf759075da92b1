// SPDX-License-Identifier: Apache-2.0

package console

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// pinged is what a ping wrote.
type pinged struct {
	// replies in the order in which they arrived, without duplicates.
	replies    []pingReply
	duplicates int
	// wrong are replies that ping counts as received and that are no answer of the target: from another address, or
	// with other data than was sent. why is what ping wrote about the last one.
	wrong int
	why   string
	// summary says that the ping finished and wrote sent and received.
	summary        bool
	sent, received int
	// errors are the lines that are neither replies nor summary nor header.
	errors []string
}

type pingReply struct {
	seq    int
	micros int64
}

// parsePing reads what a ping wrote: iputils', BusyBox's, or one like them. The
// lines that count are
//
//	64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.045 ms (DUP!)     iputils (once icmp_req)
//	64 bytes from 10.0.0.2: seq=0 ttl=64 time=0.045 ms                 BusyBox
//	64 bytes from 10.0.0.9: icmp_seq=1 ttl=64 time=0.045 ms (DIFFERENT ADDRESS!)
//	64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.045 ms (BAD CHECKSUM!)      not counted as received
//	wrong data byte #16 should be 0x10 but was 0x11                    after the reply
//	5 packets transmitted, 4 received, +1 duplicates, 20% packet loss, time 4005ms
//	5 packets transmitted, 4 packets received, 1 duplicates, 20% packet loss
//
// in any language: a guest may not have the language that the shell requested.
func parsePing(text string) pinged {
	var p pinged
	seen := map[int]bool{}
	for line := range strings.Lines(plain(text)) {
		line = strings.TrimSpace(line)
		if reply, ok := parseReply(line); ok {
			switch {
			case strings.Contains(line, "(BAD CHECKSUM!)"):
				p.why = "an answer had a bad checksum"
				continue
			case strings.Contains(line, "(DIFFERENT ADDRESS!)") && !strings.Contains(line, "(DUP!)"):
				p.wrong, p.why = p.wrong+1, "an answer came from another address"
				continue
			}
			if seen[reply.seq] || strings.Contains(line, "(DUP!)") {
				p.duplicates++
				continue
			}
			seen[reply.seq] = true
			p.replies = append(p.replies, reply)
			continue
		}
		if last := len(p.replies) - 1; last >= 0 && strings.HasPrefix(line, "wrong data byte #") {
			p.replies = p.replies[:last]
			p.wrong, p.why = p.wrong+1, "an answer had other data than its request"
			continue
		}
		if sent, received, ok := parseSummary(line); ok {
			p.summary, p.sent, p.received = true, sent, received
			continue
		}
		switch lower := strings.ToLower(line); {
		case line == "",
			strings.HasPrefix(line, "---"),
			strings.HasPrefix(line, "PING "),
			strings.HasPrefix(lower, "rtt "),
			strings.HasPrefix(lower, "round-trip "):
		default:
			if len(line) > maxErrorLine {
				line = strings.ToValidUTF8(line[:maxErrorLine], "") + "..."
			}
			p.errors = append(p.errors, line)
		}
	}
	return p
}

// maxErrorLine is how much of an error is kept, in bytes.
const maxErrorLine = 200

// maxSeq is the highest sequence number of an echo request.
const maxSeq = 1<<16 - 1

func parseReply(line string) (pingReply, bool) {
	if line == "" || line[0] < '0' || line[0] > '9' { // the number of bytes; of errors, it is "From"
		return pingReply{}, false
	}
	_, rest, ok := strings.Cut(line, "seq=")
	if !ok {
		if _, rest, ok = strings.Cut(line, "icmp_req="); !ok {
			return pingReply{}, false
		}
	}
	digits, rest, _ := strings.Cut(rest, " ")
	seq, err := strconv.Atoi(digits)
	if err != nil || seq < 0 || seq > maxSeq {
		return pingReply{}, false
	}
	rest, _, ok = strings.Cut(rest, " ms")
	at := strings.LastIndexByte(rest, '=')
	if !ok || at < 0 {
		return pingReply{}, false
	}
	micros, ok := parseMillis(rest[at+1:])
	return pingReply{seq: seq, micros: micros}, ok
}

// parseMillis reads milliseconds, with a point or a comma, as microseconds.
func parseMillis(s string) (int64, bool) {
	whole, fraction, _ := strings.Cut(strings.ReplaceAll(s, ",", "."), ".")
	ms, err := strconv.ParseUint(whole, 10, 31)
	if err != nil {
		return 0, false
	}
	micros := int64(ms) * 1000
	if fraction != "" {
		f, err := strconv.ParseUint((fraction + "000")[:3], 10, 31)
		if err != nil || strings.Trim(fraction, "0123456789") != "" {
			return 0, false
		}
		micros += int64(f)
	}
	return micros, true
}

func parseSummary(line string) (sent, received int, ok bool) {
	if !strings.Contains(line, "%") {
		return 0, 0, false
	}
	parts := strings.Split(line, ",")
	if len(parts) < 3 {
		return 0, 0, false
	}
	sent, ok1 := leadingNumber(parts[0])
	received, ok2 := leadingNumber(parts[1])
	return sent, received, ok1 && ok2
}

func leadingNumber(s string) (int, bool) {
	word, _, _ := strings.Cut(strings.TrimSpace(s), " ")
	n, err := strconv.ParseUint(word, 10, 31)
	return int(n), err == nil
}

// consistent returns an error if the lines of the replies and the summary disagree: some
// of them were damaged, or are not what they seem.
func (p pinged) consistent(ordered int) error {
	switch {
	case p.sent > ordered:
		return fmt.Errorf("ping reports %d echo requests sent, of %d ordered", p.sent, ordered)
	case p.received > p.sent:
		return fmt.Errorf("ping reports %d echo requests sent and %d answers received", p.sent, p.received)
	case p.received != len(p.replies)+p.wrong:
		return fmt.Errorf("ping reports %d answers received, but lists %d", p.received, len(p.replies)+p.wrong)
	}
	return nil
}

// noWay are messages of a ping whose kernel has no route to the target. The kernel
// reports that before any packet is sent, and some pings then write no summary.
var noWay = []string{
	"network is unreachable",
	"network unreachable",
	"no route to host",
	"host is unreachable",
	"host unreachable",
}

// hasNoWay returns the line with such a message, if there is one.
func (p pinged) hasNoWay() (string, bool) {
	i := slices.IndexFunc(p.errors, func(line string) bool {
		return slices.ContainsFunc(noWay, func(words string) bool { return strings.Contains(strings.ToLower(line), words) })
	})
	if i < 0 {
		return "", false
	}
	return p.errors[i], true
}

// said returns the last error, for people.
func (p pinged) said() string {
	if len(p.errors) == 0 {
		return "it wrote nothing"
	}
	return "it wrote: " + p.errors[len(p.errors)-1]
}

// observation of a pair, from the output of a ping that was to send as many echo
// requests as were ordered.
func (p pinged) observation(pair checkup.Pair, ordered int, timeout time.Duration) checkup.Observation {
	o := checkup.Observation{Pair: pair}
	unmeasured := func(stage checkup.Stage, format string, args ...any) checkup.Observation {
		return checkup.Observation{
			Pair:       pair,
			Unmeasured: &checkup.Cause{Stage: stage, Message: fmt.Sprintf(format, args...)},
		}
	}
	why, unreachable := p.hasNoWay()
	switch {
	case !p.summary && unreachable && len(p.replies) == 0:
		o.Sent = ordered
		o.Failure = &checkup.Cause{Stage: checkup.StageConnect, Message: why}
		return o
	case !p.summary && len(p.replies) == 0:
		return unmeasured(checkup.StageSocket, "the guest's ping did not measure; %s", p.said())
	case !p.summary:
		return unmeasured(checkup.StageCollect, "the guest's ping stopped before its end; %s", p.said())
	}
	if err := p.consistent(ordered); err != nil {
		return unmeasured(checkup.StageCollect, "the guest's ping cannot be trusted: %v", err)
	}
	o.Sent, o.Duplicates = p.sent, p.duplicates
	highest := -1
	for _, r := range p.replies {
		if r.seq < highest {
			o.Reordered++
		}
		highest = max(highest, r.seq)
	}
	for _, r := range slices.SortedFunc(slices.Values(p.replies), func(a, b pingReply) int { return a.seq - b.seq }) {
		if time.Duration(r.micros)*time.Microsecond <= timeout {
			o.RTTs = append(o.RTTs, r.micros)
		}
	}
	o.Received = len(o.RTTs)
	switch {
	case o.Received == o.Sent:
	case p.why != "":
		o.Failure = &checkup.Cause{Stage: checkup.StageEcho, Message: p.why}
	case len(p.errors) > 0 && o.Received == 0 || unreachable:
		o.Failure = &checkup.Cause{Stage: checkup.StageConnect, Message: p.errors[len(p.errors)-1]}
		if unreachable {
			o.Failure.Message = why
		}
	default:
		o.Failure = &checkup.Cause{Stage: checkup.StageEcho, Message: fmt.Sprintf("timed out after %s", timeout)}
	}
	return o
}
