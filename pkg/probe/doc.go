// SPDX-License-Identifier: Apache-2.0

// Package probe measures pairs with sockets, and answers those that measure.
// It knows no Kubernetes. It needs Linux.
//
// Run is the agent: it takes a checkup.Order and writes checkup.Message lines.
// Responder is its counterpart. Funcs holds one prober function per transport;
// what the network did is in the Observation that a function returns, never in
// an error, and trouble with the agent's own sockets is Observation.Unmeasured.
//
// # What is measured
//
// Measurements of one pair start Probe.Interval apart, or later where the rate
// limit says so, and do not wait for one another: a pair takes
// (Count-1)*Interval + Timeout at the most when nothing answers. (Of tcp and
// http at most maxOutstanding measurements of a pair are under way at once; a
// plan with more of them than that per timeout takes longer.) Spoiled ones, see
// below, are repeated and add to that. The round-trip delay (RFC 2681) is
//
//   - tcp, size 0: from the first SYN to its SYN-ACK as the kernel measured it
//     (TCP_INFO), or the time that connect took if the SYN had to be repeated;
//   - tcp, size > 0: from the first byte sent to the last byte echoed, behind
//     the connect;
//   - icmp: from the packet's departure to its answer's arrival;
//   - udp: likewise, less the time for which the responder kept the packet;
//   - http: from the request written to the first byte of the response, behind
//     the connect.
//
// Every tcp and http measurement has a connection, and so a source port, of its
// own. The datagrams of a udp pair are spread over up to udpFlows source ports,
// in consecutive blocks, so that ECMP spreads them over paths. Reordering (RFC
// 4737) is counted among the packets of one source port: packets of different
// flows may overtake one another by design. The don't-fragment bit is left to
// the kernel, so that a path which silently drops large packets shows as loss.
//
// # Timestamps
//
// Datagrams are timed by the kernel, departure and arrival (SO_TIMESTAMPING,
// software), so that a busy agent does not read as a slow network. Without
// departure timestamps the arrival alone is the kernel's; without any, times are
// the agent's.
//
// Nor does a busy responder. As a Session-Reflector of TWAMP does (RFC 5357,
// section 4.2.1: Receive Timestamp and Timestamp), it tells in each udp answer how
// long it had the request: from the kernel's arrival timestamp until just before
// it sends, both by its own clock, so that no two clocks are compared. The agent
// subtracts that. A responder that does not know it, and a time that is longer
// than the delay that it is to be a part of, are left out of account. What stays
// in the delay is the kernel's work at both ends, and what the responder needs to
// enter its send. Of tcp with a size and of http, the responder's time is part of
// the delay.
//
// Observation.Kernel is true only if every delay was timed by the kernel at both
// ends and, for udp, cleared of a residence time.
//
// # Self-doubt
//
// Watch measures how late the agent's own timers wake. A measurement that was
// not timed by the kernel and during which the agent was held up is spoiled: it
// is counted, but not believed. It is repeated, until Count of them are good, but
// at most so often that maxTries times Count are made in all, and not beyond the
// order's deadline. So a short hold-up costs time and packets, but no pair.
//
// What a socket of the agent's own had no room for is not lost by the network
// either: as many datagrams without an answer are spoiled as their socket dropped.
// A responder tells how many requests its sockets dropped (Reception.Dropped), if
// any came through.
package probe
