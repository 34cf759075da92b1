// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/checkplan/checkplan/pkg/checkup"
)

const (
	// maxDatagram is the room for an answer over UDP. Without EDNS0, which libc resolvers do not use unless resolv.conf
	// says so, an answer has at most 512 bytes (RFC 1035, section 4.2.1).
	maxDatagram = 4 << 10
	// resolverRepeats is after how long a libc resolver asks again over UDP by default (resolv.conf(5): timeout).
	resolverRepeats = 5 * time.Second
	// maxStrays is the most datagrams of one question that are read and are not its answer.
	maxStrays = 100
)

// dns asks a DNS server a question, or the servers of the agent's resolv.conf as a libc resolver does. The delay is
// that of all answers that it takes: the search list's, the second server's, and that over TCP after a truncated one.
//
// A question over UDP that is not answered in time is asked once more. If that is answered, a datagram was lost (or is
// late), and the measurement counts as not answered: a libc resolver repeats a question only after resolverRepeats.
func dns(ctx context.Context, m Measurement, s *Session) checkup.Observation {
	if m.Peer == nil || m.Peer.Question == nil {
		return unmeasured(m, checkup.StageSetup, "the target has no question")
	}
	a := asking{question: *m.Peer.Question, session: s, servers: []netip.AddrPort{m.Address}}
	a.kind = questionTypes[a.question.Type]
	a.names = []string{a.question.Name}
	if a.question.Resolver {
		conf, err := s.resolver()
		if err != nil {
			return unmeasured(m, checkup.StageSetup, err.Error())
		}
		a.names, a.servers = conf.names(a.question.Name), nil
		for _, server := range conf.servers {
			a.servers = append(a.servers, netip.AddrPortFrom(server, uint16(m.Peer.Port)))
		}
	}
	return series(ctx, m, s, a.once)
}

// questionTypes are those of checkup.DNSTypes.
var questionTypes = map[string]dnsmessage.Type{
	"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA, "SRV": dnsmessage.TypeSRV, "CNAME": dnsmessage.TypeCNAME,
}

// asking is how a question is asked.
type asking struct {
	question checkup.Question
	kind     dnsmessage.Type
	// names are tried in their order until one exists, and servers until one answers.
	names   []string
	servers []netip.AddrPort
	session *Session
}

// once makes one measurement. An error is one of the local socket.
func (a *asking) once(ctx context.Context, m Measurement) (sample, error) {
	s := sample{start: time.Now()}
	answer, server, err := a.resolve(ctx, m, &s)
	s.end = time.Now()
	switch {
	case isLocal(err):
		return s, localTrouble(err)
	case err != nil:
		s.failDNS(err, time.Duration(m.Probe.Timeout))
	default:
		s.cause = wrongAnswer(a.question, answer)
	}
	if s.cause != nil && a.question.Resolver {
		s.cause.Message = server.Addr().String() + ": " + s.cause.Message
	}
	return s, nil
}

// resolve asks for the names until one exists: like glibc, it goes on with the next name after NXDOMAIN and SERVFAIL
// (res_nsearch). It returns the last answer, or the first SERVFAIL if no name exists, and the server.
func (a *asking) resolve(ctx context.Context, m Measurement, s *sample) (reply, netip.AddrPort, error) {
	var failed *reply
	missing := &reply{code: dnsmessage.RCodeNameError} // if no name can be asked for
	var failing, missed netip.AddrPort
	for i, name := range a.names {
		if i > 0 {
			a.another()
		}
		answer, by, err := a.ask(ctx, m, name, s)
		switch {
		case err == nil && answer.code == dnsmessage.RCodeServerFailure && failed == nil:
			failed, failing = &answer, by
		case err == nil && answer.code == dnsmessage.RCodeNameError:
			missing, missed = &answer, by
		case err != nil || answer.code != dnsmessage.RCodeServerFailure:
			return answer, by, err
		}
	}
	if failed != nil {
		return *failed, failing, nil
	}
	return *missing, missed, nil
}

// ask asks the servers for one name: the next one after an error or a code that says nothing about the name, if time is
// left. It returns the last answer or error, and its server.
func (a *asking) ask(
	ctx context.Context, m Measurement, name string, s *sample,
) (r reply, by netip.AddrPort, err error) {
	for i, server := range a.servers {
		if i > 0 {
			a.another()
		}
		by = server
		if r, err = a.exchange(ctx, m, server, name, s); err == nil && r.aboutName() || isLocal(err) {
			return r, by, err
		}
		if m.Pair.Transport == checkup.DNSUDP && unanswered(err) {
			by, err = a.repeat(ctx, m, server, a.servers[(i+1)%len(a.servers)], name, err)
			return r, by, err
		}
		if s.rtt >= time.Duration(m.Probe.Timeout) {
			return r, by, err
		}
	}
	return r, by, err
}

