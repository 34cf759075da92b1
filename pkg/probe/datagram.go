// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// datagrams is the common part of udp and icmp: packets with sequence numbers and their answers, over one or more
// sockets.
type datagrams struct {
	m Measurement
	// open creates a socket with the source port, or any if it is 0; it is called once per flow. flows is the number of
	// flows if the measurement demands no ports.
	open  func(port int) (*socket, error)
	flows int
	// packet appends request number i, answer its expected answer.
	packet func(b []byte, i int) []byte
	answer func(b []byte, i int) []byte
	// number reads the number of an answer to us; quoted the number of a request of ours in an ICMP error, which may be
	// truncated.
	number func(b []byte) (i int, ok bool)
	quoted func(b []byte) (i int, ok bool)
	// added reads what the peer added to an answer, and clears it. nil means that the peer's kernel answers at once.
	added func(b []byte) added
}

// added is what a responder adds to an answer: how long it kept the request, 0 if unknown; the source address that it
// saw, and its own, invalid if unknown.
type added struct {
	residence time.Duration
	seen, own netip.Addr
}

// The functions above have no side effects: receivers call them all at once.

// flow is one socket with the packets sent from it.
type flow struct {
	*socket
	// port is the source port of udp; 0 for icmp. own is the source address, invalid for icmp.
	port int
	own  netip.Addr
	// sent are the numbers of the packets that left, in order.
	sent []int
	// uncounted reports that a send failed: the kernel's count of packets and ours may differ, and departures of this
	// flow are no longer used.
	uncounted bool
	// highest number that was answered so far; -1 before the first.
	highest int
	// strange reports that a packet arrived that was not an answer to us.
	strange bool
	// noRoom is the number of packets that the socket dropped because its buffer was full, excused the number of
	// timeouts that were attributed to these drops.
	noRoom, excused int
}

// journey is one packet and its answer.
type journey struct {
	flow           *flow
	sent, departed time.Time // by the agent's clock, and by the kernel's
	came, arrived  time.Time // likewise; came is zero without an answer
	added
	err   error // of the send, or from ICMP
	wrong bool  // a wrong answer arrived
	over  bool  // its round is over: an answer is now too late
}

// settled reports that the result of the packet is final.
func (j *journey) settled() bool { return j.over || !j.came.IsZero() || j.err != nil || j.wrong }

// heard is an event and its meaning.
type heard struct {
	event
	flow *flow
	// number of the packet that an arrival or failure belongs to; -1 if unknown. right reports that an arrival is the
	// expected answer.
	number int
	right  bool
	added  // what the answer reports
}

// understand decodes the data of an event.
func (d *datagrams) understand(f *flow, e event, scratch *[]byte) heard {
	h := heard{event: e, flow: f, number: -1}
	read := d.number
	if e.kind == failure {
		read = d.quoted
	}
	if i, ok := read(e.data); ok && i < maxTries*d.m.Probe.Count {
		h.number = i
		if e.kind == arrival && d.added != nil {
			h.added = d.added(e.data)
		}
		*scratch = d.answer((*scratch)[:0], i)
		h.right = e.kind == arrival && bytes.Equal(e.data, *scratch)
	}
	h.data = nil
	return h
}

// linger limits how long a pair waits for duplicates of the last answer after all packets are answered.
const linger = 100 * time.Millisecond

// measure sends the packets of a pair and collects the answers.
func (d *datagrams) measure(ctx context.Context, s *Session) checkup.Observation {
	c := conversation{datagrams: d}
	defer func() {
		for _, f := range c.flows {
			f.close()
		}
	}()
	ports := d.m.Ports
	if len(ports) == 0 {
		ports = make([]int, d.flows)
	}
	var unbound []sample
	for i, port := range ports {
		var sock *socket
		err := patiently(ctx, d.m, port, func() (err error) {
			sock, err = d.open(port)
			return err
		})
		switch {
		case port != 0 && isTaken(err):
			// The measurements of this port are not made: another port would say nothing about it.
			for k := i; k < d.m.Probe.Count; k += len(ports) {
				unbound = append(unbound, unusable(port, err))
			}
			continue
		case isLocal(err):
			return unmeasured(d.m, checkup.StageSocket, localTrouble(err).Error())
		case err != nil:
			// The kernel has no route to the target and reports that before any packet is sent.
			return d.noWay(ctx, s, err)
		}
		f := &flow{socket: sock, highest: -1}
		if d.m.Pair.Transport == checkup.UDP {
			own := sock.name()
			f.port, f.own = int(own.Port()), own.Addr()
		}
		c.flows = append(c.flows, f)
	}
	o := repeat(ctx, d.m, s.Watch, func(n int, end ends) ([]sample, error) {
		skipped := unbound
		unbound = nil
		if n == len(skipped) {
			return skipped, nil
		}
		samples, err := c.round(ctx, s, n-len(skipped), end)
		return append(samples, skipped...), err
	})
	if o.Unmeasured == nil {
		o.Duplicates, o.Reordered = c.duplicates, c.reordered
	}
	return o
}

