// SPDX-License-Identifier: Apache-2.0

// Package probe measures pairs with sockets, and answers those that measure.
// It knows no Kubernetes. It needs Linux.
//
// Run is the agent: it takes a checkup.Order and writes checkup.Message lines.
// Responder is its counterpart. Funcs holds one prober function per transport;
// what the network did is in the Observation that a function returns, never in
// an error, and trouble with the agent's own sockets is Observation.Unmeasured.
// Pairs whose target is a Peer, something that is there already, are measured
// connection by connection, and each is told as a Result: see Connections.
//
// An agent first measures control pairs, whose outcome is known: in a pod a
// responder of its own, which must answer, and closed ports, which must refuse; in a
// VM, whose order says Own and Unused, its own address, which must answer to icmp,
// and one that nobody has, which must not.
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
//     the connect;
//   - tls: the stages of a connection, see below.
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
// Of a connection to a Peer, a stage that timed out while the agent was held up
// makes it unmeasured. The delay of a stage that was passed then is left out
// (that of a connect is the kernel's, and stands): however late the agent looked,
// the peer was reached. Nothing is repeated, as each measurement has its time.
//
// What a socket of the agent's own had no room for is not lost by the network
// either: as many datagrams without an answer are spoiled as their socket dropped.
// A responder tells how many requests its sockets dropped (Reception.Dropped), if
// any came through.
//
// # Connections
//
// A connection to a Peer goes through stages. Each has a deadline of its own,
// from the end of the one before it, a delay of its own, and failures of its own:
//
//   - resolve, only of a DNS name: both families, or the one of the pair, are
//     asked for as /etc/hosts and /etc/resolv.conf say, anew for each measurement;
//   - connect: several addresses are tried as RFC 8305 says, the families by turns
//     and 250 ms apart. The delay is that of the connection that was made, never of
//     one that was tried beside it;
//   - handshake, only of tls: from the ClientHello until the client has completed
//     it, the agent's own cryptography included;
//   - response, only of tls with a path: from the GET (HTTP/1.1) written to the
//     first byte of the response. The whole response must come within the deadline.
//
// What is asked is whether the peer can be reached and answers. Hence its
// certificate is not verified: neither its authority, nor its name, nor its dates
// (as OpenShift's checker does it). The handshake must be completed, though. In TLS
// 1.3 that is before the server looks at a client certificate (RFC 8446, section
// 2), so that its refusal is seen only where there is a path: then the response
// fails, with the alert. Without a path it is not waited for, since the
// connectivity is proved. A response counts only with a status of 2xx. A 401 or
// 403 proves that the peer answers, too, but not that it is ready, which is
// what a path is for; a plan that wants no more than an answer gives none.
//
// Measurements of a pair begin when they are due, whether or not those before
// them have ended, but are told in their order. One that cannot begin, as too
// many are under way or the agent is late by more than an interval, is told as
// unmeasured. The first measurements of all pairs are spread over the interval, or
// a second if that is shorter.
package probe
