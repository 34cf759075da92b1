// SPDX-License-Identifier: Apache-2.0

// Package kiagnose reads and writes the keys of kiagnose's VM latency checkup. It reads
// a checkup's parameters from the data of a ConfigMap (FromData) or from environment
// variables (FromEnvironment), and writes the outcome as status keys of that ConfigMap
// (ConfigMap.Start, ConfigMap.Write).
//
// Keys, variables and wording are those of kiagnose's design document and of release
// v0.3 (kiagnose/types/types.go, checkups/kubevirt-vm-latency). Where these two differ,
// both are read, and both are written. docs/kiagnose.md lists all of them, and the
// differences from kiagnose.
package kiagnose
