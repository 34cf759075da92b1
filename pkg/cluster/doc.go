// SPDX-License-Identifier: Apache-2.0

// Package cluster reads a cluster into a plain value: the facts from which kinds of check compute what they measure.
//
//	API server --Reader--> Snapshot --Expand (pure, each kind's own)--> checkup.Worksheet
//
// Only Reader sends requests to a cluster. Survey reads what every kind needs; kinds add to it with Reader's methods. A
// snapshot can be saved to a file (EncodeSnapshot, DecodeSnapshot) and changed hypothetically with kubectl's commands
// (Change). It contains no Secrets, no environment variables, and only the annotations that a kind requested.
//
// An object that could not be read never counts as missing. It is an error that names the missing right or, if the kind
// can continue without it, an entry of Snapshot.Unseen.
package cluster
