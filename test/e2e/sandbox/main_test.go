// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestMain lets a copy of the test binary run as a process that prints a word and then waits until
// it is killed.
func TestMain(m *testing.M) {
	if os.Getenv("CHECKPLAN_TEST_SLEEP") == "1" {
		fmt.Println("up")
		time.Sleep(time.Minute) // longer than any test
	}
	os.Exit(m.Run())
}

// sleeper returns a command that runs a copy of the test binary under another name.
func sleeper(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	return exec.Command(path)
}
