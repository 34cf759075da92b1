// SPDX-License-Identifier: Apache-2.0

// Package cluster is a cluster as a plain value: what kinds of check need to
// know of it to work out what they will measure.
//
//	API server --Reader--> Snapshot --Expand (pure, each kind's own)--> checkup.Worksheet
//
// Reader is the only part that asks a cluster. Survey fills in what every kind
// needs; kinds add to it with Reader's methods. A snapshot can be kept in a file
// (EncodeSnapshot, DecodeSnapshot), and changed in the words of kubectl to ask
// what would be (Change). It holds no Secret, no environment and no annotation
// but those that a kind asked for.
//
// What could not be looked at is never taken for what is not there: it is an
// error that names the missing right, or, where a kind can go on without it, an
// entry of Snapshot.Unseen.
package cluster
