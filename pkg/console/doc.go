// SPDX-License-Identifier: Apache-2.0

// Package console controls virtual machines over their serial consoles. It knows
// nothing about Kubernetes: Guest.Dial connects to a console.
//
// A serial console is unreliable. Kernel messages appear between and within the output
// of programs; input may be echoed; and KubeVirt gives a console to its newest client
// and disconnects the older one. What the guest sends while no client is connected is
// lost.
//
// # checkplan's own guest
//
// Host and guest exchange frames, each a line of its own:
//
//	checkplan? CRC JSON    a request
//	checkplan! CRC JSON    a reply
//
// CRC is the CRC-32 (IEEE) of the JSON, as eight hexadecimal digits. What is not a
// frame, or is damaged, is ignored. All requests may be repeated: a guest does not
// carry out an order again whose identifier it knows.
//
//	{"id":ID}                        request the state
//	  {"id":ID,"state":{...}}
//	{"id":ID,"order":{...},"from":N} carry out this order, and send its messages from N on
//	  {"id":ID,"number":N,"message":{...}} a checkup.Message, numbered from 0
//	  {"id":ID,"status":{...}}       how many messages there are, and whether that is all
//
// The guest keeps the messages of its last order: a client that missed some, or that
// lost its connection, requests them again. The guest sends its state once without a
// request, with an empty ID, when it begins to listen. The state has a number by which
// the client notices that the guest restarted.
//
// # Other guests
//
// With Guest.Login the guest has a login and a POSIX shell on its console, and the ping
// of iputils or of BusyBox. Pings run in the background and write to files: neither a
// lost connection nor a kernel message disturbs them.
package console