// repeat asks the next server what the first one did not answer in time. It returns the error of the measurement, which
// is errRepeated if the question is answered now, and the server whose error it is.
func (a *asking) repeat(
	ctx context.Context, m Measurement, first, next netip.AddrPort, name string, why error,
) (netip.AddrPort, error) {
	a.another()
	_, err := a.exchange(ctx, m, next, name, &sample{})
	var odd malformed
	switch {
	case err == nil:
		return first, errRepeated
	case !unanswered(err):
		return next, err
	case errors.As(why, &odd):
		return first, why
	}
	return first, errTwice
}

// unanswered reports whether a question over UDP was not answered in time, with anything that makes sense.
func unanswered(err error) bool {
	var cut truncatedError
	return isTimeout(err) && !errors.As(err, &cut)
}

// another makes later measurements wait for one more question of this one: each counts in the agent's rate. It does not
// wait itself: a pause would be part of what is measured.
func (a *asking) another() {
	if a.session.Limiter != nil {
		a.session.Limiter.Reserve()
	}
}

// exchange asks one server once, and adds the delay to the sample's. A truncated answer is asked for again over TCP.
func (a *asking) exchange(
	ctx context.Context, m Measurement, server netip.AddrPort, name string, s *sample,
) (r reply, err error) {
	q, err := newQuestion(name, a.kind)
	if err != nil {
		return reply{}, err
	}
	by := map[checkup.Transport]func(context.Context, netip.AddrPort, *query) (reply, error){
		checkup.DNSUDP: overDatagram, checkup.DNSTCP: overStream,
	}
	timed := func(t checkup.Transport) (reply, error) {
		start := time.Now()
		ctx, cancel := context.WithDeadline(ctx, start.Add(time.Duration(m.Probe.Timeout)-s.rtt))
		defer cancel()
		r, err := by[t](ctx, server, q)
		s.rtt += time.Since(start)
		s.connect += r.connect
		return r, err
	}
	if r, err = timed(m.Pair.Transport); err != nil || !r.truncated {
		return r, err
	}
	if m.Pair.Transport == checkup.DNSTCP {
		return r, malformed("an answer over TCP that is truncated")
	}
	s.truncated = true
	a.another()
	if r, err = timed(checkup.DNSTCP); err != nil {
		return r, truncatedError{err}
	}
	return r, nil
}

// query is a packed question.
type query struct {
	id       uint16
	question dnsmessage.Question
	packed   []byte
}

// newQuestion returns a question with a random number, which the answer must have, too (RFC 5452, section 9.2: the
// source port, which is the kernel's choice, is random as well).
func newQuestion(name string, kind dnsmessage.Type) (*query, error) {
	var id [2]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	packedName, err := dnsmessage.NewName(name)
	if err != nil {
		return nil, fmt.Errorf("name %q: %w", name, err)
	}
	q := &query{
		id:       binary.BigEndian.Uint16(id[:]),
		question: dnsmessage.Question{Name: packedName, Type: kind, Class: dnsmessage.ClassINET},
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: q.id, RecursionDesired: true},
		Questions: []dnsmessage.Question{q.question},
	}
	if q.packed, err = m.Pack(); err != nil {
		return nil, fmt.Errorf("name %q: %w", name, err)
	}
	return q, nil
}

// overDatagram asks over UDP. The socket is connected: the kernel drops datagrams of other senders, and reports ICMP
// errors.
func overDatagram(ctx context.Context, server netip.AddrPort, q *query) (reply, error) {
	conn, err := dialDNS(ctx, "udp", server)
	if err != nil {
		return reply{}, staged{checkup.StageConnect, err}
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write(q.packed); err != nil {
		return reply{}, staged{checkup.StageConnect, err}
	}
	buf := make([]byte, maxDatagram)
	var odd error
	for range maxStrays {
		n, err := conn.Read(buf)
		switch {
		case err != nil && isTimeout(err):
			return reply{}, cmp.Or(odd, err)
		case err != nil:
			return reply{}, staged{checkup.StageConnect, err} // an ICMP error
		}
		r, err := parseReply(buf[:n], q)
		if err == nil {
			return r, nil
		}
		odd = err // perhaps not of the server: the answer may still come
	}
	return reply{}, odd
}

// overStream asks over TCP (RFC 1035, section 4.2.2: messages have their length, of two bytes, before them).
func overStream(ctx context.Context, server netip.AddrPort, q *query) (reply, error) {
	start := time.Now()
	conn, err := dialDNS(ctx, "tcp", server)
	connect := time.Since(start)
	if err != nil {
		return reply{connect: connect}, staged{checkup.StageConnect, err}
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(q.packed))), q.packed...)); err != nil {
		return reply{}, err
	}
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return reply{}, err
	}
	b := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, b); err != nil {
		return reply{}, err
	}
	r, err := parseReply(b, q)
	r.connect = connect
	return r, err
}

