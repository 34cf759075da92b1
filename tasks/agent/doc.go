// SPDX-License-Identifier: Apache-2.0

// Agent is the program in the pods that measure and in those that answer.
//
// Usage:
//
//	agent probe --order FILE
//	agent respond [--echo ADDRESS] [--http ADDRESS]
//	agent version
//
// It needs no API token, no capability, no file system that can be written to,
// and at most 64Mi of memory (GOMEMLIMIT, if it is not set, is 48MiB), with up to
// 1,000 peers even if none of them answers. For icmp its group must be in the
// sysctl net.ipv4.ping_group_range; that is a safe sysctl, which a pod under
// restricted pod security may set.
//
// # agent probe
//
// Carries out the order in FILE: a checkup.Order as JSON. It waits for a random
// part of the order's start jitter, measures two control pairs per IP family (a
// responder of its own, which must answer, and closed ports, which must refuse),
// then every pair, in an order shuffled by the order's seed.
//
// It writes checkup.Message values to standard output, one JSON object a line,
// each line shorter than 16 KiB:
//
//	{"start":{...}}        at once; says how many observations will follow
//	{"control":{...}}      two per IP family
//	{"observation":{...}}  one per pair, as soon as it is known
//	{"end":{...}}          last; says what the agent knows of its own delays
//
// Measurements during which the agent itself was held up are repeated, a bounded
// number of times. Pairs that the order's deadline leaves unmeasured are told as
// unmeasured. On SIGTERM the agent stops at once, tells no pair that it did not
// measure, and tells no end: what has no end is not complete.
//
// An order with connections is of peers: addresses or DNS names that speak TLS,
// or that take TCP connections. All of them are measured at once, each as often
// and at such intervals as the order says, and each measurement is told:
//
//	{"results":[{...}]}    within half a second; of a pair that begins or ceases
//	                       to fail, at once
//
// A pair of which nothing could be measured is told as an unmeasured observation.
// On SIGTERM what is known is told first; what is still under way is not, as it
// has not failed. Client certificates are those of Secrets mounted at
// /etc/checkplan/certificates/SECRET/, tls.crt and tls.key.
//
// # agent respond
//
// Answers on these ports, in both IP families, until SIGTERM:
//
//	--echo :7007   TCP echo of whatever comes; UDP echo of agents' requests only
//	--http :7080   HTTP: /healthz says ok, /bytes?n=SIZE gives up to 16 MiB
//
// Each UDP answer holds how long the responder had the request, so that the agent
// can subtract it.
//
// It writes how many distinct UDP requests came of each pair, for the pairs of
// which more came, once a second and at the end; and with it how many its socket
// had no room for:
//
//	{"reception":{...}}
//
// # In a VM
//
// As /init, the first process of a VM, the agent is all that there is of checkplan's
// own guest (tasks/internal/guestimage makes its image). It takes what it needs from
// the kernel's command line (console.KernelArgs): it loads the modules for the
// devices that are there, gives the interface with the MAC its addresses, looks
// whether another machine has them, and carries out orders that come over the serial
// console (pkg/console). At its deadline it powers the VM off. What is wrong with
// the VM is told on the console; a guest with an address that another machine has
// measures nothing.
//
// # Exit codes
//
// 0 also when the network is broken, and after SIGTERM; 1 when the agent itself
// failed, for example because the order cannot be read; 2 for a wrong command
// line. Messages for people are on standard error.
package main
