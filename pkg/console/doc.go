// SPDX-License-Identifier: Apache-2.0

// Package console speaks to virtual machines over their serial consoles. It knows
// no Kubernetes: how a console is reached is Guest.Dial.
//
// A serial console is a poor line. Kernel messages stand between what programs
// write, and within it; what is typed may come back as an echo; and KubeVirt gives
// a console to its newest client and closes the older one, whereupon what the
// guest says to nobody is lost.
//
// # checkplan's own guest
//
// Host and guest exchange frames, each a line of its own:
//
//	checkplan? CRC JSON    a request
//	checkplan! CRC JSON    a reply
//
// CRC is the CRC-32 (IEEE) of the JSON, as eight hexadecimal digits. What is not a
// frame, or has been damaged, is ignored. All requests may be repeated: one with
// an identifier that the guest knows already is not carried out again.
//
//	{"id":ID}                        what state are you in?
//	  {"id":ID,"state":{...}}
//	{"id":ID,"order":{...},"from":N} carry out this order, and tell its messages from N on
//	  {"id":ID,"number":N,"message":{...}} a checkup.Message, numbered from 0
//	  {"id":ID,"status":{...}}       how many messages there are, and whether that is all
//
// The guest keeps the messages of its last order, so that whoever has missed some,
// or comes back after a lost connection, asks for them again. It tells its state
// of its own accord once, with an empty ID, when it begins to listen.
//
// # Other guests
//
// With Guest.Login the guest is one with a login and a POSIX shell on its console,
// and with a ping, that of iputils or of BusyBox. Pings run in the background and
// write to files, so that neither a lost connection nor a kernel message harms
// them.
package console