// noWay returns the observation of a pair whose connect already failed. One try is enough, because every packet would
// fail in the same way.
func (d *datagrams) noWay(ctx context.Context, s *Session, err error) checkup.Observation {
	if s.Limiter != nil && s.Limiter.Wait(ctx) != nil {
		return cutShort(d.m)
	}
	samples := make([]sample, d.m.Probe.Count)
	for i := range samples {
		samples[i].fail(checkup.StageConnect, err, time.Duration(d.m.Probe.Timeout))
		samples[i].cause.Reason = reasonOf(err)
	}
	return tally(d.m, samples)
}

// conversation is the state of one pair while it is measured.
type conversation struct {
	*datagrams
	flows      []*flow
	journeys   []journey
	duplicates int
	reordered  int
	unsettled  int    // sent, but not settled
	watched    bool   // the agent's Watch counts an open measurement
	scratch    []byte // the packet to send
}

// watch has the agent's Watch count an open measurement while packets are unsettled.
func (c *conversation) watch(w *Watch, open bool) {
	switch {
	case open && !c.watched:
		w.begin()
	case !open && c.watched:
		w.end()
	}
	c.watched = open
}

// round sends n more packets, or fewer if it ends before, and collects their answers.
func (c *conversation) round(ctx context.Context, s *Session, n int, end ends) ([]sample, error) {
	first := len(c.journeys)
	for i := range c.journeys {
		c.journeys[i].over = true
	}
	c.unsettled = 0
	c.journeys = append(c.journeys, make([]journey, n)...)
	events := make(chan heard, 64)
	var receivers sync.WaitGroup
	for _, f := range c.flows {
		f.resume()
		receivers.Go(func() {
			var scratch []byte
			f.receive(func(e event) { events <- c.understand(f, e, &scratch) })
		})
	}
	err := c.run(ctx, s, first, end, events)
	defer c.watch(s.Watch, false)
	for _, f := range c.flows {
		f.interrupt()
	}
	go func() { receivers.Wait(); close(events) }()
	for e := range events {
		c.hear(e)
	}
	// If the agent was held up, there may be unread answers.
	var scratch []byte
	for _, f := range c.flows {
		f.rest(func(e event) { c.hear(c.understand(f, e, &scratch)) })
		f.noRoom = drops(f.raw)
		if c.m.Pair.Transport == checkup.UDP {
			f.noRoom = noRoom(f.noRoom, c.m.Pair.Family, os.DirFS("/"))
		}
	}
	if err != nil {
		return nil, err
	}
	return c.samples(first), nil
}

// run sends the packets from the given number on and waits until all are settled or timed out. If it ends before, it
// removes the packets that it did not send.
func (c *conversation) run(ctx context.Context, s *Session, first int, end ends, events <-chan heard) error {
	interval, timeout := time.Duration(c.m.Probe.Interval), time.Duration(c.m.Probe.Timeout)
	next, granted := first, false
	timer := time.NewTimer(0)
	defer timer.Stop()
	// wait sets the timer when the last packet was sent.
	wait := func() {
		if c.unsettled == 0 {
			timer.Reset(min(interval, timeout, linger))
			return
		}
		timer.Reset(time.Until(c.journeys[next-1].sent.Add(timeout)))
	}
	for {
		c.watch(s.Watch, c.unsettled > 0)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-events:
			before := c.unsettled
			c.hear(e)
			if next == len(c.journeys) && c.unsettled == 0 && before > 0 {
				timer.Reset(min(interval, timeout, linger))
			}
		case <-timer.C:
			if next == len(c.journeys) {
				return nil
			}
			if !granted && end(next-first, c.unanswered(first, next)) && !c.silentFlow(next) {
				c.journeys = c.journeys[:next]
				wait()
				continue
			}
			if !granted && s.Limiter != nil {
				granted = true
				if wait := s.Limiter.Reserve().Delay(); wait > 0 {
					timer.Reset(wait)
					continue
				}
			}
			granted = false
			c.watch(s.Watch, true)
			sent := time.Now()
			if err := c.send(next, sent); err != nil {
				return err
			}
			if next++; next < len(c.journeys) {
				timer.Reset(time.Until(sent.Add(interval)))
			} else {
				wait()
			}
		}
	}
}

// unanswered counts the packets from one number to before another one that are not answered yet, or never.
func (c *conversation) unanswered(from, end int) int {
	n := 0
	for i := range c.journeys[from:end] {
		if c.journeys[from+i].came.IsZero() {
			n++
		}
	}
	return n
}

// silentFlow is checkup.SilentFlow of the packets up to before a number.
func (c *conversation) silentFlow(end int) bool {
	counted := make([]checkup.Flow, len(c.flows))
	for i := range c.journeys[:end] {
		f := &counted[slices.Index(c.flows, c.journeys[i].flow)]
		f.Sent++
		if !c.journeys[i].came.IsZero() {
			f.Received++
		}
	}
	return checkup.SilentFlow(counted)
}

