// SPDX-License-Identifier: Apache-2.0

package console

import "testing"

// FuzzKernelArgs: any arguments of a kernel are understood or are an error.
func FuzzKernelArgs(f *testing.F) {
	for _, s := range []string{
		"", "console=ttyS0 checkplan.mac=02:00:00:00:00:01 checkplan.addr=10.0.0.1/24,fd00::1/64 checkplan.deadline=1h", "checkplan.addr=,,/", "checkplan.deadline=-1s =",
	} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) { _, _ = ParseKernelArgs(s) })
}

// FuzzPrompt: whatever a console prints, its last line is a prompt or none, with and without escape sequences.
func FuzzPrompt(f *testing.F) {
	for _, s := range []string{"login: ", "Password:", "\x1b[0m[user@vm ~]$ ", "\x1b]0;title\a# ", "Login incorrect\r\n", "\x1b[", "\x9b"} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) {
		_ = isPrompt(plain(s))
		saidLast(plain(s))
	})
}