// dialDNS connects to a server, from any port.
func dialDNS(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1}
	return d.DialContext(ctx, network, server.String())
}

// reply is what a server answered.
type reply struct {
	code      dnsmessage.RCode
	truncated bool
	// records of the question's type, for its name or the one that CNAME records lead to; as in checkup.Question,
	// sorted, each once.
	records []string
	// connect is how long the TCP connect took, also if it failed; 0 over UDP.
	connect time.Duration
}

// aboutName reports whether an answer says something about the name, and not about the server.
func (r reply) aboutName() bool {
	return r.code == dnsmessage.RCodeSuccess || r.code == dnsmessage.RCodeNameError
}

// malformed is the error of an answer that cannot be read, or is not one to the question.
type malformed string

func (m malformed) Error() string { return "answered " + string(m) }

// Timeout makes it an error after which the question is asked once more.
func (m malformed) Timeout() bool { return true }

// Temporary makes it a net.Error.
func (m malformed) Temporary() bool { return true }

// parseReply reads an answer to a question. Every byte of it is the server's. The error is a malformed.
func parseReply(b []byte, q *query) (reply, error) {
	var p dnsmessage.Parser
	header, err := p.Start(b)
	switch {
	case err != nil:
		return reply{}, malformed("with bytes that are no DNS message")
	case header.ID != q.id || !header.Response || header.OpCode != 0:
		return reply{}, malformed("another question: its ID differs")
	}
	questions, err := p.AllQuestions()
	bare := len(questions) == 0 && header.RCode != dnsmessage.RCodeSuccess // as a server may that could not read it
	switch {
	case err != nil:
		return reply{}, malformed("with bytes that are no DNS message")
	case !bare && (len(questions) != 1 || !sameQuestion(questions[0], q.question)):
		return reply{}, malformed("another question: its name or type differs")
	}
	r := reply{code: header.RCode, truncated: header.Truncated}
	if r.truncated || bare {
		return r, nil
	}
	names := map[string]bool{lower(q.question.Name): true}
	for {
		h, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil {
			return reply{}, malformed("with a record that cannot be read")
		}
		if !names[lower(h.Name)] || h.Class != dnsmessage.ClassINET ||
			h.Type != q.question.Type && h.Type != dnsmessage.TypeCNAME {
			if p.SkipAnswer() != nil {
				return reply{}, malformed("with a record that cannot be read")
			}
			continue
		}
		record, target, err := readRecord(&p, h.Type)
		if err != nil {
			return reply{}, malformed("with a record that cannot be read")
		}
		if target != "" {
			names[target] = true
		}
		if h.Type == q.question.Type {
			r.records = append(r.records, record)
		}
	}
	slices.Sort(r.records)
	r.records = slices.Compact(r.records)
	return r, nil
}

// readRecord reads one record as checkup.Question has it, and the name that a CNAME leads to.
func readRecord(p *dnsmessage.Parser, kind dnsmessage.Type) (record, target string, err error) {
	switch kind {
	case dnsmessage.TypeA:
		a, err := p.AResource()
		return netip.AddrFrom4(a.A).String(), "", err
	case dnsmessage.TypeAAAA:
		a, err := p.AAAAResource()
		return netip.AddrFrom16(a.AAAA).String(), "", err
	case dnsmessage.TypeSRV:
		s, err := p.SRVResource()
		return fmt.Sprintf("%d %s", s.Port, lower(s.Target)), "", err
	}
	c, err := p.CNAMEResource()
	return lower(c.CNAME), lower(c.CNAME), err
}

// lower is a name in lower case: names are compared without regard to case (RFC 4343).
func lower(n dnsmessage.Name) string { return strings.ToLower(n.String()) }

func sameQuestion(a, b dnsmessage.Question) bool {
	return lower(a.Name) == lower(b.Name) && a.Type == b.Type && a.Class == b.Class
}

