// SPDX-License-Identifier: Apache-2.0

// Agent is the program in agent pods, which measure, and in responder pods, which answer.
//
// Usage:
//
//	agent probe --order FILE
//	agent probe --order-env NAME
//	agent respond [--echo ADDRESS] [--http ADDRESS] [--health ADDRESS] [--linger DURATION]
//	agent version
//
// It needs no API token, no capability, no writable file system, and at most 64Mi of memory (the default of GOMEMLIMIT
// is 48MiB), with up to 1,000 peers even if none of them answers. Only an agent that reads the rules of its node is
// root, with the capability NET_ADMIN, and has no limit of memory of its own. For icmp its group must be in the sysctl
// net.ipv4.ping_group_range; that is a safe sysctl, which a pod under restricted pod security may set.
//
// # agent probe
//
// Executes the order in FILE, or in the environment variable NAME: a checkup.Order as JSON. An ephemeral container has
// only its environment, and nobody can delete it: a minute after the order's deadline the agent ends in any case. It
// waits for a random part of the order's start jitter, measures two control pairs per IP family (its own responder,
// which must answer, and closed ports, which must refuse), then every pair, shuffled by the order's seed.
//
// It writes checkup.Message values to standard output, one JSON object per line. Lines of pairs are shorter than
// 16 KiB, at which container runtimes split lines. A line with a part of a node's rules (96 KiB in base64) has about
// 128 KiB:
//
//	{"start":{...}}        at once; with the number of observations that follow
//	{"control":{...}}      two per IP family
//	{"observation":{...}}  one per pair, as soon as it is measured
//	{"end":{...}}          last; with the agent's own delays
//
// Measurements during which the agent itself was held up are repeated, a limited number of times. Pairs that are not
// measured by the order's deadline are reported as unmeasured. On SIGTERM the agent stops at once. It then reports only
// measured pairs and no end: a report without end is incomplete.
//
// An order with connections has peers: addresses or DNS names that speak TLS or accept TCP connections. All of them are
// measured at the same time, with the count and interval of the order, and each measurement is reported:
//
//	{"results":[{...}]}    within half a second; at once if a pair starts or stops
//	                       failing
//
// A pair without any measurement is reported as an unmeasured observation. On SIGTERM the agent first reports the known
// results; open measurements are not reported, because they have not failed. Client certificates are those of Secrets
// mounted at /etc/checkplan/certificates/SECRET/, tls.crt and tls.key.
//
// With an order with tables, the agent measures no pair. It reads the rules of its node, twice per IP family:
//
//	{"table":{...}}        a part of the rules, compressed
//
// # agent respond
//
// Answers on these ports, in both IP families, until SIGTERM:
//
//	--echo :7007   TCP echo of any data; UDP echo of agents' requests only
//	--http :7080   HTTP: /healthz returns ok, /bytes?n=SIZE returns up to 16 MiB
//	--health :7081 HTTP: /healthz for the kubelet
//
// With --linger, it goes on answering for that long after the signal.
//
// Each UDP answer contains how long the responder kept the request; the agent subtracts that.
//
// Every 200 ms and at the end, the responder reports how many distinct UDP requests it received for each pair whose
// count has changed, and how many packets its full socket buffer dropped:
//
//	{"reception":{...}}
//
// # In a VM
//
// As /init, the first process of a VM, the agent is the only program of checkplan's guest (tasks/internal/guestimage
// builds its image). It reads its configuration from the kernel's command line (console.KernelArgs): it loads the
// modules for the VM's devices, sets the addresses of the interface with the MAC, checks whether another machine uses
// them, and executes orders that it receives over the serial console (pkg/console). At its deadline it powers the VM
// off. It reports problems of the VM on the console; a guest with an address that another machine uses measures
// nothing.
//
// # Exit codes
//
// 0 also if the network is broken, and after SIGTERM; 1 if the agent itself failed, for example because it cannot read
// the order; 2 for a wrong command line. Messages for people are on standard error.
package main
