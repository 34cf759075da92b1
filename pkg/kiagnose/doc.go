// SPDX-License-Identifier: Apache-2.0

// Package kiagnose speaks to users of kiagnose's VM latency checkup in the keys
// that they have: it reads a checkup's parameters from the data of a ConfigMap
// (FromData) or from environment variables
// (FromEnvironment), and writes the outcome
// back as that ConfigMap's status keys (ConfigMap.Start, ConfigMap.Write).
//
// Keys, variables and wording are those of kiagnose's design document and of
// release v0.3 (kiagnose/types/types.go, checkups/kubevirt-vm-latency); where
// these two differ, both are understood, and both are written. docs/kiagnose.md
// has all of them, with what differs from kiagnose.
package kiagnose
