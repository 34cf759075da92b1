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
	"strings"
	"syscall"
	"time"
	"unicode"

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
	s.timedOut = isTimeout(err)
	s.cause = &checkup.Cause{Stage: stage, Message: words(err, timeout)}
	if errors.Is(err, silentInHandshake) {
		s.cause.Reason = checkup.ReasonSilent
	}
}

// words puts an error of the network into words.
func words(err error, timeout time.Duration) string {
	var several interface{ Unwrap() []error }
	var unsaid quiet
	var errno syscall.Errno
	switch {
	case errors.As(err, &several):
		var all []string
		for _, err := range several.Unwrap() {
			all = append(all, words(err, timeout))
		}
		slices.Sort(all)
		return strings.Join(slices.Compact(all), ", ")
	case errors.As(err, &unsaid):
		return fmt.Sprintf("%s %v", string(unsaid), timeout)
	case isTimeout(err):
		return timedOutWords(timeout)
	case errors.As(err, &errno):
		return errno.Error()
	case isClosed(err):
		return "closed by the peer before the whole answer"
	case isAlert(err):
		return fmt.Sprintf("the peer refused with the TLS alert %q", alertOf(err))
	}
	return oneLine(err.Error())
}

// maxWords bounds what is told in words that are not ours, in bytes.
const maxWords = 200

// oneLine makes a message of what may quote the peer.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), maxWords)], "")
}

// quiet is a timeout with words of its own, behind which comes how long it was.
type quiet string

func (q quiet) Error() string { return string(q) }
func (q quiet) Timeout() bool { return true }

// Temporary makes it a net.Error.
func (q quiet) Temporary() bool { return true }

// isAlert reports whether the peer sent a TLS alert.
func isAlert(err error) bool { return alertOf(err) != "" }

// alertOf is the description of the TLS alert that the peer sent (RFC 8446,
// section 6), empty if it sent none. crypto/tls has no exported type for it.
func alertOf(err error) string {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" || op.Err == nil {
		return ""
	}
	return strings.TrimPrefix(op.Err.Error(), "tls: ")
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
	s.cause = &checkup.Cause{Stage: stage, Message: timedOutWords(timeout)}
}

func timedOutWords(timeout time.Duration) string { return fmt.Sprintf("timed out after %v", timeout) }

// errWrongAnswer is an answer that is not the one asked for.
var errWrongAnswer = errors.New("the answer differs from what was sent")
