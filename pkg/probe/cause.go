// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// localErrnos are errors of connect and send that tell of the agent's own host
// (no memory, no free file or port, no such protocol), not of the path.
var localErrnos = []syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS,
	syscall.EADDRNOTAVAIL, syscall.EADDRINUSE,
	syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT,
}

// localSyscalls fail for reasons of the agent's own host whatever the error.
var localSyscalls = []string{"socket", "setsockopt", "getsockopt", "bind"}

// isLocal reports whether an error tells of the agent's own socket, not of the
// path.
func isLocal(err error) bool {
	var call *os.SyscallError
	if errors.As(err, &call) && slices.Contains(localSyscalls, call.Syscall) {
		return true
	}
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(localErrnos, errno)
}

// localTrouble puts a local socket's error into words.
func localTrouble(err error) error {
	var call *os.SyscallError
	if errors.As(err, &call) {
		return call
	}
	return err
}

// fail ends a sample with what the network did. The error must not be a local
// one. Messages are short and the same for the same reason, so that reports can
// group by them.
func (s *sample) fail(stage checkup.Stage, err error, timeout time.Duration) {
	var errno syscall.Errno
	switch {
	case isTimeout(err):
		s.timeOut(stage, timeout)
	case errors.As(err, &errno):
		s.cause = &checkup.Cause{Stage: stage, Message: errno.Error()}
	case isClosed(err):
		s.cause = &checkup.Cause{Stage: stage, Message: "closed by the peer before the whole answer"}
	default:
		s.cause = &checkup.Cause{Stage: stage, Message: err.Error()}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &timeout) && timeout.Timeout()
}

func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// fromNetwork reports whether an error is one of the network's, not of what was
// read from it.
func fromNetwork(err error) bool {
	var errno syscall.Errno
	return isTimeout(err) || isClosed(err) || errors.As(err, &errno)
}

// timeOut ends a sample for which nothing came in time.
func (s *sample) timeOut(stage checkup.Stage, timeout time.Duration) {
	s.timedOut = true
	s.cause = &checkup.Cause{Stage: stage, Message: fmt.Sprintf("timed out after %v", timeout)}
}

// errWrongAnswer is an answer that is not the one asked for.
var errWrongAnswer = errors.New("the answer differs from what was sent")
