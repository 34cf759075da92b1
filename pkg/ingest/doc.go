// SPDX-License-Identifier: Apache-2.0

// Package ingest reads what agents, responders and guests report, and decides what
// of it counts. It is the only place that parses reports, limits them, removes
// duplicates and notes why a source is not to be trusted:
//
//	Lines      bytes of a log                -> messages
//	Source     messages of one agent, guest  -> new observations and results, a checkup.Source
//	Receptions messages of one responder     -> one reception of each expected pair
//
// Everything here is a value that is fed with messages: no clock, no cluster, no
// goroutine. Callers open the logs and consoles, and close them.
//
// A table of a node's rules is collected from its parts, and handed on when all looks at it are complete. What it says
// is not read here: it stays compressed, and pkg/dataplane reads it without trust.
//
// # Duplicates
//
// A log is read again when its stream breaks, so that a message may come twice.
// Feeding a log again, from any line on, changes nothing; feeding it in pieces is the
// same as feeding it at once. What is reported a second time and is different is a
// conflict, and never replaces what was reported first.
//
// # Distrust
//
// A source reports its own pairs of the worksheet. A report about any other pair is
// counted as unrequested, whatever source it names, and is never handed on: what one
// source makes up costs its own pairs (checkup.Source.Unrequested) or one pair
// (checkup.Source.Conflicts), and never a measurement of another source. A responder
// counts expected pairs of its own target. Judging these numbers is not done here.
//
// # Limits
//
// What is kept of one source is bounded by its share of the worksheet and by the
// constants MaxLine, MaxGarbage, MaxUnrequested, MaxMessage, MaxTable and recent, whatever a log holds:
// no more delays, source ports and results of a pair than were ordered and one more. And no log is read on that is
// several times as long as all that was ordered (Source.MaxLog).
package ingest
