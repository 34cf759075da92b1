// SPDX-License-Identifier: Apache-2.0

//go:build !race

// The command explain computes, and starts no goroutine but that which loads plans, as the scripts of vet and compile
// do. The race detector makes these scripts take seven times as long: they run without it.

package main

import "testing"

// TestExplainScripts runs the scripts of the verb explain, as TestScripts runs the others.
func TestExplainScripts(t *testing.T) { runScripts(t, isExplain) }