// send sends packet i.
func (c *conversation) send(i int, now time.Time) error {
	// In turn: a short outage hits all flows alike, and is not one dead flow.
	f := c.flows[i%len(c.flows)]
	j := &c.journeys[i]
	j.flow, j.sent = f, now
	c.unsettled++
	c.scratch = c.packet(c.scratch[:0], i)
	deadline := now.Add(time.Duration(c.m.Probe.Timeout))
	err := f.send(c.scratch, deadline)
	if err != nil && !isLocal(err) && !errors.Is(err, syscall.EMSGSIZE) {
		// The error may belong to an earlier packet: the kernel then reports it instead of sending this one. The ICMP
		// error of that packet is on the error queue.
		f.uncounted = true
		err = f.send(c.scratch, deadline)
	}
	switch {
	case isLocal(err):
		return err
	case err != nil:
		f.uncounted = true
		c.fail(j, err)
	default:
		f.sent = append(f.sent, i)
	}
	return nil
}

// fail settles a journey with an error of the network.
func (c *conversation) fail(j *journey, err error) {
	if j.settled() || j.sent.IsZero() {
		return
	}
	j.err = err
	c.unsettled--
}

// hear records an event.
func (c *conversation) hear(e heard) {
	switch e.kind {
	case departure:
		if int(e.id) < len(e.flow.sent) && !e.flow.uncounted {
			c.journeys[e.flow.sent[e.id]].departed = e.kernel
		}
	case failure:
		i := e.number
		if i >= len(c.journeys) {
			return
		}
		if i < 0 {
			if len(e.flow.sent) == 0 {
				return
			}
			i = e.flow.sent[len(e.flow.sent)-1]
		}
		c.fail(&c.journeys[i], e.errno)
	case arrival:
		i := e.number
		if i < 0 || i >= len(c.journeys) || c.journeys[i].flow != e.flow || e.at.Before(c.journeys[i].sent) {
			e.flow.strange = true // not an answer, or to a request that was not sent yet
			return
		}
		j := &c.journeys[i]
		unsettled := !j.settled()
		switch {
		case !e.right:
			j.wrong = j.came.IsZero()
		case !j.came.IsZero():
			c.duplicates++
		default:
			j.came, j.arrived, j.added, j.wrong = e.at, e.event.kernel, e.added, false
			if i < e.flow.highest {
				c.reordered++
			}
			e.flow.highest = max(e.flow.highest, i)
		}
		if unsettled && j.settled() {
			c.unsettled--
		}
	}
}

// samples returns the result of every packet from the given number on.
func (c *conversation) samples(first int) []sample {
	timeout := time.Duration(c.m.Probe.Timeout)
	samples := make([]sample, len(c.journeys)-first)
	for i := range samples {
		j, s := &c.journeys[first+i], &samples[i]
		s.start, s.end, s.port = j.sent, j.sent.Add(timeout), j.flow.port
		s.own, s.seen, s.answerer = j.flow.own, j.seen, j.added.own
		switch {
		case !j.came.IsZero():
			s.end = j.came
			s.rtt, s.kernel = j.delay()
			if c.datagrams.added != nil {
				s.rtt, s.kernel = lessResidence(s.rtt, s.kernel, j.residence)
			}
			s.late(timeout)
		case j.err != nil:
			s.fail(checkup.StageConnect, j.err, timeout)
			s.cause.Reason = reasonOf(j.err)
		case j.wrong, j.flow.strange:
			s.fail(checkup.StageEcho, errWrongAnswer, timeout)
		default:
			s.timeOut(timeout)
			if j.flow.excused < j.flow.noRoom {
				j.flow.excused++
				s.noRoom = true
			}
		}
		if s.timedOut {
			s.cause.Reason = checkup.ReasonTimedOut
		}
	}
	return samples
}

// lessResidence subtracts from a delay the time for which the peer kept the packet. If that time is unknown or longer
// than the delay, the delay no longer counts as timed by the kernel.
func lessResidence(d time.Duration, kernel bool, residence time.Duration) (time.Duration, bool) {
	if residence <= 0 || residence > d {
		return d, false
	}
	return d - residence, kernel
}

// delay returns the round-trip delay of an answered packet, and whether the kernel timed both ends. The kernel uses the
// wall clock, which may be set in between: a delay outside 0 and the agent's own measurement is discarded.
func (j *journey) delay() (time.Duration, bool) {
	own := j.came.Sub(j.sent)
	if j.arrived.IsZero() {
		return own, false
	}
	if !j.departed.IsZero() {
		if d := j.arrived.Sub(j.departed); d >= 0 && d <= own {
			return d, true
		}
	}
	if d := j.arrived.Sub(j.sent.Round(0)); d >= 0 && d <= own {
		return d, false
	}
	return own, false
}
