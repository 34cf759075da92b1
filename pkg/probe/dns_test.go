// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// record is one record of the question's name in an answer: "A 10.0.0.1", "CNAME x.", "SRV 80 x.".
func record(m dnsmessage.Message, text string) dnsmessage.Resource {
	words := strings.Fields(text)
	h := dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET}
	if len(m.Answers) > 0 {
		if c, is := m.Answers[len(m.Answers)-1].Body.(*dnsmessage.CNAMEResource); is {
			h.Name = c.CNAME
		}
	}
	r := dnsmessage.Resource{Header: h}
	switch words[0] {
	case "A":
		r.Body = &dnsmessage.AResource{A: netip.MustParseAddr(words[1]).As4()}
	case "AAAA":
		r.Body = &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(words[1]).As16()}
	case "CNAME":
		r.Body = &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(words[1])}
	case "SRV":
		var port uint16
		fmt.Sscan(words[1], &port)
		r.Body = &dnsmessage.SRVResource{Port: port, Target: dnsmessage.MustNewName(words[2])}
	}
	return r
}

// packed is the message as an answer with a code and records.
func packed(m dnsmessage.Message, code dnsmessage.RCode, records ...string) []byte {
	m.Response, m.RCode = true, code
	for _, text := range records {
		m.Answers = append(m.Answers, record(m, text))
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// answers is a server that gives every question the same answer.
func answers(code dnsmessage.RCode, records ...string) func(dnsmessage.Message) []byte {
	return func(m dnsmessage.Message) []byte { return packed(m, code, records...) }
}

// serveDNS starts a server at the same port of UDP and TCP; without stream, the TCP port is closed.
func serveDNS(t *testing.T, family checkup.IPFamily, answer func(dnsmessage.Message) []byte, stream bool) netip.AddrPort {
	t.Helper()
	for range 100 {
		datagrams, err := net.ListenPacket("udp", anyPort(family))
		if err != nil {
			t.Fatal(err)
		}
		address := datagrams.LocalAddr().(*net.UDPAddr).AddrPort()
		streams, err := net.Listen("tcp", address.String())
		if err != nil {
			datagrams.Close()
			continue
		}
		if !stream {
			streams.Close()
		}
		ctx, stop := context.WithCancel(context.Background())
		served := make(chan struct{})
		go func() {
			defer close(served)
			(&nameserver{datagrams, streams, answer}).serve(ctx)
		}()
		t.Cleanup(func() { stop(); <-served })
		return netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
	}
	t.Fatal("no port is free for UDP and TCP")
	return netip.AddrPort{}
}

const (
	noName   = dnsmessage.RCodeNameError
	success  = dnsmessage.RCodeSuccess
	webName  = "web.shop.svc.cluster.local."
	homeName = "db.shop.svc.cluster.local."
)

// asks is a question for the addresses of web, and what must be answered.
func asks(kind string, answer checkup.DNSAnswer, records ...string) checkup.Question {
	return checkup.Question{Name: webName, Type: kind, Answer: answer, Records: records}
}

// echoCause is the cause of an answer that is missing or wrong.
func echoCause(reason checkup.Reason, format string, args ...any) *checkup.Cause {
	return &checkup.Cause{Stage: checkup.StageEcho, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

var webIP = asks("A", checkup.AnswerRecords, "10.96.0.2")

// dnsCases are of both transports where only is empty. Silent ones have a timeout.
var dnsCases = []struct {
	name     string
	question checkup.Question
	answer   func() func(dnsmessage.Message) []byte
	only     checkup.Transport
	closed   bool // TCP
	// timeout of a case without an answer
	timeout   checkup.Duration
	cause     *checkup.Cause
	truncated int
	repeated  int
}{
	{name: "right", question: webIP, answer: always(answers(success, "A 10.96.0.2"))},
	{name: "in another case", question: webIP, answer: always(func(m dnsmessage.Message) []byte {
		m.Questions[0].Name = dnsmessage.MustNewName(strings.ToUpper(webName))
		return packed(m, success, "A 10.96.0.2")
	})},
	{name: "several, in any order", question: asks("AAAA", checkup.AnswerRecords, "fd00::1", "fd00::2"), answer: always(answers(success, "AAAA fd00::2", "AAAA fd00::1"))},
	{name: "another one", question: webIP, answer: always(answers(success, "A 10.96.0.3")), cause: echoCause(checkup.ReasonWrong, "answered 10.96.0.3, must be 10.96.0.2")},
	{name: "one too many", question: webIP, answer: always(answers(success, "A 10.96.0.2", "A 10.96.0.3")), cause: echoCause(checkup.ReasonWrong, "answered 1 record too many: 10.96.0.3")},
	{name: "one missing", question: asks("A", checkup.AnswerRecords, "10.0.0.1", "10.0.0.2"), answer: always(answers(success, "A 10.0.0.2")), cause: echoCause(checkup.ReasonWrong, "answered 1 record of 2: not 10.0.0.1")},
	{name: "no record", question: webIP, answer: always(answers(success)), cause: echoCause(checkup.ReasonWrong, "answered no record, must be 10.96.0.2")},
	{name: "no such name", question: webIP, answer: always(answers(noName)), cause: echoCause(checkup.ReasonWrong, "answered NXDOMAIN, must be 10.96.0.2")},
	{name: "records of another name", question: webIP, answer: always(func(m dnsmessage.Message) []byte {
		m.Answers = []dnsmessage.Resource{record(m, "A 10.96.0.2")}
		m.Answers[0].Header.Name = dnsmessage.MustNewName(homeName)
		return packed(m, success)
	}), cause: echoCause(checkup.ReasonWrong, "answered no record, must be 10.96.0.2")},
	{name: "by an alias", question: webIP, answer: always(answers(success, "CNAME "+homeName, "A 10.96.0.2"))},
	{name: "server failure", question: webIP, answer: always(answers(dnsmessage.RCodeServerFailure)), cause: echoCause(checkup.ReasonCode, "answered SERVFAIL")},
	{name: "refuses", question: webIP, answer: always(answers(dnsmessage.RCodeRefused)), cause: echoCause(checkup.ReasonCode, "answered REFUSED")},
	{name: "an unknown code", question: webIP, answer: always(answers(11)), cause: echoCause(checkup.ReasonCode, "answered code 11")},
	{name: "cannot read the question, and does not repeat it", question: webIP, answer: always(func(m dnsmessage.Message) []byte {
		m.Questions = nil
		m.Response, m.RCode = true, dnsmessage.RCodeFormatError
		b, _ := m.Pack()
		return b
	}), cause: echoCause(checkup.ReasonCode, "answered FORMERR")},
	{name: "no data", question: asks("AAAA", checkup.AnswerNoData), answer: always(answers(success))},
	{name: "NXDOMAIN for another family", question: asks("AAAA", checkup.AnswerNoData), answer: always(answers(noName)), cause: echoCause(checkup.ReasonWrong, "answered NXDOMAIN, must be no record, because the Service does not have this family")},
	{name: "does not exist", question: asks("A", checkup.AnswerNoName), answer: always(answers(noName))},
	{name: "a wildcard", question: asks("A", checkup.AnswerNoName), answer: always(answers(success, "A 192.0.2.9")), cause: echoCause(checkup.ReasonWrong, "answered 192.0.2.9, must be NXDOMAIN, because the name does not exist")},
	{name: "nothing is ready: NXDOMAIN", question: asks("A", checkup.AnswerNone), answer: always(answers(noName))},
	{name: "nothing is ready: no data", question: asks("A", checkup.AnswerNone), answer: always(answers(success))},
	{name: "nothing is ready: an address", question: asks("A", checkup.AnswerNone), answer: always(answers(success, "A 10.0.0.1")), cause: echoCause(checkup.ReasonWrong, "answered 10.0.0.1, must be no record, because nothing is ready")},
	{name: "any", question: asks("A", checkup.AnswerAny), answer: always(answers(success, "A 192.0.2.9"))},
	{name: "not any", question: asks("A", checkup.AnswerAny), answer: always(answers(success)), cause: echoCause(checkup.ReasonWrong, "answered no record, must be a record")},
	{name: "SRV", question: asks("SRV", checkup.AnswerRecords, "80 "+webName), answer: always(answers(success, "SRV 80 "+webName))},
	{name: "SRV of endpoints", question: asks("SRV", checkup.AnswerRecords, "80 *."+webName, "80 *."+webName, "80 a."+webName), answer: always(answers(success, "SRV 80 10-0-0-1."+webName, "SRV 80 a."+webName, "SRV 80 10-0-0-2."+webName))},
	{name: "SRV of too few endpoints", question: asks("SRV", checkup.AnswerRecords, "80 *."+webName, "80 *."+webName), answer: always(answers(success, "SRV 80 10-0-0-1."+webName)), cause: echoCause(checkup.ReasonWrong, "answered 1 record of 2: not 80 *."+webName)},
	{name: "SRV of another port", question: asks("SRV", checkup.AnswerRecords, "80 *."+webName), answer: always(answers(success, "SRV 81 10-0-0-1."+webName)), cause: echoCause(checkup.ReasonWrong, "answered 81 10-0-0-1."+webName+", must be 80 *."+webName)},
	{name: "CNAME", question: asks("CNAME", checkup.AnswerRecords, "www.example.com."), answer: always(answers(success, "CNAME WWW.example.com."))},
	{name: "hostile names", question: asks("CNAME", checkup.AnswerRecords, "www.example.com."), answer: always(answers(success, "CNAME \x1b[2j\u202e.")), cause: echoCause(checkup.ReasonWrong, "answered ?[2j?., must be www.example.com.")},
	{name: "silent", question: webIP, answer: always(silentDNS), timeout: silence, only: checkup.DNSUDP, cause: echoCause(checkup.ReasonTimedOut, "timed out after 300ms, twice")},
	{name: "silent", question: webIP, answer: always(silentDNS), timeout: silence, only: checkup.DNSTCP, cause: echoCause("", "closed by the peer before the whole answer")},
	{name: "refused", question: webIP, answer: always(silentDNS), closed: true, only: checkup.DNSTCP, cause: noConnection(checkup.ReasonRefused, "connection refused")},
	{name: "lost once", question: webIP, answer: afterSilence, timeout: silence, only: checkup.DNSUDP, repeated: 1, cause: echoCause(checkup.ReasonRepeated, "lost: no answer within 300ms, but one when asked again; a pod's resolver waits 5s before it asks again")},
	{name: "another number, then the right answer", question: webIP, only: checkup.DNSTCP, answer: always(func(m dnsmessage.Message) []byte {
		m.ID++
		return packed(m, success, "A 10.96.0.2")
	}), cause: echoCause(checkup.ReasonMalformed, "answered another question: its ID differs")},
	{name: "another number", question: webIP, only: checkup.DNSUDP, timeout: silence, answer: always(func(m dnsmessage.Message) []byte {
		m.ID++
		return packed(m, success, "A 10.96.0.2")
	}), cause: echoCause(checkup.ReasonMalformed, "answered another question: its ID differs")},
	{name: "another question", question: webIP, only: checkup.DNSUDP, timeout: silence, answer: always(func(m dnsmessage.Message) []byte {
		m.Questions[0].Name = dnsmessage.MustNewName(homeName)
		return packed(m, success, "A 10.96.0.2")
	}), cause: echoCause(checkup.ReasonMalformed, "answered another question: its name or type differs")},
	{name: "no message", question: webIP, only: checkup.DNSUDP, timeout: silence, answer: always(func(dnsmessage.Message) []byte { return []byte("HTTP/1.1 400\r\n") }), cause: echoCause(checkup.ReasonMalformed, "answered another question: its ID differs")},
	{name: "half a record", question: webIP, only: checkup.DNSTCP, answer: always(func(m dnsmessage.Message) []byte {
		b := packed(m, success, "A 10.96.0.2")
		return b[:len(b)-2]
	}), cause: echoCause(checkup.ReasonMalformed, "answered with a record that cannot be read")},
	{name: "truncated", question: webIP, only: checkup.DNSUDP, answer: truncatedFirst, truncated: 1},
	{name: "truncated over TCP", question: webIP, only: checkup.DNSTCP, answer: truncatedFirst, cause: echoCause(checkup.ReasonMalformed, "answered an answer over TCP that is truncated")},
	{name: "truncated, and TCP is closed", question: webIP, only: checkup.DNSUDP, answer: truncatedFirst, closed: true, truncated: 1, cause: noConnection(checkup.ReasonRefused, "the answer does not fit in a datagram, and over TCP: connection refused")},
}

// always is a server that does not depend on earlier questions.
func always(answer func(dnsmessage.Message) []byte) func() func(dnsmessage.Message) []byte {
	return func() func(dnsmessage.Message) []byte { return answer }
}

func silentDNS(dnsmessage.Message) []byte { return nil }

// afterSilence answers the second question.
func afterSilence() func(dnsmessage.Message) []byte {
	var asked atomic.Int32
	return func(m dnsmessage.Message) []byte {
		if asked.Add(1) == 1 {
			return nil
		}
		return packed(m, success, "A 10.96.0.2")
	}
}

// truncatedFirst answers the first question with a truncated message.
func truncatedFirst() func(dnsmessage.Message) []byte {
	var asked atomic.Int32
	return func(m dnsmessage.Message) []byte {
		m.Truncated = asked.Add(1) == 1
		return packed(m, success, "A 10.96.0.2")
	}
}

// TestDNS: what a server answers, in both families, over UDP and TCP.
func TestDNS(t *testing.T) {
	for _, tt := range dnsCases {
		for _, transport := range []checkup.Transport{checkup.DNSUDP, checkup.DNSTCP} {
			if tt.only != "" && tt.only != transport {
				continue
			}
			t.Run(tt.name+"/"+string(transport), func(t *testing.T) {
				bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
					timeout := patience
					if tt.timeout > 0 {
						timeout = tt.timeout
					}
					got := dns(t.Context(), Measurement{
						Pair: pairOf(transport, family, 0), Address: serveDNS(t, family, tt.answer(), !tt.closed),
						Probe: checkup.Probe{Count: 1, Timeout: timeout}, Peer: &checkup.Peer{Question: &tt.question},
					}, session())
					want := checkup.Observation{
						Pair: pairOf(transport, family, 0), Sent: 1, Failure: tt.cause, Truncated: tt.truncated, Repeated: tt.repeated,
					}
					if tt.cause == nil {
						want.Received = 1
					}
					if diff := diffObservations(want, got); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
				})
			})
		}
	}
}

// TestResolver: names and servers are tried as a libc resolver tries them.
func TestResolver(t *testing.T) {
	const search = "search checks.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
	known := func(names ...string) func(dnsmessage.Message) []byte {
		return func(m dnsmessage.Message) []byte {
			if slices.Contains(names, lower(m.Questions[0].Name)) {
				return packed(m, success, "A 10.96.0.2")
			}
			return packed(m, noName)
		}
	}
	tests := []struct {
		name, conf, ask string
		answer          func(dnsmessage.Message) []byte
		asked           []string
		cause           *checkup.Cause
	}{
		{"search list", "nameserver 127.0.0.1\n" + search, "web.shop.svc", known(webName), []string{"web.shop.svc.checks.svc.cluster.local.", "web.shop.svc.svc.cluster.local.", webName}, nil},
		{"final dot", "nameserver 127.0.0.1\n" + search, webName, known(webName), []string{webName}, nil},
		{"enough dots", "nameserver 127.0.0.1\nsearch a\noptions ndots:2", "web.shop.svc", known("web.shop.svc.a."), []string{"web.shop.svc.", "web.shop.svc.a."}, nil},
		{"the second server, because the first one is closed", "nameserver 127.0.0.2\nnameserver 127.0.0.1\n", webName, known(webName), []string{webName}, nil},
		{"no server: this host", "", webName, known(webName), []string{webName}, nil},
		{"nowhere", "nameserver 127.0.0.1\nsearch a", "web", known(), []string{"web.a.", "web."}, echoCause(checkup.ReasonWrong, "127.0.0.1: answered NXDOMAIN, must be 10.96.0.2")},
		{"failure is no answer about the name", "nameserver 127.0.0.1\nsearch a", "web", func(m dnsmessage.Message) []byte {
			if lower(m.Questions[0].Name) == "web.a." {
				return packed(m, dnsmessage.RCodeServerFailure)
			}
			return packed(m, noName)
		}, []string{"web.a.", "web."}, echoCause(checkup.ReasonCode, "127.0.0.1: answered SERVFAIL")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var mu sync.Mutex
			var asked []string // guarded by mu
			server := serveDNS(t, checkup.IPv4, func(m dnsmessage.Message) []byte {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, lower(m.Questions[0].Name))
				return tt.answer(m)
			}, true)
			s := session()
			s.root = fstest.MapFS{"etc/resolv.conf": {Data: []byte(tt.conf)}}
			question := checkup.Question{Resolver: true, Name: tt.ask, Type: "A", Answer: checkup.AnswerRecords, Records: []string{"10.96.0.2"}}
			got := dns(t.Context(), Measurement{
				Pair: pairOf(checkup.DNSUDP, checkup.AnyIPFamily, 0), Probe: checkup.Probe{Count: 1, Timeout: patience},
				Peer: &checkup.Peer{Port: int(server.Port()), Question: &question},
			}, s)
			if diff := cmp.Diff(tt.cause, got.Failure); diff != "" || got.Unmeasured != nil {
				t.Errorf("unmeasured %v (-want +got):\n%s", got.Unmeasured, diff)
			}
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(tt.asked, asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
	// 127.0.0.1 is silent over TCP until after the timeout, and nothing listens on 127.0.0.2.
	slow := func(dnsmessage.Message) []byte { time.Sleep(2 * time.Duration(silence)); return nil }
	truncatedThenSlow := func() func(dnsmessage.Message) []byte {
		var asked atomic.Int32
		return func(m dnsmessage.Message) []byte {
			if m.Truncated = asked.Add(1) == 1; m.Truncated {
				return packed(m, success)
			}
			return slow(m)
		}
	}
	for _, tt := range []struct {
		name, conf string
		transport  checkup.Transport
		answer     func() func(dnsmessage.Message) []byte
		cause      *checkup.Cause
	}{
		{"TCP: the first server takes all of the time", "127.0.0.1 127.0.0.2", checkup.DNSTCP, always(slow), echoCause(checkup.ReasonTimedOut, "127.0.0.1: timed out after 300ms")},
		{"TCP: the second server takes all of the time", "127.0.0.2 127.0.0.1", checkup.DNSTCP, always(slow), echoCause(checkup.ReasonTimedOut, "127.0.0.1: timed out after 300ms")},
		{"UDP: the first server's answer over TCP takes all of the time", "127.0.0.1 127.0.0.2", checkup.DNSUDP, truncatedThenSlow, echoCause(checkup.ReasonTimedOut, "127.0.0.1: the answer does not fit in a datagram, and over TCP: timed out after 300ms")},
		{"UDP: the second server refuses what is repeated", "127.0.0.1 127.0.0.2", checkup.DNSUDP, always(silentDNS), noConnection(checkup.ReasonRefused, "127.0.0.2: connection refused")},
		{"UDP: both are silent", "127.0.0.1 127.0.0.1", checkup.DNSUDP, always(silentDNS), echoCause(checkup.ReasonTimedOut, "127.0.0.1: timed out after 300ms, twice")},
		{"UDP: what is repeated is answered", "127.0.0.1 127.0.0.1", checkup.DNSUDP, afterSilence, echoCause(checkup.ReasonRepeated, "127.0.0.1: lost: no answer within 300ms, but one when asked again; a pod's resolver waits 5s before it asks again")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := serveDNS(t, checkup.IPv4, tt.answer(), true)
			s := session()
			conf := "nameserver " + strings.ReplaceAll(tt.conf, " ", "\nnameserver ")
			s.root = fstest.MapFS{"etc/resolv.conf": {Data: []byte(conf)}}
			question := webIP
			question.Resolver = true
			got := dns(t.Context(), Measurement{
				Pair: pairOf(tt.transport, checkup.AnyIPFamily, 0), Probe: checkup.Probe{Count: 1, Timeout: silence},
				Peer: &checkup.Peer{Port: int(server.Port()), Question: &question},
			}, s)
			if diff := cmp.Diff(tt.cause, got.Failure); diff != "" || got.Unmeasured != nil {
				t.Errorf("unmeasured %v (-want +got):\n%s", got.Unmeasured, diff)
			}
		})
	}
	s := session()
	s.root = fstest.MapFS{}
	got := dns(t.Context(), Measurement{Peer: &checkup.Peer{Question: &checkup.Question{Resolver: true}}}, s)
	if got.Unmeasured == nil || !strings.Contains(got.Unmeasured.Message, "resolver configuration") {
		t.Errorf("without a resolv.conf: %+v", got)
	}
}

// TestAgentAsks: an agent asks what its order has, in both looks, and its control pairs show that it reads answers.
func TestAgentAsks(t *testing.T) {
	server := serveDNS(t, checkup.IPv4, answers(success, "A 10.96.0.2"), true)
	port := int(server.Port())
	probe := checkup.Probe{Sizes: []int{0}, Count: 2, Timeout: patience}
	resolver := webIP
	resolver.Resolver = true
	order := checkup.Order{
		Source: 1, Deadline: patience, IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Limits: checkup.Limits{PacketsPerSecond: 1000, Concurrency: 4},
		Probes: []checkup.TransportProbe{{Transport: checkup.DNSUDP, Probe: probe}, {Transport: checkup.DNSTCP, Probe: probe}},
		Targets: []checkup.OrderTarget{
			{Target: 0, Peer: &checkup.Peer{Host: "127.0.0.1", Family: checkup.IPv4, Port: port, Transport: checkup.DNSTCP, Question: &webIP}},
			{Target: 1, Peer: &checkup.Peer{Port: port, Transport: checkup.DNSUDP, Question: &resolver}},
		},
	}
	first := checkup.Pair{Source: 1, Target: 0, Family: checkup.IPv4, Transport: checkup.DNSTCP}
	second := checkup.Pair{Source: 1, Target: 1, Transport: checkup.DNSUDP}
	again := order
	again.Look, again.Again = 1, []checkup.Again{{Pair: second, Count: 5}}
	for _, tt := range []struct {
		name  string
		order checkup.Order
		want  map[checkup.Pair]int
	}{{"first look", order, map[checkup.Pair]int{first: 2, second: 2}}, {"second look", again, map[checkup.Pair]int{second: 5}}} {
		t.Run(tt.name, func(t *testing.T) {
			if err := checkOrder(tt.order); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			root := fstest.MapFS{"etc/resolv.conf": {Data: []byte("nameserver 127.0.0.1\n")}}
			if err := (Agent{Order: tt.order, Out: &out, Root: root}).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := map[checkup.Pair]int{}
			var controls []string
			for line := range strings.Lines(out.String()) {
				var m checkup.Message
				if err := json.Unmarshal([]byte(line), &m); err != nil {
					t.Fatal(err)
				}
				if c := m.Control; c != nil {
					controls = append(controls, fmt.Sprint(c.Name, " ", c.OK, ": ", c.Message))
				}
				if m.Observation != nil {
					got[m.Observation.Pair] = m.Observation.Received
				}
			}
			want := []string{"self true: tcp, dns-udp, dns-tcp answered", "closed true: tcp, dns-udp, dns-tcp refused"}
			if diff := cmp.Diff(want, controls); diff != "" {
				t.Errorf("controls (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("answered (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadResolvConf(t *testing.T) {
	address := netip.MustParseAddr
	for _, tt := range []struct {
		name, text string
		want       resolvConf
	}{
		{"a pod's", "search a.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5 edns0\n", resolvConf{
			[]netip.Addr{address("10.96.0.10")}, []string{"a.svc.cluster.local", "svc.cluster.local"}, 5,
		}},
		{"the last search line, three servers, comments", "# nameserver 1.1.1.1\n;x y\ndomain a\nsearch b\nnameserver fd00::1\nnameserver x\nnameserver ::ffff:10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\noptions ndots:x ndots:99\nsortlist", resolvConf{
			[]netip.Addr{address("fd00::1"), address("10.0.0.1"), address("10.0.0.2")}, []string{"b"}, 15,
		}},
		{"empty", "", resolvConf{[]netip.Addr{address("127.0.0.1")}, nil, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readResolvConf(strings.NewReader(tt.text))
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(resolvConf{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// FuzzParseReply: whatever a server answers is read, or is malformed; what is printed of it is short and printable.
func FuzzParseReply(f *testing.F) {
	for _, records := range [][]string{{"A 10.96.0.2"}, {"CNAME " + homeName, "A 10.0.0.1"}, {"SRV 80 " + webName}, nil} {
		q, err := newQuestion(webName, dnsmessage.TypeA)
		if err != nil {
			f.Fatal(err)
		}
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: q.id}, Questions: []dnsmessage.Question{q.question}}
		f.Add(packed(m, success, records...), q.id, uint16(dnsmessage.TypeA))
	}
	f.Fuzz(func(t *testing.T, b []byte, id, kind uint16) {
		q := &query{id: id, question: dnsmessage.Question{
			Name: dnsmessage.MustNewName(webName), Type: dnsmessage.Type(kind), Class: dnsmessage.ClassINET,
		}}
		r, err := parseReply(b, q)
		for _, answer := range checkup.DNSAnswers {
			cause := wrongAnswer(asks("A", answer, "10.96.0.2"), r)
			if err == nil && cause != nil && (len(cause.Message) > maxWords || cause.Message != printable(cause.Message)) {
				t.Errorf("message %q", cause.Message)
			}
		}
	})
}

// FuzzReadResolvConf: any configuration gives servers, and names that can be asked for.
func FuzzReadResolvConf(f *testing.F) {
	f.Add("nameserver 10.96.0.10\nsearch a b\noptions ndots:5\n", "web.shop")
	f.Fuzz(func(t *testing.T, text, name string) {
		conf, err := readResolvConf(strings.NewReader(text))
		if err != nil || len(conf.servers) == 0 || len(conf.servers) > maxNameservers {
			t.Fatalf("%v, servers %v", err, conf.servers)
		}
		for _, name := range conf.names(name) {
			if _, err := newQuestion(name, dnsmessage.TypeA); err != nil && isName(name) {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
}
