// SPDX-License-Identifier: Apache-2.0

// Package probe measures pairs with sockets (the agent) and answers such measurements (the responder). It does not know
// Kubernetes. It needs Linux.
//
// Agent.Run executes a checkup.Order and writes checkup.Message lines. Responder is its counterpart. Funcs holds one
// prober function per transport. A function returns the result of the network in the Observation, never as an error;
// errors of the agent's own sockets are Observation.Unmeasured. Pairs whose target is a Peer (something that already
// exists) are measured connection by connection, and each measurement is reported as a Result: see Connections.
//
// An agent first measures control pairs, whose outcome is known: in a pod its own responder, which must answer, and
// closed ports, which must refuse; in a VM, whose order has Own and Unused, its own address, which must answer to icmp,
// and an unused one, which must not.
//
// # What is measured
//
// Measurements of one pair start Probe.Interval apart (with demanded source ports, see below, less), or later because
// of the rate limit, and do not wait for one another: without any answer, a pair takes at most (Count-1)*Interval +
// Timeout. (With tcp and http, at most maxOutstanding measurements of a pair are open at the same time; more than that
// per timeout take longer.) Spoiled measurements, see below, are repeated, which adds time. The round-trip delay (RFC
// 2681) is
//
//   - tcp, size 0: from the first SYN to its SYN-ACK as the kernel measured it
//     (TCP_INFO), or the time that connect took if the SYN had to be repeated;
//   - tcp, size > 0: from the first byte sent to the last byte echoed, after
//     the connect;
//   - icmp: from the packet's departure to its answer's arrival;
//   - udp: likewise, less the time for which the responder kept the packet;
//   - http: from the request written to the first byte of the response, after
//     the connect;
//   - tls: the stages of a connection, see below;
//   - dns-udp, dns-tcp: from the question to the whole answer, with the connect of
//     TCP, and the questions of a search list (dns.go).
//
// Every tcp and http measurement uses a new connection and therefore another source port. The datagrams of a udp pair
// are sent from up to checkup.UDPFlows source ports in turn: ECMP spreads them over paths, and a short outage hits all
// ports alike. Reordering (RFC 4737) is counted among the packets of one source port: packets of different flows may
// overtake one another by design.
//
// If a part of a pair's measurements is not answered, the observation lists its source ports (Observation.Flows): a
// port that is never answered beside others that always are is one of several parallel paths. A pair may demand source
// ports (Measurement.Ports), in order to measure such a flow again. They are used in turn; connections from one port
// are made one after another, and closed by a reset, because the port is otherwise not free for a minute. With tcp and
// http, Probe.Interval is then that of each port: many ports take no longer than one with its share of the
// measurements. A port that another socket of this host uses is tried again for as long as the pair takes. Then its
// share of the measurements is not made, and its flow is unmeasured: another port would say nothing about it.
//
// A pair may have stopping points (Measurement.Stops). Before the measurement after such a point, the agent waits for
// answers only if the pair would be beyond the point without them, and sends nothing meanwhile: what a responder counts
// is what is reported. If the pair is beyond it, it ends; otherwise it goes on.
//
// A flow is the same only while the agent's address is the same: a hash of paths includes addresses.
//
// The kernel sets the don't-fragment bit: a path that silently drops large packets appears as loss.
//
// # Timestamps
//
// The kernel times the departure and arrival of datagrams (SO_TIMESTAMPING, software): a busy agent does not look like
// a slow network. Without departure timestamps, only the arrival is timed by the kernel; without any, the agent times
// both.
//
// A busy responder does not look like a slow network either. Like a Session-Reflector of TWAMP (RFC 5357, section
// 4.2.1: Receive Timestamp and Timestamp), it reports in each udp answer how long it kept the request: from the
// kernel's arrival timestamp until just before the send, both by its own clock; clocks of two hosts are never compared.
// The agent subtracts that time. An unknown time, or one longer than the delay, is ignored. The remaining delay
// includes the kernel's work at both ends and the responder's send call. With tcp with a size and with http, the
// responder's time is part of the delay; but it reports how long it kept the request, in milliseconds (witness.go), and
// a long time spoils the measurement: see below.
//
// Observation.Kernel is true only if the kernel timed both ends of every delay and, for udp, the residence time was
// subtracted.
//
// # Self-doubt
//
// Watch measures how late the agent's own timers wake: every 5 ms while measurements are open, otherwise every 50 ms. A
// measurement that the kernel did not time and during which the agent was held up, or for which a responder was, is
// spoiled: it is counted, but its result is discarded. Spoiled measurements are repeated until Count of them are good,
// but at most maxTries times Count are made in total, and none after the order's deadline. A short hold-up costs time
// and packets, but no pair.
//
// If a stage of a connection to a Peer timed out while the agent was held up, the measurement is unmeasured. The delay
// of a stage that passed during a hold-up is left out (except that of a connect, which the kernel times): the peer was
// reached, however late the agent noticed. A connect whose SYN was sent again is not timed by the kernel: during a
// hold-up, the measurement is unmeasured, and the connection is closed. Neither is repeated.
//
// Packets that the agent's own socket dropped because its buffer was full are not lost by the network: as many
// datagrams without an answer are spoiled as their socket dropped. A responder reports how many requests its sockets
// dropped (Reception.Dropped), if it received any.
//
// # Connections
//
// A connection to a Peer has stages. Each stage has its own deadline, from the end of the stage before, its own delay
// and its own failures:
//
//   - resolve, only of a DNS name: both families, or the one of the pair, are
//     looked up with /etc/hosts and /etc/resolv.conf, again for each measurement;
//   - connect: several addresses are tried as in RFC 8305, with alternating
//     families, 250 ms apart. The delay is that of the established connection, never
//     of another attempt;
//   - handshake, only of tls: from the ClientHello until the client has completed
//     it, including the agent's own cryptography;
//   - response, only of tls with a path: from the GET (HTTP/1.1) written to the
//     first byte of the response. The whole response must arrive within the deadline.
//
// The question is whether the peer can be reached and answers. Therefore its certificate is not verified: neither its
// authority, nor its name, nor its dates (as in OpenShift's checker). The handshake must be completed, however. In TLS
// 1.3 that happens before the server checks a client certificate (RFC 8446, section 2): a rejected certificate is
// noticed only with a path, when the response fails with the alert. Without a path the agent does not wait for that,
// because connectivity is proved. A response passes only with a status of 2xx. A 401 or 403 also proves that the peer
// answers, but not that it is ready, which is the purpose of a path; a plan that only needs an answer sets no path.
//
// Measurements of a pair start when they are due, whether or not earlier ones have ended, but are reported in order. A
// measurement cannot start if too many are open, or if the agent is late by more than an interval. In a watch it is
// reported as unmeasured, because each measurement belongs to its time. In a round it is tried again an interval later,
// until the order's deadline; one result then says why all that are left did not start. The first measurements of all
// pairs are spread over the interval, or over a second if that is shorter.
package probe
