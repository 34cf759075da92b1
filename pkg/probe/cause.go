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

// localErrnos are errors of connect and send that are caused by the agent's own host (no memory, no free file or port,
// no such protocol), not by the path.
var localErrnos = []syscall.Errno{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS,
	syscall.EADDRNOTAVAIL, syscall.EADDRINUSE,
	syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT,
}

// localSyscalls fail only for reasons of the agent's own host, with any error.
var localSyscalls = []string{"socket", "setsockopt", "getsockopt", "bind"}

// isLocal reports whether an error is caused by the agent's own socket, not by the path.
func isLocal(err error) bool {
	var call *os.SyscallError
	if errors.As(err, &call) && slices.Contains(localSyscalls, call.Syscall) {
		return true
	}
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(localErrnos, errno)
}

// localTrouble returns the message for an error of a local socket.
func localTrouble(err error) error {
	var call *os.SyscallError
	if errors.As(err, &call) {
		return call
	}
	return err
}

// fail sets the cause of a sample from an error of the network. The error must not be a local one. Messages are short,
// and equal for equal reasons, because reports group by them.
func (s *sample) fail(stage checkup.Stage, err error, timeout time.Duration) {
	s.timedOut = isTimeout(err)
	s.cause = &checkup.Cause{Stage: stage, Message: words(err, timeout)}
	if errors.Is(err, silentInHandshake) {
		s.cause.Reason = checkup.ReasonSilent
	}
}

// reasonOf is how a connection attempt or a datagram failed; empty for other failures. Of several addresses that failed
// in different ways, the first in this order counts: refused, timed out, no route.
func reasonOf(err error) checkup.Reason {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return checkup.ReasonRefused
	case isTimeout(err), errors.Is(err, syscall.ETIMEDOUT):
		return checkup.ReasonTimedOut
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return checkup.ReasonNoRoute
	}
	return ""
}

// words returns the message for an error of the network.
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
	return printable(err.Error())
}

// maxWords limits the length of messages that are not ours, in bytes.
const maxWords = 200

// printable cleans and shortens a message that may quote the peer.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), maxWords)], "")
}

// quiet is a timeout with its own message; the duration is appended.
type quiet string

func (q quiet) Error() string { return string(q) }
func (q quiet) Timeout() bool { return true }

// Temporary makes it a net.Error.
func (q quiet) Temporary() bool { return true }

// isAlert reports whether the peer sent a TLS alert.
func isAlert(err error) bool { return alertOf(err) != "" }

// alertOf returns the description of the TLS alert that the peer sent (RFC 8446, section 6); empty if it sent none.
// crypto/tls has no exported type for it.
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

// fromNetwork reports whether an error is caused by the network and not by the data that was read.
func fromNetwork(err error) bool {
	var errno syscall.Errno
	return isTimeout(err) || isClosed(err) || errors.As(err, &errno)
}

// timeOut sets the cause of a sample that was not answered in time.
func (s *sample) timeOut(timeout time.Duration) {
	s.timedOut = true
	s.cause = &checkup.Cause{Stage: checkup.StageEcho, Message: timedOutWords(timeout)}
}

// late makes an answered sample one that was not answered in time, if its delay is above the timeout: the agent may
// have read the answer late. 0 is no timeout.
func (s *sample) late(timeout time.Duration) {
	if s.cause == nil && timeout > 0 && s.rtt > timeout {
		s.timeOut(timeout)
	}
}

func timedOutWords(timeout time.Duration) string { return fmt.Sprintf("timed out after %v", timeout) }

// errWrongAnswer is the error for an answer that does not match the request.
var errWrongAnswer = errors.New("the answer differs from what was sent")