// wrongAnswer says why an answer is not what it must be; nil if it is.
func wrongAnswer(q checkup.Question, r reply) *checkup.Cause {
	wrong := func(reason checkup.Reason, format string, args ...any) *checkup.Cause {
		return &checkup.Cause{Stage: checkup.StageEcho, Reason: reason, Message: printable(fmt.Sprintf(format, args...))}
	}
	if !r.aboutName() {
		return wrong(checkup.ReasonCode, "answered %s", codeName(r.code))
	}
	said, must := codeName(r.code), ""
	if r.code == dnsmessage.RCodeSuccess {
		if said = "no record"; len(r.records) > 0 {
			said = someRecords(r.records)
		}
	}
	switch q.Answer {
	case checkup.AnswerRecords:
		missing, extra := compareRecords(q.Records, r.records)
		switch {
		case len(missing)+len(extra) == 0 && r.code == dnsmessage.RCodeSuccess:
			return nil
		case len(r.records) > 0 && len(extra) == 0:
			return wrong(checkup.ReasonWrong, "answered %s of %d: not %s", checkup.Count(len(r.records), "record"),
				len(q.Records), someRecords(missing))
		case len(missing) == 0 && r.code == dnsmessage.RCodeSuccess:
			return wrong(checkup.ReasonWrong, "answered %s too many: %s",
				checkup.Count(len(extra), "record"), someRecords(extra))
		}
		must = someRecords(q.Records)
	case checkup.AnswerAny:
		if must = "a record"; len(r.records) > 0 {
			return nil
		}
	case checkup.AnswerNoData:
		must = "no record, because the Service does not have this family"
		if r.code == dnsmessage.RCodeSuccess && len(r.records) == 0 {
			return nil
		}
	case checkup.AnswerNoName:
		must = "NXDOMAIN, because the name does not exist"
		if r.code == dnsmessage.RCodeNameError {
			return nil
		}
	case checkup.AnswerNone:
		if must = "no record, because nothing is ready"; len(r.records) == 0 {
			return nil
		}
	}
	return wrong(checkup.ReasonWrong, "answered %s, must be %s", said, must)
}

// compareRecords returns the records that must be and are not, and those that are and must not be.
func compareRecords(must, are []string) (missing, extra []string) {
	unnamed := map[string]int{} // records whose target has any first label, by port and the rest of the target
	for _, r := range must {
		switch {
		case strings.Contains(r, " *."):
			unnamed[strings.Replace(r, " *.", " ", 1)]++
		case !slices.Contains(are, r):
			missing = append(missing, r)
		}
	}
	for _, r := range are {
		port, target, _ := strings.Cut(r, " ")
		_, domain, _ := strings.Cut(target, ".")
		switch key := port + " " + domain; {
		case slices.Contains(must, r):
		case unnamed[key] > 0:
			unnamed[key]--
		default:
			extra = append(extra, r)
		}
	}
	for _, r := range slices.Compact(slices.Sorted(slices.Values(must))) {
		if n := unnamed[strings.Replace(r, " *.", " ", 1)]; n > 0 && strings.Contains(r, " *.") {
			missing = append(missing, slices.Repeat([]string{r}, n)...)
		}
	}
	return missing, extra
}

// someRecords lists the first records.
func someRecords(records []string) string {
	const most = 3
	if more := len(records) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(records[:most], ", "), more)
	}
	return strings.Join(records, ", ")
}

// codeName is the name of a code (RFC 1035, section 4.1.1; RFC 2308).
func codeName(c dnsmessage.RCode) string {
	names := []string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"}
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("code %d", c)
}

var (
	errRepeated = errors.New("repeated")
	errTwice    = errors.New("twice")
)

// staged is an error at another stage than the answer's.
type staged struct {
	stage checkup.Stage
	error
}

func (s staged) Unwrap() error { return s.error }

// truncatedError is the error of TCP after a truncated answer.
type truncatedError struct{ error }

func (t truncatedError) Unwrap() error { return t.error }

// failDNS sets the cause of a sample from an error of the network, or of what a server sent.
func (s *sample) failDNS(err error, timeout time.Duration) {
	stage := checkup.StageEcho
	var at staged
	var odd malformed
	var cut truncatedError
	if errors.As(err, &at) {
		stage = at.stage
	}
	s.fail(stage, err, timeout)
	s.cause.Reason = reasonOf(err)
	switch {
	case errors.Is(err, errRepeated):
		// If the agent was held up, the answer in time may have been read too late: see Watch.spoils.
		s.repeated, s.timedOut, s.cause.Reason = true, true, checkup.ReasonRepeated
		s.cause.Message = fmt.Sprintf("lost: no answer within %v, but one when asked again; a pod's resolver waits %v before it asks again",
			timeout, resolverRepeats)
	case errors.Is(err, errTwice):
		s.timedOut, s.cause.Reason = true, checkup.ReasonTimedOut
		s.cause.Message = timedOutWords(timeout) + ", twice"
	case errors.As(err, &odd):
		s.timedOut, s.cause.Reason, s.cause.Message = false, checkup.ReasonMalformed, printable(odd.Error())
	}
	if errors.As(err, &cut) {
		s.cause.Message = "the answer does not fit in a datagram, and over TCP: " + s.cause.Message
	}
}
